"""Statements that change rows of a table: the tables they can use, their target, and retries.

A statement that meets a conflict is retried on the latest rows, as often as the table's
'commit.max-retries' allows, or ten times for a table of an attached connector. So two concurrent
statements never undo each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal, Protocol

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.catalogs.warehouse import FolderWarehouse
from keytide.definition.kind import kind_of
from keytide.dml.append_table import appended_connector
from keytide.dml.attachments import AttachedCatalog, table_of, target_of
from keytide.dml.engine import Changed, EngineLimits
from keytide.dml.keyed_table import keyed_connector
from keytide.dml.spi import (
    ColumnHandle,
    Connector,
    ConnectorSession,
    ConnectorTableHandle,
    ConnectorTableSchema,
    Isolation,
)
from keytide.dml.trace import Trace, traced
from keytide.errors import ConflictError, NotFoundError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions
from keytide.snapshot.stored_table import PinnedTable, StoredTable, as_expected
from keytide.types import Field, type_from_arrow

# -- statements that change rows of a table --------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """The table that a statement changes, at its latest state."""

    name: str
    catalog: AttachedCatalog
    """The catalog that the statement reads from."""
    connector: Connector
    session: ConnectorSession
    handle: ConnectorTableHandle
    fields: tuple[Field, ...] = ()
    """The columns with SQL types."""
    limits: EngineLimits = field(default_factory=EngineLimits)
    schema: ConnectorTableSchema = field(init=False)

    def __post_init__(self) -> None:
        schema = self.connector.metadata.get_table_schema(self.session, self.handle)
        object.__setattr__(self, "schema", schema)
        if not self.fields:
            fields = tuple(
                Field(-1, column.name, type_from_arrow(column.type).with_nullable(column.nullable))
                for column in schema.columns
            )
            object.__setattr__(self, "fields", fields)

    def columns(self, needed: Collection[str] | None) -> list[ColumnHandle]:
        """The columns that a statement needs of the target. None means all."""
        wanted = self.schema.names if needed is None else needed
        return [column for column in self.schema.columns if column.name in wanted]


def run_on_latest(
    catalog: AttachedCatalog,
    name: str,
    isolation: Isolation,
    trace: Trace | None,
    once: Callable[[Target], Changed],
    operation: Literal["DELETE", "UPDATE", "MERGE"] | None = None,
) -> Changed:
    """Run a statement on the latest rows, and retry it after each conflict.

    Its isolation is the stricter of the given one and that of the table's attached connector.
    """
    attached = catalog.find_attached(name)
    own = "snapshot" if attached is None else catalog.attached[attached[0]].isolation
    stricter = isolation if own == "snapshot" else own
    session = ConnectorSession(isolation=stricter, operation=operation)
    tries: int | None = None
    while True:
        try:
            find, limit = target_finder(catalog, name, session)
            tries = limit if tries is None else tries
            target = find()
            if trace is not None:
                target = replace(target, connector=traced(target.connector, trace))
            return once(target)
        except ConflictError as conflict:  # noqa: PERF203  # a conflict is what the loop is for
            if not tries:
                raise ConflictError(
                    f"{conflict}; the statement changed nothing: run it again"
                ) from conflict
            tries -= 1
            catalog = catalog.anew()
        finally:
            for connector in catalog.attached.values():
                connector.metadata.end_statement(session)


def target_finder(
    catalog: AttachedCatalog, name: str, session: ConnectorSession
) -> tuple[Callable[[], Target], int]:
    """A function that returns the table's current state, and the number of allowed conflicts."""

    reading = replace(catalog, statement=session).pinned()

    def find_attached() -> Target:
        found = target_of(catalog, name, session)
        assert found is not None
        return Target(name, reading, found[0], session, found[1])

    def find_stored() -> Target:
        handle = connector.metadata.get_table_handle(session, table.name)
        fields = tuple(reading.table(table.name).schema.fields)
        return Target(table.name, reading, connector, session, handle, fields, limits)

    if target_of(catalog, name, session) is not None:
        return find_attached, _ATTACHED_TRIES
    table = table_of(reading, name)
    options = TableOptions.parse(table.schema.options)
    limits = EngineLimits(options.read_memory_bytes, options.driver_work_bytes_max)
    kind = kind_of(table.schema)
    connector_of = keyed_connector if kind.is_changed_by_key else appended_connector
    connector = connector_of(reading)
    return find_stored, options.commit_retries_max


_ATTACHED_TRIES = 10


class CallTarget(Protocol):
    """The table that a call changes."""

    @property
    def name(self) -> str:
        """The name of the table in statements."""
        ...

    @property
    def schema(self) -> TableSchema:
        """The columns of the table."""
        ...

    @property
    def catalog(self) -> AttachedCatalog:
        """The catalog of the tables that statements about it can use."""
        ...

    def carry_out(self, change: Callable[[AttachedCatalog], Changed], *, is_local: bool) -> Changed:
        """Run a change with the current catalog: in this process if it `is_local`, or on Spark."""
        ...


@dataclass(frozen=True)
class FederatedCallTarget:
    """A federated table, which the catalog finds by name. See `CallTarget`.

    `look` returns its columns. Most statements do not need them.
    """

    catalog: AttachedCatalog
    name: str
    look: Callable[[], TableSchema]

    @cached_property
    def schema(self) -> TableSchema:
        """See `CallTarget`."""
        return self.look()

    def carry_out(self, change: Callable[[AttachedCatalog], Changed], *, is_local: bool) -> Changed:
        """See `CallTarget`."""
        return change(self.catalog)


@dataclass(frozen=True)
class OpenTableCatalog(AttachedCatalog):
    """The tables that a statement about an open table can use: the table itself, and its lake's."""

    open_table: StoredTable = field(kw_only=True)
    lake: AttachedCatalog | None = field(kw_only=True)

    @property
    def name(self) -> str:
        """See `CallTarget`."""
        return self.open_table.name

    @property
    def schema(self) -> TableSchema:
        """See `CallTarget`."""
        return self.open_table.schema

    @property
    def catalog(self) -> AttachedCatalog:
        """See `CallTarget`."""
        return self

    def carry_out(self, change: Callable[[AttachedCatalog], Changed], *, is_local: bool) -> Changed:
        """See `CallTarget`. Starts from the last known state of the table, see `as_expected`."""

        def on(table: PinnedTable) -> Changed:
            if table.schema.is_indexed:
                table.confirm()  # otherwise an old index would be missing, and rebuilt
            return change(replace(self, open_table=table))

        # Work on a Spark session is expensive, so it must not start from a state that may be
        # outdated.
        return as_expected(self.open_table, on) if is_local else change(self)

    @classmethod
    def of(cls, open_table: StoredTable, lake: AttachedCatalog | None) -> OpenTableCatalog:
        """The same for a table. `lake` is None if the table was opened by its path."""
        if lake is None:
            # There are no other tables below a table's own folder.
            return cls(FolderWarehouse(open_table.store), open_table=open_table, lake=None)
        return cls(
            lake.warehouse,
            lake.allows_external_files,
            attached=lake.attached,
            open_table=open_table,
            lake=lake,
        )

    def look(self, name: str) -> PinnedTable:
        """See `Catalog.look`."""
        if name == self.open_table.name:
            return self.open_table.pinned()
        if self.lake is not None:
            return self.lake.look(name)
        raise NotFoundError(
            f"table {name} does not exist: {self.open_table.name} was opened by its path, so no "
            "other tables are known; open it with Lake.table"
        )

    def anew(self) -> OpenTableCatalog:
        """See `AttachedCatalog`."""
        self.open_table.confirm()
        return replace(self, open_table=self.open_table.live)

    def find(self, name: str) -> str | None:
        """See `Catalog.find`."""
        if name == self.open_table.name or self.lake is None:
            return self.open_table.name if name.lower() == self.open_table.name.lower() else None
        return self.lake.find(name)

    def find_attached(self, name: str) -> tuple[str, str] | None:
        """See `Catalog.find_attached`."""
        return None if name == self.open_table.name else super().find_attached(name)
