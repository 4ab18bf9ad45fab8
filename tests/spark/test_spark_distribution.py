"""Rows are the same however they come to the tasks of a write; only runs and work differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.spark import columns

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("p", pa.int64()),
        ("ts", pa.int64()),
        ("a", pa.int64()),
        ("b", pa.int64()),
    ]
)
SUM = {"merge-engine": "aggregation", "fields.default-aggregate-function": "last_value"}
TABLES: Sequence[tuple[Sequence[str], dict[str, str]]] = [
    ((), {}),
    ((), {"sequence.field": "ts"}),
    ((), {"merge-engine": "partial-update"}),
    (("p",), {"merge-engine": "partial-update", "sequence.field": "ts"}),
    (("p",), {"merge-engine": "first-row"}),
    ((), SUM | {"fields.a.aggregate-function": "sum", "sequence.field": "ts"}),
    ((), {"changelog-producer": "input"}),
]
A_BIT = "write-buffer-size"
LAKES = count()


@pytest.mark.takes_turns
@pytest.mark.spark
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(TABLES),
    seed=st.integers(0, 1 << 20),
    partitions=st.integers(2, 4),
    buffer=st.sampled_from(["256 mb", "1 kb"]),
)
def test_shuffled_or_not_the_rows_are_those_of_a_local_write(
    kind: tuple[Sequence[str], dict[str, str]], seed: int, partitions: int, buffer: str,
    warehouse: str, spark: Any,
) -> None:  # fmt: skip
    partition_by, options = kind
    rows = many_versions(spark, seed, partitions)
    lake = kt.connect(f"{warehouse}/{next(LAKES)}")

    def shown(name: str, written: Any) -> tuple[list[Any], list[Any]]:
        given = {"bucket": "3", "write.distribution": name, A_BIT: buffer, **options}
        key = [*partition_by, "id"]
        table = lake.create_table(f"t_{name}", SCHEMA, key, partition_by, given)
        table.write(written)
        found = sorted(tuple(row.values()) for row in table.scan().to_pylist())
        return found, changelog(table) if "changelog-producer" in options else []

    local = shown("auto", pa.Table.from_pylist([r.asDict() for r in rows.collect()], SCHEMA))
    assert [shown(name, rows) for name in ("hash", "none")] == [local, local]


def changelog(table: kt.Table) -> list[Any]:
    """The changelog, with the changes of each key in their order."""
    rows = table.changes(0, mode="changelog").to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=lambda row: row[1])


def many_versions(spark: Any, seed: int, partitions: int) -> Any:
    """About eight versions of each of some keys, all over the partitions; some values are NULL."""
    return spark.range(0, 80, 1, partitions).selectExpr(
        f"pmod(hash(id, {seed}), 10) AS id", f"pmod(hash(id, {seed}), 10) % 2 AS p",
        f"pmod(hash(id, {seed}, 1), 6) AS ts",
        f"if(hash(id, {seed}, 2) % 3 = 0, NULL, id) AS a",
        f"if(hash(id, {seed}, 3) % 3 = 0, NULL, id) AS b",
    ).selectExpr(*(f"CAST({name} AS BIGINT) AS {name}" for name in SCHEMA.names))  # fmt: skip


@pytest.mark.takes_turns
@pytest.mark.spark
def test_auto_leaves_the_rows_of_a_load_where_they_are_and_shuffles_all_other_writes(
    lake: kt.Lake, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:

    def runs(table: kt.Table) -> int:
        return max(state.runs for state in table.stored.newest_files().buckets.values())

    def rows(partitions: int) -> Any:
        return many_versions(spark, 0, partitions)

    options = {"bucket": "2", "write-only": "true"}
    little, much = (lake.create_table(f"t{n}", SCHEMA, ["id"], options=options) for n in "12")
    little.write(rows(2))
    assert runs(little) == 1  # a second run would cost readers more than the shuffle
    monkeypatch.setattr(columns, "_SMALL_BYTES", 0)
    much.write(rows(3))
    assert runs(much) == 3
    much.write(rows(3))
    assert runs(much) == 3 + 1
    much.overwrite(rows(4))
    assert runs(much) == 4
    much.overwrite(rows(5))  # as many as set off a compaction
    assert runs(much) == 1
