"""Append tables are compacted: small files together, rows in order, nothing lost or twice."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.commit.change import Author, Change
from keytide.compaction.append_tables import pack_tasks
from keytide.format.manifest_entry import ManifestEntry
from keytide.format.snapshot import CommitKind
from keytide.options import TableOptions
from keytide.snapshot.live_files import DeadRows, by_index_key
from keytide.snapshot.state import TableState
from keytide.store import Store
from keytide.store.faults import Fault, FaultyStore, Operation
from keytide.write.task import TaskResult
from new_tables import dotted, empty_lake, empty_store, empty_table, table_in
from overtaking import overtaken
from publishing import publish

SCHEMA = pa.schema([("p", pa.string()), ("n", pa.int64()), ("m", pa.float64()), ("v", pa.string())])


def new_table(partitioned: bool = False, **options: str) -> kt.Table:
    named = dotted(options)
    return empty_table(SCHEMA, (), ["p"] if partitioned else [], options=named)


def some_rows(*numbers: int | None, p: str = "a") -> pa.Table:
    columns = {
        "p": [p] * len(numbers), "n": list(numbers),
        "m": [None if n is None else n / 3 for n in numbers], "v": [f"v{n}" for n in numbers],
    }  # fmt: skip
    return pa.table(columns, schema=SCHEMA)


def entries(table: kt.Table) -> list[ManifestEntry]:
    return list(table.scan().live.entries)


def values(table: kt.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.scan().to_pylist()), key=repr)


# -- small files together --------------------------------------------------------------------------


def test_small_files_of_each_partition_become_one() -> None:
    table = new_table(partitioned=True)
    for n in range(6):
        table.write(some_rows(n, p="ab"[n % 2]))
    before = values(table)
    done = table.compact(full=True)
    assert (done.files_before, done.files_after, done.buckets) == (6, 2, 2)
    assert values(table) == before
    assert [entry.file.row_count for entry in entries(table)] == [3, 3]
    assert table.compact(full=True).snapshot_id is None


def test_few_small_files_wait_for_more_and_a_dry_run_tells_of_them() -> None:
    table = new_table()
    for n in range(4):
        table.write(some_rows(n))
    assert table.compact().files_before == 0
    assert table.compact(full=True, dry_run=True).files_before == 4
    table.write(some_rows(4))
    assert table.compact(dry_run=True).files_before == 5
    assert len(entries(table)) == 5
    assert table.compact().files_after == 1


def test_large_files_stay_as_they_are() -> None:
    table = new_table(target_file_size="10 kb")
    large = pa.table(
        {
            "p": ["a"] * 9000,
            "n": range(9000),
            "m": [0.5] * 9000,
            "v": [str(n * n) for n in range(9000)],
        }
    )
    table.write(large.cast(SCHEMA))
    kept = {e.file.file_name for e in entries(table) if e.file.file_size > 7 << 10}
    table.write(some_rows(1))
    table.write(some_rows(2))
    table.compact(full=True)
    assert kept <= {e.file.file_name for e in entries(table)}
    assert table.scan().to_arrow().num_rows == 9002


def test_writes_compact_no_append_table() -> None:
    table = new_table()
    for n in range(8):
        table.write(some_rows(n))
    assert len(entries(table)) == 8


def test_appends_come_beside_a_compaction_and_another_compaction_comes_first() -> None:
    table = new_table()
    for n in range(3):
        table.write(some_rows(n))
    late = overtaken(table, lambda: table.write(some_rows(9)))
    assert late.compact(full=True).files_after == 1
    assert [row[1] for row in values(table)] == [0, 1, 2, 9]
    late = overtaken(table, lambda: table.compact(full=True))
    assert late.compact(full=True).overtaken
    assert [row[1] for row in values(table)] == [0, 1, 2, 9]


@pytest.mark.parametrize("operation", ["output", "put", "create"])
def test_failed_compaction_leaves_the_table_and_no_file(operation: Operation) -> None:
    store = empty_store()
    table = kt.connect("", store=store).create_table("t", SCHEMA, ())
    for n in range(3):
        table.write(some_rows(n))
    before, files = values(table), data_files(store)
    for nth in itertools.count(1):
        faulty = FaultyStore(store, [Fault(operation, nth=nth)])
        try:
            table_in(faulty).compact(full=True)
        except kt.DataError:
            assert values(table) == before
            # Whether a snapshot was made is not known where its creation fails.
            assert operation == "create" or data_files(store) == files
        else:
            break
    assert nth > 1
    assert values(table) == before


def data_files(store: Store) -> set[str]:
    return {info.path for info in store.list("") if "/data-" in info.path}


# -- rows in order ---------------------------------------------------------------------------------


@pytest.mark.takes_turns
@pytest.mark.parametrize("strategy", ["order", "zorder", "hilbert"])
@given(
    parts=st.lists(
        st.lists(st.none() | st.integers(-5, 5), min_size=1, max_size=8), min_size=1, max_size=4
    ),
    memory=st.sampled_from(["64 kb", "256 mb"]),
)
def test_order_keeps_every_row(strategy: str, parts: list[Any], memory: str) -> None:
    table = new_table(partitioned=True, read__memory=memory)
    for i, numbers in enumerate(parts):
        table.write(some_rows(*numbers, p="ab"[i % 2]))
    before = values(table)
    table.compact(order_by=["n", "v"], order_strategy=strategy)
    assert values(table) == before


def test_order_of_one_column_is_that_of_its_values_nulls_first() -> None:
    table = new_table()
    table.write(some_rows(5, 3, None))
    table.write(some_rows(4, 1))
    table.compact(order_by=["n"])
    (only,) = entries(table)
    assert table.scan().to_arrow()["n"].to_pylist() == [None, 1, 3, 4, 5]
    assert only.file.row_count == 5


@pytest.mark.takes_turns
def test_order_lets_readers_skip_files_by_each_of_its_columns() -> None:
    rows = pl.DataFrame({"p": "a", "n": pl.int_range(40_000, eager=True).shuffle(seed=1)})
    rows = rows.with_columns(m=(pl.col("n") * 7919 % 40_000).cast(pl.Float64), v=pl.lit("x"))
    skipped = {}
    for strategy in ("order", "zorder", "hilbert"):
        table = new_table(target_file_size="20 kb")
        table.write(rows)
        table.compact(order_by=["n", "m"], order_strategy=strategy)
        files = len(entries(table))
        assert files >= 8
        scans = [table.scan(where=f"{c} BETWEEN 10000 AND 10100") for c in ("n", "m")]
        assert [scan.to_arrow().num_rows for scan in scans] == [101, 101]
        skipped[strategy] = [1 - scan.plan.funnel.stages[-1].files / files for scan in scans]
    assert skipped["order"][0] >= 0.8
    for strategy in ("zorder", "hilbert"):
        assert min(skipped[strategy]) >= 0.4, skipped


@pytest.mark.parametrize(
    ("order_by", "strategy", "error", "message"),
    [
        (["n"], "random", kt.InvalidError, "expected one of order, zorder, hilbert"),
        ([], "zorder", kt.InvalidError, "order_by is"),
        (["n", "n"], None, kt.InvalidError, "name each column once"),
        (["x"], None, kt.NotFoundError, "names the column 'x'"),
    ],
)
def test_order_that_is_none_is_refused(
    order_by: list[str], strategy: str | None, error: type[Exception], message: str
) -> None:
    table = new_table()
    table.write(some_rows(1))
    with pytest.raises(error, match=message):
        table.compact(order_by=order_by, order_strategy=strategy)
    assert table.metadata.latest_snapshot().id == 1


def test_order_is_refused_where_a_key_orders_the_rows() -> None:
    table = empty_table(pa.schema([("n", pa.int64())]), ["n"])
    with pytest.raises(kt.UnsupportedError, match="only for tables without a primary key"):
        table.compact(order_by=["n"])


def test_procedure_orders_rows_as_users_of_the_format_call_it() -> None:
    lake = empty_lake()
    table = lake.create_table("t", SCHEMA, ())
    table.write(some_rows(3, 1))
    table.write(some_rows(2))
    lake.sql("CALL sys.compact(table => 't', order_strategy => 'zorder', order_by => 'n, m')")
    assert [row["n"] for row in table.scan().to_pylist()] == [1, 2, 3]


# -- dead rows -------------------------------------------------------------------------------------


def test_dead_rows_are_dropped_with_their_vectors() -> None:
    table = new_table()
    table.write(some_rows(1, 2, 3))
    table.write(some_rows(4, 5))
    one, other = (entry.file.file_name for entry in entries(table))
    scan, bucket = table.scan(), (entries(table)[0].partition, 0)
    dead = DeadRows().marking({one: np.array([0, 2]), other: np.array([1])}, wide=False)
    marks = TaskResult((), indexes=by_index_key({bucket: dead}))
    publish(table, scan.view, Change(marks, Author.fresh()), scan.live)
    scan = table.scan()
    index_files = tuple(table.metadata.index_files(table.metadata.latest_snapshot()))
    options = TableOptions({**scan.view.options.raw, "deletion-vectors.enabled": "true"})
    state = TableState(replace(scan.view, options=options), scan.live, index_files)
    (task,) = pack_tasks(state, full=True, memory_bytes=1 << 20)
    made = task().result
    assert made is not None
    assert dict(made.dead[bucket].vectors) == {}
    publish(table, scan.view, Change(made, Author.fresh(), CommitKind.COMPACT), scan.live)
    assert [row["n"] for row in table.scan().to_pylist()] == [2, 4]
