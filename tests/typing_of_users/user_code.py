"""Code as users write it, which type checkers must accept without an unknown type.

`make user-types` checks it with pyright and mypy, both strict, against the installed wheel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import keytide as kt

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def create(path: str, schema: pa.Schema) -> kt.Table:
    lake = kt.connect(path, options={"region": "eu-central-1"}, cache=None)
    table = lake.create_table(
        "shop.orders", schema, primary_key=["id"], partition_by=["day"],
        options={"sequence.field": "version", "bucket": "4"}, comment="all of them",
    )  # fmt: skip
    names: list[str] = lake.tables("shop")
    assert names == [table.name]
    opened = lake.table("shop.orders")
    opened.write([{"id": 1}])
    if isinstance(opened, kt.ExternalTable):
        opened.refresh()
    return lake.table("shop.orders")


def write(table: kt.Table, arrow: pa.Table, polars: pl.DataFrame, pandas: pd.DataFrame) -> int:
    result = table.write([{"id": 1, "status": "new"}, {"id": 2, "_row_kind": "-D"}])
    table.write(arrow, commit_user="job", commit_identifier=7)
    table.write(polars, merge_schema=True)
    table.write(pandas)
    rows: int = result.rows
    return rows + (result.snapshot_id or 0)


def read(table: kt.Table) -> Iterator[object]:
    scan = table.scan(["id", "status"], where="id > 1", limit=10)
    arrow: pa.Table = scan.to_arrow()
    polars: pl.DataFrame = scan.to_polars()
    pandas: pd.DataFrame = scan.to_pandas()
    rows = scan.to_pylist()
    first: object = rows[0]["status"]
    count: int = scan.count()
    for batch in scan.to_batches():
        yield batch.num_rows
    for row in scan:
        yield row["id"]
    yield str(scan.explain())
    yield from (arrow, polars, pandas, first, count)
    yield table.scan(tag="monday"), table.scan(snapshot_id=3), table.scan(as_of="2026-01-31")
    found = table.get(1)
    if found is not None:
        yield found["status"]
    yield table.get_many([1, 2]).num_rows
    yield table.why(1).row


def change(table: kt.Table) -> int:
    changed: kt.Changed = table.delete("status = 'test'")
    table.update({"status": "'late'"}, where="id < 100")
    merged = (
        table.merge([{"id": 1}], "target.id = source.id")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
    return changed.rows + merged.rows


def changes(table: kt.Table) -> Iterator[object]:
    happened = table.changes(1, 2, mode="diff")
    yield happened.to_arrow().num_rows
    yield happened.to_pylist()[0]["_row_kind"]
    for batch in table.follow(consumer="copy", timeout_seconds=0):
        yield batch.num_rows


def sql(lake: kt.Lake) -> list[dict[str, object]]:
    result = lake.sql("SELECT status, count(*) AS n FROM shop.orders GROUP BY status")
    polars: pl.DataFrame = result.to_polars()
    assert result.row_count == polars.height
    return result.to_pylist()


def maintain(table: kt.Table) -> bool:
    table.create_tag("monday", time_retained="365 d")
    trial: kt.Table = table.create_branch("trial")
    trial.write([{"id": 9}])
    table.fast_forward("trial")
    compacted: kt.CompactionResult = table.compact(full=True)
    expired: kt.ExpiryResult = table.expire_snapshots(retain_max=5)
    snapshots = [snapshot.id for snapshot in table.snapshots()]
    assert snapshots, (compacted, expired)
    healthy: bool = table.doctor().is_healthy
    return healthy and table.verify().is_healthy


def on_spark(spark: SparkSession, frame: DataFrame, path: str) -> int:
    kt.spark.register(spark)
    session: SparkSession = kt.spark.session()
    lake = kt.connect(path, spark=session)
    table = lake.table("shop.orders")
    table.write(frame)
    shown: DataFrame = table.scan(["id"], where="id > 1").to_spark(spark)
    kt.spark.register_lake(spark, lake)
    return shown.count()


def events(lake: kt.Lake, source: pl.DataFrame) -> None:
    lake.auto_cdc(
        "shop.newest", source, keys=["id"], sequence_by="lsn", apply_as_deletes="op = 'd'"
    )
    report = lake.ingest("shop.orders", "kafka://localhost:9092/orders", format="debezium-json")
    applied: int = report.applied
    assert applied >= 0


def errors(table: kt.Table) -> str:
    try:
        table.rollback_to("monday")
    except kt.ConflictError as error:
        return str(error)
    except kt.KeytideError:
        raise
    return table.uri


def lazily(table: kt.Table) -> pl.LazyFrame:
    return kt.scan_polars(table)
