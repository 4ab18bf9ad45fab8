"""The lineage of a table: its latest schema and snapshot, and whether numbers were reused.

The numbers of schemas and snapshots are reused after a drop, a rollback or a fast-forward. But
nothing is removed without everything that came after it. So if a process finds the latest ones
unchanged, it also knows all earlier ones. Newer ones are found by probing the next numbers, in one
round of requests. Schemas and snapshots that belong together in this way are a *lineage*. If the
latest known ones have changed, a new lineage begins.

A conversion to another kind of table (see `keytide.maintenance.rescale`) first creates a schema,
and then the snapshot with the rows in that kind. So the schema that the latest snapshot names
determines the kind of the table, not the latest schema. Of the schemas of that kind, the latest one
is in force, so an ALTER takes effect immediately. For a table without a snapshot, the latest schema
is in force.

The times of checks of tables are kept, so that not every commit checks for time-based work.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from threading import Lock

from cachetools import LRUCache

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.definition.kind import kind_of
from keytide.errors import KeytideError
from keytide.format import paths
from keytide.format.schema import NO_UPSERTS, TableSchema
from keytide.format.snapshot import Snapshot
from keytide.options import keys
from keytide.snapshot.authority import SCHEMAS, Commits, NumberedDocument, newest_after, newest_of
from keytide.store import Store

# -- lineages --------------------------------------------------------------------------------------


_TABLES_MAX = 4096


@dataclass(frozen=True, eq=False)
class Lineage:
    """Schemas and snapshots of a table that belong together. Compared by identity."""


@dataclass(frozen=True)
class LatestDocuments:
    """The latest schema and snapshot of a table. None if there is none.

    `schemas` and `snapshots` are all documents that were read to find them, ascending. `has_moved`
    says whether others have changed the table since the previous read.
    """

    lineage: Lineage
    schemas: tuple[NumberedDocument, ...] = ()
    snapshots: tuple[NumberedDocument, ...] = ()
    has_moved: bool = False

    @property
    def schema(self) -> NumberedDocument | None:
        """The latest schema."""
        return self.schemas[-1] if self.schemas else None

    @property
    def snapshot(self) -> NumberedDocument | None:
        """The latest snapshot."""
        return self.snapshots[-1] if self.snapshots else None

    @cached_property
    def is_of_one_schema(self) -> bool:
        """Whether the latest snapshot was written with the latest schema.

        Nothing removes a schema before the snapshots that name it. So as long as that snapshot is
        unchanged, the schema is too.
        """
        if self.schema is None or self.snapshot is None:
            return False
        uri = paths.snapshot_path(self.snapshot.number)
        try:
            return Snapshot.from_json(self.snapshot.data, uri).schema_id == self.schema.number
        except KeytideError:
            return False  # the code that reads the snapshot raises the error


@dataclass(frozen=True)
class CacheableRange:
    """Which snapshots a process may cache: those of a lineage up to the latest that it has seen.

    Later ones cannot be cached: they may be removed and their ids reused without being noticed.
    """

    lineage: Lineage
    newest_id: int

    @classmethod
    def of(cls, seen: LatestDocuments) -> CacheableRange:
        """The result of a read. 0 is before the first snapshot."""
        return cls(seen.lineage, 0 if seen.snapshot is None else seen.snapshot.number)


def latest_documents(store: Store, commits: Commits) -> LatestDocuments:
    """Find the latest schema and snapshot of the table that a store is rooted at.

    One round of requests if this process has seen the table before, otherwise two. Raises
    `DataError` if the store fails.
    """
    before = last_seen(store)
    calls: list[Callable[[], Sequence[NumberedDocument]]] = [
        partial(newest_of, store, SCHEMAS, before.schema),
        partial(commits.newest, store, before.snapshot),
    ]
    # A local schema is read each time, as this is no request, and people edit local files.
    is_far = store.local_path(SCHEMAS.folder) is None
    is_vouched_for = is_far and before.is_of_one_schema
    if before.schema is not None and is_vouched_for:
        calls[0] = partial(newest_after, store, SCHEMAS, before.schema)
    schemas, snapshots = store.together(calls)
    if is_vouched_for and before.snapshot not in snapshots:
        # Without the known snapshot, nothing says that the schema is still there.
        schemas = newest_of(store, SCHEMAS, before.schema)

    # If the table was not seen before, cached documents may belong to another table.
    has_schema = before.schema is not None and before.schema in schemas
    goes_on = has_schema and (before.snapshot is None or before.snapshot in snapshots)
    lineage = before.lineage if goes_on else Lineage()
    has_new_schema = [before.schema] != [*schemas[-1:]]
    has_new_snapshot = before.snapshots[-1:] != tuple(snapshots[-1:])
    has_moved = before.schema is not None and (has_new_schema or has_new_snapshot)
    seen = LatestDocuments(lineage, tuple(schemas), tuple(snapshots), has_moved)
    _remember(store, seen)
    return seen


def advance(store: Store, lineage: Lineage, made: NumberedDocument) -> None:
    """Record a snapshot that this process created on top of the latest one."""
    known = last_seen(store)
    if known.lineage is lineage:
        _remember(store, replace(known, snapshots=(made,)))


def forget_lineages() -> None:
    """Forget all tables, as if the process had just started."""
    with _LOCK:
        _SEEN.clear()


# -- the latest known lineage ----------------------------------------------------------------------

_SEEN: LRUCache[Hashable, LatestDocuments] = LRUCache(_TABLES_MAX)
_LOCK = Lock()


def last_seen(store: Store) -> LatestDocuments:
    """What the previous read of a table found. Empty if this process has not read it yet."""
    with _LOCK:
        return _SEEN.setdefault(store.identity, LatestDocuments(Lineage()))


def _remember(store: Store, seen: LatestDocuments) -> None:
    newest = replace(seen, schemas=seen.schemas[-1:], snapshots=seen.snapshots[-1:])
    with _LOCK:
        known = _SEEN.get(store.identity)
        # A read that began earlier may end later.
        if (
            known is None
            or known.lineage is not seen.lineage
            or _numbers(known) <= _numbers(newest)
        ):
            _SEEN[store.identity] = newest


def _numbers(seen: LatestDocuments) -> tuple[int, int]:
    return (
        -1 if seen.snapshot is None else seen.snapshot.number,
        -1 if seen.schema is None else seen.schema.number,
    )


# -- schemas in force ------------------------------------------------------------------------------


CONVERTED = (
    f"another writer converted it to another '{keys.UPSERT_MODE}' in the meantime; run the "
    "operation again"
)


@dataclass(frozen=True)
class SchemasInForce:
    """The schema in force for the latest snapshot, and the latest schema.

    `is_settled` is false while a conversion is running or was interrupted: a schema of another kind
    of table was created after the snapshot's schema.
    """

    schema: TableSchema
    newest: TableSchema
    is_settled: bool = True

    @classmethod
    def of(cls, schemas: Sequence[TableSchema]) -> SchemasInForce:
        """Derive the schemas in force from the snapshot's schema and all later schemas, in order.

        For a table without a snapshot, only the latest schema is given.
        """
        kind = kind_of(schemas[0])
        own = [schema for schema in schemas if kind_of(schema) is kind]
        return cls(own[-1], schemas[-1], is_settled=len(own) == len(schemas))

    @property
    def way_out(self) -> str:
        """How to fix a conversion that was not completed."""
        now = self.schema.upsert_mode
        other = "full" if now == NO_UPSERTS else NO_UPSERTS
        return (
            "Wait until the conversion is done; or call Table.convert or CALL sys.convert, with "
            f"'{other}' to finish it or with '{now}' to undo it"
        )


# -- times of checks -------------------------------------------------------------------------------


_LOOKS_TABLES_MAX = 1000


class CheckTimes:
    """When this process last checked each table."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, float] = OrderedDict()
        self._lock = Lock()

    def is_time(self, uri: str, seconds_between: float) -> bool:
        """Whether it is time to check again. If so, the table counts as checked now."""
        now = time.monotonic()
        with self._lock:
            if now - self._times.get(uri, float("-inf")) < seconds_between:
                return False
            self._times[uri] = now
            self._times.move_to_end(uri)
            while len(self._times) > _LOOKS_TABLES_MAX:
                self._times.popitem(last=False)
            return True
