"""A table in a store: the object through which all higher layers read, write and change it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from keytide.definition.conversion import as_kind_of
from keytide.definition.external import refuse_external
from keytide.errors import ConflictError, DataError, KeytideError
from keytide.format import paths
from keytide.format.index_manifest import KEY_INDEX, IndexFile
from keytide.format.schema import TableSchema
from keytide.format.snapshot import Snapshot
from keytide.gate.gate import refuse_readers, warn_readers
from keytide.merge.functions.register import registered_functions
from keytide.options import TableOptions
from keytide.snapshot.dynamic_buckets import HashFiles, hash_files
from keytide.snapshot.in_force import CONVERTED
from keytide.snapshot.live_files import NO_FILES, LiveFiles, load_live_files
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.pinned import PinnedMetadata, pinned
from keytide.snapshot.retries import again, is_gone
from keytide.snapshot.schemas import Schemas
from keytide.snapshot.state import TableState
from keytide.snapshot.view import TableView
from keytide.store import Store

__all__ = ["PinnedTable", "StoredTable"]

T = TypeVar("T")


class StoredTable:
    """One table in a store rooted at it.

    It caches the last requested view and the last seen live files, from which those of the next
    snapshot are derived. It holds no other state, and reads the latest schema and snapshot from the
    store on each request. Picklable and safe to share between threads.
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
        known = self._view_of(schema, schemas)
        options = _options_of(self.name, schema) if known is None else known.options
        functions = registered_functions(options)
        if known is not None and known.functions == functions:
            return known
        refuse_readers(schema, options, self.name)
        warn_readers(schema, options, self.name, self.store.uri_of(""))
        view = TableView(self.store, self.name, schema, schemas, options, functions)
        self.live._view = view
        return view

    def _view_of(self, schema: TableSchema, schemas: Schemas) -> TableView | None:
        """The last requested view, if it has this schema and these schemas."""
        known = self.live._view
        is_same = known is not None and known.schema == schema and known.schemas == schemas
        return known if is_same else None

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
        return TableState(view, live, vector_files, key_files=self.key_files(snapshot, view))

    def in_kind_at(self, schema: TableSchema, snapshot: Snapshot | None) -> TableSchema:
        """One of the table's schemas, converted to the kind of table that a snapshot has."""
        if snapshot is None or snapshot.schema_id == schema.id:
            return schema
        return as_kind_of(schema, self.metadata.schema(snapshot.schema_id))

    def state_to_write(self, view: TableView) -> TableState:
        """The latest snapshot, with everything needed to write rows through `view`."""
        return again(lambda: self.state_on(self.newest_files(), view))

    def newest_state(self, schema: TableSchema) -> TableState:
        """The table at the latest snapshot, read with one of its schemas."""
        return again(lambda: self.state(schema, self.metadata.latest_snapshot()))

    def state_on(self, live: LiveFiles, view: TableView) -> TableState:
        """The same for the snapshot with these files.

        Raises `ConflictError` if the table was converted to another kind after the view was
        created.
        """
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
        return again(lambda: self.live_files(self.metadata.latest_snapshot()))

    def remembered(self, snapshot_id: int) -> Snapshot:
        """A snapshot that existed at this process's last read, or that it created since.

        Raises `NotFoundError` if it no longer exists.
        """
        with self._lock:
            known = self._live.snapshot
        if known is not None and known.id == snapshot_id:
            return known
        return self.metadata.remembered(snapshot_id)

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
