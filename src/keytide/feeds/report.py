"""The report of an ingestion: for each batch, and in total."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BatchReport", "IngestReport"]


@dataclass(frozen=True)
class BatchReport:
    """One micro-batch: `rows_in` messages, each of which is counted in one other number.

    `skipped` messages change no row: tombstones that repeat a delete, and messages about the schema
    or the feed. `snapshot_id` is None if nothing had to be written.
    """

    batch_id: int
    rows_in: int
    applied: int
    late: int
    duplicate: int
    rejected: int
    skipped: int
    seconds: float
    snapshot_id: int | None


@dataclass(frozen=True)
class IngestReport:
    """The result of an ingestion: totals, and its batches in order."""

    table: str
    dead_letter: str
    batches: tuple[BatchReport, ...]

    @property
    def rows_in(self) -> int:
        """The number of messages read."""
        return sum(batch.rows_in for batch in self.batches)

    @property
    def applied(self) -> int:
        """The number of messages that were the latest of their key when they arrived."""
        return sum(batch.applied for batch in self.batches)

    @property
    def rejected(self) -> int:
        """The number of messages in the dead-letter table."""
        return sum(batch.rejected for batch in self.batches)
