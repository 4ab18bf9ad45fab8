"""Looking up what a bucket holds for some keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import polars as pl

from keytide.format.data_file import VALUE_KIND
from keytide.table.conditions.predicate import Comparison, Predicate, conjunction
from keytide.table.read.task import ReadTask

__all__ = ["key_range", "newest_versions"]

# Beside a write, which holds its rows already: less than 'read.memory'.
_MEMORY_BYTES = 256 << 20


def newest_versions(
    task: ReadTask, keys: pl.DataFrame, columns: Sequence[str]
) -> Iterator[pl.DataFrame]:
    """The merged version of each key that there is, deletions included.

    `keys` has the key columns only, each key once. Frames hold `columns` and `_VALUE_KIND`, in
    bounded memory.
    """
    names = keys.columns
    # The range prunes files; which keys are really there is for the join to say.
    task = replace(task, columns=tuple(columns), predicate=key_range(keys))
    for frame in task.outcomes(_MEMORY_BYTES):
        found = frame.join(keys, on=names, how="semi", nulls_equal=True)
        yield found.select(*columns, VALUE_KIND)


def key_range(keys: pl.DataFrame) -> Predicate | None:
    """The range of the first key column, if every key has a value there."""
    first = keys.to_series(0)
    if not len(first) or first.null_count():
        return None
    ends = first.sort()[[0, -1]]  # as keys are sorted, NaN last
    if ends.dtype == pl.Datetime:
        ends = ends.to_physical()  # Python's datetime has no nanoseconds
    low, high = ends
    name = first.name
    return conjunction([Comparison(name, ">=", low), Comparison(name, "<=", high)])
