"""DELETE and UPDATE by a predicate: no SQL engine takes part, and the rows are those of SQL."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.dml.engine import Changed
from keytide.dml.matching_rows import MatchingRowsHost, change_matching
from keytide.dml.memory import MemoryConnector
from keytide.dml.row_statements import FederatedCallTarget, Target
from keytide.format.schema import TableSchema
from keytide.predicate.condition import Condition

ROWS = pl.DataFrame(
    {"k": [1, 2, 3, 4], "v": ["a", None, "c", "a"], "x": [0.5, float("nan"), None, 2]}
)
SAME = {
    # Conditions as objects, and as SQL.
    "k > 2": pl.col("k") > 2,
    "v = 'a'": pc.field("v") == "a",
    "v IS NULL OR k = 1": pl.col("v").is_null() | (pl.col("k") == 1),
    "NOT (v = 'a')": ~(pl.col("v") == "a"),
    "x > 1": pl.col("x") > 1,
    "k IN (1, 9)": pl.col("k").is_in([1, 9]),
    "k > 9": pl.col("k") > 9,
}
KINDS = {
    "merged": {"primary_key": ["k"]},
    "indexed": {"primary_key": ["k"], "options": {"upsert.mode": "full", "bucket": "2"}},
    "appended": {"primary_key": []},
}


@pytest.mark.parametrize("text", SAME)
@pytest.mark.parametrize("kind", KINDS)
def test_predicate_deletes_the_rows_of_the_same_text(tmp_path: Path, kind: str, text: str) -> None:
    lake = kt.connect(tmp_path)
    tables = []
    for name, where in (("by_text", text), ("by_predicate", SAME[text])):
        table = lake.create_table(f"db.{name}", ROWS.to_arrow().schema, **KINDS[kind])  # type: ignore[arg-type]
        table.write(ROWS)
        tables.append((table.delete(where).rows, table.scan().to_polars().sort("k").to_dicts()))
    assert str(tables[0]) == str(tables[1])


def test_without_a_condition_all_rows_are_deleted(tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table("db.t", ROWS.to_arrow().schema, primary_key=["k"])
    table.write(ROWS)
    assert (table.delete().rows, table.scan().count()) == (4, 0)


def test_no_sql_engine_is_loaded(tmp_path: Path) -> None:
    code = f"""
import sys, polars as pl, pyarrow as pa, keytide as kt
lake = kt.connect({str(tmp_path)!r})
table = lake.create_table("db.t", pa.schema({{"k": pa.int64()}}), primary_key=["k"])
table.write(pl.DataFrame({{"k": [1, 2]}}))
table.delete(pl.col("k") == 1)
print({{"duckdb", "keytide.sql.statements", "keytide.sql.query_engine"}} & {{*sys.modules}})
"""
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_rows_of_a_connector_that_finds_others_too_are_tested(tmp_path: Path) -> None:
    memory = MemoryConnector()
    rows = pa.table({"k": [1, 2, 3, 4], "v": ["a", None, "c", "a"]})
    memory.create_table("t", rows.schema, [])
    memory.insert("t", rows)
    lake = kt.connect(tmp_path)
    lake.attach("m", memory.connector)

    def no_schema() -> TableSchema:
        raise AssertionError

    def no_sql(target: Target) -> Changed:
        raise AssertionError

    def change(values: dict[str, Any] | None, where: Condition) -> int:
        table = FederatedCallTarget(lake.catalog, "m.t", no_schema)
        host_for = lambda rows, _: MatchingRowsHost(rows)  # noqa: E731
        done = change_matching(table, values, where, "snapshot", host_for, no_sql, is_local=True)
        return done.rows

    assert change({"V": None}, "k = 3") == 1
    assert change(None, pl.col("v") == "a") == 2
    assert memory.rows("t").to_pylist() == [{"k": 2, "v": None}, {"k": 3, "v": None}]


# -- the same by SQL -------------------------------------------------------------------------------

COLUMNS = {
    "i": (pa.int32(), [None, -1, 7]),
    "y": (pa.int8(), [0, None, 127]),
    "x": (pa.float64(), [0.5, float("nan"), None]),
    "f": (pa.float32(), [0.5, None, -0.0]),
    "d": (pa.decimal128(6, 2), [Decimal("1.50"), Decimal("-1"), None]),
    "w": (pa.decimal128(38, 0), [Decimal(10**30), None, Decimal(-1)]),
    "b": (pa.bool_(), [True, False, None]),
    "s": (pa.string(), ["a", "it's", None]),
    "o": (pa.binary(), [b"a", b"", None]),
    "e": (pa.date32(), [date(2020, 1, 2), None, date(1, 1, 1)]),
    "t": (pa.timestamp("ms"), [datetime(2020, 1, 2, 3, 4, 5), None, datetime(1, 1, 1)]),
    "u": (pa.timestamp("us"), [datetime(2020, 1, 2, 3, 4, 5, 678), None, datetime(1, 1, 1)]),
    "z": (pa.timestamp("us", "UTC"), [datetime(2020, 1, 2, tzinfo=timezone.utc), None, None]),
    "l": (pa.list_(pa.int32()), [[1], None, []]),
}
VALUES = [
    None, True, 0, -1, 127, 128, 2**31 - 1, 2**31, 10**18, 10**37, 10**38, 0.0, 0.5, 0.1, 1e300,
    float("nan"), float("-inf"), Decimal("1.50"), Decimal("1.005"), Decimal("1E+5"), Decimal("NaN"),
    Decimal(10**30), b"a", b"", date(2020, 1, 2), datetime(2020, 1, 2, 3, 4, 5, 678901),
    datetime(1, 1, 1), datetime(2020, 1, 2, 3, tzinfo=timezone(timedelta(hours=2))), time(1, 2, 3),
    time(1, 2, 3, 4), time(1, tzinfo=timezone.utc), np.int64(5), np.float32(0.5), np.bool_(True),
    pa.scalar(7, pa.int8()), pa.scalar(None, pa.int8()), object(), [1],
]  # fmt: skip
CONDITIONS = [
    "k = 1",
    "s = 'a'",
    "i IS NULL OR x > 0",
    "NOT (b OR d = 1.5)",
    "e < '2021-01-01'",
    "s LIKE '%''s'",
    "w IN (1, -1)",
    "t >= TIMESTAMP '0001-01-01 00:00:00'",
    "k > 9",
]


def outcome(table: kt.Table, change: Callable[[], Changed]) -> tuple[str, list[Any]]:
    """What a change returns or raises, and the rows after it."""
    try:
        told = str(change().rows)
    except kt.KeytideError as error:
        told = f"{type(error).__name__}: {error}"
    return told, sorted(map(str, table.scan().to_pylist()))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[kt.Table, kt.Table]:
    schema = {"k": pa.int64(), **{name: type_ for name, (type_, _) in COLUMNS.items()}}
    one, other = (
        kt.connect(tmp_path_factory.mktemp("lake")).create_table(
            "db.t", pa.schema(schema), primary_key=["k"], options={"write-only": "true"}
        )
        for _ in range(2)
    )
    return one, other


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from([*COLUMNS, "S", "missing"]), st.sampled_from(VALUES),
       st.sampled_from(CONDITIONS), st.booleans())  # fmt: skip
def test_sql_would_have_changed_the_same_rows(
    two: tuple[kt.Table, kt.Table], column: str, value: Any, where: str, deletes: bool
) -> None:
    rows = pa.table({"k": [0, 1, 2], **{name: pa.array(v, t) for name, (t, v) in COLUMNS.items()}})
    done = []
    for table, condition in zip(two, (where, f"({where}) AND 1 = 1"), strict=True):
        table.overwrite(rows)
        act = (
            partial(table.delete, condition)
            if deletes
            else partial(table.update, {column: value}, condition)
        )
        done.append(outcome(table, act))
    assert done[0] == done[1]


def test_update_to_given_values_loads_no_sql_engine(tmp_path: Path) -> None:
    code = f"""
import sys, polars as pl, pyarrow as pa, keytide as kt
lake = kt.connect({str(tmp_path)!r})
table = lake.create_table("db.t", pa.schema({{"k": pa.int64(), "v": pa.float64()}}), ["k"])
table.write(pl.DataFrame({{"k": [1, 2], "v": [0.5, 1.5]}}))
print(table.update({{"v": 2}}, "k = 1").rows, table.update({{"V": None}}, pl.col("k") == 2).rows)
print(table.scan().to_pylist(), table.delete("k = 2").rows)
print({{"duckdb", "sqlglot", "keytide.sql.statements"}} & {{*sys.modules}})
"""
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "1 1", "[{'k': 1, 'v': 2.0}, {'k': 2, 'v': None}] 1", "set()"
    ]  # fmt: skip


def test_value_that_fits_no_column_is_refused_only_where_rows_match(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int32(), nullable=False)])
    table = kt.connect(tmp_path).create_table("db.t", schema, ["k"])
    table.write([{"k": 1, "v": 1}])
    assert table.update({"v": None}, "k = 2").rows == 0
    with pytest.raises(kt.InvalidError, match="NULL value not allowed"):
        table.update({"v": None}, "k = 1")
