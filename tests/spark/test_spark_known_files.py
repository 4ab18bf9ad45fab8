"""Files of known sizes are read as Spark's own reader reads them, whatever their names are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  # pyspark's functions are F everywhere

import keytide as kt
from keytide.spark.columns import spark_schema
from keytide.spark.read_plans import _OPTIONS, parquet_files
from keytide.spark.stored_files import known_parquet_files

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
NAMES = [
    "a.parquet", "dt=1/b.parquet", "dt=2/deep er/c.parquet", "[d].parquet", "é%20{e}.parquet",
    "f*.parquet", "?.parquet", "{a,g}.parquet", "[a-z].parquet", "h\\i.parquet", "*/?/j.parquet",
]  # fmt: skip


def stored(folder: Path) -> dict[str, int]:
    """A file with each name: its URI and its size."""
    for number, name in enumerate(NAMES):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table([[number, number + 100], [name, None]], schema=SCHEMA), file)
    return {f"file://{folder / name}": (folder / name).stat().st_size for name in NAMES}


def known(files: dict[str, int], spark: Any) -> Any:
    rows = known_parquet_files(files, spark_schema(SCHEMA), _OPTIONS, spark)
    assert rows is not None, "this release of Spark has another index of files"
    return rows


def test_rows_places_and_pruning_are_those_of_the_reader(tmp_path: Path, spark: Any) -> None:
    files = stored(tmp_path)
    assert known(files, spark).count() == 2 * len(NAMES)
    for select in (
        lambda rows: rows,
        lambda rows: rows.where("id > 100").select("v"),
        lambda rows: rows.groupBy().count(),
        lambda rows: rows.select("id", F.col("_metadata.file_path"), "_metadata.row_index"),
    ):
        found = select(known(files, spark))
        expected = select(parquet_files([*files], spark_schema(SCHEMA), spark))
        assert found.schema == expected.schema
        assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect()))


def test_planning_looks_at_no_file_and_a_missing_one_is_named(tmp_path: Path, spark: Any) -> None:
    files = stored(tmp_path)
    (tmp_path / "a.parquet").unlink()
    rows = known(files, spark)
    assert len(rows.inputFiles()) == len(NAMES)
    with pytest.raises((PySparkException, Py4JError), match=r"a\.parquet"):
        rows.collect()


def test_many_files_are_planned_without_a_job_that_lists_them(tmp_path: Path, spark: Any) -> None:
    pq.write_table(pa.table([[1], ["a"]], schema=SCHEMA), tmp_path / "0.parquet")
    size = (tmp_path / "0.parquet").stat().st_size
    files = {f"file://{tmp_path}/{number}.parquet": size for number in range(100)}
    tracker = spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup(None))
    known(files, spark)._jdf.queryExecution().executedPlan()
    assert len(tracker.getJobIdsForGroup(None)) == before


@pytest.mark.parametrize("folder", ["[a]", "{a,b}", "*", "a?", "\\a"])
@pytest.mark.parametrize("kind", ["plain", "deletion vectors", "partitions", "external"])
def test_tables_in_folders_named_like_patterns_have_each_row_once(
    folder: str, kind: str, tmp_path: Path, spark: Any
) -> None:
    lake = kt.connect(tmp_path / folder, spark=spark)
    if kind == "external":
        (source := tmp_path / folder / "source").mkdir(parents=True)
        for number in range(3):
            rows = pa.table([[number, number + 10], ["x", "y"]], schema=SCHEMA)
            pq.write_table(rows, source / f"{number}.parquet")
        table: Any = lake.create_external_table(
            "d.t", format="parquet", location=str(source), primary_key=["id"], watermark_key=["v"]
        )
    else:
        options = {"deletion-vectors.enabled": "true"} if kind == "deletion vectors" else {}
        by = ["v"] if kind == "partitions" else []
        table = lake.create_table(
            "d.t", SCHEMA, ["id", *by], partition_by=by, options={"bucket": "3", **options}
        )
        table.write([{"id": number, "v": folder} for number in range(50)])
        table.compact(full=True)
        lake.sql("DELETE FROM d.t WHERE id < 9")
    shown = sorted(tuple(row) for row in table.scan().to_spark(spark).collect())
    assert shown == sorted(tuple(row.values()) for row in table.scan().to_pylist())


@pytest.fixture
def many_files(tmp_path: Path, spark: Any) -> Any:
    """A table of a file for each of 40 partitions, with deleted rows in some."""
    options = {"bucket": "1", "deletion-vectors.enabled": "true"}
    columns = pa.schema([("id", pa.int64()), ("p", pa.int32()), ("v", pa.string())])
    table = kt.connect(tmp_path / "[lake]", spark=spark).create_table(
        "t", columns, ["id", "p"], partition_by=["p"], options=options
    )
    table.write([{"id": n, "p": n % 40, "v": "a" * (n % 7)} for n in range(400)])
    table.compact(full=True)
    table.delete("id % 9 = 4")
    return table


def test_many_files_on_disk_are_planned_without_a_job(many_files: Any, spark: Any) -> None:
    tracker = spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup(None))
    rows = many_files.scan().to_spark(spark)
    rows._jdf.queryExecution().executedPlan()
    assert len(tracker.getJobIdsForGroup(None)) == before
    assert len(rows.inputFiles()) >= 40
    found = [row.asDict() for row in rows.orderBy("id").collect()]
    assert found == [{"id": n, "p": n % 40, "v": "a" * (n % 7)} for n in range(400) if n % 9 != 4]


@pytest.mark.parametrize("planned", [False, True])
def test_a_file_of_many_that_is_gone_is_named(many_files: Any, spark: Any, planned: bool) -> None:
    rows = many_files.scan().to_spark(spark) if planned else None
    gone = min(Path(many_files.uri).rglob("*.parquet"))
    gone.unlink()
    with pytest.raises(kt.DataError, match=gone.name):
        (rows or many_files.scan().to_spark(spark)).collect()
