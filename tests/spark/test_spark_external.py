"""External tables on Spark: read by tasks of executors, as tables of connectors are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keytide as kt

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(tmp_path: Path, spark: Any) -> kt.Lake:
    folder = tmp_path / "theirs"
    folder.mkdir()
    for number, rows in enumerate(
        [
            {"k": [1, 2, 3], "w": [1, 1, 1], "d": [None] * 3, "v": ["a", "b", "c"]},
            {"k": [1, 2], "w": [2, 2], "d": [None, True], "v": ["A", None]},
        ]
    ):
        types = pa.schema([("k", "int32"), ("w", "int64"), ("d", "bool"), ("v", "string")])
        pq.write_table(pa.table(rows, schema=types), folder / f"{number}.parquet")
    lake = kt.connect(tmp_path / "lake", spark, allow_external_files=True)
    lake.sql(
        f"CREATE EXTERNAL TABLE e (PRIMARY KEY (k) NOT ENFORCED) USING parquet LOCATION '{folder}' "
        f"WITH ('watermark.key' = 'w', 'tombstone.key' = 'd')"
    )
    return lake


@pytest.mark.takes_turns
def test_query_merge_and_dataframe_have_the_merged_rows(lake: kt.Lake, spark: Any) -> None:
    found = lake.sql("SELECT v FROM e WHERE w > 0 AND k < 3").to_pylist()
    assert found == [{"v": "A"}]
    lake.sql("CREATE TABLE own (k INT, v STRING, PRIMARY KEY (k) NOT ENFORCED)")
    lake.sql("INSERT INTO own SELECT k, v FROM e")
    lake.sql("MERGE INTO own USING e ON own.k = e.k WHEN MATCHED AND e.k = 3 THEN DELETE")
    joined = lake.sql("SELECT own.k, e.v FROM own JOIN e ON own.k = e.k").to_pylist()
    assert joined == [{"k": 1, "v": "A"}]
    table = lake.table("e")
    assert isinstance(table, kt.ExternalTable)
    frame = table.scan(["k", "v"]).to_spark(spark)
    assert sorted(map(tuple, frame.collect())) == [(1, "A"), (3, "c")]


def test_error_of_a_task_is_that_of_keytide(lake: kt.Lake, tmp_path: Path) -> None:
    query = lake.sql("SELECT * FROM e")
    (tmp_path / "theirs/0.parquet").write_bytes(b"torn")
    with pytest.raises(kt.DataError, match=r"0\.parquet cannot be read as parquet"):
        query.to_arrow()


def test_external_table_is_no_source_for_the_format(lake: kt.Lake, spark: Any) -> None:
    with pytest.raises(kt.UnsupportedError, match="external table"):
        spark.read.format("keytide").load(f"{lake.uri}/default.db/e").collect()
