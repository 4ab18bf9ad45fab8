"""Values that are none of their column's type: no condition takes them for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from databases import SomeDatabase

import keytide as kt

# What the columns hold that is of their type, as both databases and Keytide write it.
FITTING = {
    "i": ["-3", "0", "5", "6", "9007199254740993", "NULL"],
    "b": ["TRUE", "FALSE", "NULL"],
    "r": ["-0.5", "0.0", "2.5", "1e300", "NULL"],
    "s": ["''", "'a'", "'B'", "'é'", "'10'", "NULL"],
    "n": ["-1.50", "0.00", "2.25", "NULL"],
    "d": ["DATE '1969-12-31'", "DATE '2026-01-31'", "NULL"],
    "t": ["TIMESTAMP '2026-01-31 12:00:00'", "TIMESTAMP '1900-01-01 00:00:00.5'", "NULL"],
}
LAKE_TYPES = {"i": "BIGINT", "b": "BOOLEAN", "r": "DOUBLE", "s": "STRING", "n": "DECIMAL(10, 2)",
              "d": "DATE", "t": "TIMESTAMP(6)"}  # fmt: skip
DECLARED = {
    "sqlite": "INTEGER BOOLEAN REAL TEXT DECIMAL(10,2) DATE TIMESTAMP",
    "postgres": "BIGINT BOOLEAN FLOAT8 TEXT NUMERIC(10,2) DATE TIMESTAMP",
}
# One value or more of every storage class that is none of the type.
MISFITS = {
    "sqlite": {
        "i": ["'abc'", "x'7a7a'", "5.5", "''", "1e300"],
        "b": ["'no'", "x'00'", "0.5"],
        "r": ["'abc'", "x'00'"],
        "s": ["x'ff'", "x''"],
        "n": ["'abc'", "x'00'"],
        "d": ["'soon'", "5", "x'00'"],
        "t": ["'soon'", "5.5", "x'00'"],
    },
    "postgres": {
        "i": [], "b": [], "r": [], "s": [],
        "n": ["'NaN'"],
        "d": ["'infinity'", "'-infinity'"],
        "t": ["'infinity'", "'-infinity'", "'294276-01-01'"],
    },
}  # fmt: skip
CONDITIONS = {
    "i": ["i > 5", "i >= 5", "i < 5", "i <= 0", "i = 5", "i <> 5", "NOT (i = 5)", "NOT (i > 5)",
          "i IN (0, 6)", "i NOT IN (0, 6)", "i BETWEEN 0 AND 6", "NOT (i BETWEEN 0 AND 6)",
          "i = 9007199254740993", "NOT (i > 5 AND k > 0)", "NOT (i < 0 OR i > 5)",
          "i > 5 OR i IS NULL", "i IS NULL"],
    "b": ["b", "NOT b", "b = TRUE", "b = FALSE", "b <> TRUE", "b IS TRUE", "b IS NULL"],
    "r": ["r > 0", "r <= 2.5", "r = 2.5", "r <> 2.5", "NOT (r > 0)", "r IN (0.0, 2.5)"],
    "s": ["s > 'a'", "s < 'a'", "s <= 'é'", "s = 'a'", "s <> 'a'", "NOT (s = 'a')", "s = '10'",
          "s NOT IN ('a', 'B')", "s IS NULL"],
    "n": ["n > 0", "n < 0", "n = 2.25", "n <> 2.25", "NOT (n > 0)", "n NOT IN (0.00, 2.25)"],
    "d": ["d > DATE '2000-01-01'", "d < DATE '2000-01-01'", "d <> DATE '2026-01-31'",
          "NOT (d > DATE '2000-01-01')"],
    "t": ["t > TIMESTAMP '2000-01-01 00:00:00'", "t < TIMESTAMP '2000-01-01 00:00:00'",
          "NOT (t > TIMESTAMP '2000-01-01 00:00:00')"],
}  # fmt: skip
COLUMNS = list(LAKE_TYPES)


@pytest.fixture
def lake(warehouse: str, database: SomeDatabase) -> kt.Lake:
    lake = kt.connect(warehouse)
    lake.attach("db", database.place)
    return lake


def filled(lake: kt.Lake, database: SomeDatabase, column: str) -> list[int]:
    """A table of the database with all values of a column, and one of the lake with those that fit.

    Gives the keys of the others.
    """
    fitting, misfits = FITTING[column], MISFITS[database.kind][column]
    types = dict(zip(COLUMNS, DECLARED[database.kind].split(), strict=True))
    texts = [f"INSERT INTO x VALUES ({k}, {_written(v, database)})"
             for k, v in enumerate([*fitting, *misfits])]  # fmt: skip
    made = f"CREATE TABLE x (k INTEGER PRIMARY KEY, {column} {types[column]})"
    kept = made.replace(" x (", " kept (")
    database.run(made, *texts, kept, "INSERT INTO kept SELECT * FROM x")
    lake.sql(f"CREATE TABLE y (k INT PRIMARY KEY NOT ENFORCED, "
             f"{column} {LAKE_TYPES[column]})")  # fmt: skip
    rows = ", ".join(f"({k}, {v})" for k, v in enumerate(fitting))
    lake.sql(
        f"INSERT INTO y SELECT k, CAST(v AS {LAKE_TYPES[column]}) FROM (VALUES {rows}) z (k, v)"
    )
    return list(range(len(fitting), len(fitting) + len(misfits)))


def _written(value: str, database: SomeDatabase) -> str:
    words = ("DATE ", "TIMESTAMP ") if database.kind == "sqlite" else ()
    return value.removeprefix(next((word for word in words if value.startswith(word)), ""))


def keys(database: SomeDatabase) -> list[int]:
    return sorted(k for (k,) in database.rows("SELECT k FROM x"))


def changed(lake: kt.Lake, database: SomeDatabase, text: str) -> list[int] | None:
    """The keys after a statement on all rows; None where it read a value that is none."""
    database.run("DELETE FROM x", "INSERT INTO x SELECT * FROM kept")
    try:
        lake.sql(text)
    except kt.DataError:
        return None
    return keys(database)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("column", COLUMNS)
def test_condition_means_in_a_database_what_it_means_in_a_lake(
    lake: kt.Lake, database: SomeDatabase, column: str
) -> None:
    misfits = filled(lake, database, column)
    every = keys(database)
    for condition in CONDITIONS[column]:
        found = [r["k"] for r in lake.sql(f"SELECT k FROM y WHERE {condition}").to_pylist()]
        left = sorted(set(every) - set(found))
        assert set(misfits) <= set(left)
        deleted = changed(lake, database, f"DELETE FROM db.x WHERE {condition}")
        assert deleted in (left, None), condition
        if "NOT" not in condition:
            continue
        updated = changed(lake, database, f"UPDATE db.x SET k = k + 100 WHERE {condition}")
        assert updated in (sorted([*left, *(k + 100 for k in found)]), None), condition


@pytest.mark.one_in(14)
@pytest.mark.parametrize("column", COLUMNS)
def test_value_that_is_none_is_an_error_where_it_is_read(
    lake: kt.Lake, database: SomeDatabase, column: str
) -> None:
    for k in filled(lake, database, column):
        with pytest.raises(kt.DataError, match=f"column '{column}' is declared"):
            lake.sql(f"SELECT {column} FROM db.x WHERE k = {k}").to_arrow()
    every = keys(database)
    assert [r["k"] for r in lake.sql("SELECT k FROM db.x ORDER BY k").to_pylist()] == every


def test_conditions_that_are_pushed_use_an_index(sqlite: SomeDatabase, lake: kt.Lake) -> None:
    sqlite.run("CREATE TABLE z (a TEXT PRIMARY KEY, n INTEGER)", "CREATE INDEX zn ON z (n)")
    for condition in ("a = 'x' AND typeof(a) = 'text'", "n > 5 AND typeof(n) = 'integer'"):
        (plan,) = sqlite.rows(f"EXPLAIN QUERY PLAN SELECT * FROM z WHERE {condition}")
        assert "SEARCH" in str(plan)


# -- values that Python has no type for ------------------------------------------------------------


def out_of_python() -> Iterator[tuple[str, Any]]:
    for years in (-4000, 9000):  # before the year 1, beyond the year 9999
        yield f"date {years}", pa.array([years * 365], pa.int32()).cast(pa.date32())
        for unit, per_day in (("s", 86_400), ("us", 86_400_000_000)):
            ticks = pa.array([years * 365 * per_day], pa.int64())
            yield f"{unit} {years}", ticks.cast(pa.timestamp(unit))
            yield f"{unit} UTC {years}", ticks.cast(pa.timestamp(unit, "UTC"))


def answer(call: Callable[[], object]) -> str:
    try:
        call()
    except kt.UnsupportedError as error:
        return str(error)
    return ""


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("name", "values"), list(out_of_python()), ids=lambda v: str(v)[:12])
def test_value_that_python_lacks_is_named(warehouse: str, name: str, values: pa.Array) -> None:
    lake = kt.connect(warehouse)
    rows = pa.table({"k": [1], "v": values, "l": pa.array([[values[0]]], pa.list_(values.type))})
    table = lake.create_table("t", rows.schema, ["k"])
    table.write(rows)
    for call in (
        lambda: table.get(1), table.scan().to_pylist, lambda: table.why(1),
        lake.sql("SELECT k, v FROM t").to_pylist,
    ):  # fmt: skip
        assert "column 'v'" in answer(call)
        assert "to_arrow" in answer(call)
    assert "column 'l'" in answer(lake.sql("SELECT l FROM t").to_pylist)
    for call in (table.scan().to_pandas, lake.sql("SELECT v FROM t").to_pandas):
        answer(call)  # pandas has times of some years more
    assert table.get_many([1]).column("v").equals(table.scan().to_arrow().column("v"))
