"""Looks up the versions of keys in a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import polars as pl

from keytide.base.value_text import held_by_python
from keytide.format.data_file import VALUE_KIND
from keytide.predicate.predicate import Comparison, Predicate, conjunction
from keytide.read.task import ReadTask

__all__ = ["key_range", "newest_versions"]

# Less than 'read.memory', because a write, which already holds its rows, uses this.
_MEMORY_BYTES = 256 << 20


def newest_versions(
    task: ReadTask, keys: pl.DataFrame, columns: Sequence[str]
) -> Iterator[pl.DataFrame]:
    """The merged version of each existing key, including deletes.

    `keys` has only the key columns, each key once. The frames contain `columns` and `_VALUE_KIND`,
    in bounded memory.
    """
    names = keys.columns
    # The range prunes files. The join finds the keys that really exist.
    task = replace(task, columns=tuple(columns), predicate=key_range(keys))
    for frame in task.outcomes(_MEMORY_BYTES):
        found = frame.join(keys, on=names, how="semi", nulls_equal=True)
        yield found.select(*columns, VALUE_KIND)


def key_range(keys: pl.DataFrame) -> Predicate | None:
    """The range of the first key column.

    None if a key has NULL there, or a date that Python does not have, as no condition can name it.
    """
    first = keys.to_series(0)
    if not len(first) or first.null_count():
        return None
    ends = first.sort()[[0, -1]]  # in the order of keys, NaN last
    if ends.dtype == pl.Datetime:
        ends = ends.to_physical()  # Python's datetime has no nanoseconds
    if held_by_python(ends.to_frame()).dtypes != [ends.dtype]:
        return None
    low, high = ends
    name = first.name
    return conjunction([Comparison(name, ">=", low), Comparison(name, "<=", high)])
