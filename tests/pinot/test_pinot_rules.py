"""What is refused of a table config: each rule has changes of a sound config that break it.

Sections 7.1 of Pinot's validation, and what this release cannot carry out.
"""

from __future__ import annotations

from typing import Any

import pytest
from pinot_configs import (
    CONFIG,
    FULL_PARTIAL,
    PARTITIONS,
    SCHEMA,
    STRATEGIES,
    TRANSFORMS,
    Change,
    changed,
    make,
)

import keytide as kt
from keytide.pinot.config import parse_schema, parse_table_config
from keytide.pinot.rules import NOT_YET, RULES, Case
from new_tables import empty_lake

OFFLINE: Change = {"tableType": "OFFLINE", "tableName": "orders_OFFLINE"}
CONSISTENT: Change = {
    "upsertConfig.enableDeletedKeysCompactionConsistency": True,
    "upsertConfig.deletedKeysTTL": 10,
    "upsertConfig.deleteRecordColumn": "gone",
    "task.taskTypeConfigsMap.UpsertCompactionTask": {},
}
"""Consistent deletes as Pinot takes them."""
SYNC: Change = {"upsertConfig.consistencyMode": "SYNC"}
PARTIAL = FULL_PARTIAL


def computed(column: str, function: str = "plus(n, score)") -> list[Any]:
    return [{"columnName": column, "transformFunction": function}]


REFUSED: list[tuple[str, Change, Change, str]] = [
    # the rule, changes of the config, changes of the schema, the message
    ("upsert and dedup", {"dedupConfig.dedupEnabled": True}, {},
     "'upsertConfig' and 'dedupConfig' are on; a table can have only one of them"),
    ("no upsert", {"upsertConfig": None}, {}, "there is no 'upsertConfig'; expected 'mode' 'FULL'"),
    ("no upsert", {"upsertConfig.mode": "NONE"}, {}, "'mode' is 'NONE'; .*Lake.create_table"),
    ("primary key", {}, {"primaryKeyColumns": None}, "the schema has no 'primaryKeyColumns'"),
    ("primary key", {}, {"primaryKeyColumns": ["x"]}, "names x, which the schema does not have"),
    ("primary key", {}, {"primaryKeyColumns": ["k", "tags"]},
     "'tags', which is STRING with multiple values; a primary key has one or more single-value"),
    ("routing", {"routing": None}, {},
     "instanceSelectorType' is 'balanced'; expected 'strictReplicaGroup'"),
    ("routing", {"routing.instanceSelectorType": "replicaGroup"}, {}, "is 'replicaGroup'"),
    ("tenant overrides", {"tenants.tagOverrideConfig": {"realtimeCompleted": "t"}}, {},
     "sets realtimeCompleted; .*remove it"),
    ("completed instances", {"instanceAssignmentConfigMap.COMPLETED": {"a": 1}}, {},
     "instances are set for 'COMPLETED'"),
    ("completed instances", {"instancePartitionsMap.COMPLETED": "p"}, {},
     "instances are set for 'COMPLETED'"),
    ("offline and partial", OFFLINE | PARTIAL, {}, "'OFFLINE' and 'mode' 'PARTIAL'; .*use 'FULL'"),
    ("offline partitions", OFFLINE | {"tableIndexConfig.segmentPartitionConfig": None}, {},
     "no 'segmentPartitionConfig'; expected .*number of partitions"),
    ("nothing to compare by", OFFLINE | {"segmentsConfig.timeColumnName": None}, {},
     "neither 'upsertConfig.comparisonColumns' nor 'segmentsConfig.timeColumnName'"),
    ("nothing to compare by", {"segmentsConfig": None}, {}, "neither 'upsertConfig"),
    ("tiers", {"tierConfigs": [{"name": "a"}, {"name": "b"}]}, {}, "'tierConfigs' has 2 tiers"),
    ("star-tree", {"tableIndexConfig.starTreeIndexConfigs": [{"maxLeafRecords": 1}]}, {},
     "has starTreeIndexConfigs; .*remove it"),
    ("star-tree", {"tableIndexConfig.enableDefaultStarTree": "true"}, {}, "enableDefaultStarTree"),
    ("aggregated metrics", {"tableIndexConfig.aggregateMetrics": True}, {},
     r"metrics are aggregated \(aggregateMetrics\)"),
    ("aggregated metrics", {"ingestionConfig.aggregationConfigs": [{"columnName": "score"}]}, {},
     r"metrics are aggregated \(aggregationConfigs\)"),
    ("streams", {"ingestionConfig.streamIngestionConfig.streamConfigMaps": [{}, {}]}, {},
     "there are 2 stream configs"),
    ("comparison column", {"upsertConfig.comparisonColumns": ["x"]}, {},
     "rows are compared by x; expected columns of the schema"),
    ("comparison column", {"segmentsConfig.timeColumnName": "x"}, {}, "rows are compared by x"),
    ("delete column", {"upsertConfig.deleteRecordColumn": "x"}, {},
     "names 'x', which the schema does not have; expected a single-value column of type BOOLEAN"),
    ("delete column", {"upsertConfig.deleteRecordColumn": "flags"}, {},
     "BOOLEAN with multiple values"),
    ("delete column", {"upsertConfig.deleteRecordColumn": "doc"}, {}, "'doc', which is JSON"),
    ("marker and drop",
     {"upsertConfig.outOfOrderRecordColumn": "late", "upsertConfig.dropOutOfOrderRecord": True}, {},
     "are set; dropped rows cannot be marked"),
    ("marker column", {"upsertConfig.outOfOrderRecordColumn": "x"}, {},
     "names 'x', which the schema does not have; expected a single-value BOOLEAN"),
    ("marker column", {"upsertConfig.outOfOrderRecordColumn": "n"}, {}, "'n', which is INT"),
    ("marker column", {"upsertConfig.outOfOrderRecordColumn": "flags"}, {}, "with multiple values"),
    ("consistent deletes and metadata TTL", CONSISTENT | {"upsertConfig.metadataTTL": 5}, {},
     "is on with a 'metadataTTL'"),
    ("consistent deletes and preload", CONSISTENT | {"upsertConfig.preload": "ENABLE"}, {},
     "is on with 'preload' 'ENABLE'"),
    ("consistent deletes and preload", CONSISTENT | {"upsertConfig.enablePreload": True}, {},
     "is on with 'preload' 'ENABLE'"),
    ("consistent deletes without TTL", CONSISTENT | {"upsertConfig.deletedKeysTTL": None}, {},
     "is on without a 'deletedKeysTTL'"),
    ("consistent deletes without snapshot", CONSISTENT | {"upsertConfig.snapshot": "DISABLE"}, {},
     "is on with 'snapshot' 'DISABLE'"),
    ("consistent deletes without compaction", CONSISTENT | {"task": None}, {},
     "is on without a task that compacts; expected UpsertCompactionTask or UpsertCompactMergeTask"),
    ("TTL and several comparison columns",
     {"upsertConfig.metadataTTL": 5, "upsertConfig.comparisonColumns": ["ts", "n"]}, {},
     "'metadataTTL' = 5 is set and rows are compared by ts, n"),
    ("TTL of no number",
     {"upsertConfig.metadataTTL": 5, "upsertConfig.comparisonColumns": ["s"]}, {},
     "'metadataTTL' = 5 is set and rows are compared by 's', which is STRING"),
    ("TTL of no number",
     {"upsertConfig.deletedKeysTTL": 5, "upsertConfig.deleteRecordColumn": "gone"},
     {"dateTimeFieldSpecs": [{"name": "ts", "dataType": "STRING"}]},
     "'deletedKeysTTL' = 5 is set and rows are compared by 'ts', which is STRING"),
    ("metadata TTL without snapshot",
     {"upsertConfig.metadataTTL": "5", "upsertConfig.snapshot": "DISABLE"}, {},
     "'metadataTTL' is set and 'snapshot' is 'DISABLE'; expected 'ENABLE'"),
    ("TTL of deletes without deletes", {"upsertConfig.deletedKeysTTL": 5}, {},
     "there is no 'deleteRecordColumn'; name the column"),
    ("view without tracking", SYNC | {"upsertConfig.newSegmentTrackingTimeMs": 0}, {},
     "'consistencyMode' is 'SYNC' and 'newSegmentTrackingTimeMs' is not above 0"),
    ("view and drop", SYNC | {"upsertConfig.dropOutOfOrderRecord": True}, {},
     "'consistencyMode' is 'SYNC' and 'dropOutOfOrderRecord' is set"),
    ("view and marker",
     {"upsertConfig.consistencyMode": "SNAPSHOT", "upsertConfig.outOfOrderRecordColumn": "late"},
     {}, "'consistencyMode' is 'SNAPSHOT' and 'outOfOrderRecordColumn' is set"),
    ("partial without NULLs", {"upsertConfig.mode": "PARTIAL"}, {},
     "'PARTIAL' without null handling; .*'enableColumnBasedNullHandling'"),
    ("merger and strategies",
     PARTIAL | {"upsertConfig.partialUpsertMergerClass": "a.B", STRATEGIES: {"n": "MAX"}}, {},
     "'partialUpsertMergerClass' and 'partialUpsertStrategies' are set"),
    *(
        ("strategy of a fixed column", PARTIAL | {STRATEGIES: {name: "MAX"}}, {},
         f"'partialUpsertStrategies' has '{name}': 'MAX'; expected columns")
        for name in ("k", "ts", "x")
    ),
    ("strategy of a fixed column",
     PARTIAL | {STRATEGIES: {"n": "MAX"}, "upsertConfig.comparisonColumns": ["n"]}, {},
     "has 'n': 'MAX'"),
    ("sums", PARTIAL | {STRATEGIES: {"s": "INCREMENT"}}, {}, "'s': 'INCREMENT'; 'INCREMENT' needs"),
    ("sums", PARTIAL | {STRATEGIES: {"at": "INCREMENT"}},
     {"dateTimeFieldSpecs": [{"name": name, "dataType": "LONG"} for name in ("ts", "at")]},
     "'at': 'INCREMENT'"),
    ("sums", PARTIAL | {STRATEGIES: {"m": "INCREMENT"}},
     {"complexFieldSpecs": [{"name": "m", "dataType": "MAP"}]}, "'m': 'INCREMENT'"),
    ("lists", PARTIAL | {STRATEGIES: {"s": "APPEND"}}, {}, "'s': 'APPEND'; .*multi-value columns"),
    ("lists", PARTIAL | {STRATEGIES: {"n": "UNION", "tags": "UNION"}}, {}, "has 'n': 'UNION'; "),
    ("transforms without merges", {TRANSFORMS: computed("score")}, {},
     "is set and 'mode' is 'FULL'; they compute columns of merged rows"),
    *(
        ("transforms of fixed columns",
         PARTIAL | {TRANSFORMS: computed(name), "upsertConfig.deleteRecordColumn": "gone",
                    "upsertConfig.outOfOrderRecordColumn": "late"},
         {}, f"has '{name}' = ")
        for name in ("k", "ts", "gone", "late")
    ),
    ("transforms of one column twice",
     PARTIAL | {TRANSFORMS: computed("s", "upper(doc)") + computed("s", "lower(doc)")}, {},
     "'s' = 'upper.doc.', 's' = 'lower.doc.'; a column can be computed only once"),
    ("transforms of unknown columns", PARTIAL | {TRANSFORMS: computed("x")}, {},
     "has 'x' = .*expected columns of the schema"),
    ("transforms of unknown columns", PARTIAL | {TRANSFORMS: computed("s", "upper(x)")}, {},
     "has 's' = 'upper.x.'; expected columns of the schema"),
    ("transforms of themselves", PARTIAL | {TRANSFORMS: computed("n", "plus(n, 1)")}, {},
     "'n' = 'plus.n, 1.'; a column cannot be computed from itself"),
    ("Groovy", PARTIAL | {TRANSFORMS: computed("n", "Groovy({score + 1}, score)")}, {},
     "Groovy is disabled"),
    ("transforms that do not parse", PARTIAL | {TRANSFORMS: computed("n", "plus(score,")}, {},
     r"expected an expression such as plus\(score, bonus\)"),
]  # fmt: skip

NOT_CARRIED_OUT: list[tuple[str, Change, Change, str]] = [
    ("dedup", {"upsertConfig": None, "dedupConfig.dedupEnabled": True}, {}, "dedupEnabled'"),
    ("complex columns", {}, {"complexFieldSpecs": [{"name": "m", "dataType": "MAP"}]},
     "'m', which is MAP; this release does not support such columns"),
    ("strategies", {STRATEGIES: {"n": "MAX"}}, {}, "'upsertConfig.partialUpsertStrategies' is set"),
    ("default strategy", {"upsertConfig.defaultPartialUpsertStrategy": "IGNORE"}, {},
     "'upsertConfig.defaultPartialUpsertStrategy' is set"),
    ("merger", {"upsertConfig.partialUpsertMergerClass": "a.B"}, {},
     "'upsertConfig.partialUpsertMergerClass' is set"),
    ("transforms of other functions",
     PARTIAL | {TRANSFORMS: computed("n", "plus(lookUp(score), now())")}, {},
     "computes 'n' by lookUp, now; .* supports operators, CASE and the functions plus, add"),
    *[
        ("comparison type", {"upsertConfig.comparisonColumns": [name]}, {},
         f"rows are compared by '{name}', which .*; this release compares by a single number")
        for name in ("flags", "tags")
    ],
    ("compaction of deletes",
     {"task.taskTypeConfigsMap.UpsertCompactionTask": {"validDocIdsType": "IN_MEMORY_WITH_DELETE"}},
     {}, "validDocIdsType' is 'IN_MEMORY_WITH_DELETE'; a late row restores"),
    ("TTL of fractions",
     {"upsertConfig.metadataTTL": 5, "upsertConfig.comparisonColumns": ["score"]},
     {"metricFieldSpecs": [{"name": "score", "dataType": "DOUBLE"}]},
     "'metadataTTL' = 5 is set and rows are compared by 'score', which is DOUBLE"),
    ("TTL below 1",
     {"upsertConfig.deletedKeysTTL": 0.5, "upsertConfig.deleteRecordColumn": "gone"}, {},
     "'deletedKeysTTL' = 0.5 is set; .*only integers, 1 or more"),
    ("UUIDs in partitions",
     {PARTITIONS: {"k": {"numPartitions": 2}}, "upsertConfig.hashFunction": "UUID"}, {},
     "'hashFunction' is 'UUID' and there are {'k': 2} partitions; .*use one partition"),
    ("several numbers of partitions",
     {PARTITIONS: {"k": {"numPartitions": 2}, "n": {"numPartitions": 3}}}, {},
     "'columnPartitionMap' has {'k': 2, 'n': 3}"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "config", "schema", "message"), REFUSED)
def test_what_pinot_refuses_is_refused(
    rule: str, config: Change, schema: Change, message: str
) -> None:
    lake = empty_lake()
    with pytest.raises(kt.InvalidError, match=f"Pinot's table config 'orders': .*{message}"):
        make(config, schema, lake)
    assert not lake.exists or lake.tables() == []


@pytest.mark.parametrize(("rule", "config", "schema", "message"), NOT_CARRIED_OUT)
def test_what_cannot_be_carried_out_is_refused(
    rule: str, config: Change, schema: Change, message: str
) -> None:
    lake = empty_lake()
    with pytest.raises(kt.UnsupportedError, match=message):
        make(config, schema, lake)
    assert not lake.exists or lake.tables() == []


def test_every_rule_is_broken_above() -> None:
    assert {rule for rule, *_ in REFUSED} == {rule.name for rule in RULES}
    assert {rule for rule, *_ in NOT_CARRIED_OUT} == {rule.name for rule in NOT_YET}


@pytest.mark.parametrize(("rule", "config", "schema", "message"), REFUSED + NOT_CARRIED_OUT)
def test_rule_that_is_named_finds_what_is_wrong(
    rule: str, config: Change, schema: Change, message: str
) -> None:
    """And says what was found, then the way out."""
    case = Case(parse_table_config(changed(CONFIG, config)), parse_schema(changed(SCHEMA, schema)))
    (found,) = [each for each in (*RULES, *NOT_YET) if each.name == rule]
    assert found.find(case)


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("config", "schema"),
    [
        ({}, {}),
        ({"routing.instanceSelectorType": "multiStageReplicaGroup"}, {}),
        ({"routing.instanceSelectorType": "STRICTREPLICAGROUP"}, {}),
        ({"instanceAssignmentConfigMap.CONSUMING": {"a": 1}}, {}),
        ({"tierConfigs": []}, {}),
        ({"tableIndexConfig.starTreeIndexConfigs": []}, {}),
        ({"ingestionConfig": None, "tableIndexConfig.streamConfigs": {"streamType": "kafka"}}, {}),
        ({"dedupConfig.dedupEnabled": False}, {}),
        ({"upsertConfig.hashFunction": "MD5"}, {}),
        (OFFLINE | {"tenants.tagOverrideConfig": {"realtimeCompleted": "t"}}, {}),
        ({"segmentsConfig": None, "upsertConfig.comparisonColumns": ["n"]}, {}),
        ({"upsertConfig.comparisonColumns": ["s"]}, {}),
        ({"upsertConfig.dropOutOfOrderRecord": "true"}, {}),
        (PARTIAL, {}),
        ({"upsertConfig.mode": "PARTIAL"}, {"enableColumnBasedNullHandling": True}),
        (PARTIAL | {STRATEGIES: {"n": "INCREMENT", "tags": "UNION"}}, {}),
        (PARTIAL | {"upsertConfig.defaultPartialUpsertStrategy": "IGNORE"}, {}),
        ({"upsertConfig.outOfOrderRecordColumn": "late"}, {}),
        ({"upsertConfig.comparisonColumns": ["ts", "s"]}, {}),
        ({}, {"dateTimeFieldSpecs": [{"name": "ts", "dataType": "BIG_DECIMAL"}]}),
    ],
)
def test_what_pinot_takes_is_taken(config: Change, schema: Change) -> None:
    table = make(config, schema)
    table.write([row("a", 1), row("a", 2), row("b", 1)])
    assert table.scan().count() == 2


def row(key: str, time: int) -> dict[str, Any]:
    names = ("n", "s", "gone", "late", "tags", "flags", "doc", "score")
    return {"k": key, "ts": time, **dict.fromkeys(names)}
