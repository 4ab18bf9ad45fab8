"""Look-ups by key: `get` and `get_many` give what a dict would, whatever the table was made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.types import Field
from type_values import SCALARS, column_of, kind_of

Row = dict[str, Any]
TEXTS = ["", "a", "ä", "b"]
keys = st.tuples(st.sampled_from(TEXTS), st.integers(-3, 3))
writes = st.lists(
    st.dictionaries(keys, st.none() | st.integers(0, 99), max_size=8), min_size=1, max_size=6
)


@given(writes=writes, wanted=st.lists(keys, max_size=12), buckets=st.integers(1, 3))
def test_any_keys_are_found_as_in_a_dict(
    tmp_path_factory: pytest.TempPathFactory,
    writes: list[dict[tuple[str, int], int | None]],
    wanted: list[tuple[str, int]],
    buckets: int,
) -> None:
    lake = kt.connect(tmp_path_factory.mktemp("lake"))
    schema = pa.schema([("p", pa.string()), ("k", pa.int32()), ("v", pa.int64())])
    partitions = ["p"] if buckets == 2 else []
    table = lake.create_table(
        "t", schema, ["p", "k"], partition_by=partitions, options={"bucket": str(buckets)}
    )
    model: dict[tuple[str, int], int] = {}
    for changes in writes:
        rows = [
            {"p": p, "k": k, "v": v, "_row_kind": "-D" if v is None else "+I"}
            for (p, k), v in changes.items()
            if p or not partitions  # an empty text is no name of a folder
        ]
        table.write(rows)
        for row in rows:
            model.pop((row["p"], row["k"]), None)
            if row["v"] is not None:
                model[row["p"], row["k"]] = row["v"]
    for p, k in wanted:
        row = {"p": p, "k": k, "v": model[p, k]} if (p, k) in model else None
        assert table.get((p, k)) == row
    expected = [{"p": p, "k": k, "v": model[p, k]} for p, k in dict.fromkeys(wanted)
                if (p, k) in model]  # fmt: skip
    assert table.get_many(wanted).to_pylist() == expected


@pytest.mark.one_in(14)
@pytest.mark.parametrize("text", SCALARS)
def test_keys_of_every_type_are_found_together(warehouse: str, text: str) -> None:
    kind = kind_of(text)
    fields = [Field(-1, "k", kind.with_nullable(False)), Field(-1, "v", kind_of("INT"))]
    table = kt.connect(warehouse).create_table("t", fields, ["k"], options={"bucket": "2"})
    values = column_of(SCALARS[text], kind)
    count = len(values)
    table.write(pa.table({"k": values, "v": pa.array(range(count), pa.int32())}))
    table.write(pa.table({"k": values[1:], "v": pa.array(range(11, count + 10), pa.int32())}))
    found = table.get_many(list(reversed(values)))
    assert found.column("v").to_pylist() == [*range(count + 9, 10, -1), 0]
    assert [table.get(value)["v"] for value in values] == [0, *range(11, count + 10)]


def big_table(path: Path | str) -> kt.Table:
    """A file that is mapped, and three small runs over it."""
    table = kt.connect(path).create_table(
        "t", pa.schema([("k", pa.int64()), ("v", pa.float64())]), ["k"]
    )
    write_range(table, 0, 60_000, 1, 0.0)
    for number, step in enumerate([2, 3, 30_000], start=1):
        write_range(table, 0, 60_000, step, float(number))
    return table


def write_range(table: kt.Table, start: int, stop: int, step: int, v: float) -> None:
    ks = pl.int_range(start, stop, step, dtype=pl.Int64, eager=True)
    table.write(pl.DataFrame({"k": ks, "v": ks / 8 + v}))


def version(k: int) -> float:
    return 3.0 if k % 30_000 == 0 else 2.0 if k % 3 == 0 else 1.0 if k % 2 == 0 else 0.0


def test_keys_are_found_in_mapped_files_again_and_again(tmp_path: Path) -> None:
    table = big_table(tmp_path)
    some = [0, 1, 2, 3, 29_999, 30_000, 59_999, 60_000, -1]
    for _ in range(2):
        expected = [{"k": k, "v": k / 8 + version(k)} for k in some if 0 <= k < 60_000]
        assert table.get_many(some).to_pylist() == expected
        assert [row for k in some if (row := table.get(k))] == expected
    write_range(table, 1, 2, 1, 9.0)
    assert table.get(1) == {"k": 1, "v": 1 / 8 + 9}


def test_table_made_anew_under_a_name_shows_nothing_of_the_old_one(tmp_path: Path) -> None:
    assert big_table(tmp_path).get(5) == {"k": 5, "v": 5 / 8}
    lake = kt.connect(tmp_path)
    lake.drop_table("t")
    table = big_table(tmp_path)
    write_range(table, 5, 6, 1, 100.0)
    assert table.get(5) == {"k": 5, "v": 5 / 8 + 100}


def test_file_that_is_torn_after_it_was_read_is_an_error(tmp_path: Path) -> None:
    table = big_table(tmp_path)
    assert table.get(5) is not None
    largest = max(tmp_path.rglob("data-*.parquet"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-100])
    with pytest.raises(kt.DataError, match=largest.name):
        table.get(5)
    largest.unlink()
    with pytest.raises(kt.DataError, match=rf"{largest.name} is missing"):
        table.get(5)


def test_no_keys_give_no_rows(tmp_path: Path) -> None:
    table = big_table(tmp_path)
    assert table.get_many([]).schema == table.schema
    assert table.get_many([]).num_rows == 0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([(1, 2)], "primary key is k, found 2 values"),
        ([1, {"w": 1}], "primary key is k, found w"),
        ([1, "x"], "key column 'k' is BIGINT NOT NULL, found"),
        ("x", "keys is 'x'"),
    ],
)
def test_keys_that_are_none_are_refused(lake: kt.Lake, given: Any, reason: str) -> None:
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    table.write([{"k": 1}])
    with pytest.raises(kt.InvalidError, match=reason):
        table.get_many(given)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("columns", [1, 2, 63, 64, 65, 200])
def test_key_of_any_number_of_columns_is_found(warehouse: str, columns: int) -> None:
    key = [f"k{number}" for number in range(columns)]
    schema = pa.schema([(name, pa.int32()) for name in [*key, "v"]])
    table = kt.connect(warehouse).create_table("t", schema, key, options={"bucket": "3"})
    rows = [{**dict.fromkeys(key, 1), key[-1]: n, "v": n} for n in range(20)]
    table.write(rows)
    assert [table.get(tuple(row[name] for name in key)) for row in rows] == rows
    assert table.get_many([[row[name] for name in key] for row in rows]).num_rows == 20
    among = " AND ".join(f"{name} IN (1, 7)" for name in key[-3:])
    expected = sum(all(row[name] in (1, 7) for name in key[-3:]) for row in rows)
    assert table.scan(where=among).count() == expected
    assert table.scan(where=f"{among} AND {key[0]} IN ()").count() == 0
    assert table.scan(where=" AND ".join(f"{name} IN ()" for name in key)).count() == 0
    assert table.get_many([]).num_rows == 0


@pytest.mark.parametrize("unit", ["ms", "us"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_that_python_cannot_hold_are_found(
    tmp_path: Path, unit: str, zone: str | None
) -> None:
    type_ = pa.timestamp(unit, zone)
    per_year = 31_556_952 * {"ms": 10**3, "us": 10**6}[unit]
    ticks = [-4_000 * per_year, 0, 14_000 * per_year]
    schema = pa.schema([pa.field("t", type_), pa.field("v", pa.int64())])
    table = kt.connect(tmp_path).create_table("t", schema, ["t"])
    table.write(pa.table([pa.array(ticks, type_), pa.array([0, 1, 2])], schema=schema))
    for place, tick in enumerate(ticks):
        found = table.get_many([pa.scalar(tick, type_)])
        assert found.column("v").to_pylist() == [place]


def test_look_for_no_rows_plans_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = kt.connect(tmp_path).create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    table.write([{"k": 1}])
    scan = table.scan(limit=0)
    monkeypatch.setattr(type(scan), "tasks", lambda scan: pytest.fail("planned"))
    assert (scan.to_arrow().num_rows, scan.to_polars().height, scan.to_pylist()) == (0, 0, [])
