"""Rules of columns: defaults, generated values, marks and counts.

`fields.<column>.default-value` replaces values that are still NULL after the merge, when rows are
read. Stored rows keep their NULL. A column's DEFAULT replaces NULL when rows are written, also in
deletes.

Generated columns are computed from the row's other columns at write time. The stored value depends
on the row alone. So a generated column cannot order versions or mark rows. In a primary key, it
must be computed from key columns. If rows are merged column by column, the other columns may have
arrived at other times, so the generated column must be in the key.

In tables with a key index, columns can mark rows as deletes or as late.

The aggregate function `count` counts written values. A stored count cannot be distinguished from a
value to count. So values are counted when they are written: a row is stored with 1 in place of a
value, and merging adds up, in any order and grouping. Tables store the function as `sum`, which
every engine of the format knows, and record separately that written values must be counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache

import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.row_engine import duckdb_expression
from keytide.errors import InvalidError, KeytideError
from keytide.format.schema import TableSchema
from keytide.merge.engines import engine_class
from keytide.options import TableOptions, keys
from keytide.predicate.literals import scalar_of_text
from keytide.predicate.row_expression import RowExpression, row_expression
from keytide.types import AtomicType, Field

# -- default values --------------------------------------------------------------------------------


_BYTES = ("BINARY", "VARBINARY")


def read_defaults(schema: TableSchema, options: TableOptions) -> dict[str, pa.Scalar]:
    """The values that readers see instead of NULL, by column.

    Raises `InvalidError` for a value that does not fit its column, and for columns that are never
    NULL or that order versions.
    """
    defaults = {}
    roles = {
        "a primary key column": schema.primary_keys,
        "a partition column": schema.partition_keys,
        "a sequence field": options.sequence_field,
    }
    for names, text in options.by_columns(keys.DEFAULT_VALUE).items():
        for name in names.split(","):
            if name not in schema.names:
                continue  # the column was dropped, but not the option
            role = next((role for role, columns in roles.items() if name in columns), None)
            if role is not None:
                raise InvalidError(
                    f"'{keys.key_of(keys.DEFAULT_VALUE, name)}' is set, but {name!r} is {role}, "
                    "which cannot have a default; remove the option"
                )
            key = keys.key_of(keys.DEFAULT_VALUE, names)
            defaults[name] = parse_default(text, schema.field(name), f"option {key!r}")
    return defaults


def write_default(field: Field) -> pa.Scalar:
    """The value that a write stores instead of NULL: the column's DEFAULT, which must exist.

    Raises `InvalidError` if it is not a value of the column.
    """
    assert field.default_value is not None
    return parse_default(field.default_value, field, f"DEFAULT of column {field.name!r}")


def parse_default(text: str, field: Field, what: str) -> pa.Scalar:
    """Parse a default as a value of its column.

    Raises `InvalidError`, which names its origin `what`.
    """
    type_ = field.type
    if not isinstance(type_, AtomicType) or type_.root in _BYTES:
        raise InvalidError(
            f"{what} is {text!r}, and column {field.name!r} is {type_.sql()}; only strings, "
            "numbers, booleans and times can have a default"
        )
    try:
        return scalar_of_text(text, field, what)
    except InvalidError as error:
        raise InvalidError(
            f"{what} is {text!r}, which is not a value of {type_.sql()}, the type of column "
            f"{field.name!r}"
        ) from error


# -- generated columns -----------------------------------------------------------------------------


@dataclass(frozen=True)
class GeneratedColumn:
    """A column, the expression that computes its value, and the columns that it reads."""

    field: Field
    text: str
    expression: RowExpression
    read: tuple[Field, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that it reads."""
        return tuple(field.name for field in self.read)


def generated_columns(schema: TableSchema, options: TableOptions) -> tuple[GeneratedColumn, ...]:
    """The generated columns. Raises like `check_generated`."""
    texts = options.generation_texts
    return tuple(_generated(name, text, schema.fields) for name, text in texts.items())


def check_generated(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for expressions and columns that cannot be used for a generated column.

    Raises `NotFoundError` for an unknown column.
    """
    texts = options.generation_texts
    for column in generated_columns(schema, options):
        name = column.field.name
        option_text = f"'{keys.key_of(keys.GENERATED, name)}' = {column.text!r}"
        again = [n for n in column.columns if n in texts or n == options.out_of_order_column]
        if again:
            raise InvalidError(
                f"{option_text}: it reads {again[0]!r}, which is a generated column itself; use "
                "only columns of the input"
            )
        if schema.field(name).default_value is not None:
            raise InvalidError(
                f"{option_text}: column {name!r} also has a DEFAULT; remove one of them"
            )
        _check_role(column, option_text, schema, options)


def generations_in(schema: TableSchema) -> dict[str, tuple[str, ...]]:
    """The columns that generated columns read, by the options of the expressions.

    An expression that does not parse reads none.
    """
    found = {}
    for name, text in TableOptions.parse(schema.options).generation_texts.items():
        with suppress(KeytideError):
            key = keys.key_of(keys.GENERATED, name)
            found[key] = _generated(name, text, schema.fields).columns
    return found


def _check_role(
    column: GeneratedColumn, option_text: str, schema: TableSchema, options: TableOptions
) -> None:
    name, key = column.field.name, schema.primary_keys
    orders = {*options.sequence_field, *options.watermark_key}
    marks = {options.rowkind_field, options.delete_record_column, options.out_of_order_column}
    if name in {*orders, *marks, *options.tombstone_key}:
        raise InvalidError(
            f"{option_text}: an option uses {name!r} to order or mark rows, so it cannot be a "
            "generated column"
        )
    others = [each for each in column.columns if each not in key]
    if name in key and others:
        raise InvalidError(
            f"{option_text}: {name!r} is in the primary key but is computed from {others[0]!r}, "
            f"which is not, so updating this column would change the key; add {others[0]!r} to the "
            f"key, or remove {name!r} from it"
        )
    is_whole = engine_class(options).picks_a_version and not options.merges_rows
    if name not in key and key and not is_whole:
        raise InvalidError(
            f"{option_text}: rows of this table are merged column by column, so {name!r} could be "
            "computed from an incomplete row; compute it when reading, or only from primary key "
            "columns, as part of the key"
        )


@lru_cache(maxsize=256)
def _generated(name: str, text: str, fields: tuple[Field, ...]) -> GeneratedColumn:
    by_name = {field.name: field for field in fields}
    option_text = f"'{keys.key_of(keys.GENERATED, name)}' = {text!r}"
    if name not in by_name:
        raise InvalidError(
            f"{option_text}: {name!r} is not a column; columns: {', '.join(by_name)}"
        )
    try:
        expression = row_expression(duckdb_expression(text, tuple(by_name)))
        read = expression.read_of(by_name)
        if name in expression.columns:
            raise InvalidError("a column cannot be computed from itself; use other columns")
        expression.check(by_name[name], read)
    except KeytideError as error:
        raise type(error)(f"{option_text}: {error}") from error
    return GeneratedColumn(by_name[name], text, expression, read)


# -- columns that mark rows as deletes or as late --------------------------------------------------


_MARKS = frozenset(
    ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "CHAR",
     "VARCHAR")
)  # fmt: skip


def _check_delete_record(schema: TableSchema, name: str, options: TableOptions) -> None:
    role = f"'{keys.UPSERT_DELETE_RECORD_COLUMN}' = {name!r}"
    if name not in schema.by_name:
        raise InvalidError(f"{role} does not exist; columns: {', '.join(schema.names)}")
    type_ = schema.field(name).type
    if type_.root not in _MARKS:
        raise InvalidError(f"{role} is {type_.sql()}; expected a BOOLEAN, string or number column")
    if name in schema.primary_keys:
        raise InvalidError(
            f"{role} is in the primary key, so a delete would not find the row that it deletes; "
            "use another column"
        )
    if options.tombstone_key:
        raise InvalidError(
            f"{role} and '{keys.TOMBSTONE_KEY}' both mark deletes; remove one of them"
        )


def check_marking_columns(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for a column that cannot mark deletes or late rows."""
    if options.delete_record_column is not None:
        _check_delete_record(schema, options.delete_record_column, options)
    if options.out_of_order_column is not None:
        name = options.out_of_order_column
        role = f"'{keys.UPSERT_OUT_OF_ORDER_COLUMN}' = {name!r}"
        if options.drops_out_of_order:
            raise InvalidError(
                f"{role} marks rows that '{keys.UPSERT_DROP_OUT_OF_ORDER}' = 'true' drops; remove "
                "one of them"
            )
        if name not in schema.by_name:
            raise InvalidError(f"{role} does not exist; columns: {', '.join(schema.names)}")
        if schema.field(name).type.root != "BOOLEAN":
            type_ = schema.field(name).type.sql()
            raise InvalidError(f"{role} is {type_}; expected a BOOLEAN column")
        taken = (*schema.primary_keys, *options.sequence_field, options.delete_record_column)
        if name in taken:
            raise InvalidError(
                f"{role} is already used to identify, compare or delete rows; use a separate column"
            )
    if options.leaves_out_late_rows and not options.sequence_field:
        option = keys.UPSERT_LATE_ROWS
        if options.drops_out_of_order:
            option = keys.UPSERT_DROP_OUT_OF_ORDER
        elif options.out_of_order_column is not None:
            option = keys.UPSERT_OUT_OF_ORDER_COLUMN
        raise InvalidError(
            f"'{option}' is about late rows, but without '{keys.SEQUENCE_FIELD}' no row is late; "
            "set the sequence field, or remove the option"
        )
    if options.late_rows == "leave-out" and not options.merges_rows:
        raise InvalidError(
            f"'{keys.UPSERT_LATE_ROWS}' = 'leave-out' requires '{keys.UPSERT_MODE}' = 'partial', "
            f"found '{options.upsert_mode}', where late rows are never returned; remove the option"
        )


# -- the aggregate function `count` ----------------------------------------------------------------


def with_stored_counts(raw: Mapping[str, str]) -> dict[str, str]:
    """The options to store, with `count` as a sum of counted values."""
    stored = dict(raw)
    for key, value in raw.items():
        column = keys.columns_in(keys.AGGREGATE_FUNCTION, key)
        if column is not None and value.strip().lower() == "count":
            stored[key] = "sum"
            stored[keys.key_of(keys.COUNT_VALUES, column)] = "true"
    return stored


def check_counted(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for counts that do not fit the type of their column."""
    for name in sorted(options.counted_columns):
        if name not in schema.names:
            continue  # the column was dropped, but not the option
        type_ = schema.field(name).type
        if not pa.types.is_integer(type_.to_arrow()):
            raise InvalidError(
                f"'{keys.key_of(keys.AGGREGATE_FUNCTION, name)}' = 'count' requires an integer "
                f"column, and {name!r} is {type_.sql()}; change it to BIGINT"
            )
