"""Rows that come as Arrow batches, as other libraries and loops take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from keytide.arguments import checked
from keytide.errors import InvalidError
from keytide.format.arrow import in_python

__all__ = ["ArrowRows", "first_rows"]


class ArrowRows:
    """Rows of a `schema` that `to_batches` gives; each method asks for them anew."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        raise NotImplementedError

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow record batches."""
        raise NotImplementedError

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as an Arrow reader, batch by batch. Reading it raises as `to_batches`."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The rows for any library that takes Arrow streams, such as DuckDB, Polars and pandas.

        The Arrow PyCapsule interface: a library reads them batch by batch, in whichever thread it
        likes, and raises errors of its own kind with the text of what `to_batches` raises.
        """
        return self.to_reader().__arrow_c_stream__(requested_schema)

    @checked
    def head(self, rows: int = 5) -> pa.Table:
        """So many rows, or as many as there are. Reads no further. Raises as `to_batches`."""
        if rows < 0:
            raise InvalidError(f"head: {rows} rows; expected 0 or more")
        return pa.Table.from_batches(first_rows(self.to_batches(), rows), self.schema)

    def count(self) -> int:
        """The number of rows. Raises as `to_batches`."""
        return sum(batch.num_rows for batch in self.to_batches())

    def __len__(self) -> int:
        """The number of rows, which are counted for it. Raises as `to_batches`."""
        return self.count()

    def __bool__(self) -> bool:
        """Whether there are rows. Reads no more than one batch. Raises as `to_batches`."""
        return next(self.to_batches(), None) is not None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows as dicts, of which one batch is held at a time. Raises as `to_pylist`."""
        for batch in self.to_batches():
            yield from in_python(pa.Table.from_batches([batch]))


def first_rows(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The first rows of some batches; no batch behind them is asked for."""
    while rows > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, rows)
        rows -= batch.num_rows
