"""EXPLAIN ANALYZE of a query: runs the query and reports measurements instead of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from keytide.base.plural import counted
from keytide.read.measured import ScanMeasure

__all__ = ["QueryAnalysis", "RelationAnalysis", "millis"]


@dataclass(frozen=True)
class RelationAnalysis:
    """The measurements of reading one mention of a table.

    `notes` describe how it was read. `rows` were passed to the engine in `seconds`, without
    planning time. It is None if the rows existed before the query began. `reads` is how often they
    were read. A table of the lake has a `scan`.
    """

    title: str
    notes: tuple[str, ...]
    rows: int
    seconds: float | None = None
    reads: int = 1
    scan: ScanMeasure | None = None

    @property
    def summary(self) -> str:
        """The number of rows and the time."""
        parts = [counted(self.rows, "row")]
        parts += [] if self.seconds is None else [f"in {millis(self.seconds)}"]
        parts += [] if self.reads == 1 else [f"in {counted(self.reads, 'read')}"]
        return " ".join(parts)

    def lines(self) -> Iterator[str]:
        """All measurements, one per line, for display below a title."""
        yield from self.notes
        if self.scan is not None:
            yield from _scan_lines(self.scan)


@dataclass(frozen=True)
class QueryAnalysis:
    """The measurements of running a query, from the first read to the last row.

    `rows` with their size `bytes` in Arrow's format, and the tables that were read.
    """

    rows: int
    bytes: int
    seconds: float
    relations: tuple[RelationAnalysis, ...]

    @property
    def summary(self) -> str:
        """The number of rows and the time."""
        return (
            f"{counted(self.rows, 'row')} of {counted(self.bytes, 'byte')} in "
            f"{millis(self.seconds)}, computed by DuckDB"
        )

    def lines(self) -> Iterator[str]:
        """The report as text. An indented line belongs to the line above it."""
        yield f"query: {self.summary}"
        if not self.relations:
            yield "  reads no table"
        for relation in self.relations:
            yield f"  {relation.title}: {relation.summary}"
            yield from (f"    {line}" for line in relation.lines())


def _scan_lines(scan: ScanMeasure) -> Iterator[str]:
    planned, there = scan.planned, scan.there
    yield f"planned in {millis(scan.plan_seconds)}"
    yield f"buckets: {scan.buckets:,} of {there.buckets:,} read"
    yield (
        f"files: {scan.files:,} of {there.files:,} read, with {counted(scan.file_bytes, 'byte')} "
        f"and {counted(scan.stored_rows, 'stored row')}"
    )
    pruned = (f"{counted(files, 'file')} by {stage}" for stage, files in scan.pruned)
    yield f"pruned: {', '.join(pruned) or 'no file'}"
    yield f"versions: {scan.versions:,} read, {scan.merged:,} after the merge"
    if planned.asked_of_files is not None:
        yield f"conditions on files: {planned.asked_of_files}"
    if planned.asked_of_rows is not None:
        yield f"conditions on rows only: {planned.asked_of_rows}"


def millis(seconds: float) -> str:
    """A readable time."""
    return f"{seconds * 1000:,.1f} ms"
