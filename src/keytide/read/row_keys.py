"""Computes what a key index stores about rows: the hashes of their keys, and comparison values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.format.arrow import to_arrow
from keytide.key_index.keys import KeyHashes, Numbers, hash_keys
from keytide.snapshot.state import TableView
from keytide.types import Field, arrow_schema

__all__ = ["Flags", "exact", "hashes_of", "keys_of"]

Flags = npt.NDArray[np.bool_]


def exact(rows: pl.DataFrame, fields: tuple[Field, ...]) -> pa.Table:
    """Some columns of rows, in the table's types."""
    if not fields:
        return pa.table({"": pa.nulls(rows.height)})
    return to_arrow(rows.select(f.name for f in fields), arrow_schema(fields))


def keys_of(rows: pl.DataFrame, view: TableView) -> tuple[KeyHashes, Numbers]:
    """The key hashes of rows, and the comparison values for their entries."""
    comparison = view.comparison
    return hashes_of(rows, view), comparison.in_index(exact(rows, comparison.fields))


def hashes_of(rows: pl.DataFrame, view: TableView) -> KeyHashes:
    """The key hashes of rows."""
    fields = view.schema.select(view.schema.primary_keys)
    return hash_keys(exact(rows, fields), fields, view.options.upsert_hash_function)
