"""What a file format does for data files: the seam behind which Parquet, ORC and Avro differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import polars as pl
import pyarrow as pa

from keytide.format.schema import TableSchema
from keytide.scratch import scratch
from keytide.store import Store

__all__ = [
    "IS_DEAD",
    "POSITION",
    "FileFormat",
    "Rows",
    "StoredFile",
    "numbered_rows",
]

POSITION = scratch("position")
"""The column that counts the rows of a file, from 0."""

IS_DEAD = scratch("is_dead")
"""The column that tells whether a deletion vector marks a row as dead."""


Rows: TypeAlias = "tuple[pl.LazyFrame, pl.Schema]"
"""Rows as a plan, and the columns that they have as Polars reads them."""


GroupEnds: TypeAlias = "tuple[list[Any], list[Any]]"
"""The least and the greatest value of some parts of a file, None where they are not known."""


class StoredFile(Protocol):
    """A data file that was opened: its columns in the types of the schema it was written with."""

    @property
    def names(self) -> Sequence[str]:
        """The columns that it has."""

    def rows(self, names: Sequence[str], offset: int, length: int | None) -> Rows:
        """Rows `[offset, offset + length)` with at least the columns `names`, in file order.

        With `POSITION` where it was asked for.
        """


class FileFormat(Protocol):
    """Reads and writes the files of one format; errors are those of the library behind it."""

    def stored_file(
        self,
        store: Store,
        path: str,
        schema: TableSchema,
        size: int | None,
        *,
        numbered: bool,
        kept_bytes_max: int,
    ) -> StoredFile:
        """A file that was written with `schema`; `numbered` asks for the column `POSITION`.

        `size` is the recorded one, in bytes, by which a format without a footer tells a torn file.
        What the format keeps for the next read, of all files, is held to `kept_bytes_max`.
        """

    def group_rows(
        self, store: Store, path: str, size: int | None, kept_bytes_max: int
    ) -> list[int]:
        """How many rows the parts have that a file is read in, in their order."""

    def group_ends(
        self, store: Store, path: str, names: Sequence[str], size: int | None, kept_bytes_max: int
    ) -> dict[str, GroupEnds]:
        """The least and the greatest value of each part, of those columns of which that is known.

        Only of types whose values compare as those of Python do. `kept_bytes_max` as above.
        """

    def check_columns(self, columns: pa.Schema) -> None:
        """Raise `InvalidError` for columns that files of the format cannot have."""

    def write(
        self, output: Any, rows: pa.Table, codec: str, zstd_level: int, notes: Mapping[str, str]
    ) -> None:
        """Write rows and notes to a binary file, field ids where the format knows them."""

    def note(self, store: Store, path: str, key: str) -> str | None:
        """What was noted under a key when a file was written."""


def numbered_rows(frame: pl.DataFrame, offset: int, *, numbered: bool) -> Rows:
    """Rows that begin at `offset` of their file, with their positions if asked for."""
    rows = frame.with_row_index(POSITION, offset) if numbered else frame
    return rows.lazy(), frame.schema
