"""Read tasks: the rows of one bucket, read on the driver or on an executor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from keytide.format.arrow import to_arrow
from keytide.lazily import cached_property
from keytide.table.conditions.predicate import Predicate
from keytide.table.read.merged_versions import Window
from keytide.table.read.sections import BucketPlan
from keytide.table.read.visible_rows import Rows
from keytide.table.state.view import TableView
from keytide.types import arrow_schema

__all__ = ["ReadTask"]


@dataclass(frozen=True)
class ReadTask:
    """Reads the rows of a bucket: `columns` of the table, in order, where `predicate` holds.

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
        """How many rows the files hold that it reads; of these it gives no more."""
        return sum(file.meta.row_count for file in self.bucket.files)

    def frames(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows, in frames that together with their making fit in about `memory_bytes`.

        Raises as `MergedVersions.of` does.
        """
        for window in self.windows(memory_bytes):
            yield from self.rows.together(window.merged)

    def windows(self, memory_bytes: int) -> Iterator[Window]:
        """What the rows are made of, by ranges of keys. Raises as `frames`."""
        return self.rows.versions().windows_of(self.bucket, memory_bytes)

    def tables(self, memory_bytes: int) -> Iterator[pa.Table]:
        """The same as Arrow tables with the exact types of the columns."""
        schema = arrow_schema(self.view.schema.select(self.columns))
        for frame in self.frames(memory_bytes):
            yield to_arrow(frame, schema)

    def outcomes(self, memory_bytes: int) -> Iterator[pl.DataFrame]:
        """The rows and, for as long as they are stored, the deletes of keys that have none.

        Frames hold the columns and `_VALUE_KIND`, perhaps others.
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

    @cached_property
    def rows(self) -> Rows:
        """What is shown of merged versions."""
        return Rows(self.view, self.columns, self.predicate)
