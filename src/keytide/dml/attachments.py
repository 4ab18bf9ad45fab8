"""Attached connectors: their names in a lake, and tables by their names.

A name whose first part is an attached connector refers to the connector's table with the remaining
name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.catalogs.catalog import Catalog
from keytide.catalogs.system_tables import SYSTEM_TABLES
from keytide.dml.engine import pages_with_columns, schema_of
from keytide.dml.spi import (
    ColumnHandle,
    Connector,
    ConnectorPageSourceProvider,
    ConnectorSession,
    ConnectorTableHandle,
    Split,
)
from keytide.errors import NotFoundError
from keytide.format.paths import BRANCH_MARK
from keytide.predicate.predicate import Predicate
from keytide.snapshot.stored_table import PinnedTable, StoredTable

# -- tables of attached connectors -----------------------------------------------------------------


@dataclass(frozen=True)
class AttachedCatalog(Catalog):
    """The tables of a warehouse, and those of attached connectors.

    `attached` has the connectors by lower-case name, the first part of their table names.
    Everything that is read through this catalog belongs to one `statement`.
    """

    attached: Mapping[str, Connector] = field(default_factory=dict, compare=False)
    statement: ConnectorSession | None = field(default=None, compare=False)

    def pinned(self) -> AttachedCatalog:
        """See `Catalog`. Everything that one statement reads from attachments is in one session."""
        one = super().pinned()
        return one if one.statement is not None else replace(one, statement=ConnectorSession())

    def anew(self) -> AttachedCatalog:
        """The catalog for another attempt of a statement, which sees the current tables."""
        return self

    def find_attached(self, name: str) -> tuple[str, str] | None:
        """The attachment that a name refers to, and the rest of the name. None if there is none."""
        first, dot, rest = name.partition(".")
        return (first.lower(), rest) if dot and first.lower() in self.attached else None


def target_of(
    catalog: AttachedCatalog,
    name: str,
    session: ConnectorSession | None = None,
    version: str | None = None,
) -> tuple[Connector, ConnectorTableHandle] | None:
    """The connector and the table that a name refers to, None if nothing attached matches.

    The table has its latest state, or the given version. Raises `NotFoundError` if the connector
    has no such table, listing the existing ones, or no such version, and `UnsupportedError` if it
    has no versions.
    """
    found = catalog.find_attached(name)
    if found is None:
        return None
    attached, table = found
    connector, session = catalog.attached[attached], session or ConnectorSession()
    metadata = connector.metadata
    handle = (
        metadata.get_table_handle(session, table)
        if version is None
        else metadata.get_table_version(session, table, version)
    )
    if handle is None:
        there = ", ".join(metadata.list_tables(session)) or "none"
        raise NotFoundError(f"table {table} does not exist in {connector.name}; tables: {there}")
    return connector, handle


def attached_tables(catalog: AttachedCatalog, name: str) -> list[str]:
    """The names of the tables of an attachment, sorted. Empty if there is no such attachment."""
    connector = catalog.attached.get(name.lower())
    if connector is None:
        return []
    tables = connector.metadata.list_tables(ConnectorSession())
    return [f"{name.lower()}.{table}" for table in sorted(tables)]


@dataclass(frozen=True)
class PagesTask:
    """Reads one split. Can be pickled."""

    pages: ConnectorPageSourceProvider
    session: ConnectorSession
    table: ConnectorTableHandle
    split: Split
    columns: tuple[ColumnHandle, ...]
    connector: str

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Raises `ConnectorError` for a page with other columns than requested."""
        source = self.pages.create_page_source(self.session, self.table, self.split, self.columns)
        with closing(source):
            yield from pages_with_columns(source, self.columns, self.connector)


@dataclass(frozen=True)
class PagesScan:
    """Some columns of a connector's table, with at least all rows that match `terms`."""

    connector: Connector
    session: ConnectorSession
    table: ConnectorTableHandle
    columns: tuple[ColumnHandle, ...]
    terms: tuple[Predicate, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return schema_of(self.columns)

    def narrowed(self) -> tuple[ConnectorTableHandle, Sequence[Predicate]]:
        """The table with the terms that its connector handles, and the remaining terms."""
        return self.connector.metadata.apply_filter(self.session, self.table, self.terms)

    def tasks(self) -> list[PagesTask]:
        """One task for each split. Runs on the driver."""
        table, _ = self.narrowed()
        splits = self.connector.splits.get_splits(self.session, table)
        return [self.task(table, split) for split in splits]

    def task(self, table: ConnectorTableHandle, split: Split) -> PagesTask:
        """The task that reads a split of the table."""
        return PagesTask(
            self.connector.pages, self.session, table, split, self.columns, self.connector.name
        )

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, split by split."""
        for task in self.tasks():
            yield from task.batches()


# -- tables by name --------------------------------------------------------------------------------


def stored_table_name(catalog: Catalog, name: str) -> str:
    """Write `db.t.branch_b` as `db.t$branch_b` and `db.t.files` as `db.t$files`.

    Iceberg uses dots.
    """
    table, _, last = name.rpartition(".")
    is_system = last.lower() in SYSTEM_TABLES
    is_about_table = is_system or last.startswith(BRANCH_MARK[1:])
    if table.count(".") != 1 or not is_about_table or catalog.find_attached(name) is not None:
        return name
    return f"{table}${last.lower() if is_system else last}"


def table_of(catalog: Catalog, name: str) -> StoredTable:
    """Open the table of a name. Raises as `entry_of`, `UnsupportedError` for an external table."""
    return catalog.managed(entry_of(catalog, name))


def entry_of(catalog: Catalog, name: str) -> PinnedTable:
    """The table or external table of a name.

    Raises `NotFoundError` if there is none, and `InvalidError` if several differ only in case and
    none matches exactly.
    """
    name = stored_table_name(catalog, name)
    try:
        return catalog.entry(name)
    except NotFoundError:
        known = catalog.find(name)
        if known is None:
            raise
        found = catalog.entry(known)
        return found if catalog.pins is None else catalog.pins.named(name, lambda: found)
