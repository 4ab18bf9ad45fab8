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

# Deliberate: see "Where Keytide differs" in docs/semantics.md.
DEVIATIONS = {
    **dict.fromkeys(
        (
            "game_scores_partial_union_increment",
            "game_scores_partial_delete",
            "game_scores_partial_revive_starts_fresh",
        ),
        "law 1: what a late row adds to a sum or a union counts, whenever it arrives",
    ),
    **dict.fromkeys(
        (
            "partial_two_comparison_columns",
            "docs_multi_comparison_six_events",
            "multi_comparison_same_column_tie",
            "partial_multi_comparison_stable_on_restart",
            "partial_multi_comparison_revived_row_vanishes_on_commit",
            "full_mode_multi_comparison_vanishes_on_commit",
        ),
        "law 1: of rows with different comparison columns the later arrival would win; columns "
        "of a watermark key are compared in turn, and producers with clocks of their own have "
        "sequence groups",
    ),
    "uniqueness_is_per_partition": "law 2: a key has one row, whatever stream brought it",
    "uuid_hash_is_case_insensitive": "a key is its value: text is not parsed before it is compared",
    "null_primary_key_collapses": "rule R12: a key without NULL, not one that stands for NULL",
    "delete_flag_string_type": "rule R7: a text tombstone has one marker, in one spelling",
    **dict.fromkeys(
        (
            "older_event_after_tombstone_expiry_is_accepted",
            "seal_runs_ttl_cleanup",
        ),
        "law 3: a tombstone is not forgotten",
    ),
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
    return [
        pytest.param(case, id=case["id"], marks=deviation(case["id"]))
        for case in CASES
        if case["id"] not in NOT_CONCERNED
    ]


def deviation(case_id: str) -> list[pytest.MarkDecorator]:
    if case_id not in DEVIATIONS:
        return []
    raises = (AssertionError, kt.InvalidError)
    return [pytest.mark.xfail(raises=raises, reason=DEVIATIONS[case_id], strict=True)]


@pytest.mark.parametrize("way", ["one write", "a write per row"])
@pytest.mark.parametrize("case", runnable_cases())
def test_case(case: Case, way: str, warehouse: str) -> None:
    table = create(kt.connect(warehouse), case)
    fill(table, case, at_once=way == "one write")
    assert visible(table, case) == expected(case)


def test_condition_on_another_column_runs_after_the_merge(warehouse: str) -> None:
    case = next(case for case in CASES if case["id"] == "filter_applies_after_upsert")
    table = create(kt.connect(warehouse), case)
    fill(table, case, at_once=False)
    assert table.scan(columns=["k"], where="status = 'open'").to_pylist() == [{"k": 2}]


@pytest.mark.parametrize("way", ["one write", "a write per row"])
def test_late_rows_count_in_sums_and_unions(way: str, warehouse: str) -> None:
    """What the deviating cases answer: the same sums and unions in any order of arrival."""
    case = next(c for c in CASES if c["id"] == "game_scores_partial_union_increment")
    table = create(kt.connect(warehouse), case)
    fill(table, case, at_once=way == "one write")
    found = {row["playerId"]: row for row in table.scan().to_pylist()}
    assert {key: row["game"] for key, row in found.items()} == {
        100: ["cs", "wow"],
        101: ["cs"],
        102: ["cs", "wow"],
    }
    scores = {key: row["score"] for key, row in found.items()}
    assert scores == pytest.approx({100: 16052.45, 101: 49996.2, 102: 200.0}, abs=0.01)
    assert found[100]["name"] == "P100"


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
