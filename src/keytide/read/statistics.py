"""The statistics of data files in a manifest, as frames with one row for each file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
import pyarrow as pa

from keytide.base.process import scratch
from keytide.format.arrow import polars_schema
from keytide.format.binary_row import decode_rows
from keytide.format.entry_columns import Entries
from keytide.format.manifest import ManifestEntry
from keytide.format.schema import TableSchema
from keytide.types import AtomicType, DataType, Field
from keytide.types.logical import holds_all

__all__ = [
    "arity",
    "columns_without_nulls",
    "decoded",
    "key_bounds",
    "value_bounds",
    "with_unknowns",
]

_PLACE = scratch("place")


def decoded(rows: Sequence[bytes], fields: Sequence[Field]) -> pl.DataFrame:
    """Binary rows as a frame with the columns `fields`."""
    arrays = decode_rows(rows, [f.type for f in fields])
    frame = pl.from_arrow(pa.table(arrays, names=[f.name for f in fields]))
    assert isinstance(frame, pl.DataFrame)
    return frame


def key_bounds(files: Entries, fields: Sequence[Field]) -> pl.DataFrame:
    """The bounds of each key column: the first from the exact ends of the file, the rest from
    statistics.
    """
    first = fields[0]
    stored = [*files.column("_MIN_KEY").to_list(), *files.column("_MAX_KEY").to_list()]
    ends = decoded(stored, fields)[first.name]
    low, high = ends[: len(files)], ends[len(files) :]
    if low.dtype.is_float():  # the ends of a file that sorts NaN first say nothing
        says_nothing = (low > high).fill_null(value=False)
        low, high = low.set(says_nothing, None), high.set(says_nothing, None)
    columns = {f"{first.name}.min": low, f"{first.name}.max": high}
    if len(fields) > 1:
        least = files.column("_KEY_STATS._MIN_VALUES").to_list()
        # Some writers store no key statistics, as a row without fields.
        if all(arity(row) == len(fields) for row in least):
            stats_lows = decoded(least, fields)
            stats_highs = decoded(files.column("_KEY_STATS._MAX_VALUES").to_list(), fields)
            for f in fields[1:]:
                columns[f"{f.name}.min"] = stats_lows[f.name]
                columns[f"{f.name}.max"] = stats_highs[f.name]
    return with_unknowns(pl.DataFrame(columns), fields, files.column("_ROW_COUNT").to_list())


def value_bounds(
    files: Sequence[ManifestEntry],
    fields: Sequence[Field],
    schemas: Mapping[int, TableSchema],
) -> pl.DataFrame:
    """The statistics of columns, one row for each file in the given order.

    `<column>.min`, `.max` and `.nulls` are NULL if unknown. `rows` is the number of rows. Columns
    are matched by field id. If a type was changed, bounds are kept unless the other type may order
    values differently.
    """
    # Files with the same schema and columns are decoded together.
    groups: dict[tuple[int, tuple[str, ...] | None], list[int]] = {}
    for index, entry in enumerate(files):
        groups.setdefault((entry.file.schema_id, entry.file.value_stats_cols), []).append(index)
    parts = []
    for (schema_id, columns), indexes in groups.items():
        group = [files[i] for i in indexes]
        bounds = _group_bounds(group, fields, schemas[schema_id], columns)
        parts.append(bounds.with_columns(pl.Series(_PLACE, indexes, pl.Int64)))
    return pl.concat(parts, how="diagonal_relaxed").sort(_PLACE)


def columns_without_nulls(
    files: Sequence[ManifestEntry],
    fields: Sequence[Field],
    schemas: Mapping[int, TableSchema],
) -> frozenset[str]:
    """The columns that have no NULL in any of the files, according to statistics.

    Bounds must be known too: some writers count no NULLs if they did not look at the values.
    """
    if not files:
        return frozenset()
    known = value_bounds(files, fields, schemas)
    return frozenset(
        f.name
        for f in fields
        if (known[f"{f.name}.nulls"] == 0).all(ignore_nulls=False)
        and not known[f"{f.name}.min"].has_nulls()
    )


def _group_bounds(
    files: Sequence[ManifestEntry],
    fields: Sequence[Field],
    file_schema: TableSchema,
    columns: tuple[str, ...] | None,
) -> pl.DataFrame:
    names = file_schema.names if columns is None else columns
    stored = [file_schema.by_name[name] for name in names if name in file_schema.by_name]
    places = {old.id: place for place, old in enumerate(stored)}
    rows = [entry.file.row_count for entry in files]
    # A row with another number of fields cannot be matched with columns, so nothing is known.
    usable = all(arity(e.file.value_stats.min_values) == len(stored) for e in files)
    found: dict[str, pl.Series] = {}
    types = polars_schema(fields)
    if usable and stored:
        lows = decoded([e.file.value_stats.min_values for e in files], stored)
        highs = decoded([e.file.value_stats.max_values for e in files], stored)
        for new in fields:
            position = places.get(new.id)
            if position is None or not _keeps_order(stored[position].type, new.type):
                continue
            old, target = stored[position].name, types[new.name]
            found[f"{new.name}.min"] = lows[old].cast(target)
            found[f"{new.name}.max"] = highs[old].cast(target)
            counts = [_null_count(entry, position) for entry in files]
            found[f"{new.name}.nulls"] = pl.Series(counts, dtype=pl.Int64)
    return with_unknowns(pl.DataFrame(found), fields, rows)


def _keeps_order(old: DataType, new: DataType) -> bool:
    """Whether bounds of the old type are also bounds of the new one."""
    if isinstance(old, AtomicType) and isinstance(new, AtomicType) and holds_all(old, new):
        return True
    return old.with_nullable(True) == new.with_nullable(True)


def _null_count(entry: ManifestEntry, position: int) -> int | None:
    counts = entry.file.value_stats.null_counts
    return counts[position] if counts is not None and position < len(counts) else None


def with_unknowns(
    bounds: pl.DataFrame, fields: Sequence[Field], rows: Sequence[int]
) -> pl.DataFrame:
    """Bounds as `value_bounds` returns them, completed with NULL where nothing is known."""
    types = polars_schema(fields)
    missing = [
        pl.lit(None, dtype=pl.Int64 if part == "nulls" else types[f.name]).alias(f"{f.name}.{part}")
        for f in fields
        for part in ("min", "max", "nulls")
        if f"{f.name}.{part}" not in bounds.columns
    ]
    counted = pl.DataFrame({"rows": pl.Series(rows, dtype=pl.Int64)})
    return pl.concat([counted, bounds], how="horizontal").with_columns(missing)


def arity(row: bytes) -> int:
    """The number of columns in a binary row."""
    return int.from_bytes(row[:4], "big")
