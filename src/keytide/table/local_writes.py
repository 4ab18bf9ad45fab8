"""Writes of rows that this process holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from keytide.errors import UnsupportedError
from keytide.options import keys
from keytide.table.commit.author import Author
from keytide.table.commit.result import WriteResult
from keytide.table.commit.transaction import Transaction
from keytide.table.runner import Threads
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView
from keytide.table.upkeep.writing import writing
from keytide.table.write.partition_spec import PartitionSpec, Place, every_partition, fitting
from keytide.table.write.rows import to_arrow_table
from keytide.table.write.task import WriteTask, Written
from keytide.table.write.writable import writable_view

__all__ = ["append", "fill", "overwrite", "truncate"]


def append(table: StoredTable, data: Any, author: Author | None = None) -> WriteResult:
    """Append rows in one atomic commit, as `Table.write` says."""
    view = writable_view(table)
    given = to_arrow_table(data, view.schema, table.name)
    with writing(table, view, author) as transaction:
        if transaction.done is not None:
            return transaction.already_done(given.num_rows)

        def write() -> None:
            fill(transaction, given)

        write()
        return transaction.commit(write)


def fill(transaction: Transaction, rows: pa.Table) -> None:
    """Write rows as the part of a transaction. Raises what `WriteTask.feed` raises."""
    _run(transaction.task(), rows, transaction.take)


def overwrite(
    table: StoredTable, data: Any, partition: Mapping[str, Any] | None = None
) -> WriteResult:
    """Replace rows in one atomic commit, as `Table.overwrite` says."""
    view = writable_view(table)
    spec = None if partition is None else PartitionSpec.parse(partition, view.schema, table.name)
    given = to_arrow_table(data, view.schema, table.name)
    given = given if spec is None else spec.filled(given)
    _refuse_parts_of_moving_keys(view, spec)
    with writing(table, view) as transaction:
        _run(transaction.task_anew(spec), given, transaction.take)
        if spec is not None:
            return transaction.replace(spec)
        if view.schema.partition_keys and view.options.dynamic_partition_overwrite:
            return transaction.replace(transaction.touched())
        return transaction.replace(every_partition)


def _refuse_parts_of_moving_keys(view: TableView, spec: PartitionSpec | None) -> None:
    """Raise `UnsupportedError` where keys of other partitions would have to leave them."""
    if view.moves_keys and (spec is not None or view.options.dynamic_partition_overwrite):
        raise UnsupportedError(
            f"table {view.name}: its primary key lacks the partition columns, so rows that replace "
            f"one partition may have keys of another. Set '{keys.DYNAMIC_PARTITION_OVERWRITE}' to "
            f"'false' to replace the whole table, or delete rows and write"
        )


def truncate(table: StoredTable, partitions: Sequence[Place] = ()) -> WriteResult:
    """Delete all rows, or those of some partitions, in one atomic commit, as `Table.truncate`."""
    view = writable_view(table)
    fits = fitting(partitions, view.schema, view.name, view.options.partition_default_name)
    with writing(table, view) as transaction:
        return transaction.replace(fits)


def _run(task: WriteTask, rows: pa.Table, take: Callable[[Written], None]) -> None:
    threads = os.cpu_count() or 1
    Threads(threads).feed(replace(task, threads=threads), rows, take)
