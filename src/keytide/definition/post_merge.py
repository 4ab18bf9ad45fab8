"""Columns that are computed from the merged row, in tables that merge rows at write time."""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from keytide.definition.row_merging import merged_fields
from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys
from keytide.predicate.values.row_expression import RowExpression, row_expression
from keytide.types import Field

__all__ = ["ComputedColumn", "check_post_merge", "computed_columns"]


@dataclass(frozen=True)
class ComputedColumn:
    """A column, and the expression that computes its value when a row is merged."""

    field: Field
    expression: RowExpression

    @property
    def told(self) -> str:
        """The option that defines it, for messages."""
        key = keys.key_of(keys.POST_MERGE_EXPRESSION, self.field.name)
        return f"'{key}' = {self.expression.text!r}"


def computed_columns(schema: TableSchema, options: TableOptions) -> tuple[ComputedColumn, ...]:
    """The computed columns, each after those that it reads.

    REQUIRES: the options have been checked.
    """
    texts = options.by_columns(keys.POST_MERGE_EXPRESSION)
    if not texts:
        return ()
    read = {name: row_expression(text) for name, text in texts.items()}
    order = TopologicalSorter(
        {name: [c for c in each.columns if c in read] for name, each in read.items()}
    )
    return tuple(ComputedColumn(schema.field(n), read[n]) for n in order.static_order())


def check_post_merge(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for expressions or columns that cannot be used for a computed column."""
    merged = {field.name for field in merged_fields(schema, options)}
    for name, text in options.by_columns(keys.POST_MERGE_EXPRESSION).items():
        told = f"'{keys.key_of(keys.POST_MERGE_EXPRESSION, name)}' = {text!r}"
        if not options.merges_rows:
            raise InvalidError(
                f"{told} computes a column when a row is merged with an earlier one; set "
                f"'{keys.UPSERT_MODE}' = 'partial', or remove the option"
            )
        if name not in merged - {options.delete_record_column}:
            raise InvalidError(
                f"{told}: {name!r} is not a column that is merged: it does not exist, or it is a "
                "key column, a sequence field or a column that marks rows; use another column"
            )
        if not schema.field(name).type.nullable:
            raise InvalidError(
                f"{told}: {name!r} is {schema.field(name).type.sql()}, but an expression can "
                "return NULL; make the column nullable"
            )
        _check_expression(schema, name, told, text)
    try:
        computed_columns(schema, options)
    except CycleError as error:
        names = ", ".join(map(repr, dict.fromkeys(error.args[1])))
        raise InvalidError(
            f"'{keys.POST_MERGE_EXPRESSION}': columns {names} are computed from each other; "
            "change one of the expressions"
        ) from error


def _check_expression(schema: TableSchema, name: str, told: str, text: str) -> None:
    try:
        expression = row_expression(text)
        for column in expression.columns:
            if column not in schema.by_name:
                raise InvalidError(
                    f"it reads {column!r}, which does not exist; columns: {', '.join(schema.names)}"
                )
        if name in expression.columns:
            raise InvalidError("a column cannot be computed from itself; use other columns")
        expression.check(schema.field(name), schema.select(expression.columns))
    except InvalidError as error:
        raise InvalidError(f"{told}: {error}") from error
