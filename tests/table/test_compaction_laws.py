"""The law of compaction: whatever is compacted when, a table has the rows that it would have had
without, whatever was written before and, late events among it, after."""

from __future__ import annotations

from unittest import mock

import pytest
from compacting import compact_newest
from engine_histories import AGGREGATION, ENGINES, PARTIAL, history, made, shown, write
from hypothesis import event, given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.merge.order import SEQUENCE_NUMBER
from keytide.table.read import versions as read
from keytide.table.upkeep import compaction
from keytide.table.upkeep.planning import why_not_compacted


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
@settings(max_examples=max(6, settings().max_examples // 3))
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
        for step in data.draw(history(kinds)):
            if isinstance(step, int):
                event(compact_newest(compacted, step))
                assert_sound(compacted)
            else:
                write(plain, step)
                write(compacted, step)
            assert shown(compacted) == shown(plain)


KEPT_APART = {
    "partial-update": {**PARTIAL, "sequence.field": "s"},
    "last value that is not NULL": {
        **AGGREGATION, "sequence.field": "s", "fields.v.aggregate-function": "last_non_null_value",
    },
    "first value": {
        **AGGREGATION, "sequence.field": "s", "fields.v.aggregate-function": "first_value",
    },
}  # fmt: skip


@pytest.mark.parametrize("options", KEPT_APART.values(), ids=KEPT_APART)
def test_versions_that_are_kept_apart_would_show_another_row_if_they_were_not(
    options: dict[str, str],
) -> None:
    plain, compacted = made(options), made(options)
    assert why_not_compacted(plain.scan().view) is not None
    for table in (plain, compacted):
        write(table, [("+I", (1, 1, None, 1, None, None, None))])
        write(table, [("+I", (1, 3, None, None, None, None, None))])
    compact_newest(compacted, 2)
    for table in (plain, compacted):
        write(table, [("+I", (1, 2, None, 5, None, None, None))])
    found = [table.scan().to_pylist()[0]["v"] for table in (plain, compacted)]
    assert found == ([1, 5] if "first_value" in options.values() else [5, 1])
