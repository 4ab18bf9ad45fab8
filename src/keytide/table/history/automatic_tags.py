"""Tags that are made after commits, and tags that go when their time is over.

With `process-time` or `watermark` each period has a tag: the first snapshot after its end, and
after the delay, gets the period's name. With `batch` each batch write moves the tag of the day to
the newest snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from keytide.errors import AlreadyExistsError, NotFoundError
from keytide.format import paths
from keytide.format.snapshot import Snapshot
from keytide.moments import Moment, epoch_ms, is_moment, utc
from keytide.options import TableOptions
from keytide.table.definition.tag_period import TagPeriod
from keytide.table.history.guards import is_guard, is_over
from keytide.table.history.tags import (
    NamedTag,
    Tags,
    TagSource,
    create_tag_of,
    forget_tag,
    local_clock_ns,
    replace_tag_by,
    tags_of,
)
from keytide.table.state.looks import Looks
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.stored import StoredTable

__all__ = ["create_due_tags", "expire_tags", "forget_over", "tags_after_commit"]

_BATCH_TAG = "batch-write-"
# Tags say for how long they stay, not to the second until when.
_SECONDS_BETWEEN_LOOKS = 60.0


def tags_after_commit(metadata: TableMetadata, options: TableOptions, *, is_batch: bool) -> None:
    """Make the tags that are due after a commit, and delete those whose time is over.

    Takes no look at the store where options ask for nothing but what was looked at a minute ago.
    Raises what `create_due_tags` raises.
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
    """Make the tags of the periods that have ended, and delete those that are too many.

    Raises `InvalidError` for options that fit no period, `DataError` when the store fails.
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
        """Make what is due."""
        newest = self.metadata.latest_snapshot()
        last = max(self._begins(), default=None)
        if newest is None or not self._is_due(newest, last):
            return []
        ids, made = self._ids_after(last), list[NamedTag]()
        while (place := self._first_due(ids, last)) < len(ids):
            snapshot = self.metadata.snapshot(ids[place])
            last = self._period_for(snapshot, last)
            source = TagSource(paths.snapshot_path(snapshot.id), snapshot)
            with suppress(AlreadyExistsError):  # another writer made it
                made.append(create_tag_of(self.metadata, self.period.name_of(last), source))
            ids = ids[place + 1 :]
        return made

    def delete_surplus(self) -> None:
        """Delete the oldest of the tags that were made by periods, beyond those to be kept."""
        most = self.options.tag_num_retained_max
        if most is not None:
            begins = sorted(self._begins())
            _forget(self.metadata, [self.period.name_of(begin) for begin in begins[:-most]])

    def _begins(self) -> list[datetime]:
        found = map(self.period.begin_of, self.metadata.tag_names())
        return [begin for begin in found if begin is not None]

    def _ids_after(self, last: datetime | None) -> list[int]:
        """The snapshots that came after that of the newest tag."""
        ids = self.metadata.snapshot_ids()
        if last is None:
            return ids
        tagged = self.metadata.tag(self.period.name_of(last)).id
        return [number for number in ids if number > tagged]

    def _first_due(self, ids: Sequence[int], last: datetime | None) -> int:
        """The place of the first snapshot after the end of the next period; none is the end."""
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
        """The period that the tag of a snapshot stands for: the one that has just ended."""
        if last is not None and self.options.tag_automatic_completion:
            return last + self.period.length  # one after the other, though nothing came in between
        moment = self._moment(snapshot)
        assert moment is not None
        return self.period.last_ended(moment)

    def _moment(self, snapshot: Snapshot) -> datetime | None:
        return _CLOCKS[self.options.tag_automatic_creation](snapshot)


def _by_process_time(snapshot: Snapshot) -> datetime | None:
    """When a snapshot was made, in the time zone of this machine."""
    return datetime.fromtimestamp(snapshot.time_millis / 1000)


def _by_watermark(snapshot: Snapshot) -> datetime | None:
    """How far the stream had come, in UTC; None where no stream said it.

    The end of a stream is told by the largest number there is, which is no time.
    """
    told = snapshot.told_watermark
    return None if told is None or not is_moment(told) else utc(told).replace(tzinfo=None)


_CLOCKS: dict[str, Callable[[Snapshot], datetime | None]] = {
    "process-time": _by_process_time,
    "watermark": _by_watermark,
}


# -- by batches ------------------------------------------------------------------------------------


def _tag_batch(metadata: TableMetadata, options: TableOptions) -> None:
    """Have the tag of the day name the newest snapshot."""
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
    """Delete tags whose time is over, and those made before `older_than`; gives these.

    Writes do the first by themselves, unless 'tag.time-expire-enabled' is false. Time goes by
    the wall clock of this machine, as it does where tags are made. `dry_run` tells which
    tags would go. Raises `InvalidError` for what is no time, `DataError` for a torn tag or
    when the store fails.
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
    """As `expire_tags`, by the metadata of a table and a clock."""
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
    """When a tag was made, epoch milliseconds; without a time in it, when its file was written."""
    if tag.create_time is not None:
        return tag.create_time.timestamp() * 1000  # of this machine's wall clock, as it was written
    name = paths.tag_path(tag.name)
    found = (info.modified_ms for info in metadata.store.list(paths.tag_dir()) if info.path == name)
    return next(found, float("inf"))


_LOOKS = Looks()
