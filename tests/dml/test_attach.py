"""Tables of connectors in queries: `lake.attach`, and what is read of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.dml.attachments import target_of
from keytide.dml.memory import MemoryConnector
from keytide.dml.spi import ConnectorMetadata
from table_rows import answer

ORDERS = pa.table(
    {"id": [1, 2, 3], "customer": ["ann", "bob", None], "qty": pa.array([5, 7, 9], pa.int32())}
)


@pytest.fixture
def memory() -> MemoryConnector:
    memory = MemoryConnector()
    memory.create_table("orders", ORDERS.schema, ["id"])
    memory.insert("orders", ORDERS.slice(0, 2))
    memory.insert("orders", ORDERS.slice(2))
    return memory


@pytest.fixture
def lake(warehouse: str, memory: MemoryConnector) -> kt.Lake:
    lake = kt.connect(warehouse)
    lake.sql("CREATE TABLE towns (name STRING, town STRING, PRIMARY KEY (name) NOT ENFORCED)")
    lake.sql("INSERT INTO towns VALUES ('ann', 'Oslo'), ('eve', 'Rome')")
    lake.attach("Mem", memory.connector)
    return lake


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM mem.orders ORDER BY id", [(1, "ann", 5), (2, "bob", 7), (3, None, 9)]),
        ("SELECT count(*) FROM MEM.Orders", [(3,)]),
        ("SELECT QTY FROM mem.orders o WHERE o.id >= 2 AND o.customer = 'bob'", [(7,)]),
        ("SELECT o.id, t.town FROM mem.orders o JOIN towns t ON t.name = customer", [(1, "Oslo")]),
        ("SELECT a.id FROM mem.orders a, mem.orders b WHERE a.qty = b.id + 8", [(3,)]),
        ("WITH orders AS (SELECT 1 AS x) SELECT x FROM orders", [(1,)]),
    ],
)
def test_query_reads_attached_tables_beside_those_of_the_lake(
    lake: kt.Lake, text: str, expected: list[tuple[Any, ...]]
) -> None:
    assert answer(lake, text) == expected


def test_rows_of_an_attached_table_can_be_inserted_into_the_lake(lake: kt.Lake) -> None:
    lake.sql("INSERT INTO towns SELECT customer, 'new' FROM mem.orders WHERE customer IS NOT NULL")
    assert answer(lake, "SELECT * FROM towns ORDER BY name") == [
        ("ann", "new"),
        ("bob", "new"),
        ("eve", "Rome"),
    ]


def test_explain_tells_the_connector_and_what_is_read(lake: kt.Lake) -> None:
    text = lake.sql("EXPLAIN SELECT qty FROM mem.orders WHERE id > 1").to_pylist()
    assert [row["plan"] for row in text] == [
        "table mem.orders of connector memory",
        "splits: 2",
        "columns: id, qty",
        "read by: `id` > 1",
        "applied by the connector: no condition",
    ]


def test_target_is_found_by_name_in_any_case(lake: kt.Lake, memory: MemoryConnector) -> None:
    target = target_of(lake.catalog, "MEM.Orders")
    assert target is not None
    assert target[0] is memory.connector
    assert target_of(lake.catalog, "towns") is None
    assert target_of(lake.catalog, "default.towns") is None


def test_attached_tables_are_shown(lake: kt.Lake) -> None:
    assert answer(lake, "SHOW TABLES IN Mem") == [("mem", "orders")]
    assert answer(lake, "SHOW TABLES") == [("default", "towns")]
    assert answer(lake, "DESCRIBE mem.orders") == [
        ("id", "BIGINT", "primary key", None),
        ("customer", "STRING", "", None),
        ("qty", "INT", "", None),
    ]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "SELECT * FROM mem.nothing",
            kt.NotFoundError,
            "table nothing does not exist in memory.*: orders",
        ),
        ("SELECT * FROM other.orders", kt.NotFoundError, "table other.orders does not exist"),
        ("SELECT * FROM mem.orders VERSION AS OF 1", kt.UnsupportedError, "no versions"),
        (
            "SELECT * FROM mem.orders /*+ OPTIONS('scan.snapshot-id' = '1') */",
            kt.InvalidError,
            "does not support OPTIONS",
        ),
        ("DROP TABLE mem.orders", kt.UnsupportedError, "attached catalog mem"),
        ("CREATE TABLE mem.t (a INT)", kt.UnsupportedError, "attached catalog mem"),
        ("SELECT nothing FROM mem.orders", kt.InvalidError, "nothing"),
    ],
)
def test_what_cannot_be_is_refused(
    lake: kt.Lake, text: str, error: type[kt.KeytideError], message: str
) -> None:
    with pytest.raises(error, match=message):
        lake.sql(text)


def test_names_are_taken_once(lake: kt.Lake, memory: MemoryConnector) -> None:
    assert lake.attached == ["mem"]
    for name in ("mem", "DEFAULT"):
        with pytest.raises(kt.AlreadyExistsError, match="choose"):
            lake.attach(name, memory.connector)
    with pytest.raises(kt.InvalidError, match="is not a valid name"):
        lake.attach("a.b", memory.connector)
    with pytest.raises(kt.InvalidError, match="Connector"):
        lake.attach("other", memory)  # type: ignore[arg-type]


def test_what_is_detached_is_found_no_more(lake: kt.Lake) -> None:
    lake.detach("MEM")
    with pytest.raises(kt.NotFoundError):
        lake.sql("SELECT * FROM mem.orders")
    with pytest.raises(kt.NotFoundError, match="attached catalogs: nothing"):
        lake.detach("mem")


def test_rows_are_inserted_into_an_attached_table(lake: kt.Lake, memory: MemoryConnector) -> None:
    assert lake.sql("INSERT INTO mem.orders VALUES (4, 'eve', 1), (5, NULL, 2)").row_count == 2
    lake.sql("INSERT INTO Mem.Orders (id, customer) SELECT 6, name FROM towns WHERE town = 'Rome'")
    found = answer(lake, "SELECT * FROM mem.orders WHERE id > 3 ORDER BY id")
    assert found == [(4, "eve", 1), (5, None, 2), (6, "eve", None)]


def test_connector_without_insert_says_so(lake: kt.Lake, memory: MemoryConnector) -> None:
    class Reading(type(memory.connector.metadata)):  # type: ignore[misc]
        begin_insert = ConnectorMetadata.begin_insert

    reading = replace(memory.connector, metadata=Reading(memory))
    lake.attach("other", reading)
    with pytest.raises(kt.UnsupportedError, match="does not support INSERT"):
        lake.sql("INSERT INTO other.orders VALUES (4, 'eve', 1)")


@pytest.mark.takes_turns
@pytest.mark.spark
def test_spark_inserts_rows_of_its_own(warehouse: str, memory: MemoryConnector, spark: Any) -> None:
    lake = kt.connect(warehouse, spark=spark)
    lake.attach("mem", memory.connector)
    lake.sql("CREATE TABLE t (k BIGINT, s STRING)")
    lake.sql("INSERT INTO t VALUES (7, 'x'), (8, NULL), (9, 'z')")
    assert lake.sql("INSERT INTO mem.orders (customer, id) SELECT s, k FROM t").row_count == 3
    with pytest.raises(kt.InvalidError, match="'qty' is INT, but the query returns string"):
        lake.sql("INSERT INTO mem.orders SELECT k, s, s FROM t")
    with pytest.raises(kt.KeytideError, match="odd row"):
        lake.sql("INSERT INTO mem.orders (id) SELECT if(k = 9, raise_error('odd row'), k) FROM t")
    found = memory.rows("orders").to_pylist()[3:]
    assert sorted((row["id"], row["customer"]) for row in found) == [(7, "x"), (8, None), (9, "z")]


@pytest.mark.takes_turns
@pytest.mark.spark
def test_spark_reads_each_split_in_a_task(
    warehouse: str, memory: MemoryConnector, spark: Any
) -> None:
    lake = kt.connect(warehouse, spark=spark)
    lake.attach("mem", memory.connector)
    found = lake.sql("SELECT customer, qty FROM mem.orders WHERE id <> 2 ORDER BY id")
    assert found.to_pylist() == [{"customer": "ann", "qty": 5}, {"customer": None, "qty": 9}]
