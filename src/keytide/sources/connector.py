"""External tables as tables of a connector, so that SQL and Spark can read them.

It offers no changes, because another engine writes the rows. A table is one split, because its rows
have no key order. The split is merged within 'read.memory' of the definition. Spark shuffles the
versions of a large table instead, see `dealt`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from keytide.dml.spi import (
    ColumnHandle,
    Connector,
    ConnectorMetadata,
    ConnectorPageSource,
    ConnectorPageSourceProvider,
    ConnectorSession,
    ConnectorSplitManager,
    ConnectorTableSchema,
)
from keytide.format.arrow import to_arrow
from keytide.predicate.predicate import Predicate, conjunction, conjuncts
from keytide.snapshot.stored import PinnedTable
from keytide.sources.merging import Merging, split_condition
from keytide.sources.pinned import PinnedExternal, pin_external
from keytide.sources.versions import SourceVersions

__all__ = [
    "EXTERNAL_TABLES",
    "ExternalHandle",
    "ExternalMetadata",
    "ExternalSplits",
    "external_handle",
    "merged_pages",
]


def external_handle(entry: PinnedTable, version: str | int | None = None) -> ExternalHandle:
    """The handle of an external table, at its latest or a given version.

    Looked up once per entry.
    """
    return ExternalHandle(pin_external(entry, version))


@dataclass(frozen=True)
class ExternalHandle:
    """An external table at one version, with a condition on its rows."""

    table: PinnedExternal
    predicate: Predicate | None = None

    def __str__(self) -> str:
        return f"table {self.table.name}"


class ExternalMetadata(ConnectorMetadata):
    """See `ConnectorMetadata`. Names are resolved by the catalog, which has the definitions."""

    def list_tables(self, session: ConnectorSession) -> Sequence[str]:
        """Empty, because the catalog resolves names."""
        return ()

    def get_table_handle(self, session: ConnectorSession, name: str) -> ExternalHandle | None:
        """See `list_tables`."""
        return None

    def get_table_schema(
        self, session: ConnectorSession, table: ExternalHandle
    ) -> ConnectorTableSchema:
        """See `ConnectorMetadata`."""
        schema = table.table.view.schema
        columns = (ColumnHandle(f.name, f.type, f.nullable) for f in schema.arrow_schema())
        return ConnectorTableSchema(table.table.name, tuple(columns), schema.primary_keys)

    def apply_filter(
        self, session: ConnectorSession, table: ExternalHandle, terms: Sequence[Predicate]
    ) -> tuple[ExternalHandle, Sequence[Predicate]]:
        """See `ConnectorMetadata`.

        All terms are accepted. Most of them are applied after merging.
        """
        predicate = conjunction([*conjuncts(table.predicate), *terms])
        return replace(table, predicate=predicate), ()


@dataclass(frozen=True)
class ExternalSplits(ConnectorSplitManager):
    """A single split: the versions to merge."""

    def get_splits(
        self, session: ConnectorSession, table: ExternalHandle
    ) -> Sequence[SourceVersions]:
        """See `ConnectorSplitManager`."""
        about_key, _ = split_condition(table.predicate, table.table.view.schema.primary_keys)
        return [table.table.versions(about_key)]


@dataclass(frozen=True)
class _Pages(ConnectorPageSourceProvider):
    def create_page_source(
        self,
        session: ConnectorSession,
        table: ExternalHandle,
        split: SourceVersions,
        columns: Sequence[ColumnHandle],
    ) -> _PageSource:
        return _PageSource(table, split, tuple(column.name for column in columns))


class _PageSource(ConnectorPageSource):
    def __init__(
        self, table: ExternalHandle, split: SourceVersions, columns: tuple[str, ...]
    ) -> None:
        self._pages = merged_pages(table, split, columns)

    def get_next_page(self) -> pa.RecordBatch | None:
        return next(self._pages, None)

    def close(self) -> None:
        self._pages.close()


def merged_pages(
    table: ExternalHandle, split: SourceVersions, columns: tuple[str, ...]
) -> Generator[pa.RecordBatch, None, None]:
    """Some columns of the merged rows of a split that match the condition of a handle."""
    view = split.view
    _, rest = split_condition(table.predicate, view.schema.primary_keys)
    merging = Merging(split, columns, rest)
    whole = view.schema.arrow_schema()
    schema = pa.schema([whole.field(name) for name in merging.columns])
    for frame in merging.frames(view.options.read_memory_bytes):
        yield from to_arrow(frame, schema).to_batches()


EXTERNAL_TABLES = Connector("external tables", ExternalMetadata(), ExternalSplits(), _Pages())
"""The connector for handles of external tables."""
