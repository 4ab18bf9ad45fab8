"""Rows of append tables are deleted, changed and merged on Spark, and Spark's own reader skips the
dead ones."""

from __future__ import annotations

from typing import Any

import pytest

import keytide as kt
from keytide.spark.read import split_scan

pytestmark = pytest.mark.spark

FIELDS = [
    kt.Field(-1, name, kt.parse_sql_type(text))
    for name, text in {"p": "STRING", "n": "INT", "v": "STRING"}.items()
]
KINDS = {"written again": "false", "marked": "true"}
MERGE = """
    MERGE INTO t USING (SELECT 1 AS n, 'm' AS v UNION ALL SELECT 50, 'new') s ON t.n = s.n
    WHEN MATCHED THEN UPDATE SET v = s.v
    WHEN NOT MATCHED THEN INSERT (p, n, v) VALUES ('z', s.n, s.v)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_rows_change_on_spark_as_they_do_in_a_dict(warehouse: str, spark: Any, kind: str) -> None:
    lake = kt.connect(warehouse, spark=spark)
    options = {"deletion-vectors.enabled": KINDS[kind], "target-file-size": "1 kb"}
    table = lake.create_table("t", FIELDS, (), ["p"], options=options)
    expected = {n: ("ab"[n % 2], "x") for n in range(20)}
    for start in (0, 10):
        table.write([{"p": "ab"[n % 2], "n": n, "v": "x"} for n in range(start, start + 10)])
    assert lake.sql("DELETE FROM t WHERE n % 3 = 0").row_count == 7
    expected = {n: row for n, row in expected.items() if n % 3}
    assert lake.sql("UPDATE t SET p = 'c', v = upper(v) WHERE n > 15").row_count == 3
    expected = {n: ("c", "X") if n > 15 else row for n, row in expected.items()}
    assert lake.sql(MERGE).row_count == 2
    expected |= {1: ("b", "m"), 50: ("z", "new")}
    scan = table.scan()
    found = sorted(tuple(row) for row in scan.to_spark(spark).collect())
    assert found == sorted((p, n, v) for n, (p, v) in expected.items())
    split = split_scan(scan)
    assert not split.tasks
    assert {shape.has_dead_rows for shape in split.native} >= {KINDS[kind] == "true"}
    assert table.verify().findings == ()
