"""Creates tags after commits, and deletes expired tags.

With `process-time` or `watermark`, each period has a tag: the first snapshot after the end of the
period plus the delay gets the name of the period. With `batch`, each batch write moves the tag of
the day to the latest snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from keytide.base.moments import Moment, epoch_ms, is_moment, utc
from keytide.definition.tag_period import TagPeriod
from keytide.errors import AlreadyExistsError, NotFoundError
from keytide.format import paths
from keytide.format.snapshot import Snapshot
from keytide.maintenance.history.guards import is_guard, is_over
from keytide.maintenance.history.tags import (
    NamedTag,
    Tags,
    TagSource,
    create_tag_of,
    forget_tag,
    local_clock_ns,
    replace_tag_by,
    tags_of,
)
from keytide.options import TableOptions
from keytide.snapshot.looks import Looks
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored import StoredTable

__all__ = ["create_due_tags", "expire_tags", "forget_over", "tags_after_commit"]

_BATCH_TAG = "batch-write-"
# Tags have a retention time, which need not be exact to the second.
_SECONDS_BETWEEN_LOOKS = 60.0


def tags_after_commit(metadata: TableMetadata, options: TableOptions, *, is_batch: bool) -> None:
    """Create the tags that are due after a commit, and delete expired ones.

    Sends no request to the store if the options need only what was checked within the last minute.
    Raises the errors of `create_due_tags`.
    """
    if options.tag_automatic_creation == "batch":
        if is_batch:
            _tag_batch(metadata, options)
    else:
        create_due_tags(metadata, options)
    if options.tag_time_expire_enabled and _LOOKS.is_time(metadata.uri, _SECONDS_BETWEEN_LOOKS):
        forget_over(metadata)


# -- by periods ------------------------------------------------------------------------------------


def create_due_tags(metadata: TableMetadata, options: TableOptions) -> list[NamedTag]:
    """Create the tags of the periods that have ended, and delete those that exceed the maximum
    number.

    Raises `InvalidError` for options that do not fit a period, and `DataError` if the store fails.
    """
    if options.tag_automatic_creation not in _CLOCKS:
        return []
    maker = _Maker(metadata, options, TagPeriod.of(options))
    made = maker.run()
    if made:
        maker.delete_surplus()
    return made


@dataclass(frozen=True)
class _Maker:
    metadata: TableMetadata
    options: TableOptions
    period: TagPeriod

    def run(self) -> list[NamedTag]:
        """Create what is due."""
        newest = self.metadata.latest_snapshot()
        last = max(self._begins(), default=None)
        if newest is None or not self._is_due(newest, last):
            return []
        ids, made = self._ids_after(last), list[NamedTag]()
        while (place := self._first_due(ids, last)) < len(ids):
            snapshot = self.metadata.snapshot(ids[place])
            last = self._period_for(snapshot, last)
            source = TagSource(paths.snapshot_path(snapshot.id), snapshot)
            with suppress(AlreadyExistsError):  # another writer created it
                made.append(create_tag_of(self.metadata, self.period.name_of(last), source))
            ids = ids[place + 1 :]
        return made

    def delete_surplus(self) -> None:
        """Delete the oldest automatic tags beyond the number to keep."""
        most = self.options.tag_num_retained_max
        if most is not None:
            begins = sorted(self._begins())
            _forget(self.metadata, [self.period.name_of(begin) for begin in begins[:-most]])

    def _begins(self) -> list[datetime]:
        found = map(self.period.begin_of, self.metadata.tag_names())
        return [begin for begin in found if begin is not None]

    def _ids_after(self, last: datetime | None) -> list[int]:
        """The snapshots after that of the latest tag."""
        ids = self.metadata.snapshot_ids()
        if last is None:
            return ids
        tagged = self.metadata.tag(self.period.name_of(last)).id
        return [number for number in ids if number > tagged]

    def _first_due(self, ids: Sequence[int], last: datetime | None) -> int:
        """The index of the first snapshot after the end of the next period.

        The length if there is none.
        """
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if self._is_due(self.metadata.snapshot(ids[middle]), last):
                high = middle
            else:
                low = middle + 1
        return low

    def _is_due(self, snapshot: Snapshot, last: datetime | None) -> bool:
        moment = self._moment(snapshot)
        if moment is None or last is None:
            return moment is not None
        delay = timedelta(milliseconds=self.options.tag_creation_delay_ms)
        return moment - delay >= last + 2 * self.period.length

    def _period_for(self, snapshot: Snapshot, last: datetime | None) -> datetime:
        """The period for the tag of a snapshot: the one that has just ended."""
        if last is not None and self.options.tag_automatic_completion:
            # One after the other, even if there was no snapshot in between.
            return last + self.period.length
        moment = self._moment(snapshot)
        assert moment is not None
        return self.period.last_ended(moment)

    def _moment(self, snapshot: Snapshot) -> datetime | None:
        return _CLOCKS[self.options.tag_automatic_creation](snapshot)


def _by_process_time(snapshot: Snapshot) -> datetime | None:
    """When a snapshot was created, in the time zone of this machine."""
    return datetime.fromtimestamp(snapshot.time_millis / 1000)


def _by_watermark(snapshot: Snapshot) -> datetime | None:
    """The watermark of the stream, in UTC. None if no stream has written one.

    The end of a stream is marked by the largest possible number, which is not a time.
    """
    told = snapshot.told_watermark
    return None if told is None or not is_moment(told) else utc(told).replace(tzinfo=None)


_CLOCKS: dict[str, Callable[[Snapshot], datetime | None]] = {
    "process-time": _by_process_time,
    "watermark": _by_watermark,
}


# -- by batches ------------------------------------------------------------------------------------


def _tag_batch(metadata: TableMetadata, options: TableOptions) -> None:
    """Set the tag of the day to the latest snapshot."""
    newest = metadata.latest_snapshot()
    if newest is None:
        return
    day = datetime.fromtimestamp(newest.time_millis / 1000).strftime("%Y-%m-%d")
    name = options.tag_batch_name or f"{_BATCH_TAG}{day}"
    source = TagSource(paths.snapshot_path(newest.id), newest)
    try:
        create_tag_of(metadata, name, source)
    except AlreadyExistsError:
        if metadata.tag(name).id < newest.id:
            replace_tag_by(metadata, name, source)
    most = options.tag_num_retained_max
    if most is not None:
        batches = [each for each in metadata.tag_names() if each.startswith(_BATCH_TAG)]
        _forget(metadata, batches[:-most])


def _forget(metadata: TableMetadata, names: Sequence[str]) -> None:
    for name in names:
        with suppress(NotFoundError):  # another writer was faster
            forget_tag(metadata, name)


# -- by age ----------------------------------------------------------------------------------------


def expire_tags(
    table: StoredTable, older_than: Moment | None = None, *, dry_run: bool = False
) -> Tags:
    """Delete expired tags, and those created before `older_than`. Returns these tags.

    Writes delete expired tags automatically, unless 'tag.time-expire-enabled' is false. Times are
    compared with the wall clock of this machine, as when tags are created. `dry_run` reports which
    tags would be deleted. Raises `InvalidError` for an invalid time, and `DataError` for a damaged
    tag or if the store fails.
    """
    moment = None if older_than is None else epoch_ms(older_than, table.name, "older_than")
    return forget_over(table.metadata, moment, dry_run=dry_run)


def forget_over(
    metadata: TableMetadata,
    older_than_ms: int | None = None,
    *,
    dry_run: bool = False,
    clock_ns: Callable[[], int] = local_clock_ns,
) -> Tags:
    """The same as `expire_tags`, for the metadata of a table and a clock."""
    now = datetime(1970, 1, 1) + timedelta(microseconds=clock_ns() // 1000)
    over = Tags(tag for tag in tags_of(metadata) if _is_over(metadata, tag, now, older_than_ms))
    if not dry_run:
        _forget(metadata, [tag.name for tag in over])
    return over


def _is_over(
    metadata: TableMetadata, tag: NamedTag, now: datetime, older_than_ms: int | None
) -> bool:
    if is_guard(tag.name):
        return is_over(metadata, tag.name)
    made, retained = tag.create_time, tag.time_retained
    if made is not None and retained is not None and now - made > retained:
        return True
    return older_than_ms is not None and _made_ms(metadata, tag) < older_than_ms


def _made_ms(metadata: TableMetadata, tag: NamedTag) -> float:
    """When a tag was created, in epoch milliseconds.

    If the tag does not say, when its file was written.
    """
    if tag.create_time is not None:
        return tag.create_time.timestamp() * 1000  # of this machine's wall clock, as it was written
    name = paths.tag_path(tag.name)
    found = (info.modified_ms for info in metadata.store.list(paths.tag_dir()) if info.path == name)
    return next(found, float("inf"))


_LOOKS = Looks()
