"""The tables that configs of Pinot make: columns, options, warnings, and a second call."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pinot_configs import (
    CONFIG,
    FULL_PARTIAL,
    PARTITIONS,
    SCHEMA,
    STRATEGIES,
    Change,
    make,
)

import keytide as kt
from new_tables import empty_lake

# -- columns ---------------------------------------------------------------------------------------

TYPES = {
    "INT": "INT", "LONG": "BIGINT", "FLOAT": "FLOAT", "DOUBLE": "DOUBLE",
    "BIG_DECIMAL": "DECIMAL(38, 18)", "BOOLEAN": "BOOLEAN",
    "TIMESTAMP": "TIMESTAMP(3) WITH LOCAL TIME ZONE", "STRING": "STRING", "JSON": "STRING",
    "BYTES": "BYTES", "UUID": "STRING",
}  # fmt: skip


@pytest.mark.parametrize(("theirs", "ours"), TYPES.items())
def test_types(theirs: str, ours: str) -> None:
    specs = [
        {"name": "one", "dataType": theirs},
        {"name": "many", "dataType": theirs, "singleValueField": False},
    ]
    table = make(schema={"dimensionFieldSpecs": [*SCHEMA["dimensionFieldSpecs"], *specs]})
    types = {field.name: field.type.sql() for field in table.table_schema.fields}
    assert (types["one"], types["many"]) == (ours, f"ARRAY<{ours}>")


def test_columns_stand_in_the_order_of_the_lists_and_the_key_is_not_null() -> None:
    fields = make().table_schema.fields
    assert [f.name for f in fields] == [
        "k", "n", "s", "gone", "late", "tags", "flags", "doc", "score", "ts",
    ]  # fmt: skip
    assert [f.name for f in fields if not f.type.nullable] == ["k"]
    assert fields[-1].description == "EPOCH, 1:MILLISECONDS"


DEFAULTS: list[tuple[str, Any, Any]] = [
    ("INT", 7, 7),
    ("LONG", "8", 8),
    ("DOUBLE", 1.5, 1.5),
    ("STRING", "none", "none"),
    ("STRING", "", ""),
    ("BOOLEAN", "true", True),
    ("BOOLEAN", False, False),
    ("BOOLEAN", 1, True),
    ("BOOLEAN", "0", False),
]


@pytest.mark.parametrize(("type_", "default", "stored"), DEFAULTS)
@pytest.mark.parametrize("has_nulls", [False, True])
def test_default_takes_the_place_of_null_unless_nulls_are_handled(
    type_: str, default: Any, stored: Any, has_nulls: bool
) -> None:
    spec = {"name": "x", "dataType": type_, "defaultNullValue": default}
    table = make({"tableIndexConfig.nullHandlingEnabled": has_nulls}, {"metricFieldSpecs": [spec]})
    table.write([row("a", 1, x=None)])
    assert [r["x"] for r in table.scan().to_pylist()] == [None if has_nulls else stored]


@pytest.mark.parametrize("has_nulls", [False, True])
def test_rows_without_a_time_are_compared_by_its_default(has_nulls: bool) -> None:
    times = [{"name": "ts", "dataType": "LONG", "defaultNullValue": 100}]
    table = make({"tableIndexConfig.nullHandlingEnabled": has_nulls}, {"dateTimeFieldSpecs": times})
    table.write([row("a", 50), row("a", None, s="default"), row("a", 99)])
    assert [(r["ts"], r["s"]) for r in table.scan().to_pylist()] == [(100, "default")]


def test_time_of_milliseconds_is_a_default() -> None:
    times = [{"name": "ts", "dataType": "TIMESTAMP", "defaultNullValue": 1514764800123}]
    table = make(schema={"dateTimeFieldSpecs": times})
    table.write([row("a", None)])
    (found,) = table.scan().to_pylist()
    assert found["ts"].isoformat() == "2018-01-01T00:00:00.123000+00:00"


def test_columns_that_say_so_are_not_null_where_columns_handle_nulls() -> None:
    spec = {"name": "x", "dataType": "INT", "notNull": True}
    kinds = [
        make(schema={"metricFieldSpecs": [spec], "enableColumnBasedNullHandling": by_column})
        .table_schema.field("x")
        .type.nullable
        for by_column in (False, True)
    ]
    assert kinds == [True, False]


def test_null_in_a_key_is_an_error_that_is_counted() -> None:
    table = make()
    result = table.write([row(None, 1), row("a", 1)])
    assert (result.rows, result.rows_stored, result.errors) == (2, 1, {"null-primary-key": 1})
    assert [found["k"] for found in table.scan().to_pylist()] == ["a"]


# -- options ---------------------------------------------------------------------------------------

HASHES = ["NONE", "MD5", "MURMUR3", "UUID", "XXHASH", "XXH128"]
UPSERTS = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["FULL", "full"]),
        "hashFunction": st.sampled_from(HASHES),
        "comparisonColumns": st.sampled_from(["n", "score", "ts"]).map(lambda name: [name]),
        "deleteRecordColumn": st.sampled_from(["gone", "s", "n", "score"]),
    },
)
LAYOUTS = st.fixed_dictionaries(
    {},
    optional={
        PARTITIONS: st.integers(1, 5).map(lambda n: {"k": {"numPartitions": n}}),
        "tableName": st.sampled_from(["orders", "orders_REALTIME", "shop.orders"]),
        "tableIndexConfig.nullHandlingEnabled": st.booleans(),
        "routing.instanceSelectorType": st.sampled_from(["strictReplicaGroup"]),
    },
)
KEYS = st.sampled_from([["k"], ["k", "n"], ["s", "k"]])


@given(upsert=UPSERTS, layout=LAYOUTS, key=KEYS)
def test_config_that_is_sound_makes_a_table(
    upsert: dict[str, Any], layout: Change, key: list[str]
) -> None:
    named = {*upsert.get("comparisonColumns", ["ts"]), upsert.get("deleteRecordColumn")}
    key = [name for name in key if name not in named]
    lake = empty_lake()
    partitions = layout.get(PARTITIONS, CONFIG_PARTITIONS)
    assume(upsert.get("hashFunction") != "UUID" or partitions["k"]["numPartitions"] == 1)
    change = {"upsertConfig": upsert, **layout}
    table = make(change, {"primaryKeyColumns": key}, lake)
    expected = {
        "upsert.mode": "full",
        "upsert.hash-function": upsert.get("hashFunction", "NONE").lower(),
        "upsert.primary-key": ",".join(key),
        "sequence.field": upsert.get("comparisonColumns", ["ts"])[0],
        "bucket": str(partitions["k"]["numPartitions"]),
    }
    if "deleteRecordColumn" in upsert:
        expected["upsert.delete-record-column"] = upsert["deleteRecordColumn"]
    assert expected.items() <= table.options.items()
    assert ("upsert.delete-record-column" in table.options) == ("deleteRecordColumn" in upsert)
    name = layout.get("tableName", "orders")
    assert table.name == (name if "." in name else "default.orders")
    assert make(change, {"primaryKeyColumns": key}, lake).uri == table.uri
    table.write([row("a", 1, score=0.5, n=3, s="b")])
    assert table.scan().count() == 1


CONFIG_PARTITIONS = CONFIG["tableIndexConfig"]["segmentPartitionConfig"]["columnPartitionMap"]


def test_table_without_partitions_has_one_bucket() -> None:
    assert make({"tableIndexConfig": None}).options["bucket"] == "1"


def test_offline_table_loses_its_suffix() -> None:
    assert make({"tableName": "o_OFFLINE", "tableType": "offline"}).name == "default.o"


def test_name_that_is_given_counts() -> None:
    lake = empty_lake()
    table = kt.pinot.create_table(lake, CONFIG, SCHEMA, name="shop.latest")
    assert table.name == "shop.latest"
    assert lake.tables() == ["shop.latest"]


def test_row_marked_as_deleted_is_gone_until_a_newer_one_comes() -> None:
    table = make({"upsertConfig.deleteRecordColumn": "gone"})
    table.write([row("a", 1), row("b", 1)])
    table.write([row("a", 3, gone=True)])
    table.write([row("a", 2)])
    assert [r["k"] for r in table.scan().to_pylist()] == ["b"]
    table.write([row("a", 3)])
    assert table.scan().count() == 2


# -- warnings --------------------------------------------------------------------------------------

IDLE: dict[str, Any] = {
    "upsertConfig.snapshot": "ENABLE",
    "upsertConfig.preload": "DISABLE",
    "upsertConfig.consistencyMode": "SYNC",
    "upsertConfig.upsertViewRefreshIntervalMs": 5,
    "upsertConfig.newSegmentTrackingTimeMs": 5,
    "upsertConfig.enableCommitTimeCompaction": True,
    "upsertConfig.allowPartialUpsertConsumptionDuringCommit": True,
    "upsertConfig.metadataManagerClass": "a.B",
    "upsertConfig.metadataManagerConfigs": {"a": "b"},
    "ingestionConfig.transformConfigs": [{"columnName": "n"}],
    "ingestionConfig.filterConfig": {"filterFunction": "f"},
}


def warned(change: Change | None = None, schema: Change | None = None) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make(change, schema)
    assert {each.category for each in caught} <= {kt.KeytideWarning}
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("member", IDLE)
def test_member_without_a_meaning_is_warned_of(member: str) -> None:
    (message,) = warned({member: IDLE[member]})
    assert message.endswith(f": {member}")


@pytest.mark.parametrize(
    ("old", "new"), [("enableSnapshot", "snapshot"), ("enablePreload", "preload")]
)
def test_member_is_warned_of_under_its_newest_name(old: str, new: str) -> None:
    (message,) = warned({f"upsertConfig.{old}": True})
    assert message.endswith(f": upsertConfig.{new}")


def test_all_of_them_are_named_in_one_warning() -> None:
    specs = [
        {"name": "k", "dataType": "STRING", "defaultNullValue": "x"},
        {"name": "b", "dataType": "BYTES", "defaultNullValue": "00"},
        {"name": "m", "dataType": "INT", "singleValueField": False, "defaultNullValue": 0},
        {"name": "f", "dataType": "INT", "transformFunction": "plus(1, 1)"},
    ]
    (message,) = warned(IDLE, {"dimensionFieldSpecs": specs})
    expected = [
        *IDLE,
        "transformFunction of column 'f'",
        *(f"defaultNullValue of column '{name}'" for name in "kbm"),
    ]
    assert message.partition("rows: ")[2].split(", ") == expected


def test_sound_config_is_warned_of_nothing() -> None:
    assert warned() == []


def test_warning_that_is_an_error_leaves_no_table() -> None:
    lake = empty_lake()
    with warnings.catch_warnings(action="error"), pytest.raises(kt.KeytideWarning):
        make({"upsertConfig.snapshot": "ENABLE"}, lake=lake)
    assert not lake.exists or lake.tables() == []


# -- a second call ---------------------------------------------------------------------------------

FIXED: list[tuple[Change, Change, str]] = [
    ({"upsertConfig.hashFunction": "MD5"}, {},
     "created with 'none' as 'upsertConfig.hashFunction', found 'md5'"),
    ({"upsertConfig.comparisonColumns": ["n"]}, {},
     "created with 'ts' as 'upsertConfig.comparisonColumns', found 'n'"),
    ({"segmentsConfig.timeColumnName": "n"}, {},
     "created with 'ts' as 'segmentsConfig.timeColumnName', found 'n'"),
    ({"upsertConfig.deleteRecordColumn": "gone"}, {},
     "created with nothing as 'upsertConfig.deleteRecordColumn', found 'gone'"),
    ({PARTITIONS: {"k": {"numPartitions": 3}}}, {},
     "created with 2 as 'segmentPartitionConfig.columnPartitionMap', found 3"),
    ({}, {"primaryKeyColumns": ["k", "n"]},
     "created with 'k' as 'primaryKeyColumns', found 'k, n'"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "schema", "message"), FIXED)
def test_what_cannot_change_is_refused(config: Change, schema: Change, message: str) -> None:
    lake = empty_lake()
    make(lake=lake).write([row("a", 1)])
    with pytest.raises(kt.InvalidError, match=f"table default.orders was {message}; it cannot be"):
        make(config, schema, lake)
    assert make(lake=lake).scan().count() == 1


def test_strategies_cannot_change_however_they_are_said() -> None:
    lake, partial = empty_lake(), FULL_PARTIAL | {STRATEGIES: {"n": "INCREMENT"}}
    make(partial, lake=lake)
    make(partial | {STRATEGIES: {"n": "INCREMENT", "s": "OVERWRITE"}}, lake=lake)
    with pytest.raises(
        kt.InvalidError, match=r"created with 'sum' as '.*\.n', found 'max'; it cannot"
    ):
        make(FULL_PARTIAL | {STRATEGIES: {"n": "MAX"}}, lake=lake)
    with pytest.raises(
        kt.InvalidError, match=r"created with 'last_non_null_value' as '.*Strategies"
    ):
        make(partial | {"upsertConfig.defaultPartialUpsertStrategy": "IGNORE"}, lake=lake)


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"upsertConfig.dropOutOfOrderRecord": True}, kt.InvalidError, "False as .*dropOutOfOrder"),
        ({"upsertConfig.outOfOrderRecordColumn": "late"}, kt.InvalidError, "nothing as .*OfOrder"),
        ({"upsertConfig.mode": "PARTIAL", "tableIndexConfig.nullHandlingEnabled": True},
         kt.InvalidError, "created with 'full' as 'upsertConfig.mode', found 'partial'"),
        ({"upsertConfig": None}, kt.InvalidError, "there is no 'upsertConfig'"),
    ],
)  # fmt: skip
def test_what_no_table_has_cannot_come_later(
    config: Change, error: type[Exception], message: str
) -> None:
    lake = empty_lake()
    make(lake=lake)
    with pytest.raises(error, match=message):
        make(config, lake=lake)


@pytest.mark.parametrize("options", [{}, {"sequence.field": "ts", "bucket": "2"}])
def test_table_without_an_index_gets_none(options: dict[str, str]) -> None:
    lake = empty_lake()
    fields = make().table_schema.fields
    lake.create_table("orders", list(fields), ["k"], options=options)
    with pytest.raises(kt.InvalidError, match=r"created with 'none' as 'upsertConfig\.mode'"):
        make(lake=lake)


def test_second_call_opens_the_table() -> None:
    lake = empty_lake()
    make(lake=lake).write([row("a", 1)])
    with warnings.catch_warnings(action="error"):
        assert make(lake=lake).scan().count() == 1
        assert make({"quota.storage": "1G", "tableName": "orders"}, lake=lake).scan().count() == 1


def test_schema_with_other_columns_opens_the_table_and_warns() -> None:
    lake = empty_lake()
    make(lake=lake)
    specs = [{"name": "score", "dataType": "INT"}, {"name": "new", "dataType": "INT"}]
    with pytest.warns(kt.KeytideWarning, match="score DOUBLE, not INT, new None, not INT; change"):
        table = make(schema={"metricFieldSpecs": specs}, lake=lake)
    assert "new" not in table.table_schema.by_name


def row(key: str | None, time: int | None, **values: Any) -> dict[str, Any]:
    """A row of the schema, with NULL where nothing is said, and no column that it lacks."""
    names = ("n", "s", "gone", "late", "tags", "flags", "doc")
    others = {} if "x" in values else {"score": None}
    return {"k": key, "ts": time, **dict.fromkeys(names), **others, **values}


# -- times to live ---------------------------------------------------------------------------------

DELETES: Change = {
    "upsertConfig.deletedKeysTTL": 20, "upsertConfig.deleteRecordColumn": "gone",
}  # fmt: skip
CONSISTENT: Change = DELETES | {
    "upsertConfig.enableDeletedKeysCompactionConsistency": True,
    "task.taskTypeConfigsMap.UpsertCompactionTask": {"invalidRecordsThresholdCount": "1"},
}


@pytest.mark.parametrize(
    ("config", "type_", "expected"),
    [
        ({"upsertConfig.metadataTTL": 5.5}, "LONG", {"upsert.metadata-ttl": "5"}),
        (DELETES, "LONG", {"upsert.deleted-keys-ttl": "20"}),
        (CONSISTENT, "LONG", {"upsert.deleted-keys-ttl": "20"}),
        (DELETES, "TIMESTAMP", {"upsert.deleted-keys-ttl": "20 ms"}),
        ({"upsertConfig.metadataTTL": 0}, "LONG", {}),
    ],
)
def test_ttl_counts_in_what_rows_are_compared_by(
    config: Change, type_: str, expected: dict[str, str]
) -> None:
    table = make(config, {"dateTimeFieldSpecs": [{"name": "ts", "dataType": type_}]})
    assert {key: v for key, v in table.options.items() if key.endswith("-ttl")} == expected


def test_table_with_another_ttl_is_opened_with_a_warning() -> None:
    lake = empty_lake()
    make(DELETES, {}, lake)
    with pytest.warns(kt.KeytideWarning, match="'upsert.deleted-keys-ttl' '20', not '30'"):
        table = make(DELETES | {"upsertConfig.deletedKeysTTL": 30}, {}, lake)
    assert table.options["upsert.deleted-keys-ttl"] == "20"


# -- compactions -----------------------------------------------------------------------------------

TASK = "task.taskTypeConfigsMap.UpsertCompactionTask"
OF_COMPACTIONS = "upsert.compaction."


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({}, {}),
        ({"invalidRecordsThresholdPercent": "30", "bufferTimePeriod": "1d12h", "validDocIdsType":
          "SNAPSHOT"},
         {"invalid-records-threshold-percent": "30", "buffer-time-period": "129600000 ms"}),
        ({"invalidRecordsThresholdCount": 10},
         {"invalid-records-threshold-count": "10", "buffer-time-period": "604800000 ms"}),
    ],
)  # fmt: skip
def test_thresholds_of_the_task_that_compacts_are_options(
    task: dict[str, Any], expected: dict[str, str]
) -> None:
    found = make({TASK: task}).options
    assert {key: v for key, v in found.items() if key.startswith(OF_COMPACTIONS)} == {
        f"{OF_COMPACTIONS}{key}": value for key, value in expected.items()
    }


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({"invalidRecordsThresholdPercent": "101"}, "expected an integer from 0 to 100"),
        ({"invalidRecordsThresholdCount": "0"}, "expected an integer from 1"),
        ({"bufferTimePeriod": "a week"}, "expected a period such as 7d"),
        ({"bufferTimePeriods": "7d"}, "did you mean 'bufferTimePeriod'"),
    ],
)
def test_thresholds_that_do_not_fit_are_refused(task: dict[str, Any], expected: str) -> None:
    with pytest.raises(kt.InvalidError, match=expected):
        make({TASK: task})


def test_tasks_and_settings_of_servers_are_warned_of() -> None:
    config = {TASK: {"tableMaxNumTasks": "1"}, "task.taskTypeConfigsMap.UpsertCompactMergeTask": {}}
    with pytest.warns(kt.KeytideWarning) as caught:
        make(config)
    (message,) = {str(each.message) for each in caught}
    assert "task.UpsertCompactMergeTask" in message
    assert "task.UpsertCompactionTask.tableMaxNumTasks" in message
