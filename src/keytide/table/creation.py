"""A new table with its first rows: it appears when they are committed, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from keytide.errors import AlreadyExistsError, DataError
from keytide.format.schema import TableSchema
from keytide.table.commit.result import WriteResult
from keytide.table.commit.transaction import Transaction
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
    no table, or, between these two, an empty table.
    Raises `AlreadyExistsError` when another made the table meanwhile, and what `fill` does.
    """
    metadata = warehouse.metadata(database, name)
    table = PinnedTable(StoredTable.of(metadata), unmade(metadata, definition))
    with followed(table, Transaction.begin(table, writable_view(table))) as transaction:
        # Data first: a table that can be seen should never be without the rows it was made with.
        fill(transaction)
        if not warehouse.create(database, name, definition):
            raise AlreadyExistsError(
                f"table {metadata.name} was made by another writer meanwhile; insert the rows into "
                f"it, or choose another name"
            )
        try:
            result = transaction.commit()
        except BaseException:
            # A commit of an unknown outcome keeps its files; without a table nobody can name them.
            with suppress(DataError):
                if metadata.latest_snapshot_id() is None:
                    warehouse.drop(database, name)
            raise
    return result
