"""Rows piled up until they are enough for a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

__all__ = ["Pile", "piled"]


@dataclass
class Pile:
    """Cuts rows that come piece by piece into tables of about `size_bytes` in memory.

    `cut` moves a cut, given as a number of rows of a table, to where the table may be cut.
    """

    size_bytes: int
    cut: Callable[[pa.Table, int], int] = lambda _, count: count
    _held: list[pa.Table] = field(default_factory=list)
    _held_bytes: int = 0

    def add(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Put rows on the pile; the tables that are full with them."""
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        while self._held_bytes > self.size_bytes:
            table = pa.concat_tables(self._held)
            count = max(1, table.num_rows * self.size_bytes // self._held_bytes)
            count = self.cut(table, count)
            yield table.slice(0, count)
            left = table.slice(count)
            # A table without rows may have bytes.
            self._held, self._held_bytes = ([left], left.nbytes) if left.num_rows else ([], 0)

    def rest(self) -> Iterator[pa.Table]:
        """What is left on the pile, if there is something."""
        left = pa.concat_tables(self._held) if self._held else None
        self._held, self._held_bytes = [], 0
        if left is not None and left.num_rows:
            yield left


def piled(rows: Iterable[pa.Table], size_bytes: int) -> Iterator[pa.Table]:
    """The rows in tables of about that size in memory."""
    pile = Pile(size_bytes)
    for piece in rows:
        yield from pile.add(piece)
    yield from pile.rest()
