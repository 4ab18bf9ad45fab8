"""Conditions that a database takes over: those that mean there what they mean here.

A column of a database may hold values that are none of its type here, such as a text among
numbers, and a database has an answer for them too. They meet no comparison that it takes over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

import pyarrow as pa

from keytide.dml.database import Database, DatabaseColumn, DatabaseTable, quoted
from keytide.table.conditions.predicate import And, Comparison, In, IsNull, Like, Not, Or, Predicate

__all__ = ["Condition", "condition_of"]

_OPPOSITES = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_VALUES_MAX = 1000
"""Longer lists stay here; a statement has a limited number of parameters."""


@dataclass(frozen=True)
class Condition:
    """What stands behind WHERE, and its parameters in one row; both are empty for no terms."""

    text: str = ""
    given: pa.RecordBatch | None = None


def condition_of(
    database: Database, table: DatabaseTable, terms: Sequence[Predicate]
) -> tuple[Condition, tuple[Predicate, ...]]:
    """The terms that a database takes over as one condition on `t`, and those that it does not."""
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
    """A term does not mean the same in the database."""


@dataclass
class _Writer:
    database: Database
    table: DatabaseTable
    given: list[pa.Array] = field(default_factory=list)

    def write(self, predicate: Predicate) -> str:
        """A predicate as SQL that is true where it is. Raises `_OpenError`.

        Where it is unknown the SQL may be false: it has no NOT around what may be unknown.
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
        """SQL that is true where a predicate is false."""
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
        """A comparison that a value which is none of the column's type does not meet."""
        fits = self.database.fits(column, f"t.{quoted(column.name)}")
        return comparison if fits is None else f"{comparison} AND {fits}"

    def _values(self, column: DatabaseColumn, values: Sequence[Any]) -> Iterator[str]:
        for value in values:
            if isinstance(value, str) and "\0" in value:
                raise _OpenError  # which PostgreSQL knows in no text
            if isinstance(value, float) and isnan(value):
                raise _OpenError  # which SQLite takes for NULL
            array = pa.array([value], column.type)
            self.given.append(self.database.staged(array, column))
            mark = self.database.placeholder(len(self.given))
            yield self.database.write_expression(column, mark)
