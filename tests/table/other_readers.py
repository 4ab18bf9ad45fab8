"""What readers of other formats find where a table lies: they know nothing of Keytide."""

from __future__ import annotations

import warnings
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
from pyiceberg.table import StaticTable

import keytide as kt

__all__ = ["READERS", "delta_readers", "iceberg_readers", "in_order", "scanned"]

Rows = list[tuple[Any, ...]]


def in_order(rows: list[dict[str, Any]]) -> Rows:
    """Rows as tuples, in one order whoever gave them."""
    return sorted((tuple(row.values()) for row in rows), key=repr)


def scanned(table: kt.Table, snapshot_id: int | None = None) -> Rows:
    """What Keytide shows."""
    return in_order(table.scan(snapshot_id=snapshot_id).to_pylist())


def delta_readers(table: kt.Table) -> dict[str, Rows]:
    """The rows that each reader of Delta finds."""
    found = deltalake.DeltaTable(table.uri)
    query = deltalake.QueryBuilder().register("t", found).execute("SELECT * FROM t")
    return {
        "deltalake": in_order(pa.table(query).to_pylist()),
        "polars": in_order(pl.scan_delta(table.uri).collect().to_dicts()),
    }


def iceberg_readers(table: kt.Table) -> dict[str, Rows]:
    """The rows that each reader of Iceberg finds."""
    found = StaticTable.from_metadata(table.uri)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Polars would have another package plan
        rows = pl.scan_iceberg(found).collect()
    return {
        "pyiceberg": in_order(found.scan().to_arrow().to_pylist()),
        "polars": in_order(rows.to_dicts()),
    }


READERS = {"delta": delta_readers, "iceberg": iceberg_readers}
"""The readers of each form."""
