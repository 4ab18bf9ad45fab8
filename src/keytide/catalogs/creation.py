"""Creates a table together with its first rows, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from keytide.catalogs.warehouse import Warehouse
from keytide.commit.transaction import Transaction, WriteResult
from keytide.errors import AlreadyExistsError, DataError
from keytide.format.schema import TableSchema
from keytide.maintenance.upkeep.writing import followed
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.pinned import PinnedTable, StoredTable, unmade
from keytide.write.refusals import writable_view

__all__ = ["create_filled"]


def create_filled(
    warehouse: Warehouse,
    database: str,
    name: str,
    definition: TableSchema,
    fill: Callable[[Transaction], None],
) -> WriteResult:
    """Write the first rows of a table, and create the table with their commit.

    Data files are written first, under names that nobody reads. The table is created immediately
    before the snapshot. After an error, neither exists. A process that dies leaves data files
    without a table or, between the two steps, an empty table. If a warehouse assigns the location
    only when a table is created, the table is empty until the rows are written. Raises
    `AlreadyExistsError` if another process created the table in the meantime, and the errors of
    `fill`.
    """
    making = _Making(warehouse, database, name, definition)
    return making.rows_first(fill) if warehouse.places_first else making.table_first(fill)


@dataclass(frozen=True)
class _Making:
    """A table that is created with its rows."""

    warehouse: Warehouse
    database: str
    name: str
    definition: TableSchema

    def rows_first(self, fill: Callable[[Transaction], None]) -> WriteResult:
        """Write data files, then create the table, then commit."""
        metadata = self._metadata()
        table = PinnedTable(StoredTable.of(metadata), unmade(metadata, self.definition))
        with followed(table, Transaction.begin(table, writable_view(table))) as transaction:
            # Data first: a visible table should never be without its first rows.
            fill(transaction)
            self._make()
            with self._dropped_after_errors(metadata):
                return transaction.commit()

    def table_first(self, fill: Callable[[Transaction], None]) -> WriteResult:
        """Create the table, then write data files to its location, and commit."""
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
                f"table {self.database}.{self.name} was created by another writer meanwhile; "
                "insert the rows into it, or choose another name"
            )

    @contextmanager
    def _dropped_after_errors(self, metadata: TableMetadata) -> Iterator[None]:
        """A block. After an error, the table is dropped, unless somebody has committed to it."""
        try:
            yield
        except BaseException:
            # A commit with unknown outcome keeps its files. Without a table, nobody can reference
            # them.
            with suppress(DataError):
                if metadata.latest_snapshot_id() is None:
                    self.warehouse.drop(self.database, self.name)
            raise
