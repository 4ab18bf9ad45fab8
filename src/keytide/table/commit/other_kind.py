"""Files of the kind of table that a conversion leaves, as its manifests tell of them.

Some engines decode the keys of all files that a manifest names, those that are gone too, by the
key that the table has today, and fail where a file has none.
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
    """Entries that name the same files, with keys that are NULL in each column of the key."""
    types = [field.type for field in schema.trimmed_primary_key_fields()]
    nulls = [pa.nulls(1, each.to_arrow()) for each in types]
    (key,) = encode_rows(nulls, types)
    return tuple(
        replace(entry, file=replace(entry.file, min_key=key, max_key=key)) for entry in entries
    )
