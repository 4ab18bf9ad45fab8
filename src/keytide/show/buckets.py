"""Values for pictures of buckets: their files, sorted runs and levels."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bucket", "BucketLine", "Part", "ReadBucket", "Run"]


@dataclass(frozen=True)
class BucketLine:
    """A bucket in the list: its bytes by level, and whether a compaction is due."""

    number: int
    """Its rank among the buckets of the table, the largest first."""
    name: str
    files: int
    rows: int
    size: int
    levels: tuple[tuple[int, int], ...]
    is_due: bool


@dataclass(frozen=True)
class Part:
    """A file of a run, or several adjacent files.

    `start` and `end` are the positions of its first and last key in the bucket's key range, from 0
    to 1.
    """

    name: str
    rows: int
    dead: int
    deletes: int
    size: int
    start: float
    end: float
    keys: tuple[str, str] | None


@dataclass(frozen=True)
class Run:
    """Files without a key in common. The latest run is the first one of a bucket."""

    level: int
    size: int
    rows: int
    dead: int
    files: int
    parts: tuple[Part, ...]
    pick: int | None
    """The number of the next compaction that includes it, None if none does."""


@dataclass(frozen=True)
class Bucket:
    """One bucket in detail. `picks` are the target levels of the next compactions."""

    line: BucketLine
    runs: tuple[Run, ...]
    runs_left_out: int
    picks: tuple[int, ...]
    first_key: str | None
    last_key: str | None


@dataclass(frozen=True)
class ReadBucket:
    """The files of a bucket that a scan reads, and how many of them it merges."""

    name: str
    files: int
    files_merged: int
    rows: int
    size: int
    levels: tuple[tuple[int, int], ...]
