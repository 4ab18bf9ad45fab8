"""Moves the rows by which each key is judged, from a table with a key index.

That is the current row of a key, or the row that deletes it. Late rows are compared with it. All
other stored rows are dead, and stay behind. A rescaling moves such rows to other buckets, a
conversion to the files of a table that merges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from keytide.base.row_kind import RowKind
from keytide.compaction.pile import piled
from keytide.format.arrow import to_arrow
from keytide.format.manifest import ManifestEntry
from keytide.merge.order import VALUE_KIND
from keytide.read.merged_versions import rows_in
from keytide.read.runs import StoredVersions
from keytide.read.sections import PlannedFile
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableState
from keytide.write.key_bucket import Bucket
from keytide.write.task import WriteTask, Written
from keytide.write.upsert import UpsertTask

__all__ = ["MoveKeysTask", "move_keys_tasks"]

_BATCH_ROWS = 1 << 20


def move_keys_tasks(
    state: TableState, anew: WriteTask, wanted: Callable[[bytes], bool]
) -> list[MoveKeysTask]:
    """Tasks that move the keys of some partitions to where `anew`, a task for stored rows, puts
    them.
    """
    there = UpsertTask.on(state)
    moved = sorted(bucket for bucket in there.entries if wanted(bucket[0]))
    return [MoveKeysTask(there, anew, bucket, number) for number, bucket in enumerate(moved)]


@dataclass(frozen=True)
class MoveKeysTask:
    """Moves the keys of one bucket. Picklable. `number` distinguishes the tasks of one change."""

    there: UpsertTask
    anew: WriteTask
    bucket: BucketId
    number: int

    @property
    def files(self) -> tuple[ManifestEntry, ...]:
        """The files that it reads."""
        return self.there.entries[self.bucket]

    def __call__(self) -> Written:
        """Write the rows again. Nothing is left behind after an error.

        Raises the errors of `found_bucket`, and `DataError` if the store fails.
        """
        rows = self._rows(self.there.bucket(self.bucket))
        size_bytes = self.anew.view.options.write_buffer_bytes
        return self.anew.feed(piled(rows, size_bytes), self.number)

    def _rows(self, on: Bucket) -> Iterator[pa.Table]:
        view = self.there.view
        stored = StoredVersions(view, self.bucket[0], tuple(view.schema.names))
        size_bytes, files = view.options.write_buffer_bytes, [*map(PlannedFile, self.files)]
        rows_max = max(1, min(_BATCH_ROWS, rows_in(size_bytes, files, view.schema.fields)))
        for name, rows in on.index.rows().items():
            dead = BitMap64(on.dead.vectors.get(name, ()))
            for kind, places in ((RowKind.INSERT, rows - dead), (RowKind.DELETE, rows & dead)):
                at = np.asarray(places.to_array()).astype(np.int64)
                file = PlannedFile(on.entries[name], has_kinds=False, places=at)
                for frame in stored.of_lone_files([file], rows_max) if len(at) else ():
                    moved = to_arrow(frame, view.schema.arrow_schema())
                    kinds = pa.array(np.full(frame.height, int(kind), np.int8))
                    yield moved.append_column(VALUE_KIND, kinds)
