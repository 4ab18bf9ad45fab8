"""A new table with its first rows: it appears when they are committed, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from keytide.errors import AlreadyExistsError, DataError
from keytide.format.schema import TableSchema
from keytide.table.commit.result import WriteResult
from keytide.table.commit.transaction import Transaction
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.pinned import unmade
from keytide.table.state.stored import PinnedTable, StoredTable
from keytide.table.upkeep.writing import followed
from keytide.table.warehouse import Warehouse
from keytide.table.write.writable import writable_view

__all__ = ["create_filled"]


def create_filled(
    warehouse: Warehouse,
    database: str,
    name: str,
    definition: TableSchema,
    fill: Callable[[Transaction], None],
) -> WriteResult:
    """Write the first rows of a table, and make it with their commit.

    Data files come first, under names that nobody reads; the table is created right before the
    snapshot. After an error neither is there. A process that dies leaves data files that belong to
    no table, or, between these two, an empty table. Where a warehouse tells the place of a table
    once it is made alone, the table is empty until the rows are there.
    Raises `AlreadyExistsError` when another made the table meanwhile, and what `fill` does.
    """
    making = _Making(warehouse, database, name, definition)
    return making.rows_first(fill) if warehouse.places_first else making.table_first(fill)


@dataclass(frozen=True)
class _Making:
    """A table that is made with its rows."""

    warehouse: Warehouse
    database: str
    name: str
    definition: TableSchema

    def rows_first(self, fill: Callable[[Transaction], None]) -> WriteResult:
        """Write data files, then make the table, then commit."""
        metadata = self._metadata()
        table = PinnedTable(StoredTable.of(metadata), unmade(metadata, self.definition))
        with followed(table, Transaction.begin(table, writable_view(table))) as transaction:
            # Data first: a table that can be seen should never be without the rows it was made
            # with.
            fill(transaction)
            self._make()
            with self._dropped_after_errors(metadata):
                return transaction.commit()

    def table_first(self, fill: Callable[[Transaction], None]) -> WriteResult:
        """Make the table, then write data files where it lies by then, and commit."""
        self._make()
        metadata = self._metadata()
        with self._dropped_after_errors(metadata):
            table = StoredTable.of(metadata).pinned()
            with followed(table, Transaction.begin(table, writable_view(table))) as transaction:
                fill(transaction)
                return transaction.commit()

    def _metadata(self) -> TableMetadata:
        return self.warehouse.metadata(self.database, self.name)

    def _make(self) -> None:
        if not self.warehouse.create(self.database, self.name, self.definition):
            raise AlreadyExistsError(
                f"table {self.database}.{self.name} was made by another writer meanwhile; insert "
                f"the rows into it, or choose another name"
            )

    @contextmanager
    def _dropped_after_errors(self, metadata: TableMetadata) -> Iterator[None]:
        """A block after whose errors the table is gone, unless somebody has committed to it."""
        try:
            yield
        except BaseException:
            # A commit of an unknown outcome keeps its files; without a table nobody can name them.
            with suppress(DataError):
                if metadata.latest_snapshot_id() is None:
                    self.warehouse.drop(self.database, self.name)
            raise
