"""A table in a store, through which higher layers work, and its metadata at one moment.

Readers of pinned metadata always see the same state, no matter how much others commit in the
meantime.

Work can start before it is known whether the table is still in the last known state. Reading the
latest state from a remote store takes time. If a process found a table as it had left it, this will
most often be true again. So the work starts on the known state, in parallel with the read. If the
read returns another state, the work was in vain, and it is repeated on that state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import refuse_forked_child
from keytide.definition.kind import refuse_external
from keytide.definition.option_changes import as_kind_of
from keytide.errors import ConflictError, DataError, KeytideError, NotFoundError
from keytide.format import paths
from keytide.format.index_files import KEY_INDEX, IndexFile
from keytide.format.schema import TableSchema
from keytide.format.snapshot import Snapshot, Tag
from keytide.gate import refuse_readers, warn_readers
from keytide.merge.functions.registry import registered_functions
from keytide.options import TableOptions
from keytide.snapshot.dynamic_buckets import HashFiles, hash_files
from keytide.snapshot.lineage import CONVERTED, CacheableRange, Lineage, SchemasInForce
from keytide.snapshot.live_files import NO_FILES, LiveFiles, is_gone, load_live_files, retried
from keytide.snapshot.metadata import Look, TableMetadata
from keytide.snapshot.state import Schemas, TableState, TableView
from keytide.store import Store

# -- metadata at one moment ------------------------------------------------------------------------


T = TypeVar("T")


@dataclass
class PinnedMetadata(TableMetadata):
    """The metadata of a table at the moment of a read from the store.

    What was not read at that moment, such as tags, is read on demand, and only once. Later
    snapshots do not exist here.
    """

    latest: Look = field(kw_only=True)
    _cache: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}}

    def look(self) -> Look:
        """The result of the read."""
        return self.latest

    @property
    def lineage(self) -> Lineage:
        """Identifies which documents are meant."""
        return self.latest.lineage

    def _known_now(self) -> CacheableRange:
        return CacheableRange(self.lineage, self.latest_snapshot_id() or 0)

    def _cacheable_range(self) -> CacheableRange:
        return self._known_now()

    def newest_schema(self) -> TableSchema:
        """The latest schema at that moment."""
        return self.latest.schemas.newest

    def schemas_in_force(self) -> SchemasInForce:
        """The schemas in force at that moment."""
        return self.latest.schemas

    def schema(self, schema_id: int) -> TableSchema:
        """See `TableMetadata`."""
        newest = self.latest.schemas.newest
        return newest if schema_id == newest.id else super().schema(schema_id)

    def latest_snapshot(self) -> Snapshot | None:
        """The latest snapshot at that moment. None if nothing was ever written."""
        return self._decoded_snapshot(self.lineage, self.latest.snapshot)

    def latest_snapshot_id(self) -> int | None:
        """Its id."""
        return None if self.latest.snapshot is None else self.latest.snapshot.number

    def earliest_snapshot_id(self) -> int | None:
        """The id of the oldest snapshot."""
        return self.once("earliest", super().earliest_snapshot_id)

    def snapshot_ids(self) -> list[int]:
        """Ids of all snapshots, ascending."""
        last = self.latest_snapshot_id() or 0
        ids, _ = self.once("ids", self._listed_and_known)
        return [number for number in ids if number <= last]

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Whether the snapshot with that id existed."""
        return snapshot_id in self.snapshot_ids()

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """See `TableMetadata`."""
        newest_id = self.latest_snapshot_id() or 0
        if snapshot_id > newest_id:
            raise NotFoundError(self._why_missing(snapshot_id))
        newest = self.latest_snapshot() if snapshot_id == newest_id else None
        if newest is not None:
            return newest
        read = partial(super().snapshot, snapshot_id)
        return self.once(("snapshot", snapshot_id), read)

    def changelog_ids(self) -> list[int]:
        """Ids of the changelogs that have outlived their snapshots, ascending."""
        return self.once("changelogs", super().changelog_ids)

    def tag_names(self) -> list[str]:
        """Names of all tags, sorted."""
        return self.once("tags", super().tag_names)

    def has_tag(self, name: str) -> bool:
        """Whether there was a tag with that name."""
        return self._tag_if_there(name) is not None

    def _tag_if_there(self, name: str) -> Tag | None:
        return self.once(("tag", name), partial(super()._tag_if_there, name))

    def once(self, what: Hashable, read: Callable[[], T]) -> T:
        """The result of `read`, which is called once and cached for this moment under the key
        `what`.
        """
        # If two threads call at the same time, one wins, and both get its result.
        if what not in self._cache:
            self._cache.setdefault(what, read())
        value: T = self._cache[what]
        return value


def pinned(metadata: TableMetadata) -> PinnedMetadata:
    """The current metadata of a table: one read, unless they are pinned already."""
    if isinstance(metadata, PinnedMetadata):
        return metadata
    look = metadata.look()
    return PinnedMetadata(metadata.store, metadata.name, metadata.commits, latest=look)


def metadata_before_creation(metadata: TableMetadata, definition: TableSchema) -> PinnedMetadata:
    """The metadata that a table that does not exist yet would have right after its creation."""
    look = Look(Lineage(), SchemasInForce.of([definition]))
    return PinnedMetadata(metadata.store, metadata.name, metadata.commits, latest=look)


# -- the stored table ------------------------------------------------------------------------------


class StoredTable:
    """One table in a store rooted at it.

    It caches the last requested view and state, and the last seen live files, from which those of
    the next snapshot are derived. It holds no other state, and reads the latest schema and snapshot
    from the store on each request. Picklable and safe to share between threads.
    """

    def __init__(self, store: Store, name: str) -> None:
        """Open the table.

        Raises `NotFoundError` if there is none, and `UnsupportedError` for an external table.
        """
        self._open(TableMetadata(store, name))
        refuse_external(self.metadata.newest_schema(), name)

    @classmethod
    def of(cls, metadata: TableMetadata) -> StoredTable:
        """The table of this metadata, which is known to exist."""
        table = cls.__new__(cls)
        table._open(metadata)
        return table

    def _open(self, metadata: TableMetadata) -> None:
        self.metadata = metadata
        self._live = NO_FILES
        self.oldest: Snapshot | None = None
        """The oldest snapshot when it was last read. It may have expired since."""
        self._view: TableView | None = None
        self._state: TableState | None = None
        self._lock = threading.Lock()

    @property
    def live(self) -> StoredTable:
        """The table in its current state at each moment, for changing it."""
        return self

    def pinned(self) -> PinnedTable:
        """The table at its current state, for all reads of one statement. One read of the store."""
        return PinnedTable(self, pinned(self.metadata))

    def __getstate__(self) -> dict[str, Any]:
        return {"metadata": self.metadata}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._open(state["metadata"])

    def confirm(self) -> None:
        """Return once it is certain that this is the current table, see `as_expected`."""

    def begin_check(self, snapshot: Snapshot | None) -> Future[bool]:
        """Start to check whether a snapshot is outdated."""
        return self.live.metadata.begin_check(snapshot)

    @property
    def store(self) -> Store:
        """The store, rooted at the table."""
        return self.metadata.store

    @property
    def uncached(self) -> StoredTable:
        """The table read directly from the store, without the local cache."""
        store = self.store.uncached()
        if store is self.store:
            return self
        return StoredTable.of(self.metadata.by(store, self.name))

    @property
    def name(self) -> str:
        """The name, as `database.table`."""
        return self.metadata.name

    @property
    def uri(self) -> str:
        """Where the table is stored."""
        return self.metadata.uri

    @property
    def schema(self) -> TableSchema:
        """The latest stored definition that is in force, see `SchemasInForce`."""
        return self.metadata.latest_schema()

    def view(self, schema: TableSchema, files: LiveFiles = NO_FILES) -> TableView:
        """The table at one of its schemas, together with the schemas that stored files refer to.

        These are all earlier schemas. Some writers name an older schema in a snapshot than in its
        `files`; those schemas are included too. Raises `UnsupportedError` for an external table.
        """
        refuse_external(schema, self.name)
        numbers = {*range(schema.id + 1), *files.schema_ids}
        schemas = Schemas(self.name, self.metadata.schemas(sorted(numbers)))
        # The last requested view, if it has this schema and these schemas.
        known = self.live._view
        if known is not None and (known.schema != schema or known.schemas != schemas):
            known = None
        options = _options_of(self.name, schema) if known is None else known.options
        functions = registered_functions(options) if options.names_functions else {}
        if known is not None and known.functions == functions:
            return known
        refuse_readers(schema, options, self.name)
        warn_readers(schema, options, self.name, self.store.uri_of(""))
        view = TableView(self.store, self.name, schema, schemas, options, functions)
        self.live._view = view
        return view

    def live_files(self, snapshot: Snapshot | None) -> LiveFiles:
        """The live files of a snapshot. None means the state before the first one: no files."""
        if snapshot is None:
            return NO_FILES
        with self._lock:
            known = self._live
        live = load_live_files(self.metadata, snapshot, known)
        self.remember(live)
        return live

    def state(self, schema: TableSchema, snapshot: Snapshot | None) -> TableState:
        """The table at a snapshot, read with one of its schemas, in the kind that it had there."""
        live = self.live_files(snapshot)
        view = self.view(self.in_kind_at(schema, snapshot), live)
        vector_files = self.vector_files(snapshot, view)
        state = TableState(view, live, vector_files, key_files=self.key_files(snapshot, view))
        # The last requested state, with what was computed from it, if it is the same.
        known = self.live._state
        if (
            known is not None
            and known.view is view
            and known.live is live
            and (known.vector_files, known.key_files) == (state.vector_files, state.key_files)
        ):
            return known
        self.live._state = state
        return state

    def in_kind_at(self, schema: TableSchema, snapshot: Snapshot | None) -> TableSchema:
        """One of the table's schemas, converted to the kind of table that a snapshot has."""
        if snapshot is None or snapshot.schema_id == schema.id:
            return schema
        return as_kind_of(schema, self.metadata.schema(snapshot.schema_id))

    def state_to_write(self, view: TableView) -> TableState:
        """The latest snapshot, with everything needed to write rows through `view`."""
        return retried(lambda: self.state_on(self.newest_files(), view))

    def newest_state(self, schema: TableSchema) -> TableState:
        """The table at the latest snapshot, read with one of its schemas."""
        return retried(lambda: self.state(schema, self.metadata.latest_snapshot()))

    def state_on(self, live: LiveFiles, view: TableView) -> TableState:
        """The same for the snapshot with these files.

        Raises `ConflictError` if the table was converted to another kind after the view was
        created, or if the view's schema is no longer one of the table.
        """
        own, stored = view.schema, None
        try:
            stored = self.metadata.schema(own.id)
        except DataError as error:
            if not is_gone(error):
                raise
        # After a fast-forward or a drop, another schema may have the same number.
        if stored is None or (stored.time_millis, stored.fields) != (own.time_millis, own.fields):
            raise ConflictError(
                f"table {self.name}: its schema {own.id} was removed in the meantime, by a "
                "fast-forward, a rollback or a drop, so nothing was changed; run the operation "
                "again"
            )
        if not self.metadata.has_kind_of(view.schema, live.snapshot):
            raise ConflictError(f"table {self.name}: {CONVERTED}")
        vector_files = self.vector_files(live.snapshot, view)
        hash_files = self.hash_files(live.snapshot, view)
        return TableState(view, live, vector_files, hash_files, self.key_files(live.snapshot, view))

    def view_on(self, live: LiveFiles, view: TableView) -> TableView:
        """A view together with the schemas of files that others wrote after it was created."""
        newer = live.schema_ids - view.schemas.keys()
        if not newer:
            return view
        found = {**view.schemas, **self.metadata.schemas(sorted(newer))}
        return replace(view, schemas=Schemas(self.name, found))

    def vector_files(self, snapshot: Snapshot | None, view: TableView) -> tuple[IndexFile, ...]:
        """The index files that mark rows of a snapshot's data files as dead."""
        return tuple(self.metadata.vector_files(snapshot, view.options))

    def hash_files(self, snapshot: Snapshot | None, view: TableView) -> HashFiles:
        """The index files that map a snapshot's keys to buckets. Empty without dynamic buckets."""
        if snapshot is None or not view.has_dynamic_buckets:
            return {}
        return hash_files(self.metadata.index_files(snapshot))

    def key_files(self, snapshot: Snapshot | None, view: TableView) -> tuple[IndexFile, ...]:
        """The index files that say where a snapshot's current rows are. Empty if there are none."""
        if snapshot is None or not view.kind.has_key_index:
            return ()
        files = self.metadata.index_files(snapshot)
        return tuple(file for file in files if file.index_type == KEY_INDEX)

    def newest_files(self) -> LiveFiles:
        """The live files of the latest snapshot."""
        return retried(lambda: self.live_files(self.metadata.latest_snapshot()))

    def remembered(self, snapshot_id: int) -> Snapshot:
        """A snapshot that existed at this process's last read, or that it created since.

        Raises `NotFoundError` if it no longer exists.
        """
        with self._lock:
            known = self._live.snapshot
        if known is not None and known.id == snapshot_id:
            return known
        return self.metadata.cached_snapshot(snapshot_id)

    def remember(self, live: LiveFiles) -> None:
        """Derive the live files of later snapshots from these."""
        with self._lock:
            self._live = live


class PinnedTable(StoredTable):
    """A table pinned to one moment, no matter how others change it.

    It can be read like any table. To change it, use the `live` table.
    """

    metadata: PinnedMetadata

    def __init__(self, live: StoredTable, metadata: PinnedMetadata) -> None:
        """The table of that metadata."""
        self.metadata = metadata
        self._live_table = live

    @property
    def live(self) -> StoredTable:
        """The table in its current state at each moment."""
        return self._live_table

    def pinned(self) -> PinnedTable:
        """Itself."""
        return self

    def view(self, schema: TableSchema, files: LiveFiles = NO_FILES) -> TableView:
        """See `StoredTable`. Whatever the schema, the present definition says who may read."""
        present = self.schema
        if schema.options != present.options:
            refuse_readers(present, _options_of(self.name, present), self.name)
        return super().view(schema, files)

    def once(self, what: Hashable, make: Callable[[], T]) -> T:
        """The result of `make`, which is called once for this pinned table under the key `what`."""
        return self.metadata.once(what, make)

    def __getstate__(self) -> dict[str, Any]:
        return {"live": self._live_table, "metadata": self.metadata}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        PinnedTable.__init__(self, state["live"], state["metadata"])

    def state_to_write(self, view: TableView) -> TableState:
        """The state at the pinned snapshot or, if it has expired, at the latest one."""
        try:
            return self.state_on(self.newest_files(), view)
        except KeytideError as error:
            if not is_gone(error):
                raise
        return self.live.state_to_write(view)

    def live_files(self, snapshot: Snapshot | None) -> LiveFiles:
        """See `StoredTable`."""
        return self.live.live_files(snapshot)

    def remember(self, live: LiveFiles) -> None:
        """See `StoredTable`."""
        self.live.remember(live)


def _options_of(table: str, schema: TableSchema) -> TableOptions:
    """The options of a definition. Raises `DataError` if they name a column that does not exist."""
    options = TableOptions.parse(schema.options)
    lacking = [name for name in (*options.bucket_key, *options.sequence_field)
               if name not in schema.names]  # fmt: skip
    if lacking:
        raise DataError(
            f"table {table}: the options of {paths.schema_path(schema.id)} name the column "
            f"{lacking[0]!r}, which does not exist; restore the file from a backup"
        )
    return options


# -- early start on the known state ----------------------------------------------------------------


class _OvertakenError(Exception):
    """The table is not in the expected state. This error never leaves `as_expected`."""


def as_expected(table: StoredTable, act: Callable[[PinnedTable], T]) -> T:
    """Return what `act` returns for the current table. `act` may start before the table is read.

    So `act` may be called twice, and the result of the first call is then dropped. `act` must
    change nothing except through a `Transaction` on the table that it receives. The transaction
    commits only after the read confirms the expected state. Otherwise `act` must call `confirm`
    before it uses the `live` table. Raises the errors of `act` and of the read.
    """
    # The last known state. None if a read needs no waiting time, or may return more information.
    if isinstance(table, PinnedTable) or table.store.local_path(paths.snapshot_dir()) is not None:
        expected = None
    else:
        refuse_forked_child()  # the read would do this too, but in another thread
        look = table.metadata.expected_look()
        expected = None if look is None else _ExpectedTable(table, look)
    if expected is None:
        return act(table.pinned())
    try:
        given = act(expected)
        if expected.is_so():
            return given
    except _OvertakenError:
        pass
    except KeytideError:
        # If the table has changed, an error about its earlier state does not matter.
        if expected.is_so():
            raise
    return act(PinnedTable(table, _pinned_at(table, expected.seen.result())))


class _ExpectedTable(PinnedTable):
    """The last known state of a table, with a running read that checks whether it is current."""

    def __init__(self, live: StoredTable, expected: Look) -> None:
        super().__init__(live, _pinned_at(live, expected))
        self.seen: Future[Look] = live.store.begin(live.metadata.look_alone)

    def __reduce__(self) -> Any:
        raise TypeError("a table that is looked at stays in its process")

    def is_so(self) -> bool:
        """Whether the table is in the expected state. Waits for the read and raises its errors."""
        return self.seen.result() == self.metadata.latest

    def confirm(self) -> None:
        """See `StoredTable`."""
        if not self.is_so():
            raise _OvertakenError

    def begin_check(self, snapshot: Snapshot | None) -> Future[bool]:
        """See `StoredTable`. While the first read is running, no other one is needed."""
        if not self.seen.done():
            return self.store.begin(self._is_overtaken)
        self.confirm()
        return super().begin_check(snapshot)

    def _is_overtaken(self) -> bool:
        self.confirm()
        return False

    def state_to_write(self, view: TableView) -> TableState:
        """The state at the last known snapshot: for any other snapshot, the view is not
        confirmed.
        """
        return self.state_on(self.newest_files(), view)


def _pinned_at(table: StoredTable, look: Look) -> PinnedMetadata:
    metadata = table.metadata
    return PinnedMetadata(metadata.store, metadata.name, metadata.commits, latest=look)


# -- tables of a statement -------------------------------------------------------------------------


class Pins:
    """The snapshot in which a statement sees each table: that of its first look.

    Reads each table once, however often and under whatever names it is requested.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self._tables: dict[str, PinnedTable] = {}
        self._named: dict[str, str] = {}
        self._lock = threading.RLock()

    def named(self, name: str, look: Callable[[], PinnedTable]) -> PinnedTable:
        """The table with that name. A new name is found with `look`.

        Raises the errors of `look`.
        """
        with self._lock:
            if name not in self._named:
                table = self.of(look())
                self._named |= {name: table.uri, table.name: table.uri}
            return self._tables[self._named[name]]

    def of(self, table: StoredTable) -> PinnedTable:
        """A table that is already open."""
        with self._lock:
            known = self._tables.get(table.uri)
            return self.renew(table.pinned()) if known is None else known

    def renew(self, table: PinnedTable) -> PinnedTable:
        """Pin the table to this new state."""
        with self._lock:
            self._tables[table.uri] = table
        return table

    def __contains__(self, name: str) -> bool:
        with self._lock:
            return name in self._named
