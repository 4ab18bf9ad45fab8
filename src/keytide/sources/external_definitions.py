"""Definitions of external tables: creation, refresh, and adoption into the lake.

An adoption is a new table of the lake from the current rows of an external table, one for each key.
One version of the source is pinned and read once. Its rows are written to files of the new table,
so the source can then be changed, cleaned up or dropped. docs/design/0019 explains why files are
not taken over unchanged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from keytide.base.arguments import warn_caller
from keytide.base.dataclass import dataclass, field
from keytide.base.record import Record
from keytide.catalogs.catalog import Catalog, NewTable, fields_of
from keytide.commit.transaction import Transaction
from keytide.compaction.bulk_load import fill_lowest_level
from keytide.errors import ConflictError, InvalidError, KeytideError
from keytide.format import paths
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys, stored_names
from keytide.predicate.value_columns import convert_column
from keytide.snapshot.stored_table import PinnedTable
from keytide.sources.parquet import read_in_order
from keytide.sources.source import (
    PinnedSource,
    Place,
    Source,
    checked_options,
    external_schema,
    is_read_on_demand,
    location_of,
    refuse_secret,
    refuse_secret_options,
    source_options,
    split_options,
    with_fields,
)
from keytide.sources.source_state import format_named, open_source, pin_external, source_of
from keytide.store import Store, created
from keytide.types import Field, arrow_schema

# -- creation and refresh --------------------------------------------------------------------------


@dataclass(frozen=True)
class NewExternalTable:
    """The definition of a new external table. See `Lake.create_external_table`.

    Without `fields` the columns are those found at the location.
    """

    format: str
    location: str = field(repr=False)
    primary_key: Sequence[str]
    fields: Sequence[Field] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None


def with_upsert_keys(
    table: str,
    options: Mapping[str, str] | None,
    watermark_key: Sequence[str] = (),
    tombstone_key: str | None = None,
    tombstone_string_key_value: str | None = None,
) -> dict[str, str]:
    """The options of a table, extended by the watermark and tombstone key arguments.

    Raises `InvalidError` if something is given twice.
    """
    keyed = {
        keys.WATERMARK_KEY: ",".join(watermark_key) or None,
        keys.TOMBSTONE_KEY: tombstone_key,
        keys.TOMBSTONE_STRING_KEY_VALUE: tombstone_string_key_value,
    }
    given = {key: value for key, value in keyed.items() if value is not None}
    if twice := sorted(given.keys() & (options or {}).keys()):
        raise InvalidError(
            f"table {table}: {twice[0]!r} is given both as an argument and as an option; give it "
            "once"
        )
    return {**(options or {}), **given}


def create_external(
    catalog: Catalog, name: str, wanted: NewExternalTable, *, exists_ok: bool = False
) -> PinnedTable:
    """Define an external table. Atomic: if several callers try, exactly one creates it.

    Raises as `Lake.create_external_table` does, with nothing created. Warns about possible
    problems.
    """
    near = catalog.store_for(name)
    try:
        given = checked_options(wanted.options)
        columns = arrow_schema(wanted.fields) if wanted.fields else None
        found = LocatedSource.at(wanted.format, wanted.location, given, near, columns)
        source = found.source.pin()
        made = external_schema(
            wanted.fields or fields_of(source.schema),
            wanted.primary_key,
            given,
            format_=found.format,
            location=found.location,
            on_read=not wanted.fields,
            comment=wanted.comment,
            time_millis=(time.time_ns() // 1_000_000),
        )
        check_ties(found.format, TableOptions.parse(given))
        _check_types(made[0], source.schema)
        definition, doubts = made
    except KeytideError as error:
        raise type(error)(f"table {name}: {error}") from error
    entry = catalog.create_external(name, definition, exists_ok=exists_ok)
    for doubt in doubts:
        warn_caller(f"table {entry.name}: {doubt}")
    return entry


def refresh_external(entry: PinnedTable) -> bool:
    """Update the columns from the source. Returns whether they changed.

    Columns that were given are checked against the source and do not change. Raises `InvalidError`
    if a key column or a given column no longer exists, and `ConflictError` if another refresh
    committed first.
    """
    schema = entry.schema
    if not is_read_on_demand(schema):
        pin_external(entry).check_columns()
        return False
    try:
        there = source_of(schema, entry.store, anew=True).pin().schema
        made, doubts = with_fields(schema, fields_of(there), (time.time_ns() // 1_000_000))
    except KeytideError as error:
        raise type(error)(f"table {entry.name}: {error}") from error
    if [(f.name, f.type) for f in made.fields] == [(f.name, f.type) for f in schema.fields]:
        return False
    if not created(entry.store, paths.schema_path(made.id), made.to_json()):
        raise ConflictError(
            f"table {entry.name}: its definition was refreshed by another process meanwhile; try "
            "again"
        )
    for doubt in doubts:
        warn_caller(f"table {entry.name}: {doubt}")
    return True


@dataclass(frozen=True)
class LocatedSource:
    """A source at a location that is valid for every process."""

    format: str
    location: str
    source: Source

    @classmethod
    def at(
        cls,
        format_: str,
        location: str,
        options: Mapping[str, str],
        near: Store,
        columns: pa.Schema | None = None,
    ) -> LocatedSource:
        """The source of a format at a user's location. Nothing is read yet.

        Only the format's own `options` are used, under their stored names. `near` is the location
        of the table that is created from it. Raises `InvalidError` for an unknown format or option,
        a location that contains a secret, and one that contains the new table or is inside of it.
        """
        refuse_secret(location)
        name, opening = format_.lower(), source_options(options)
        is_address = "://" in location or location.startswith("file:")
        if not is_named_in_catalog(name, options) and not is_address:
            location = os.path.abspath(os.path.expanduser(location))
        source = open_source(name, Place(location, opening, near, columns))
        # DROP TABLE deletes the table's own folder.
        own, theirs = f"{near.uri}/", f"{source.location.rstrip('/')}/"
        if theirs.startswith(own) or own.startswith(theirs):
            raise InvalidError(
                f"the table would be stored in {near.uri}, and its rows are in {source.location}: "
                "neither can contain the other; move the rows, or choose another name"
            )
        return cls(name, location, source)


def is_named_in_catalog(format_: str, options: Mapping[str, str]) -> bool:
    """Whether a location is a name in a catalog that the format's options open, not a path.

    Raises `InvalidError` for an unknown format.
    """
    opening = source_options(options)
    return any(option in opening for option in format_named(format_.lower()).named_by)


def check_ties(format_: str, options: TableOptions) -> None:
    """Refuse a definition that leaves it to chance which version of a key wins (rule R3)."""
    if format_named(format_).tells_order:
        return
    if options.on_tie == "last-write":
        raise InvalidError(
            f"'{keys.UPSERT_ON_TIE}' = 'last-write' requires a format that records the order of "
            f"commits, and {format_} does not; use 'tombstone-wins' or 'error'"
        )
    if not options.watermark_key and options.on_tie is None:
        raise InvalidError(
            f"{format_} does not record which row of a key is the latest: name the columns that "
            f"do in '{keys.WATERMARK_KEY}'. If every key has only one row, set "
            f"'{keys.UPSERT_ON_TIE}' to 'error'; if the larger row should win, set it to "
            "'tombstone-wins'"
        )


def _check_types(schema: TableSchema, there: pa.Schema) -> None:
    """Refuse columns that do not exist, or whose values cannot be converted to their type."""
    lacking = [name for name in schema.names if name not in there.names]
    if lacking:
        raise InvalidError(
            f"there is no column {lacking[0]!r} at {location_of(schema)}; columns: "
            f"{', '.join(there.names) or 'none'}"
        )
    for column in schema.fields:
        empty = pa.chunked_array([], there.field(column.name).type)
        try:
            convert_column(empty, column, location_of(schema))
        except InvalidError as error:
            raise InvalidError(f"{error} or list the columns with suitable types") from error


# -- adoption --------------------------------------------------------------------------------------


_BATCH_ROWS = 4 << 10, 1 << 20
_VALUE_BYTES = 32
"""Estimated size of a value before any data is read."""


@dataclass(frozen=True)
class NewAdoption:
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


def adopt(catalog: Catalog, name: str, wanted: NewAdoption) -> AdoptionResult:
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
        elsewhere = LocatedSource.at(wanted.format, wanted.location, opening, near)
        pinned = elsewhere.source.pin()
    except KeytideError as error:
        raise type(error)(f"table {name}: {error}") from error
    version = "" if pinned.version is None else f", version {pinned.version}"
    origin = f"{elsewhere.format} at {elsewhere.source.location}{version}"
    options = {**own, keys.key_of(keys.USER, "adopted-from"): origin}
    table = NewTable(
        pinned.schema, wanted.primary_key, wanted.partition_by, options, wanted.comment
    )

    def fill(transaction: Transaction) -> None:
        memory_bytes = transaction.view.options.read_memory_bytes
        fill_lowest_level(transaction, partial(_rows, pinned, memory_bytes), origin)

    written = catalog.create_filled(name, table, fill)
    return AdoptionResult(pinned.version, written.snapshot_id, written.rows, written.files)


def _rows(pinned: PinnedSource, memory_bytes: int) -> Iterator[pa.Table]:
    """All rows that are not deleted in the source, in order. Raises as `SourcePart.batches`."""
    names = pinned.schema.names
    least, most = _BATCH_ROWS
    rows_max = max(least, min(most, memory_bytes // 16 // (_VALUE_BYTES * max(1, len(names)))))

    parts = pinned.parts()
    for _, batch in read_in_order(
        parts, lambda place: parts[place].batches(names, None, rows_max), rows_max
    ):
        if batch.num_rows:
            yield pa.Table.from_batches([batch])
