"""The rows of tasks, in the data structure that the caller requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl
import pyarrow as pa

from keytide.base.extras import require
from keytide.errors import InvalidError
from keytide.format.arrow import in_pandas, in_python, polars_schema, to_arrow
from keytide.format.arrow_rows import ArrowRows, first_rows
from keytide.read.expired import naming_expired
from keytide.read.prefetch import prefetched
from keytide.snapshot.view import TableView
from keytide.tasks.runner import Threads
from keytide.telemetry import Step, lone_span
from keytide.types import Field, arrow_schema

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FramesTask", "RowSource", "check_limit", "head_of"]


class FramesTask(Protocol):
    """Work that produces rows. Picklable."""

    @property
    def view(self) -> TableView:
        """The table that it reads."""
        ...

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, in frames that fit in about `memory_bytes`, including the memory to create
        them.
        """
        ...


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
        batches = self._batches()
        yield from batches if self.limit is None else first_rows(batches, self.limit)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        schema = self.schema
        for frame in self._frames_in_turn():
            yield from (batch for batch in to_arrow(frame, schema).to_batches() if batch.num_rows)

    def to_frames(self) -> Iterator[pl.DataFrame]:
        """The same as Polars DataFrames. Raises like `to_batches`."""
        frames = self._frames_in_turn()
        yield from frames if self.limit is None else head_of(frames, self.limit)

    def _frames_in_turn(self) -> Iterator[pl.DataFrame]:
        with self._reading() as step:
            for task in self.tasks():
                for frame in task.frames(self.view.options.read_memory_bytes):
                    step.numbers(rows=frame.height)
                    yield frame

    def _frames(self) -> Iterator[pl.DataFrame]:
        with self._reading() as step:
            frames = self._frames_of_tasks()
            for frame in frames if self.limit is None else head_of(frames, self.limit):
                step.numbers(rows=frame.height)
                yield frame

    @contextmanager
    def _reading(self) -> Iterator[Step]:
        name = self.view.name
        with naming_expired(self.view, self.snapshot_ids), lone_span("read", name) as step:
            yield step

    def _frames_of_tasks(self) -> Iterator[pl.DataFrame]:
        tasks = self.tasks()
        # If few rows are requested, the first task may have enough.
        threads = max(1, min(self.threads, len(tasks))) if self.limit is None else 1
        # The threads share 'read.memory', which is the limit for all rows.
        memory = self.view.options.read_memory_bytes // threads
        if threads == 1:
            for task in tasks:
                yield from task.frames(memory)
            return
        whole = [partial(_all_frames, task, memory) for task in tasks]
        for frames in Threads(threads).map(whole):
            yield from frames


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
