"""Rows that reach a task in small pieces, combined into sorted runs.

Executors import this module to write, so it imports nothing that only planning needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from keytide.write.task import WriteTask, Written

__all__ = ["BufferedTask"]


@dataclass(frozen=True)
class BufferedTask:
    """Writes rows that arrive in small pieces, combined into runs of 'write-buffer-size'.

    REQUIRES: the rows arrive in their order.
    """

    task: WriteTask

    def feed(self, rows: Iterable[pa.Table], number: int) -> Written:
        """Write the rows as one or more sorted runs for each bucket. Raises as `WriteTask.feed`."""
        return self.task.feed(_runs(rows, self.task.view.options.write_buffer_bytes), number)


def _runs(pieces: Iterable[pa.Table], buffer_bytes: int) -> Iterator[pa.Table]:
    """The rows in tables of about `buffer_bytes`."""
    held: list[pa.Table] = []
    held_bytes = 0
    for piece in pieces:
        held.append(piece)
        held_bytes += piece.nbytes
        if held_bytes >= buffer_bytes:
            yield pa.concat_tables(held)
            held, held_bytes = [], 0
    if held:
        yield pa.concat_tables(held)
