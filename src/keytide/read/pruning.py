"""Pruning: the files that may contain rows that match a condition, according to metadata.

In a section that must be merged, only predicates on key columns may drop single files. If a file
were dropped because of another column, older versions of its keys would come back (rule R17 of
docs/semantics.md).

Bloom filters prune the files that do not contain the values that a condition pins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.base.process import scratch, side_by_side
from keytide.errors import DataError
from keytide.format.bucket import bucket_ids
from keytide.format.cache import FILES
from keytide.format.file_index import (
    BLOOM_FILTER,
    ColumnIndexes,
    decode_file_index,
    has_hash,
    may_hold,
    value_hashes,
)
from keytide.format.manifest_entry import Entries, ManifestEntry
from keytide.format.paths import index_name_among
from keytide.format.schema import TableSchema
from keytide.merge.engines import engine_class
from keytide.options import TableOptions
from keytide.predicate.literals import POINTS_MAX, spellings
from keytide.predicate.predicate import (
    Predicate,
    bounds_tell_of,
    columns_of,
    conjunction,
    conjuncts,
    equal_values,
    may_match,
    row_filter,
)
from keytide.read.sections import BucketPlan, Section, decoded, key_bounds, value_bounds
from keytide.snapshot.state import TableView
from keytide.store import Store
from keytide.types import Field

# -- bloom filters ---------------------------------------------------------------------------------


# How many index files are read at a time. Each has some hundred kilobytes for a million rows.
_FILES_TOGETHER = 32


def matching_filters(
    files: Sequence[ManifestEntry], view: TableView, terms: Sequence[Predicate]
) -> list[bool]:
    """Whether each file may contain rows that match all terms, according to its filters.

    Reads index files. Raises `DataError`, which names the file, if one is missing or damaged.
    """
    kept = [True] * len(files)
    reads = view.options.reads_file_indexes
    indexed = [i for i, entry in enumerate(files) if reads and has_index(entry)]
    names = {name for term in terms for name in columns_of(term)} if indexed else set()
    # The columns with hashes of the only values that they can have.
    pinned = []
    for field in view.schema.select([name for name in view.schema.names if name in names]):
        values = equal_values(terms, field.name) if has_hash(field.type) else None
        if values is None or None in values:  # filters do not contain NULL
            continue
        spelt = spellings(values, field)
        if spelt is not None:
            pinned.append((field, value_hashes(spelt, field.type)))
    if not pinned:
        return kept
    for start in range(0, len(indexed), _FILES_TOGETHER):
        places = indexed[start : start + _FILES_TOGETHER]
        found = _indexes(view, [files[i] for i in places])
        for i, indexes in zip(places, found, strict=True):
            kept[i] = all(_may_hold(*each, files[i], indexes, view) for each in pinned)
    return kept


def _may_hold(
    field: Field,
    hashes: npt.NDArray[Any],
    entry: ManifestEntry,
    indexes: ColumnIndexes,
    view: TableView,
) -> bool:
    schema = view.schemas[entry.file.schema_id]
    old = next((f for f in schema.fields if f.id == field.id), None)
    # A value of another type has another hash.
    if old is None or old.type.with_nullable(True) != field.type.with_nullable(True):
        return True
    filter_bytes = indexes.get(old.name, {}).get(BLOOM_FILTER)
    try:
        return filter_bytes is None or may_hold(filter_bytes, hashes)
    except ValueError as error:
        raise DataError(
            f"table {view.name}: the index of data file {entry.file.file_name} is damaged: {error}"
        ) from error


def stored_indexes(view: TableView, entry: ManifestEntry) -> ColumnIndexes:
    """The indexes of a file, by column. Raises the same errors as `matching_filters`."""
    return _indexes(view, [entry])[0] if has_index(entry) else {}


# -- locations of indexes --------------------------------------------------------------------------


def has_index(entry: ManifestEntry) -> bool:
    """Whether a file has indexes of columns, such as bloom filters."""
    file = entry.file
    return file.embedded_file_index is not None or index_name_among(file.extra_files) is not None


def _indexes(view: TableView, files: Sequence[ManifestEntry]) -> list[ColumnIndexes]:
    found: list[ColumnIndexes | None] = []
    for entry in files:
        embedded = entry.file.embedded_file_index
        if embedded is not None:
            found.append(decode_file_index(embedded, f"of {entry.file.file_name}"))
        else:
            store, path = _index_file(view, entry)
            found.append(FILES.find(store.uri_of(path)))
    absent = [i for i, indexes in enumerate(found) if indexes is None]
    read = side_by_side([partial(_read, view, files[i]) for i in absent], _FILES_TOGETHER)
    for i, indexes in zip(absent, read, strict=True):
        found[i] = indexes
    return [indexes for indexes in found if indexes is not None]


def _read(view: TableView, entry: ManifestEntry) -> ColumnIndexes:
    store, path = _index_file(view, entry)
    uri, data = store.uri_of(path), store.read(path)
    found = decode_file_index(data, uri)
    FILES.keep(uri, found, len(data), view.options.lookup_cache_bytes_max)
    return found


def _index_file(view: TableView, entry: ManifestEntry) -> tuple[Store, str]:
    store, path = view.data_file(entry)
    name = index_name_among(entry.file.extra_files)
    assert name is not None
    return store, f"{path.removesuffix(entry.file.file_name)}{name}"


# -- statistics ------------------------------------------------------------------------------------


_PLACE = scratch("place")


def matching_partitions(files: Entries, schema: TableSchema, terms: Sequence[Predicate]) -> Entries:
    """The files in partitions whose values match the terms about partition columns."""
    fields = schema.partition_fields()
    names = {f.name for f in fields}
    about = conjunction(t for t in terms if columns_of(t) and columns_of(t) <= names)
    if about is None or not files:
        return files
    partitions = files.column("_PARTITION")
    distinct = partitions.unique()
    values = decoded(distinct.to_list(), fields).with_columns(distinct.alias(_PLACE))
    kept = values.filter(row_filter(about, fields))[_PLACE]
    return files.filter(partitions.is_in(kept.to_list()))


def matching_buckets(
    files: Entries,
    schema: TableSchema,
    options: TableOptions,
    terms: Sequence[Predicate],
) -> Entries:
    """The files in buckets that can contain the keys that the terms pin."""
    fields = schema.select(options.bucket_key or schema.trimmed_primary_keys)
    if (files.column("_TOTAL_BUCKETS") <= 1).all():
        return files  # every key is in the only bucket
    columns = pinned_columns(fields, terms)
    if not fields or not files or columns is None:
        return files
    totals, buckets = files.column("_TOTAL_BUCKETS"), files.column("_BUCKET")
    kept = totals <= 0
    for total in totals.filter(~kept).unique():
        ids = bucket_ids(columns, [f.type for f in fields], total, options.bucket_function)
        kept |= (totals == total) & buckets.is_in(np.unique(ids).tolist())
    return files.filter(kept)


def pinned_columns(fields: Sequence[Field], terms: Sequence[Predicate]) -> list[pa.Array] | None:
    """All combinations of values that the columns can have if all terms match, in all their forms.

    None if a column is not pinned, or if there are too many combinations.
    """
    pinned = [spellings(equal_values(terms, f.name), f) for f in fields]
    columns = [values for values in pinned if values is not None]
    count = math.prod(len(column) for column in columns)
    if len(columns) < len(pinned) or count > POINTS_MAX:
        return None
    if not count:
        return [column.slice(0, 0) for column in columns]
    if count == 1:
        return columns
    combined, step = [], count
    for column in columns:  # keys can have more columns than NumPy arrays can have dimensions
        step //= len(column)
        combined.append(column.take(pa.array(np.arange(count) // step % len(column))))
    return combined


def matching_keys(files: Entries, view: TableView, terms: Sequence[Predicate]) -> Entries:
    """The files whose key ranges and filters may contain keys that match the terms about the
    key.
    """
    fields = view.schema.trimmed_primary_key_fields()
    names = {f.name for f in fields}
    about = [t for t in terms if columns_of(t) and columns_of(t) <= names]
    predicate = conjunction(about)
    if predicate is None or not files:
        return files
    bounds = key_bounds(files, fields)
    possible = bounds.with_columns(may_match(predicate, fields).alias("kept"))["kept"]
    files = files.filter(possible.fill_null(value=False))
    return files.filter(pl.Series(matching_filters(files, view, about), dtype=pl.Boolean))


def matching_statistics(
    buckets: list[BucketPlan], view: TableView, terms: Sequence[Predicate]
) -> list[BucketPlan]:
    """The buckets, with only those sections in which a row may match the terms.

    Statistics decide, and bloom filters if there are any. Terms about the key have already been
    applied by `matching_keys`.
    """
    key = frozenset(view.schema.trimmed_primary_keys)
    about = [t for t in terms if columns_of(t) and not columns_of(t) <= key]
    predicate = conjunction(about)
    if predicate is None or not buckets:
        return buckets
    files = [file.entry for bucket in buckets for file in bucket.files]
    fields = tuple(f for f in view.schema.fields if f.name in columns_of(predicate))
    bounds = value_bounds(files, fields, view.schemas)
    possible = bounds.with_columns(may_match(predicate, fields).alias("kept"))["kept"]
    files = list(compress(files, possible))
    # Both are about single files. A section that is merged is kept or dropped as a whole.
    kept_files = set(map(id, compress(files, matching_filters(files, view, about))))
    is_put_together = not engine_class(view.options).picks_a_version
    pruned = []
    for bucket in buckets:
        sections = tuple(
            section
            for section in bucket.sections
            # A row may be merged from files that do not match individually.
            if (section.needs_merge and is_put_together)
            or any(id(file.entry) in kept_files for file in section.files)
        )
        if sections:
            pruned.append(replace(bucket, sections=sections))
    return pruned


def asked_of_files(
    predicate: Predicate | None, view: TableView, sections: Sequence[Section]
) -> tuple[Predicate, ...]:
    """The terms that can skip files of such sections. All terms are applied to rows."""
    partition = frozenset(view.schema.partition_keys)
    key = partition | frozenset(view.schema.primary_keys)
    is_put_together = view.kind.keeps_versions and not engine_class(view.options).picks_a_version
    is_all_merged = bool(sections) and all(section.needs_merge for section in sections)
    about_key_alone = is_put_together and is_all_merged
    asked = []
    for term in conjuncts(predicate):
        columns = columns_of(term)
        if view.defaults(columns) or (about_key_alone and not columns <= key):
            continue
        if columns <= partition or bounds_tell_of(term):
            asked.append(term)
    return tuple(asked)
