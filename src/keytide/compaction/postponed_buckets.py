"""Postponed buckets: assigns buckets to rows that another engine wrote without one.

In a table with postponed buckets (`bucket = -2`), a partition gets its number of buckets when it is
first written. Keytide assigns buckets to rows immediately. Other engines may leave them in a
separate folder, which no reader uses, until a compaction assigns their buckets. They are then the
latest rows of their keys, in the order of the commits that wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.commit.committer import Committed
from keytide.commit.conflicts import Conflict
from keytide.commit.transaction import Transaction
from keytide.format import paths
from keytide.format.arrow import to_arrow
from keytide.format.data_file import VALUE_KIND
from keytide.format.manifest_entry import FileKind, ManifestEntry
from keytide.read.runs import StoredVersions
from keytide.read.sections import PlannedFile
from keytide.snapshot.live_files import LiveFiles
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.tasks import TaskRunner
from keytide.write.task import TaskResult, WriteTask

# -- assignment of buckets -------------------------------------------------------------------------


# How many rows are read, assigned to buckets and written at a time.
_BATCH_ROWS = 1 << 20


def postponed_files(live: LiveFiles) -> list[ManifestEntry]:
    """The files whose rows are in no bucket yet, in the order of their commits."""
    files = live.files
    return list(files.filter(files.column("_BUCKET") == paths.POSTPONE_BUCKET))


def place_postponed(
    table: StoredTable, view: TableView, runner: TaskRunner
) -> Committed | Conflict | None:
    """Assign buckets to all such rows, in one commit. None if there are none.

    `view` is the result of `writable_view`. A conflict says that another writer did it first.
    Raises `InvalidError` for rows that the table does not accept, and `DataError` if the store
    fails. Nothing is changed then.
    """
    with Transaction.begin(table, view) as transaction:
        files = postponed_files(transaction.state.live)
        if not files:
            transaction.abort()
            return None
        task = replace(transaction.task(), stored=None)
        partitions = dict.fromkeys(entry.partition for entry in files)
        tasks = [
            PlaceTask(task, number, tuple(e for e in files if e.partition == partition))
            for number, partition in enumerate(partitions)
        ]
        runner.each(tasks, transaction.collect)
        return transaction.commit_placed_rows()


@dataclass(frozen=True)
class PlaceTask:
    """Writes the rows of one partition's postponed files into buckets. Picklable."""

    task: WriteTask
    number: int
    files: tuple[ManifestEntry, ...]

    @property
    def view(self) -> TableView:
        """The table."""
        return self.task.view

    @property
    def stored_bytes(self) -> int:
        """The size of the files that it reads."""
        return sum(entry.file.file_size for entry in self.files)

    def __call__(self) -> TaskResult:
        """Write the rows. Nothing is left behind after an error. Raises like `WriteTask.feed`."""
        written = self.task.feed(self._rows(), self.number)
        gone = tuple(replace(entry, kind=FileKind.DELETE) for entry in self.files)
        return replace(written, entries=(*gone, *written.entries))

    def _rows(self) -> Iterator[pa.Table]:
        view = self.task.view
        stored = StoredVersions(view, self.files[0].partition, (*view.schema.names, VALUE_KIND))
        for entry in self.files:
            for batch in stored.of_run((PlannedFile(entry),), _BATCH_ROWS):
                # In the form that a writer receives, with kinds if these are in no column.
                table = to_arrow(batch.rows, view.schema.arrow_schema())
                if not view.options.rowkind_field:
                    kinds = batch.rows[VALUE_KIND].replace_strict(_SHORT, return_dtype=pl.String)
                    level = pl.CompatLevel.oldest()
                    table = table.append_column(ROW_KIND, kinds.to_arrow(compat_level=level))
                yield table


_SHORT: dict[int, str] = {int(kind): kind.short for kind in RowKind}
