"""CHECK constraints: conditions of one row, as a table stores them.

A string in the grammar of `where` has the same meaning as in a scan. Any other string is a SQL
expression that returns a BOOLEAN. It may compare columns with each other, calculate and call
functions, as long as it always gives the same value for the same row.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.base.row_engine import duckdb_expression
from keytide.errors import InvalidError, KeytideError, NotFoundError
from keytide.format.arrow import to_arrow
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys
from keytide.predicate.matching import row_filter
from keytide.predicate.predicate import Predicate, columns_of
from keytide.predicate.values.row_expression import RowExpression, row_expression
from keytide.predicate.where import parse_where
from keytide.types import AtomicType, Field, arrow_schema

__all__ = ["Constraint", "constraint_of", "constraint_texts", "constraints_of", "expressions_in"]

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Constraint:
    """A condition that every written row must satisfy. `fields` are the columns that it uses."""

    name: str
    text: str
    condition: Predicate | RowExpression
    fields: tuple[Field, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that it uses."""
        return tuple(field.name for field in self.fields)

    def fails(self, rows: pl.DataFrame) -> Flags:
        """For which rows it is false or cannot be computed. If it is NULL, a row passes."""
        if isinstance(self.condition, RowExpression):
            given = to_arrow(rows.select(self.columns), arrow_schema(self.fields))
            holds, failed = self.condition.tried(given, _BOOLEAN)
            return _is_false(pl.Series(holds)) | failed
        return _is_false(rows.select(row_filter(self.condition, self.fields)).to_series())


_BOOLEAN = Field(-1, "holds", AtomicType("BOOLEAN"))


def _is_false(holds: pl.Series) -> Flags:
    found: Flags = np.asarray(holds.fill_null(True)) == False  # noqa: E712  # compares element by element
    return found


def constraint_texts(options: TableOptions) -> dict[str, str]:
    """The stored conditions by the names of their constraints."""
    return options.by_columns(keys.CONSTRAINT)


def constraints_of(
    fields: tuple[Field, ...], options: TableOptions, table: str
) -> Mapping[str, Constraint]:
    """The constraints of a table, by name. Raises like `constraint_of`."""
    texts = constraint_texts(options)
    return {name: constraint_of(name, text, fields, table) for name, text in texts.items()}


def constraint_of(name: str, text: str, fields: tuple[Field, ...], table: str) -> Constraint:
    """The constraint for a string, over the columns of a table.

    Raises `InvalidError` if it does not parse or fit, does not return a BOOLEAN, or depends on more
    than the columns of a row. Raises `NotFoundError` for an unknown column.
    """
    told = f"{table}: constraint {name!r}"
    condition, read = _condition(text, fields, told)
    return Constraint(name, text, condition, read)


def expressions_in(schema: TableSchema) -> dict[str, tuple[str, ...]]:
    """The columns that the constraints of a definition use, by their options.

    A constraint that does not parse uses none.
    """
    found = {}
    for name, text in constraint_texts(TableOptions.parse(schema.options)).items():
        with suppress(KeytideError):
            key = keys.key_of(keys.CONSTRAINT, name)
            found[key] = constraint_of(name, text, schema.fields, "").columns
    return found


@lru_cache(maxsize=256)
def _condition(
    text: str, fields: tuple[Field, ...], told: str
) -> tuple[Predicate | RowExpression, tuple[Field, ...]]:
    try:
        predicate = parse_where(text, fields, told)
    except (InvalidError, NotFoundError):  # SQL is case-insensitive
        return _expression(text, fields, told)
    read = columns_of(predicate)
    return predicate, tuple(field for field in fields if field.name in read)


def _expression(
    text: str, fields: tuple[Field, ...], told: str
) -> tuple[RowExpression, tuple[Field, ...]]:
    by_name = {field.name: field for field in fields}
    try:
        expression = row_expression(duckdb_expression(text, tuple(by_name)))
        read = expression.read_of(by_name)
        expression.check_condition(read)
    except KeytideError as error:
        raise type(error)(f"table {told}: {error}") from error
    return expression, read
