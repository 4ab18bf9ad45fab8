"""The cases of row-level changes, and the tables that they are tried on.

Tables of the cases have no key. For kinds of tables that need one, it is made of columns that stay
unique and without NULL all through the case, as DuckDB plays it; where there are none, and nothing
is inserted by the statement, of a column that is added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data/cases/dml.json").read_text()
)
ADDED = "added_key"

# What the cases call errors, and what Keytide or the engine says then.
MESSAGES = {
    "table does not exist": "does not exist",
    "scalar subquery returned more than one row": "(?i)more than one row|TOO_MANY_ROWS",
    "SET target column zz does not exist": "has no column 'zz'",
    "column a is assigned more than once": "set twice",
    "merge column zz does not exist in the target table": "has no column 'zz'",
    "column types do not match for MERGE case 0": "CAST",
}


def message_of(case: dict[str, Any]) -> str:
    error = case["expect_error"]
    return MESSAGES.get(error, error)


@dataclass(frozen=True)
class Definition:
    """A table of a case: its CREATE TABLE, and the columns of a key, if one can be found."""

    name: str
    create: exp.Create
    key: tuple[str, ...]


def definitions(case: dict[str, Any]) -> dict[str, Definition]:
    """The tables of a case, by name."""
    played = Played(case)
    found = {}
    for text in case["setup_sql"]:
        tree = sqlglot.parse_one(text, dialect="duckdb")
        if isinstance(tree, exp.Create):
            name = tree.this.this.name
            found[name] = Definition(name, tree, played.key_of(name))
    return found


class Played:
    """What the tables of a case hold after each of its statements, by DuckDB."""

    def __init__(self, case: dict[str, Any]) -> None:
        self._states: dict[str, list[list[tuple[Any, ...]]]] = {}
        self._columns: dict[str, list[str]] = {}
        self._inserted: set[str] = set()
        with duckdb.connect() as connection:
            for text in case["setup_sql"]:
                connection.execute(text)
                self._look(connection)
            try:
                before = {name: len(states[-1]) for name, states in self._states.items()}
                connection.execute(case["statement"])
                self._look(connection)
                if "merge" in case["tags"]:
                    self._inserted = {n for n in before if n == _target(case["statement"])}
            except duckdb.Error:
                if "merge" in case["tags"]:
                    self._inserted = {_target(case["statement"])}

    def key_of(self, name: str) -> tuple[str, ...]:
        columns = self._columns[name]
        for size in range(1, len(columns) + 1):
            for places in combinations(range(len(columns)), size):
                if all(_is_key(rows, places) for rows in self._states[name]):
                    return tuple(columns[place] for place in places)
        return () if name in self._inserted else (ADDED,)

    def _look(self, connection: duckdb.DuckDBPyConnection) -> None:
        for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall():
            answer = connection.execute(f"SELECT * FROM {name}")
            self._columns[name] = [column[0] for column in answer.description]
            self._states.setdefault(name, []).append(answer.fetchall())


def _is_key(rows: Sequence[tuple[Any, ...]], places: Sequence[int]) -> bool:
    keys = [tuple(row[place] for place in places) for row in rows]
    return len(set(keys)) == len(keys) and not any(value is None for key in keys for value in key)


def _target(statement: str) -> str:
    return next(sqlglot.parse_one(statement, dialect="duckdb").find_all(exp.Table)).name


def inserts(case: dict[str, Any], known: dict[str, Definition]) -> Iterator[str]:
    """The statements that fill the tables, with the values of added keys."""
    numbers = iter(range(1, 1000))
    for text in case["setup_sql"]:
        tree = sqlglot.parse_one(text, dialect="duckdb")
        if isinstance(tree, exp.Create):
            continue
        if isinstance(tree, exp.Insert) and known[tree.this.name].key == (ADDED,):
            for row in tree.expression.expressions:
                row.append("expressions", exp.Literal.number(next(numbers)))
        yield tree.sql(dialect="duckdb")


def prefixed(text: str, known: dict[str, Definition], catalog: str) -> str:
    """A statement whose tables are those of an attached catalog."""
    tree = sqlglot.parse_one(text, dialect="duckdb")
    for table in tree.find_all(exp.Table):
        if table.name.lower() in known or table.name == "no_such_table":
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name)))
            table.set("db", exp.to_identifier(catalog))
    return tree.sql(dialect="duckdb")
