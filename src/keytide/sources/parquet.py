"""Parquet files of other engines as sources of versions: parts, row groups, and reads ahead.

- Schemas change without rewriting files: columns are found in a file by name or by id. A missing
  column has the same value in all rows. Types may have been widened. Each row has a position.
- Conditions on the primary key are evaluated on rows, and on the bounds of files and row groups.
- Parts are read in order, with small ones in parallel. A remote part takes time to fetch, and a
  local one can be decoded while another one is read. The total amount is limited to what is read
  from one large part at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from keytide.base.dataclass import dataclass
from keytide.base.process import scratch, side_by_side
from keytide.errors import DataError, InvalidError, KeytideError, UnsupportedError
from keytide.format.arrow import from_arrow
from keytide.predicate.predicate import (
    Predicate,
    columns_of,
    may_match,
    row_filter,
    without_columns,
)
from keytide.sources.source import SourcePart
from keytide.store.interface import Store
from keytide.types import Field, type_from_arrow

# -- conditions on the primary key -----------------------------------------------------------------


def source_condition(
    key_condition: Predicate | None, fields: Sequence[Field], schema: pa.Schema
) -> Predicate | None:
    """The terms of a condition on a table that have the same meaning in the source.

    A definition can give a column another type than the source, with other time units or without
    trailing blanks. Rows that match these terms must still be checked against the condition.
    """
    differing = [
        field.name
        for field in fields
        if field.type.root == "CHAR" or schema.field(field.name).type != field.type.to_arrow()
    ]
    return without_columns(key_condition, differing)


def matching_rows(
    batches: Iterator[pa.RecordBatch], key_condition: Predicate | None
) -> Iterator[pa.RecordBatch]:
    """The rows that match a condition, without empty batches. All rows if a column is missing."""
    names = sorted(columns_of(key_condition))
    for batch in batches:
        if key_condition is None or not set(names) <= set(batch.schema.names):
            kept = batch
        else:
            keys = batch.select(names)
            chosen = from_arrow(pa.Table.from_batches([keys])).select(
                row_filter(key_condition, _fields(keys.schema)).fill_null(value=False).alias("kept")
            )
            kept = batch.filter(chosen.to_series().to_arrow())
        if kept.num_rows:
            yield kept


def may_match_files(
    bounds: pa.Table, key_condition: Predicate, schema: pa.Schema
) -> Sequence[bool]:
    """For each file, whether one of its rows can match a condition.

    `bounds` has one row per file: `rows`, and for columns `<name>.min`, `<name>.max` and
    `<name>.nulls`, each NULL if unknown. Floats have no bounds, because bounds do not include NaN.
    """
    fields = _fields(pa.schema([schema.field(name) for name in sorted(columns_of(key_condition))]))
    may = may_match(key_condition, fields)  # may be a single answer for all files
    return from_arrow(bounds).with_columns(may.alias("may"))["may"].to_list()


def bounds_table(schema: pa.Schema, names: Sequence[str], files: int) -> dict[str, pa.Array]:
    """Unknown bounds for a number of files."""
    made: dict[str, pa.Array] = {"rows": pa.nulls(files, pa.int64())}
    for name in names:
        made[f"{name}.min"] = made[f"{name}.max"] = pa.nulls(files, schema.field(name).type)
        made[f"{name}.nulls"] = pa.nulls(files, pa.int64())
    return made


def _fields(schema: pa.Schema) -> list[Field]:
    return [Field(-1, field.name, type_from_arrow(field.type)) for field in schema]


# -- row groups ------------------------------------------------------------------------------------


def groups_that_may_meet(
    file: pq.ParquetFile,
    types: pa.Schema,
    names: Mapping[str, str],
    key_condition: Predicate | None,
) -> list[int]:
    """The numbers of the row groups whose bounds do not exclude a condition.

    `types` are those of the columns in the condition, and `names` their names in the file. A column
    that the file lacks is in neither.
    """
    groups = range(file.num_row_groups)
    if key_condition is None:
        return list(groups)
    asked = columns_of(key_condition)
    # The index of each column, except ambiguous paths, because a name can contain a dot.
    described = file.metadata.schema
    paths = [described.column(i).path for i in range(file.metadata.num_columns)]
    places = {path: i for i, path in enumerate(paths) if paths.count(path) == 1}
    for name in asked:
        stored = names.get(name)
        if stored not in places or file.schema_arrow.get_field_index(stored) < 0:
            return list(groups)
        # The bounds must have the column's type, and its order of comparison.
        type_ = types.field(name).type
        checks = (pa.types.is_signed_integer, pa.types.is_string, pa.types.is_date32)
        is_plain = any(check(type_) for check in checks)
        if not is_plain or not file.schema_arrow.field(stored).type.equals(type_):
            return list(groups)
    found = [file.metadata.row_group(group) for group in groups]
    bounds = {"rows": pa.array([group.num_rows for group in found], pa.int64())}
    for name in asked:
        type_, place = types.field(name).type, places[names[name]]
        statistics = [group.column(place).statistics for group in found]
        known = [each if each is not None and each.has_min_max else None for each in statistics]
        bounds[f"{name}.min"] = pa.array([each and each.min for each in known], type_)
        bounds[f"{name}.max"] = pa.array([each and each.max for each in known], type_)
        nulls = [each.null_count if each and each.has_null_count else None for each in statistics]
        bounds[f"{name}.nulls"] = pa.array(nulls, pa.int64())
    may = may_match_files(pa.table(bounds), key_condition, types)
    return [group for group, is_possible in zip(groups, may, strict=True) if is_possible]


# -- rows in the columns of a table ----------------------------------------------------------------


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


class StoredColumns:
    """The columns of a version of a table."""

    columns: tuple[StoredColumn, ...]

    @property
    def schema(self) -> pa.Schema:
        """See `PinnedSource`."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    @property
    def required(self) -> frozenset[str]:
        """See `AppendableSource`."""
        return frozenset(c.name for c in self.columns if not c.stored.nullable)


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
        self, columns: Sequence[StoredColumn], key_condition: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows that are not deleted, in order. A condition can skip row groups.

        The last column, `POSITION`, is the position of a row in the file, from 0. Raises
        `DataError`, with the file and any column that caused it, for data that cannot be read.
        """
        schema = pa.schema([pa.field(c.name, c.type) for c in columns])
        placed = schema.append(pa.field(POSITION, pa.int64()))
        with reading(self.uri), self.open() as opened:
            file = pq.ParquetFile(opened, pre_buffer=True, coerce_int96_timestamp_unit="us")

            # The names of columns in the file, except those that it lacks.
            fields = list(file.schema_arrow)
            found = {column.name: self.find(fields, column.stored) for column in columns}
            names = {name: fields[i].name for name, i in found.items() if i is not None}
            groups = groups_that_may_meet(file, schema, names, key_condition)
            # Without a column, Arrow would lose the row count.
            read = list(names.values()) or file.schema_arrow.names[:1]
            counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            for group in groups:  # releases the memory of a row group with the next one
                first = sum(counts[:group])
                for batch in file.iter_batches(rows_max, row_groups=[group], columns=read):
                    end = first + batch.num_rows
                    arrays = [self._column(batch, names.get(c.name), c) for c in columns]
                    positions = pa.array(np.arange(first, end))
                    made = pa.record_batch([*arrays, positions], schema=placed)
                    dead = self.dead[slice(*np.searchsorted(self.dead, [first, end]))]
                    if len(dead):
                        is_live = np.ones(batch.num_rows, dtype=bool)
                        is_live[dead - first] = False
                        made = made.filter(pa.array(is_live))
                    yield made
                    first = end

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
    checks = (pa.types.is_struct, pa.types.is_map, pa.types.is_list)
    is_alike = any(check(array.type) and check(wanted) for check in checks)
    if not is_alike:
        raise MisfitError("the shapes differ")
    if pa.types.is_struct(wanted):
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
    if pa.types.is_map(wanted):
        parts = ((array.keys, "key"), (array.items, "item"))
        keys, items = (
            _fitted(part, getattr(stored, f"{p}_type"), getattr(wanted, f"{p}_type"), find)
            for part, p in parts
        )
        entries = pa.StructArray.from_arrays(
            [keys, items], fields=[wanted.key_field, wanted.item_field]
        )
        return _with_children(array, wanted, entries)
    return _with_children(
        array, wanted, _fitted(array.values, stored.value_type, wanted.value_type, find)
    )


def _with_children(array: pa.Array, wanted: pa.DataType, children: pa.Array) -> pa.Array:
    """Lists or maps with other children, but the same offsets and NULLs."""
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(
        wanted, len(array), [validity, offsets], array.null_count, array.offset, [children]
    )


# -- parts -----------------------------------------------------------------------------------------


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
        self, columns: Sequence[str], key_condition: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """Like `batches`, with the additional last column `POSITION`."""

    def batches(
        self, columns: Sequence[str], key_condition: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """See `SourcePart`."""
        for batch in self.placed_batches(columns, key_condition, rows_max):
            yield batch.select(list(columns))


class ForeignPart(ParquetPart):
    """A file of a table whose schema can change without rewriting files."""

    stored: tuple[StoredColumn, ...]
    """All columns of the table."""

    @abstractmethod
    def file(self) -> ForeignFile:
        """The file with its deleted rows. Raises as `dead_rows`."""

    def placed_batches(
        self, columns: Sequence[str], key_condition: Predicate | None, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """See `ParquetPart`."""
        known = {column.name: column for column in self.stored}
        wanted = [known[name] for name in columns]
        read = self.file().placed_batches(wanted, key_condition, rows_max)
        return matching_rows(read, key_condition)


# -- reads ahead -----------------------------------------------------------------------------------


T = TypeVar("T")

_AT_ONCE = 16
# Estimated stored size of a row, if the number of rows is unknown.
_ROW_BYTES = 8


def read_in_order(
    parts: Sequence[SourcePart], read: Callable[[int], Iterator[T]], rows_max: int
) -> Iterator[tuple[int, T]]:
    """The results of `read` for each part, with its index, in order.

    About `rows_max` rows are read ahead.
    """
    for together in _groups(parts, rows_max):
        if len(together) == 1:
            yield from ((together[0], batch) for batch in read(together[0]))
            continue
        whole = side_by_side([partial(_all, read, place) for place in together], _AT_ONCE)
        for place, batches in zip(together, whole, strict=True):
            yield from ((place, batch) for batch in batches)


def _all(read: Callable[[int], Iterator[T]], place: int) -> list[T]:
    return list(read(place))


def _groups(parts: Sequence[SourcePart], rows_max: int) -> Iterator[list[int]]:
    """The indexes of consecutive parts with at most `rows_max` rows, or of a single part."""
    group: list[int] = []
    rows = 0
    for place, part in enumerate(parts):
        # The number of rows of a part. A part of unknown size counts as large.
        if part.rows is not None:
            own = part.rows
        else:
            own = rows_max if part.stored_bytes is None else part.stored_bytes // _ROW_BYTES
        if group and (rows + own > rows_max or len(group) == _AT_ONCE):
            yield group
            group, rows = [], 0
        group.append(place)
        rows += own
    if group:
        yield group
