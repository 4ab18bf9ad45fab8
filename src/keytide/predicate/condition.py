"""Conditions of callers and CHECK constraints, converted to predicates once, where a call enters.

A CHECK constraint is a condition of one row, as a table stores it. A string in the grammar of
`where` has the same meaning as in a scan. Any other string is a SQL expression that returns a
BOOLEAN. It may compare columns with each other, calculate and call functions, as long as it always
gives the same value for the same row.

A predicate is also formatted as a string for people. `where` parses it into the same predicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow.compute as pc

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass
from keytide.base.row_engine import duckdb_expression
from keytide.errors import InvalidError, KeytideError, NotFoundError
from keytide.format.arrow import to_arrow
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys
from keytide.predicate.arrow_expression import read_arrow_expression
from keytide.predicate.literals import Literal, comparison, equalities, known_values, literal_of
from keytide.predicate.polars_expression import read_expression
from keytide.predicate.predicate import (
    DEPTH_MAX,
    And,
    Comparison,
    In,
    IsNull,
    Like,
    Not,
    Or,
    Predicate,
    columns_of,
    conjunction,
    disjunction,
    field_of,
    negation,
    row_filter,
)
from keytide.predicate.row_expression import RowExpression, row_expression
from keytide.predicate.where import parse_where
from keytide.types import AtomicType, Field, arrow_schema, quoted

# -- conversion to predicates ----------------------------------------------------------------------


Condition: TypeAlias = str | Predicate | pl.Expr | pc.Expression
"""A string in the language of `where`, a tree of `predicate`, or an expression of Polars or
Arrow.
"""


def predicate_of(where: Condition, fields: Sequence[Field], table: str) -> Predicate:
    """A condition over a table's columns, with values in the types of the columns.

    Raises `InvalidError` for a condition that does not parse or fit, and `NotFoundError` for an
    unknown column.
    """
    if isinstance(where, pl.Expr):
        where = read_expression(where, table)
    elif isinstance(where, pc.Expression):
        where = read_arrow_expression(where, table)
    by_name = {field.name: field for field in fields}
    if isinstance(where, Predicate):
        return _Typing(by_name, table).typed(where)
    return parse_where(where, fields, table)


@dataclass(frozen=True)
class _Typing:
    """Rebuilds a tree as the parser would have created it."""

    fields: Mapping[str, Field]
    table: str

    def typed(self, node: Predicate, depth: int = 1) -> Predicate:
        if depth > DEPTH_MAX:
            raise self._wrong(f"is nested more than {DEPTH_MAX} levels deep; flatten it")
        if isinstance(node, Not):
            return negation(self.typed(node.term, depth + 1))
        if isinstance(node, And | Or):
            terms = [self.typed(term, depth + 1) for term in self._many(node.terms)]
            if not terms:
                raise self._wrong(
                    f"has an {type(node).__name__} without terms; give it at least one"
                )
            return conjunction(terms) or terms[0] if isinstance(node, And) else disjunction(terms)
        is_term = isinstance(node, Comparison | In | IsNull | Like)
        if not is_term or not isinstance(node.column, str):
            raise self._wrong(f"has {shown(node)} as a term; expected predicates")

        field = field_of(node.column, self.fields, self.table)
        if isinstance(node, IsNull):
            return node
        if isinstance(node, Like):
            if field.type.root not in ("CHAR", "VARCHAR") or not isinstance(node.pattern, str):
                raise self._wrong(
                    f"has {shown(node)}: LIKE needs a string pattern and a string column, and "
                    f"column {field.name} is {field.type.sql()}"
                )
            return node
        if isinstance(node, Comparison) and node.operator not in _OPERATORS:
            raise self._wrong(
                f"has the operator {shown(node.operator)}; expected one of {', '.join(_OPERATORS)}"
            )
        given = self._many(node.values) if isinstance(node, In) else [node.value]
        literals = [literal_of(value, field) for value in given]
        values = known_values(literals, field, self.table, "the condition")
        if isinstance(node, In):
            return equalities(field, values)
        return comparison(field, node.operator, *values)

    def _many(self, members: Any) -> Sequence[Any]:
        if not isinstance(members, tuple | list):
            raise self._wrong(f"has {shown(members)}; expected a tuple")
        return members

    def _wrong(self, what: str) -> InvalidError:
        return InvalidError(f"table {self.table}: the condition {what}")


_OPERATORS = ("=", "!=", "<", "<=", ">", ">=")


# -- CHECK constraints -----------------------------------------------------------------------------


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
            values, failed = self.condition.tried(given, _BOOLEAN)
            holds = pl.Series(values)
        else:
            holds = rows.select(row_filter(self.condition, self.fields)).to_series()
            failed = np.zeros(rows.height, np.bool_)
        is_false: Flags = np.asarray(holds.fill_null(True)) == False  # noqa: E712  # compares element by element
        return is_false | failed


_BOOLEAN = Field(-1, "holds", AtomicType("BOOLEAN"))


def constraints_of(
    fields: tuple[Field, ...], options: TableOptions, table: str
) -> Mapping[str, Constraint]:
    """The constraints of a table, by name. Raises like `constraint_of`."""
    texts = options.constraint_texts
    return {name: constraint_of(name, text, fields, table) for name, text in texts.items()}


def constraint_of(name: str, text: str, fields: tuple[Field, ...], table: str) -> Constraint:
    """The constraint for a string, over the columns of a table.

    Raises `InvalidError` if it does not parse or fit, does not return a BOOLEAN, or depends on more
    than the columns of a row. Raises `NotFoundError` for an unknown column.
    """
    subject = f"{table}: constraint {name!r}"
    condition, read = _condition(text, fields, subject)
    return Constraint(name, text, condition, read)


def expressions_in(schema: TableSchema) -> dict[str, tuple[str, ...]]:
    """The columns that the constraints of a definition use, by their options.

    A constraint that does not parse uses none.
    """
    found = {}
    for name, text in TableOptions.parse(schema.options).constraint_texts.items():
        with suppress(KeytideError):
            key = keys.key_of(keys.CONSTRAINT, name)
            found[key] = constraint_of(name, text, schema.fields, "").columns
    return found


@lru_cache(maxsize=256)
def _condition(
    text: str, fields: tuple[Field, ...], subject: str
) -> tuple[Predicate | RowExpression, tuple[Field, ...]]:
    with suppress(InvalidError, NotFoundError):  # SQL is case-insensitive
        predicate = parse_where(text, fields, subject)
        used = columns_of(predicate)
        return predicate, tuple(field for field in fields if field.name in used)
    by_name = {field.name: field for field in fields}
    try:
        expression = row_expression(duckdb_expression(text, tuple(by_name)))
        read = expression.read_of(by_name)
        expression.check_condition(read)
    except KeytideError as error:
        raise type(error)(f"table {subject}: {error}") from error
    return expression, read


# -- text of predicates ----------------------------------------------------------------------------


def text_of(predicate: Predicate, fields: Sequence[Field]) -> str:
    """A predicate over columns as a condition of `Table.scan(where=...)`."""
    by_name = {field.name: field for field in fields}

    def term(node: Comparison | In | IsNull | Like, no: str = "") -> str:
        name = quoted(node.column)
        if isinstance(node, Comparison):
            return f"{name} {node.operator} {literal_of(node.value, by_name[node.column])}"
        if isinstance(node, In):
            values = (str(literal_of(value, by_name[node.column])) for value in node.values)
            return f"{name} {no}IN ({', '.join(values)})"
        if isinstance(node, IsNull):
            return f"{name} IS {no}NULL"
        return f"{name} {no}LIKE {Literal('TEXT', node.pattern)}"

    def whole(node: Predicate) -> str:
        if isinstance(node, And | Or):
            parts = (f"({whole(t)})" if isinstance(t, And | Or) else whole(t) for t in node.terms)
            return (" AND " if isinstance(node, And) else " OR ").join(parts)
        if not isinstance(node, Not):
            return term(node)
        if isinstance(node.term, In | IsNull | Like):
            return term(node.term, "NOT ")
        return f"NOT ({whole(node.term)})"

    return whole(predicate)
