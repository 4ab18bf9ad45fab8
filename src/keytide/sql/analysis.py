"""EXPLAIN ANALYZE of a query: it runs, and what was measured is told instead of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from keytide.plural import counted
from keytide.table.read.measured import ScanMeasure

__all__ = ["QueryAnalysis", "RelationAnalysis", "millis"]


@dataclass(frozen=True)
class RelationAnalysis:
    """What reading one mention of a table took.

    `notes` say how it was read. So many `rows` were handed to the engine in `seconds`, the time for
    planning left out; None where they were made before the query began. They were asked for `reads`
    times. A table of the lake has a `scan`.
    """

    title: str
    notes: tuple[str, ...]
    rows: int
    seconds: float | None = None
    reads: int = 1
    scan: ScanMeasure | None = None

    @property
    def summary(self) -> str:
        """Its rows and time."""
        parts = [counted(self.rows, "row")]
        parts += [] if self.seconds is None else [f"in {millis(self.seconds)}"]
        parts += [] if self.reads == 1 else [f"in {counted(self.reads, 'read')}"]
        return " ".join(parts)

    def lines(self) -> Iterator[str]:
        """All that is known of it, a line each, below its title."""
        yield from self.notes
        if self.scan is not None:
            yield from _scan_lines(self.scan)


@dataclass(frozen=True)
class QueryAnalysis:
    """What running a query took, from the first read to the last row.

    Its `rows`, their `bytes` in Arrow's format, and the tables that were read for it.
    """

    rows: int
    bytes: int
    seconds: float
    relations: tuple[RelationAnalysis, ...]

    @property
    def summary(self) -> str:
        """Its rows and time."""
        return (
            f"{counted(self.rows, 'row')} of {counted(self.bytes, 'byte')} in "
            f"{millis(self.seconds)}, computed by DuckDB"
        )

    def lines(self) -> Iterator[str]:
        """The whole as text, in which a deeper line belongs to the one above it."""
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
        yield f"conditions asked of files: {planned.asked_of_files}"
    if planned.asked_of_rows is not None:
        yield f"conditions asked of rows alone: {planned.asked_of_rows}"


def millis(seconds: float) -> str:
    """A time as people read it."""
    return f"{seconds * 1000:,.1f} ms"
