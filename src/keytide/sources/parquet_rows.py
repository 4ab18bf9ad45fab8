"""Rows of a Parquet file from another engine, with the current columns of its table.

Schemas change without rewriting files: columns are found in a file by name or by id. A missing
column has the same value in all rows. Types may have been widened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from keytide.base.scratch import scratch
from keytide.errors import DataError, InvalidError, KeytideError, UnsupportedError
from keytide.predicate.predicate import Predicate
from keytide.sources.row_groups import groups_that_may_meet
from keytide.types import type_from_arrow

__all__ = [
    "POSITION",
    "Finder",
    "ForeignFile",
    "MisfitError",
    "StoredColumn",
    "by_id",
    "by_name",
    "column_type",
]

FIELD_ID = b"PARQUET:field_id"
POSITION = scratch("position")
"""The column with the position of a row in its file, from 0."""

Finder: TypeAlias = Callable[[Sequence[pa.Field], pa.Field], "int | None"]
"""The index of a table field among a file's fields, None if the file lacks it."""


class MisfitError(Exception):
    """The stored data does not have the structure that the table declares."""


@dataclass(frozen=True)
class StoredColumn:
    """A column: its current name, its type, and its field in files.

    Fields within `stored` and `type` are the same in the same order, but their names can differ.
    """

    name: str
    type: pa.DataType
    stored: pa.Field


def column_type(name: str, type_: pa.DataType, owner: str) -> pa.DataType:
    """The Keytide type for a column of another engine.

    Raises `UnsupportedError`, naming the column, if there is none.
    """
    try:
        return type_from_arrow(type_).to_arrow()
    except InvalidError as error:
        raise UnsupportedError(
            f"{owner}: column {name!r} has the type {type_}, which Keytide does not support "
            f"({error}); remove the column from that table, or change its type"
        ) from error


def by_name(fields: Sequence[pa.Field], wanted: pa.Field) -> int | None:
    """The field with the same name."""
    return next((i for i, field in enumerate(fields) if field.name == wanted.name), None)


def by_id(fields: Sequence[pa.Field], wanted: pa.Field) -> int | None:
    """The field with the same id, whatever its name. None for fields without ids."""
    id_ = (wanted.metadata or {}).get(FIELD_ID)
    ids = [(field.metadata or {}).get(FIELD_ID) for field in fields]
    if id_ is None or None in ids:
        raise MisfitError("a field has no id, which the table needs to find its columns")
    return ids.index(id_) if id_ in ids else None


@dataclass(frozen=True)
class ForeignFile:
    """A Parquet file: its location, how columns are found in it, and its deleted rows.

    A column that the file lacks has its value in `constants`, or NULL. `dead` are row positions in
    ascending order.
    """

    open: Callable[[], AbstractContextManager[Any]]
    uri: str
    find: Finder
    constants: Mapping[str, pa.Scalar]
    dead: np.ndarray[Any, np.dtype[np.int64]]

    def placed_batches(
        self, columns: Sequence[StoredColumn], about_key: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows that are not deleted, in order. A condition can skip row groups.

        The last column, `POSITION`, is the position of a row in the file, from 0. Raises
        `DataError`, with the file and any column that caused it, for data that cannot be read.
        """
        schema = pa.schema([pa.field(c.name, c.type) for c in columns])
        placed = schema.append(pa.field(POSITION, pa.int64()))
        with reading(self.uri), self.open() as opened:
            file = pq.ParquetFile(opened, pre_buffer=True, coerce_int96_timestamp_unit="us")
            names = self._names(file, columns)
            groups = groups_that_may_meet(file, schema, names, about_key)
            for first, batch in _read(file, list(names.values()), groups, rows_max):
                keep = _alive(self.dead, first, batch.num_rows)
                arrays = [self._column(batch, names.get(c.name), c) for c in columns]
                positions = pa.array(np.arange(first, first + batch.num_rows))
                made = pa.record_batch([*arrays, positions], schema=placed)
                yield made if keep is None else made.filter(keep)

    def _names(self, file: pq.ParquetFile, columns: Sequence[StoredColumn]) -> dict[str, str]:
        """The names of columns in the file, except those that it lacks."""
        fields = list(file.schema_arrow)
        found = {column.name: self.find(fields, column.stored) for column in columns}
        return {name: fields[i].name for name, i in found.items() if i is not None}

    def _column(self, batch: pa.RecordBatch, name: str | None, column: StoredColumn) -> pa.Array:
        if name is None:
            value = self.constants.get(column.name, pa.scalar(None, column.type))
            return pa.repeat(value.cast(column.type), batch.num_rows)
        found = batch.column(name)
        try:
            return _fitted(found, column.stored.type, column.type, self.find)
        except (pa.ArrowException, MisfitError) as error:
            raise DataError(
                f"{self.uri}: column {name!r} is stored as {found.type}, which cannot be read as "
                f"{column.type}, its type in the table: {error}"
            ) from error


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Convert errors in the block to the `DataError` for reading a file."""
    try:
        yield
    except KeytideError:
        raise
    except (OSError, ValueError, pa.ArrowException, MisfitError) as error:
        raise DataError(
            f"Cannot read {uri}: {str(error).strip() or type(error).__name__}. If the table's "
            "own engine has deleted the file, read a newer version; otherwise restore the file"
        ) from error


def _read(
    file: pq.ParquetFile, names: list[str], groups: Sequence[int], rows_max: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of some columns, each with the position of its first row in the file."""
    read = names or file.schema_arrow.names[:1]  # without a column, Arrow would lose the row count
    counts = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    for group in groups:  # releases the memory of a row group with the next one
        first = sum(counts[:group])
        for batch in file.iter_batches(rows_max, row_groups=[group], columns=read):
            yield first, batch
            first += batch.num_rows


def _alive(dead: np.ndarray[Any, np.dtype[np.int64]], first: int, rows: int) -> pa.Array | None:
    """Which of some rows are not deleted, None if all rows are deleted."""
    begin, end = np.searchsorted(dead, [first, first + rows])
    if begin == end:
        return None
    keep = np.ones(rows, dtype=bool)
    keep[dead[begin:end] - first] = False
    return pa.array(keep)


def _fitted(array: pa.Array, stored: pa.DataType, wanted: pa.DataType, find: Finder) -> pa.Array:
    """Values of a file in the type of a column. `stored` says how nested fields are found."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        array = array.cast(
            pa.list_(array.type.value_field)
        )  # some writers name list elements differently
    if not pa.types.is_nested(wanted):
        return array if array.type.equals(wanted) else array.cast(wanted)
    if not _is_alike(array.type, wanted):
        raise MisfitError("the shapes differ")
    if pa.types.is_struct(wanted):
        return _struct(array, stored, wanted, find)
    if pa.types.is_map(wanted):
        parts = ((array.keys, "key"), (array.items, "item"))
        keys, items = (
            _fitted(part, getattr(stored, f"{p}_type"), getattr(wanted, f"{p}_type"), find)
            for part, p in parts
        )
        entries = pa.StructArray.from_arrays(
            [keys, items], fields=[wanted.key_field, wanted.item_field]
        )
        return _relisted(array, wanted, entries)
    return _relisted(
        array, wanted, _fitted(array.values, stored.value_type, wanted.value_type, find)
    )


def _is_alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    checks = (pa.types.is_struct, pa.types.is_map, pa.types.is_list)
    return any(check(found) and check(wanted) for check in checks)


def _struct(array: pa.Array, stored: pa.DataType, wanted: pa.DataType, find: Finder) -> pa.Array:
    members = []
    for stored_member, member in zip(stored, wanted, strict=True):
        i = find(list(array.type), stored_member)
        members.append(
            pa.nulls(len(array), member.type)
            if i is None
            else _fitted(array.field(i), stored_member.type, member.type, find)
        )
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(members, fields=list(wanted), mask=mask)


def _relisted(array: pa.Array, wanted: pa.DataType, children: pa.Array) -> pa.Array:
    """Lists or maps with other children, but the same offsets and NULLs."""
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(
        wanted, len(array), [validity, offsets], array.null_count, array.offset, [children]
    )
