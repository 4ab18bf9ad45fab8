"""Parts that are Parquet files, in which each row has a position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keytide.predicate.predicate import Predicate
from keytide.sources.key_conditions import rows_that_meet
from keytide.sources.parquet_rows import ForeignFile, StoredColumn
from keytide.store.base import Store

__all__ = ["ForeignPart", "ParquetPart"]


class ParquetPart(ABC):
    """A `SourcePart` of one file. Can be pickled."""

    @property
    def has_dead_rows(self) -> bool:
        """Whether some rows may be deleted in the source."""
        return False

    def dead_rows(self) -> npt.NDArray[np.int64]:
        """The positions of rows that are deleted in the source, ascending. Raises `DataError`."""
        return np.empty(0, np.int64)

    @abstractmethod
    def plain_file(self, columns: Sequence[str]) -> tuple[Store, str] | None:
        """The store of the file and its path there, if any Parquet reader reads it correctly.

        Such a reader finds these columns by name with the table's types, but does not know which
        rows are deleted. None if it would find something else.
        """

    @abstractmethod
    def placed_batches(
        self, columns: Sequence[str], about_key: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """Like `batches`, with the additional last column `POSITION`."""

    def batches(
        self, columns: Sequence[str], about_key: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """See `SourcePart`."""
        for batch in self.placed_batches(columns, about_key, rows_max):
            yield batch.select(list(columns))


class ForeignPart(ParquetPart):
    """A file of a table whose schema can change without rewriting files."""

    @property
    @abstractmethod
    def stored(self) -> Sequence[StoredColumn]:
        """All columns of the table."""

    @abstractmethod
    def file(self) -> ForeignFile:
        """The file with its deleted rows. Raises as `dead_rows`."""

    def placed_batches(
        self, columns: Sequence[str], about_key: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """See `ParquetPart`."""
        known = {column.name: column for column in self.stored}
        wanted = [known[name] for name in columns]
        read = self.file().placed_batches(wanted, about_key, rows_max)
        return rows_that_meet(read, about_key)
