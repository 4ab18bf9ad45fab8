"""A cluster reads tables in S3 by itself, through Hadoop's own S3A; `make s3a` fetches it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cluster_settings import S3A_JARS
from pyspark.errors import PySparkException

import keytide as kt
from aws import SECRET, aws_serving, client_of
from keytide.spark import external_merge, stored_files

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not S3A_JARS.exists(), reason="`make s3a` fetches hadoop-aws"),
]

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of a server of S3 that has a bucket."""
    with aws_serving() as address:
        client_of("s3", address).create_bucket(Bucket="sales")
        yield address


@pytest.fixture
def session(cluster: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session that finds the bucket, and reads small files by itself too."""
    monkeypatch.setattr(stored_files, "_LARGE_BYTES", 0)
    session = cluster.newSession()
    for name, value in {
        "endpoint": endpoint, "endpoint.region": "us-east-1", "path.style.access": "true",
        "access.key": "tester", "secret.key": SECRET, "impl.disable.cache": "true",
    }.items():  # fmt: skip
        session.conf.set(f"fs.s3a.{name}", value)
    return session


@pytest.fixture
def options(endpoint: str) -> dict[str, str]:
    """How Keytide finds it."""
    return {
        "endpoint": endpoint, "region": "us-east-1", "access_key_id": "tester",
        "secret_access_key": SECRET, "allow_http": "true",
    }  # fmt: skip


def read_by(rows: Any) -> set[str]:
    plan = rows._jdf.queryExecution().optimizedPlan().toString()
    return {name for name in ("parquet", "MapInArrow") if name in plan}


def collected(rows: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in rows.collect())


def test_plain_files_are_read_by_spark_and_others_by_tasks(
    session: Any, options: dict[str, str]
) -> None:
    lake = kt.connect("s3://sales/lake", options=options, spark=session)
    given = {"bucket": "2", "deletion-vectors.enabled": "true"}
    table = lake.create_table("t", SCHEMA, ["id"], options=given)
    table.write(session.range(0, 1_000, 1, 3).selectExpr("id", "concat('v ', id) AS v"))
    table.delete("id % 10 = 3")
    rows = table.scan().to_spark(session)
    assert read_by(rows) == {"parquet"}
    assert collected(rows) == [(n, f"v {n}") for n in range(1_000) if n % 10 != 3]

    merged = lake.create_table("m", SCHEMA, ["id"], options={"bucket": "2", "write-only": "true"})
    for version in ("old", "new"):
        merged.write(session.range(0, 100, 1, 3).selectExpr("id", f"'{version}' AS v"))
    rows = merged.scan().to_spark(session)
    assert read_by(rows) == {"MapInArrow"}
    assert collected(rows) == [(n, "new") for n in range(100)]


def test_a_session_without_credentials_leaves_the_files_to_tasks(
    session: Any, options: dict[str, str]
) -> None:
    session.conf.set("fs.s3a.endpoint", "http://127.0.0.1:9")  # nobody answers
    for name in ("attempts.maximum", "retry.limit"):
        session.conf.set(f"fs.s3a.{name}", "0")
    table = kt.connect("s3://sales/other", options=options).create_table("t", SCHEMA, ["id"])
    table.write([{"id": 1, "v": "one"}])
    rows = table.scan().to_spark(session)
    assert read_by(rows) == {"MapInArrow"}
    assert collected(rows) == [(1, "one")]


def test_small_files_are_read_by_tasks_unless_the_setting_names_a_file_system(
    session: Any, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    table = kt.connect("s3://sales/small", options=options).create_table("t", SCHEMA, ["id"])
    table.write([{"id": 1, "v": "one"}])
    for setting, reader in (("auto", "MapInArrow"), ("s3a", "parquet")):
        session.conf.set(stored_files.SETTING, setting)
        rows = table.scan().to_spark(session)
        assert read_by(rows) == {reader}
        assert collected(rows) == [(1, "one")]


def test_external_files_are_read_by_spark(
    session: Any, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_merge, "_SMALL_BYTES", -1)  # every table is large
    s3 = pa.fs.S3FileSystem(
        endpoint_override=options["endpoint"], access_key="tester", secret_key=SECRET,
        region="us-east-1", scheme="http",
    )  # fmt: skip
    for version in (1, 2):
        rows = pa.table({"id": range(version * 50), "w": [version] * (version * 50)})
        pq.write_table(rows, f"sales/theirs/{version}.parquet", filesystem=s3)
    lake = kt.connect("s3://sales/lake", options=options, spark=session)
    table = lake.create_external_table(
        "e", format="parquet", location="s3://sales/theirs", primary_key=["id"],
        watermark_key=["w"],
    )  # fmt: skip
    rows = table.scan().to_spark(session)
    assert "parquet" in read_by(rows)
    assert collected(rows) == [(n, 2) for n in range(100)]


def test_planning_asks_the_store_for_no_file(
    session: Any, options: dict[str, str], endpoint: str
) -> None:
    lake = kt.connect("s3://sales/lake", options=options, spark=session)
    table = lake.create_table("planned", SCHEMA, ["id"], options={"bucket": "2"})
    table.write(session.range(0, 1_000, 1, 3).selectExpr("id", "concat('v ', id) AS v"))
    rows = table.scan().to_spark(session)
    assert len(rows.collect()) == 1_000
    client = client_of("s3", endpoint)
    listed = client.list_objects_v2(Bucket="sales", Prefix="lake/default.db/planned/bucket-")
    for stored in listed["Contents"]:
        client.delete_object(Bucket="sales", Key=stored["Key"])
    rows = table.scan().to_spark(session)
    assert read_by(rows) == {"parquet"}
    with pytest.raises(PySparkException, match=r"bucket-\d/data-"):
        rows.collect()
