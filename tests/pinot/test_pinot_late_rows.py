"""Late rows of tables with partial upserts, against Pinot's rules taken one row after the other.

A row that is not older than the current row of its key is merged with it, or starts again after a
delete. An older one is stored and changes nothing. See "Effect of each live event" of Pinot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pinot_configs import CONFIG, FULL_PARTIAL, SCHEMA, STRATEGIES, changed

import keytide as kt
from new_tables import empty_lake, empty_table


class Row(NamedTuple):
    k: str
    ts: int
    n: int | None
    s: str | None
    gone: bool = False


class Newest(NamedTuple):
    """The newest row of a key that was ever taken, and its merged values."""

    ts: int
    n: int | None = None
    s: str | None = None
    lives: bool = False


def taken(rows: Sequence[Row]) -> tuple[dict[str, Newest], int]:
    """What Pinot has of rows in their order of arrival, and how many of them were late."""
    found: dict[str, Newest] = {}
    late = 0
    for row in rows:
        now = found.get(row.k)
        if now is not None and row.ts < now.ts:
            late += 1
        elif row.gone:
            found[row.k] = Newest(row.ts)
        elif now is None or not now.lives:
            found[row.k] = Newest(row.ts, row.n, row.s, lives=True)
        else:
            n = row.n if now.n is None else now.n + (row.n or 0)  # INCREMENT
            found[row.k] = Newest(row.ts, n, now.s if row.s is None else row.s, lives=True)
    return found, late


ROWS = st.builds(
    Row, st.sampled_from("ab"), st.integers(0, 4), st.sampled_from([None, 1, 10]),
    st.sampled_from([None, "x", "y"]), st.booleans(),
)  # fmt: skip

PARTIAL = FULL_PARTIAL | {
    STRATEGIES: {"n": "INCREMENT"}, "upsertConfig.deleteRecordColumn": "gone",
}  # fmt: skip


def new_table(**changes: Any) -> kt.Table:
    return kt.pinot.create_table(empty_lake(), changed(CONFIG, PARTIAL | changes), SCHEMA)


def as_dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [row._asdict() for row in rows]


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
@given(batches=st.lists(st.lists(ROWS, min_size=1, max_size=6), max_size=4), compacts=st.booleans())
def test_late_rows_are_left_out_and_counted_as_in_pinot(
    batches: list[list[Row]], compacts: bool
) -> None:
    table = new_table()
    late = 0
    for batch in batches:
        late += table.write(as_dicts(batch)).out_of_order or 0
        if compacts:
            table.compact(full=True)
    wanted, wanted_late = taken([row for batch in batches for row in batch])
    lives = {(k, row.n, row.s, row.ts) for k, row in wanted.items() if row.lives}
    found = table.scan(["k", "n", "s", "ts"]).to_pylist()
    assert {tuple(row.values()) for row in found} == lives
    assert len(found) == len(lives)
    assert late == wanted_late
    assert table.verify().is_healthy


@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_a_late_row_is_stored_unless_it_is_to_be_dropped() -> None:
    rows = [Row("a", 2, 1, "x"), Row("a", 1, 1, "y")]
    for dropped, stored in ((False, 2), (True, 1)):
        table = new_table(**{"upsertConfig.dropOutOfOrderRecord": dropped})
        assert table.write(as_dicts(rows)).out_of_order == 1
        files = (entry.file for entry in table.stored.newest_files().entries)
        assert sum(file.row_count for file in files) == stored


def test_only_rows_that_are_merged_can_be_left_out() -> None:
    options = {"upsert.mode": "full", "sequence.field": "ts", "upsert.late-rows": "leave-out"}
    with pytest.raises(kt.InvalidError, match=r"requires 'upsert.mode' = 'partial', found 'full'"):
        empty_table("k INT, ts INT", ["k"], options=options)
