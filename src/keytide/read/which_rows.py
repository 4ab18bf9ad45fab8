"""Which stored rows of a table with a key index a scan shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keytide.errors import DataError
from keytide.predicate.predicate import Predicate
from keytide.read.plan import ScanPlan, plan_scan
from keytide.read.sections import BucketPlan, PlannedFile, Section
from keytide.snapshot.key_index import (
    key_files_by_bucket,
    load_key_index,
    why_not_covered,
)
from keytide.snapshot.live_files import BucketId, DeadRows, load_dead_rows, vector_files_by_bucket
from keytide.snapshot.state import TableState

__all__ = ["WhichRows", "plan_rows"]


class WhichRows(Enum):
    """Which of the stored rows are shown."""

    CURRENT = auto()
    """The current row of each key that is not deleted, as for any table."""
    LAST = auto()
    """The row by which each key is judged: the current row, or the row that deletes it."""
    DELETES = auto()
    """Those last rows that delete their keys."""
    STORED = auto()
    """Every row."""


def plan_rows(
    state: TableState, which: WhichRows, predicate: Predicate | None, keys: pa.Table | None
) -> ScanPlan:
    """Plan a scan like `plan_scan`.

    Raises `DataError` for the last rows of keys if the key index does not match the existing files.
    """
    if which is WhichRows.CURRENT:
        return plan_scan(state, predicate, keys)
    plan = plan_scan(state.as_stored, predicate)
    if which is WhichRows.STORED:
        return plan
    told = _deletes if which is WhichRows.DELETES else _named
    return replace(plan, buckets=tuple(_told_rows(b, state, told) for b in plan.buckets))


_Places: TypeAlias = Mapping[str, npt.NDArray[np.int64]]


def _told_rows(
    bucket: BucketPlan, state: TableState, told: Callable[[TableState, BucketId], _Places]
) -> BucketPlan:
    """A bucket, limited to the given rows of its files."""
    places = told(state, (bucket.partition, bucket.bucket))
    files = (file for file in bucket.files if file.meta.file_name in places)
    named = (replace(file, places=places[file.meta.file_name]) for file in files)
    return replace(bucket, sections=tuple(map(_alone, named)))


def _alone(file: PlannedFile) -> Section:
    return Section(((file,),))


def _deletes(state: TableState, bucket: BucketId) -> _Places:
    """The positions in the index of rows that are dead: no later row exists."""
    dead = _dead_rows(state, bucket)
    found = {
        name: np.intersect1d(places, dead.of(name), assume_unique=True)
        for name, places in _named(state, bucket).items()
    }
    return {name: places for name, places in found.items() if len(places)}


def _named(state: TableState, bucket: BucketId) -> _Places:
    """The positions, ascending, that the index of a bucket has in each of its files."""
    view = state.view
    head = key_files_by_bucket(state.key_files).get(bucket)
    reason: str | None = "there is no index"
    if head is not None:
        index = load_key_index(view.store, head, view.options.lookup_cache_bytes_max)
        reason = why_not_covered(index.head, _rows(state, bucket), _dead(state, bucket))
    if head is None or reason is not None:
        raise DataError(
            f"table {view.name}: the key index of bucket {bucket[1]} cannot find its last rows: "
            f"{reason}; write a row to the bucket, which rebuilds the index, or read all stored "
            "rows"
        )
    rows = {name: found for name, found in index.rows().items() if found}
    return {name: np.asarray(at.to_array()).astype(np.int64) for name, at in rows.items()}


def _rows(state: TableState, bucket: BucketId) -> dict[str, int]:
    entries = (e for e in state.live.entries if (e.partition, e.bucket) == bucket)
    return {entry.file.file_name: entry.file.row_count for entry in entries}


def _dead(state: TableState, bucket: BucketId) -> dict[str, int]:
    dead = _dead_rows(state, bucket)
    return {name: dead.count(name) for name in dead.vectors}


def _dead_rows(state: TableState, bucket: BucketId) -> DeadRows:
    files = vector_files_by_bucket(state.vector_files).get(bucket, ())
    return load_dead_rows(state.view.store, files, state.view.name)
