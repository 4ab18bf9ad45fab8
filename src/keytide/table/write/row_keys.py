"""What an index of keys has of rows: hashes that stand for their keys, and their comparison."""

from __future__ import annotations

import polars as pl

from keytide.index.comparison import Numbers
from keytide.index.hashes import KeyHashes, hash_keys
from keytide.table.state.view import TableView
from keytide.table.write.arrivals import exact

__all__ = ["hashes_of", "keys_of"]


def keys_of(rows: pl.DataFrame, view: TableView) -> tuple[KeyHashes, Numbers]:
    """What stands for the keys of some rows, and what entries have of their comparison."""
    comparison = view.comparison
    return hashes_of(rows, view), comparison.in_index(exact(rows, comparison.fields))


def hashes_of(rows: pl.DataFrame, view: TableView) -> KeyHashes:
    """What stands for the keys of some rows."""
    fields = view.schema.select(view.schema.primary_keys)
    return hash_keys(exact(rows, fields), fields, view.options.upsert_hash_function)
