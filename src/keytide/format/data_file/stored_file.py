"""The interface of a file format for data files, implemented by Parquet, ORC and Avro."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import polars as pl
import pyarrow as pa

from keytide.base.process import scratch
from keytide.format.schema import TableSchema
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
"""The column with the number of each row in its file, starting at 0."""

IS_DEAD = scratch("is_dead")
"""The column that says whether a deletion vector marks a row as dead."""


Rows: TypeAlias = "tuple[pl.LazyFrame, pl.Schema]"
"""Rows as a plan, and their columns as Polars reads them."""


GroupEnds: TypeAlias = "tuple[list[Any], list[Any]]"
"""The smallest and the largest value of each part of a file. None if unknown."""


class StoredFile(Protocol):
    """An open data file, with columns in the types of the schema that it was written with."""

    @property
    def names(self) -> Sequence[str]:
        """The columns of the file."""

    def rows(self, names: Sequence[str], offset: int, length: int | None) -> Rows:
        """Rows `[offset, offset + length)` with at least the columns `names`, in file order.

        Includes `POSITION` if it was requested.
        """


class FileFormat(Protocol):
    """Reads and writes the files of one format. Raises the errors of the library that it uses."""

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
        """A file that was written with `schema`. `numbered` requests the column `POSITION`.

        `size` is the recorded size in bytes, which a format without a footer uses to detect
        truncated files. `kept_bytes_max` limits the format's cache for all files.
        """

    def group_rows(
        self, store: Store, path: str, size: int | None, kept_bytes_max: int
    ) -> list[int]:
        """The number of rows in each part in which a file is read, in order."""

    def group_ends(
        self, store: Store, path: str, names: Sequence[str], size: int | None, kept_bytes_max: int
    ) -> dict[str, GroupEnds]:
        """The smallest and the largest value of each part, for those columns for which they are
        known.

        Only for types whose values compare like Python values. `kept_bytes_max` as above.
        """

    def check_columns(self, columns: pa.Schema) -> None:
        """Raise `InvalidError` for columns that files of the format cannot contain."""

    def write(
        self,
        output: Any,
        rows: pa.Table,
        codec: str,
        zstd_level: int,
        notes: Mapping[str, str],
        *,
        dictionaries: bool = True,
    ) -> None:
        """Write rows and notes to a binary file, with field ids if the format supports them.

        Without `dictionaries`, no column of a Parquet file has one.
        """

    def note(self, store: Store, path: str, key: str) -> str | None:
        """The note that was stored under a key when a file was written."""


def numbered_rows(frame: pl.DataFrame, offset: int, *, numbered: bool) -> Rows:
    """Rows that begin at `offset` of their file, with their positions if requested."""
    rows = frame.with_row_index(POSITION, offset) if numbered else frame
    return rows.lazy(), frame.schema
