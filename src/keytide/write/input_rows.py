"""Input rows: converts any supported container to exact columns and row kinds.

Everything is checked here, before anything is written: columns, types, lengths, NULLs, kinds.
Values are converted only if nothing is lost.

For writers that declare that the columns of their rows vary, missing columns are added, so that the
rows fit the table. Otherwise, a row is a complete row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property
from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.definition.column_rules import write_default
from keytide.definition.schema_evolution import element_of
from keytide.errors import InvalidError, KeytideError, NotFoundError
from keytide.format.arrow import from_arrow
from keytide.format.schema import TableSchema
from keytide.merge.engines import engine_class
from keytide.merge.order import VALUE_KIND
from keytide.merge.refusal import Refusal
from keytide.options import TableOptions, keys
from keytide.predicate.literals import array_of, key_value
from keytide.predicate.row_expression import with_tombstones
from keytide.predicate.value_columns import (
    key_column,
    refuse_nested_types,
    refuse_nested_values,
    stored_column,
)
from keytide.types import ArrayType, AtomicType, DataType, Field, MapType, RowType, type_from_arrow
from keytide.types.logical import holds_all
from keytide.write.generated_columns import generated

# -- input rows ------------------------------------------------------------------------------------


_KINDS = [kind.short for kind in RowKind]


@dataclass(frozen=True)
class Rows:
    """Rows in a table's exact types, with their kinds (`RowKind` as int8), in order of arrival.

    `refusals` describe rows that are refused, whatever else is found.
    """

    table: pa.Table
    kinds: pa.ChunkedArray
    refusals: tuple[Refusal, ...] = ()

    def filter(self, keep: pa.ChunkedArray) -> Rows:
        """The rows for which `keep` is true."""
        left = tuple(replace(r, rows=r.rows[np.asarray(keep)]) for r in self.refusals)
        return Rows(self.table.filter(keep), self.kinds.filter(keep), left)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The same as a Polars DataFrame, with the kinds as `_VALUE_KIND`."""
        kinds = pl.Series(VALUE_KIND, self.kinds, dtype=pl.Int8)
        return from_arrow(self.table).hstack([kinds])


def to_arrow_table(data: Any, schema: TableSchema, table: str) -> pa.Table:
    """The rows of a supported container as an Arrow table.

    Accepts pyarrow tables, record batches, readers, datasets and scanners, Polars DataFrames,
    pandas DataFrames, lists of dicts (whose values are converted to the types of `schema`), and
    everything that provides an Arrow stream or array, such as DuckDB relations. A container without
    rows and columns means no rows. Raises `InvalidError` for anything else, and for a container
    that fails while it is read.
    """
    return _arrow_table(data, schema, table, takes_others=False)


def source_table(data: Any, schema: TableSchema, table: str) -> pa.Table:
    """The rows of a supported container that are not rows of the table, but are compared with them.

    Like `to_arrow_table`, with columns of any name.
    """
    return _arrow_table(data, schema, table, takes_others=True)


def wider_table(data: Any, schema: TableSchema, table: str) -> pa.Table:
    """The rows of a supported container, for a table that is extended to accept them.

    Like `source_table`. Values of dicts that do not fit their column of `schema` keep their own
    types. Unknown columns without a type, in which all values are NULL, are left out.
    """
    if _are_dicts(data):
        fits = (f for f in schema.fields if _takes(f, [row.get(f.name) for row in data], table))
        rows = source_table(data, replace(schema, fields=tuple(fits)), table)
    else:
        rows = source_table(data, schema, table)
    nothing = [
        f.name for f in rows.schema if pa.types.is_null(f.type) and f.name not in schema.by_name
    ]
    return rows.drop_columns(nothing)


def _takes(field: Field, values: Sequence[Any], table: str) -> bool:
    try:
        array_of(values, field, table)
    except InvalidError:
        return False
    return True


def _are_dicts(data: Any) -> bool:
    return isinstance(data, Sequence) and all(isinstance(row, Mapping) for row in data)


def _arrow_table(data: Any, schema: TableSchema, table: str, *, takes_others: bool) -> pa.Table:
    try:
        given = _read_container(data, schema, table, takes_others=takes_others)
        refuse_nested_types(given.schema, table)
        has_any = given.num_rows or given.num_columns
        return given if has_any else schema.arrow_schema().empty_table()
    except KeytideError:
        raise
    except Exception as error:  # a caller's container may raise anything
        raise InvalidError(
            f"table {table}: cannot read the rows of a {_class_of(data)}: {error}"
        ) from error


def _read_container(data: Any, schema: TableSchema, table: str, *, takes_others: bool) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if isinstance(data, pl.LazyFrame):
        data = data.collect()
    if isinstance(data, pl.DataFrame):
        return data.to_arrow(compat_level=pl.CompatLevel.oldest())
    if _class_of(data).startswith("pandas.") and hasattr(data, "columns"):
        return _from_pandas(data, schema, table)
    if _are_dicts(data):
        return _from_dicts(data, schema, table, takes_others=takes_others)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data).read_all()
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    if _class_of(data).startswith("pyarrow._dataset."):
        return data.to_table()
    raise InvalidError(
        f"cannot {'read' if takes_others else 'write'} a {_class_of(data)}; give a pyarrow "
        "Table, RecordBatch or Dataset, a Polars, pandas or Spark DataFrame, a list of dicts, or "
        "an object with an Arrow stream, such as a DuckDB relation"
    )


def _class_of(data: Any) -> str:
    return f"{type(data).__module__}.{type(data).__qualname__}"


def _from_pandas(data: Any, schema: TableSchema, table: str) -> pa.Table:
    for place, (name, type_) in enumerate(data.dtypes.items()):
        if type_.kind == "O":
            refuse_nested_values(data.iloc[:, place], name, table)
    try:
        given = pa.Table.from_pandas(data, preserve_index=False)
        if given.num_rows:
            return given
        # pandas chose the types of columns without values, not the caller.
        types = {f.name: f.type.to_arrow() for f in schema.fields}
        names = given.column_names
        return pa.table({name: pa.array([], types.get(name, pa.string())) for name in names})
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidError(
            f"table {table}: the pandas DataFrame has a column with values of different types: "
            f"{error}"
        ) from error


def _from_dicts(
    rows: Sequence[Mapping[str, Any]], schema: TableSchema, table: str, *, takes_others: bool
) -> pa.Table:
    if not rows:
        return schema.arrow_schema().empty_table()
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not takes_others:
        _refuse_unknown_columns(names, schema, table)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if name in schema.by_name:
            columns[name] = array_of(values, schema.field(name), table)
            continue
        refuse_nested_values(values, name, table)
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidError(
                f"table {table}: column {name!r} has values of different types: {error}"
            ) from error
    return pa.table(columns)


def incoming_rows(data: pa.Table, schema: TableSchema, options: TableOptions, table: str) -> Rows:
    """Check and convert rows for a table.

    Kinds come from `rowkind.field`, or from a `_row_kind` column, or are +I by default. Having both
    is an error. A row that matches the tombstone condition is a -D, whatever its kind column says
    (rules R6 to R8 of docs/semantics.md). Rows that `ignore-delete` or `ignore-update-before`
    exclude are left out. Raises `InvalidError` or `NotFoundError`, which names table, column, the
    value found and what was expected.
    """
    return complete_rows(typed_rows(data, schema, options, table), schema, options, table)


def complete_rows(given: Rows, schema: TableSchema, options: TableOptions, table: str) -> Rows:
    """The result of `typed_rows` in stored form: NULLs only in columns that allow them.

    Raises the same errors as `incoming_rows`.
    """
    retracts = pc.invert(_is_add(given.kinds))

    # Which rows are refused, whatever else is found.
    flags = np.zeros(len(given.kinds), np.bool_)
    for refusal in given.refusals:
        flags |= refusal.rows
    refused = pa.chunked_array([flags])
    columns = {
        name: _without_forbidden_nulls(column, schema.field(name), retracts, refused, schema, table)
        for name, column in zip(given.table.column_names, given.table.columns, strict=True)
    }
    for name in options.counted_columns & columns.keys():
        # 1 for each value, as the aggregate function `count` stores them.
        column = columns[name]
        one, none = pa.scalar(1, column.type), pa.scalar(None, column.type)
        columns[name] = pc.if_else(column.is_valid(), one, none)
    rows = replace(given, table=pa.table(columns, schema=schema.arrow_schema()))
    ignored = ignored_kinds(options)
    if not ignored:
        return rows
    return rows.filter(pc.invert(pc.is_in(rows.kinds, pa.array(ignored, pa.int8()))))


def typed_rows(data: pa.Table, schema: TableSchema, options: TableOptions, table: str) -> Rows:
    """Every row in the table's types with its kind. NULLs are not checked.

    Raises the same errors as `incoming_rows`.
    """
    if options.rowkind_field and ROW_KIND in data.column_names:
        raise InvalidError(
            f"table {table}: the rows have row kinds in {ROW_KIND!r}, but '{keys.ROWKIND_FIELD}' "
            f"reads them from column {options.rowkind_field!r}; remove {ROW_KIND!r}"
        )
    name = options.rowkind_field or (ROW_KIND if ROW_KIND in data.column_names else None)
    if name is None:
        inserts = pa.nulls(data.num_rows, pa.int8()).fill_null(int(RowKind.INSERT))
        kinds = pa.chunked_array([inserts], type=pa.int8())
    else:
        if name not in data.column_names:
            raise InvalidError(
                f"table {table}: the rows have no column {name!r}, which '{keys.ROWKIND_FIELD}' "
                "names; add it with values '+I', '-U', '+U' or '-D'"
            )
        kinds = parsed_kinds(data.column(name), name, table)
    columns = _pair_columns(data, schema, options, kinds, table)
    if options.out_of_order_column is not None:
        # The value of `upsert.out-of-order-record-column` before rows are compared.
        count = len(kinds)
        none: pa.ChunkedArray = pa.chunked_array([pa.repeat(pa.scalar(False), count)])
        columns[options.out_of_order_column] = none
    if options.tombstone_key or options.delete_record_column is not None:
        kinds = with_tombstones(kinds, columns, schema, options)
    if not options.generation_texts:
        return Rows(pa.table(columns), kinds)
    retracts = np.asarray(pc.invert(_is_add(kinds)))
    whole = generated(columns, retracts, schema, options, table)
    return Rows(pa.table(whole.columns), kinds, whole.refusals)


def ignored_kinds(options: TableOptions) -> list[RowKind]:
    """The kinds of the rows that the table ignores."""
    if options.ignore_delete:
        return [RowKind.DELETE, RowKind.UPDATE_BEFORE]
    return [RowKind.UPDATE_BEFORE] if options.ignore_update_before else []


# -- kinds -----------------------------------------------------------------------------------------


def parsed_kinds(column: pa.ChunkedArray, name: str, table: str) -> pa.ChunkedArray:
    """Row kinds (`RowKind` as int8) from strings in upper or lower case.

    Raises `InvalidError`, which names the column, for NULL, another string or another type.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        if pa.types.is_string_view(column.type):
            column = column.cast(pa.string())
        else:
            raise InvalidError(
                f"table {table}: column {name!r} contains row kinds and must be a string column, "
                f"found {column.type}"
            )
    if column.null_count:
        raise InvalidError(
            f"table {table}: Row kind cannot be null. Column {name!r} has "
            f"{column.null_count} NULL of {len(column)} values; expected '+I', '-U', '+U' or '-D'"
        )
    kinds = pc.index_in(pc.ascii_upper(column), pa.array(_KINDS, column.type))
    if kinds.null_count:
        wrong = str(column.filter(pc.is_null(kinds))[0].as_buffer(), "utf-8", "backslashreplace")
        raise InvalidError(
            f"table {table}: Unsupported short string {wrong!r} for a row kind in column "
            f"{name!r}; expected '+I', '-U', '+U' or '-D'"
        )
    return kinds.cast(pa.int8())


def _is_add(kinds: pa.ChunkedArray) -> pa.ChunkedArray:
    adds = pa.array([RowKind.INSERT, RowKind.UPDATE_AFTER], type=pa.int8())
    return pc.is_in(kinds, adds)


# -- columns ---------------------------------------------------------------------------------------


def _pair_columns(
    data: pa.Table,
    schema: TableSchema,
    options: TableOptions,
    kinds: pa.ChunkedArray,
    table: str,
) -> dict[str, pa.ChunkedArray]:
    places = {name: place for place, name in enumerate(data.column_names)}
    _refuse_unknown_columns(data.column_names, schema, table)
    # Equal values must be in the same partition and bucket.
    placing = {*schema.primary_keys, *schema.partition_keys}
    columns = {}
    for field in schema.fields:
        if field.name in places:
            given = data.column(places[field.name])
            stored = key_column if field.name in placing else stored_column
            columns[field.name] = stored(given, field, table)
        else:
            columns[field.name] = _missing_column(field, schema, options, kinds, table)
    for field in schema.fields:
        # A DEFAULT replaces the NULLs.
        if field.default_value is not None and columns[field.name].null_count:
            value = write_default(field)
            if field.name in schema.primary_keys:
                value = key_value(value, field, table)
            columns[field.name] = columns[field.name].fill_null(value)
    return columns


def _refuse_unknown_columns(names: Iterable[str], schema: TableSchema, table: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidError(
                f"table {table}: the rows have two columns named {name!r}; rename or drop one"
            )
        seen.add(name)
        if name != ROW_KIND and name not in schema.by_name:
            raise NotFoundError(
                f"table {table} has no column {name!r}; columns: {', '.join(schema.names)}. Drop "
                "the column from the rows, or write with merge_schema=True (Spark data source: "
                "option 'mergeSchema') to add it to the table"
            )


def _missing_column(
    field: Field, schema: TableSchema, options: TableOptions, kinds: pa.ChunkedArray, table: str
) -> pa.ChunkedArray:
    only_retracts = len(kinds) > 0 and not pc.any(_is_add(kinds)).as_py()
    is_key = field.name in schema.primary_keys
    fills_gaps = options.merges_rows or engine_class(options).fills_gaps
    partial = fills_gaps and field.type.nullable
    is_written = field.name == options.out_of_order_column
    is_generated = field.name in options.generation_texts
    may_lack = is_generated or (not is_key and (only_retracts or partial or is_written))
    if not may_lack and not options.counts_row_errors:
        what = "the primary key column" if is_key else "the column"
        raise InvalidError(
            f"table {table}: the rows lack {what} {field.name!r} ({field.type.sql()}); "
            f"expected all of {', '.join(schema.names)}. Each row must be complete: add the "
            "column, with NULLs if it has no value"
        )
    nulls = pa.nulls(len(kinds), field.type.to_arrow())
    return pa.chunked_array([nulls], type=nulls.type)


def _without_forbidden_nulls(
    column: pa.ChunkedArray,
    field: Field,
    retracts: pa.ChunkedArray,
    refused: pa.ChunkedArray,
    schema: TableSchema,
    table: str,
) -> pa.ChunkedArray:
    if field.type.nullable or not column.null_count:
        return column
    wrong = pc.and_not(_are_forbidden(column, field, retracts, schema), refused)
    count = pc.sum(wrong).as_py()
    if count:
        role = "primary key column" if field.name in schema.primary_keys else "column"
        first = pc.index(wrong, value=True).as_py() + 1
        raise InvalidError(
            f"table {table}: Cannot write null to non-null column({field.name}): {role} "
            f"{field.name!r} is {field.type.sql()} and {count} of {len(column)} rows are NULL, "
            f"the first is row {first}; filter these rows out or set a value"
        )
    # A delete may leave out a NOT NULL column, but its file must have a value. Any value works,
    # because no reader ever shows it. This is also true for refused rows.
    return pc.fill_null(column, _filler(field.type.to_arrow()))


def forbidden_nulls(rows: Rows, fields: Iterable[Field], schema: TableSchema) -> pa.ChunkedArray:
    """Which rows have NULL in a column that does not allow it for them."""
    retracts = pc.invert(_is_add(rows.kinds))
    found: pa.ChunkedArray = pa.chunked_array([pa.repeat(pa.scalar(False), len(rows.kinds))])
    for field in fields:
        column = rows.table.column(field.name)
        if not field.type.nullable and column.null_count:
            found = pc.or_(found, _are_forbidden(column, field, retracts, schema))
    return found


def _are_forbidden(
    nulls_in: pa.ChunkedArray, field: Field, retracts: pa.ChunkedArray, schema: TableSchema
) -> pa.ChunkedArray:
    """Which rows have a NULL that a NOT NULL column does not allow. A delete needs only a key."""
    nulls = pc.is_null(nulls_in)
    return nulls if field.name in schema.primary_keys else pc.and_not(nulls, retracts)


def _filler(data_type: pa.DataType) -> pa.Scalar:
    if pa.types.is_nested(data_type):
        empty: Any = {} if pa.types.is_struct(data_type) else []
        return pa.scalar(empty, data_type)
    if pa.types.is_string(data_type):
        return pa.scalar("", data_type)
    if pa.types.is_binary(data_type):
        return pa.scalar(b"", data_type)
    if pa.types.is_decimal(data_type):
        return pa.scalar(Decimal(0), data_type)
    width = pa.int64() if pa.types.is_timestamp(data_type) else pa.int32()
    return pa.scalar(0, width).cast(data_type)


# -- missing columns -------------------------------------------------------------------------------


def padded(rows: pa.Table, schema: TableSchema, options: TableOptions) -> pa.Table:
    """The rows with NULL in missing columns and in missing members of a ROW.

    Integers are converted to the floating-point type of a column that can represent all of them.
    Columns that the table lacks must be NULL in all rows and are left out. Other rows are not
    changed.
    """
    target = padded_schema(rows.schema, schema, options)
    if target.equals(rows.schema):
        return rows
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        for field in target
    ]
    return pa.Table.from_arrays(columns, schema=target)


def padded_schema(found: pa.Schema, schema: TableSchema, options: TableOptions) -> pa.Schema:
    """The schema of rows after they are padded."""
    own = [
        _as_wide(column, schema.field(column.name).type)
        if column.name in schema.by_name
        else column
        for column in found
        if column.name in schema.by_name or not pa.types.is_null(column.type)
    ]
    # Columns that order rows, or that determine their kind, are never left out.
    there = {ROW_KIND, *found.names, *options.sequence_field}
    there |= {options.rowkind_field, options.out_of_order_column}
    lacking = [f for f in schema.fields if f.type.nullable and f.name not in there]
    return pa.schema([*own, *(pa.field(f.name, f.type.to_arrow()) for f in lacking)])


def _as_wide(column: pa.Field, type_: DataType) -> pa.Field:
    return column.with_type(_wide_type(column.type, type_))


def _wide_type(found: pa.DataType, type_: DataType) -> pa.DataType:
    element = element_of(found)
    if isinstance(type_, RowType) and pa.types.is_struct(found):
        known = {member.name: member for member in type_.fields}
        own = [
            _as_wide(member, known[member.name].type) if member.name in known else member
            for member in found
            if member.name in known or not pa.types.is_null(member.type)
        ]
        names = {member.name for member in found}
        lacking = [m for m in type_.fields if m.type.nullable and m.name not in names]
        wide_members = [*own, *(pa.field(m.name, m.type.to_arrow()) for m in lacking)]
        return pa.struct(wide_members)
    if isinstance(type_, ArrayType) and element is not None:
        wide = _as_wide(element, type_.element)
        return found if wide.equals(element) else pa.list_(wide)
    if isinstance(type_, MapType) and pa.types.is_map(found):
        return pa.map_(found.key_field, _as_wide(found.item_field, type_.value))
    if isinstance(type_, AtomicType) and pa.types.is_integer(found):
        return type_.to_arrow() if _is_exact_float(found, type_) else found
    return found


def _is_exact_float(found: pa.DataType, type_: AtomicType) -> bool:
    try:
        whole = type_from_arrow(found)
    except InvalidError:
        return False
    is_float = type_.root in ("FLOAT", "DOUBLE")
    return is_float and isinstance(whole, AtomicType) and holds_all(whole, type_)
