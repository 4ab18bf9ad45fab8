"""Cases of Pinot's upserts in tables that are made of Pinot's own config.

A segment is a write, compaction one of the table, and a restart opens it anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import keytide as kt

CASES = json.loads((Path(__file__).parents[1] / "data/cases/pinot.json").read_text())

Case = dict[str, Any]

TOO_OLD = "rows that are older than a time to live"
RESTARTED = "several comparison columns after a commit or a restart"

# What is answered otherwise on purpose: the subject under which docs/semantics.md has the reason,
# and the rows, or the error.
DEVIATIONS: dict[str, tuple[str, list[dict[str, Any]] | str]] = {
    "uniqueness_is_per_partition": ("the same key in two stream partitions", [{"k": 1, "ts": 2}]),
    "null_primary_key_collapses": ("NULL in a key", [{"k": "null", "ts": 3, "v": "z"}]),
    "older_event_after_tombstone_expiry_is_accepted": (
        TOO_OLD,
        [{"k": 0, "ts": 100, "deleted": False}, {"k": 1, "ts": 120, "deleted": False}],
    ),
    "seal_runs_ttl_cleanup": (TOO_OLD, [{"k": 2, "ts": 150, "deleted": False}]),
    "metadata_ttl_then_update_makes_duplicate": (
        "a key that a `metadataTTL` has forgotten",
        [{"k": 1, "ts": 120}, {"k": 3, "ts": 130}],
    ),
    "metadata_ttl_then_late_event_makes_duplicate": (
        TOO_OLD,
        [{"k": 1, "ts": 120}, {"k": 3, "ts": 80}],
    ),
    "out_of_ttl_segment_uses_snapshot": (TOO_OLD, [{"k": 10, "ts": 120}]),
    "out_of_ttl_segment_without_snapshot_all_visible": (TOO_OLD, [{"k": 10, "ts": 120}]),
    "partial_multi_comparison_delete_lost_on_restart": (RESTARTED, []),
    "partial_multi_comparison_revived_row_vanishes_on_commit": (
        RESTARTED,
        [{"k": 1, "a": 101, "b": 5, "v": "back", "deleted": False}],
    ),
    "full_mode_multi_comparison_flips_on_commit": (
        RESTARTED,
        [{"k": 1, "a": 100, "b": 5, "v": "from-b"}],
    ),
    "full_mode_multi_comparison_vanishes_on_commit": (
        RESTARTED,
        [{"k": 1, "a": 100, "b": 5, "v": "from-b"}],
    ),
}
# What a table without segments has not.
LEFT_OUT = dict.fromkeys(
    (
        "reload_rebuilds_from_snapshot_when_ttl",
        "drop_newest_segment_does_not_resurrect",
        "drop_newest_segment_then_restart_resurrects",
        "drop_newest_segment_then_live_event",
    ),
    "segments that are dropped or reloaded one by one",
)


CONCERNED = {case["id"]: case for case in CASES}
RUN = [case for id_, case in CONCERNED.items() if id_ not in LEFT_OUT]


@pytest.mark.one_in(14)
@pytest.mark.filterwarnings("ignore:.*have no effect:keytide.KeytideWarning")
@pytest.mark.parametrize("way", ["one write", "a write per row"])
@pytest.mark.parametrize("case", RUN, ids=[case["id"] for case in RUN])
def test_case(case: Case, way: str, warehouse: str) -> None:
    lake = kt.connect(warehouse)
    table = kt.pinot.create_table(lake, config_of(case), schema_of(case))
    _, ours = DEVIATIONS.get(case["id"], ("", None))
    if isinstance(ours, str):
        with pytest.raises(kt.InvalidError, match=ours):
            play(table, case, at_once=way == "one write")
        return
    play(table, case, at_once=way == "one write")
    assert_shows(table, case, case["expect_visible"] if ours is None else ours, warehouse)


def assert_shows(
    table: kt.Table, case: Case, expected: list[dict[str, Any]], warehouse: str
) -> None:
    shown = kt.connect(warehouse).table("t").scan().to_pylist()
    assert in_order(shown, case) == in_order([full_row(row, case) for row in expected], case)
    assert table.verify().is_healthy


def test_condition_on_another_column_sees_current_rows_alone(warehouse: str) -> None:
    case = CONCERNED["filter_applies_after_upsert"]
    table = kt.pinot.create_table(kt.connect(warehouse), config_of(case), schema_of(case))
    play(table, case, at_once=False)
    assert table.scan(columns=["k"], where="status = 'open'").to_pylist() == [{"k": 2}]


def test_every_case_is_run_or_left_out() -> None:
    assert {*LEFT_OUT, *DEVIATIONS} <= CONCERNED.keys()
    assert len(RUN) + len(LEFT_OUT) == len(CONCERNED)


def test_every_deviation_is_listed_with_its_reason() -> None:
    semantics = (Path(__file__).parents[2] / "docs/semantics.md").read_text()
    for subject in {subject for subject, _ in DEVIATIONS.values()}:
        assert f"\n| {subject} |" in semantics


def config_of(case: Case) -> dict[str, Any]:
    given = case["config"]
    by_time = given.get("comparison_defaults_to_time_column", False)
    compared = given["comparison_columns"]
    # Rows go to buckets by the text of a key, however a UUID is spelt; and how old rows are is told
    # by each bucket for itself, as Pinot's partitions do.
    has_ttl = given["metadata_ttl"] or given["deleted_keys_ttl"]
    partitions = 1 if given["hash_function"] == "UUID" or has_ttl else 2
    upsert = {
        "mode": given["mode"],
        "hashFunction": given["hash_function"],
        "comparisonColumns": None if by_time else compared,
        "deleteRecordColumn": given["delete_column"],
        "dropOutOfOrderRecord": given["drop_out_of_order"],
        "outOfOrderRecordColumn": given["out_of_order_column"],
        "defaultPartialUpsertStrategy": given["default_partial_strategy"],
        "partialUpsertStrategies": given["partial_strategies"] or None,
        "postPartialUpsertTransformConfigs": [
            {"columnName": name, "transformFunction": f"plus({', '.join(of)})"}
            for name, of in given.get("post_transform_plus", {}).items()
        ],
        "metadataTTL": given["metadata_ttl"],
        "deletedKeysTTL": given["deleted_keys_ttl"],
        "consistencyMode": given["consistency_mode"],
        "enableSnapshot": given.get("snapshot"),
        "enableDeletedKeysCompactionConsistency": given.get(
            "enable_deleted_keys_compaction_consistency"
        ),
    }
    return {
        "tableName": f"t_{given['table_type']}",
        "tableType": given["table_type"],
        "segmentsConfig": {"timeColumnName": compared[0] if by_time else None},
        "routing": {"instanceSelectorType": "strictReplicaGroup"},
        "tableIndexConfig": {"nullHandlingEnabled": given["mode"] == "PARTIAL",
                             "segmentPartitionConfig": {"columnPartitionMap": {
            given["primary_key"][0]: {"functionName": "Murmur", "numPartitions": partitions},
        }}},
        "task": {"taskTypeConfigsMap": {"UpsertCompactionTask": {}}},
        "upsertConfig": upsert,
    }  # fmt: skip


def schema_of(case: Case) -> dict[str, Any]:
    lists: dict[str, Any] = {}
    for name, column in case["config"]["columns"].items():
        is_single = not any(isinstance(event.get(name), list) for event in case["events"])
        spec = {
            "name": name,
            "dataType": column["type"],
            "defaultNullValue": column.get("default"),
            "singleValueField": is_single,
        }
        kind = "metricFieldSpecs" if column.get("role") == "metric" else "dimensionFieldSpecs"
        lists.setdefault(kind, []).append(spec)
    return {"schemaName": "t", "primaryKeyColumns": case["config"]["primary_key"], **lists}


def full_row(row: dict[str, Any], case: Case) -> dict[str, Any]:
    """A row with all columns, and no others."""
    return {name: row.get(name) for name in case["config"]["columns"]}


def play(table: kt.Table, case: Case, *, at_once: bool) -> None:
    """The events in their order; a compaction comes after the rows before it."""
    batch: list[dict[str, Any]] = []
    for event in case["events"]:
        op = event.get("_op")
        batch += [full_row(row, case) for row in event.get("rows", [] if op else [event])]
        if op == "compact" or not at_once:
            write(table, batch)
            batch = []
        if op == "compact":
            table.compact(full=True)
    write(table, batch)


def write(table: kt.Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        table.write(rows)


def in_order(rows: list[dict[str, Any]], case: Case) -> list[Any]:
    key = case["config"]["primary_key"]
    ordered = sorted(rows, key=lambda row: str([row[name] for name in key]))
    return [
        {n: pytest.approx(v, abs=0.01) if isinstance(v, float) else v for n, v in row.items()}
        for row in ordered
    ]
