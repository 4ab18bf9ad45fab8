"""Converts conditions from callers to predicates, once, where a call enters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import polars as pl
import pyarrow.compute as pc

from keytide.base.arguments import shown
from keytide.errors import InvalidError
from keytide.predicate.arrow_expression import read_arrow_expression
from keytide.predicate.literals import comparison, equalities, known_values, literal_of
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
    conjunction,
    disjunction,
    negation,
)
from keytide.predicate.where import field_of, parse_where, read_expression
from keytide.types import Field

__all__ = ["Condition", "predicate_of"]

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
        return self._term(node, field_of(node.column, self.fields, self.table))

    def _term(self, node: Comparison | In | IsNull | Like, field: Field) -> Predicate:
        if isinstance(node, IsNull):
            return node
        if isinstance(node, In):
            return equalities(field, self._values(self._many(node.values), field))
        if isinstance(node, Like):
            if field.type.root not in ("CHAR", "VARCHAR") or not isinstance(node.pattern, str):
                raise self._wrong(
                    f"has {shown(node)}: LIKE needs a string pattern and a string column, and "
                    f"column {field.name} is {field.type.sql()}"
                )
            return node
        if node.operator not in _OPERATORS:
            raise self._wrong(
                f"has the operator {shown(node.operator)}; expected one of {', '.join(_OPERATORS)}"
            )
        return comparison(field, node.operator, *self._values([node.value], field))

    def _values(self, values: Sequence[Any], field: Field) -> list[Any]:
        literals = [literal_of(value, field) for value in values]
        return known_values(literals, field, self.table, "the condition")

    def _many(self, members: Any) -> Sequence[Any]:
        if not isinstance(members, tuple | list):
            raise self._wrong(f"has {shown(members)}; expected a tuple")
        return members

    def _wrong(self, what: str) -> InvalidError:
        return InvalidError(f"table {self.table}: the condition {what}")


_OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
