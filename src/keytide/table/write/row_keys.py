"""Computes what a key index stores about rows: the hashes of their keys, and comparison values."""

from __future__ import annotations

import polars as pl

from keytide.index.comparison import Numbers
from keytide.index.hashes import KeyHashes, hash_keys
from keytide.table.state.view import TableView
from keytide.table.write.arrivals import exact

__all__ = ["hashes_of", "keys_of"]


def keys_of(rows: pl.DataFrame, view: TableView) -> tuple[KeyHashes, Numbers]:
    """The key hashes of rows, and the comparison values for their entries."""
    comparison = view.comparison
    return hashes_of(rows, view), comparison.in_index(exact(rows, comparison.fields))


def hashes_of(rows: pl.DataFrame, view: TableView) -> KeyHashes:
    """The key hashes of rows."""
    fields = view.schema.select(view.schema.primary_keys)
    return hash_keys(exact(rows, fields), fields, view.options.upsert_hash_function)
