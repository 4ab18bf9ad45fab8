"""Looking up what a bucket holds for some keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import polars as pl

from keytide.format.data_file import VALUE_KIND
from keytide.table.read.key_conditions import key_range
from keytide.table.read.task import ReadTask

__all__ = ["newest_versions"]

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
