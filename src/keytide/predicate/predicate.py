"""Row predicates: small frozen trees, and their evaluation on rows and on the bounds of files.

A few functions create the trees and keep them flat. Chains of AND and of OR are one node each, so
the depth of a tree is the number of alternations. `condition` reads and formats them.

`row_filter` evaluates a predicate on rows with SQL's three-valued logic. `may_match` evaluates it
on statistics: whether a file whose columns are between a minimum and a maximum can contain a
matching row. `may_match` never returns false incorrectly, and unknown bounds mean true.

Values compare as in primary keys (docs/semantics.md): NaN is the largest value and equals itself,
-0.0 equals 0.0, and CHAR compares without trailing blanks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import and_, or_
from typing import Any, TypeAlias, TypeVar

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.errors import InvalidError, NotFoundError
from keytide.format.arrow import polars_schema
from keytide.types import Field

# -- the trees -------------------------------------------------------------------------------------


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

FLIPPED = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""The operators of comparisons, each with that of the comparison whose sides are exchanged."""

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


# -- columns by name -------------------------------------------------------------------------------


def field_of(name: str, fields: Mapping[str, Field], table: str) -> Field:
    """The column with that name. Raises `NotFoundError`, which lists the existing columns."""
    if name not in fields:
        raise NotFoundError(f"table {table} has no column {name!r}; columns: {', '.join(fields)}")
    return fields[name]


def column_of(name: str, columns: Iterable[str], table: str) -> str:
    """The column with that name in a statement, which may spell it in another case.

    Raises `NotFoundError`, and `InvalidError` if there are several.
    """
    known = list(columns)
    if name in known:
        return name
    found = [column for column in known if column.lower() == name.lower()]
    if not found:
        raise NotFoundError(f"table {table} has no column {name!r}; columns: {', '.join(known)}")
    if len(found) > 1:
        raise InvalidError(f"table {table}: {name!r} is ambiguous: {' or '.join(map(repr, found))}")
    return found[0]


# -- evaluation ------------------------------------------------------------------------------------


T = TypeVar("T")


def row_filter(predicate: Predicate, fields: Sequence[Field]) -> pl.Expr:
    """The predicate over rows. `filter` drops rows for which it is unknown."""
    columns = _Columns.of(fields)

    def build(node: Predicate) -> pl.Expr:
        if isinstance(node, Comparison):
            return _COMPARE[node.operator](columns.compared(node.column), columns.literal(node))
        if isinstance(node, In):
            return columns.compared(node.column).is_in(columns.values(node).implode())
        if isinstance(node, IsNull):
            return pl.col(node.column).is_null()
        if isinstance(node, Like):
            wildcards = {"%": ".*", "_": "."}
            parts = (
                wildcards[character]
                if is_wildcard
                else ("\\" + character if character in r"\.+*?()|[]{}^$#&-~" else character)
                for character, is_wildcard in like_parts(node.pattern)
            )
            return pl.col(node.column).str.contains("(?s)^" + "".join(parts) + "$")
        if isinstance(node, Not):
            return ~build(node.term)
        operator = and_ if isinstance(node, And) else or_
        return balanced(operator, [build(term) for term in node.terms])

    return build(predicate)


def may_match(predicate: Predicate, fields: Sequence[Field]) -> pl.Expr:
    """Over a frame with `<column>.min`, `.max`, `.nulls` and `rows`: whether any row can match.

    True for columns without statistics, and for terms that bounds cannot decide.
    """
    columns = _Columns.of(fields)

    def build(node: Predicate) -> pl.Expr:
        if isinstance(node, And | Or):
            operator = and_ if isinstance(node, And) else or_
            return balanced(operator, [build(term) for term in node.terms])
        if isinstance(node, Not):
            negated = _negated(node.term)
            return pl.lit(value=True) if negated is None else build(negated)
        if isinstance(node, IsNull):
            return (pl.col(f"{node.column}.nulls") > 0).fill_null(value=True)
        if isinstance(node, Like):
            prefix = _like_prefix(node.pattern)
            if not prefix:
                return pl.lit(value=True)
            lower = Comparison(node.column, ">=", prefix)
            last = ord(prefix[-1])
            if last >= 0xD7FF:  # the next code point may not exist, and the lower bound suffices
                return build(lower)
            upper = Comparison(node.column, "<", prefix[:-1] + chr(last + 1))
            return build(And((lower, upper)))
        low, high = columns.low(node.column), pl.col(f"{node.column}.max")
        if isinstance(node, In):
            values = pl.lit(columns.values(node).sort())
            below = values.search_sorted(low, side="left")
            possible = values.search_sorted(high, side="right") > below
            possible = pl.when(low.is_null() | high.is_null()).then(None).otherwise(possible)
        else:
            possible = _within(node, columns)
        has_values = (pl.col(f"{node.column}.nulls") < pl.col("rows")).fill_null(value=True)
        return possible.fill_null(value=True) & has_values

    return build(predicate)


def bounds_tell_of(predicate: Predicate) -> bool:
    """Whether there are any bounds for which `may_match` is false."""
    if isinstance(predicate, And | Or):
        parts = map(bounds_tell_of, predicate.terms)
        return any(parts) if isinstance(predicate, And) else all(parts)
    if isinstance(predicate, Not):
        negated = _negated(predicate.term)
        return negated is not None and bounds_tell_of(negated)
    return not isinstance(predicate, Like) or bool(_like_prefix(predicate.pattern))


def balanced(operator: Callable[[T, T], T], terms: Sequence[T]) -> T:
    """Terms combined by an associative operator into a tree that is as flat as possible."""
    # Recursive code would overflow the stack on a chain of thousands of terms.
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        terms = [*(operator(a, b) for a, b in pairs), *terms[len(terms) // 2 * 2 :]]
    return terms[0]


def like_parts(pattern: str) -> list[tuple[str, bool]]:
    """The characters of a LIKE pattern, and whether each is a wildcard."""
    parts = []
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            parts.append((next(characters, "\\"), False))
        else:
            parts.append((character, character in "%_"))
    return parts


@dataclass(frozen=True)
class _Columns:
    """Columns and literals, prepared so that Polars compares them correctly."""

    types: pl.Schema
    padded: frozenset[str]
    """The CHAR columns, which compare without trailing blanks."""

    @classmethod
    def of(cls, fields: Sequence[Field]) -> _Columns:
        chars = (f.name for f in fields if f.type.root == "CHAR")
        return cls(polars_schema(fields), frozenset(chars))

    def compared(self, name: str) -> pl.Expr:
        return pl.col(name).str.strip_chars_end(" ") if name in self.padded else pl.col(name)

    def literal(self, node: Comparison) -> pl.Expr:
        value = node.value.rstrip(" ") if node.column in self.padded else node.value
        return pl.lit(value, dtype=self.types[node.column])

    def values(self, node: In) -> pl.Series:
        values = pl.Series(node.values, dtype=self.types[node.column])
        return values.str.strip_chars_end(" ") if node.column in self.padded else values

    def low(self, name: str) -> pl.Expr:
        low = pl.col(f"{name}.min")
        if name in self.padded:
            # "a\n" is lower than "a ", but without trailing blanks it is higher. Up to here, both
            # orders agree.
            return low.str.replace(r"(?s)[\x00-\x20].*$", "")
        return low


def _within(node: Comparison, columns: _Columns) -> pl.Expr:
    value = columns.literal(node)
    low, high = columns.low(node.column), pl.col(f"{node.column}.max")
    if node.operator == "=":
        return (low <= value) & (high >= value)
    if node.operator == "!=":
        # Only a file in which every value is this one has no other value.
        return ~((pl.col(f"{node.column}.min") == value) & (high == value))
    return _COMPARE[node.operator](low if node.operator in ("<", "<=") else high, value)


_COMPARE: dict[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_NEGATED = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def _negated(term: Predicate) -> Predicate | None:
    if isinstance(term, Comparison):
        return Comparison(term.column, _NEGATED[term.operator], term.value)
    if isinstance(term, Not):
        return term.term
    if isinstance(term, Or):
        return conjunction(map(negation, term.terms))
    if isinstance(term, And):
        return disjunction(map(negation, term.terms))
    return None


def _like_prefix(pattern: str) -> str:
    parts = like_parts(pattern)
    end = next((i for i, (_, is_wildcard) in enumerate(parts) if is_wildcard), len(parts))
    return "".join(character for character, _ in parts[:end])
