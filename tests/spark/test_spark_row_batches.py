"""How many rows a batch has that reaches a Python task, and what a session's settings are then."""

from __future__ import annotations

from collections.abc import Iterable
from secrets import token_hex
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.snapshot.stored_table import StoredTable
from keytide.spark.capacity import temporary_setting
from keytide.spark.runner import Executors, counted_batches, stored_row_bytes
from keytide.store import open_store

pytestmark = pytest.mark.spark

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
SIZES = "lambda rows, number: [each.num_rows for each in rows]"


class Sizes:
    """A task that returns how many rows each batch has. Executors cannot import it."""

    def feed(self, rows: Iterable[pa.Table], number: int) -> list[int]:
        return [table.num_rows for table in rows]

    def __reduce__(self) -> Any:
        return (eval, (f"type('Sizes', (), {{'feed': staticmethod({SIZES})}})()",))


def batches(rows: Any, known_row_bytes: float = 0) -> list[int]:
    """The sizes of the batches of one partition."""
    taken: list[list[int]] = []
    Executors().feed(Sizes(), rows.coalesce(1), taken.append, known_row_bytes)
    return [size for sizes in taken for size in sizes]


@pytest.mark.parametrize(
    ("column", "known_row_bytes", "expected"),
    [
        ("id * 2", 0, [1_000, 1_000, 500]),
        ("string(id)", 0, [1_000, 1_000, 500]),
        ("string(id)", 200, [1_000, 1_000, 500]),
        ("string(id)", 1 << 20, [2_500]),
        ("array(id)", 0, [2_500]),
        ("struct(id)", 0, [2_500]),
        ("map(id, id)", 0, [2_500]),
    ],
)
def test_batches_of_short_rows_are_counted_and_spark_measures_the_others(
    spark: Any, column: str, known_row_bytes: float, expected: list[int]
) -> None:
    rows = spark.range(0, 2_500, 1, 1).selectExpr("id", f"{column} AS v")
    before = {name: spark.conf.get(name, None) for name in (BYTES, ROWS)}
    assert batches(rows, known_row_bytes) == expected
    assert {name: spark.conf.get(name, None) for name in (BYTES, ROWS)} == before


@pytest.mark.parametrize(("name", "value"), [(BYTES, "20000b"), (ROWS, "700"), (ROWS, "2000")])
def test_a_limit_of_the_user_stays(spark: Any, name: str, value: str) -> None:
    spark.conf.set(name, value)
    try:
        sizes = batches(spark.range(0, 2_500, 1, 1))
        assert spark.conf.get(name) == value
        assert spark.conf.get(BYTES if name == ROWS else ROWS, None) is None
    finally:
        spark.conf.unset(name)
    assert sum(sizes) == 2_500
    assert max(sizes) > 1_000 if name == BYTES else max(sizes) == int(value)


def test_many_columns_of_strings_are_measured(spark: Any) -> None:
    names = ", ".join(f"string(id) AS c{number}" for number in range(500))
    with counted_batches(spark.range(1).selectExpr(names.split(", ")[0])):
        assert spark.conf.get(ROWS) == "1000"
    with counted_batches(spark.sql(f"SELECT {names} FROM range(1)")):
        assert spark.conf.get(ROWS, None) is None


def test_the_last_thread_restores_a_setting(spark: Any) -> None:
    inside, leave = Barrier(2), Barrier(2)
    found: list[str | None] = []

    def hold() -> None:
        with temporary_setting(spark, ROWS, "1000"):
            inside.wait()
            leave.wait()

    thread = Thread(target=hold)
    with temporary_setting(spark, ROWS, "1000"):
        thread.start()
        inside.wait()
    found.append(spark.conf.get(ROWS, None))
    leave.wait()
    thread.join()
    found.append(spark.conf.get(ROWS, None))
    assert found == ["1000", None]


def test_stored_rows_tell_how_long_rows_are(warehouse: str) -> None:
    columns = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = kt.connect(warehouse).create_table("t", columns, ["id"])
    stored = StoredTable(open_store(table.uri), "t")
    assert stored_row_bytes(stored.newest_files()) == 0
    table.write([{"id": number, "text": ""} for number in range(10_000)])
    assert 0 < stored_row_bytes(stored.newest_files()) < 100
    table.write([{"id": number, "text": token_hex(50_000)} for number in range(500)])
    assert stored_row_bytes(stored.newest_files()) > 8_192
