"""Deeply nested SQL and expressions: an answer or a `KeytideError`, wherever text is parsed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp
from sqlglot.errors import ParseError

import keytide as kt
import keytide.cdc
from keytide.sql.cursor import Keytide, tokenize
from keytide.sql.token_account import without_repeated_parentheses

TABLES = (
    "CREATE TABLE t (id INT, v INT, PRIMARY KEY (id) NOT ENFORCED); INSERT INTO t VALUES (1, 1)"
)

SHAPES: dict[str, Callable[[int, str], str]] = {
    "parentheses": lambda n, x: "(" * n + x + ")" * n,
    "calls": lambda n, x: "coalesce(" * n + x + ")" * n,
    "negations": lambda n, x: "NOT NOT " * n + x,
    "cases": lambda n, x: "CASE WHEN true THEN " * n + x + " END" * n,
    "sums": lambda n, x: "(v + " * n + "v" + ")" * n + f" > 0 AND {x}",
    "alternatives": lambda n, x: f"({x} AND " * n + x + ")" * n,
    "subqueries": lambda n, x: f"{x} AND v IN (SELECT v FROM t WHERE " * n + x + ")" * n,
}
DOORS: dict[str, Callable[[kt.Lake, str], Any]] = {
    "SELECT": lambda lake, c: lake.sql(f"SELECT {c} AS x FROM t").to_pylist(),
    "WHERE": lambda lake, c: lake.sql(f"SELECT id FROM t WHERE {c}").to_pylist(),
    "FROM": lambda lake, c: lake.sql(f"SELECT * FROM (SELECT v FROM t WHERE {c}) q").to_pylist(),
    "INSERT": lambda lake, c: lake.sql(f"INSERT INTO t SELECT id, v FROM t WHERE {c}"),
    "VALUES": lambda lake, c: lake.sql(f"INSERT INTO t VALUES (1, ({c.replace('v', '1')}))"),
    "DELETE": lambda lake, c: lake.sql(f"DELETE FROM t WHERE NOT ({c})"),
    "UPDATE": lambda lake, c: lake.sql(f"UPDATE t SET v = v WHERE {c}"),
    "MERGE": lambda lake, c: lake.sql(
        f"MERGE INTO t USING (SELECT 9 AS i) s ON t.id = s.i AND {c} WHEN MATCHED THEN DELETE"
    ),
    "evolving MERGE": lambda lake, c: lake.sql(
        f"MERGE WITH SCHEMA EVOLUTION INTO t USING (SELECT 9 AS i, 1 AS w) s ON t.id = s.i "
        f"WHEN MATCHED AND {c} THEN UPDATE SET w = s.w"
    ),
    "EXPLAIN": lambda lake, c: lake.sql(f"EXPLAIN SELECT id FROM t WHERE {c}").to_pylist(),
    "CREATE VIEW": lambda lake, c: lake.sql(f"CREATE VIEW w AS SELECT id FROM t WHERE {c}"),
    "CHECK": lambda lake, c: lake.sql(f"CREATE TABLE c (v INT, CHECK ({c}))"),
    "ADD CONSTRAINT": lambda lake, c: lake.sql(f"ALTER TABLE t ADD CONSTRAINT k CHECK ({c})"),
    "GENERATED": lambda lake, c: lake.sql(
        f"CREATE TABLE g (v INT, b BOOLEAN GENERATED ALWAYS AS ({c}))"
    ),
    "DEFAULT": lambda lake, c: lake.sql(f"CREATE TABLE d (v INT, b BOOLEAN DEFAULT {c})"),
    "CALL": lambda lake, c: lake.sql(f"CALL sys.compact(table => 't', where => '{c}')"),
    "Lake.create_view query": lambda lake, c: lake.create_view("w", f"SELECT id FROM t WHERE {c}"),
    "Lake.sql query": lambda lake, c: lake.sql(f"SELECT 1 WHERE {c.replace('v', '1')}").to_arrow(),
    "Table.scan where": lambda lake, c: lake.table("t").scan(where=c).to_pylist(),
    "Scan.explain": lambda lake, c: lake.table("t").scan(where=c).explain(),
    "Table.delete where": lambda lake, c: lake.table("t").delete(f"NOT ({c})"),
    "Table.update where": lambda lake, c: lake.table("t").update({"v": "v"}, c),
    "Table.update set": lambda lake, c: lake.table("t").update({"v": f"CASE WHEN {c} THEN 1 END"}),
    "Table.merge on": lambda lake, c: lake.table("t").merge(
        [{"id": 9, "v": 1}], f"target.id = source.id AND {c.replace('v', 'target.v')}"
    ).when_matched_delete().execute(),
    "Table.merge source": lambda lake, c: lake.table("t").merge(
        f"SELECT id FROM t WHERE {c}", "target.id = source.id"
    ).when_matched_update({"v": "source.id"}).execute(),
    "when": lambda lake, c: lake.table("t").merge(
        [{"id": 9, "v": 1}], "target.id = source.id"
    ).when_matched_delete(c.replace("v", "target.v")).execute(),
    "Table.add_constraint condition": lambda lake, c: lake.table("t").add_constraint("k", c),
    "auto_cdc": lambda lake, c: lake.auto_cdc(
        "f", pa.table({"id": [1], "v": [1], "s": [1]}), keys=["id"], sequence_by=["s"],
        apply_as_deletes=c,
    ),
}  # fmt: skip
"""Each place where a text is parsed: `Class.method parameter` for those of Python."""


@pytest.mark.one_in(14)
@pytest.mark.parametrize("depth", [50, 500])
@pytest.mark.parametrize("door", DOORS)
def test_deep_text_gives_an_answer_or_a_refusal(warehouse: str, door: str, depth: int) -> None:
    lake = kt.connect(warehouse)
    lake.sql(TABLES)
    for shape, make in SHAPES.items():
        if shape == "subqueries" and depth > 50:
            continue  # each level is a table to open
        with suppress(kt.KeytideError):
            DOORS[door](lake, make(depth, "v > 0"))
        lake.sql("DROP VIEW IF EXISTS w")
        assert lake.sql("SELECT id FROM t").to_pylist() == [{"id": 1}], shape


TEXTS = {"where", "on", "condition", "query", "set"}


def test_each_public_argument_that_is_parsed_has_a_door() -> None:
    made = filter(inspect.isclass, (getattr(kt, name) for name in kt.__all__))
    parsed = {
        f"{each.__name__}.{name} {parameter}"
        for each in made
        for name, method in inspect.getmembers(each, inspect.isfunction)
        for parameter in inspect.signature(method).parameters
        if name[0] != "_" and parameter in TEXTS
    }
    assert {door for door in parsed if door.split()[0] in TRIED} <= DOORS.keys()


TRIED = {door.split()[0] for door in DOORS if "." in door}


@pytest.mark.parametrize("depth", [50, 500])
def test_idle_parentheses_do_not_count(warehouse: str, depth: int) -> None:
    lake = kt.connect(warehouse)
    lake.sql(TABLES)
    deep = SHAPES["parentheses"](depth, "v + 1")
    assert lake.sql(f"SELECT {deep} AS x FROM t WHERE id IN ({deep} - 1)").to_pylist() == [{"x": 2}]


brackets = st.recursive(
    st.sampled_from(["a", "1", "f(a)", "(a, 1)", "f()", "a IN (1)"]),
    lambda inner: st.one_of(
        st.builds("({})".format, inner),
        st.builds("({} + ({}))".format, inner, inner),
        st.builds("f(({}), {})".format, inner, inner),
        st.builds("((({})))".format, inner),
    ),
    max_leaves=8,
)


@given(brackets)
def test_dropped_parentheses_change_no_meaning(text: str) -> None:
    tokens = tokenize(f"SELECT {text}")
    less = without_repeated_parentheses(tokens)
    assert without_repeated_parentheses(less) == less
    try:
        [whole] = Keytide().parser().parse(list(tokens), text)
    except ParseError:
        return
    [part] = Keytide().parser().parse(less, text)
    assert once_bracketed(whole) == once_bracketed(part)


def once_bracketed(tree: exp.Expr | None) -> str:
    assert tree is not None
    while twice := next((p for p in tree.find_all(exp.Paren) if type(p.this) is exp.Paren), None):
        twice.replace(twice.this)
    return tree.sql()
