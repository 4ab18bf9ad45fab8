"""What DELETE, UPDATE and MERGE decide and compute by is about one row, whatever the engine."""

from __future__ import annotations

import pytest

import keytide as kt

MANY = ["row_number() OVER (ORDER BY id)", "sum(n) OVER ()", "1 + lag(n) OVER (ORDER BY id)",
        "max(n)", "count(*)", "coalesce(sum(n), 0)", "count(*) FILTER (WHERE n > 1)",
        "unnest(a)", "explode(a)", "posexplode(a)", "explode_outer(a) + 1", "inline_outer(a)",
        "stack(2, 1, 2)", "generate_subscripts(a, 1)"]  # fmt: skip
ONE = ["(SELECT max(n) FROM t)", "(SELECT count(*) FROM t AS o WHERE o.id < t.id) + 1",
       "(SELECT r FROM (SELECT id, row_number() OVER (ORDER BY id) AS r FROM t) AS o "
       "WHERE o.id = t.id)", "(SELECT max(e) FROM UNNEST(t.a) AS u (e))", "size(a)",
       "greatest(n, 1)", "aggregate(a, 0, (x, y) -> x + y)"]  # fmt: skip
PLACES = ["UPDATE t SET n = {}", "UPDATE t SET n = 0 WHERE n = {}", "DELETE FROM t WHERE n = {}",
          "MERGE INTO t USING t AS s ON t.id = s.id AND t.n = {} WHEN MATCHED THEN DELETE",
          "MERGE INTO t USING u AS s ON t.id = s.id WHEN MATCHED AND t.n = {} THEN DELETE",
          "MERGE INTO t USING u AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = {}",
          "MERGE INTO t USING u AS s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id, n) "
          "VALUES (9, {})"]  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> kt.Lake:
    lake = kt.connect(tmp_path_factory.mktemp("lake"))
    lake.sql(
        """
        CREATE TABLE t (id INT PRIMARY KEY NOT ENFORCED, n BIGINT, a ARRAY<INT>)
        WITH ('bucket' = '4');
        CREATE TABLE u (id INT);
        INSERT INTO t VALUES (1, 1, ARRAY[1, 2]), (2, 2, ARRAY[3]), (3, 3, ARRAY[4]), (4, 4, NULL)
        """
    )
    return lake


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("many", MANY)
def test_what_is_about_many_rows_is_refused_at_its_place(
    lake: kt.Lake, many: str, place: str
) -> None:
    text = place.format(many)
    with pytest.raises(
        kt.InvalidError, match=r"line 1, column \d+: .* evaluate each row separately"
    ):
        lake.sql(text)
    assert len(lake.table("t").snapshots()) == 1


@pytest.mark.one_in(14)
@pytest.mark.parametrize("one", ONE)
def test_queries_about_many_rows_are_values(lake: kt.Lake, one: str) -> None:
    wanted = lake.sql(f"SELECT id, CAST({one} AS BIGINT) AS n FROM t ORDER BY id").to_pylist()
    lake.table("t").create_branch("one")
    lake.sql(f"UPDATE `t$branch_one` AS t SET n = CAST({one} AS BIGINT)")

    found = lake.sql("SELECT id, n FROM `t$branch_one` ORDER BY id").to_pylist()
    lake.table("t").delete_branch("one")
    assert found == wanted


@pytest.mark.parametrize("many", ["max(n)", "row_number() OVER ()", "explode(a)"])
def test_calls_refuse_it_like_statements(lake: kt.Lake, many: str) -> None:
    t = lake.table("t")
    merge = t.merge([{"id": 1}], "target.id = source.id").when_matched_update({"n": many})
    for change in (lambda: t.update({"n": many}), lambda: t.delete(f"n = {many}"), merge.execute):
        with pytest.raises(kt.InvalidError, match="evaluate each row separately"):
            change()


@pytest.mark.parametrize(
    ("target", "source"),
    [("t", "t"), ("t AS a", "u AS a"), ("t AS a", "u A"), ("t", "default.t"),
     ("t AS source", "(SELECT 1 AS id)")],
)  # fmt: skip
def test_merge_refuses_two_tables_of_one_name(lake: kt.Lake, target: str, source: str) -> None:
    with pytest.raises(kt.InvalidError, match=r"uses the name '\w+' for both tables; rename one"):
        lake.sql(f"MERGE INTO {target} USING {source} ON TRUE WHEN MATCHED THEN DELETE")
