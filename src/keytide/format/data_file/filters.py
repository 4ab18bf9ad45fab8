"""The bloom filters of a data file: created with it, and stored in the manifest or in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from keytide.format.bloom_filter import BLOOM_FILTER, bloom_filter, has_hash, value_hashes
from keytide.format.file_index import ColumnIndexes, encode_file_index, index_name
from keytide.format.schema import TableSchema

__all__ = ["ColumnFilter", "FileFilters", "PlacedIndex"]


@dataclass(frozen=True)
class ColumnFilter:
    """How to size a column's filter: for `items` values, by default the rows of the file."""

    false_positives: float = 0.1
    items: int | None = None


@dataclass(frozen=True)
class PlacedIndex:
    """The index of one data file, if it has one: in the manifest, or in a separate file."""

    embedded: bytes | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The file by its path."""

    @property
    def members(self) -> dict[str, Any]:
        """The members of the manifest entry for it."""
        names = tuple(path.rsplit("/", 1)[-1] for path in self.files)
        return {"embedded_file_index": self.embedded, "extra_files": names}


@dataclass(frozen=True)
class FileFilters:
    """Which columns of data files get a filter, and up to which size it goes into manifests."""

    columns: Mapping[str, ColumnFilter] = field(default_factory=dict)
    in_manifest_bytes_max: int = 0

    def of_file(self, rows: pa.Table, schema: TableSchema, path: str) -> PlacedIndex:
        """The index of a file with these rows.

        Columns for which the format has no filters get none.
        """
        indexes = self.indexes(rows, schema)
        return self.placed(indexes, index_name(path)) if indexes else PlacedIndex()

    def indexes(self, rows: pa.Table, schema: TableSchema) -> dict[str, dict[str, bytes]]:
        """The filters of rows, by column."""
        return {
            name: {BLOOM_FILTER: _filter(rows.column(name), schema, name, settings)}
            for name, settings in self.columns.items()
            if name in schema.by_name and has_hash(schema.field(name).type)
        }

    def placed(self, indexes: ColumnIndexes, path: str) -> PlacedIndex:
        """The indexes, placed by their size: in the manifest, or in a file with that path."""
        data = encode_file_index(indexes)
        if len(data) <= self.in_manifest_bytes_max:
            return PlacedIndex(embedded=data)
        return PlacedIndex(files={path: data})


def _filter(
    column: pa.ChunkedArray, schema: TableSchema, name: str, settings: ColumnFilter
) -> bytes:
    rows = max(1, len(column))
    items = min(rows, settings.items or rows)
    hashes = value_hashes(column, schema.field(name).type)
    return bloom_filter(hashes, items, settings.false_positives)
