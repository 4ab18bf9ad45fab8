"""Runs a query with DuckDB in this process, and measures the reads of its tables."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from keytide.base.process import cached_property
from keytide.dml.attach import PagesScan
from keytide.read.fallback import FallbackScan
from keytide.read.measured import MeasuredScan, Tally, timed
from keytide.sql.engine_text import QueryAnalysis, RelationAnalysis
from keytide.sql.local import Batches, source_of, stream_locally, streamed
from keytide.sql.relation import AttachedRelation, FallbackRelation, Relation, StoredRelation
from keytide.sql.relations import BoundQuery
from keytide.sql.stopping import Stop

__all__ = ["analyze_locally"]


def analyze_locally(
    bound: BoundQuery, *, allows_external_files: bool = False, stop: Stop | None = None
) -> QueryAnalysis:
    """Run a query to its end, and return measurements. Its rows are counted and discarded.

    Raises as `stream_locally`.
    """
    tables = {relation.view: _measured(relation) for relation in bound.relations}
    rows = size = 0

    def count(page: pa.RecordBatch) -> None:
        nonlocal rows, size
        rows += page.num_rows
        size += page.nbytes

    begun = time.perf_counter()
    stream_locally(
        bound, count, allows_external_files=allows_external_files,
        source=lambda relation: tables[relation.view].rows(), stop=stop,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    return QueryAnalysis(rows, size, seconds, tuple(table.told() for table in tables.values()))


class _Measured(ABC):
    """A table of a query, with its measurements."""

    @abstractmethod
    def rows(self) -> Any:
        """The rows in a form that DuckDB reads."""

    @abstractmethod
    def told(self) -> RelationAnalysis:
        """The measurements so far."""


def _measured(relation: Relation) -> _Measured:
    if isinstance(relation, StoredRelation):
        return _Stored(relation)
    if isinstance(relation, AttachedRelation | FallbackRelation):
        return _Streamed(relation)
    return _Made(relation)


@dataclass(frozen=True)
class _Stored(_Measured):
    relation: StoredRelation

    @cached_property
    def _scan(self) -> MeasuredScan:
        scan = MeasuredScan(self.relation.scan())
        scan.plan()
        return scan

    def rows(self) -> Any:
        return streamed(self._scan)

    def told(self) -> RelationAnalysis:
        found = self._scan.measure()
        title = f"scan of {found.planned.table}, snapshot {found.planned.snapshot_id}"
        needs = tuple(self.relation.needs())
        return RelationAnalysis(title, needs, found.rows, found.seconds, found.reads, found)


@dataclass(frozen=True)
class _Streamed(_Measured):
    relation: AttachedRelation | FallbackRelation
    tally: Tally = field(default_factory=Tally)

    def rows(self) -> Any:
        return streamed(_Timed(self.relation.scan(), self.tally))

    def told(self) -> RelationAnalysis:
        title, *notes = self.relation.explained()
        tally = self.tally
        return RelationAnalysis(title, tuple(notes), tally.rows, tally.seconds, tally.reads)


@dataclass(frozen=True)
class _Timed(Batches):
    scan: PagesScan | FallbackScan
    tally: Tally

    @property
    def schema(self) -> pa.Schema:
        return self.scan.schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return timed(self.scan.to_batches(), self.tally)


@dataclass(frozen=True)
class _Made(_Measured):
    """Rows that existed before the query began, such as those of a system table."""

    relation: Relation

    def rows(self) -> Any:
        return self._rows

    def told(self) -> RelationAnalysis:
        title, *notes = self.relation.explained()
        return RelationAnalysis(title, tuple(notes), self._rows.num_rows)

    @cached_property
    def _rows(self) -> pa.Table:
        return source_of(self.relation)
