"""Scenes of single engines: what a reader sees after what was written."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from merging import Merging

from keytide.errors import InvalidError
from keytide.merge.order import IS_ADD

PARTIAL = {"merge-engine": "partial-update"}
REMOVING = {**PARTIAL, "partial-update.remove-record-on-delete": "true"}
GROUPED = {
    **PARTIAL,
    "fields.g.sequence-group": "a",
    "fields.h.sequence-group": "b",
    "partial-update.remove-record-on-sequence-group": "g",
}
SUMMING = {"merge-engine": "aggregation", "fields.default-aggregate-function": "sum"}


def visible(
    columns: str, options: dict[str, str], *rows: Any, **more: Any
) -> list[tuple[Any, ...]]:
    """The visible rows, the same merged at once and from the oldest on."""
    merging = Merging.of(f"k INT NOT NULL, {columns}", options, **more)
    at_once = merging.visible(merging.at_once(rows))
    assert merging.visible(merging.from_the_oldest(rows)) == at_once
    return at_once


# -- partial update ----------------------------------------------------------------------------


def test_refused_retract_lists_the_three_remedies() -> None:
    with pytest.raises(InvalidError) as caught:
        visible("a INT", PARTIAL, ("+I", 1, 1), ("-D", 1, 1))
    for remedy in ("ignore-delete", "partial-update.remove-record-on-delete", "sequence-group"):
        assert remedy in str(caught.value)


def test_update_before_does_not_remove_the_row() -> None:
    assert visible("a INT", REMOVING, ("+I", 1, 1), ("-U", 1, 1)) == [(1, 1)]


def test_nothing_of_a_removed_row_shows_later() -> None:
    rows = [("+I", 1, 5, "x"), ("-D", 1, 5, "x"), ("+I", 1, 7, None)]
    assert visible("a INT, b STRING", REMOVING, *rows) == [(1, 7, None)]


def test_late_add_does_not_bring_a_row_back() -> None:
    options = {**REMOVING, "sequence.field": "s"}
    rows = [("+I", 1, 10, 1), ("-D", 1, 20, None), ("+I", 1, 5, 9)]
    assert visible("s INT, a INT", options, *rows) == []
    assert visible("s INT, a INT", options, *rows, ("+I", 1, 20, 3)) == [(1, 20, 3)]


def test_sequence_fields_are_taken_together() -> None:
    options = {**PARTIAL, "sequence.field": "s,t"}
    rows = [("+I", 1, 1, 5, 1), ("+I", 1, 2, None, None), ("+I", 1, 2, 3, 7)]
    assert visible("s INT, t INT, a INT", options, *rows) == [(1, 2, 3, 7)]


# -- sequence groups ---------------------------------------------------------------------------


def test_add_that_is_older_than_the_delete_leaves_the_row_removed() -> None:
    rows = [("+I", 1, 1, 1, 1, 1), ("-D", 1, None, 5, None, None), ("+I", 1, 2, 4, None, None)]
    assert visible("a INT, g INT, b INT, h INT", GROUPED, *rows) == []


def test_other_groups_do_not_bring_a_row_back() -> None:
    rows = [("+I", 1, 1, 1, 1, 1), ("-D", 1, None, 5, None, None), ("+I", 1, None, None, 2, 2)]
    assert visible("a INT, g INT, b INT, h INT", GROUPED, *rows) == []


def test_row_that_comes_back_holds_what_came_since() -> None:
    rows = [
        ("+I", 1, 1, 1, 1, 1),
        ("-D", 1, None, 5, None, None),
        ("+I", 1, 2, 5, None, None),
        ("+I", 1, None, None, 3, 1),
    ]
    assert visible("a INT, g INT, b INT, h INT", GROUPED, *rows[:3]) == [(1, 2, 5, None, None)]
    assert visible("a INT, g INT, b INT, h INT", GROUPED, *rows) == [(1, 2, 5, 3, 1)]


def test_delete_orders_the_other_groups_that_it_names() -> None:
    rows = [
        ("+I", 1, 1, 1, 1, 1),
        ("-D", 1, None, 5, None, 4),
        ("+I", 1, 2, 6, 9, 3),
        ("+I", 1, None, None, 8, 4),
    ]
    assert visible("a INT, g INT, b INT, h INT", GROUPED, *rows[:3]) == [(1, 2, 6, None, 4)]
    assert visible("a INT, g INT, b INT, h INT", GROUPED, *rows) == [(1, 2, 6, 8, 4)]


def test_sequence_that_was_higher_before_the_delete_does_not_hide_what_follows() -> None:
    """The delete names a smaller sequence of another group than the row had."""
    options = {**GROUPED, "partial-update.remove-record-on-sequence-group": "h"}
    rows = [("+I", 1, 1, 3, 1, 1), ("-D", 1, 1, 2, 1, 5), ("+I", 1, 11, 2, 2, 6)]
    assert visible("a INT, g INT, b INT, h INT", options, *rows) == [(1, 11, 2, 2, 6)]


def test_late_delete_changes_nothing() -> None:
    rows = [("+I", 1, 1, 5, 1, 1), ("-D", 1, None, 4, None, None)]
    assert visible("a INT, g INT, b INT, h INT", GROUPED, *rows) == [(1, 1, 5, 1, 1)]


def test_retracts_alone_stay_one_retract_that_takes_back_all() -> None:
    options = {
        **PARTIAL,
        "fields.g.sequence-group": "a",
        "fields.a.aggregate-function": "sum",
    }
    merging = Merging.of("k INT NOT NULL, a INT, g INT", options)
    rows = [("-U", 1, 2, 1), ("-D", 1, 3, 2)]
    assert merging.rows(merging.at_once(rows)) == [("-U", 1, 5, 2)]
    assert visible("a INT, g INT", options, ("+I", 1, 9, 0), *rows) == [(1, 4, 2)]


@pytest.mark.parametrize(
    ("function", "type_", "late", "expected"),
    [
        ("first_value", "INT", None, None),
        ("first_non_null_value", "INT", None, 1),
        ("first_non_null_value", "INT", 0, 0),
        ("last_value", "INT", 0, 1),
        ("last_non_null_value", "INT", 0, 1),
        ("sum", "INT", 4, 5),
        ("max", "INT", 4, 4),
        ("listagg", "STRING", "late", "late,1"),
        ("collect", "ARRAY<INT>", [4], [1, 4]),
    ],
)
def test_late_add_is_folded_as_if_it_had_come_first(
    function: str, type_: str, late: Any, expected: Any
) -> None:
    options = {
        **PARTIAL,
        "fields.g.sequence-group": "a",
        "fields.a.aggregate-function": function,
    }
    first = {"STRING": "1", "ARRAY<INT>": [1]}.get(type_, 1)
    rows = [("+I", 1, first, 2), ("+I", 1, late, 1)]
    assert visible(f"a {type_}, g INT", options, *rows) == [(1, expected, 2)]


@pytest.mark.parametrize(
    ("type_", "older", "newer"),
    [
        ("DOUBLE", 1e300, float("nan")),
        ("DOUBLE", 0.0, -0.0),
        ("STRING", "Z", "a"),
        ("STRING", "\uffff", "\U0001f600"),
        ("BYTES", "7f", "80"),
        ("DECIMAL(38, 2)", "-0.01", "0.00"),
        ("TIMESTAMP(9)", "1969-12-31 23:59:59.999999999", "1970-01-01 00:00:00"),
        ("BIGINT", -(2**63), 2**63 - 1),
        ("CHAR(3)", "a  ", "a"),
        ("BOOLEAN", False, True),
    ],
)
def test_groups_order_every_type(type_: str, older: Any, newer: Any) -> None:
    merging = Merging.of(
        f"k INT NOT NULL, a INT, g {type_}", {**PARTIAL, "fields.g.sequence-group": "a"}
    )
    for rows, winner in [
        ([("+I", 1, 1, older), ("+I", 1, 2, newer)], 2),
        ([("+I", 1, 2, None), ("+I", 1, 1, older)], 1),
    ]:
        assert merging.at_once(rows)["a"].to_list() == [winner]


def test_only_the_sequences_that_matter_are_read() -> None:
    merging = Merging.of("k INT NOT NULL, a INT, g INT, b INT, h INT, free INT", GROUPED)
    assert set(merging.engine.columns(["a"])) == {"k", "a", "g"}
    assert set(merging.engine.columns(["b"])) == {"k", "b", "h", "g"}
    assert set(merging.engine.columns(["free"])) == {"k", "free", "g"}


def test_projected_rows_merge_as_whole_ones() -> None:
    merging = Merging.of("k INT NOT NULL, a INT, g INT, b INT, h INT, free INT", GROUPED)
    rows = [("+I", 1, 1, 2, 1, 1, 5), ("+U", 1, 2, 1, 2, 2, None), ("-D", 2, 1, 1, 1, 1, 1)]
    versions = merging.order.sort(merging.versions(rows))
    system = ["_SEQUENCE_NUMBER", "_VALUE_KIND"]
    for wanted in ("a", "b", "free"):
        columns = [*merging.engine.columns([wanted]), *system]
        whole = merging.engine.merge(versions).select(columns)
        assert merging.engine.merge(versions.select(columns)).rows() == whole.rows()


def test_group_whose_first_field_orders_versions_need_not_be_read() -> None:
    options = {**PARTIAL, "sequence.field": "h", "fields.h,i.sequence-group": "b"}
    merging = Merging.of("k INT NOT NULL, h INT, i INT, b INT, free INT", options)
    versions = merging.versions([("+I", 1, 2, 1, 1, 1), ("+I", 1, 1, 1, 2, 2)])
    columns = [*merging.engine.columns(["free"]), "_SEQUENCE_NUMBER", "_VALUE_KIND"]
    assert "i" not in columns
    merged = merging.merge(versions.select(columns))
    assert merged["free"].to_list() == [1]


# -- aggregation -------------------------------------------------------------------------------


def test_retracted_row_stays_with_what_is_left() -> None:
    assert visible("a INT", SUMMING, ("+I", 1, 5), ("-D", 1, 5)) == [(1, 0)]


def test_lone_retract_is_kept_as_one() -> None:
    merging = Merging.of("k INT NOT NULL, a INT", SUMMING)
    assert merging.rows(merging.at_once([("-D", 1, 5)])) == [("-D", 1, 5)]


def test_sum_begins_anew_after_a_removing_delete() -> None:
    options = {**SUMMING, "aggregation.remove-record-on-delete": "true"}
    assert visible("a INT", options, ("+I", 1, 5), ("-D", 1, 5)) == []
    assert visible("a INT", options, ("+I", 1, 5), ("-D", 1, 5), ("+I", 1, 7)) == [(1, 7)]
    assert visible("a INT", options, ("-D", 1, 5), ("-U", 1, 2), ("+U", 1, 7)) == [(1, 7)]


def test_sequence_fields_keep_the_place_of_the_last_version() -> None:
    options = {**SUMMING, "sequence.field": "s"}
    rows = [("+I", 1, 7, 1), ("+I", 1, 8, 1), ("+I", 1, 6, 1)]
    assert visible("s INT, a INT", options, *rows) == [(1, 8, 3)]
    assert visible("s INT, a INT", options, *rows, ("-U", 1, 9, 1)) == [(1, 9, 2)]


def test_partition_columns_are_not_aggregated() -> None:
    merging = Merging.of("k INT NOT NULL, d INT NOT NULL, a INT", SUMMING, partition_keys=["d"])
    rows = [("+I", 1, 20, 1), ("-U", 1, 20, 1), ("+U", 1, 20, 4)]
    assert merging.visible(merging.at_once(rows)) == [(1, 20, 4)]


def test_null_left_in_a_not_null_column_is_an_error() -> None:
    rows = [("+I", 1, "A"), ("-D", 1, "A")]
    with pytest.raises(InvalidError, match="the field 'a' is NOT NULL, but a delete"):
        visible("a STRING NOT NULL", {"merge-engine": "aggregation"}, *rows)


# -- first row -----------------------------------------------------------------------------------


def test_first_row_refuses_retracts_with_the_way_out() -> None:
    rows = [("+I", 1, 1), ("-U", 1, 1)]
    with pytest.raises(
        InvalidError, match=r"first-row does not accept -D and -U rows.*ignore-delete"
    ):
        visible("a INT", {"merge-engine": "first-row"}, *rows)


# -- every engine ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"merge-engine": "first-row"}, PARTIAL, REMOVING, SUMMING,
     {**PARTIAL, "fields.g.sequence-group": "a"}],
    ids=["deduplicate", "first-row", "partial-update", "removing", "aggregation", "groups"],
)  # fmt: skip
def test_keys_come_in_order_with_their_columns_and_types(options: dict[str, str]) -> None:
    merging = Merging.of("k INT, j STRING, a INT, g INT", options, key=["k", "j"])
    rows = [
        ("+I", *key, n, n)
        for n in range(3)
        for key in [(None, None), (None, "a"), (1, None), (1, "a"), (1 + n, "z")]
    ]
    versions = merging.order.sort(merging.versions(rows))
    merged = merging.engine.merge(versions)
    assert merged.schema == versions.schema
    assert merged.select("k", "j").rows() == list(dict.fromkeys(versions.select("k", "j").rows()))
    assert merging.engine.merge(merged).equals(merged)
    assert merging.engine.merge(versions.clear()).equals(versions.clear())


def test_columns_of_no_field_come_from_the_last_version() -> None:
    merging = Merging.of("k INT NOT NULL, a INT", PARTIAL)
    versions = merging.versions([("+I", 1, 1), ("+I", 1, None)]).with_columns(
        pl.Series("_RUN", [3, None], dtype=pl.Int8)
    )
    merged = merging.engine.merge(versions).filter(IS_ADD)
    assert merged.select("a", "_RUN", "_SEQUENCE_NUMBER").rows() == [(1, None, 1)]
