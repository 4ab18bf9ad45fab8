"""Expiry of snapshots: what nobody reads any more goes, with the files that only it had.

Rules that protect data:

- Whoever finds a snapshot, tag or branch finds all of its files. So snapshots go first, oldest
  first; their files when they are gone.
- Tags and branches are looked at when the snapshots are gone. Whoever tags a snapshot looks, when
  the tag is there, whether the snapshot still is: one of the two sees the other.
- What is about to be deleted is noted in a file before, so that an expiry that dies is finished by
  the next one. That one believes the note nothing: it deletes what no snapshot, tag or branch
  names by then.
- Where the snapshots are not those that were left, because the table was rolled back meanwhile,
  what all of them name stays.

Several may expire snapshots at once; whatever one finds gone, another one has deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache

import pyarrow as pa

from keytide import html
from keytide.errors import ConflictError, DataError, NotFoundError
from keytide.format import paths
from keytide.format.json_document import INTEGER, TEXTS, member, read_document, write_document
from keytide.format.snapshot import Snapshot
from keytide.table.commit.snapshot_files import wall_clock_ms
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView
from keytide.table.upkeep.beside import GoneError, again, telling_gone
from keytide.table.upkeep.garbage import garbage_of
from keytide.table.upkeep.references import Naming, consumers, held_lines, name_of
from keytide.table.upkeep.retention import Retention

__all__ = ["EXPIRY_ROW", "ExpiryResult", "expire_due", "expire_snapshots"]


# Commits wait for this part of the time that snapshots are kept, so that not each of them expires
# one: several go at the cost of one.
_SLACK = 16


@dataclass(frozen=True)
class ExpiryResult:
    """What an expiry did, or, of a dry run, what it would do.

    `snapshots` expired, and `files` with `bytes` went that nothing else named; the bytes are those
    that metadata tells of. `earliest_id` is the oldest snapshot left, None where there are none.
    """

    snapshots: int
    files: int
    bytes: int
    earliest_id: int | None

    def _repr_html_(self) -> str:
        names = [member.name for member in fields(self)]
        return html.table(names, [[getattr(self, name) for name in names]])


EXPIRY_ROW = pa.schema([(each.name, pa.int64()) for each in fields(ExpiryResult)])
"""The result as a row."""


def expire_snapshots(
    table: StoredTable, *, retain_max: int | None = None, retain_min: int | None = None,
    older_than_ms: int | None = None, max_deletes: int | None = None, dry_run: bool = False,
) -> ExpiryResult:  # fmt: skip
    """Expire snapshots, as `Table.expire_snapshots` says."""
    view = table.view(table.schema)
    with view.naming_table():
        retention = Retention.of(
            view.options, wall_clock_ms(), retain_max=retain_max, retain_min=retain_min,
            older_than_ms=older_than_ms, max_deletes=max_deletes,
        )  # fmt: skip
    return _Expiry(table, view, retention).run(dry_run=dry_run)


def expire_due(table: StoredTable, view: TableView, newest_id: int) -> None:
    """Expire, after a commit, what its table's options say. `newest_id` is a recent snapshot.

    Takes no look at the store while nothing is due, but for the first one. Raises `DataError` when
    the store fails; in the mode `async` nothing, for then a thread does the work.
    """
    if newest_id <= view.options.snapshots_retained_min:
        return
    expiry = _Expiry(table, view, Retention.of(
        view.options, wall_clock_ms(), max_deletes=view.options.snapshots_expired_max
    ))  # fmt: skip
    if not expiry.is_due(newest_id):
        return
    if view.options.snapshot_expiry_mode == "async":
        _thread().submit(expiry.run)
    else:
        expiry.run()


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="keytide-expiry")


@dataclass(frozen=True)
class _Plan:
    """Snapshots that expire, the oldest one that stays, and the files that it does not name."""

    expired: tuple[Snapshot, ...]
    kept: Snapshot
    garbage: Mapping[str, int]


@dataclass(frozen=True)
class _Expiry:
    table: StoredTable
    view: TableView
    retention: Retention

    def is_due(self, newest_id: int) -> bool:
        """Whether there may be something to do."""
        if self.table.oldest is None:
            self._look()
        oldest = self.table.oldest
        slack_ms = self.view.options.snapshot_time_retained_ms // _SLACK
        return oldest is not None and self.retention.is_due(
            newest_id, oldest.id, oldest.time_millis, slack_ms
        )

    def run(self, *, dry_run: bool = False) -> ExpiryResult:
        """Plan and carry out."""
        names = self.table.store.list_names(paths.snapshot_dir())
        plan, ids = again(self._plan)
        if plan is not None and dry_run:
            return self._dry(plan)
        if plan is None:
            self._look()
            result = ExpiryResult(0, 0, 0, min(ids, default=None))
        else:
            result = self._carry_out(plan, ids)
        if not dry_run:
            self._finish_others(names)
        return result

    def _look(self) -> None:
        """See which snapshot is the oldest."""
        metadata = self.table.metadata
        with suppress(NotFoundError):
            earliest = metadata.earliest_snapshot_id()
            if earliest is not None:
                self.table.oldest = metadata.snapshot(earliest)

    # -- planning -------------------------------------------------------------------------------

    def _plan(self) -> tuple[_Plan | None, Sequence[int]]:
        """What to do, None for nothing, and which snapshots there are."""
        metadata = self.table.metadata
        ids = metadata.snapshot_ids()
        known: dict[int, Snapshot] = {}

        def made_ms(number: int) -> int:
            known[number] = metadata.snapshot(number)
            return known[number].time_millis

        places = consumers(metadata.store).values()
        held_from = min((place.next_snapshot for place in places), default=None)
        numbers = self.retention.expired(ids, held_from, made_ms)
        if not numbers:
            return None, ids
        expired = tuple(known.get(number) or metadata.snapshot(number) for number in numbers)
        kept = metadata.snapshot(ids[len(numbers)])
        return _Plan(expired, kept, garbage_of(metadata, self.view, expired, kept)), ids

    def _dry(self, plan: _Plan) -> ExpiryResult:
        held = self._held(plan.garbage)
        return _result(plan, [path for path in plan.garbage if name_of(path) not in held])

    # -- doing ----------------------------------------------------------------------------------

    def _carry_out(self, plan: _Plan, ids: Sequence[int]) -> ExpiryResult:
        metadata, store = self.table.metadata, self.table.store
        gone = [snapshot.id for snapshot in plan.expired]
        note = paths.expiring_path(paths.new_uuid())
        # Nobody needs the note unless this process dies, so it need not outlive the machine.
        store.hint(note, _Note(gone[0], gone[-1], tuple(plan.garbage)).to_json())
        metadata.hint_earliest(plan.kept.id)
        store.delete(paths.snapshot_path(number) for number in gone)
        self.table.oldest = plan.kept
        self._undo_beside_rollback(plan)
        held = again(lambda: self._held(plan.garbage, expected={*ids} - {*gone}))
        free = [path for path in plan.garbage if name_of(path) not in held]
        store.delete(free)
        store.delete([note])
        return _result(plan, free)

    def _undo_beside_rollback(self, plan: _Plan) -> None:
        """Put snapshots back where the table was rolled back to one of them meanwhile.

        Raises `ConflictError` then.
        """
        metadata = self.table.metadata
        newest = metadata.latest_snapshot_id()
        if newest is not None and newest >= plan.kept.id:
            return
        target = metadata.hinted_latest() or plan.kept.id
        for snapshot in plan.expired:
            if snapshot.id <= target:
                metadata.store.create(paths.snapshot_path(snapshot.id), snapshot.to_json())
        raise ConflictError(
            f"table {self.table.name}: it was rolled back behind snapshot {plan.kept.id} while "
            f"older ones expired; they are kept. Expire them again"
        )

    def _held(self, files: Iterable[str], expected: Collection[int] | None = None) -> set[str]:
        """The names among some files that tags and branches name.

        And snapshots, where there are by now others than those `expected` and newer ones.
        """
        metadata = self.table.metadata
        naming = Naming(metadata, self.view, frozenset(map(name_of, files)))
        # Tags and branches first: what is made of one of them is a snapshot of the table by then.
        held = naming.of(held_lines(metadata.store))
        if expected is None:
            return held
        ids = metadata.snapshot_ids()
        if {number for number in ids if number <= max(expected, default=0)} == expected:
            return held
        return held | naming.of([[metadata.snapshot(number) for number in ids]])

    # -- what others left -----------------------------------------------------------------------

    def _finish_others(self, names: Iterable[str]) -> None:
        """Finish what expiries noted that died, or that are at work at this moment."""
        for name in names:
            if paths.parse_expiring_name(name) is not None:
                path = paths.join(paths.snapshot_dir(), name)
                with suppress(GoneError), telling_gone():
                    self._finish(path)

    def _finish(self, path: str) -> None:
        store, metadata = self.table.store, self.table.metadata
        data = store.read(path)
        try:
            note = _Note.from_json(data, store.uri_of(path))
        except DataError:
            note = _Note(0, 0, ())  # torn, as the machine stopped: it cannot be followed
        held = self._held(note.files, expected=())
        store.delete(each for each in note.files if name_of(each) not in held)
        if not any(note.first <= number <= note.last for number in metadata.snapshot_ids()):
            store.delete([path])


@dataclass(frozen=True)
class _Note:
    """What an expiry is about to delete: snapshots, and files that only they name. Persisted."""

    first: int
    last: int
    files: tuple[str, ...]

    @classmethod
    def from_json(cls, data: bytes, path: str) -> _Note:
        """Parse a note. Raises `DataError` when it is torn."""
        document = read_document(data, path)
        first, last = (member(document, name, INTEGER, path) for name in ("first", "last"))
        return cls(first, last, tuple(member(document, "files", TEXTS, path)))

    def to_json(self) -> bytes:
        """The file's bytes."""
        return write_document(
            self, lambda note: {"first": note.first, "last": note.last, "files": note.files},
            _Note.from_json,
        )  # fmt: skip


def _result(plan: _Plan, files: Collection[str]) -> ExpiryResult:
    freed = sum(plan.garbage[path] for path in files)
    return ExpiryResult(len(plan.expired), len(files), freed, plan.kept.id)
