"""Rescaling of tables with an index of keys: the row by which each key is judged moves.

That is the current row of a key, or the one that deletes it, by which late rows are judged. All
other stored rows are dead, and stay behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from keytide.format.arrow import to_arrow
from keytide.format.manifest import ManifestEntry
from keytide.merge.order import VALUE_KIND
from keytide.row_kind import RowKind
from keytide.table.read.runs import StoredVersions
from keytide.table.read.sections import PlannedFile
from keytide.table.state.live_files import BucketId
from keytide.table.state.state import TableState
from keytide.table.write.bucket_writer import SequenceBase
from keytide.table.write.input_rows import Rows
from keytide.table.write.key_bucket import Bucket, by_name
from keytide.table.write.layout import Placing
from keytide.table.write.task import WriteTask, Written
from keytide.table.write.upsert import UpsertTask

__all__ = ["MoveKeysTask", "move_keys_tasks"]

_BATCH_ROWS = 1 << 20


def move_keys_tasks(state: TableState, partitions: Set[bytes]) -> list[MoveKeysTask]:
    """What moves the keys of some partitions to the buckets where the table has them."""
    there, anew = UpsertTask.on(state), _MovedRows.anew(state).of_statement()
    moved = sorted(bucket for bucket in there.entries if bucket[0] in partitions)
    return [MoveKeysTask(there, anew, bucket, number) for number, bucket in enumerate(moved)]


@dataclass(frozen=True)
class MoveKeysTask:
    """Moves the keys of one bucket. Pickles. `number` tells tasks of one rescaling apart."""

    there: UpsertTask
    anew: WriteTask
    bucket: BucketId
    number: int

    @property
    def files(self) -> tuple[ManifestEntry, ...]:
        """The files that it reads."""
        return self.there.entries[self.bucket]

    def __call__(self) -> Written:
        """Write the rows again; nothing is left behind after an error.

        Raises what `found_bucket` raises, and `DataError` when the store refuses.
        """
        return self.anew.feed(self._rows(self.there.bucket(self.bucket)), self.number)

    def _rows(self, on: Bucket) -> Iterator[pa.Table]:
        view = self.there.view
        stored = StoredVersions(view, self.bucket[0], tuple(view.schema.names))
        every = on.index.every()
        for name, positions in by_name(every.files, every.positions, on.index.names()).items():
            is_dead = np.isin(positions, on.dead.of(name))
            for kind, places in (
                (RowKind.INSERT, positions[~is_dead]),
                (RowKind.DELETE, positions[is_dead]),
            ):
                file = PlannedFile(on.entries[name], has_kinds=False, places=np.sort(places))
                for frame in stored.of_lone_files([file], _BATCH_ROWS) if len(places) else ():
                    rows = to_arrow(frame, view.schema.arrow_schema())
                    kinds = pa.array(np.full(frame.height, int(kind), np.int8))
                    yield rows.append_column(VALUE_KIND, kinds)


@dataclass(frozen=True)
class _MovedRows(UpsertTask):
    """Takes rows as they are stored, each with its `_VALUE_KIND`: nothing is filled in or asked."""

    def _write(
        self, run: pa.Table, base: SequenceBase, placing: Placing, before: Iterable[Written]
    ) -> Written:
        """Write rows bucket by bucket."""
        rows = Rows(run.drop_columns([VALUE_KIND]), run.column(VALUE_KIND))
        return self._placed(rows, base, placing, before)
