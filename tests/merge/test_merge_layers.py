"""The law of writes: however a history is cut into writes, its table is that of its single rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from merging import Merging
from test_merge_laws import (
    BOTH_DECIDING,
    DECIDING,
    FUNCTIONS,
    GROUPED,
    GROUPS,
    LETTERS,
    PICKING,
    SMALL,
    TEXT,
    WIDE,
    Function,
)

MANY = settings(max_examples=4 * settings().max_examples)
KINDS = {"all": ("+I", "+U", "-U", "-D"), "adds": ("+I", "+U")}
# Of the others, runs may be merged in any way, which the laws of the functions say.
NOT_FREE = [f for f in FUNCTIONS if f.can_retract or not f.splits_anywhere]
functions = pytest.mark.parametrize("function", NOT_FREE, ids=str)
Lengths = list[int]
lengths = st.lists(st.integers(1, 3), min_size=1, max_size=2)


def rows_of(*values: st.SearchStrategy[Any], kinds: str = "all") -> st.SearchStrategy[list[Any]]:
    """Rows of two keys, so that each has several."""
    row = st.tuples(st.sampled_from(KINDS[kinds]), st.sampled_from([0, 0, 0, 1]), *values)
    return st.lists(row, min_size=3, max_size=8)


def rows_for(function: Function) -> st.SearchStrategy[list[Any]]:
    return rows_of(SMALL, function.values, kinds="all" if function.can_retract else "adds")


def in_order(place: int, *sequence: Any) -> int | None:
    """A sequence that follows arrival; NULL where the given one is."""
    return None if all(value is None for value in sequence) else place


def same_table(merging: Merging, rows: list[Any], lengths: Lengths) -> None:
    row_by_row = merging.visible(merging.at_once(rows))
    assert merging.visible(merging.write_by_write(rows, lengths)) == row_by_row


@pytest.mark.one_in(14)
@functions
@given(data=st.data(), lengths=lengths, removes=st.booleans())
def test_folded_columns(
    function: Function, data: st.DataObject, lengths: Lengths, removes: bool
) -> None:
    options = {"aggregation.remove-record-on-delete": "true"} if removes else {}
    same_table(function.merging(**options), data.draw(rows_for(function)), lengths)


ENGINES = {
    **PICKING,
    "partial-update-removing": {
        "merge-engine": "partial-update",
        "partial-update.remove-record-on-delete": "true",
    },
}


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
@given(rows=rows_of(SMALL, SMALL, TEXT), lengths=lengths)
def test_engines(options: dict[str, str], rows: list[Any], lengths: Lengths) -> None:
    same_table(Merging.of(WIDE, options), rows, lengths)


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    "options", [GROUPS, DECIDING, BOTH_DECIDING], ids=["groups", "one decides", "both decide"]
)
@MANY
@given(rows=rows_of(SMALL, LETTERS, SMALL, SMALL, SMALL, LETTERS, SMALL), lengths=lengths)
def test_sequence_groups(options: dict[str, str], rows: list[Any], lengths: Lengths) -> None:
    if options is not GROUPS:  # adds of one write are as new as the newest of them
        rows = [
            (*row[:4], in_order(place, row[4]), row[5], in_order(place, row[6], row[7]), *row[7:])
            for place, row in enumerate(rows)
        ]
    same_table(Merging.of(GROUPED, options), rows, lengths)


@pytest.mark.one_in(14)
@functions
@given(data=st.data(), lengths=lengths, decides=st.booleans())
def test_folded_columns_of_groups(
    function: Function, data: st.DataObject, lengths: Lengths, decides: bool
) -> None:
    own = {f"fields.v.{key}": value for key, value in function.options.items()}
    options = {
        "merge-engine": "partial-update",
        "fields.s.sequence-group": "v",
        "fields.v.aggregate-function": function.name,
    }
    if decides:
        options["partial-update.remove-record-on-sequence-group"] = "s"
    merging = Merging.of(f"k INT NOT NULL, s INT, v {function.type}", options | own)
    rows = data.draw(rows_for(function))
    if decides or not function.ignores_order:  # a late row remembers not how late it was
        rows = [(*row[:2], in_order(place, row[2]), row[3]) for place, row in enumerate(rows)]
    same_table(merging, rows, lengths)
