"""What a batch of changes does to a table: counters, and values that the source left out."""

from __future__ import annotations

import polars as pl
import pytest

from keytide.base.row_kind import RowKind
from keytide.feeds.feed_writer import REASON, ChangeCounts, PreviousValues, count_changes
from keytide.merge.order import MergeOrder

ORDER = MergeOrder(key=("k",), sequence=("s",))


def changes(*rows: tuple[int, int | None, str | None, str, list[str]]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            (k, s, v, RowKind.parse(kind), left_out, ordinal, b"")
            for ordinal, (k, s, v, kind, left_out) in enumerate(rows)
        ],
        schema={
            "k": pl.Int64,
            "s": pl.Int64,
            "v": pl.String,
            "_VALUE_KIND": pl.Int8,
            "_unavailable": pl.List(pl.String),
            "_ordinal": pl.Int64,
            "_message": pl.Binary,
        },
        orient="row",
    )


def stored(*rows: tuple[int, int | None, str | None, str]) -> pl.DataFrame:
    schema = {"k": pl.Int64, "s": pl.Int64, "v": pl.String, "_VALUE_KIND": pl.Int8}
    versions = [(*values, RowKind.parse(kind)) for *values, kind in rows]
    return pl.DataFrame(versions, schema=schema, orient="row")


@pytest.mark.parametrize(
    ("arrivals", "in_table", "applied", "late", "duplicate"),
    [
        ([(1, 5), (1, 7)], [], 2, 0, 0),
        ([(1, 7), (1, 5)], [], 1, 1, 0),
        ([(1, 5), (1, 5)], [], 1, 0, 1),
        ([(1, 5), (1, 7), (1, 5)], [], 2, 0, 1),
        ([(1, 5)], [(1, 5)], 0, 0, 1),
        ([(1, 4)], [(1, 5)], 0, 1, 0),
        ([(1, 6)], [(1, 5)], 1, 0, 0),
        ([(1, None)], [(1, 5)], 0, 1, 0),
        ([(1, None)], [], 1, 0, 0),
        ([(1, 5), (2, 5)], [(2, 9)], 1, 1, 0),
    ],
)
@pytest.mark.parametrize("sequence", [("s",), ("x", "s"), ("x", "y", "s")])
def test_each_message_is_applied_late_or_duplicate(
    sequence: tuple[str, ...],
    arrivals: list[tuple[int, int | None]],
    in_table: list[tuple[int, int]],
    applied: int,
    late: int,
    duplicate: int,
) -> None:
    alike = [pl.lit(7).alias(name) for name in sequence if name != "s"]
    batch = changes(*((k, s, "v", "+U", []) for k, s in arrivals)).with_columns(alike)
    known = stored(*((k, s, "v", "+I") for k, s in in_table)).with_columns(alike)
    order = MergeOrder(key=("k",), sequence=sequence)

    assert count_changes(batch, known, [order]) == ChangeCounts(applied, late, duplicate)


def test_a_deleted_key_makes_older_changes_late() -> None:
    batch = changes((1, 4, "v", "+U", []))

    assert count_changes(batch, stored((1, 9, None, "-D")), [ORDER]) == ChangeCounts(late=1)


def test_a_key_change_is_one_message() -> None:
    batch = changes((1, 4, "v", "-D", []), (2, 4, "v", "+I", [])).with_columns(
        pl.lit(0, dtype=pl.Int64).alias("_ordinal")
    )

    assert count_changes(batch, stored((1, 3, "v", "+I")), [ORDER]) == ChangeCounts(applied=1)


def test_without_ordering_columns_everything_is_applied() -> None:
    batch = changes((1, 4, "a", "+I", []), (1, 3, "b", "+U", []))

    order = MergeOrder(key=("k",))

    assert count_changes(batch, stored(), [order]) == ChangeCounts(applied=2)


@pytest.mark.parametrize(
    ("in_table", "batch", "values", "unknown"),
    [
        ([(1, 3, "old", "+I")], [(1, 5, None, "+U", ["v"])], ["old"], 0),
        ([(1, 3, None, "+I")], [(1, 5, None, "+U", ["v"])], [None], 0),
        ([], [(1, 4, "new", "+I", []), (1, 5, None, "+U", ["v"])], ["new", "new"], 0),
        ([], [(1, 5, None, "+U", ["v"]), (1, 4, "new", "+I", [])], ["new", "new"], 0),
        ([(2, 1, "other", "+I")], [(1, 5, None, "+U", ["v"])], [], 1),
        ([(1, 3, "old", "-D")], [(1, 5, None, "+U", ["v"])], [], 1),
        ([(1, 9, "newer", "+I")], [(1, 5, None, "+U", ["v"])], [None], 0),
    ],
    ids=[
        "from the table",
        "NULL is a value",
        "from the batch",
        "in merge order, not arrival order",
        "no earlier version",
        "a deletion tells nothing",
        "a loser needs no value",
    ],
)
def test_left_out_values_are_those_of_the_version_before(
    in_table: list[tuple[int, int, str | None, str]],
    batch: list[tuple[int, int, str | None, str, list[str]]],
    values: list[str | None],
    unknown: int,
) -> None:
    kernel = PreviousValues(ORDER, (ORDER,), ("k", "s", "v"), ("v",))
    filled = kernel.changed(stored(*in_table), changes(*batch))

    known = filled.filter(pl.col(REASON).is_null())
    assert known["v"].to_list() == values
    assert filled.height - known.height == unknown
