"""`Table.delete`, `Table.update` and `Table.merge`: row-level changes from Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import keytide as kt
from keytide.dml.keyed_table import KeyedMetadata
from keytide.predicate.predicate import Comparison, In
from table_rows import rows

Row = tuple[int, str | None, int | None]
BEFORE: list[Row] = [(1, "a", 10), (2, "b", 20), (3, None, 30)]
CHANGES = [{"id": 2, "v": "B", "n": 21, "gone": False}, {"id": 3, "v": "C", "n": 0, "gone": True},
           {"id": 4, "v": "d", "n": 40, "gone": False}]  # fmt: skip


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    lake = kt.connect(warehouse)
    lake.sql(
        """
        CREATE TABLE t (id INT, v STRING, n INT, PRIMARY KEY (id) NOT ENFORCED)
        WITH ('bucket' = '2');
        INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20), (3, NULL, 30)
        """
    )
    return lake


@pytest.fixture
def t(lake: kt.Lake) -> kt.Table:
    return lake.table("t")


# -- delete and update -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("id = 2", [1, 3]),
        ("target.v IS NULL OR n < 15 -- a remark", [2]),
        ("id IN (SELECT id + 1 FROM t)", [1]),
        ("NOT EXISTS (SELECT 1 FROM t AS o WHERE o.id > target.id)", [1, 2]),
        (None, []),
        (Comparison("id", "=", 2), [1, 3]),
        ((pl.col("n") < 15) | pl.col("v").is_null(), [2]),
        (In("id", ()), [1, 2, 3]),
    ],
)
def test_delete_takes_the_rows_that_meet_the_condition(
    t: kt.Table, where: Any, left: list[int]
) -> None:
    assert t.delete(where).rows == 3 - len(left)
    assert [id for id, _, _ in rows(t)] == left


@pytest.mark.parametrize(
    ("set", "where", "count", "after"),
    [
        ({"n": "n + id", "v": "upper(v)"}, "id < 3", 2, [(1, "A", 11), (2, "B", 22)]),
        ({"N": 5}, "id <= 2", 2, [(1, "a", 5), (2, "b", 5)]),
        ({"v": None, "n": "(SELECT max(n) FROM t)"}, "id < 3", 2, [(1, None, 30), (2, None, 30)]),
        ({"v": "'x; y'"}, None, 3, [(1, "x; y", 10), (2, "x; y", 20)]),
        ({"id": "id + 10"}, "id = 1", 1, [(2, "b", 20)]),
        ({"n": "n + 1"}, pl.col("v") == "b", 1, [(1, "a", 10), (2, "b", 21)]),
        ({"n": 5}, Comparison("n", "<", 15), 1, [(1, "a", 5), (2, "b", 20)]),
    ],
)
def test_update_sets_expressions_and_values(
    t: kt.Table, set: dict[str, Any], where: Any, count: int, after: list[Row]
) -> None:
    assert t.update(set, where).rows == count
    assert [row for row in rows(t) if row[0] < 3] == after


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("BOOLEAN", True), ("BIGINT", -(2**63)), ("DOUBLE", 1e300), ("DOUBLE", float("inf")),
        ("DECIMAL(38, 4)", Decimal("-123456789012345678901234567890.1234")), ("DOUBLE", 7),
        ("DATE", date(1, 2, 3)), ("TIMESTAMP(6)", datetime(2024, 2, 29, 1, 2, 3, 456789)),
        ("TIMESTAMP_LTZ(6)", datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=timezone.utc)),
        ("BYTES", b"\0'\xff"),
    ],
)  # fmt: skip
def test_python_value_is_stored_as_it_is(lake: kt.Lake, type_: str, value: Any) -> None:
    lake.sql(f"CREATE TABLE u (k INT PRIMARY KEY NOT ENFORCED, c {type_})")
    lake.sql("INSERT INTO u (k) VALUES (1)")
    u = lake.table("u")
    u.update({"c": value})
    assert u.scan().to_pylist() == [{"k": 1, "c": value}]


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda t: t.delete("id = "), kt.InvalidError, "line 1"),
        (lambda t: t.delete("TRUE; DROP TABLE t"), kt.InvalidError, "line 1, column 5"),
        (lambda t: t.delete("id = 1) OR (TRUE"), kt.InvalidError, "line 1, column 7"),
        (lambda t: t.delete("DELETE FROM t"), kt.InvalidError, "line 1"),
        (lambda t: t.delete("*"), kt.InvalidError, "found \\*"),
        (lambda t: t.delete("nobody = 1"), kt.InvalidError, "nobody"),
        (lambda t: t.delete("id IN (SELECT 1 FROM nobody)"), kt.NotFoundError, "nobody"),
        (lambda t: t.delete("'a"), kt.InvalidError, "unclosed quote"),
        (lambda t: t.delete("(1 + " * 4000 + ")" * 4000), kt.InvalidError, "nested too deeply"),
        (lambda t: t.delete(True), kt.InvalidError, "where is True"),
        (lambda t: t.delete(Comparison("id", "=", "a")), kt.InvalidError, "column id of type INT"),
        (lambda t: t.delete(pl.col("nobody") == 1), kt.NotFoundError, "no column 'nobody'"),
        (lambda t: t.delete(pl.col("id").sum() > 1), kt.InvalidError, "filter the result"),
        (lambda t: t.delete(isolation="none"), kt.InvalidError, "isolation is 'none'"),
        (lambda t: t.update({}), kt.InvalidError, "sets no columns"),
        (lambda t: t.update({"nobody": 1}), kt.NotFoundError, "nobody"),
        (lambda t: t.update({"n": 1, "N": 2}), kt.InvalidError, "set twice"),
        (lambda t: t.update({"n": [1]}), kt.InvalidError, "column 'n' is set to .*no literal"),
        (lambda t: t.update({"n": Decimal("NaN")}), kt.InvalidError, "no literal"),
        (lambda t: t.update({"n": 1 << 40}), kt.InvalidError, "column 'n'"),
        (lambda t: t.update({"n": ""}), kt.InvalidError, "line 1"),
        (lambda t: t.update({"n": "n +"}, "id = 1"), kt.InvalidError, "line 1"),
        (lambda t: t.update({"n": "*"}), kt.InvalidError, "found \\*"),
        (lambda t: t.merge(5, "TRUE"), kt.InvalidError, "cannot read a builtins.int"),
        (lambda t: t.merge(CHANGES, "TRUE").execute(), kt.InvalidError, "without a WHEN"),
        (lambda t: t.merge("DELETE FROM t", "TRUE").when_matched_delete().execute(),
         kt.InvalidError, "expected a query"),
        (lambda t: t.merge(CHANGES, "target.id = source.id").when_matched_delete()
         .when_matched_update_all().execute(), kt.InvalidError, "never used"),
        (lambda t: t.merge(CHANGES, "target.n > source.n").when_matched_delete().execute(),
         kt.InvalidError, "more than one source row"),
        (lambda t: t.merge([{"id": 1, "ID": 2}], "TRUE").when_matched_delete().execute(),
         kt.InvalidError, "differ only in case"),
        (lambda t: t.merge(pa.table({"x": pa.array([1], pa.duration("s"))}), "TRUE"),
         kt.InvalidError, "column 'x'"),
        (lambda t: t.merge(CHANGES, "TRUE").when_matched_update(["n"]), kt.InvalidError, "set is"),
    ],
)  # fmt: skip
def test_wrong_form_changes_nothing(
    t: kt.Table, change: Callable[[kt.Table], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        change(t)
    assert rows(t) == BEFORE


# -- merge -----------------------------------------------------------------------------------------

SOURCES: dict[str, Callable[[], Any]] = {
    "dicts": lambda: CHANGES,
    "arrow": lambda: pa.Table.from_pylist(CHANGES),
    "arrow reader": lambda: pa.Table.from_pylist(CHANGES).to_reader(),
    "polars": lambda: pl.DataFrame(CHANGES),
    "lazy polars": lambda: pl.LazyFrame(CHANGES),
    "pandas": lambda: pd.DataFrame(CHANGES),
    "pandas categories": lambda: pd.DataFrame(CHANGES).astype({"v": "category"}),
    "query": lambda: "SELECT * FROM changes",
    "query with WITH": lambda: "WITH c AS (SELECT * FROM changes) SELECT * FROM c",
}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("source", SOURCES)
def test_merge_takes_every_source(lake: kt.Lake, t: kt.Table, source: str) -> None:
    schema = pa.Table.from_pylist(CHANGES).schema
    lake.create_table("changes", schema, ["id"]).write(CHANGES)

    merged = merged_by_all(t, SOURCES[source]())

    assert merged.rows == 3
    assert rows(t) == [(1, "a", 10), (2, "B", 21), (4, "d", 40)]


def merged_by_all(t: kt.Table, source: Any) -> kt.Changed:
    builder = t.merge(source, "target.id = source.id")
    builder = builder.when_matched_delete("source.gone").when_matched_update_all()
    return builder.when_not_matched_insert_all("NOT source.gone").execute()


def test_merge_takes_another_table_and_itself(lake: kt.Lake, t: kt.Table) -> None:
    u = lake.create_table("u", t.schema, ["id"])
    every = u.merge(t, "target.id = source.id").when_not_matched_insert_all()
    assert every.execute().rows == 3
    assert every.when_matched_update({"n": "source.n + target.n"}).execute().rows == 3
    assert rows(u) == [(1, "a", 20), (2, "b", 40), (3, None, 60)]
    assert u.merge(u, "target.id = source.id + 1").when_matched_delete().execute().rows == 2
    assert rows(u) == [(1, "a", 20)]


def test_merge_knows_every_when(t: kt.Table) -> None:
    done = (
        t.merge(CHANGES, "target.id = source.id")
        .when_matched_update({"v": "concat(target.v, source.v)", "n": 0}, "source.id = 2")
        .when_not_matched_insert({"id": "source.id", "n": "source.n + 1"}, "source.n > 10")
        .when_not_matched_by_source_update({"v": "'alone'"}, "target.id = 1")
        .when_not_matched_by_source_delete()
        .execute()
    )
    assert done.rows == 3
    assert rows(t) == [(1, "alone", 10), (2, "bB", 0), (3, None, 30), (4, None, 41)]


def test_source_without_rows_merges_nothing(t: kt.Table) -> None:
    assert t.merge([], "target.id = source.id").when_not_matched_insert_all().execute().rows == 0
    gone = t.merge([], "target.id = source.id").when_not_matched_by_source_delete("target.id > 1")
    assert gone.execute().rows == 2


def test_column_of_nulls_alone_has_the_type_of_its_namesake(t: kt.Table) -> None:
    given = pa.table({"id": [1], "n": pa.nulls(1), "other": pa.nulls(1)})
    t.merge(given, "target.id = source.id AND other IS NULL").when_matched_update(
        {"n": "source.n"}
    ).execute()
    assert rows(t)[0] == (1, "a", None)


# -- which table -----------------------------------------------------------------------------------


def test_branch_is_changed_apart_from_its_table(t: kt.Table) -> None:
    t.create_tag("now")
    branch = t.create_branch("b", tag="now")
    assert branch.delete("id = 1").rows == 1
    assert branch.update({"n": 0}).rows == 2
    assert (
        branch.merge(t, "target.id = source.id").when_not_matched_insert_all().execute().rows == 1
    )
    assert (rows(branch), rows(t)) == ([(1, "a", 10), (2, "b", 0), (3, None, 0)], BEFORE)


def test_table_opened_by_its_path_knows_itself_alone(lake: kt.Lake, t: kt.Table) -> None:
    alone = kt.open_table(t.uri)
    assert alone.update({"n": "(SELECT max(n) FROM default.t)"}, "id = 1").rows == 1
    assert rows(alone)[0] == (1, "a", 30)
    with pytest.raises(kt.NotFoundError, match="opened by its path"):
        alone.delete("id IN (SELECT id FROM u)")


@pytest.mark.parametrize(("isolation", "tries"), [("snapshot", 1), ("serializable", 2)])
@pytest.mark.parametrize(
    "change",
    [
        lambda u, **given: u.delete("p = 1", **given),
        lambda u, **given: u.update({"v": 5}, "p = 1", **given),
        lambda u, **given: u.merge([{"p": 1, "k": 1}], "target.p = source.p", **given)
        .when_matched_delete()
        .execute(),
    ],
)  # fmt: skip
def test_serializable_form_starts_again_where_others_wrote_elsewhere(
    lake: kt.Lake,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[..., kt.Changed],
    isolation: str,
    tries: int,
) -> None:
    lake.sql(
        """
        CREATE TABLE u (p INT, k INT, v INT, PRIMARY KEY (p, k) NOT ENFORCED) PARTITIONED BY (p);
        INSERT INTO u VALUES (1, 1, 0), (2, 1, 0)
        """
    )
    commit, commits = KeyedMetadata.commit, []

    def beside_another(*given: Any) -> None:
        if not commits:
            lake.sql("INSERT INTO u VALUES (2, 2, 0)")
        commits.append(given)
        commit(*given)

    monkeypatch.setattr(KeyedMetadata, "commit", beside_another)
    assert change(lake.table("u"), isolation=isolation).rows == 1
    assert len(commits) == tries


@pytest.mark.parametrize("options", [{}, {"deletion-vectors.enabled": "true"}])
def test_append_table_is_changed_likewise(lake: kt.Lake, options: dict[str, str]) -> None:
    columns = lake.table("t").schema.remove_metadata()
    plain = pa.schema([f.with_nullable(True) for f in columns])
    a = lake.create_table("a", plain, (), options=options)
    a.write(pa.Table.from_pylist([{"id": i, "v": v, "n": n} for i, v, n in BEFORE], plain))
    assert merged_by_all(a, CHANGES).rows == 3
    assert rows(a) == [(1, "a", 10), (2, "B", 21), (4, "d", 40)]
    assert a.update({"n": 0}, "id > 1").rows == 2
    assert a.delete("id = 1").rows == 1
    assert rows(a) == [(2, "B", 0), (4, "d", 0)]


@pytest.mark.one_in(8)
@pytest.mark.spark
def test_forms_run_on_the_session_of_a_lake(lake: kt.Lake, spark: Any, place: str) -> None:
    t = kt.connect(lake.uri, spark=spark).table("t")
    changes = spark.createDataFrame(
        [(2, "B", 21, False), (3, "C", 0, True), (4, "d", 40, False)],
        "id int, v string, n int, gone boolean",
    )
    assert merged_by_all(t, changes).rows == 3
    assert rows(t) == [(1, "a", 10), (2, "B", 21), (4, "d", 40)]
    assert t.merge(CHANGES, "target.id = source.id").when_matched_delete().execute().rows == 2
    assert t.update({"v": "upper(v)", "n": Decimal(7)}).rows == 1
    assert rows(t) == [(1, "A", 7)]
    assert t.delete("id = 1").rows == 1


def test_example_of_the_documents_runs(lake: kt.Lake) -> None:
    columns = [("order_id", pa.int64()), ("status", pa.string()), ("version", pa.int64())]
    orders = lake.create_table("shop.orders", pa.schema(columns), ["order_id"])
    rows = [(1, "new", 1), (2, "cancelled", 1), (200, "new", 1)]
    orders.write([dict(zip(("order_id", "status", "version"), row, strict=True)) for row in rows])
    text = (Path(__file__).parents[2] / "docs/sql.md").read_text()
    [example] = (b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if ".merge(" in b)

    exec(compile(example, "docs/sql.md", "exec"), {"lake": lake})

    assert sorted(tuple(row.values()) for row in orders.scan().to_pylist()) == [
        (1, "late", 2),
        (7, "new", 1),
        (200, "new", 1),
    ]
