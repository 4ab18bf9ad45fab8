"""Buckets as people see them: their files, sorted runs and levels."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Bucket", "BucketLine", "Part", "ReadBucket", "Run"]


@dataclass(frozen=True)
class BucketLine:
    """A bucket in the list: its bytes by level, and whether a compaction is due."""

    number: int
    """Its place among the buckets of the table, the largest first."""
    name: str
    files: int
    rows: int
    size: int
    levels: tuple[tuple[int, int], ...]
    is_due: bool


@dataclass(frozen=True)
class Part:
    """A file of a run, or several neighbours together.

    `start` and `end` are where its keys begin and end among those of the bucket, from 0 to 1.
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
    """Files without a key in common, the newest run first in a bucket."""

    level: int
    size: int
    rows: int
    dead: int
    files: int
    parts: tuple[Part, ...]
    pick: int | None
    """The number of the compaction that takes it next, None where it stays."""


@dataclass(frozen=True)
class Bucket:
    """One bucket in detail; `picks` are the levels that what is compacted next goes to."""

    line: BucketLine
    runs: tuple[Run, ...]
    runs_left_out: int
    picks: tuple[int, ...]
    first_key: str | None
    last_key: str | None


@dataclass(frozen=True)
class ReadBucket:
    """What a scan reads of a bucket, and how many of these files it merges."""

    name: str
    files: int
    files_merged: int
    rows: int
    size: int
    levels: tuple[tuple[int, int], ...]
