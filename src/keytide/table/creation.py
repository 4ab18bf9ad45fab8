"""A new table with its first rows: it appears when they are committed, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from keytide.errors import AlreadyExistsError, DataError
from keytide.format import paths
from keytide.format.schema import TableSchema
from keytide.store import Store, created
from keytide.table.commit.result import WriteResult
from keytide.table.commit.transaction import Transaction, discard
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.pinned import unmade
from keytide.table.state.stored import PinnedTable, StoredTable
from keytide.table.upkeep.writing import keep_up
from keytide.table.write.writable import writable_view

__all__ = ["create_filled"]


def create_filled(
    store: Store, name: str, definition: TableSchema, fill: Callable[[Transaction], None]
) -> WriteResult:
    """Write the first rows of a table, and make it with their commit.

    Data files come first, under names that nobody reads; the definition, which is what makes a
    table, is created right before the snapshot. After an error neither is there. A process that
    dies leaves data files that belong to no table, or, between these two, an empty table.
    Raises `AlreadyExistsError` when another made the table meanwhile, and what `fill` does.
    """
    table = PinnedTable(StoredTable.of(TableMetadata(store, name)), unmade(store, name, definition))
    with Transaction.begin(table, writable_view(table)) as transaction:
        # Data first: a table that can be seen should never be without the rows it was made with.
        fill(transaction)
        _create_definition(store, name, definition)
        try:
            result = transaction.commit()
        except BaseException:
            _withdraw(table, transaction)
            raise
    keep_up(table.live, transaction)
    return result


def _create_definition(store: Store, name: str, definition: TableSchema) -> None:
    if not created(store, paths.schema_path(definition.id), definition.to_json()):
        raise AlreadyExistsError(
            f"table {name} was made by another writer meanwhile; insert the rows into it, or "
            f"choose another name"
        )


def _withdraw(table: StoredTable, transaction: Transaction) -> None:
    """Take the table back, unless there is a commit. Best effort.

    A commit of an unknown outcome keeps its files; without a table nobody can ever name them.
    """
    with suppress(DataError):
        if table.live.metadata.latest_snapshot_id() is None:
            table.store.delete([paths.schema_path(0)])
            discard(transaction.view, transaction.taken)
