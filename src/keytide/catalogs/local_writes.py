"""Writes rows that this process has in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa

from keytide.commit.author import Author
from keytide.commit.transaction import Transaction, WriteResult
from keytide.compaction.raising import raise_replacement
from keytide.format.snapshot import Operation
from keytide.maintenance.upkeep.writing import writing
from keytide.snapshot.pinned import PinnedTable, StoredTable, as_expected
from keytide.tasks.runner import Threads
from keytide.write.input_rows import to_arrow_table
from keytide.write.partition_spec import Place, fitting, partition_to_replace
from keytide.write.refusals import writable_view
from keytide.write.task import WriteTask

__all__ = ["append", "feed", "fill", "overwrite", "truncate"]


Fitting: TypeAlias = "Callable[[Transaction, pa.Table], pa.Table]"


def _as_they_are(transaction: Transaction, rows: pa.Table) -> pa.Table:
    return rows


def append(
    table: StoredTable, data: Any, author: Author | None = None, fitting: Fitting = _as_they_are
) -> WriteResult:
    """Append rows in one atomic commit, see `Table.write`.

    `fitting` returns the rows to write on top of the transaction's state. It is called each time
    that they are written.
    """
    if not _can_be_read_again(data):
        return _append(table.pinned(), data, author, fitting)
    return as_expected(table, partial(_append, data=data, author=author, fitting=fitting))


def _can_be_read_again(data: Any) -> bool:
    # A reader can be read only once, and executing a plan again costs as much as the first time.
    held = pa.Table | pa.RecordBatch | pl.DataFrame | Sequence
    return isinstance(data, held) or type(data).__module__.startswith("pandas.")


def _append(table: PinnedTable, data: Any, author: Author | None, fitting: Fitting) -> WriteResult:
    view = writable_view(table)
    given = to_arrow_table(data, view.schema, table.name)
    with writing(table, view, author) as transaction:
        if transaction.done is not None:
            return transaction.already_done(given.num_rows)

        def write() -> None:
            fill(transaction, fitting(transaction, given))

        write()
        return transaction.commit(write)


def fill(transaction: Transaction, rows: pa.Table) -> None:
    """Write rows as the only part of a transaction. Raises the errors of `WriteTask.feed`."""
    feed(transaction, transaction.task(), rows)


def feed(transaction: Transaction, task: WriteTask, rows: pa.Table) -> None:
    """Write rows with a task of a transaction, as its part.

    Raises the errors of `WriteTask.feed`.
    """
    threads = os.cpu_count() or 1
    here = replace(transaction.here(task), threads=threads)
    Threads(threads).feed(here, rows, transaction.take)


def overwrite(
    table: StoredTable, data: Any, partition: Mapping[str, Any] | None = None
) -> WriteResult:
    """Replace rows in one atomic commit, see `Table.overwrite`."""
    table = table.pinned()
    view = writable_view(table)
    spec = partition_to_replace(view, partition)
    given = to_arrow_table(data, view.schema, table.name)
    given = given if spec is None else spec.filled(given)
    with writing(table, view) as transaction:
        feed(transaction, transaction.task_anew(spec), given)
        raise_replacement(transaction)
        return transaction.overwrite(spec)


def truncate(table: StoredTable, partitions: Sequence[Place] = ()) -> WriteResult:
    """Delete all rows, or those of some partitions, in one atomic commit, see `Table.truncate`."""
    table = table.pinned()
    view = writable_view(table)
    fits = fitting(partitions, view.schema, view.name, view.options.partition_default_name)
    with writing(table, view) as transaction:
        transaction.asked_for(Operation.TRUNCATE)
        return transaction.replace(fits)
