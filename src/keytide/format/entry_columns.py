"""Manifest entries as columns, which is how many of them are read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl

from keytide.format.entry import DataFileMeta, FileKind, ManifestEntry
from keytide.format.stats import SimpleStats

__all__ = ["entries_of"]


def entries_of(columns: pl.DataFrame) -> list[ManifestEntry]:
    """The entries of a manifest whose members are these columns, as stored."""
    flat = columns.unnest("_FILE").unnest("_KEY_STATS", "_VALUE_STATS", separator=".")
    flat = flat.with_columns(pl.col("_CREATION_TIME").to_physical())
    with _without_collection():
        return list(map(_entry, *(flat[name].to_list() for name in _MEMBERS)))


_STATS = ("_MIN_VALUES", "_MAX_VALUES", "_NULL_COUNTS")
_MEMBERS = (
    "_KIND",
    "_PARTITION",
    "_BUCKET",
    "_TOTAL_BUCKETS",
    "_FILE_NAME",
    "_FILE_SIZE",
    "_ROW_COUNT",
    "_MIN_KEY",
    "_MAX_KEY",
    *(f"_KEY_STATS.{name}" for name in _STATS),
    *(f"_VALUE_STATS.{name}" for name in _STATS),
    "_MIN_SEQUENCE_NUMBER",
    "_MAX_SEQUENCE_NUMBER",
    "_SCHEMA_ID",
    "_LEVEL",
    "_EXTRA_FILES",
    "_CREATION_TIME",
    "_DELETE_ROW_COUNT",
    "_EMBEDDED_FILE_INDEX",
    "_FILE_SOURCE",
    "_VALUE_STATS_COLS",
    "_EXTERNAL_PATH",
    "_FIRST_ROW_ID",
    "_WRITE_COLS",
)


def _entry(
    kind: int,
    partition: bytes,
    bucket: int,
    total_buckets: int,
    file_name: str,
    file_size: int,
    row_count: int,
    min_key: bytes,
    max_key: bytes,
    key_low: bytes,
    key_high: bytes,
    key_nulls: list[int | None] | None,
    value_low: bytes,
    value_high: bytes,
    value_nulls: list[int | None] | None,
    min_sequence_number: int,
    max_sequence_number: int,
    schema_id: int,
    level: int,
    extra_files: list[str],
    creation_time: int | None,
    delete_row_count: int | None,
    embedded_file_index: bytes | None,
    file_source: int | None,
    value_stats_cols: list[str] | None,
    external_path: str | None,
    first_row_id: int | None,
    write_cols: list[str] | None,
) -> ManifestEntry:
    file = DataFileMeta(
        file_name,
        file_size,
        row_count,
        min_key,
        max_key,
        SimpleStats(key_low, key_high, _optional_tuple(key_nulls)),
        SimpleStats(value_low, value_high, _optional_tuple(value_nulls)),
        min_sequence_number,
        max_sequence_number,
        schema_id,
        level,
        tuple(extra_files),
        creation_time,
        delete_row_count,
        embedded_file_index,
        file_source,
        _optional_tuple(value_stats_cols),
        external_path,
        first_row_id,
        _optional_tuple(write_cols),
    )
    return ManifestEntry(_KINDS[kind], partition, bucket, total_buckets, file)


_KINDS = {int(kind): kind for kind in FileKind}


def _optional_tuple(found: list[Any] | None) -> tuple[Any, ...] | None:
    return None if found is None else tuple(found)


@contextmanager
def _without_collection() -> Iterator[None]:
    """A block that makes many objects, none of them in a circle: looking for circles doubles it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
