"""Read tasks: read the rows of one bucket in the driver or on an executor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from keytide.base.lazily import cached_property
from keytide.format.arrow import to_arrow
from keytide.predicate.predicate import Predicate
from keytide.read.merged_versions import Window
from keytide.read.sections import BucketPlan
from keytide.read.visible_rows import Rows
from keytide.snapshot.view import TableView
from keytide.types import arrow_schema

__all__ = ["ReadTask"]


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

    def by_section(self) -> list[ReadTask]:
        """The same rows as tasks of one section each."""
        return [
            replace(self, bucket=replace(self.bucket, sections=(section,)))
            for section in self.bucket.sections
        ]

    def without_statistics(self) -> ReadTask:
        """The same task without the statistics of files, which only planning needs."""
        sections = tuple(section.without_statistics() for section in self.bucket.sections)
        return replace(self, bucket=replace(self.bucket, sections=sections))

    @cached_property
    def rows(self) -> Rows:
        """Derives the rows from merged versions."""
        return Rows(self.view, self.columns, self.predicate)
