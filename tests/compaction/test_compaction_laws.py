"""The law of compaction: whatever is compacted when, a table has the rows that it would have had
without, whatever was written before and, late events among it, after."""

from __future__ import annotations

import itertools
import time
from typing import Any
from unittest import mock

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import keytide as kt
from compacting import compact_newest
from engine_histories import (
    AGGREGATION,
    APART,
    COLUMNS,
    ENGINES,
    PARTIAL,
    VERSIONS,
    history,
    made,
    row_bags,
    write,
)
from keytide.compaction import compact as compaction
from keytide.merge.order import SEQUENCE_NUMBER
from keytide.read import merged_versions as read


def assert_sound(table: kt.Table) -> None:
    """Levels above 0 are one run each: files in order without a shared key."""
    scan = table.scan()
    plan = scan.plan
    for bucket in plan.buckets:
        for section in bucket.sections:
            levels = [run[0].meta.level for run in section.runs if run[0].meta.level]
            assert len(levels) == len(set(levels))
    numbers = [e.file.min_sequence_number <= e.file.max_sequence_number for e in scan.live.entries]
    assert all(numbers)
    assert SEQUENCE_NUMBER not in scan.schema.names


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=max(4, settings().max_examples // 3))
@given(data=st.data(), batch_rows=st.integers(1, 4), memory=st.sampled_from([1, 1 << 20]))
def test_compacted_tables_have_the_rows_of_those_that_never_were(
    engine: str, data: st.DataObject, batch_rows: int, memory: int
) -> None:
    kinds, options = ENGINES[engine]
    plain, compacted = made(options), made(options)
    with (
        mock.patch.object(read, "_BATCH_ROWS_MIN", batch_rows),
        mock.patch.object(compaction, "_MEMORY_BYTES_MAX", memory),
    ):
        rows: list[str] = []
        for step in data.draw(history(kinds)):
            if isinstance(step, int):
                event(compact_newest(compacted, step))
                assert_sound(compacted)
            else:
                write(plain, step)
                write(compacted, step)
                rows = row_bags(plain)
            assert row_bags(compacted) == rows


FEW = [name for name in APART if name not in ("groups", "sums beside last values")]
"""Those of which a write stores few versions of every key: there are no retracts to take back."""


@pytest.mark.parametrize("engine", APART)
@settings(max_examples=max(4, settings().max_examples // 3))
@given(data=st.data(), batch_rows=st.integers(1, 4), memory=st.sampled_from([1, 1 << 20]))
def test_versions_that_are_left_out_are_missed_by_nobody(
    engine: str, data: st.DataObject, batch_rows: int, memory: int
) -> None:
    kinds, options = APART[engine]
    plain, compacted = made(options), made(options)
    with (
        mock.patch.object(read, "_BATCH_ROWS_MIN", batch_rows),
        mock.patch.object(compaction, "_MEMORY_BYTES_MAX", memory),
    ):
        rows: list[str] = []
        for step in data.draw(history(kinds)):
            if isinstance(step, int):
                event(compact_newest(compacted, step))
                assert_sound(compacted)
            else:
                for versions in [[version] for version in step] if engine in FEW else [step]:
                    write(plain, versions)
                write(compacted, step)
                rows = row_bags(plain)
            assert row_bags(compacted) == rows


@pytest.mark.parametrize("engine", FEW)
@given(data=st.data())
def test_no_more_versions_of_a_key_stay_than_there_are_columns(
    engine: str, data: st.DataObject
) -> None:
    kinds, options = APART[engine]
    table = made(options)
    for versions in data.draw(
        st.lists(
            st.lists(st.tuples(st.sampled_from(kinds), VERSIONS), min_size=1, max_size=9),
            min_size=1,
            max_size=4,
        )
    ):
        write(table, versions)
    table.compact(full=True)
    files = table.scan().live.entries
    assert len({entry.file.level for entry in files}) == len(files) <= len(COLUMNS) + 1
    assert table.compact(full=True).snapshot_id is None


@pytest.mark.parametrize("engine", APART)
@given(data=st.data())
def test_order_and_batching_of_adds_do_not_matter(engine: str, data: st.DataObject) -> None:
    _, options = APART[engine]
    versions = data.draw(st.lists(VERSIONS, min_size=2, max_size=8, unique_by=lambda v: v[:2]))
    shuffled = data.draw(st.permutations(versions))
    cuts = data.draw(st.lists(st.integers(0, len(versions)), max_size=3))
    one, other = made(options), made(options)
    write(one, [("+I", version) for version in versions])
    places = [0, *sorted(cuts), len(versions)]
    for start, stop in itertools.pairwise(places):
        if start < stop:
            write(other, [("+I", version) for version in shuffled[start:stop]])
            if data.draw(st.booleans()):
                other.compact(full=True)
    assert row_bags(one) == row_bags(other)


LISTS = {**AGGREGATION, "sequence.field": "s", "fields.t.aggregate-function": "listagg"}


REMOVED_SUMS = {
    **AGGREGATION,
    "sequence.field": "s",
    "aggregation.remove-record-on-delete": "true",
    "fields.t.aggregate-function": "first_value",
}


@pytest.mark.parametrize("options", [LISTS, REMOVED_SUMS], ids=["listagg", "removed"])
def test_versions_that_all_count_are_left_as_they_are_with_the_way_out(
    options: dict[str, str],
) -> None:
    table = made(options)
    with pytest.raises(kt.UnsupportedError, match=r"'t' needs all versions.*version.retention"):
        table.compact()


RETENTION = {"version.retention": "1 h"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [(LISTS, {"t": "a,b,c"}), ({**PARTIAL, "sequence.field": "s"}, {"t": "c"})],
    ids=["listagg", "partial-update"],
)
def test_versions_older_than_the_retention_are_merged_and_what_comes_later_joins_them(
    options: dict[str, str], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made({**options, **RETENTION})
    write(table, [("+I", (1, 1, 1, None, "a", None, None)), ("+I", (2, 1, 1, 1, None, None, None))])
    write(table, [("+I", (1, 3, None, 1, "b", None, None)), ("+I", (2, 2, 2, None, "a", [], None))])
    assert levels(table, full=True)[-1] > 5
    later = time.time_ns() // 1_000_000 + 3_600_000
    monkeypatch.setattr(compaction, "wall_clock_ms", lambda: later)
    assert levels(table, full=True) == [5]
    write(table, [("+I", (1, 5, None, None, "c", None, None))])
    found = next(row for row in table.scan().to_pylist() if row["k"] == 1)
    assert found == {"k": 1, "s": 5, "g": 1, "v": 1, "a": None, "m": None} | expected
    assert levels(table, full=True) == [5, 6, 7]


def levels(table: kt.Table, *, full: bool) -> list[int]:
    table.compact(full=full)
    return sorted({entry.file.level for entry in table.scan().live.entries})


def test_retention_of_versions_that_are_merged_anyway_is_told_to_have_no_effect() -> None:
    with pytest.warns(kt.KeytideWarning, match=r"'version.retention' has no effect"):
        made(RETENTION)


@pytest.mark.parametrize("many", [1, 30])
def test_writes_leave_few_versions_and_runs_of_a_table_that_keeps_them_apart(many: int) -> None:
    table = made({**APART["partial-update"][1], "write-only": "false"})
    for number in range(60):
        keys = range(number % 3, 3 * many, 3)
        write(table, [("+I", (k, number, number, None, None, None, None)) for k in keys])
    table.close()
    files = table.scan().live.entries
    assert len(files) <= 60 // 4
    assert sum(entry.file.row_count for entry in files) <= 3 * many * 8
    assert [row["g"] for row in table.scan().to_pylist()[:3]].count(None) == 0
    assert table.verify().is_healthy
