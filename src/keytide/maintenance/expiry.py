"""Expiry of the oldest snapshots, and of changelogs that have outlived their snapshots.

If a table keeps changelogs for longer, an expired snapshot leaves its own document behind as a
changelog, which references only the emitted rows of the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial

from keytide.base.dataclass import dataclass, replace
from keytide.base.record import Record
from keytide.base.text import Moment, epoch_ms
from keytide.commit.snapshot_files import wall_clock_ms
from keytide.errors import ConflictError, InvalidError, NotFoundError
from keytide.format import paths
from keytide.format.snapshot import Snapshot
from keytide.gate import refuse_cleaners
from keytide.maintenance.history import expire_consumers
from keytide.maintenance.references import (
    Sweep,
    changelog_garbage_of,
    consumers,
    finish_sweeps,
    free_files,
    garbage_of,
)
from keytide.options import TableOptions
from keytide.snapshot.live_files import retried
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import StoredTable

# -- retention of snapshots and changelogs ---------------------------------------------------------


@dataclass(frozen=True)
class ExpiryRequest:
    """The settings in a request, under the names that users know. None if not given."""

    retain_max: int | None = None
    retain_min: int | None = None
    older_than_ms: int | None = None
    max_deletes: int | None = None


@dataclass(frozen=True)
class Retention:
    """Which snapshots expire, or which changelogs that have outlived their snapshots.

    The newest `keep_min` never expire. Those beyond the newest `keep_max` do, whatever their age.
    Of the others, those created before `before_ms` do. At most `expire_max` expire at a time,
    oldest first.
    """

    keep_min: int
    keep_max: int | None
    before_ms: int
    expire_max: int | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidError` for numbers that contradict each other."""
        for name, value in (("retain_min", self.keep_min), ("retain_max", self.keep_max)):
            if value is not None and value < 1:
                raise InvalidError(
                    f"{name} is {value}; should be at least 1: the latest snapshot is always kept"
                )
        if self.keep_max is not None and self.keep_min > self.keep_max:
            raise InvalidError(
                f"retain_min is {self.keep_min}, which should not be larger than retain_max, "
                f"which is {self.keep_max}; correct one of them"
            )
        if self.expire_max is not None and self.expire_max < 0:
            raise InvalidError(f"max_deletes is {self.expire_max}; expected 0 or more")

    @classmethod
    def of_snapshots(cls, options: TableOptions, now_ms: int) -> Retention:
        """The table's options for its snapshots."""
        before_ms = now_ms - options.snapshot_time_retained_ms
        return cls(options.snapshots_retained_min, options.snapshots_retained_max, before_ms)

    @classmethod
    def of_changelogs(cls, options: TableOptions, now_ms: int) -> Retention:
        """The table's options for changelogs. Default: the same as for snapshots."""
        least, most = options.least_changelogs, options.most_changelogs
        return cls(least, most, now_ms - options.changelog_lifetime_ms)

    def for_request(self, request: ExpiryRequest) -> Retention:
        """The same with the settings of a request.

        If only one of the two numbers is given, the other one is adapted to it. Raises
        `InvalidError` like the constructor.
        """
        least, most = self.keep_min, self.keep_max
        if request.retain_max is not None:
            least, most = min(least, max(1, request.retain_max)), request.retain_max
        if request.retain_min is not None:
            least = request.retain_min
            if request.retain_max is None and most is not None:
                most = max(most, least)
        before_ms = self.before_ms if request.older_than_ms is None else request.older_than_ms
        return Retention(least, most, before_ms, request.max_deletes)

    def is_due(self, newest_id: int, oldest_id: int, oldest_ms: int, slack_ms: int = 0) -> bool:
        """Whether the oldest snapshot expires, unless something keeps it.

        It is due because of its age only when it is too old by `slack_ms`.
        """
        count = newest_id - oldest_id + 1
        is_old = oldest_ms < self.before_ms - slack_ms
        is_beyond = self.keep_max is not None and count > self.keep_max
        return count > self.keep_min and (is_old or is_beyond)

    def expired(
        self,
        ids: Sequence[int],
        newest: int,
        held_from: int | None,
        made_ms: Callable[[int], int],
    ) -> list[int]:
        """Those of the ids, in ascending order, that expire: always the lowest ones.

        They are counted back from `newest`. `held_from` is the lowest one that a consumer still has
        to read. `made_ms` returns a creation time and is called as rarely as possible.
        """
        expired: list[int] = []
        for number in ids:
            count = newest - number + 1
            is_enough = self.expire_max is not None and len(expired) >= self.expire_max
            if count <= self.keep_min or is_enough:
                break
            if held_from is not None and number >= held_from:
                break
            is_beyond = self.keep_max is not None and count > self.keep_max
            if not is_beyond and made_ms(number) >= self.before_ms:
                break
            expired.append(number)
        return expired


# -- expiry ----------------------------------------------------------------------------------------


# Commits wait for this part of the retention time, so that not every commit expires a snapshot:
# expiring several together costs the same as one.
_SLACK = 16
# Its own, and that of the compaction that it made due.
_COMMITS_OF_A_WRITE = 2


@dataclass(frozen=True)
class ExpiryResult(Record):
    """What an expiry did or, in a dry run, what it would do.

    - `snapshots` is the number of expired snapshots, and `changelogs` the number of expired
      changelogs that had outlived their snapshots.
    - `files` is the number of deleted files, which nothing else referred to, and `bytes` their size
      as recorded in metadata.
    - `earliest_id` is the oldest remaining snapshot, None when there is none.
    """

    snapshots: int
    files: int
    bytes: int
    earliest_id: int | None
    changelogs: int = 0


def expire_snapshots(
    table: StoredTable,
    retain_max: int | None = None,
    retain_min: int | None = None,
    older_than: Moment | None = None,
    max_deletes: int | None = None,
    *,
    dry_run: bool = False,
) -> ExpiryResult:
    """Delete old snapshots, and the files that only they have.

    Writes do this automatically according to the options 'snapshot.time-retained',
    'snapshot.num-retained.min' and 'snapshot.num-retained.max', unless the table is 'write-only'.
    Here, these options are the defaults of the arguments. The newest `retain_min` snapshots stay.
    Those beyond the newest `retain_max` expire. Of the others, those created before `older_than`
    expire, which is given like `as_of` of `scan`. At most `max_deletes` expire, oldest first.

    Changelogs that have outlived their snapshots expire according to their own options.

    A snapshot that a consumer still has to read stays, with all later ones. The files of tags and
    branches stay. A reader of an expired snapshot fails with an error that says so. Other processes
    can write, compact, tag and expire at the same time. If an expiry dies, every snapshot, tag and
    branch stays complete, and the next expiry finishes the work. `dry_run` reports what would
    expire.

    Raises `InvalidError` for numbers that contradict each other, `ConflictError` if the table is
    rolled back in the meantime, and `DataError` if the store fails or contains a damaged tag or
    list.
    """
    older_ms = None if older_than is None else epoch_ms(older_than, table.name, "older_than")
    asked = ExpiryRequest(retain_max, retain_min, older_ms, max_deletes)
    view, now_ms = table.view(table.schema), wall_clock_ms()
    refuse_cleaners(view.schema, view.options, view.name)
    with view.naming_table():
        retention = Retention.of_snapshots(view.options, now_ms).for_request(asked)
    of_changelogs = Retention.of_changelogs(view.options, now_ms)
    return _Expiry(table, view, retention, of_changelogs).run(dry_run=dry_run)


def expire_changelogs(
    table: StoredTable,
    retain_max: int | None = None,
    retain_min: int | None = None,
    older_than: Moment | None = None,
    max_deletes: int | None = None,
    *,
    dry_run: bool = False,
) -> ExpiryResult:
    """Delete old changelogs that have outlived their snapshots, and their files.

    If 'changelog.time-retained', 'changelog.num-retained.min' or 'changelog.num-retained.max'
    exceed the settings for snapshots, an expired snapshot leaves its changelog behind, for
    `changes` and `follow` in the modes 'changelog' and 'delta'. It expires according to these
    options whenever snapshots expire, and according to the arguments here. Arguments, errors and
    result are those of `expire_snapshots`. Both numbers count commits back from the latest one. A
    consumer keeps what it still has to read.

    Raises the same errors as `expire_snapshots`.
    """
    older_ms = None if older_than is None else epoch_ms(older_than, table.name, "older_than")
    asked = ExpiryRequest(retain_max, retain_min, older_ms, max_deletes)
    view = table.view(table.schema)
    with view.naming_table():
        retention = Retention.of_changelogs(view.options, wall_clock_ms()).for_request(asked)
    return _ChangelogExpiry(table, view, retention).run(dry_run=dry_run)


def prefetch_oldest(table: StoredTable, view: TableView, newest: Snapshot | None) -> None:
    """Start to read what `expire_due` needs, if it is unknown and will be needed."""
    if newest is None or newest.id + _COMMITS_OF_A_WRITE <= view.options.snapshots_retained_min:
        return
    if table.oldest is None and not view.options.write_only:
        table.store.begin(partial(_read_oldest, table))


def _read_oldest(table: StoredTable) -> None:
    metadata = table.metadata
    with suppress(NotFoundError):
        earliest = metadata.earliest_snapshot_id()
        table.oldest = None if earliest is None else metadata.snapshot(earliest)


def expire_due(table: StoredTable, view: TableView, newest_id: int) -> None:
    """Expire what is due according to the table's options, after a commit.

    `newest_id` is a recent snapshot. Sends no request to the store while nothing is due, except the
    first time. Raises `DataError` if the store fails. In `async` mode it raises nothing, because a
    thread does the work.
    """
    options, now_ms = view.options, wall_clock_ms()
    if newest_id <= options.snapshots_retained_min:
        return
    asked = ExpiryRequest(max_deletes=options.snapshots_expired_max)
    retention = Retention.of_snapshots(options, now_ms).for_request(asked)
    of_changelogs = Retention.of_changelogs(options, now_ms).for_request(asked)
    expiry = _Expiry(table, view, retention, of_changelogs)
    if table.oldest is None:
        _read_oldest(table)
    oldest, slack_ms = table.oldest, options.snapshot_time_retained_ms // _SLACK
    if oldest is None or not retention.is_due(newest_id, oldest.id, oldest.time_millis, slack_ms):
        return
    if options.snapshot_expiry_mode == "async":
        _thread().submit(expiry.run)
    else:
        expiry.run()


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="keytide-expiry")


def _lowest_unconsumed(table: StoredTable) -> int | None:
    """The lowest snapshot that a consumer still has to read."""
    places = consumers(table.store).values()
    return min((place.next_snapshot for place in places), default=None)


# -- snapshots -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """Snapshots that expire, the oldest one that stays, and the files that it does not reference.

    `remaining_ids` are the ids of the snapshots that stay, and `outliving` those whose changelog
    stays.
    """

    expired: tuple[Snapshot, ...]
    oldest_kept: Snapshot
    remaining_ids: frozenset[int]
    garbage: Mapping[str, int]
    outliving: tuple[Snapshot, ...]


@dataclass(frozen=True)
class _Expiry:
    table: StoredTable
    view: TableView
    retention: Retention
    changelog_retention: Retention
    """Which changelogs that have outlived their snapshots expire."""

    def run(self, *, dry_run: bool = False) -> ExpiryResult:
        """Plan and execute. Then expire changelogs, and finish the work of processes that died."""
        names = self.table.store.list_names(paths.snapshot_dir())
        lifetime_ms = self.view.options.consumer_lifetime_ms
        if lifetime_ms is not None and not dry_run:
            expire_consumers(self.table, wall_clock_ms() - lifetime_ms)
        metadata, plan = self.table.metadata, retried(self._plan)
        if plan is None:
            _read_oldest(self.table)
            oldest = self.table.oldest
            result = ExpiryResult(0, 0, 0, None if oldest is None else oldest.id)
        else:
            first, last = plan.expired[0].id, plan.expired[-1].id
            garbage, left, lost = plan.garbage, plan.remaining_ids, plan.outliving
            if dry_run:
                ids = left | {snapshot.id for snapshot in plan.expired}
                files = free_files(metadata, self.view, garbage, ids, expired_changelogs=lost)
            else:
                sweep = Sweep(metadata, self.view, first, last, garbage, left)
                files = sweep.run(partial(self._delete, plan))
            freed = sum(garbage[path] for path in files)
            result = ExpiryResult(len(plan.expired), len(files), freed, plan.oldest_kept.id)
        if dry_run:
            return result
        more = _ChangelogExpiry(self.table, self.view, self.changelog_retention).run()
        finish_sweeps(metadata, self.view, names)
        return replace(
            result, files=result.files + more.files, bytes=result.bytes + more.bytes,
            changelogs=more.changelogs,
        )  # fmt: skip

    def _plan(self) -> _Plan | None:
        """What to do. None if there is nothing."""
        metadata, options = self.table.metadata, self.view.options
        ids = metadata.snapshot_ids()
        known: dict[int, Snapshot] = {}

        def made_ms(number: int) -> int:
            known[number] = metadata.snapshot(number)
            return known[number].time_millis

        held_from = (
            None if options.consumers_hold_changelogs_only else _lowest_unconsumed(self.table)
        )
        numbers = self.retention.expired(ids, max(ids, default=0), held_from, made_ms)
        if not numbers:
            return None
        unread = [number for number in numbers if number not in known]
        read = metadata.store.each(partial(metadata.snapshot, number) for number in unread)
        known |= zip(unread, read, strict=True)
        expired = tuple(known[number] for number in numbers)
        kept = metadata.snapshot(ids[len(numbers)])

        # Those snapshots that lead to `kept` without a gap. What is before a gap was left by a
        # process that died. It is unknown which of its files others have.
        line: list[Snapshot] = []
        for snapshot in reversed(expired):
            if snapshot.id != kept.id - len(line) - 1:
                break
            line.insert(0, snapshot)
        return _Plan(
            expired,
            kept,
            frozenset(ids[len(numbers) :]),
            garbage_of(metadata, self.view, line, kept),
            expired if options.changelogs_outlive_snapshots else (),
        )

    def _delete(self, plan: _Plan) -> None:
        """Delete the snapshots, oldest first.

        The changelogs that outlive them are written before. Raises `ConflictError`.
        """
        metadata, store = self.table.metadata, self.table.store
        if plan.outliving:
            store.put_all({paths.changelog_path(s.id): s.to_json() for s in plan.outliving})
            newest = paths.encode_hint(plan.outliving[-1].id)
            store.hint(paths.changelog_hint_path(paths.Hint.LATEST), newest)
        oldest = paths.encode_hint(plan.oldest_kept.id)
        store.hint(paths.snapshot_hint_path(paths.Hint.EARLIEST), oldest)
        if metadata.has(plan.oldest_kept):
            # A store may delete in any order, and what is left if it fails or this process dies
            # should lead to the kept one without a gap: otherwise, it could seem to be the latest.
            *earlier, last = [paths.snapshot_path(snapshot.id) for snapshot in plan.expired]
            if earlier:
                store.delete(earlier)
            store.delete([last])
            self.table.oldest = plan.oldest_kept
            newest_id = metadata.latest_snapshot_id()
            if newest_id is not None and newest_id >= plan.oldest_kept.id:
                return

            # The table was rolled back to one of these snapshots in the meantime: restore them.
            self.table.oldest = None
            target = metadata.hinted(paths.Hint.LATEST) or plan.oldest_kept.id
            for snapshot in plan.expired:
                if snapshot.id <= target:
                    store.create(paths.snapshot_path(snapshot.id), snapshot.to_json())
        store.delete(paths.changelog_path(snapshot.id) for snapshot in plan.outliving)
        raise ConflictError(
            f"table {self.table.name}: it was rolled back to before snapshot {plan.oldest_kept.id} "
            "while older snapshots expired, so they are kept. Run the expiry again"
        )


# -- changelogs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ChangelogExpiry:
    table: StoredTable
    view: TableView
    retention: Retention

    def run(self, *, dry_run: bool = False) -> ExpiryResult:
        """Delete due changelogs that have outlived their snapshots."""
        metadata = self.table.metadata
        ids = metadata.changelog_ids()
        earliest = metadata.earliest_snapshot_id()
        nothing = ExpiryResult(0, 0, 0, earliest)
        if not ids:
            return nothing
        expired = retried(partial(self._expired, ids))
        if not expired:
            return nothing
        files = retried(
            lambda: changelog_garbage_of(
                metadata,
                self.view,
                expired,
                None if earliest is None else metadata.snapshot(earliest),
            )
        )
        left = frozenset(metadata.stored_snapshot_ids())
        if dry_run:
            free = free_files(metadata, self.view, files, left, expired_snapshots=expired)
        else:
            sweep = Sweep(metadata, self.view, expired[0].id, expired[-1].id, files, left)
            free = sweep.run(partial(self._delete, expired))
        freed = sum(files[path] for path in free)
        return ExpiryResult(0, len(free), freed, earliest, len(expired))

    def _expired(self, ids: Sequence[int]) -> list[Snapshot]:
        metadata = self.table.metadata
        newest = max(metadata.latest_snapshot_id() or 0, ids[-1])
        numbers = self.retention.expired(
            ids,
            newest,
            _lowest_unconsumed(self.table),
            lambda number: metadata.changelog(number).time_millis,
        )
        return [metadata.changelog(number) for number in numbers]

    def _delete(self, expired: Sequence[Snapshot]) -> None:
        store = self.table.store
        hint = paths.changelog_hint_path(paths.Hint.EARLIEST)
        store.hint(hint, paths.encode_hint(expired[-1].id + 1))
        store.delete(paths.changelog_path(changelog.id) for changelog in expired)
