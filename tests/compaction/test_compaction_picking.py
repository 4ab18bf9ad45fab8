"""Which runs are compacted, as a notation: runs newest first, `size` or `size@level`."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keytide.compaction.strategy import (
    Rules,
    SortedRun,
    Unit,
    _by_size_amplification,
    pick,
    pick_all,
    sorted_runs,
)
from keytide.format.binary_row import EMPTY_ROW
from keytide.format.manifest_entry import DataFileMeta, FileKind, ManifestEntry
from keytide.format.stats import EMPTY_STATS

NOW = 1_000_000


def entry(size: int, level: int, number: int, made: int = NOW) -> ManifestEntry:
    file = DataFileMeta(
        f"data-{number}.parquet", size, 1, EMPTY_ROW, EMPTY_ROW, EMPTY_STATS, EMPTY_STATS,
        number, number, 0, level, creation_time=made,
    )  # fmt: skip
    return ManifestEntry(FileKind.ADD, EMPTY_ROW, 0, 1, file)


def runs_of(text: str, made: int = NOW) -> list[SortedRun]:
    entries = []
    for number, word in enumerate(reversed(text.split())):
        size, _, level = word.partition("@")
        entries.append(entry(int(size), int(level or 0), number, made))
    return sorted_runs(entries)


def units_text(*units: Unit | None) -> str:
    """`sizes > level, sizes > level`."""
    texts = [
        f"{' '.join(str(run.size) for run in unit.runs)} > {unit.output_level}"
        for unit in units
        if unit is not None
    ]
    return ", ".join(texts) or "nothing"


def picked(text: str, made: int = NOW, **rules: Any) -> str:
    return units_text(*pick(runs_of(text, made), Rules(**rules), NOW))


def test_runs_are_files_of_level_0_newest_first_then_levels() -> None:
    files = [entry(7, 3, 1), entry(1, 0, 9), entry(5, 3, 2), entry(2, 0, 4), entry(9, 5, 0)]
    found = [(run.level, [e.file.file_size for e in run.files]) for run in sorted_runs(files)]
    assert found == [(0, [1]), (0, [2]), (3, [7, 5]), (5, [9])]


MOVES = {"moved_bytes_min": 9}
STEEP = {"trigger_runs": 3, "num_levels": 4, "size_amplification_percent": 25}


@pytest.mark.parametrize(
    ("runs", "rules", "unit"),
    [
        # Fewer runs than the trigger wait.
        ("", {}, "nothing"),
        ("1 1 1 1", {}, "nothing"),
        ("1 1 1 1 1", {}, "1 1 1 1 1 > 5"),
        # Size amplification: newer data against the oldest run.
        ("1 2 3 3", STEEP, "1 2 3 3 > 3"),
        ("1 1 1 50@3", STEEP, "1 1 1 > 2"),
        ("1 2 3 50@3", STEEP, "1 2 3 > 2"),
        ("10 10 10 100@5", {"trigger_runs": 3, "size_amplification_percent": 29},
         "10 10 10 100 > 5"),
        # Size ratio: runs of about one size, newest first.
        ("8 9 10 99@5", {"trigger_runs": 4, "size_ratio_percent": 10}, "nothing"),
        ("8 9 10 99@5", {"trigger_runs": 4, "size_ratio_percent": 20}, "8 9 10 > 4"),
        # Their number, whatever their sizes.
        ("1 10 100 1000@5", {"trigger_runs": 3, "size_amplification_percent": 999}, "1 10 100 > 4"),
        # Never onto level 0: all of level 0 is taken, and level 1 where nothing lies below it.
        ("1 1 9 99 999@4 9999@5", {"trigger_runs": 5, "size_amplification_percent": 999},
         "1 1 9 99 > 3"),
        ("1 1 9 99@1 9999@5", {"trigger_runs": 5, "size_amplification_percent": 999},
         "1 1 9 99 > 4"),
        ("1 1 9 99@1 999@2 9999@5", {"trigger_runs": 5, "size_amplification_percent": 999},
         "1 1 9 99 > 1"),
        ("1 1 1@1 99@2 9999@5", {"trigger_runs": 5, "size_amplification_percent": 999},
         "1 1 1 > 1"),
        ("1 1 9 9@1", {"trigger_runs": 3, "size_amplification_percent": 999}, "1 1 9 9 > 5"),
        # A run above the configured levels stays the highest.
        ("1 1 1 1 1@9", {}, "1 1 1 1 1 > 9"),
        # What outweighs all newer runs moves as it is, where it is large and there are levels.
        ("1 1 1 1 50", {}, "1 1 1 1 50 > 5"),
        ("1 1 1 1 50", MOVES, "1 1 1 1 > 4, 50 > 5"),
        ("1 1 1 1 8", MOVES, "1 1 1 1 8 > 5"),
        ("9 9 9 9 36", MOVES, "9 9 9 9 36 > 5"),
        ("9 9 9 9 37", MOVES, "9 9 9 9 > 4, 37 > 5"),
        ("1 1 1 20 50", MOVES, "1 1 1 > 3, 20 > 4, 50 > 5"),
        ("1 1 1 20 50@3 99@5", MOVES, "1 1 1 > 1, 20 > 2"),
        ("1 1 1 20 50@2 99@5", MOVES, "1 1 1 20 > 1"),
        ("1 1 20 50@1 99@5", {**MOVES, "size_amplification_percent": 999}, "1 1 20 50 > 4"),
        ("1 1 1 1 50", {**MOVES, "num_levels": 2}, "1 1 1 1 50 > 1"),
        ("1 1 50", {**MOVES, "total_size_threshold": 99}, "1 1 50 > 5"),
        ("1 1 1 1 50@0", {**MOVES, "only_whole": True}, "nothing"),
        # Early rules need no trigger, but something to do.
        ("1 9@5", {"total_size_threshold": 11}, "1 9 > 5"),
        ("1 9@5", {"total_size_threshold": 10}, "nothing"),
        ("9@5", {"total_size_threshold": 10}, "nothing"),
        ("2 1@4 9@5", {"incremental_size_threshold": 2}, "2 1 9 > 5"),
        ("2 1@4 9@5", {"incremental_size_threshold": 3}, "nothing"),
        ("1 9@5", {"optimization_interval_ms": 0}, "nothing"),
        ("1 9", {"optimization_interval_ms": 0}, "1 9 > 5"),
        # Engines that need the oldest versions take all, when a tenth of them is new, or many runs.
        ("1 1 1 1 40@5", {"only_whole": True}, "1 1 1 1 40 > 5"),
        ("1 1 1 1 41@5", {"only_whole": True}, "nothing"),
        ("1 1 1 1@5", {"only_whole": True}, "nothing"),
        ("1 1 1 1 1 999@5", {"only_whole": True, "trigger_runs": 2}, "nothing"),
        (f"{'1 ' * 19}999@5", {"only_whole": True, "trigger_runs": 2}, f"{'1 ' * 19}999 > 5"),
    ],
)  # fmt: skip
def test_picked(runs: str, rules: dict[str, Any], unit: str) -> None:
    assert picked(runs, **rules) == unit


def test_full_compaction_is_due_again_after_the_interval() -> None:
    assert picked("1 9@5", made=NOW - 10, optimization_interval_ms=10) == "nothing"
    assert picked("1 9@5", made=NOW - 11, optimization_interval_ms=10) == "1 9 > 5"


def test_steady_writes_under_size_amplification_alone() -> None:
    rules = Rules(trigger_runs=1, size_amplification_percent=25, num_levels=2)
    sizes, seen = [1], []
    for _ in range(10):
        sizes = [1, *sizes]
        text = " ".join([*map(str, sizes[:-1]), f"{sizes[-1]}@1"])
        if _by_size_amplification(runs_of(text), rules) is not None:
            sizes = [sum(sizes)]
        seen.append(" ".join(map(str, sizes)))
    assert seen == ["2", "3", "4", "1 4", "6", "1 6", "8", "1 8", "1 1 8", "11"]


@pytest.mark.parametrize(
    ("runs", "unit"),
    [("", "nothing"), ("7@5", "nothing"), ("7@4", "7 > 5"), ("7", "7 > 5"), ("1 7@5", "1 7 > 5")],
)
def test_all_are_picked_unless_they_are_one_run_on_the_highest_level(runs: str, unit: str) -> None:
    assert units_text(pick_all(runs_of(runs), Rules())) == unit


sizes = st.integers(1, 1000)
any_runs = st.builds(
    lambda level_0, upper: " ".join(
        [*map(str, level_0), *(f"{size}@{level + 1}" for level, size in enumerate(upper) if size)]
    ),
    st.lists(sizes, max_size=9),
    st.lists(st.just(0) | sizes, max_size=5),
)
any_rules = st.builds(
    Rules, st.integers(1, 6), st.integers(2, 6), st.integers(0, 300), st.integers(0, 100),
    only_whole=st.booleans(), moved_bytes_min=st.none() | st.integers(1, 1000),
)  # fmt: skip


@given(text=any_runs, rules=any_rules)
def test_whatever_is_picked_is_the_newest_runs_for_a_free_level_above_0(
    text: str, rules: Rules
) -> None:
    runs = runs_of(text)
    units = pick(runs, rules, NOW)
    if not units:
        return
    taken = list(chain.from_iterable(unit.runs for unit in units))
    left = runs[len(taken) :]
    assert runs == [*taken, *left]
    assert [unit.is_whole for unit in units] == [not left and units == units[:1]] * len(units)
    levels = [unit.output_level for unit in units]
    assert levels[0] > 0
    assert levels == sorted(set(levels))
    assert all(levels[-1] < run.level for run in left)
    assert all(unit.output_level >= run.level for unit in units for run in unit.runs)
    assert left == [] or not rules.only_whole


@given(text=any_runs, rules=any_rules)
def test_compacting_goes_on_until_there_are_no_more_runs_than_the_trigger(
    text: str, rules: Rules
) -> None:
    runs = runs_of(text)
    for _ in range(len(runs) + 1):
        units = pick(runs, rules, NOW)
        if not units:
            break
        made = [SortedRun(unit.output_level, unit.files) for unit in units]
        runs = [*made, *runs[sum(len(unit.runs) for unit in units) :]]
    assert not units
    least = 10 * rules.trigger_runs - 1 if rules.only_whole else rules.trigger_runs
    assert len(runs) <= max(1, least)


def test_the_files_of_one_large_run_move_together() -> None:
    load = [entry(50, 0, 7), entry(60, 0, 7)]
    runs = sorted_runs([*load, *(entry(1, 0, number) for number in (8, 9, 10))])
    assert units_text(*pick(runs, Rules(moved_bytes_min=9), NOW)) == "1 1 1 > 4, 50 60 > 5"
