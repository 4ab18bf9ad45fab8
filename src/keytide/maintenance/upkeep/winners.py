"""Moves the winning version of each key, from a table that merges into one with a key index.

It is a row or a delete. Late rows are compared with it. All other versions have no meaning any
more, and stay behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from keytide.compaction.compact import memory_of
from keytide.compaction.pile import piled
from keytide.format.arrow import to_arrow
from keytide.format.manifest import ManifestEntry
from keytide.merge.order import IS_ADD, VALUE_KIND
from keytide.read.merged_versions import MergedVersions
from keytide.read.plan import to_merge, vector_places
from keytide.read.sections import BucketPlan, PlannedFile, sections_of
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableState, TableView
from keytide.write.task import WriteTask, Written

__all__ = ["MoveWinnersTask", "move_winners_tasks"]


def move_winners_tasks(state: TableState, anew: WriteTask) -> list[MoveWinnersTask]:
    """Tasks that move the winners of all keys to where `anew`, a task for stored rows, puts
    them.
    """
    places = vector_places(state.vector_files, state.view)
    files: dict[BucketId, list[ManifestEntry]] = {}
    for entry in state.live.entries:
        files.setdefault((entry.partition, entry.bucket), []).append(entry)
    planned = {
        bucket: to_merge(entries, places) if places else [PlannedFile(e) for e in entries]
        for bucket, entries in files.items()
    }
    memory_bytes = memory_of(state.view, len(files))
    return [
        MoveWinnersTask(state.view, anew, plan, number, memory_bytes)
        for number, plan in enumerate(sections_of(planned, state.view))
    ]


@dataclass(frozen=True)
class MoveWinnersTask:
    """Moves the winners of one bucket. Picklable.

    `number` distinguishes the tasks of one conversion. Merging uses about `memory_bytes`, and
    writing uses 'write-buffer-size'.
    """

    view: TableView
    anew: WriteTask
    plan: BucketPlan
    number: int
    memory_bytes: int

    def __call__(self) -> Written:
        """Write the winners. Nothing is left behind after an error.

        Raises `DataError` if the store fails, and `InvalidError` for versions that cannot be
        merged.
        """
        size_bytes = self.anew.view.options.write_buffer_bytes
        return self.anew.feed(piled(self._rows(), size_bytes), self.number)

    def _rows(self) -> Iterator[pa.Table]:
        columns = (*self.view.schema.names, VALUE_KIND)
        schema = self.view.schema.arrow_schema().append(pa.field(VALUE_KIND, pa.int8()))
        versions = MergedVersions(self.view, columns)
        for window in versions.of(self.plan, self.memory_bytes):
            for frame in window:
                # If no row can be late, a delete has no effect.
                kept = frame if self.view.needs_tombstones else frame.filter(IS_ADD)
                if kept.height:
                    yield to_arrow(kept.select(columns), schema)
