"""MERGE WITH SCHEMA EVOLUTION, against a model of dicts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt

TABLES = """
CREATE TABLE t (id INT, v STRING, n INT, PRIMARY KEY (id) NOT ENFORCED);
INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20)
"""
BEFORE: list[dict[str, Any]] = [{"id": 1, "v": "a", "n": 10}, {"id": 2, "v": "b", "n": 20}]
EVOLVING = "MERGE WITH SCHEMA EVOLUTION INTO t USING ({}) s ON t.id = s.id "
SOURCE = "SELECT 2 AS id, 'z' AS V, 5 AS bonus UNION ALL SELECT 3, 'c', 6"
ALL = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"


def rows(lake: kt.Lake) -> list[dict[str, Any]]:
    return lake.sql("SELECT * FROM t ORDER BY id").to_pylist()


def columns(lake: kt.Lake) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in lake.table("t").schema)


WORDS = [
    (ALL, "bonus int32",
     [(1, "a", 10, None), (2, "z", 20, 5), (3, "c", None, 6)]),
    ("WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *", "bonus int32",
     [(1, "a", 10, None), (3, "c", None, 6)]),
    ("WHEN MATCHED THEN UPDATE SET bonus = s.bonus + 1", "bonus int32",
     [(1, "a", 10, None), (2, "b", 20, 6)]),
    ("WHEN NOT MATCHED THEN INSERT (ID, Bonus) VALUES (s.id, bonus)", "bonus int32",
     [(1, "a", 10, None), (2, "b", 20, None), (3, None, None, 6)]),
    ("WHEN MATCHED AND bonus > 5 THEN UPDATE SET * WHEN NOT MATCHED BY SOURCE THEN DELETE",
     "bonus int32", [(2, "b", 20, None)]),
    ("WHEN MATCHED THEN DELETE", "", [(1, "a", 10)]),
    ("WHEN MATCHED THEN UPDATE SET v = s.v", "", [(1, "a", 10), (2, "z", 20)]),
    ("WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = 'gone'", "", [(1, "gone", 10), (2, "b", 20)]),
]  # fmt: skip


def check_columns_that_clauses_set_are_added(
    lake: kt.Lake, whens: str, added: str, expected: list[tuple[Any, ...]]
) -> None:
    lake.sql("EXPLAIN " + EVOLVING.format(SOURCE) + whens)
    assert rows(lake) == BEFORE
    lake.sql(EVOLVING.format(SOURCE) + whens)
    assert columns(lake) == "id int32, v string, n int32" + (added and f", {added}")
    assert [tuple(row.values()) for row in rows(lake)] == expected


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("whens", "added", "expected"), WORDS)
def test_columns_that_clauses_set_are_added(
    lake: kt.Lake, whens: str, added: str, expected: list[tuple[Any, ...]]
) -> None:
    check_columns_that_clauses_set_are_added(lake, whens, added, expected)


@pytest.mark.spark
@pytest.mark.one_in(14)
@pytest.mark.parametrize(("whens", "added", "expected"), WORDS)
def test_columns_are_added_on_spark(
    lake: kt.Lake, spark: Any, whens: str, added: str, expected: list[tuple[Any, ...]]
) -> None:
    on_spark = kt.connect(lake.uri, spark=spark)
    check_columns_that_clauses_set_are_added(on_spark, whens, added, expected)


def test_explain_names_what_would_change(lake: kt.Lake) -> None:
    source = "SELECT 2 AS id, 3000000000 AS n, 5 AS bonus"
    plan = lake.sql("EXPLAIN " + EVOLVING.format(source) + ALL).to_arrow()["plan"].to_pylist()
    assert [line for line in plan if line.startswith("changes the table first")] == [
        "changes the table first: column n becomes BIGINT",
        "changes the table first: adds column bonus INT",
    ]
    analyzed = lake.sql("EXPLAIN ANALYZE " + EVOLVING.format(source) + ALL)
    assert analyzed.to_arrow()["plan"].to_pylist()[-1] == "changed: 1 row"
    assert rows(lake)[1] == {"id": 2, "v": "b", "n": 3000000000, "bonus": 5}


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("source", "whens", "says"),
    [
        (SOURCE, "WHEN MATCHED THEN UPDATE SET other = s.bonus", "has no column 'other'"),
        (SOURCE, "WHEN MATCHED AND t.bonus = 1 THEN UPDATE SET *", "bonus"),
        (SOURCE, "WHEN MATCHED AND s.gone = 1 THEN UPDATE SET *", "gone"),
        (SOURCE, "WHEN NOT MATCHED THEN INSERT (id, bonus) VALUES (s.id, s.gone)", "gone"),
        ("SELECT 2 AS id, 1 AS x, 2 AS X", ALL, "two columns"),
        ("SELECT 2 AS id, INTERVAL 1 DAY AS x", ALL, "cannot be added"),
        ("SELECT 2 AS id, 1 AS x FROM nowhere", ALL, "nowhere"),
    ],
)
def test_what_cannot_be_merged_is_refused_before_the_table_changes(
    lake: kt.Lake, source: str, whens: str, says: str
) -> None:
    for words in ("EXPLAIN ", ""):
        with pytest.raises(kt.KeytideError, match=says):
            lake.sql(words + EVOLVING.format(source) + whens)
    assert rows(lake) == BEFORE


def test_without_the_words_nothing_is_added(lake: kt.Lake) -> None:
    plain = EVOLVING.replace("WITH SCHEMA EVOLUTION ", "").format("SELECT *, 1 AS x FROM t")
    lake.sql(plain + ALL)
    assert rows(lake) == BEFORE
    for words in ("MERGE WITH SCHEMA INTO", "MERGE WITH EVOLUTION INTO"):
        with pytest.raises(kt.InvalidError, match="line 1"):
            lake.sql(f"{words} t USING t AS s ON t.id = s.id {ALL}")


def test_a_table_as_source_gives_its_own_types(lake: kt.Lake) -> None:
    lake.sql(
        "CREATE TABLE s (id INT, at TIMESTAMP(3), r ROW<x INT>, PRIMARY KEY (id) NOT ENFORCED);"
        "INSERT INTO s VALUES (2, TIMESTAMP '2026-01-01 00:00:00', ROW(7))"
    )
    lake.sql(f"MERGE WITH SCHEMA EVOLUTION INTO t USING s ON t.id = s.id {ALL}")
    types = {f.name: f.type.sql() for f in lake.table("t").stored.schema.fields}
    assert (types["at"], types["r"]) == ("TIMESTAMP(3)", "ROW<`x` INT>")
    assert rows(lake)[1]["r"] == {"x": 7}


@pytest.mark.takes_turns
def test_merges_that_add_columns_at_the_same_time_all_have_their_rows(lake: kt.Lake) -> None:
    lake.sql("ALTER TABLE t SET ('commit.max-retries' = '50')")

    def merge(number: int) -> None:
        source = f"SELECT {number} AS id, {number} AS own_{number % 3}, 's' AS same"
        kt.connect(lake.uri).sql(EVOLVING.format(source) + ALL)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(merge, range(1, 7)))
    assert lake.table("t").schema.names[:3] == ["id", "v", "n"]
    assert sorted(lake.table("t").schema.names[3:]) == ["own_0", "own_1", "own_2", "same"]
    found = {row["id"]: (row[f"own_{row['id'] % 3}"], row["same"]) for row in rows(lake)}
    assert found == {number: (number, "s") for number in range(1, 7)}


def test_tables_of_connectors_are_refused_by_name(lake: kt.Lake, tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "s.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE p (id INTEGER PRIMARY KEY)")
    lake.attach("d", f"sqlite:///{path}")
    with pytest.raises(kt.UnsupportedError, match=r"d\.p: WITH SCHEMA EVOLUTION"):
        lake.sql(f"MERGE WITH SCHEMA EVOLUTION INTO d.p USING t AS s ON p.id = s.id {ALL}")


# -- against a model -------------------------------------------------------------------------------

NAMES = ("v", "n", "x", "Y")
KINDS = {"MATCHED": ("UPDATE", "DELETE"), "NOT MATCHED": ("INSERT",),
         "NOT MATCHED BY SOURCE": ("DELETE",)}  # fmt: skip


@st.composite
def merges(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[tuple[str, str, Any]]]:
    """The rows of a source, and WHEN clauses: kind, action, and the columns set or `*`."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    values = {"v": st.text("ab", max_size=2)}
    row = st.fixed_dictionaries(
        {"id": st.integers(1, 4), **{n: values.get(n, st.integers(0, 9)) for n in names}}
    )
    source = draw(st.lists(row, min_size=1, max_size=4, unique_by=lambda r: r["id"]))
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, unique=True))
    whens = []
    for kind in kinds:
        action = draw(st.sampled_from(KINDS[kind]))
        some = st.lists(st.sampled_from(names), min_size=1, unique=True) if names else st.nothing()
        whens.append((kind, action, draw(st.just("*") | some)))
    return source, whens


def clause(kind: str, action: str, names: Any) -> str:
    if action == "DELETE":
        return f"WHEN {kind} THEN DELETE"
    if names == "*":
        return f"WHEN {kind} THEN {'UPDATE SET' if action == 'UPDATE' else 'INSERT'} *"
    if action == "UPDATE":
        return f"WHEN {kind} THEN UPDATE SET {', '.join(f'{n} = s.{n}' for n in names)}"
    return (
        f"WHEN {kind} THEN INSERT (id, {', '.join(names)}) "
        f"VALUES (s.id, {', '.join(f's.{n}' for n in names)})"
    )


def merged(
    source: list[dict[str, Any]], whens: list[tuple[str, str, Any]]
) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns and rows that a MERGE must leave."""
    given = [name for name in source[0] if name != "id"]
    set_ = {n for _, a, ns in whens if a != "DELETE" for n in (given if ns == "*" else ns)}
    all_names = ["id", "v", "n", *(n for n in given if n in set_ - {"v", "n"})]
    state: dict[Any, dict[str, Any]] = {row["id"]: dict(row) for row in BEFORE}
    arrived = {row["id"]: row for row in source}
    for kind, action, names in whens:
        chosen = given if names == "*" else names
        before = {row["id"] for row in BEFORE}
        keys = {"MATCHED": before & arrived.keys(), "NOT MATCHED": arrived.keys() - before,
                "NOT MATCHED BY SOURCE": before - arrived.keys()}[kind]  # fmt: skip
        for key in keys:
            if action == "DELETE":
                del state[key]
            else:
                new = {n: arrived[key][n] for n in chosen}
                state[key] = {**state.get(key, {"id": key}), **new}
    return all_names, [{n: state[key].get(n) for n in all_names} for key in sorted(state)]


@pytest.mark.takes_turns
@given(merges())
def test_any_merge_leaves_what_a_model_says(merge: tuple[Any, Any]) -> None:
    source, whens = merge
    names = ", ".join(source[0])
    values = ", ".join("(" + ", ".join(repr(row[n]) for n in source[0]) + ")" for row in source)
    clauses = " ".join(clause(*when) for when in whens)
    with TemporaryDirectory() as folder:
        lake = kt.connect(folder)
        lake.sql(TABLES)
        text = f"SELECT * FROM (VALUES {values}) AS given ({names})"
        lake.sql(f"{EVOLVING.format(text)} {clauses}")
        found = lake.table("t").schema.names, rows(lake)
        assert found == merged(source, whens)
