"""Rows that reach a task in small pieces, combined into sorted runs.

Executors import this module to write, so it imports nothing that only planning needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from keytide.scratch import scratch
from keytide.table.write.task import WriteTask, Written

__all__ = ["ORDER", "BufferedTask", "in_order"]

ORDER = scratch("order")
"""The position of a row in its DataFrame, for when a shuffle may have changed the order."""


@dataclass(frozen=True)
class BufferedTask:
    """Writes rows that arrive in small pieces, combined into runs of 'write-buffer-size'."""

    task: WriteTask

    def feed(self, rows: Iterable[pa.Table], number: int) -> Written:
        """Write the rows as one or more sorted runs for each bucket. Raises as `WriteTask.feed`."""
        return self.task.feed(_runs(rows, self.task.view.options.write_buffer_bytes), number)


def _runs(pieces: Iterable[pa.Table], buffer_bytes: int) -> Iterator[pa.Table]:
    """The rows in tables of about `buffer_bytes`, each in the order of the DataFrame."""
    held: list[pa.Table] = []
    held_bytes = 0
    for piece in pieces:
        held.append(piece)
        held_bytes += piece.nbytes
        if held_bytes >= buffer_bytes:
            yield in_order(pa.concat_tables(held))
            held, held_bytes = [], 0
    if held:
        yield in_order(pa.concat_tables(held))


def in_order(rows: pa.Table) -> pa.Table:
    """Restore the rows' order in their DataFrame, and drop the column that contains it."""
    if ORDER not in rows.column_names:
        return rows
    order = rows.column(ORDER).combine_chunks()
    rows = rows.drop_columns([ORDER])
    if pc.all(pc.less_equal(order[:-1], order[1:])).as_py() in (True, None):
        return rows  # the usual case: shuffle blocks arrive in the order of their tasks
    return rows.take(pc.array_sort_indices(order))
