"""A new table with its first rows: it appears when they are committed, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from keytide.errors import AlreadyExistsError, DataError
from keytide.format import paths
from keytide.format.schema import TableSchema
from keytide.table.commit.result import WriteResult
from keytide.table.commit.transaction import Transaction, discard
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.pinned import unmade
from keytide.table.state.stored import PinnedTable, StoredTable
from keytide.table.upkeep.writing import keep_up
from keytide.table.write.writable import writable_view

__all__ = ["create_filled"]


def create_filled(
    metadata: TableMetadata,
    definition: TableSchema,
    make: Callable[[], bool],
    fill: Callable[[Transaction], None],
) -> WriteResult:
    """Write the first rows of a table, and make it with their commit.

    Data files come first, under names that nobody reads. Right before the snapshot `make` is
    called, which makes the table and says whether it was the one to make it. After an error neither
    is there. A process that dies leaves data files that belong to no table, or, between these two,
    an empty table.
    Raises `AlreadyExistsError` when another made the table meanwhile, and what `fill` does.
    """
    table = PinnedTable(StoredTable.of(metadata), unmade(metadata, definition))
    with Transaction.begin(table, writable_view(table)) as transaction:
        # Data first: a table that can be seen should never be without the rows it was made with.
        fill(transaction)
        if not make():
            raise AlreadyExistsError(
                f"table {metadata.name} was made by another writer meanwhile; insert the rows into "
                f"it, or choose another name"
            )
        try:
            result = transaction.commit()
        except BaseException:
            _withdraw(table, transaction)
            raise
    keep_up(table.live, transaction)
    return result


def _withdraw(table: StoredTable, transaction: Transaction) -> None:
    """Take the table back, unless there is a commit. Best effort.

    A commit of an unknown outcome keeps its files; without a table nobody can ever name them.
    """
    with suppress(DataError):
        if table.live.metadata.latest_snapshot_id() is None:
            table.store.delete([paths.schema_path(0)])
            discard(transaction.view, transaction.taken)
