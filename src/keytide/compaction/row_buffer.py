"""Collects rows until there are enough for a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pyarrow as pa

from keytide.base.dataclass import dataclass, field
from keytide.format.manifest_entry import DataFileMeta
from keytide.snapshot.state import TableView
from keytide.write.bucket_writer import stored_schema

# -- row buffers -----------------------------------------------------------------------------------


T = TypeVar("T")

# A file with at least this percentage of a full one is not rewritten for its size alone.
_FULL_PERCENT = 70
# Zstd at level 1 roughly halves Arrow's bytes. Only the cuts between files depend on this.
_COMPRESSION_GUESS = 0.5


@dataclass(frozen=True)
class FileSize:
    """The size of files that are written from a pile: about `stored_bytes`, if compression halves
    the rows.
    """

    stored_bytes: int
    row_bytes: int = 0
    """The minimum size of a row in the pile."""

    @classmethod
    def of(cls, view: TableView) -> FileSize:
        """The size of a table's files, according to its options."""
        types = stored_schema(view).types
        return cls(view.options.target_file_size_bytes, sum(map(_least_bytes, types)))

    @property
    def piled_bytes(self) -> int:
        """The size in memory of the rows of a file."""
        return int(self.stored_bytes / _COMPRESSION_GUESS)

    def is_full(self, file: DataFileMeta) -> bool:
        """Whether a file is about as large as it would be after a rewrite.

        If its rows take far less space on disk than in memory, a file counts as full before it has
        the target size.
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
        return 0  # strings and nested values have any length


@dataclass
class Pile:
    """Splits rows that arrive in pieces into tables of about `size_bytes` in memory.

    `cut` moves a cut position, a number of rows, to where the table may be cut.
    """

    size_bytes: int
    cut: Callable[[pa.Table, int], int] = lambda _, count: count
    _tables: list[pa.Table] = field(default_factory=list)
    _table_bytes: int = 0

    def add(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Add rows. Returns the tables that are now full."""
        self._tables.append(rows)
        self._table_bytes += rows.nbytes
        while self._table_bytes > self.size_bytes:
            table = pa.concat_tables(self._tables)
            count = max(1, table.num_rows * self.size_bytes // self._table_bytes)
            count = self.cut(table, count)
            yield table.slice(0, count)
            left = table.slice(count)
            # A table without rows may still use memory.
            self._tables, self._table_bytes = ([left], left.nbytes) if left.num_rows else ([], 0)

    def remaining(self) -> Iterator[pa.Table]:
        """The remaining rows, if there are any."""
        left = pa.concat_tables(self._tables) if self._tables else None
        self._tables, self._table_bytes = [], 0
        if left is not None and left.num_rows:
            yield left


def piled(rows: Iterable[pa.Table], size_bytes: int) -> Iterator[pa.Table]:
    """The rows in tables of about this size in memory."""
    pile = Pile(size_bytes)
    for piece in rows:
        yield from pile.add(piece)
    yield from pile.remaining()


def each_pile(
    rows: Iterable[pa.Table], size_bytes: int, do: Callable[[pa.Table], T]
) -> Iterator[T]:
    """The result of `do` for each table of `piled`. One table is in memory at a time."""
    # A loop over the tables would keep each one until the next is created.
    return map(do, piled(rows, size_bytes))
