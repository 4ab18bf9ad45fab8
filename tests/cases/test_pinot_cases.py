"""Cases of real-time upserts: comparison columns as watermark keys, delete columns as tombstones.

Full upserts are `deduplicate`, partial ones `aggregation` with the strategies as merge functions.
A segment is a write. What is answered otherwise on purpose, or is about something that a table
without segments has not, is listed with its reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import keytide as kt
from json_values import arrow_table

CASES = json.loads((Path(__file__).parents[1] / "data/cases/pinot.json").read_text())

Case = dict[str, Any]

# What is answered otherwise on purpose: the subject under which docs/semantics.md has the reason,
# and the rows, with those columns that are others, or the error.
LATE = "late rows of a partial upsert"
CLOCKS = "several comparison columns"
FORGOTTEN = "tombstones older than their time to live"
DEVIATIONS: dict[str, tuple[str, list[dict[str, Any]] | str]] = {
    "game_scores_partial_union_increment": (
        LATE,
        [
            {"playerId": 100, "score": 16052.45},
            {"playerId": 101, "score": 49996.2},
            {"playerId": 102, "score": 200.0},
        ],
    ),
    "game_scores_partial_delete": (LATE, [{"playerId": 101, "score": 49996.2}]),
    "game_scores_partial_revive_starts_fresh": (
        LATE,
        [{"playerId": 100, "score": 0.0}, {"playerId": 101, "score": 49996.2}],
    ),
    "partial_two_comparison_columns": (
        CLOCKS,
        [
            {"event_id": "aa", "description": "update", "otherComparisonColumn": None},
            {"event_id": "bb", "description": "dup"},
        ],
    ),
    "docs_multi_comparison_six_events": (
        CLOCKS,
        [
            {
                "event_id": "aa",
                "orderReceived": 2,
                "description": "update",
                "otherComparisonColumn": None,
            }
        ],
    ),
    "multi_comparison_same_column_tie": (CLOCKS, [{"k": 1, "a": 5, "b": None, "v": "x"}]),
    "partial_multi_comparison_stable_on_restart": (
        CLOCKS,
        [{"k": 1, "a": 100, "b": None, "v": "from-a"}],
    ),
    "full_mode_multi_comparison_vanishes_on_commit": (
        CLOCKS,
        [{"k": 1, "a": 100, "b": None, "v": "from-a"}],
    ),
    "partial_multi_comparison_revived_row_vanishes_on_commit": (
        CLOCKS,
        [{"k": 1, "a": 101, "b": None, "v": "back", "deleted": False}],
    ),
    "uniqueness_is_per_partition": ("the same key in two stream partitions", [{"k": 1, "ts": 2}]),
    "uuid_hash_is_case_insensitive": (
        "keys that are hashed as UUIDs",
        [
            {"k": "0F14D0AB-9605-4A62-A9E4-5ED26688389B", "ts": 2},
            {"k": "0f14d0ab-9605-4a62-a9e4-5ed26688389b", "ts": 1},
        ],
    ),
    "null_primary_key_collapses": ("NULL in a key", "'k' is STRING NOT NULL and .* are NULL"),
    "delete_flag_string_type": ("string that marks a delete", []),
    "older_event_after_tombstone_expiry_is_accepted": (FORGOTTEN, [{"k": 0}, {"k": 1}]),
    "seal_runs_ttl_cleanup": (FORGOTTEN, [{"k": 2}]),
}
# Expected to come, or nothing that a table without segments could have.
NOT_CONCERNED = {
    "post_merge_transform": "columns computed from a merged row",
    **dict.fromkeys(
        (
            "metadata_ttl_then_update_makes_duplicate",
            "metadata_ttl_then_late_event_makes_duplicate",
            "metadata_ttl_boundary_is_strict",
            "metadata_ttl_expired_tombstone_keeps_hidden_row",
            "out_of_ttl_segment_uses_snapshot",
            "out_of_ttl_segment_without_snapshot_all_visible",
            "consistent_deletes_waits_for_single_segment",
            "reload_rebuilds_from_snapshot_when_ttl",
        ),
        "keys that expire from an index",
    ),
    **dict.fromkeys(
        (
            "drop_newest_segment_does_not_resurrect",
            "drop_newest_segment_then_restart_resurrects",
            "drop_newest_segment_then_live_event",
        ),
        "segments that are dropped one by one",
    ),
    **dict.fromkeys(
        (
            "compaction_snapshot_type_keeps_tombstone",
            "compaction_is_invisible_to_queries",
            "compaction_deletes_fully_invalid_segment",
        ),
        "compaction of segments",
    ),
}
TYPES = {"INT": "INT", "LONG": "BIGINT", "FLOAT": "FLOAT", "STRING": "STRING", "BOOLEAN": "BOOLEAN"}


def runnable_cases() -> list[Any]:
    concerned = [case for case in CASES if case["id"] not in NOT_CONCERNED]
    return [pytest.param(as_answered(case), id=case["id"]) for case in concerned]


def as_answered(case: Case) -> Case:
    """A case as Keytide answers it."""
    _, ours = DEVIATIONS.get(case["id"], ("", None))
    if ours is None:
        return case
    if isinstance(ours, str):
        return case | {"expect_error": ours}
    key = case["config"]["primary_key"][0]
    theirs = {row[key]: row for row in case["expect_visible"]}
    return case | {"expect_visible": [theirs.get(row[key], {}) | row for row in ours]}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("way", ["one write", "a write per row"])
@pytest.mark.parametrize("case", runnable_cases())
def test_case(case: Case, way: str, lake: kt.Lake) -> None:
    table = create(lake, case)
    if "expect_error" in case:
        with pytest.raises(kt.InvalidError, match=case["expect_error"]):
            fill(table, case, at_once=way == "one write")
        return
    fill(table, case, at_once=way == "one write")
    assert visible(table, case) == expected(case)


def test_condition_on_another_column_runs_after_the_merge(warehouse: str) -> None:
    case = next(case for case in CASES if case["id"] == "filter_applies_after_upsert")
    table = create(kt.connect(warehouse), case)
    fill(table, case, at_once=False)
    assert table.scan(columns=["k"], where="status = 'open'").to_pylist() == [{"k": 2}]


def test_every_deviation_is_listed_with_its_reason() -> None:
    semantics = (Path(__file__).parents[2] / "docs/semantics.md").read_text()
    for subject, _ in DEVIATIONS.values():
        assert f"\n| {subject} |" in semantics


def test_every_case_left_out_exists_and_is_listed_once() -> None:
    ids = {case["id"] for case in CASES}
    assert (DEVIATIONS.keys() | NOT_CONCERNED.keys()) - ids == set()
    assert DEVIATIONS.keys() & NOT_CONCERNED.keys() == set()


def create(lake: kt.Lake, case: Case) -> kt.Table:
    config = case["config"]
    options = {"watermark.key": ",".join(config["comparison_columns"])}
    if config["mode"] == "PARTIAL":
        options["merge-engine"] = "aggregation"
        options["aggregation.remove-record-on-delete"] = "true"
        options["fields.default-aggregate-function"] = config["default_partial_strategy"]
        for column, strategy in config["partial_strategies"].items():
            options[f"fields.{column}.aggregate-function"] = strategy
    if config["delete_column"]:
        options["tombstone.key"] = config["delete_column"]
    fields = [kt.Field(-1, name, type_of(case, name)) for name in config["columns"]]
    return lake.create_table("t", fields, config["primary_key"], options=options)


def type_of(case: Case, column: str) -> Any:
    text = TYPES[case["config"]["columns"][column]["type"]]
    is_list = any(isinstance(row.get(column), list) for row in rows_of(case))
    return kt.parse_sql_type(f"ARRAY<{text}>" if is_list else text)


def rows_of(case: Case) -> list[dict[str, Any]]:
    """All rows in their order of arrival."""
    rows = []
    for event in case["events"]:
        rows += event.get("rows", []) if "_op" in event else [event]
    return rows


def fill(table: kt.Table, case: Case, *, at_once: bool) -> None:
    names = list(case["config"]["columns"])
    types = [type_of(case, name) for name in names]
    rows = [[row.get(name) for name in names] for row in rows_of(case)]
    for batch in [rows] if at_once else [[row] for row in rows]:
        table.write(arrow_table(batch, names, types))


def visible(table: kt.Table, case: Case) -> list[dict[str, Any]]:
    return in_order(table.scan().to_pylist(), case)


def expected(case: Case) -> list[Any]:
    names = case["config"]["columns"]
    rows = [{name: row.get(name) for name in names} for row in case["expect_visible"]]
    return in_order(rows, case, rounded=True)


def in_order(rows: list[dict[str, Any]], case: Case, *, rounded: bool = False) -> list[Any]:
    ordered = sorted(
        rows, key=lambda row: str([row[name] for name in case["config"]["primary_key"]])
    )
    return [approximately(row) for row in ordered] if rounded else ordered


def approximately(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: pytest.approx(value, abs=0.01) if isinstance(value, float) else value
        for name, value in row.items()
    }
