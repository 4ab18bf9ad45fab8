"""Generated columns: an expression computes their value from the row's other columns at write time.

The stored value depends on the row alone. So a generated column cannot order versions or mark rows.
In a primary key, it must be computed from key columns. If rows are merged column by column, the
other columns may have arrived at other times, so the generated column must be in the key.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from keytide.base.row_dialect import duckdb_expression
from keytide.errors import InvalidError, KeytideError
from keytide.format.schema import TableSchema
from keytide.merge.engines import engine_class
from keytide.options import TableOptions, keys
from keytide.predicate.values.row_expression import RowExpression, row_expression
from keytide.types import Field

__all__ = [
    "GeneratedColumn",
    "check_generated",
    "generated_columns",
    "generation_texts",
    "generations_in",
]


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


def generation_texts(options: TableOptions) -> dict[str, str]:
    """The stored expressions, by the names of their columns."""
    return options.by_columns(keys.GENERATED)


def generated_columns(schema: TableSchema, options: TableOptions) -> tuple[GeneratedColumn, ...]:
    """The generated columns. Raises like `check_generated`."""
    texts = generation_texts(options)
    return tuple(_generated(name, text, schema.fields) for name, text in texts.items())


def check_generated(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for expressions and columns that cannot be used for a generated column.

    Raises `NotFoundError` for an unknown column.
    """
    texts = generation_texts(options)
    for column in generated_columns(schema, options):
        name, told = column.field.name, _told(column.field.name, column.text)
        again = [n for n in column.columns if n in texts or n == options.out_of_order_column]
        if again:
            raise InvalidError(
                f"{told}: it reads {again[0]!r}, which is a generated column itself; use only "
                "columns of the input"
            )
        if schema.field(name).default_value is not None:
            raise InvalidError(f"{told}: column {name!r} also has a DEFAULT; remove one of them")
        _check_role(column, told, schema, options)


def generations_in(schema: TableSchema) -> dict[str, tuple[str, ...]]:
    """The columns that generated columns read, by the options of the expressions.

    An expression that does not parse reads none.
    """
    found = {}
    for name, text in generation_texts(TableOptions.parse(schema.options)).items():
        with suppress(KeytideError):
            key = keys.key_of(keys.GENERATED, name)
            found[key] = _generated(name, text, schema.fields).columns
    return found


def _check_role(
    column: GeneratedColumn, told: str, schema: TableSchema, options: TableOptions
) -> None:
    name, key = column.field.name, schema.primary_keys
    orders = {*options.sequence_field, *options.watermark_key}
    marks = {options.rowkind_field, options.delete_record_column, options.out_of_order_column}
    if name in {*orders, *marks, *options.tombstone_key}:
        raise InvalidError(
            f"{told}: an option uses {name!r} to order or mark rows, so it cannot be a generated "
            "column"
        )
    others = [each for each in column.columns if each not in key]
    if name in key and others:
        raise InvalidError(
            f"{told}: {name!r} is in the primary key but is computed from {others[0]!r}, which "
            f"is not, so updating this column would change the key; add {others[0]!r} to the "
            f"key, or remove {name!r} from it"
        )
    is_whole = engine_class(options).picks_a_version and not options.merges_rows
    if name not in key and key and not is_whole:
        raise InvalidError(
            f"{told}: rows of this table are merged column by column, so {name!r} could be "
            "computed from an incomplete row; compute it when reading, or only from primary key "
            "columns, as part of the key"
        )


def _told(name: str, text: str) -> str:
    return f"'{keys.key_of(keys.GENERATED, name)}' = {text!r}"


@lru_cache(maxsize=256)
def _generated(name: str, text: str, fields: tuple[Field, ...]) -> GeneratedColumn:
    by_name, told = {field.name: field for field in fields}, _told(name, text)
    if name not in by_name:
        raise InvalidError(f"{told}: {name!r} is not a column; columns: {', '.join(by_name)}")
    try:
        expression = row_expression(duckdb_expression(text, tuple(by_name)))
        read = expression.read_of(by_name)
        if name in expression.columns:
            raise InvalidError("a column cannot be computed from itself; use other columns")
        expression.check(by_name[name], read)
    except KeytideError as error:
        raise type(error)(f"{told}: {error}") from error
    return GeneratedColumn(by_name[name], text, expression, read)
