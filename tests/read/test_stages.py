"""The stages of reading: what is planned, stored versions, merged versions, rows."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import keytide as kt
from compacting import compact, merged_versions, stored_versions
from keytide.catalogs.system_tables import audit_log
from keytide.format.index_files import VectorPlace, dead_positions
from keytide.merge.order import SEQUENCE_NUMBER, VALUE_KIND
from keytide.read import merged_versions as read
from keytide.read.runs import SYSTEM_COLUMNS, StoredVersions
from new_tables import empty_table

SAMPLES = Path(__file__).parents[1] / "data/samples"

ADDS = ("+I", "+U")
ALL = ("+I", "-U", "+U", "-D")
GROUP = {"fields.s.sequence-group": "v", "fields.v.aggregate-function": "sum"}
ENGINES: dict[str, tuple[Sequence[str], dict[str, str]]] = {
    "deduplicate": (ALL, {}),
    "by sequence": (ALL, {"sequence.field": "s"}),
    "by least sequence": (
        ALL, {"sequence.field": "s", "sequence.field.sort-order": "descending"},
    ),
    "first-row": (ADDS, {"merge-engine": "first-row"}),
    "partial-update": (ADDS, {"merge-engine": "partial-update"}),
    "removing": (
        (*ADDS, "-D"),
        {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"},
    ),
    "sum of a group": (ALL, {"merge-engine": "partial-update", **GROUP}),
    "sum": (
        ALL,
        {
            "merge-engine": "aggregation",
            "fields.default-aggregate-function": "sum",
            "sequence.field": "s",
        },
    ),
}  # fmt: skip

Version = tuple[int, int | None, int | None]
versions = st.lists(
    st.tuples(st.integers(0, 6), st.none() | st.integers(0, 3), st.none() | st.integers(-2, 2)),
    min_size=1,
    max_size=5,
)
writes = st.lists(versions, min_size=2, max_size=5)


def written(options: dict[str, str], kinds: Sequence[str], found: list[list[Version]]) -> kt.Table:
    """A table of one bucket with a commit for each list, the kinds in turn."""
    columns = {"k": "INT NOT NULL", "s": "INT", "v": "INT"}
    table = empty_table(columns, ["k"], options={"write-only": "true", **options})
    names = ("k", "s", "v", "_row_kind")
    for number, some in enumerate(found):
        marked = [(*v, kinds[(number + i) % len(kinds)]) for i, v in enumerate(some)]
        table.write([dict(zip(names, version, strict=True)) for version in marked])
    return table


def rows_and_kinds(table: kt.Table) -> tuple[list[Any], list[Any]]:
    """The rows, and the outcome of every key with its kind."""
    rows = sorted(table.scan().to_pylist(), key=repr)
    return rows, sorted(audit_log(table.scan()).to_pylist(), key=repr)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=max(4, settings().max_examples // 6))
@given(found=writes, batch_rows=st.integers(1, 4), level=st.sampled_from([1, 5]))
def test_merged_versions_written_again_leave_the_table_as_it_is(
    engine: str, found: list[list[Version]], batch_rows: int, level: int
) -> None:
    kinds, options = ENGINES[engine]
    table = written(options, kinds, found)
    before, files = rows_and_kinds(table), table.scan().live.entries
    stored = stored_versions(table, files)
    view = table.scan().view
    with mock.patch.object(read, "_BATCH_ROWS_MIN", batch_rows):
        merged = merged_versions(table, files, memory_bytes=1)
        compact(table, level, memory_bytes=1)
    at_once = view.engine.merge(view.order.sort(stored)).sort("k")
    assert merged.equals(at_once.select(merged.columns))
    taken = view.order.sort(stored).group_by("k", maintain_order=True)
    deciding = taken.first() if engine == "first-row" else taken.last()
    assert numbers(merged) == numbers(deciding)
    (file,) = (entry.file for entry in table.scan().live.entries)
    assert (file.min_sequence_number, file.max_sequence_number) == (
        merged[SEQUENCE_NUMBER].min(), merged[SEQUENCE_NUMBER].max(),
    )  # fmt: skip
    assert file.delete_row_count == merged[VALUE_KIND].is_in([1, 3]).sum()
    assert rows_and_kinds(table) == before


def numbers(versions: pl.DataFrame) -> dict[int, int]:
    return dict(versions.select("k", SEQUENCE_NUMBER).rows())


@pytest.mark.parametrize("engine", ["deduplicate", "by sequence"])
@settings(max_examples=max(4, settings().max_examples // 6))
@given(found=writes, late=versions)
def test_kept_numbers_and_deletes_order_what_comes_later(
    engine: str, found: list[list[Version]], late: list[Version]
) -> None:
    kinds, options = ENGINES[engine]
    whole, compacted = (written(options, kinds, found) for _ in range(2))
    compact(compacted, 1)
    for table in (whole, compacted):
        table.write([{"k": k, "s": s, "v": v} for k, s, v in late])
    assert rows_and_kinds(compacted) == rows_and_kinds(whole)


def test_versions_have_the_columns_asked_for_as_they_are_stored() -> None:
    table = written({}, ALL, [[(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1)]])
    (file,) = table.scan().plan.buckets[0].files
    view, partition = table.scan().view, file.entry.partition
    stored = StoredVersions(view, partition, ("v", *SYSTEM_COLUMNS)).of_file(file)
    assert stored.rows() == [(1, 0, 0), (1, 0, 1), (1, 0, 2), (1, 0, 3)]
    assert StoredVersions(view, partition, ("k",)).of_file(file).columns == ["k"]


# -- deletion vectors ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wh/spec.db/dv", "java-0.9/wh/spec.db/j_dv"])
def test_plan_says_where_dead_rows_are_recorded_and_what_is_hidden(name: str) -> None:
    table = kt.open_table(SAMPLES / name)
    hidden = dead = 0
    for snapshot in table.snapshots():
        scan = table.scan(snapshot_id=snapshot.id)
        files = [file for bucket in scan.plan.buckets for file in bucket.files]
        level_0 = [entry for entry in scan.live.entries if entry.file.level == 0]
        assert [file.entry for file in scan.plan.hidden] == level_0
        marked = [file for file in files if file.dead_rows is not None]
        positions = sum(len(dead_positions(scan.view.store, p)) for p in places(marked))
        assert scan.count() == sum(file.meta.row_count for file in files) - positions
        tasks = pickle.loads(pickle.dumps(scan.tasks()))
        assert sum(f.height for task in tasks for f in task.frames(1 << 20)) == scan.count()
        hidden, dead = hidden + len(level_0), dead + positions
    assert hidden
    assert dead


def places(files: Sequence[Any]) -> list[VectorPlace]:
    return [file.dead_rows for file in files]


# -- memory --------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(0, 5_000_000), min_size=2, max_size=30),
    rows=st.integers(0, 10_000_000),
)
@example(sizes=[0, 0], rows=32_769)
@example(sizes=[49_699, 242_090], rows=49_699)
@example(sizes=[1, 5_000_000], rows=10)
def test_small_runs_are_held_whole_and_all_stay_in_bounds(sizes: list[int], rows: int) -> None:
    held = read.batch_rows(sizes, rows)
    least = read._BATCH_ROWS_MIN
    assert sum(held) <= 2 * rows + least * len(sizes)
    for place, size in enumerate(sizes):
        smaller = sum(other for other in sizes if other < size)
        if smaller + size * sizes.count(size) <= rows:
            assert held[place] >= size
