"""The difference between two snapshots of a table with a key index: rows that died, and new rows.

A compaction rewrites rows unchanged, and emits nothing. If one of the snapshots is of a table that
merges, because there was a conversion in between, all rows of both are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from keytide.changes.kinds import with_shown_kind
from keytide.changes.lanes import Lane
from keytide.changes.stored_rows import FilesTask, ImagesTask
from keytide.format.arrow import polars_schema
from keytide.merge.difference import difference
from keytide.read.merged_versions import rows_in
from keytide.read.sections import PlannedFile
from keytide.snapshot.state import TableView

__all__ = ["IndexedDiffTask"]

# Compared rows are in memory as they are read, and again when they are sorted.
_TIMES_HELD = 2


@dataclass(frozen=True)
class IndexedDiffTask:
    """The changes of one lane of buckets between two snapshots. Picklable.

    `gone` returns the rows that only the first snapshot shows at their position, and `came` those
    that only the second one shows. Both may include rows that also exist in the other. Rows differ
    if their `compared` columns do. None: any column.
    """

    view: TableView
    gone: tuple[FilesTask | ImagesTask, ...]
    came: tuple[FilesTask | ImagesTask, ...]
    lane: Lane
    compared: frozenset[str] | None = None

    @property
    def files(self) -> list[PlannedFile]:
        """What is read, each file once for each snapshot."""
        return [file for task in (*self.gone, *self.came) for file in task.files]

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The changes, in key order as far as they fit in memory.

        A pair of -U and +U is in one frame.
        """
        names, key = self.view.schema.names, self.view.schema.primary_keys
        rows = sum(task.rows for task in (*self.gone, *self.came))
        rows_max = rows_in(memory_bytes, self.files, self.view.schema.fields)
        parts = -(-rows * _TIMES_HELD // max(1, rows_max)) or 1  # each part reads all files
        for part in range(parts):
            then, now = (self._rows(tasks, part, parts, memory_bytes) for tasks in self._sides)
            told = difference(then, now, key, self.compared)
            if told.height:
                yield with_shown_kind(told, names)

    @property
    def _sides(self) -> tuple[tuple[FilesTask | ImagesTask, ...], ...]:
        return self.gone, self.came

    def _rows(
        self, tasks: tuple[FilesTask | ImagesTask, ...], part: int, parts: int, memory_bytes: int
    ) -> pl.DataFrame:
        """The rows whose keys are in a part."""
        names, key = self.view.schema.names, self.view.schema.primary_keys
        is_in = pl.struct(key).hash() % parts == part
        rows = (frame for task in tasks for frame in task.outcomes(memory_bytes))
        found = [(frame.filter(is_in) if parts > 1 else frame).select(names) for frame in rows]
        return pl.concat([self._none(), *found])

    def _none(self) -> pl.DataFrame:
        """An empty frame with the columns of the tasks."""
        return pl.DataFrame(schema=polars_schema(self.view.schema.fields))
