"""Adoption: a new table of the lake from the current rows of an external table, one for each key.

One version of the source is pinned and read once. Its rows are written to files of the new table,
so the source can then be changed, cleaned up or dropped. docs/design/0019 explains why files are
not taken over unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from keytide.base.record import Record
from keytide.catalogs.catalog import Catalog, NewTable
from keytide.commit.transaction import Transaction
from keytide.compaction.lowest_level import fill_lowest_level
from keytide.definition.external import refuse_secret_options, split_options
from keytide.errors import InvalidError, KeytideError
from keytide.options import keys, stored_names
from keytide.sources.creation import Elsewhere
from keytide.sources.read_ahead import read_in_order
from keytide.sources.source import PinnedSource

__all__ = ["AdoptionResult", "NewAdopted", "adopt"]

_BATCH_ROWS = 4 << 10, 1 << 20
_VALUE_BYTES = 32
"""Estimated size of a value before any data is read."""


@dataclass(frozen=True)
class NewAdopted:
    """The definition of a table to adopt. See `Lake.adopt`."""

    format: str
    location: str = field(repr=False)
    primary_key: Sequence[str]
    partition_by: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None


@dataclass(frozen=True)
class AdoptionResult(Record):
    """What `Lake.adopt` created.

    - `version` is the version of the source that was read, None when the format has no versions.
    - `rows` is the number of rows read, including rows that mark their key as deleted.
    - `files` is the number of files that were written.
    - `snapshot_id` is the first snapshot that contains the rows, None when there were no rows.
    """

    version: str | None
    snapshot_id: int | None
    rows: int
    files: int


def adopt(catalog: Catalog, name: str, wanted: NewAdopted) -> AdoptionResult:
    """Create a table from an external one. Atomic. Raises as `Lake.adopt` does."""
    opening, own = split_options(wanted.options)
    near = catalog.store_for(name)
    try:
        refuse_secret_options(opening)
        if not wanted.primary_key and keys.PRIMARY_KEY not in stored_names(own):
            raise InvalidError(
                "an adopted table requires a primary key with one row per key; give one, or use "
                "CREATE TABLE ... AS SELECT from an external table"
            )
        elsewhere = Elsewhere.at(wanted.format, wanted.location, opening, near)
        pinned = elsewhere.source.pin()
    except KeytideError as error:
        raise type(error)(f"table {name}: {error}") from error
    origin = _origin(elsewhere, pinned)
    options = {**own, keys.key_of(keys.USER, "adopted-from"): origin}
    table = NewTable(
        pinned.schema, wanted.primary_key, wanted.partition_by, options, wanted.comment
    )

    def fill(transaction: Transaction) -> None:
        memory_bytes = transaction.view.options.read_memory_bytes
        fill_lowest_level(transaction, partial(_rows, pinned, memory_bytes), origin)

    written = catalog.create_filled(name, table, fill)
    return AdoptionResult(pinned.version, written.snapshot_id, written.rows, written.files)


def _origin(elsewhere: Elsewhere, pinned: PinnedSource) -> str:
    version = "" if pinned.version is None else f", version {pinned.version}"
    return f"{elsewhere.format} at {elsewhere.source.location}{version}"


def _rows(pinned: PinnedSource, memory_bytes: int) -> Iterator[pa.Table]:
    """All rows that are not deleted in the source, in order. Raises as `SourcePart.batches`."""
    names = pinned.schema.names
    least, most = _BATCH_ROWS
    rows_max = max(least, min(most, memory_bytes // 16 // (_VALUE_BYTES * max(1, len(names)))))

    parts = pinned.parts()

    def read(place: int) -> Iterator[pa.RecordBatch]:
        return parts[place].batches(names, None, rows_max)

    for _, batch in read_in_order(parts, read, rows_max):
        if batch.num_rows:
            yield pa.Table.from_batches([batch])
