"""External tables as users hold them: versions in a folder that others fill, one row per key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keytide as kt

SCHEMA = pa.schema([("k", pa.int32()), ("w", pa.int64()), ("d", pa.bool_()), ("v", pa.string())])
KEYS: dict[str, Any] = {"primary_key": ["k"], "watermark_key": ["w"], "tombstone_key": "d"}


def put(folder: Path, name: str, *rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> None:
    """Somebody writes a file of versions."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [dict(zip(schema.names, row, strict=True)) for row in rows]
    pq.write_table(pa.Table.from_pylist(written, schema=schema), path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "theirs"
    put(path, "1.parquet", (1, 1, None, "a"), (2, 5, None, "b"), (3, 1, None, "c"))
    put(path, "2.parquet", (1, 2, None, "A"), (2, 4, None, "late"), (3, 2, True, None))
    return path


@pytest.fixture
def lake(tmp_path: Path) -> kt.Lake:
    return kt.connect(tmp_path / "lake")


def define(lake: kt.Lake, folder: Path, **more: Any) -> kt.ExternalTable:
    return lake.create_external_table(
        "e", **{"format": "parquet", "location": folder, **KEYS, **more}
    )


def rows(scan: Any) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in scan.to_pylist()}


LATEST = {(1, 2, None, "A"), (2, 5, None, "b")}


def test_scan_has_the_freshest_row_of_each_key_and_no_deleted_one(
    lake: kt.Lake, folder: Path
) -> None:
    assert rows(define(lake, folder).scan()) == LATEST
    assert rows(lake.sql("SELECT * FROM e")) == LATEST
