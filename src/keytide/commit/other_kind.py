"""Manifest entries for the files of the previous kind of table, after a conversion.

Some engines decode the keys of all files in a manifest, including deleted ones, with the present
key of the table, and fail if a file has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from keytide.format.binary_row import encode_rows
from keytide.format.manifest import ManifestEntry
from keytide.format.schema import TableSchema

__all__ = ["of_unknown_keys"]


def of_unknown_keys(
    entries: Iterable[ManifestEntry], schema: TableSchema
) -> tuple[ManifestEntry, ...]:
    """Entries that name the same files, with keys that are NULL in each key column."""
    types = [field.type for field in schema.trimmed_primary_key_fields()]
    nulls = [pa.nulls(1, each.to_arrow()) for each in types]
    (key,) = encode_rows(nulls, types)
    return tuple(
        replace(entry, file=replace(entry.file, min_key=key, max_key=key)) for entry in entries
    )
