"""Spark's own reader reads plain files of an object store where the session has a file system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from far import S3A, BucketFolder
from keytide.spark import stored_files
from keytide.spark.stored_files import SETTING

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("x", pa.float64())])
ROWS = pa.table(
    {
        "id": range(100),
        "v": [f"v {n} %25" if n % 3 else None for n in range(100)],
        "x": [float("nan") if n % 7 == 0 else n / 2 for n in range(100)],
    },
    SCHEMA,
)
KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "deletion vectors": {"deletion-vectors.enabled": "true"},
    "deletes that stay": {"write-only": "true"},
    "partitions": {},
    "index of keys": {"upsert.mode": "full"},
    "append": {},
}


@pytest.fixture
def session(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new session of the same Spark, which nothing is known of, and which reads small files."""
    monkeypatch.setattr(stored_files, "_LARGE_BYTES", 0)
    return spark.newSession()


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    """A lake in a bucket."""
    return kt.connect("", store=BucketFolder(f"{warehouse}/with space"))


def with_s3a(session: Any) -> Any:
    for name, value in S3A.items():
        session.conf.set(name, value)
    return session


def operators(rows: Any) -> set[str]:
    """The kinds of leaves and steps that say who reads."""
    plan = rows._jdf.queryExecution().optimizedPlan().toString()
    return {name for name in ("parquet", "MapInArrow") if name in plan}


def row_texts(rows: Any) -> list[str]:
    return sorted(map(repr, rows.toArrow().to_pylist()))


def new_table(lake: kt.Lake, kind: str) -> kt.Table:
    key = () if kind == "append" else ("id",)
    partition_by = ("v",) if kind == "partitions" else ()
    rows = ROWS
    if kind == "partitions":
        key = ("v", "id")
        rows = ROWS.set_column(1, "v", pa.array([f"p {n % 2}%" for n in range(100)]))
    options = {} if kind == "append" else {"bucket": "2", **KINDS[kind]}
    table = lake.create_table("t", SCHEMA, key, partition_by, options)
    table.write(rows)
    if kind == "deletion vectors":
        table.delete("id % 10 = 3")
    elif kind == "deletes that stay":
        table.compact(full=True)
    elif kind == "plain":
        lake.sql("ALTER TABLE t ADD COLUMN later BIGINT")
        lake.sql("ALTER TABLE t RENAME COLUMN v TO w")
    return table


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_with_a_file_system_reads_the_files_itself(
    kind: str, lake: kt.Lake, session: Any
) -> None:
    scan = new_table(lake, kind).scan(where="id > 4")
    rows = scan.to_spark(with_s3a(session))
    assert operators(rows) == {"parquet"}
    assert all(uri.startswith("s3a://bucket/") for uri in rows.inputFiles())
    assert row_texts(rows) == sorted(map(repr, scan.to_arrow().to_pylist()))


def test_a_session_without_one_leaves_the_files_to_tasks(lake: kt.Lake, session: Any) -> None:
    rows = new_table(lake, "append").scan().to_spark(session)
    assert operators(rows) == {"MapInArrow"}


def test_a_session_that_does_not_find_the_bucket_leaves_its_files_to_tasks(
    lake: kt.Lake, session: Any, tmp_path: Path
) -> None:
    with_s3a(session).conf.set("fs.viewfs.mounttable.bucket.linkFallback", tmp_path.as_uri())
    rows = new_table(lake, "append").scan().to_spark(session)
    assert operators(rows) == {"MapInArrow"}


def test_the_setting_names_a_file_system_or_none(lake: kt.Lake, session: Any) -> None:
    scan = new_table(lake, "append").scan()
    with_s3a(session).conf.set(SETTING, "never")
    assert operators(scan.to_spark(session)) == {"MapInArrow"}
    session.conf.set(SETTING, "s3a")
    assert operators(scan.to_spark(session)) == {"parquet"}
    for wrong in ("S3 a", "s3a://", "3"):
        session.conf.set(SETTING, wrong)
        with pytest.raises(kt.InvalidError, match=f"{SETTING} is '{wrong}'; expected 'auto', 'n"):
            scan.to_spark(session)


def test_a_file_that_is_missing_when_it_is_read_is_named(lake: kt.Lake, session: Any) -> None:
    table = new_table(lake, "append")
    rows = table.scan().to_spark(with_s3a(session))
    for file in Path(table.uri.removeprefix("s3://bucket")).glob("bucket-*/*.parquet"):
        file.unlink()
    with pytest.raises(kt.DataError, match=r"data file bucket/.*parquet is missing"):
        rows.count()


def test_tasks_read_the_small_files_and_spark_the_large_ones(
    lake: kt.Lake, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create_table("t", SCHEMA, (), options={"write-only": "true"})
    table.write(ROWS.slice(0, 3))
    table.write(ROWS.slice(3))
    sizes = [file["file_size_in_bytes"] for file in lake.sql("SELECT * FROM t$files").to_pylist()]
    monkeypatch.setattr(stored_files, "_LARGE_BYTES", max(sizes))
    scan = table.scan()
    rows = scan.to_spark(with_s3a(session))  # tasks cannot import this store
    assert operators(rows) == {"parquet", "MapInArrow"}
    assert len(rows.inputFiles()) == 1
    session.conf.set(SETTING, "s3a")
    assert operators(scan.to_spark(session)) == {"parquet"}
