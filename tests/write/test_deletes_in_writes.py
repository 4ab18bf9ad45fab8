"""Writes that bring a delete and what follows it: whatever the cut, the delete is not forgotten."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from new_tables import empty_table
from overtaking import overtaken
from table_rows import lines, parsed, reopened, write_lines

SUM = {"merge-engine": "aggregation", "fields.n.aggregate-function": "sum"}
REMOVING_SUM = SUM | {"aggregation.remove-record-on-delete": "true"}
PARTIAL = {"merge-engine": "partial-update"}
REMOVING_PARTIAL = PARTIAL | {"partial-update.remove-record-on-delete": "true"}
DECIDING_GROUP = PARTIAL | {
    "fields.s.sequence-group": "n",
    "partial-update.remove-record-on-sequence-group": "s",
}
COLUMNS = {"k": "INT NOT NULL", "s": "INT", "n": "BIGINT", "m": "BIGINT"}


def new_table(options: dict[str, str]) -> kt.Table:
    return empty_table(COLUMNS, ["k"], options=options)


def numbers(table: kt.Table) -> list[int]:
    """The sequence numbers of the files, as they were committed."""
    files = [entry.file for entry in table.scan().live.entries]
    assert all(file.min_sequence_number == file.max_sequence_number for file in files)
    return [file.max_sequence_number for file in files]


DELETED_AND_BEGUN_ANEW = {
    "sum": (REMOVING_SUM, "1 2 7 -"),
    "sum of a lookup table": (REMOVING_SUM | {"force-lookup": "true"}, "1 2 7 -"),
    "partial update": (REMOVING_PARTIAL, "1 2 7 -"),
    "group that decides": (DECIDING_GROUP, "1 2 7 -"),
}


@pytest.mark.parametrize("name", DELETED_AND_BEGUN_ANEW)
@pytest.mark.parametrize("cut", [1, 2], ids=["one write", "two writes"])
def test_delete_and_what_follows_in_any_writes(name: str, cut: int) -> None:
    options, expected = DELETED_AND_BEGUN_ANEW[name]
    table = new_table(options)
    write_lines(table, "+I 1 0 5 8", "+I 2 0 1 1")
    news = parsed(table.schema, "-D 1 1 5 8", "+I 1 2 7 -", "+I 3 2 1 1")
    for part in [news] if cut == 1 else [news[:1], news[1:]]:
        table.write(part)
    assert lines(table) == [expected, "2 0 1 1", "3 2 1 1"]
    why = table.why(1)
    assert why.row == table.get(1)
    assert why.taken["n"] == (3,)
    assert numbers(table) == [0, 1, 2]


def test_usual_writes_make_one_run() -> None:
    for options in (SUM, REMOVING_SUM, PARTIAL, REMOVING_PARTIAL, DECIDING_GROUP):
        table = new_table(options)
        write_lines(table, "+I 1 0 5 8", "+U 1 1 1 1", "+I 2 0 1 1")
        assert numbers(table) == [0]
    table = new_table(SUM)
    write_lines(table, "-U 1 0 5 8", "+U 1 0 7 8")
    assert numbers(table) == [0]


def test_busy_key_of_a_group_that_decides_makes_one_run() -> None:
    table = new_table(DECIDING_GROUP | {"fields.n.aggregate-function": "sum"})
    write_lines(table, *(f"+I 1 {s} 1 8" for s in range(50)))
    assert (numbers(table), lines(table)) == ([0], ["1 49 50 8"])


def test_retract_that_says_nothing_about_a_group_takes_nothing_back() -> None:
    for cut in (1, 2):
        table = new_table(
            PARTIAL | {"fields.s.sequence-group": "n", "fields.n.aggregate-function": "sum"}
        )
        write_lines(table, "+I 1 1 7 8")
        news = parsed(table.schema, "-U 1 2 - 8", "-U 1 - 5 8")
        for part in [news] if cut == 1 else [news[:1], news[1:]]:
            table.write(part)
        assert lines(table) == ["1 2 7 8"]


def test_writer_who_lost_the_race_keeps_its_layers_apart() -> None:
    table = new_table(REMOVING_SUM)
    write_lines(table, "+I 1 0 5 8")
    other = reopened(table)
    late = overtaken(table, lambda: write_lines(other, "+I 1 0 100 8"))
    write_lines(late, "-D 1 0 5 8", "+I 1 0 7 8")
    assert lines(table) == ["1 0 7 8"]
    assert numbers(table) == [0, 1, 2, 3]


# -- a dict as oracle ------------------------------------------------------------------------------

Event = tuple[str, int, int | None]
"""Kind, key and value."""
events = st.lists(
    st.tuples(
        st.sampled_from(["+I", "+U", "-U", "-D"]),
        st.integers(0, 2),
        st.none() | st.integers(-9, 9),
    ),
    max_size=12,
)


def sums(found: Sequence[Event]) -> dict[int, int | None]:
    """A -D removes the row; a -U takes back from a row, and is kept for one that is not there."""
    state: dict[int, int | None] = {}
    for kind, key, value in found:
        if kind == "-D":
            state.pop(key, None)
        elif kind == "-U" and key in state and value is not None:
            state[key] = (state[key] or 0) - value
        elif kind[0] == "+":
            held = state.get(key)
            state[key] = held if value is None else (held or 0) + value
    return state


def filled(found: Sequence[Event]) -> dict[int, int | None]:
    """A -D removes the row, a -U does nothing."""
    state: dict[int, int | None] = {}
    for kind, key, value in found:
        if kind == "-D":
            state.pop(key, None)
        elif kind[0] == "+":
            state[key] = state.get(key) if value is None else value
    return state


@pytest.mark.parametrize(
    ("options", "oracle"), [(REMOVING_SUM, sums), (REMOVING_PARTIAL, filled)], ids=["sum", "fill"]
)
@given(found=events, cuts=st.lists(st.integers(0, 12), max_size=4), buckets=st.integers(1, 2))
def test_removed_rows_agree_with_a_dict(
    options: dict[str, str], oracle: Any, found: list[Event], cuts: list[int], buckets: int
) -> None:
    if oracle is sums:  # a -U of a key that has no row yet is merged with what comes later
        seen = {key for kind, key, _ in found if kind == "-U"}
        found = [("-D", key, None) for key in sorted(seen)] + found
    table = new_table(options | {"bucket": str(buckets)})
    places = [0, *sorted(min(cut, len(found)) for cut in cuts), len(found)]
    for start, end in itertools.pairwise(places):
        batch = [
            {"_row_kind": f[0], "k": f[1], "s": None, "n": f[2], "m": None}
            for f in found[start:end]
        ]
        if batch:
            table.write(batch)
    assert {row["k"]: row["n"] for row in table.scan().to_pylist()} == oracle(found)
