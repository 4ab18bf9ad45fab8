"""Rows piled up until they are enough for a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from keytide.format.manifest import DataFileMeta
from keytide.table.state.view import TableView
from keytide.table.write.bucket_writer import stored_schema

__all__ = ["FileSize", "Pile", "each_pile", "piled"]

T = TypeVar("T")

# A file of at least so much of a full one is not written again for its size alone.
_FULL_PERCENT = 70
# Zstd at level 1 roughly halves Arrow's bytes; only the cut between files depends on it.
_COMPRESSION_GUESS = 0.5


@dataclass(frozen=True)
class FileSize:
    """How large files get that are written of a pile: about `stored_bytes`, if rows halve."""

    stored_bytes: int
    row_bytes: int = 0
    """The least that a row takes on a pile."""

    @classmethod
    def of(cls, view: TableView) -> FileSize:
        """The size of a table's files, as its options say."""
        types = stored_schema(view).types
        return cls(view.options.target_file_size_bytes, sum(map(_least_bytes, types)))

    @property
    def piled_bytes(self) -> int:
        """The bytes of the rows of a file while they are in memory."""
        return int(self.stored_bytes / _COMPRESSION_GUESS)

    def is_full(self, file: DataFileMeta) -> bool:
        """Whether a file is about as large as it would be if its rows were written again.

        One whose rows take far less on the disk than in memory is so long before it has the size
        that files should have there.
        """
        piled = file.row_count * self.row_bytes
        return (
            file.file_size * 100 >= self.stored_bytes * _FULL_PERCENT
            or piled * 100 >= self.piled_bytes * _FULL_PERCENT
        )


def _least_bytes(data_type: pa.DataType) -> int:
    try:
        return int(data_type.bit_width) // 8
    except ValueError:
        return 0  # texts and nested values have any length


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


def each_pile(
    rows: Iterable[pa.Table], size_bytes: int, do: Callable[[pa.Table], T]
) -> Iterator[T]:
    """What something makes of each table of `piled`, of which one is held at a time."""
    # A loop over the tables would hold each until the next is there.
    return map(do, piled(rows, size_bytes))
