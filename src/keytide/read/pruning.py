"""Which files may contain rows that match a condition, according to metadata.

In a section that must be merged, only predicates on key columns may drop single files. If a file
were dropped because of another column, older versions of its keys would come back (rule R17 of
docs/semantics.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.process import scratch
from keytide.format.bucket import bucket_ids
from keytide.format.entry_columns import Entries
from keytide.format.schema import TableSchema
from keytide.merge.engines import engine_class
from keytide.options import TableOptions
from keytide.predicate.matching import bounds_tell_of, may_match, row_filter
from keytide.predicate.predicate import (
    Predicate,
    columns_of,
    conjunction,
    conjuncts,
    equal_values,
)
from keytide.predicate.values.literals import POINTS_MAX, spellings
from keytide.read.indexes import matching_filters
from keytide.read.sections import BucketPlan, Section
from keytide.read.statistics import decoded, key_bounds, value_bounds
from keytide.snapshot.state import TableView
from keytide.types import Field

__all__ = [
    "asked_of_files",
    "matching_buckets",
    "matching_keys",
    "matching_partitions",
    "matching_statistics",
    "pinned_columns",
]

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
    known = [values for values in pinned if values is not None]
    return _combined(known) if len(known) == len(pinned) else None


def _combined(columns: Sequence[pa.Array]) -> list[pa.Array] | None:
    """All combinations of the columns' values. None if there are too many."""
    count = math.prod(len(column) for column in columns)
    if count > POINTS_MAX:
        return None
    if not count:
        return [column.slice(0, 0) for column in columns]
    if count == 1:
        return [*columns]
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

    def survives(section: Section) -> bool:
        if section.needs_merge and is_put_together:
            return True  # a row may be merged from files that do not match individually
        return any(id(file.entry) in kept_files for file in section.files)

    pruned = [
        replace(bucket, sections=tuple(s for s in bucket.sections if survives(s)))
        for bucket in buckets
    ]
    return [bucket for bucket in pruned if bucket.sections]


def asked_of_files(
    predicate: Predicate | None, view: TableView, sections: Sequence[Section]
) -> tuple[Predicate, ...]:
    """The terms that can skip files of such sections. All terms are applied to rows."""
    partition = frozenset(view.schema.partition_keys)
    key = partition | frozenset(view.schema.primary_keys)
    is_put_together = view.kind.keeps_versions and not engine_class(view.options).picks_a_version
    is_all_merged = bool(sections) and all(section.needs_merge for section in sections)
    about_key_alone = is_put_together and is_all_merged

    def tells(term: Predicate) -> bool:
        columns = columns_of(term)
        if view.defaults(columns) or (about_key_alone and not columns <= key):
            return False
        return columns <= partition or bounds_tell_of(term)

    return tuple(term for term in conjuncts(predicate) if tells(term))
