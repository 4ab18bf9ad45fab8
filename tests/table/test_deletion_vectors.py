"""Tables with deletion vectors: readers merge nothing, and see the rows that merging would give."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import keytide as kt
from copies import copies_of
from engine_histories import ENGINES, history, made, row_bags, write
from keytide.catalogs.local_writes import append
from keytide.commit.change import Author
from keytide.compaction import compact as compaction
from keytide.compaction.strategy import Unit, sorted_runs
from keytide.definition.schema_evolution import RemoveOption, SetOption
from keytide.format.index_files import dead_positions
from keytide.format.snapshot import CommitKind
from keytide.read import merged_versions as read
from keytide.store import Store
from keytide.store.faults import Action, Crash, Fault, FaultyStore
from keytide.tasks import Threads
from new_tables import empty_store, empty_table, table_in
from overtaking import overtaken
from table_rows import lines, parsed, write_lines

VECTORS = {"deletion-vectors.enabled": "true"}
SCHEMA = pa.schema([("k", pa.int32()), ("s", pa.int32()), ("v", pa.string())])
BY_SEQUENCE = {"sequence.field": "s"}
LAZY = {"write-only": "true"}
SUM = {"merge-engine": "aggregation", "fields.s.aggregate-function": "sum"}


def new_table(store: Store | None = None, **options: str) -> kt.Table:
    return empty_table(SCHEMA, ["k"], options={**VECTORS, **options}, store=store)


def merged(table: kt.Table) -> kt.Scan:
    """A scan that merges what is not compacted yet."""
    scan = table.scan()
    return replace(scan, state=scan.state.merging)


def layout(table: kt.Table) -> str:
    """The files, highest level first: `5: 9-2` is one on level 5 with 9 rows, 2 of them dead."""
    scan = merged(table)
    files = [file for bucket in scan.plan.buckets for file in bucket.files]
    files.sort(key=lambda file: (-file.meta.level, file.meta.min_sequence_number))
    return ", ".join(f"{f.meta.level}: {f.meta.row_count}{dead(scan, f)}" for f in files)


def dead(scan: kt.Scan, file: Any) -> str:
    count = 0 if file.dead_rows is None else len(dead_positions(scan.view.store, file.dead_rows))
    return f"-{count}" if count else ""


# -- which rows are shown --------------------------------------------------------------------------


def test_write_shows_its_rows_and_marks_those_before() -> None:
    table = new_table()
    write_lines(table, *(f"{k} 0 a" for k in range(9)))
    assert layout(table) == "5: 9"
    write_lines(table, "1 0 b", "9 0 b")
    assert layout(table) == "5: 9-1, 4: 2"
    write_lines(table, "1 0 c", "-D 2 0", "-D 77 0")
    assert layout(table) == "5: 9-2, 4: 2-1, 3: 3-2"
    assert lines(table) == ["0 0 a", "1 0 c", *(f"{k} 0 a" for k in range(3, 9)), "9 0 b"]
    kinds = [s.commit_kind for s in table.snapshots()]
    assert kinds == [CommitKind.APPEND, CommitKind.COMPACT] * 3


def test_files_of_older_versions_are_not_written_again() -> None:
    table = new_table()
    write_lines(table, *(f"{k} 0 a" for k in range(9)))
    (before,) = table.scan().live.entries
    write_lines(table, "1 0 b")
    stays = next(e for e in table.scan().live.entries if e.file.level == 5)
    assert stays == before
    moved = next(e.file for e in table.scan().live.entries if e.file.level == 4)
    delta = table.metadata.delta_manifests(table.metadata.snapshot(3))
    assert moved.file_name == next(iter(table.metadata.entries(delta))).file.file_name


def test_rows_that_no_compaction_has_seen_are_shown_on_request() -> None:
    table = new_table(**LAZY)
    write_lines(table, "1 0 a", "2 0 a")
    write_lines(table, "2 0 b", "-D 1 0")
    assert lines(table) == []
    assert table.get(2) is None
    table.alter(SetOption("deletion-vectors.merge-on-read", "true"))
    assert lines(table) == ["2 0 b"]
    table.alter(RemoveOption("deletion-vectors.merge-on-read"))
    table.compact()
    assert lines(table) == ["2 0 b"]
    assert table.get(2) == {"k": 2, "s": 0, "v": "b"}


def test_full_compaction_leaves_no_dead_row() -> None:
    table = new_table()
    write_lines(table, *(f"{k} 0 a" for k in range(9)))
    write_lines(table, "1 0 b", "-D 2 0")
    table.compact(full=True)
    assert layout(table) == "5: 8"
    assert table.metadata.index_files(table.scan().snapshot) == []  # type: ignore[arg-type]
    assert table.compact(full=True).snapshot_id is None


def test_values_that_are_put_together_are_written_above_level_0() -> None:
    table = new_table(**SUM)
    write_lines(table, *(f"{k} 1 a" for k in range(9)))
    write_lines(table, "20 1 b", "21 1 b")
    write_lines(table, "1 5 c", "20 5 c")
    assert layout(table) == "5: 9-1, 4: 2-1, 3: 2"
    assert table.get(1) == {"k": 1, "s": 6, "v": "c"}
    assert table.get(20) == {"k": 20, "s": 6, "v": "c"}


def test_engines_that_keep_versions_apart_are_refused() -> None:
    options = {"merge-engine": "partial-update", **BY_SEQUENCE}
    with pytest.raises(kt.UnsupportedError, match=r"hides rows until a compaction.*one position"):
        write_lines(new_table(**options), "1 0 a")


@pytest.mark.parametrize("wide", ["false", "true"])
def test_all_vectors_have_the_form_that_the_table_asks_for(wide: str) -> None:
    table = new_table(**{"deletion-vectors.bitmap64": "true" if wide == "false" else "false"})
    write_lines(table, "1 0 a", "2 0 a", "3 0 a")
    write_lines(table, "1 0 b")
    table.alter(SetOption("deletion-vectors.bitmap64", wide))
    write_lines(table, "2 0 b")
    write_lines(table, "1 0 c")
    (index,) = table.scan().state.vector_files
    data = table.metadata.store.read(f"index/{index.file_name}")
    magics = {data[place.offset + 4 : place.offset + 8].hex() for place in index.ranges or ()}
    assert magics == ({"d1d33964"} if wide == "true" else {"5e43f2d0"})
    assert lines(table) == ["1 0 c", "2 0 b", "3 0 a"]


def test_compacted_files_of_the_target_size_hide_their_deletes() -> None:
    table = new_table(**BY_SEQUENCE, **LAZY, **{"target-file-size": "1 kb"})
    write_lines(table, *(f"{k} 9 v{k}" for k in range(300)))
    write_lines(table, *(f"-D {k} 9" for k in range(0, 300, 3)))
    table.compact(full=True)
    assert len(table.scan().live.entries) > 1
    write_lines(table, *(f"{k} 5 late" for k in range(300)))
    table.compact(full=True)
    assert lines(table) == sorted(f"{k} 9 v{k}" for k in range(300) if k % 3)
    assert {e.file.delete_row_count for e in table.scan().live.entries} == {0}
    assert not table.verify().findings


# -- deletes ---------------------------------------------------------------------------------------


def test_delete_stays_deleted_for_whatever_comes_late() -> None:
    table = new_table(**BY_SEQUENCE)
    write_lines(table, "1 10 a", "2 10 a")
    write_lines(table, "-D 1 30")
    assert layout(table) == "5: 2-1, 4: 1-1"
    write_lines(table, "1 20 late")
    assert lines(table) == ["2 10 a"]
    table.compact(full=True)
    assert layout(table) == "5: 2-1"
    write_lines(table, "1 25 late")
    assert lines(table) == ["2 10 a"]
    write_lines(table, "1 40 new")
    assert lines(table) == ["1 40 new", "2 10 a"]
    assert not table.verify().findings


def test_late_delete_changes_nothing() -> None:
    table = new_table(**BY_SEQUENCE)
    write_lines(table, "1 10 a", "2 10 a")
    write_lines(table, "-D 1 5")
    assert layout(table) == "5: 2, 4: 1-1"
    assert lines(table) == lines(merged(table)) == ["1 10 a", "2 10 a"]
    write_lines(table, "1 7 b")
    assert lines(table) == lines(merged(table)) == ["1 10 a", "2 10 a"]


def test_delete_is_forgotten_where_nothing_can_come_late() -> None:
    table = new_table()
    write_lines(table, "1 0 a", "2 0 a")
    write_lines(table, "-D 1 0")
    table.compact(full=True)
    assert layout(table) == "5: 1"


def test_delete_is_forgotten_after_its_retention() -> None:
    table = new_table(**BY_SEQUENCE, **{"tombstone.retention": "1 h"})
    write_lines(table, "1 10 a", "2 10 a")
    write_lines(table, "-D 1 30")
    for hours, left in ((0, "5: 2-1"), (0.5, "5: 2-1"), (2, "5: 1")):
        with mock.patch.object(compaction, "wall_clock_ms", lambda h=hours: int(h * 3_600_000)):
            table.compact(full=True)
        assert layout(table) == left


def test_retract_of_a_sum_waits_for_what_it_is_taken_from() -> None:
    table = new_table(**SUM)
    write_lines(table, "1 1 a")
    write_lines(table, "-D 2 5")
    assert lines(table) == ["1 1 a"]
    write_lines(table, "2 7 b")
    assert table.get(2) == {"k": 2, "s": 2, "v": "b"}


# -- laws ------------------------------------------------------------------------------------------

WITH_VECTORS = {name: engine for name, engine in ENGINES.items() if name != "first-row"}


def compact_new(table: kt.Table, above: int) -> str:
    """Compact level 0 of a table of one bucket with so many of the runs above it."""
    transaction = compaction.begin_compaction(table.stored)
    runs = sorted_runs(transaction.state.live.entries)
    new = sum(run.level == 0 for run in runs)
    count = new + above
    if count < len(runs) and runs[count].level == 1:
        count += 1
    if not runs or not count:
        return "nothing"
    is_whole = count >= len(runs)
    level = 5 if is_whole else runs[count].level - 1
    unit = Unit(tuple(runs[:count]), level, is_whole)
    compaction.compact_units(transaction, [unit], Threads(1))
    return f"{'whole' if is_whole else 'part'}, {min(new, 2)} new"


@pytest.mark.one_in(14)
@pytest.mark.parametrize("engine", WITH_VECTORS)
@settings(max_examples=max(2, settings().max_examples // 4))
@given(data=st.data(), batch_rows=st.integers(1, 4), memory=st.sampled_from([1, 1 << 20]))
def test_rows_are_those_of_a_table_that_merges(
    engine: str, data: st.DataObject, batch_rows: int, memory: int
) -> None:
    kinds, options = WITH_VECTORS[engine]
    plain, marked = made(options), made({**options, **VECTORS})
    with (
        mock.patch.object(read, "_BATCH_ROWS_MIN", batch_rows),
        mock.patch.object(compaction, "_MEMORY_BYTES_MAX", memory),
    ):
        for step in data.draw(history(kinds)):
            if isinstance(step, int):
                event(compact_new(marked, step - 1))
                assert row_bags(marked) == row_bags(merged(marked)) == row_bags(plain)
            else:
                write(plain, step)
                write(marked, step)
        assert row_bags(merged(marked)) == row_bags(plain)


# -- several at once -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["1 2 b", "2 2 b", "3 3 c"]),
        (BY_SEQUENCE, ["1 2 b", "2 3 c", "3 3 c"]),
        (SUM, ["1 3 b", "2 6 b", "3 4 c"]),
    ],
    ids=["arrival", "sequence", "sum"],
)
def test_two_writers_that_mark_rows_of_one_file_lose_no_mark(
    options: dict[str, str], expected: list[str]
) -> None:
    table = new_table(**options)
    write_lines(table, *(f"{k} 1 a" for k in range(9)))
    # The other writer comes between this one's rows and its marks.
    late = overtaken(table, lambda: None, lambda: write_lines(table, "1 2 b", "2 2 b"))
    write_lines(late, "2 3 c", "3 3 c")
    assert lines(table)[1:4] == expected
    assert len(lines(table)) == 9
    assert not table.verify().findings


def test_loser_of_two_compactions_leaves_nothing_behind() -> None:
    table = new_table(**LAZY)
    write_lines(table, "1 0 a", "2 0 a")
    table.compact()
    write_lines(table, "-D 1 0")
    late = overtaken(table, lambda: table.compact())
    assert late.compact().overtaken
    assert layout(table) == "5: 2-1, 4: 1-1"
    (index,) = table.scan().state.vector_files
    assert [each.path for each in table.metadata.store.list("index")] == [
        f"index/{index.file_name}"
    ]


def test_commit_that_was_made_before_its_marks_shows_its_rows_when_it_is_made_again() -> None:
    store = empty_store()
    write_lines(new_table(store), "1 0 a")
    faulty = FaultyStore(store, [Fault("create", "*snapshot-4", action="crash")])
    author = Author("me", 7)
    with suppress(Crash):
        append(table_in(faulty).stored, parsed(SCHEMA, "1 0 b"), author)
    table = table_in(store)
    assert lines(table) == ["1 0 a"]
    assert not append(table.stored, parsed(SCHEMA, "1 0 b"), author).is_new
    assert lines(table) == ["1 0 b"]


@copies_of
def filled(store: Store) -> None:
    table = new_table(store, **BY_SEQUENCE)
    write_lines(table, *(f"{k} 5 a" for k in range(4)))
    write_lines(table, "1 6 b", "-D 2 6")


def changes_of_the_store() -> list[int]:
    store = FaultyStore(filled())
    write_lines(table_in(store), "1 7 c", "2 3 late", "-D 3 7")
    changes = [each for each, _ in store.log if each in ("create", "put", "output", "hint")]
    return list(range(1, len(changes) + 1))


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
@pytest.mark.parametrize("action", ["crash", "fail", "lost-response"])
@pytest.mark.parametrize("nth", changes_of_the_store())
def test_failure_anywhere_leaves_the_rows_before_or_after(nth: int, action: Action) -> None:
    before, after = ["0 5 a", "1 6 b", "3 5 a"], ["0 5 a", "1 7 c"]
    store = filled()
    faulty = FaultyStore(store, [Fault("write", nth=nth, action=action)])
    told = None
    with suppress(kt.DataError, Crash):
        told = write_lines(table_in(faulty), "1 7 c", "2 3 late", "-D 3 7")
    table = table_in(store)
    assert lines(table) in (before, after)
    assert lines(merged(table)) == after or told is None
    is_written = lines(merged(table)) == after
    write_lines(table, "9 9 z")
    assert lines(table) == sorted([*(after if is_written else before), "9 9 z"])
    assert not table.verify().findings


# -- what verification says of it ------------------------------------------------------------------


@pytest.mark.one_in(14)
@pytest.mark.parametrize("reading", ["marks alone", "merging"])
@pytest.mark.parametrize("engine", WITH_VECTORS)
@settings(max_examples=max(2, settings().max_examples // 4))
@given(data=st.data())
def test_tables_with_marked_rows_are_sound_after_every_step(
    engine: str, reading: str, data: st.DataObject
) -> None:
    kinds, options = ENGINES[engine]
    vectors = {"deletion-vectors.enabled": "true", "write-only": "false"}
    if reading == "merging":
        vectors["deletion-vectors.merge-on-read"] = "true"
    table = made({**options, **vectors})
    for step in data.draw(history(kinds)):
        if isinstance(step, int):
            table.compact(full=step == 99)
        else:
            write(table, step)
        assert table.verify().findings == ()
