"""Conversion between Arrow and Polars: the same columns, with exact types.

Polars stores times in nanoseconds and strings as views, and a release without a map type sees a
list of key/value structs. Converting to Polars loses nothing. `to_arrow` converts a frame back to
the exact Arrow types of a schema.

Rows that are available as Arrow batches have the forms that other libraries and loops accept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from keytide.base.arguments import checked
from keytide.errors import InvalidError, UnsupportedError
from keytide.types import Field, arrow_schema

# -- conversion between Arrow and Polars -----------------------------------------------------------


if TYPE_CHECKING:
    import pandas as pd


HAS_MAPS = hasattr(pl, "Map")
"""Whether Polars has a type for maps. Before, it stored them as lists of their entries."""


def from_arrow(table: pa.Table) -> pl.DataFrame:
    """The table as a Polars DataFrame. Nothing is copied if the layouts agree."""
    frame = pl.from_arrow(table, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame


def polars_schema(fields: Sequence[Field]) -> pl.Schema:
    """Polars data types of table columns."""
    return pl.Schema({field.name: polars_type(field) for field in fields})


@lru_cache(maxsize=4096)
def polars_type(field: Field) -> pl.DataType:
    """The Polars data type of a table column."""
    # Without an array: to make one, Arrow first imports pandas, if it is installed.
    return from_arrow(pa.Table.from_batches([], arrow_schema([field]))).dtypes[0]


def to_arrow(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    """The columns of the frame, in the order and with the exact types of `schema`.

    REQUIRES: the frame has every column of the schema, with a type that `from_arrow` returns for
    it, or one that casts to it without loss.
    """
    # Without views, because the schema has none and they would be copied again.
    table = frame[schema.names].to_arrow(compat_level=pl.CompatLevel.oldest())
    columns = [
        pa.chunked_array([_restore(chunk, field.type) for chunk in column.chunks], type=field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def named_apart(table: pa.Table) -> pa.Table:
    """The table. Of columns with one name, the later ones get a number: `id`, `id_1`."""
    names = table.column_names
    if len(set(names)) == len(names):
        return table
    apart: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        free = (each for each in numbered if each not in names and each not in apart)
        apart.append(next(free) if name in apart else name)
    return table.rename_columns(apart)


def in_python(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as dicts, see `named_apart` for their keys.

    Raises `UnsupportedError`, which names the column, for a value that Python lacks. Python
    supports times in the years 1 to 9999.
    """
    table = named_apart(table)
    with _naming_misfits(table, pa.ChunkedArray.to_pylist):
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows


def in_pandas(table: pa.Table) -> pd.DataFrame:
    """The rows as a pandas DataFrame. Raises like `in_python`. REQUIRES: pandas is installed."""
    with _naming_misfits(table, pa.ChunkedArray.to_pandas):
        frame: pd.DataFrame = table.to_pandas()
        return frame


@contextmanager
def _naming_misfits(table: pa.Table, convert: Callable[[pa.ChunkedArray], Any]) -> Iterator[None]:
    try:
        yield
    except (OverflowError, ValueError) as error:
        name = next((n for n in table.column_names if _fails(convert, table.column(n))), None)
        if name is None:
            raise
        raise UnsupportedError(
            f"column {name!r} has a value that Python's own types cannot hold ({error}), such as a "
            f"time outside the years 1 to 9999; read it with to_arrow() or to_polars()"
        ) from error


def _fails(convert: Callable[[pa.ChunkedArray], Any], column: pa.ChunkedArray) -> bool:
    try:
        convert(column)
    except (OverflowError, ValueError):
        return True
    return False


def _restore(array: pa.Array, target: pa.DataType) -> pa.Array:
    if not len(array):
        # Polars may export an empty slice whose offset points beyond its buffers.
        return pa.nulls(0, target)
    if array.type.equals(target):
        return array
    if pa.types.is_map(target):
        entries = _restore(array.values, pa.struct([target.key_field, target.item_field]))
        return _relist(array, target, entries)
    if pa.types.is_list(target):
        return _relist(array, target, _restore(array.values, target.value_type))
    if pa.types.is_struct(target):
        children = [
            _restore(array.field(i), target.field(i).type) for i in range(target.num_fields)
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    return array.cast(target)


def _relist(array: pa.Array, target: pa.DataType, child: pa.Array) -> pa.Array:
    # Offsets and NULLs do not change: only the children have another type.
    offsets = _from_zero(array.offsets.cast(pa.int32()))
    validity = _from_zero(array.is_valid()) if array.null_count else None
    buffers = [None if validity is None else validity.buffers()[1], offsets.buffers()[1]]
    return pa.Array.from_buffers(target, len(array), buffers, array.null_count, children=[child])


def _from_zero(array: pa.Array) -> pa.Array:
    """The same values, moved to the start of their buffers."""
    return array if array.offset == 0 else pa.concat_arrays([array])


# -- row batches -----------------------------------------------------------------------------------


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


def has_nanoseconds(data_type: pa.DataType) -> bool:
    """Whether the type contains a timestamp in nanoseconds, at any depth."""
    if pa.types.is_timestamp(data_type):
        return bool(data_type.unit == "ns")
    return any(has_nanoseconds(data_type.field(i).type) for i in range(data_type.num_fields))
