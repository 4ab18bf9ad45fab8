"""Row predicates: small frozen trees, created by a few functions that keep them flat.

`matching` evaluates them, and `text` formats them. Chains of AND and of OR are one node each, so
the depth of a tree is the number of alternations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from typing import Any, TypeAlias

import pyarrow as pa

from keytide.base.dataclass import dataclass


@dataclass(frozen=True)
class Comparison:
    """`column operator value`, with the value in the column's own type, see `plain`."""

    column: str
    operator: str
    value: Any


@dataclass(frozen=True)
class In:
    """`column IN (values)`. NULL is not among the values. There may be no values."""

    column: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class IsNull:
    """`column IS NULL`."""

    column: str


@dataclass(frozen=True)
class Like:
    """`column LIKE pattern`, with `%` and `_`. A backslash escapes the next character."""

    column: str
    pattern: str


@dataclass(frozen=True)
class Not:
    """Negation. Unknown stays unknown."""

    term: Predicate


@dataclass(frozen=True)
class And:
    """Every term is true."""

    terms: tuple[Predicate, ...]


@dataclass(frozen=True)
class Or:
    """At least one term is true."""

    terms: tuple[Predicate, ...]


Predicate: TypeAlias = Comparison | In | IsNull | Like | Not | And | Or

DEPTH_MAX = 100
"""The maximum number of alternations of AND, OR and NOT, because evaluation is recursive."""


def plain(value: pa.Scalar) -> Any:
    """A column's value as predicates store it: a Python value, or ticks of a timestamp's unit."""
    # Python's datetime supports neither nanoseconds nor years after 9999.
    return value.value if pa.types.is_timestamp(value.type) else value.as_py()


def conjuncts(predicate: Predicate | None) -> tuple[Predicate, ...]:
    """The terms that must all be true. Empty without a predicate."""
    if predicate is None:
        return ()
    return predicate.terms if isinstance(predicate, And) else (predicate,)


def conjunction(terms: Iterable[Predicate]) -> Predicate | None:
    """All terms as one predicate. None without terms. `!=` terms of a column become one NOT IN."""
    flat = [part for term in terms for part in conjuncts(term)]
    if len(flat) <= 1:
        return flat[0] if flat else None
    merged = _with_one_list(flat, "!=")
    return And(merged) if len(merged) > 1 else merged[0]


def disjunction(terms: Iterable[Predicate]) -> Predicate:
    """At least one of the terms. Not empty. `=` terms of a column become one IN."""
    flat = [part for term in terms for part in (term.terms if isinstance(term, Or) else (term,))]
    merged = _with_one_list(flat, "=")
    return Or(merged) if len(merged) > 1 else merged[0]


def negation(term: Predicate) -> Predicate:
    """The negation of a term. Unknown stays unknown."""
    return term.term if isinstance(term, Not) else Not(term)


def columns_of(predicate: Predicate | None) -> frozenset[str]:
    """The columns that a predicate uses."""
    if predicate is None:
        return frozenset()
    if isinstance(predicate, And | Or):
        return frozenset().union(*(columns_of(term) for term in predicate.terms))
    if isinstance(predicate, Not):
        return columns_of(predicate.term)
    return frozenset({predicate.column})


def depth_of(predicate: Predicate) -> int:
    """The nesting depth of the terms."""
    if isinstance(predicate, And | Or):
        return 1 + max(map(depth_of, predicate.terms), default=0)
    return 1 + depth_of(predicate.term) if isinstance(predicate, Not) else 1


def equal_values(terms: Iterable[Predicate], column: str) -> tuple[Any, ...] | None:
    """The only values that `column` can have if all terms are true. None if it is not pinned."""
    for term in terms:
        if isinstance(term, IsNull) and term.column == column:
            return (None,)
        listed = _listed(term, "=")
        if listed is not None and listed[0] == column:
            return listed[1]
    return None


def without_columns(predicate: Predicate | None, columns: Container[str]) -> Predicate | None:
    """The terms of a conjunction that use none of the columns: a weaker predicate."""
    terms = conjuncts(predicate)
    return conjunction(t for t in terms if not any(name in columns for name in columns_of(t)))


def _listed(term: Predicate, operator: str) -> tuple[str, tuple[Any, ...]] | None:
    """The column and the values of an equality (`=`) or of an inequality (`!=`)."""
    if isinstance(term, Comparison) and term.operator == operator:
        return term.column, (term.value,)
    if operator == "!=":
        return _listed(term.term, "=") if isinstance(term, Not) else None
    return (term.column, term.values) if isinstance(term, In) else None


def _with_one_list(terms: list[Predicate], operator: str) -> tuple[Predicate, ...]:
    """The terms, with those that list values of the same column merged, at the position of the
    first.
    """
    found = [_listed(term, operator) for term in terms]
    columns = Counter(part[0] for part in found if part is not None)
    values: dict[str, dict[Any, None]] = {}
    for part in found:
        if part is not None:
            values.setdefault(part[0], {}).update(dict.fromkeys(part[1]))
    merged: list[Predicate] = []
    for term, part in zip(terms, found, strict=True):
        if part is None or columns[part[0]] == 1:
            merged.append(term)
        elif part[0] in values:
            column, distinct = part[0], tuple(values.pop(part[0]))
            if len(distinct) == 1:
                merged.append(Comparison(column, operator, distinct[0]))
            else:
                listed = In(column, distinct)
                merged.append(listed if operator == "=" else Not(listed))
    return tuple(merged)
