"""Tags: names of snapshots, which keep their files alive, created on request and by time.

A tag is one file with a copy of its snapshot, and creating that file creates the tag. The creator
checks afterwards whether the snapshot still exists. Expiry deletes the file of a snapshot first,
and reads the tags afterwards. So one of the two sees the other.

With `process-time` or `watermark`, each period has a tag: the first snapshot after the end of the
period plus the delay gets the name of the period. With `batch`, each batch write moves the tag of
the day to the latest snapshot.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from keytide.base import record
from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass
from keytide.base.text import Moment, counted, epoch_ms, is_moment, moment_text, utc
from keytide.definition.times import TagPeriod
from keytide.errors import AlreadyExistsError, ConflictError, DataError, InvalidError, NotFoundError
from keytide.format import paths
from keytide.format.snapshot import Snapshot, Tag
from keytide.maintenance.references import is_guard, is_over, refuse_needed
from keytide.options import TableOptions
from keytide.options.values import lifetime_ms
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import StoredTable, pinned

# -- tags and their files --------------------------------------------------------------------------


# File names have at most 255 bytes, and some systems append a suffix.
_NAME_BYTES_MAX = 240
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class NamedTag:
    """A tag: its name, its snapshot, and its retention, `None` for forever."""

    name: str
    snapshot: Snapshot
    create_time: datetime | None = None
    """The wall-clock time of its creator. None for a tag that is kept forever."""
    time_retained: timedelta | None = None

    @classmethod
    def of(cls, name: str, tag: Tag) -> NamedTag:
        """A stored tag, with its name."""
        created_ns, retained_ns = tag.create_time_ns, tag.time_retained_ns
        return cls(
            name,
            tag.snapshot,
            None if created_ns is None else datetime(1970, 1, 1) + _span(created_ns),
            None if retained_ns is None else _span(retained_ns),
        )

    @property
    def snapshot_id(self) -> int:
        """The id of the snapshot."""
        return self.snapshot.id


class Tags(list[NamedTag]):
    """A list of tags, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        head = ("name", "snapshot", "time of the snapshot", "stored versions", "made", "kept for")
        return record.table(head, map(_shown, self))


def _shown(tag: NamedTag) -> tuple[object, ...]:
    return (
        tag.name,
        tag.snapshot_id,
        moment_text(tag.snapshot.time_millis),
        f"{tag.snapshot.total_record_count:,}",
        "" if tag.create_time is None else tag.create_time.isoformat(" ", "seconds"),
        "ever" if tag.time_retained is None else tag.time_retained,
    )


def local_clock_ns() -> int:
    """The wall clock of this machine, as if it were in UTC.

    This is what the format stores in a tag.
    """
    return time.time_ns() + time.localtime().tm_gmtoff * 1_000_000_000


def tags_of(metadata: TableMetadata) -> Tags:
    """The tags by the ids of their snapshots, then by name.

    Raises `DataError` for a damaged one.
    """
    found = [NamedTag.of(name, tag) for name, tag in metadata.tags().items()]
    return Tags(sorted(found, key=lambda tag: (tag.snapshot_id, tag.name)))


def create_tag(
    table: StoredTable,
    name: str,
    snapshot_id: int | None = None,
    time_retained: str | timedelta | None = None,
) -> NamedTag:
    """Create a tag for a snapshot, by default the latest.

    Atomic: of several callers, one creates it. A tag keeps its snapshot readable when the snapshot
    expires. The tag is kept for `time_retained`, such as '7 d', counted from now, or 'forever'.
    Default: the option 'tag.default-time-retained', which is forever unless it is set. The time
    must be above 0 and at most 292 years.

    Raises `NotFoundError` for a snapshot that does not exist (any more), with a list of those that
    exist. Raises `AlreadyExistsError` for a name that is taken, `InvalidError` for an invalid name
    or time, `ConflictError`, with nothing created, if the snapshot is deleted in the meantime, and
    `DataError` if the store fails.
    """
    _check_name(table.metadata, name)
    seen = pinned(table.metadata)
    retained_ns = _retained_ns(seen, time_retained)
    source = source_of(seen, snapshot_id)
    return _create(table.metadata, name, source, retained_ns, local_clock_ns)


def create_tag_of(
    metadata: TableMetadata,
    name: str,
    source: TagSource,
    time_retained: str | timedelta | None = None,
    *,
    clock_ns: Callable[[], int] = local_clock_ns,
) -> NamedTag:
    """The same as `create_tag`, for a snapshot that was found before, with any valid file name."""
    return _create(metadata, name, source, _retained_ns(metadata, time_retained), clock_ns)


def _create(
    metadata: TableMetadata,
    name: str,
    source: TagSource,
    retained_ns: int | None,
    clock_ns: Callable[[], int],
) -> NamedTag:
    tag = _tag(source.snapshot, retained_ns, clock_ns)
    if not metadata.create_tag(name, tag):
        raise _name_taken_error(metadata, name)
    if not source.is_there(metadata):
        metadata.delete_tag(name)
        raise source.gone_error(metadata, name)
    return NamedTag.of(name, tag)


def replace_tag(
    table: StoredTable,
    name: str,
    snapshot_id: int | None = None,
    time_retained: str | timedelta | None = None,
) -> NamedTag:
    """Set a tag to another snapshot, by default the latest, in one step.

    The retention time starts again, see `create_tag`. Raises `NotFoundError` for an unknown tag
    too, and the errors of `create_tag`.
    """
    metadata = table.metadata
    metadata.stored_tag(name)
    refuse_needed(metadata, name)
    return replace_tag_by(metadata, name, source_of(metadata, snapshot_id), time_retained)


def replace_tag_by(
    metadata: TableMetadata,
    name: str,
    source: TagSource,
    time_retained: str | timedelta | None = None,
    *,
    clock_ns: Callable[[], int] = local_clock_ns,
) -> NamedTag:
    """The same as `replace_tag`, for a snapshot that was found before."""
    old = metadata.stored_tag(name)
    tag = _tag(source.snapshot, _retained_ns(metadata, time_retained), clock_ns)
    metadata.replace_tag(name, tag)
    if not source.is_there(metadata):
        metadata.replace_tag(name, old)
        raise source.gone_error(metadata, name)
    return NamedTag.of(name, tag)


def rename_tag(table: StoredTable, name: str, new_name: str) -> NamedTag:
    """Rename a tag.

    Both names exist for a moment. After an interruption in between, a repeated call continues.
    Raises `NotFoundError` for an unknown tag, `AlreadyExistsError` or `InvalidError` for a new name
    that is taken or invalid, and `DataError` if the store fails.
    """
    metadata = table.metadata
    tag = metadata.stored_tag(name)
    refuse_needed(metadata, name)
    if name == new_name:
        raise AlreadyExistsError(f"table {metadata.name}: tag {name!r} already has this name")
    _check_name(metadata, new_name)
    # The new name first: after an interruption, both exist, and a repeated call continues.
    if not metadata.create_tag(new_name, tag) and metadata.stored_tag(new_name) != tag:
        raise _name_taken_error(metadata, new_name)
    metadata.delete_tag(name)
    return NamedTag.of(new_name, tag)


def delete_tag(table: StoredTable, name: str) -> None:
    """Delete a tag. Its snapshot can be read by its id as long as it exists itself.

    Raises `NotFoundError`, which lists the existing tags, and `DataError` if the store fails.
    """
    forget_tag(table.metadata, name)


def forget_tag(metadata: TableMetadata, name: str) -> None:
    """The same as `delete_tag`, for the metadata of a table."""
    metadata.stored_tag(name)
    refuse_needed(metadata, name)
    metadata.delete_tag(name)


def snapshot_at_or_after(metadata: TableMetadata, time_millis: int) -> Snapshot:
    """The first snapshot created at or after a time, among existing snapshots and tags.

    Raises `NotFoundError` if the latest one is older.
    """
    ids = metadata.snapshot_ids()
    low = bisect_left(ids, time_millis, key=lambda number: metadata.snapshot(number).time_millis)
    found = [metadata.snapshot(ids[low])] if low < len(ids) else []
    found += [tag.snapshot for tag in metadata.tags().values()
              if tag.snapshot.time_millis >= time_millis]  # fmt: skip
    if not found:
        newest = "does not exist yet"
        if ids:
            newest = f"is from {moment_text(metadata.snapshot(ids[-1]).time_millis)}"
        raise NotFoundError(
            f"table {metadata.name} has no snapshot at or after {moment_text(time_millis)}; the "
            f"latest one {newest}"
        )
    return min(found, key=lambda snapshot: (snapshot.time_millis, snapshot.id))


def snapshot_at_or_after_watermark(metadata: TableMetadata, watermark: int) -> Snapshot:
    """The first snapshot with this watermark or a later one, among existing snapshots and tags.

    Raises `NotFoundError` if there is none.
    """
    tagged = [tag.snapshot for tag in metadata.tags().values()]
    known = [(mark, each) for each in (*metadata.snapshots(), *tagged)
             if (mark := each.known_watermark) is not None]  # fmt: skip
    found = [each for mark, each in known if mark >= watermark]
    if not found:
        latest = max((mark for mark, _ in known), default=None)
        known_ones = "no snapshot has a watermark" if latest is None else f"the latest is {latest}"
        raise NotFoundError(
            f"table {metadata.name} has no snapshot with the watermark {watermark} or a later one; "
            f"{known_ones}"
        )
    return min(found, key=lambda snapshot: snapshot.id)


# -- creation --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TagSource:
    """The file that a tag is copied from: that of the snapshot, or of another tag of it."""

    path: str
    snapshot: Snapshot

    def is_there(self, metadata: TableMetadata) -> bool:
        """Whether the file still contains this snapshot."""
        try:
            data = metadata.store.read(self.path)
        except DataError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        return Snapshot.from_json(data, metadata.store.uri_of(self.path)) == self.snapshot

    def gone_error(self, metadata: TableMetadata, name: str) -> ConflictError:
        """The error to raise if it does not."""
        return ConflictError(
            f"table {metadata.name}: snapshot {self.snapshot.id} expired or was rolled back "
            f"while tag {name!r} was created from it, so the tag was not created; "
            f"{_what_is_there(metadata)}"
        )


def source_of(metadata: TableMetadata, snapshot_id: int | None) -> TagSource:
    """The file of a snapshot, by default the latest, from which it can be copied.

    Raises `NotFoundError`, which lists the existing snapshots.
    """
    if snapshot_id is None:
        newest = metadata.latest_snapshot()
        if newest is None:
            raise NotFoundError(f"table {metadata.name} has no snapshot to tag; write to it first")
        return TagSource(paths.snapshot_path(newest.id), newest)
    try:
        found = metadata.snapshot(snapshot_id)
        return TagSource(paths.snapshot_path(found.id), found)
    except NotFoundError as error:
        for name, tag in metadata.tags().items():
            if tag.snapshot.id == snapshot_id:
                return TagSource(paths.tag_path(name), tag.snapshot)
        raise NotFoundError(
            f"table {metadata.name} has no snapshot {snapshot_id}, and no tag that keeps it; "
            f"{_what_is_there(metadata)}"
        ) from error


def _what_is_there(metadata: TableMetadata) -> str:
    ids = metadata.snapshot_ids()
    if not ids:
        return "it has no snapshots: write to it first"
    kept = sorted({tag.snapshot.id for tag in metadata.tags().values()})
    by_tags = f", and {', '.join(map(str, kept))} through tags" if kept else ""
    return f"snapshots {ids[0]} to {ids[-1]} exist{by_tags}"


def _tag(snapshot: Snapshot, retained_ns: int | None, clock_ns: Callable[[], int]) -> Tag:
    # A tag without an end is a plain copy of the snapshot: Paimon before 0.8 reads no other
    # members.
    return Tag(snapshot=snapshot) if retained_ns is None else Tag(
        snapshot=snapshot, create_time_ns=clock_ns(), time_retained_ns=retained_ns
    )  # fmt: skip


def _name_taken_error(metadata: TableMetadata, name: str) -> AlreadyExistsError:
    try:
        of = f" of snapshot {metadata.stored_tag(name).snapshot.id}"
    except (NotFoundError, DataError):  # it is gone again, or damaged
        of = ""
    return AlreadyExistsError(
        f"table {metadata.name} already has a tag {name!r}{of}; choose another name, or replace "
        "or delete this tag"
    )


def _check_name(metadata: TableMetadata, name: str) -> None:
    """Raise `InvalidError` for a name that no file can have, or that has another meaning."""
    table = metadata.name
    try:
        paths.tag_path(name)
    except InvalidError as error:
        raise InvalidError(f"table {table}: {error}") from error
    if name != name.strip() or "," in name:
        raise InvalidError(
            f"table {table}: {name!r} is not a valid tag name: do not use commas, or leading or "
            "trailing blanks"
        )
    if name.isdecimal():
        raise InvalidError(
            f"table {table}: {name!r} looks like a snapshot id; put a letter in front of it, "
            f"such as 'v{name}'"
        )
    if len(name.encode()) > _NAME_BYTES_MAX:
        raise InvalidError(
            f"table {table}: {shown(name)} has {counted(len(name.encode()), 'byte')}; a tag is a "
            f"file, whose name can have at most {_NAME_BYTES_MAX}"
        )


def _retained_ns(metadata: TableMetadata, given: str | timedelta | None) -> int | None:
    """How long a tag is kept. By default, as the table's options say. None for forever."""
    if given is None:
        options = TableOptions.parse(metadata.latest_schema().options)
        given_ms = options.tag_default_time_retained_ms
        return None if given_ms is None else given_ms * 1_000_000
    argument = f"table {metadata.name}: time_retained"
    given_ms = lifetime_ms(given, argument)
    return None if given_ms is None else given_ms * 1_000_000


def _span(nanoseconds: int) -> timedelta:
    """As much of it as a timedelta can hold: other engines store longer times."""
    return timedelta(microseconds=min(nanoseconds // 1000, timedelta.max // _MICROSECOND))


# -- automatic tags --------------------------------------------------------------------------------


_PROCESS_TIME, _WATERMARK = "process-time", "watermark"
_BATCH_TAG = "batch-write-"


def create_automatic_tags(
    metadata: TableMetadata, options: TableOptions, *, is_batch: bool
) -> None:
    """Create the tags that are due after a commit. `is_batch`: it does not belong to a stream.

    Raises the errors of `create_due_tags`.
    """
    if options.tag_automatic_creation != "batch":
        create_due_tags(metadata, options)
    elif is_batch:
        _tag_batch(metadata, options)


# -- tags of periods -------------------------------------------------------------------------------


def create_due_tags(metadata: TableMetadata, options: TableOptions) -> list[NamedTag]:
    """Create the tags of the periods that have ended, and delete those that exceed the maximum
    number.

    Raises `InvalidError` for options that do not fit a period, and `DataError` if the store fails.
    """
    if options.tag_automatic_creation not in (_PROCESS_TIME, _WATERMARK):
        return []
    return _TagCreation(metadata, options, TagPeriod.of(options)).run()


@dataclass(frozen=True)
class _TagCreation:
    metadata: TableMetadata
    options: TableOptions
    period: TagPeriod

    def run(self) -> list[NamedTag]:
        """Create what is due, and then delete the oldest beyond the number to keep."""
        newest = self.metadata.latest_snapshot()
        last = max(self._begins(), default=None)
        if newest is None or not self._is_due(newest, last):
            return []
        ids, made = self.metadata.snapshot_ids(), list[NamedTag]()
        if last is not None:
            tagged = self.metadata.tag(self.period.name_of(last)).id
            ids = [number for number in ids if number > tagged]
        while (place := self._first_due(ids, last)) < len(ids):
            snapshot = self.metadata.snapshot(ids[place])

            # The period for the tag of a snapshot: the one that has just ended.
            if last is not None and self.options.tag_automatic_completion:
                # One after the other, even if there was no snapshot in between.
                last = last + self.period.length
            else:
                moment = self._moment(snapshot)
                assert moment is not None
                last = self.period.last_ended(moment)
            source = TagSource(paths.snapshot_path(snapshot.id), snapshot)
            with suppress(AlreadyExistsError):  # another writer created it
                made.append(create_tag_of(self.metadata, self.period.name_of(last), source))
            ids = ids[place + 1 :]
        most = self.options.tag_num_retained_max
        if made and most is not None:
            begins = sorted(self._begins())
            _forget(self.metadata, [self.period.name_of(begin) for begin in begins[:-most]])
        return made

    def _begins(self) -> list[datetime]:
        found = map(self.period.begin_of, self.metadata.tag_names())
        return [begin for begin in found if begin is not None]

    def _first_due(self, ids: Sequence[int], last: datetime | None) -> int:
        """The index of the first snapshot after the end of the next period.

        The length if there is none.
        """
        return bisect_left(
            ids, True, key=lambda number: self._is_due(self.metadata.snapshot(number), last)
        )

    def _is_due(self, snapshot: Snapshot, last: datetime | None) -> bool:
        moment = self._moment(snapshot)
        if moment is None or last is None:
            return moment is not None
        delay = timedelta(milliseconds=self.options.tag_creation_delay_ms)
        return moment - delay >= last + 2 * self.period.length

    def _moment(self, snapshot: Snapshot) -> datetime | None:
        """The time by which the tag of a snapshot is due, None if it has none."""
        if self.options.tag_automatic_creation == _PROCESS_TIME:
            # When it was created, in the time zone of this machine.
            return datetime.fromtimestamp(snapshot.time_millis / 1000)
        # The watermark of the stream, in UTC. The end of a stream is marked by the largest possible
        # number, which is not a time.
        mark = snapshot.known_watermark
        return None if mark is None or not is_moment(mark) else utc(mark).replace(tzinfo=None)


# -- tags of batches -------------------------------------------------------------------------------


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


# -- expired tags ----------------------------------------------------------------------------------


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
    if older_than_ms is None:
        return False
    if made is not None:
        # In milliseconds, of this machine's wall clock, as it was written.
        return made.timestamp() * 1000 < older_than_ms
    # The tag does not say, so the time when its file was written counts.
    path = paths.tag_path(tag.name)
    found = (info.modified_ms for info in metadata.store.list(paths.tag_dir()) if info.path == path)
    return next(found, float("inf")) < older_than_ms
