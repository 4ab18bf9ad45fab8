"""A file that is missing is reported alike by local reads and by Spark, whenever it looks."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keytide as kt
from keytide.errors import DataError, UnsupportedError

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])


def stored(lake: Any, options: dict[str, str]) -> tuple[Any, Path]:
    table = lake.create_table("d.t", SCHEMA, ["id"], options={"bucket": "2", **options})
    table.write([{"id": number, "n": number} for number in range(50)])
    table.compact(full=True)
    if "deletion-vectors.enabled" in options:
        lake.sql("DELETE FROM d.t WHERE id < 9")
    return table, min(Path(table.uri).glob("bucket-1/*.parquet"))


def external(lake: Any, folder: Path) -> tuple[Any, Path]:
    folder.mkdir()
    for number in range(3):
        rows = {"id": [number, number + 10], "ts": [1, 2], "n": [number, number]}
        pq.write_table(pa.table(rows), folder / f"{number}.parquet")
    table = lake.create_external_table(
        "d.t", format="parquet", location=str(folder), primary_key=["id"], watermark_key=["ts"]
    )
    return table, folder / "1.parquet"


KINDS: dict[str, Callable[[Any, Path], tuple[Any, Path]]] = {
    "plain": lambda lake, tmp: stored(lake, {}),
    "deletion vectors": lambda lake, tmp: stored(lake, {"deletion-vectors.enabled": "true"}),
    "append table": lambda lake, tmp: appended(lake),
    "external": lambda lake, tmp: external(lake, tmp / "source of rows"),
}


def appended(lake: Any) -> tuple[Any, Path]:
    table = lake.create_table("d.t", SCHEMA, (), options={})
    table.write([{"id": number, "n": number} for number in range(50)])
    return table, next(Path(table.uri).glob("bucket-0/*.parquet"))


@contextmanager
def missing(file: Path) -> Iterator[None]:
    kept = file.with_name("kept")
    file.rename(kept)
    try:
        yield
    finally:
        kept.rename(file)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("moment", ["planning", "later action", "view"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_is_reported_as_by_a_local_read(
    kind: str, moment: str, spark: Any, tmp_path: Path
) -> None:
    lake = kt.connect(str(tmp_path / "warehouse"), spark=spark)
    table, file = KINDS[kind](lake, tmp_path)
    scan, frame = table.scan(), table.scan().to_spark(spark)
    frame.createOrReplaceTempView("shown")
    read = {
        "planning": lambda: scan.to_spark(spark).agg({"n": "sum"}).collect(),
        "later action": lambda: frame.where("n > 1").agg({"n": "sum"}).collect(),
        "view": lambda: spark.sql("SELECT sum(n) FROM shown").collect(),
    }[moment]
    with missing(file):
        with pytest.raises(DataError) as local:
            scan.to_arrow()
        with pytest.raises(DataError) as found:
            read()
    read()
    assert words(found.value, file) == words(local.value, file)


def words(error: DataError, file: Path) -> str:
    assert str(file) in str(error)
    return re.sub(re.escape(os.path.dirname(file)), "", str(error))


STATEMENTS = [
    "DELETE FROM {} WHERE id = 1",
    "delete  from /* some */ {}",
    "UPDATE {} SET n = 2",
    "MERGE INTO {} x USING (SELECT 1 id, 2 n) y ON x.id = y.id WHEN MATCHED THEN DELETE",
    "TRUNCATE TABLE {}",
    "ALTER TABLE {} ADD COLUMN z INT",
    "SELECT * FROM {} VERSION AS OF 1",
    "SELECT * FROM {} FOR SYSTEM_VERSION AS OF 1",
    "SELECT * FROM {} TIMESTAMP AS OF '2020-01-01'",
    "DESCRIBE HISTORY {}",
    "DESC HISTORY {}",
    "SHOW PARTITIONS {}",
    "SHOW CREATE TABLE {}",
]


@pytest.fixture(scope="module")
def views(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    kt.spark.register(spark)
    lake = kt.connect(str(tmp_path_factory.mktemp("views")), spark=spark)
    table = lake.create_table("d.of_lake", SCHEMA, ["id"])
    table.write([{"id": 1, "n": 1}])
    kt.spark.register_lake(spark, lake)
    spark.sql(f"CREATE TEMPORARY VIEW `of sql` USING keytide OPTIONS (path '{table.uri}')")
    spark.read.format("keytide").load(table.uri).createOrReplaceTempView("of_frame")
    names = ["of_lake", "`of sql`", "of_frame"]
    yield names
    for name in names:
        spark.catalog.dropTempView(name.strip("`"))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_on_a_view_says_how_it_can_be_run(
    statement: str, views: list[str], spark: Any
) -> None:
    for view in views:
        with pytest.raises(UnsupportedError) as refused:
            spark.sql(statement.format(view)).collect()
        assert f"view {view.strip('`')} shows" in str(refused.value)
        assert "lake.sql" in str(refused.value)
        assert view == "of_frame" or "d.of_lake" in str(refused.value)


def test_statements_on_other_views_keep_sparks_errors(spark: Any, views: list[str]) -> None:
    spark.range(3).createOrReplaceTempView("other")
    for statement in STATEMENTS:
        with pytest.raises(Exception) as raised:  # noqa: PT011  # whatever Spark says
            spark.sql(statement.format("other")).collect()
        assert not isinstance(raised.value, kt.KeytideError)
