"""A scan that counts its work: opened files, read and merged versions, rows, and time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from threading import Lock
from typing import Any

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.errors import DataError
from keytide.format.data_file import FileReader
from keytide.read.merged_versions import Window
from keytide.read.plan import FunnelStage
from keytide.read.scan import Explanation, FramesTask, ReadTask, RowSource, Scan
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import DataFiles, TableView
from keytide.store import Store
from keytide.types import Field

# -- measured scans --------------------------------------------------------------------------------


class Tally:
    """The numbers of one scan, counted while it is read. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.reads = 0
        self.seconds = 0.0
        self.rows = 0
        self.versions = 0
        self.merged = 0
        self.buckets: set[BucketId] = set()
        self.paths: set[str] = set()

    def began(self) -> None:
        """The rows are requested."""
        with self._lock:
            self.reads += 1

    def gave(self, rows: int, seconds: float) -> None:
        """Rows were returned. They took this many seconds to produce."""
        with self._lock:
            self.rows += rows
            self.seconds += seconds

    def entered(self, bucket: BucketId) -> None:
        """A bucket is read."""
        with self._lock:
            self.buckets.add(bucket)

    def opened(self, path: str) -> None:
        """A data file is opened."""
        with self._lock:
            self.paths.add(path)

    def merged_window(self, window: Window) -> None:
        """The versions of a range of keys were read and merged."""
        with self._lock:
            self.versions += sum(frame.height for frame in window.runs)
            self.merged += sum(frame.height for frame in window.merged)


def timed(batches: Iterator[pa.RecordBatch], tally: Tally) -> Iterator[pa.RecordBatch]:
    """The same batches. The tally counts their rows, and the time to produce them."""
    tally.began()
    while True:
        begun = time.perf_counter()
        batch = next(batches, None)
        tally.gave(0 if batch is None else batch.num_rows, time.perf_counter() - begun)
        if batch is None:
            return
        yield batch


@dataclass(frozen=True)
class ScanMeasure:
    """The cost of reading a scan. If the rows were requested several times, numbers are sums.

    - `planned` is what metadata alone decided, in `plan_seconds`.
    - `buckets` and `files` count what was read of the plan. A query that has enough rows stops
      early.
    - `file_bytes` and `stored_rows` are the totals of these files, including columns and row groups
      that are not read.
    - `versions` were read from the files. `merged` are the results, one per key, including deletes.
      `rows` were returned to the query.
    """

    planned: Explanation
    plan_seconds: float
    reads: int
    seconds: float
    buckets: int
    files: int
    file_bytes: int
    stored_rows: int
    versions: int
    merged: int
    rows: int

    @property
    def pruned(self) -> tuple[tuple[str, int], ...]:
        """How many files each kind of pruning left out, without those that left out none."""
        stages = self.planned.funnel.stages
        steps = pairwise(stages)
        left_out = ((after.stage, before.files - after.files) for before, after in steps)
        return tuple((stage, files) for stage, files in left_out if files)

    @property
    def there(self) -> FunnelStage:
        """All files of the table at the snapshot."""
        return next(iter(self.planned.funnel.stages), FunnelStage("all", 0, 0, 0, 0, 0))


@dataclass(frozen=True)
class MeasuredScan(RowSource):
    """The rows of a scan, read by the same code, with a tally."""

    scan: Scan
    tally: Tally = field(default_factory=Tally, compare=False)

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """See `RowSource`."""
        return self.scan.snapshot_ids

    @property
    def view(self) -> TableView:
        """See `RowSource`."""
        return self.scan.view

    @property
    def fields(self) -> tuple[Field, ...]:
        """See `RowSource`."""
        return self.scan.fields

    def tasks(self) -> Sequence[FramesTask]:
        """See `RowSource`."""
        files = _NotedFiles(self.view.files, self.tally)
        noting = replace(self.view, files=files)
        return [_MeasuredTask(replace(task, view=noting), self.tally) for task in self.scan.tasks()]

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow record batches. Raises like those of the scan."""
        return timed(super().to_batches(), self.tally)

    @cached_property
    def _planned(self) -> tuple[Explanation, float]:
        begun = time.perf_counter()
        explained = self.scan.explain()
        return explained, time.perf_counter() - begun

    def plan(self) -> None:
        """Plan the scan, and measure the time. Raises like `Scan.plan`."""
        self._planned  # noqa: B018  # to measure the time

    def measure(self) -> ScanMeasure:
        """The numbers until now. Raises like `Scan.plan`."""
        planned, plan_seconds = self._planned
        tally = self.tally
        files = (file for bucket in self.scan.plan.buckets for file in bucket.files)
        opened = [file for file in files if self.view.data_file(file.entry)[1] in tally.paths]
        return ScanMeasure(
            planned=planned,
            plan_seconds=plan_seconds,
            reads=tally.reads,
            seconds=tally.seconds,
            buckets=len(tally.buckets),
            files=len(opened),
            file_bytes=sum(file.meta.file_size for file in opened),
            stored_rows=sum(file.meta.row_count for file in opened),
            versions=tally.versions,
            merged=tally.merged,
            rows=tally.rows,
        )


@dataclass(frozen=True)
class _MeasuredTask:
    """See `FramesTask`: a task that counts. It must stay in its process."""

    task: ReadTask
    tally: Tally

    @property
    def view(self) -> TableView:
        return self.task.view

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        self.tally.entered((self.task.bucket.partition, self.task.bucket.bucket))
        for window in self.task.windows(memory_bytes):
            self.tally.merged_window(window)
            yield from self.task.rows.together(window.merged)


@dataclass(frozen=True)
class _NotedFiles:
    """See `DataFiles`: the files of a table, counted when they are opened."""

    files: DataFiles
    tally: Tally

    @property
    def are_plain(self) -> bool:
        return self.files.are_plain

    @property
    def why_not_writable(self) -> str | None:
        return self.files.why_not_writable

    def why_gone(
        self, store: Store, table: str, snapshot_ids: Iterable[int], reason: str
    ) -> DataError | None:
        return self.files.why_gone(store, table, snapshot_ids, reason)

    def reader(self, **given: Any) -> FileReader:
        reader = self.files.reader(**given)
        self.tally.opened(reader.path)
        return reader
