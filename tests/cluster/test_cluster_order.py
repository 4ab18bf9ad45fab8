"""The later row of a key wins, although blocks of a shuffle arrive in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt

pytestmark = pytest.mark.cluster

SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.int64()), ("v", pa.int64()), ("w", pa.int64())])
KINDS: dict[str, tuple[Sequence[str], dict[str, str]]] = {
    "deduplicate": ((), {}),
    "equal sequences": ((), {"sequence.field": "ts"}),
    "first row": ((), {"merge-engine": "first-row"}),
    "partial update": ((), {"merge-engine": "partial-update"}),
    "aggregation": (
        (),
        {"merge-engine": "aggregation", "fields.default-aggregate-function": "last_value"},
    ),
    "changelog": ((), {"changelog-producer": "input"}),
    "index of keys": ((), {"upsert.mode": "full"}),
    "dynamic buckets": ((), {"bucket": "-1"}),
    "partitions": (("ts",), {}),
}


@pytest.mark.one_in(2, of_each="kind")
@pytest.mark.parametrize("buffer", ["256 mb", "4 kb"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_write_of_several_buffers_shows_the_rows_of_a_local_write(
    kind: str, buffer: str, cluster: Any, warehouse: str
) -> None:
    partition_by, options = KINDS[kind]
    lake = kt.connect(warehouse)
    rows = cluster.range(0, 4_000, 1, 4).selectExpr(
        "id % 97 AS id", "id % 97 % 3 AS ts", "id AS v", "if(id % 5 = 0, NULL, id) AS w"
    )
    local = pa.Table.from_pylist([row.asDict() for row in rows.collect()], SCHEMA)

    def shown(name: str, written: Any) -> list[list[dict[str, Any]]]:
        given = {"bucket": "2", "write-buffer-size": buffer, "write.distribution": "hash"}
        key = [*partition_by, "id"]
        table = lake.create_table(name, SCHEMA, key, partition_by, {**given, **options})
        table.write(written)
        told = table.changes(0, mode="changelog") if "changelog-producer" in options else None
        return [
            sorted(rows.to_pylist(), key=lambda row: (row["id"], row["ts"]))
            for rows in (table.scan().to_arrow(), *([told.to_arrow()] if told else ()))
        ]

    assert shown("on_executors", rows) == shown("local", local)
