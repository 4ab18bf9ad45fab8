"""Changes on Spark: the same tasks, so the same rows, in batches and in streams."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [("p", pa.string()), ("k", pa.int64()), ("t", pa.timestamp("us")), ("v", pa.string())]
)


def make_table(warehouse: str, **options: str) -> kt.Table:
    table = kt.connect(warehouse).create_table(
        "t", SCHEMA, ["p", "k"], ["p"], options={"bucket": "2", **options}
    )
    for version, keys in enumerate([range(20), range(5, 25), range(0, 30, 3)]):
        table.write([{"p": "ab"[k % 2], "k": k, "t": None, "v": str(version)} for k in keys])
    table.write([{"p": "a", "k": 2, "t": None, "v": None, "_row_kind": "-D"}])
    return table


def test_changes_on_executors_are_those_of_a_local_read(warehouse: str, spark: Any) -> None:
    table = make_table(warehouse)
    for mode in ("diff", "delta"):
        changes = table.changes(1, mode=mode)
        found = [tuple(row) for row in changes.to_spark(spark).collect()]
        assert sorted(found, key=repr) == sorted(
            (tuple(row.values()) for row in changes.to_pylist()), key=repr
        )
        if mode == "diff":
            after_before = [b[0] for a, b in itertools.pairwise(found) if a[0] == "-U"]
            assert set(after_before) == {"+U"}
    assert table.changes(4).to_spark(spark).count() == 0
