"""Pushdown of conditions that have the same meaning in the database as in Keytide.

A database column can contain values that do not have its type, such as a string among numbers, and
the database can compare these too. Such values match no comparison that is pushed down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

import pyarrow as pa

from keytide.dml.database import Database, DatabaseColumn, DatabaseTable, quoted
from keytide.predicate.predicate import And, Comparison, In, IsNull, Like, Not, Or, Predicate

__all__ = ["Condition", "condition_of"]

_OPPOSITES = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_VALUES_MAX = 1000
"""Longer lists are not pushed down, because a statement has a limited number of parameters."""


@dataclass(frozen=True)
class Condition:
    """A WHERE condition and its parameters in one row. Both are empty if there are no terms."""

    text: str = ""
    given: pa.RecordBatch | None = None


def condition_of(
    database: Database, table: DatabaseTable, terms: Sequence[Predicate]
) -> tuple[Condition, tuple[Predicate, ...]]:
    """The terms that the database evaluates, as one condition on `t`, and the remaining terms."""
    writer, texts, left = _Writer(database, table), [], []
    for term in terms:
        known = len(writer.given)
        try:
            texts.append(writer.write(term))
        except _OpenError:
            del writer.given[known:]
            left.append(term)
    names = [f"p{i}" for i in range(len(writer.given))]
    given = pa.record_batch(writer.given, names) if names else None
    return Condition(" AND ".join(f"({text})" for text in texts), given), tuple(left)


class _OpenError(Exception):
    """A term does not have the same meaning in the database."""


@dataclass
class _Writer:
    database: Database
    table: DatabaseTable
    given: list[pa.Array] = field(default_factory=list)

    def write(self, predicate: Predicate) -> str:
        """A predicate as SQL that is true in the same cases. Raises `_OpenError`.

        If the predicate is NULL, the SQL can be false: it contains no NOT of a nullable condition.
        """
        if isinstance(predicate, And | Or):
            word = " AND " if isinstance(predicate, And) else " OR "
            return word.join(f"({self.write(term)})" for term in predicate.terms)
        if isinstance(predicate, Not):
            return self._opposite(predicate.term)
        if isinstance(predicate, IsNull):
            return f"t.{quoted(predicate.column)} IS NULL"
        if isinstance(predicate, Comparison):
            return self._comparison(predicate)
        if isinstance(predicate, Like):
            raise _OpenError
        return self._in(predicate, "IN")

    def _opposite(self, predicate: Predicate) -> str:
        """SQL that is true if a predicate is false."""
        if isinstance(predicate, And | Or):
            word = " OR " if isinstance(predicate, And) else " AND "
            return word.join(f"({self._opposite(term)})" for term in predicate.terms)
        if isinstance(predicate, Not):
            return self.write(predicate.term)
        if isinstance(predicate, IsNull):
            return f"t.{quoted(predicate.column)} IS NOT NULL"
        if isinstance(predicate, Comparison):
            return self._comparison(replace(predicate, operator=_OPPOSITES[predicate.operator]))
        if isinstance(predicate, Like):
            raise _OpenError
        return self._in(predicate, "NOT IN")

    def _comparison(self, term: Comparison) -> str:
        column = self.table.column(term.column)
        is_ordered = term.operator not in ("=", "!=")
        if not (column.is_ordered if is_ordered else column.is_equal):
            raise _OpenError
        name = f"t.{quoted(column.name)}"
        beside = self.database.compared(column, name, is_ordered=is_ordered)
        operator = "<>" if term.operator == "!=" else term.operator
        value = next(self._values(column, [term.value]))
        return self._of_its_type(column, f"{beside} {operator} {value}")

    def _in(self, term: In, operator: str) -> str:
        column = self.table.column(term.column)
        if not column.is_equal or len(term.values) > _VALUES_MAX:
            raise _OpenError
        name = f"t.{quoted(column.name)}"
        beside = self.database.compared(column, name, is_ordered=False)
        if not term.values:
            return "1 = 0" if operator == "IN" else f"{name} IS NOT NULL"
        values = ", ".join(self._values(column, term.values))
        return self._of_its_type(column, f"{beside} {operator} ({values})")

    def _of_its_type(self, column: DatabaseColumn, comparison: str) -> str:
        """A comparison that is never true for a value that does not have the column's type."""
        fits = self.database.fits(column, f"t.{quoted(column.name)}")
        return comparison if fits is None else f"{comparison} AND {fits}"

    def _values(self, column: DatabaseColumn, values: Sequence[Any]) -> Iterator[str]:
        for value in values:
            if isinstance(value, str) and "\0" in value:
                raise _OpenError  # PostgreSQL supports it in no string
            if isinstance(value, float) and isnan(value):
                raise _OpenError  # SQLite treats it as NULL
            array = pa.array([value], column.type)
            self.given.append(self.database.staged(array, column))
            mark = self.database.placeholder(len(self.given))
            yield self.database.write_expression(column, mark)
