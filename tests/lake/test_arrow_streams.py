"""Rows that go in and out as Arrow streams, as other libraries and loops take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import keytide as kt
from keytide.errors import InvalidError
from keytide.read.scan import ReadTask
from table_rows import dicts

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})
ROWS = [{"k": 1, "v": "a"}, {"k": 2, "v": None}, {"k": 3, "v": "c"}]
GIVEN = pa.Table.from_pylist(ROWS, SCHEMA)
OPTIONS = {"bucket": "2"}


@dataclass
class Stream:
    """What another library may give: an Arrow stream and nothing else, once."""

    rows: pa.Table
    asked: int = 0

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        self.asked += 1
        assert self.asked == 1, "a stream gives its rows once"
        return self.rows.__arrow_c_stream__(requested_schema)


@dataclass
class Array:
    rows: pa.Table

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        (batch,) = self.rows.to_batches()
        return batch.__arrow_c_array__(requested_schema)


def in_duckdb(rows: pa.Table) -> Any:
    return duckdb.connect().from_arrow(rows)


def views_of(rows: pa.Table) -> Any:
    names = {"k": pa.int64(), "v": pa.string_view()}
    return Stream(rows.cast(pa.schema(names)))


CONTAINERS: dict[str, Callable[[pa.Table], Any]] = {
    "a stream": Stream,
    "a stream of string views": views_of,
    "an array": Array,
    "a DuckDB relation": in_duckdb,
    "a dataset": ds.dataset,
    "a scanner": lambda rows: ds.dataset(rows).scanner(),
    "a reader": lambda rows: rows.to_reader(),
    "a lazy frame": lambda rows: pl.from_arrow(rows).lazy(),
}
containers = pytest.mark.parametrize("of", CONTAINERS.values(), ids=CONTAINERS)


@pytest.fixture
def table(lake: kt.Lake) -> kt.Table:
    return lake.create_table("t", SCHEMA, ["k"], options=OPTIONS)


@pytest.fixture
def filled(table: kt.Table) -> kt.Table:
    table.write(ROWS)
    return table


# -- in ------------------------------------------------------------------------------------------


@containers
def test_write_takes(table: kt.Table, of: Callable[[pa.Table], Any]) -> None:
    assert table.write(of(GIVEN)).rows == 3
    assert dicts(table.scan()) == ROWS


@containers
def test_overwrite_takes(filled: kt.Table, of: Callable[[pa.Table], Any]) -> None:
    filled.overwrite(of(GIVEN.slice(2)))
    assert dicts(filled.scan()) == ROWS[2:]


@containers
def test_merge_takes(table: kt.Table, of: Callable[[pa.Table], Any]) -> None:
    table.write(ROWS[:1])
    merge = table.merge(of(GIVEN), "target.k = source.k")
    merge.when_matched_delete().when_not_matched_insert_all().execute()
    assert dicts(table.scan()) == ROWS[1:]


def test_write_takes_a_scan_of_another_table(filled: kt.Table, lake: kt.Lake) -> None:
    other = lake.create_table("other", SCHEMA, ["k"], options=OPTIONS)
    other.write(filled.scan(where="k > 1"))
    assert dicts(other.scan()) == ROWS[1:]


def test_a_stream_that_fails_is_an_error_that_names_the_table(table: kt.Table) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from GIVEN.to_batches()
        raise OSError("the line is dead")

    class Failing:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            reader = pa.RecordBatchReader.from_batches(SCHEMA, batches())
            return reader.__arrow_c_stream__(requested_schema)

    with pytest.raises(
        InvalidError, match=r"default\.t: cannot read the rows of a .*Failing.*line is dead"
    ):
        table.write(Failing())
    assert not table.snapshots()


@pytest.mark.parametrize("data", [{"k": [1]}, iter(ROWS), 7], ids=["a dict", "an iterator", "7"])
def test_other_things_are_refused_with_what_is_taken(table: kt.Table, data: Any) -> None:
    with pytest.raises(InvalidError, match="an Arrow stream, such as a DuckDB relation"):
        table.write(data)


# -- out -----------------------------------------------------------------------------------------


def scan_of(table: kt.Table) -> Any:
    return table.scan()


def result_of(table: kt.Table) -> Any:
    return kt.connect(table.uri.rsplit("/", 3)[0]).sql("SELECT * FROM t")


def changes_of(table: kt.Table) -> Any:
    return table.changes(0)


GIVERS = [scan_of, result_of, changes_of]
givers = pytest.mark.parametrize("give", GIVERS)


@givers
def test_other_libraries_read(filled: kt.Table, give: Callable[[kt.Table], Any]) -> None:
    given = give(filled)
    expected = dicts(given)
    assert dicts(pa.table(given)) == expected
    assert pl.DataFrame(given).sort("k").to_dicts() == expected
    found = duckdb.sql("SELECT v FROM given WHERE k > 1 ORDER BY k").fetchall()
    assert found == [(None,), ("c",)]
    assert dicts(given.to_reader().read_all()) == expected


@givers
def test_loops_count_and_look(filled: kt.Table, give: Callable[[kt.Table], Any]) -> None:
    given = give(filled)
    assert sorted(given, key=lambda row: row["k"]) == dicts(given)
    assert len(given) == given.count() == 3
    assert [given.head(n).num_rows for n in (0, 2, 9)] == [0, 2, 3]
    assert given.head(0).schema == given.schema
    assert given


@givers
def test_no_rows_are_false_and_have_columns(
    filled: kt.Table, give: Callable[[kt.Table], Any]
) -> None:
    filled.delete()
    if give is changes_of:
        given: Any = filled.changes(2, 2)
    else:
        given = give(filled)
    assert not given
    assert len(given) == 0
    assert list(given) == []
    assert pa.table(given).schema.names[-2:] == ["k", "v"]


def test_head_below_zero_is_refused(filled: kt.Table) -> None:
    with pytest.raises(InvalidError, match="head: -1 rows; expected 0 or more"):
        filled.scan().head(-1)


# -- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 9])
def test_a_limited_scan_gives_so_many_rows_in_every_shape(filled: kt.Table, limit: int) -> None:
    scan, expected = filled.scan(limit=limit), min(limit, 3)
    shapes = [scan.to_arrow(), scan.to_polars(), scan.to_pylist(), [*scan], scan.to_pandas()]
    assert [len(shape) for shape in shapes] == [expected] * 5
    assert scan.count() == expected
    assert scan.to_reader().read_all().num_rows == expected


def test_a_limit_counts_rows_that_meet_the_condition(filled: kt.Table) -> None:
    assert dicts(filled.scan(where="k > 2", limit=1)) == ROWS[2:]


def test_a_limited_scan_reads_no_further_buckets(
    filled: kt.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    frames = ReadTask.frames

    def seen(task: ReadTask, memory_bytes: int) -> Any:
        read.append(task.bucket.bucket)
        return frames(task, memory_bytes)

    monkeypatch.setattr(ReadTask, "frames", seen)
    filled.scan(limit=1).to_arrow()
    assert len(read) == 1
    assert len(filled.scan().plan.buckets) == 2


def test_a_limit_below_zero_is_refused(filled: kt.Table) -> None:
    with pytest.raises(InvalidError, match=r"table default\.t: limit is -1; expected 0 or more"):
        filled.scan(limit=-1)


# -- what a thing says that it is ----------------------------------------------------------------


def test_short_texts_say_what_a_thing_is(filled: kt.Table) -> None:
    scan = filled.scan(["k"], where="k > 1", limit=2)
    assert repr(scan) == "Scan(default.t; snapshot 1; columns k; where `k` > 1; limit 2)"
    assert "; at most 2 rows\n" in str(scan.explain())
    assert repr(filled.changes(0)) == "Changes(default.t; snapshots 0 to 1; mode diff)"
    lake = kt.connect(filled.uri.rsplit("/", 3)[0])
    assert repr(lake.sql("SELECT k FROM t")) == "LocalResult(3 rows: k int64)"
    assert repr(lake.sql("DELETE FROM t WHERE k = 1")) == "ChangeResult(1 row changed)"
