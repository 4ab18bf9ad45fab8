"""Rows that are available as Arrow batches, in the forms that other libraries and loops accept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from keytide.base.arguments import checked
from keytide.errors import InvalidError
from keytide.format.arrow import in_python

__all__ = ["ArrowRows", "first_rows"]


class ArrowRows:
    """Rows with a `schema` that `to_batches` returns. Each method reads them again."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        raise NotImplementedError

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow record batches."""
        raise NotImplementedError

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as an Arrow reader, batch by batch. Reading raises like `to_batches`."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The rows for any library that accepts Arrow streams, such as DuckDB, Polars and pandas.

        This is the Arrow PyCapsule interface: a library reads batch by batch, in any thread, and
        raises its own errors with the message of the error in `to_batches`.
        """
        return self.to_reader().__arrow_c_stream__(requested_schema)

    @checked
    def head(self, rows: int = 5) -> pa.Table:
        """The first rows, at most `rows`. Reads no further. Raises like `to_batches`."""
        if rows < 0:
            raise InvalidError(f"head: {rows} rows; expected 0 or more")
        return pa.Table.from_batches(first_rows(self.to_batches(), rows), self.schema)

    def count(self) -> int:
        """The number of rows. Raises like `to_batches`."""
        return sum(batch.num_rows for batch in self.to_batches())

    def __len__(self) -> int:
        """The number of rows, which are counted for this. Raises like `to_batches`."""
        return self.count()

    def __bool__(self) -> bool:
        """Whether there are rows. Reads at most one batch. Raises like `to_batches`."""
        return next(self.to_batches(), None) is not None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows as dicts, with one batch in memory at a time. Raises like `to_pylist`."""
        for batch in self.to_batches():
            yield from in_python(pa.Table.from_batches([batch]))


def first_rows(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The first rows of the batches. No further batch is requested."""
    while rows > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, rows)
        rows -= batch.num_rows
