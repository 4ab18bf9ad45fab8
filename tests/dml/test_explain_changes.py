"""EXPLAIN and EXPLAIN ANALYZE of DELETE, UPDATE and MERGE."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.dml.memory import MemoryConnector

ORDERS = pa.table({"id": [1, 2, 3], "qty": pa.array([5, 7, 9], pa.int32())})
MERGE = """
MERGE INTO t USING mem.orders AS o ON t.id = o.id
WHEN MATCHED AND o.qty > 5 THEN UPDATE SET n = o.qty
WHEN NOT MATCHED THEN INSERT (id) VALUES (o.id)
"""


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    memory = MemoryConnector()
    memory.create_table("orders", ORDERS.schema, ["id"])
    memory.insert("orders", ORDERS.slice(0, 2))
    memory.insert("orders", ORDERS.slice(2))
    lake = kt.connect(warehouse)
    lake.attach("mem", memory.connector)
    lake.sql(
        """
        CREATE TABLE t (id INT, v STRING, n INT, PRIMARY KEY (id) NOT ENFORCED);
        INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20);
        CREATE TABLE a (id INT, v STRING);
        INSERT INTO a VALUES (1, 'x'), (2, 'y')
        """
    )
    return lake


def plan(lake: kt.Lake, text: str) -> list[str]:
    """The lines of a plan, without times."""
    lines = [row["plan"] for row in lake.sql(text).to_pylist()]
    return [re.sub(r",? ?[\d.]+ ms$", "", line).removesuffix(":").strip() for line in lines]


def everything(lake: kt.Lake) -> list[list[dict[str, Any]]]:
    return [
        lake.sql(f"SELECT * FROM {name} ORDER BY id").to_pylist()
        for name in ("t", "a", "mem.orders")
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "DELETE FROM t WHERE id = 2 AND upper(v) = 'B'",
            [
                "DELETE in table default.t of connector keytide",
                "row id: struct<id: int32 not null>",
                "applied by the connector: `id` = 2",
                "not applied by it: none",
                "further conditions: some, in the engine only",
                "without reading rows: no",
                "splits: 1",
                "columns read: id, v",
            ],
        ),
        (
            "DELETE FROM mem.orders",
            [
                "DELETE in table mem.orders of connector memory",
                "row id: int64",
                "applied by the connector: none",
                "not applied by it: none",
                "further conditions: none",
                "without reading rows: yes",
                "splits: 2",
                "columns read: id",
            ],
        ),
        (
            "UPDATE mem.orders SET qty = qty + 1 WHERE id < 3",
            [
                "UPDATE in table mem.orders of connector memory",
                "row id: int64",
                "sets: qty",
                "applied by the connector: none",
                "not applied by it: `id` < 3",
                "further conditions: none",
                "splits: 2",
                "columns read: id, qty",
            ],
        ),
        (
            MERGE,
            [
                "MERGE in table default.t of connector keytide",
                "row id: struct<id: int32 not null>",
                "updates: change only updated columns",
                "0: WHEN MATCHED AND o.qty > 5 THEN UPDATE n",
                "1: WHEN NOT MATCHED THEN INSERT id",
                "splits: 1",
                "columns read: id, v",
                "reads: table mem.orders of connector memory",
                "splits: 2",
                "columns: id, qty",
                "read by: no condition",
                "applied by the connector: no condition",
            ],
        ),
    ],
)
def test_explain_tells_what_would_be_done_and_changes_nothing(
    lake: kt.Lake, text: str, lines: list[str]
) -> None:
    before = everything(lake)
    assert plan(lake, f"EXPLAIN {text}") == lines
    assert everything(lake) == before


SPLIT = ["create_page_source", "get_next_page", "{}_rows", "get_next_page", "finish", "close"]


@pytest.mark.parametrize("table", ["mem.orders", "t", "a"])
@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DELETE FROM {} WHERE id = 2", "delete"),
        ("UPDATE {} SET id = id WHERE id = 2", "update"),
    ],
)
def test_analyze_tells_the_walk_of_a_statement(
    lake: kt.Lake, table: str, statement: str, what: str
) -> None:
    lines = plan(lake, f"EXPLAIN ANALYZE {statement.format(table)}")
    assert lines[0].startswith(f"get_{what}_row_id_column_handle: ")
    walk = [line.partition(":")[0] for line in lines]
    begin = walk.index(f"begin_{what}")
    assert walk[begin + 1 : begin + 9] == [
        "get_splits",
        "split 0",
        *(call.format(what) for call in SPLIT),
    ]
    assert f"{what}_rows: 1 row" in lines
    assert lines[-2:] == [f"finish_{what}: {fragments(lines)}, 1 row", "changed: 1 row"]


def fragments(lines: list[str]) -> str:
    """How many fragments the splits told of."""
    count = sum(line.startswith("finish: 1 fragment") for line in lines)
    return f"{count} fragment" + "s" * (count > 1)


def test_analyze_of_a_merge_tells_what_its_sink_took(lake: kt.Lake) -> None:
    lines = plan(lake, f"EXPLAIN ANALYZE {MERGE}")
    sink = lines.index("sink 0")
    assert lines[1:3] == ["begin_merge", "apply_match: id"]
    assert lines[3:6] == [
        "get_splits: 1 split",
        "apply_values: id: 3 values",
        "get_splits: 1 split",
    ]
    assert lines[sink + 1 :] == [
        "create_merge_sink",
        "store_merged_rows: 1 row",
        "store_merged_rows: 1 row",
        lines[-3],
        f"finish_merge: {lines[-3].removeprefix('finish: ')}, 2 rows",
        "changed: 2 rows",
    ]


def test_delete_that_reads_nothing_is_two_calls(lake: kt.Lake) -> None:
    assert plan(lake, "EXPLAIN ANALYZE DELETE FROM mem.orders") == [
        "get_delete_row_id_column_handle: int64",
        "apply_filter: 0 terms, 0 not applied",
        "apply_delete: can be done without reading",
        "execute_delete: 3 rows",
        "changed: 3 rows",
    ]


def test_many_calls_are_told_in_sums(lake: kt.Lake, warehouse: str) -> None:
    memory = MemoryConnector("many")
    memory.create_table("m", ORDERS.schema)
    for _ in range(11):
        memory.insert("m", ORDERS)
    lake.attach("many", memory.connector)
    lines = plan(lake, "EXPLAIN ANALYZE DELETE FROM many.m WHERE id % 2 = 1")
    assert lines[lines.index("3 more splits") :] == [
        "3 more splits",
        "create_page_source (3 calls)",
        "get_next_page (6 calls): 9 rows",
        "delete_rows (3 calls): 6 rows",
        "finish (3 calls): 3 fragments",
        "close (3 calls)",
        "finish_delete: 11 fragments, 22 rows",
        "changed: 22 rows",
    ]


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("EXPLAIN DELETE FROM nobody", kt.NotFoundError, "nobody"),
        ("EXPLAIN DELETE FROM t LIMIT 1", kt.InvalidError, "LIMIT"),
        ("EXPLAIN UPDATE t SET nobody = 1", kt.NotFoundError, "nobody"),
        ("EXPLAIN ANALYZE UPDATE t SET id = 5", kt.InvalidError, "two rows"),
        ("EXPLAIN INSERT INTO t VALUES (1, 'a', 1)", kt.UnsupportedError, "line 1, column 9"),
    ],
)
def test_wrong_statement_is_refused_as_without_explain(
    lake: kt.Lake, text: str, kind: type[Exception], message: str
) -> None:
    before = everything(lake)
    with pytest.raises(kind, match=message):
        lake.sql(text)
    assert everything(lake) == before


@pytest.mark.spark
def test_analyze_on_spark_tells_the_calls_of_the_driver(lake: kt.Lake, spark: Any) -> None:
    on_spark = kt.connect(lake.uri, spark=spark)
    lines = plan(on_spark, "EXPLAIN ANALYZE DELETE FROM t WHERE upper(v) = 'B'")
    assert lines[2:] == [
        "begin_delete",
        "get_splits: 1 split",
        "finish_delete: 1 fragment, 1 row",
        "changed: 1 row",
    ]
