"""Delta and Iceberg tables in a bucket, read, appended to and adopted by options of the lake."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.sources import appends, delta, iceberg
from keytide.sources.source import PinnedSource, Place
from keytide.store import open_store

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")


def rows_of(pinned: PinnedSource) -> list[Any]:
    parts = pickle.loads(pickle.dumps(list(pickle.loads(pickle.dumps(pinned)).parts())))
    batches = [b for part in parts for b in part.batches(pinned.schema.names, None, 10)]
    assert not any("FEMI" in repr(part) for part in parts)
    return pa.Table.from_batches(batches, pinned.schema).to_pylist()


def test_delta_table_is_read_and_appended_to(s3_bucket: str, s3_options: dict[str, str]) -> None:
    near = open_store(f"s3://{s3_bucket}/lake", s3_options)
    place = Place(f"s3://{s3_bucket}/a table", {}, near)
    schema = deltalake.Schema.from_arrow(pa.schema([("k", pa.int64())]))
    told = {**s3_options, "allow_http": "true"}
    deltalake.DeltaTable.create(place.location, schema, storage_options=told)
    appender = appends.open_delta_appender(place)
    assert [appender.append(pa.table({"k": [k]}), ["k"]) for k in (1, 2)] == ["1", "2"]
    pinned = delta.open_source(place).pin()
    assert rows_of(pinned) == [{"k": 1}, {"k": 2}]
    assert [part.commit for part in pinned.parts()] == [1, 2]


def test_iceberg_table_is_read_and_appended_to(
    s3_bucket: str, s3_options: dict[str, str], tmp_path: Path
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    near = open_store(f"s3://{s3_bucket}/lake", s3_options)
    warehouse = f"s3://{s3_bucket}/w"
    files = {f"s3.{name.replace('_', '-')}": value for name, value in s3_options.items()}
    catalog = SqlCatalog("default", uri=f"sqlite:///{tmp_path}/c.db", warehouse=warehouse, **files)
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", pa.schema([("k", pa.int64())]))
    options = {"catalog.uri": f"sqlite:///{tmp_path}/c.db", "catalog.warehouse": warehouse}
    place = Place("n.t", options, near)
    appends.open_iceberg_appender(place).append(pa.table({"k": [1]}), ["k"])
    assert rows_of(iceberg.open_source(place).pin()) == [{"k": 1}]
    folder = Place(table.location(), {}, near)
    assert rows_of(iceberg.open_source(folder).pin()) == [{"k": 1}]


def test_delta_table_is_adopted_beside_it(s3_bucket: str, s3_options: dict[str, str]) -> None:
    lake = kt.connect(f"s3://{s3_bucket}/lake", options=s3_options)
    location, told = f"s3://{s3_bucket}/theirs", {**s3_options, "allow_http": "true"}
    given = pa.table({"k": [3, 1, 2], "p": ["a", "b", "a"]})
    deltalake.write_deltalake(location, given, storage_options=told)
    done = lake.adopt(
        "t", format="delta", location=location, primary_key=["p", "k"], partition_by=["p"]
    )
    assert (done.version, done.rows, done.files) == ("0", 3, 2)
    table = lake.table("t")
    assert isinstance(table, kt.Table)
    table.write([{"k": 1, "p": "b"}, {"k": 4, "p": "b"}])
    assert sorted(row["k"] for row in table.scan().to_pylist()) == [1, 2, 3, 4]
