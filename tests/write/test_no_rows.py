"""A write of nothing makes no snapshot, and no part of what a scan gives is empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import keytide as kt

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
NOTHING: dict[str, Callable[[], Any]] = {
    "list": list,
    "tuple": tuple,
    "pyarrow without columns": lambda: pa.table({}),
    "pyarrow": SCHEMA.empty_table,
    "batch": lambda: pa.RecordBatch.from_pylist([], SCHEMA),
    "reader": lambda: pa.RecordBatchReader.from_batches(SCHEMA, []),
    "polars without columns": pl.DataFrame,
    "polars": lambda: pl.DataFrame({"k": [], "v": []}),
    "lazy polars": pl.LazyFrame,
    "pandas without columns": pd.DataFrame,
    "pandas": lambda: pd.DataFrame({"k": [], "v": []}),
    "pandas with a kind": lambda: pd.DataFrame({"k": [], "v": [], "_row_kind": []}),
}


@pytest.mark.parametrize("name", NOTHING)
def test_writing_nothing_makes_no_snapshot(name: str, lake: kt.Lake) -> None:
    table = lake.create_table("t", SCHEMA, ["k"])
    table.write([{"k": 1, "v": "a"}])
    assert table.write(NOTHING[name]()) == kt.WriteResult(None, 0, 0, 0)
    assert table.scan().count() == 1
    assert len(table.snapshots()) == 1


@pytest.mark.parametrize("name", NOTHING)
def test_overwriting_with_nothing_empties_the_table(name: str, lake: kt.Lake) -> None:
    table = lake.create_table("t", SCHEMA, ["k"])
    table.write([{"k": 1, "v": "a"}])
    assert table.overwrite(NOTHING[name]()).snapshot_id == 2
    assert table.scan().count() == 0


def test_unknown_column_without_rows_is_refused(lake: kt.Lake) -> None:
    table = lake.create_table("t", SCHEMA, ["k"])
    with pytest.raises(kt.KeytideError, match="'x'"):
        table.write(pd.DataFrame({"k": [], "v": [], "x": []}))


@pytest.mark.parametrize("where", [None, "k > 15", "k < 0"])
def test_chunks_and_batches_of_a_scan_hold_rows(lake: kt.Lake, where: str | None) -> None:
    table = lake.create_table("t", SCHEMA, ["k"], options={"bucket": "3"})
    table.write([{"k": key, "v": "a"} for key in range(20)])
    table.write([{"k": key, "v": "b", "_row_kind": "-D"} for key in range(0, 16, 2)])
    scan = table.scan(where=where)
    chunks = [len(chunk) for column in scan.to_arrow().columns for chunk in column.chunks]
    assert 0 not in chunks
    assert 0 not in [batch.num_rows for batch in scan.to_batches()]
    assert sum(chunks) == 2 * scan.count()
