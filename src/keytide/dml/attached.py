"""Tables of connectors that are attached to a lake, by name and for reading.

A name whose first part is that of a connector means the table that the rest names there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pyarrow as pa

from keytide.dml.pages import pages_as_asked, schema_of
from keytide.dml.spi import (
    ColumnHandle,
    Connector,
    ConnectorPageSourceProvider,
    ConnectorSession,
    ConnectorTableHandle,
    Split,
)
from keytide.errors import NotFoundError
from keytide.table.catalog import Catalog
from keytide.table.conditions.predicate import Predicate

__all__ = [
    "AttachedCatalog",
    "PagesScan",
    "PagesTask",
    "attached_tables",
    "open_target",
    "target_of",
]


@dataclass(frozen=True)
class AttachedCatalog(Catalog):
    """The tables of a warehouse, and beside them those of connectors.

    `attached` has connectors by the name in lower case that stands in front of their tables' names.
    All that is read by this catalog belongs to the `statement` that is carried out.
    """

    attached: Mapping[str, Connector] = field(default_factory=dict, compare=False)
    statement: ConnectorSession | None = field(default=None, compare=False)

    def pinned(self) -> AttachedCatalog:
        """See `Catalog`. All that one statement reads of what is attached is of one session."""
        one = super().pinned()
        return one if one.statement is not None else replace(one, statement=ConnectorSession())

    def anew(self) -> AttachedCatalog:
        """The same for one more try of a statement, which sees tables as they are by then."""
        return self

    def find_attached(self, name: str) -> tuple[str, str] | None:
        """What is attached that a name leads to, and the name's rest; None if it leads nowhere."""
        first, dot, rest = name.partition(".")
        return (first.lower(), rest) if dot and first.lower() in self.attached else None


def target_of(
    catalog: AttachedCatalog,
    name: str,
    session: ConnectorSession | None = None,
    version: str | None = None,
) -> tuple[Connector, ConnectorTableHandle] | None:
    """The connector and the table that a name means; None where it names nothing attached.

    The table is the newest one, or as it was at a version. Raises `NotFoundError` where the
    connector has no such table or version, `UnsupportedError` where it has no versions.
    """
    found = catalog.find_attached(name)
    if found is None:
        return None
    attached, table = found
    connector = catalog.attached[attached]
    return connector, open_target(connector, table, session or ConnectorSession(), version)


def attached_tables(catalog: AttachedCatalog, name: str) -> list[str]:
    """The names of the tables of what is attached by a name, sorted; none if nothing is."""
    connector = catalog.attached.get(name.lower())
    if connector is None:
        return []
    tables = connector.metadata.list_tables(ConnectorSession())
    return [f"{name.lower()}.{table}" for table in sorted(tables)]


def open_target(
    connector: Connector, name: str, session: ConnectorSession, version: str | None = None
) -> ConnectorTableHandle:
    """A table of a connector. Raises `NotFoundError` naming those there are, and as `target_of`."""
    metadata = connector.metadata
    handle = (
        metadata.get_table_handle(session, name)
        if version is None
        else metadata.get_table_version(session, name, version)
    )
    if handle is None:
        there = ", ".join(connector.metadata.list_tables(session)) or "none"
        raise NotFoundError(f"no table {name} in {connector.name}; it has: {there}")
    return handle


@dataclass(frozen=True)
class PagesTask:
    """Reads one split. Pickles."""

    pages: ConnectorPageSourceProvider
    session: ConnectorSession
    table: ConnectorTableHandle
    split: Split
    columns: tuple[ColumnHandle, ...]
    connector: str

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Raises `ConnectorError` for a page that has other columns than asked for."""
        source = self.pages.create_page_source(self.session, self.table, self.split, self.columns)
        with closing(source):
            yield from pages_as_asked(source, self.columns, self.connector)


@dataclass(frozen=True)
class PagesScan:
    """Some columns of a connector's table, and rows among which are all that meet `terms`."""

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
        """The table with the terms that its connector takes, and those that it does not."""
        return self.connector.metadata.apply_filter(self.session, self.table, self.terms)

    def tasks(self) -> list[PagesTask]:
        """A task for each split. Driver only."""
        table, _ = self.narrowed()
        splits = self.connector.splits.get_splits(self.session, table)
        return [self.task(table, split) for split in splits]

    def task(self, table: ConnectorTableHandle, split: Split) -> PagesTask:
        """What reads a split of the table."""
        return PagesTask(
            self.connector.pages, self.session, table, split, self.columns, self.connector.name
        )

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, split by split."""
        for task in self.tasks():
            yield from task.batches()
