"""A scan: a read request that is planned once and returns rows in the requested data structure.

Its tasks each read the rows of one bucket, in the driver or on an executor. It explains how it is
carried out, and errors about files that are missing although a snapshot references them.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl
import pyarrow as pa

from keytide.base.arguments import checked
from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property, refuse_forked_child, require
from keytide.base.text import counted
from keytide.errors import DataError, InvalidError
from keytide.format.arrow import (
    ArrowRows,
    first_rows,
    in_pandas,
    in_python,
    polars_schema,
    to_arrow,
)
from keytide.format.snapshot import Snapshot
from keytide.gate import refuse_readers
from keytide.predicate.condition import text_of
from keytide.predicate.predicate import Predicate, conjunction, conjuncts
from keytide.read.merged_versions import Rows, Window
from keytide.read.plan import Funnel, RowSelection, ScanPlan, plan_rows
from keytide.read.pruning import asked_of_files
from keytide.read.runs import prefetched
from keytide.read.sections import BucketPlan
from keytide.show.elements import notebook
from keytide.show.explanations import Plan, plan_list
from keytide.snapshot.live_files import LiveFiles
from keytide.snapshot.state import TableState, TableView
from keytide.tasks import Threads
from keytide.telemetry import Step, lone_span, span
from keytide.types import Field, arrow_schema

# -- explanations of a scan ------------------------------------------------------------------------


@dataclass(frozen=True)
class Explanation:
    """The plan of a scan, made without reading data.

    - `funnel` counts what remained after each pruning step.
    - `files_raw` is the number of files that are read without a merge.
    - `files_merged` is the number of files that are merged by `merge_engine`, in `sections_merged`
      sections of at most `runs_max` overlapping runs. `merge_engine` is None for an append table,
      which never merges.
    - `limit` is the maximum number of rows, None without a limit.
    - `asked_of_files` are the conditions that skip files by their metadata, and `asked_of_rows` are
      the conditions that can only be checked on rows.
    """

    table: str
    snapshot_id: int | None
    merge_engine: str | None
    funnel: Funnel
    files_raw: int
    files_merged: int
    sections_merged: int
    runs_max: int
    limit: int | None = None
    asked_of_files: str | None = None
    asked_of_rows: str | None = None

    def __str__(self) -> str:
        lines = [f"scan of {self.table}, snapshot {self.snapshot_id}"]
        lines.append(
            f"{'after':<12}{'partitions':>11}{'buckets':>9}{'files':>8}{'rows':>13}{'bytes':>15}"
        )
        lines += [
            f"{s.stage:<12}{s.partitions:>11,}{s.buckets:>9,}{s.files:>8,}{s.rows:>13,}"
            f"{s.bytes:>15,}"
            for s in self.funnel.stages
        ]
        readings = [f"read without merging: {counted(self.files_raw, 'file')}"]
        if self.merge_engine is not None:
            readings.append(
                f"merged by {self.merge_engine}: {counted(self.files_merged, 'file')} in "
                f"{counted(self.sections_merged, 'section')} of up to "
                f"{counted(self.runs_max, 'overlapping run')}"
            )
        if self.limit is not None:
            readings.append(f"at most {counted(self.limit, 'row')}")
        lines.append("; ".join(readings))
        if self.asked_of_files is not None:
            lines.append(f"conditions on files: {self.asked_of_files}")
        if self.asked_of_rows is not None:
            lines.append(f"conditions on rows only: {self.asked_of_rows}")
        return "\n".join(lines)

    @checked
    def plan(self, notes: tuple[str, ...] = ()) -> Plan:
        """The explanation as a tree of steps; `notes` are shown below its title."""
        steps = []
        if self.files_raw:
            steps.append(Plan(f"read without merging: {counted(self.files_raw, 'file')}"))
        if self.files_merged:
            sections = (
                f"{counted(self.sections_merged, 'section')} of up to "
                f"{counted(self.runs_max, 'overlapping run')}"
            )
            merged = f"merged by {self.merge_engine}: {counted(self.files_merged, 'file')}"
            steps.append(Plan(merged, (sections,)))
        if self.limit is not None:
            steps.append(Plan(f"at most {counted(self.limit, 'row')}"))
        if self.asked_of_files is not None:
            steps.append(Plan(f"files skipped by: {self.asked_of_files}"))
        if self.asked_of_rows is not None:
            steps.append(Plan(f"rows skipped by: {self.asked_of_rows}"))
        title = f"scan of {self.table}, snapshot {self.snapshot_id}"
        return Plan(title, notes, tuple(self.funnel.stages), tuple(steps))

    def _repr_html_(self) -> str:
        return notebook(plan_list(self.plan()))


# -- read tasks ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadTask:
    """Reads those rows of a bucket that match `predicate`, with the given `columns` in order.

    A picklable value with everything it needs.
    """

    view: TableView
    bucket: BucketPlan
    columns: tuple[str, ...]
    predicate: Predicate | None = None

    @property
    def stored_bytes(self) -> int:
        """The size of the files that it reads."""
        return sum(file.meta.file_size for file in self.bucket.files)

    @property
    def stored_rows(self) -> int:
        """The number of rows in the files that it reads. It returns at most this many."""
        return sum(file.meta.row_count for file in self.bucket.files)

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, in frames that fit in about `memory_bytes`, including the memory to create
        them.

        Raises the same errors as `MergedVersions.of`.
        """
        for window in self.windows(memory_bytes):
            yield from self.rows.together(window.merged)

    def windows(self, memory_bytes: int) -> Iterator[Window]:
        """The windows of merged versions that the rows are derived from. Raises like `frames`."""
        return self.rows.versions().windows_of(self.bucket, memory_bytes)

    def tables(self, memory_bytes: int) -> Iterator[pa.Table]:
        """The same as Arrow tables with the exact types of the columns."""
        schema = arrow_schema(self.view.schema.select(self.columns))
        for frame in self.frames(memory_bytes):
            yield to_arrow(frame, schema)

    def outcomes(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, plus the deletes of keys without a row, for as long as they are stored.

        Frames contain the columns and `_VALUE_KIND`, and maybe others.
        """
        rows = self.rows
        windows = rows.versions(tells_kinds=True).of(self.bucket, memory_bytes)
        return map(rows.outcomes, itertools.chain.from_iterable(windows))

    def without_statistics(self) -> ReadTask:
        """The same task without the statistics of files, which only planning needs."""
        sections = tuple(section.without_statistics() for section in self.bucket.sections)
        return replace(self, bucket=replace(self.bucket, sections=sections))

    @cached_property
    def rows(self) -> Rows:
        """Derives the rows from merged versions."""
        return Rows(self.view, self.columns, self.predicate)


# -- missing files ---------------------------------------------------------------------------------


@contextmanager
def naming_expired(view: TableView, snapshot_ids: Iterable[int]) -> Iterator[None]:
    """A block that reads snapshots: errors about a missing file say why it may be missing."""
    try:
        yield
    except DataError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise

        # The explanation of the first snapshot that has one. Files can also be missing without any.
        reason = str(error)
        one_by_one: list[tuple[int, ...]] = [(number,) for number in snapshot_ids] or [()]
        found = (view.files.why_gone(view.store, view.name, ids, reason) for ids in one_by_one)
        explained = next(filter(None, found), None)
        if explained is None:
            raise
        raise explained from error.__cause__


@contextmanager
def reading(view: TableView, snapshot_ids: Iterable[int]) -> Iterator[Step]:
    """A block that reads rows: a span, in which errors about a file say why it may be missing."""
    with naming_expired(view, snapshot_ids), lone_span("read", view.name) as step:
        yield step


# -- rows of tasks ---------------------------------------------------------------------------------


if TYPE_CHECKING:
    import pandas as pd


class FramesTask(Protocol):
    """Work that produces rows. Picklable."""

    @property
    def view(self) -> TableView:
        """The table that it reads."""

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, in frames that fit in about `memory_bytes`, including the memory to create
        them.
        """


class RowSource(ArrowRows):
    """Rows with the columns `fields`, from `tasks` in order. Each method reads them again.

    Methods that return everything need memory for the result. `to_batches` needs only as much as
    'read.memory'. With a `limit`, at most this many rows are returned, whichever are read first.
    """

    threads: int
    limit: int | None = None

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """The snapshots whose files are read."""
        raise NotImplementedError

    @property
    def view(self) -> TableView:
        """The table at the schema that the rows are read with."""
        raise NotImplementedError

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the result."""
        raise NotImplementedError

    def tasks(self) -> Sequence[FramesTask]:
        """The work as picklable tasks, in the order of their rows."""
        raise NotImplementedError

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        return arrow_schema(self.fields)

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table, in the exact types of the columns.

        Raises like `to_batches`.
        """
        schema = self.schema
        tables = (to_arrow(frame, schema) for frame in prefetched(self._frames()))
        # Without empty batches: pyspark's createDataFrame loses the rows after one.
        batches = [each for table in tables for each in table.to_batches() if each.num_rows]
        return pa.Table.from_batches(batches, schema)

    def to_polars(self) -> pl.DataFrame:
        """The rows as a Polars DataFrame, in Polars types. Raises like `to_batches`."""
        frames = [*self._frames()] or [pl.DataFrame(schema=polars_schema(self.fields))]
        return frames[0] if len(frames) == 1 else pl.concat(frames, rechunk=False)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame.

        Raises `SetupError` without pandas, or like `to_pylist`.
        """
        require("pandas", "pandas", "to_pandas")
        return in_pandas(self.to_arrow())

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as dicts.

        Raises like `to_batches`, and `UnsupportedError` for times that Python does not support:
        outside the years 1 to 9999.
        """
        return in_python(self.to_arrow())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow record batches, in memory limited by 'read.memory'.

        Raises these errors:

        - `DataError`, which names the file, if a file is missing or damaged
        - `InvalidError`, which names the key, if versions cannot be merged
        - `UnsupportedError` for a table that this release cannot read
        - `SetupError` for a table whose merge function is not registered
        """
        schema = self.schema
        batches = (
            batch
            for frame in self._frames_in_turn()
            for batch in to_arrow(frame, schema).to_batches()
            if batch.num_rows
        )
        yield from batches if self.limit is None else first_rows(batches, self.limit)

    def to_frames(self) -> Iterator[pl.DataFrame]:
        """The same as Polars DataFrames. Raises like `to_batches`."""
        frames = self._frames_in_turn()
        yield from frames if self.limit is None else head_of(frames, self.limit)

    def _frames_in_turn(self) -> Iterator[pl.DataFrame]:
        with reading(self.view, self.snapshot_ids) as step:
            for task in self.tasks():
                for frame in task.frames(self.view.options.read_memory_bytes):
                    step.numbers(rows=frame.height)
                    yield frame

    def _frames(self) -> Iterator[pl.DataFrame]:
        with reading(self.view, self.snapshot_ids) as step:
            tasks = () if self.limit == 0 else self.tasks()
            # If few rows are requested, the first task may have enough.
            threads = max(1, min(self.threads, len(tasks))) if self.limit is None else 1
            # The threads share 'read.memory', which is the limit for all rows.
            memory = self.view.options.read_memory_bytes // threads
            frames: Iterator[pl.DataFrame]
            if threads == 1:
                frames = (frame for task in tasks for frame in task.frames(memory))
            else:
                whole = [partial(_all_frames, task, memory) for task in tasks]
                frames = itertools.chain.from_iterable(Threads(threads).map(whole))
            for frame in frames if self.limit is None else head_of(frames, self.limit):
                step.numbers(rows=frame.height)
                yield frame


def check_limit(limit: int | None, table: str) -> None:
    """Raise `InvalidError`, which names the value, for a negative limit."""
    if limit is not None and limit < 0:
        raise InvalidError(f"table {table}: limit is {limit}; expected 0 or more")


def head_of(frames: Iterator[pl.DataFrame], rows: int) -> Iterator[pl.DataFrame]:
    """The first rows of some frames. Later frames are not requested."""
    while rows > 0 and (frame := next(frames, None)) is not None:
        yield frame.head(rows)
        rows -= frame.height


def _all_frames(task: FramesTask, memory_bytes: int) -> list[pl.DataFrame]:
    return list(task.frames(memory_bytes))


# -- the scan --------------------------------------------------------------------------------------


_LOG = logging.getLogger("keytide.plan")


@dataclass(frozen=True)
class Scan(RowSource):
    """The rows of one snapshot, in no guaranteed order: one merged row per key, if there are keys.

    A scan is lazy. It stays pinned to its snapshot, whatever is committed later. Methods that
    return everything need memory for the result. `to_batches` needs only as much as 'read.memory'.
    Problems with stored files are found when they are read, see `to_batches`.

    With `keys` (the key columns in their exact types), rows of other keys may be left out. `which`
    says which stored rows are shown, in tables with a key index. With a `limit`, at most this many
    rows are returned, whichever are read first.
    """

    state: TableState
    columns: tuple[str, ...]
    predicate: Predicate | None = None
    keys: pa.Table | None = field(default=None, repr=False)
    which: RowSelection = RowSelection.CURRENT
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    limit: int | None = None

    def __repr__(self) -> str:
        parts = [
            self.view.name,
            "no snapshot" if self.snapshot is None else f"snapshot {self.snapshot.id}",
        ]
        parts.append(f"columns {', '.join(self.columns)}")
        if self.predicate is not None:
            parts.append(f"where {text_of(self.predicate, self.view.schema.fields)}")
        if self.limit is not None:
            parts.append(f"limit {self.limit}")
        return f"Scan({'; '.join(parts)})"

    @property
    def view(self) -> TableView:
        """The table at the schema that the rows are read with."""
        return self.state.view

    @property
    def live(self) -> LiveFiles:
        """The files of the snapshot."""
        return self.state.live

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the result."""
        return self.view.schema.select(self.columns)

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that is read. None if nothing was ever written."""
        return self.state.snapshot

    @property
    def parts(self) -> tuple[Scan, ...]:
        """The scan of each branch that is read: itself."""
        return (self,)

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """See `RowSource`."""
        return () if self.snapshot is None else (self.snapshot.id,)

    @cached_property
    def plan(self) -> ScanPlan:
        """What will be read, from metadata alone. Raises `DataError` for damaged metadata."""
        refuse_forked_child()
        with span("plan", self.view.name) as step:
            plan = plan_rows(self.state, self.which, self.predicate, self.keys)
            files = sum(len(bucket.files) for bucket in plan.buckets)
            step.numbers(buckets=len(plan.buckets), files=files)
        if _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("%r: %d buckets, %d files", self, len(plan.buckets), files)
        return plan

    def count(self) -> int:
        """The number of rows. Raises like `to_batches`."""
        schema = self.view.schema
        one_column = replace(self, columns=(schema.primary_keys or schema.names)[:1])
        return sum(frame.height for frame in one_column._frames())

    def explain(self) -> Explanation:
        """How the scan will be executed. Reads no data. Raises like `plan`."""
        sections = [section for bucket in self.plan.buckets for section in bucket.sections]
        merged = [section for section in sections if section.needs_merge]
        of_files = asked_of_files(self.predicate, self.view, sections)
        of_rows = [term for term in conjuncts(self.predicate) if term not in of_files]
        fields = self.view.schema.fields
        asked = [conjunction(terms) for terms in (of_files, of_rows)]
        texts = [None if terms is None else text_of(terms, fields) for terms in asked]
        return Explanation(
            table=self.view.name,
            snapshot_id=None if self.snapshot is None else self.snapshot.id,
            merge_engine=self.view.options.merge_engine if self.view.kind.keeps_versions else None,
            funnel=self.plan.funnel,
            files_raw=sum(len(s.files) for s in sections if not s.needs_merge),
            files_merged=sum(len(s.files) for s in merged),
            sections_merged=len(merged),
            runs_max=max((len(s.runs) for s in merged), default=0),
            limit=self.limit,
            asked_of_files=texts[0],
            asked_of_rows=texts[1],
        )

    def tasks(self) -> list[ReadTask]:
        """The scan as picklable tasks, one per bucket.

        Raises like `plan`, and `UnsupportedError` for a table that this release cannot read.
        """
        refuse_forked_child()
        refuse_readers(self.view.schema, self.view.options, self.view.name)
        return [
            ReadTask(self.view, bucket, self.columns, self.predicate)
            for bucket in self.plan.buckets
        ]
