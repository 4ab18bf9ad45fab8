"""What readers of other formats find where a table lies: they know nothing of Keytide."""

from __future__ import annotations

import os
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
from pyiceberg.table import StaticTable

import duckdb_reader
import keytide as kt

__all__ = [
    "FORMS",
    "ICEBERG_3",
    "READERS",
    "delta_readers",
    "iceberg_readers",
    "iceberg_table",
    "in_order",
    "published_as",
    "scanned",
]

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
    } | duckdb_readers(table, "delta")


def iceberg_table(table: kt.Table) -> StaticTable:
    """The table as pyiceberg opens it."""
    return StaticTable.from_metadata(table.uri)


def iceberg_readers(table: kt.Table) -> dict[str, Rows]:
    """The rows that each reader of Iceberg finds."""
    found = iceberg_table(table)
    return {
        "pyiceberg": in_order(found.scan().to_arrow().to_pylist()),
        "polars": in_order(pl.scan_iceberg(found).collect().to_dicts()),
    } | duckdb_readers(table, "iceberg")


def duckdb_readers(table: kt.Table, form: str) -> dict[str, Rows]:
    """The rows that DuckDB finds; it is no reader where it has no environment."""
    if not duckdb_reader.is_here():
        return {}
    return {"duckdb": in_order(duckdb_reader.read(table.uri, form).to_pylist())}


ICEBERG_3 = "iceberg 3"
"""The form 'iceberg' in version 3 of its format."""
READERS = {"delta": delta_readers, "iceberg": iceberg_readers, ICEBERG_3: iceberg_readers}
"""The readers of each form."""
FORMS = ["delta", "iceberg"]


def published_as(form: str) -> dict[str, str]:
    """The options that have a table published in a form."""
    name, _, version = form.partition(" ")
    versions = {"publish.iceberg.format-version": version} if version else {}
    return {"publish": name, **versions}


# Else Polars would have another package, which is not there, plan its reads, and say so each time.
os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"
