"""What a MERGE reads and asks, by how its ON matches rows."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from table_rows import by_key

KINDS = {
    "key": "PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket' = '2'",
    "deletion vectors": "PRIMARY KEY (k) NOT ENFORCED) WITH ('deletion-vectors.enabled' = 'true'",
    "key of two": "PRIMARY KEY (k, p) NOT ENFORCED) WITH ('bucket' = '1'",
    "no key": "p2 INT) WITH ('bucket' = '-1'",
}


def table(lake: kt.Lake, kind: str, name: str = "t") -> None:
    lake.sql(f"CREATE TABLE {name} (k INT, p STRING, v INT, {KINDS[kind]})")
    columns = "k, p, v"
    lake.sql(f"INSERT INTO {name} ({columns}) VALUES (1, 'a', 1), (2, 'b', 2)")
    lake.sql(f"INSERT INTO {name} ({columns}) VALUES (3, 'c', 3), (4, 'd', 4)")


def rows(lake: kt.Lake, name: str = "t") -> list[tuple[Any, ...]]:
    found = lake.sql(f"SELECT k, p, v FROM {name} ORDER BY k, p").to_pylist()
    return [tuple(row.values()) for row in found]


BEFORE = [(1, "a", 1), (2, "b", 2), (3, "c", 3), (4, "d", 4)]
SOURCE = pa.table({"k": pa.array([2, 3, 9, None, 1 << 40]), "p": ["b", "x", "n", "o", "q"]})

UPDATE = "WHEN MATCHED THEN UPDATE SET v = t.v + 10"
INSERT = "WHEN NOT MATCHED AND s.k < 10 THEN INSERT (k, p, v) VALUES (s.k, s.p, 0)"


@pytest.mark.one_in(14)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("on", "whens", "left"),
    [
        ("t.k = s.k", UPDATE, [(1, "a", 1), (2, "b", 12), (3, "c", 13), (4, "d", 4)]),
        ("(s.k = t.k)", UPDATE, [(1, "a", 1), (2, "b", 12), (3, "c", 13), (4, "d", 4)]),
        (
            "t.k = s.k",
            f"WHEN MATCHED AND s.p = 'b' THEN DELETE {UPDATE} {INSERT}",
            [(1, "a", 1), (3, "c", 13), (4, "d", 4), (9, "n", 0)],
        ),
        (
            "t.p = s.p AND t.k = s.k",
            f"{UPDATE} WHEN NOT MATCHED AND s.k = 9 THEN INSERT (k, p) VALUES (s.k, s.p)",
            [(1, "a", 1), (2, "b", 12), (3, "c", 3), (4, "d", 4), (9, "n", None)],
        ),
        (
            "t.k = s.k AND t.v > 2",
            UPDATE,
            [(1, "a", 1), (2, "b", 2), (3, "c", 13), (4, "d", 4)],
        ),
        (
            "t.k = s.k OR t.v = 1",
            "WHEN MATCHED AND s.k IN (2, 3) AND t.v > 1 THEN DELETE",
            [(1, "a", 1), (4, "d", 4)],
        ),
        (
            "t.k = s.k",
            "WHEN NOT MATCHED BY SOURCE THEN DELETE",
            [(2, "b", 2), (3, "c", 3)],
        ),
    ],
)
def test_what_is_not_read_would_have_changed_nothing(
    lake: kt.Lake, kind: str, on: str, whens: str, left: list[tuple[Any, ...]]
) -> None:
    table(lake, kind)
    lake.create_table("s", SOURCE.schema, []).write(SOURCE)
    lake.sql(f"MERGE INTO t USING s ON {on} {whens}")
    assert rows(lake) == left


@pytest.mark.parametrize(
    ("on", "insert"),
    [
        ("t.k = s.k AND t.v > 2", "(s.k, s.p, 0)"),
        ("t.k = s.k", "(s.k - 6, s.p, 0)"),
        ("t.k = s.k + 2", "(s.k, s.p, 0)"),
        ("t.p = s.p", "(s.k, s.p, 0)"),
    ],
)
def test_row_that_is_inserted_under_a_key_that_is_there_is_refused(
    lake: kt.Lake, on: str, insert: str
) -> None:
    table(lake, "key")
    lake.create_table("s", SOURCE.schema, []).write(SOURCE)
    with pytest.raises(kt.InvalidError, match="two rows would have the primary key"):
        lake.sql(f"MERGE INTO t USING s ON {on} WHEN NOT MATCHED AND s.k < 10 THEN "
                 f"INSERT (k, p, v) VALUES {insert}")  # fmt: skip
    assert rows(lake) == BEFORE


def test_key_that_a_source_has_twice_is_inserted_by_neither(lake: kt.Lake) -> None:
    table(lake, "key")
    twice = [{"k": 7, "p": "x", "v": 1}, {"k": 7, "p": "y", "v": 2}]
    merge = lake.table("t").merge(twice, "target.k = source.k").when_not_matched_insert_all()
    with pytest.raises(kt.InvalidError, match=r"two rows would have the primary key \{'k': 7\}"):
        merge.execute()
    assert rows(lake) == BEFORE


def test_null_in_a_key_is_another_rows_key(lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE t (k INT, p STRING, v INT, PRIMARY KEY (k, p) NOT ENFORCED) "
             "WITH ('primary-key.nullable' = 'true')")  # fmt: skip
    t = lake.table("t")
    merge = t.merge([{"k": 1, "p": None, "v": 1}], "target.k = source.k AND target.p = source.p")
    merge = merge.when_not_matched_insert_all()
    merge.execute()
    with pytest.raises(kt.InvalidError, match="two rows would have the primary key"):
        merge.execute()
    assert rows(lake) == [(1, None, 1)]


def test_row_may_move_to_a_key_that_another_leaves_but_to_no_other(lake: kt.Lake) -> None:
    table(lake, "key")
    swap = "MERGE INTO t USING s ON t.k = s.k WHEN MATCHED THEN UPDATE SET k = {}"
    lake.sql("CREATE TABLE s (k INT, n INT); INSERT INTO s VALUES (1, 2), (2, 1)")
    lake.sql(swap.format("s.n"))
    assert rows(lake)[:2] == [(1, "b", 2), (2, "a", 1)]
    with pytest.raises(kt.InvalidError, match="two rows would have the primary key"):
        lake.sql(swap.format("s.n + 2"))


@pytest.mark.parametrize(("kind", "read"), [("key", 1), ("key of two", 1), ("no key", 1)])
def test_merge_reads_rows_that_can_match_and_columns_that_it_needs(
    lake: kt.Lake, kind: str, read: int
) -> None:
    table(lake, kind)
    lake.sql("CREATE TABLE s (k BIGINT, p STRING, v INT); INSERT INTO s VALUES (4, 'z', 9)")
    walk = explained(
        lake,
        "MERGE INTO t USING s ON t.k = s.k WHEN MATCHED THEN UPDATE SET k = s.k, p = t.p, v = s.v "
        "WHEN NOT MATCHED THEN INSERT (k, p, v) VALUES (s.k, s.p, s.v)",
    )
    assert rows_read(walk) == read
    assert any(line.startswith("apply_values: k: 1 value") for line in walk)


def explained(lake: kt.Lake, statement: str) -> list[str]:
    found = lake.sql(f"EXPLAIN ANALYZE {statement}").to_pylist()
    return [line["plan"].strip() for line in found]


def rows_read(walk: list[str]) -> int:
    pages = [line.split(":")[1].split(",")[0].strip() for line in walk if "get_next_page" in line]
    return sum(int(page.split()[0]) for page in pages if page != "no more")


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("(SELECT * FROM s WHERE v > 5)", 1),
        ("(SELECT k AS k, p, v FROM s UNION ALL SELECT 9, 'n', 9)", 1),
        ("(VALUES (4, 'z', 9), (9, 'n', 9)) AS s (k, p, v)", 1),
        ("(SELECT CAST(k AS DOUBLE) AS k, p, v FROM s)", 4),
        ("(SELECT CAST(k AS STRING) AS k, p, v FROM s)", 4),
    ],
)
def test_source_that_is_a_query_is_matched_likewise(lake: kt.Lake, source: str, read: int) -> None:
    table(lake, "key")
    lake.sql("CREATE TABLE s (k BIGINT, p STRING, v INT); INSERT INTO s VALUES (4, 'z', 9)")
    source = source if " AS s (" in source else f"{source} s"
    walk = explained(
        lake, f"MERGE INTO t USING {source} ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = s.v"
    )
    assert rows_read(walk) == read
    assert rows(lake) == [*BEFORE[:3], (4, "d", 9)]


def test_source_that_is_random_is_drawn_once(lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE t (k INT PRIMARY KEY NOT ENFORCED, v INT)")
    lake.table("t").write([{"k": k, "v": 0} for k in range(200)])
    lake.sql("CREATE TABLE s (k INT); INSERT INTO s VALUES (1)")
    changed = lake.sql(
        "MERGE INTO t USING (SELECT CAST(floor(random() * 200) AS INT) AS k FROM s) s "
        "ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = s.k WHEN NOT MATCHED THEN INSERT (k, v) "
        "VALUES (s.k, -1)"
    )
    assert changed.row_count == 1
    assert lake.sql("SELECT * FROM t WHERE v != 0 AND v != k").to_pylist() == []


KEYS = st.lists(st.integers(0, 12), unique=True, max_size=8)


@pytest.mark.takes_turns
@settings(max_examples=10, deadline=None)
@given(there=KEYS, given_=KEYS, gone=st.integers(0, 12))
def test_upsert_is_that_of_a_dict(there: list[int], given_: list[int], gone: int) -> None:
    lake = kt.connect(f"memory:///{uuid4().hex}")
    schema = pa.schema([pa.field("k", pa.int32(), nullable=False), ("v", pa.int32())])
    t = lake.create_table("t", schema, ["k"], options={"bucket": "2"})
    for some in (there[::2], there[1::2]):
        t.write([{"k": key, "v": key} for key in some] or schema.empty_table())
    t.delete(f"k = {gone}")
    t.merge(
        pa.table({"k": pa.array(given_, pa.int64()), "v": pa.array(given_, pa.int32())}),
        "target.k = source.k",
    ).when_matched_update({"v": "source.v + 100"}).when_not_matched_insert_all().execute()

    model = {key: key for key in there if key != gone}
    model |= {key: key + 100 if key in model else key for key in given_}
    found = by_key(t.scan().to_arrow())
    assert found == model


STARS = ["WHEN MATCHED THEN UPDATE SET *", "WHEN NOT MATCHED THEN INSERT *"]


@pytest.mark.parametrize("when", STARS)
@pytest.mark.parametrize("alias", ["o", "s"])
def test_star_names_the_column_that_the_source_lacks(lake: kt.Lake, alias: str, when: str) -> None:
    lake.sql(
        """
        CREATE TABLE w (id INT PRIMARY KEY NOT ENFORCED, v INT, s ROW<id INT, v INT>);
        CREATE TABLE short (id INT, S ROW<id INT, v INT>);
        INSERT INTO w VALUES (1, 1, ROW(7, 8)); INSERT INTO short VALUES (1, NULL), (2, NULL)
        """
    )
    with pytest.raises(kt.InvalidError, match="no 'v', only 'id', 'S'; list the columns"):
        lake.sql(f"MERGE INTO w USING short AS {alias} ON w.id = {alias}.id {when}")
    merge = lake.table("w").merge(lake.table("short"), "target.id = source.id")
    with pytest.raises(kt.InvalidError, match="no 'v', only"):
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert len(lake.table("w").snapshots()) == 1
