"""Table configs and schemas of Pinot for tests: one that is sound, and changes of it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import keytide as kt
from new_tables import empty_lake

Json = dict[str, Any]

STRATEGIES = "upsertConfig.partialUpsertStrategies"
TRANSFORMS = "upsertConfig.postPartialUpsertTransformConfigs"
PARTITIONS = "tableIndexConfig.segmentPartitionConfig.columnPartitionMap"

CONFIG: Json = {
    "tableName": "orders_REALTIME",
    "tableType": "REALTIME",
    "segmentsConfig": {"timeColumnName": "ts", "replication": "1"},
    "tenants": {"broker": "b", "server": "s"},
    "routing": {"instanceSelectorType": "strictReplicaGroup"},
    "tableIndexConfig": {
        "loadMode": "MMAP",
        "segmentPartitionConfig": {
            "columnPartitionMap": {"k": {"functionName": "Murmur", "numPartitions": 2}}
        },
    },
    "ingestionConfig": {
        "streamIngestionConfig": {"streamConfigMaps": [{"streamType": "kafka"}]},
    },
    "upsertConfig": {"mode": "FULL"},
}

SCHEMA: Json = {
    "schemaName": "orders",
    "dimensionFieldSpecs": [
        {"name": "k", "dataType": "STRING"},
        {"name": "n", "dataType": "INT"},
        {"name": "s", "dataType": "STRING"},
        {"name": "gone", "dataType": "BOOLEAN"},
        {"name": "late", "dataType": "BOOLEAN"},
        {"name": "tags", "dataType": "STRING", "singleValueField": False},
        {"name": "flags", "dataType": "BOOLEAN", "singleValueField": False},
        {"name": "doc", "dataType": "JSON"},
    ],
    "metricFieldSpecs": [{"name": "score", "dataType": "DOUBLE"}],
    "dateTimeFieldSpecs": [
        {"name": "ts", "dataType": "LONG", "format": "EPOCH", "granularity": "1:MILLISECONDS"}
    ],
    "primaryKeyColumns": ["k"],
}

FULL_PARTIAL: Json = {
    "upsertConfig.mode": "PARTIAL", "tableIndexConfig.nullHandlingEnabled": True,
}  # fmt: skip
"""What makes the config one of partial upserts, which Pinot takes."""

Change = dict[str, Any]


def changed(document: Json, change: Change) -> Json:
    """A document with members set, by their paths with dots; None removes one."""
    made = deepcopy(document)
    for path, value in change.items():
        *outer, name = path.split(".")
        place = made
        for each in outer:
            place = place.setdefault(each, {})
        if value is None:
            place.pop(name, None)
        else:
            place[name] = value
    return made


def make(
    change: Change | None = None, schema: Change | None = None, lake: kt.Lake | None = None
) -> kt.Table:
    """The table of the sound config, changed."""
    return kt.pinot.create_table(
        lake or empty_lake(), changed(CONFIG, change or {}), changed(SCHEMA, schema or {})
    )
