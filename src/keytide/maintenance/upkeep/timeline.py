"""The snapshots of a table as a timeline, one page of ids at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from keytide.base.moments import utc
from keytide.maintenance.history.branches import branches_of
from keytide.maintenance.history.log import HistoryEntry, entries_before
from keytide.maintenance.history.tags import tags_of
from keytide.snapshot.stored import StoredTable

__all__ = ["PAGE_SNAPSHOTS", "BranchLine", "Moment", "TagLine", "Timeline", "timeline_of"]

PAGE_SNAPSHOTS = 40
"""The number of snapshot ids on a page."""

_NAMES_MAX = 500


@dataclass(frozen=True)
class Moment:
    """A snapshot: what its commit did, and its tags and branches."""

    entry: HistoryEntry
    tags: tuple[str, ...]
    branches: tuple[str, ...]
    is_newest: bool


@dataclass(frozen=True)
class TagLine:
    """A tag. If it `is_alone`, the snapshot has expired and only the tag keeps it."""

    name: str
    snapshot_id: int
    time: datetime
    stored: int
    is_alone: bool


@dataclass(frozen=True)
class BranchLine:
    """A branch, with its oldest and its latest snapshot. None if it has none."""

    name: str
    first_id: int | None
    newest_id: int | None
    time: datetime


@dataclass(frozen=True)
class Timeline:
    """A page of snapshots, latest first.

    `before` is the id above the page. `older` is the same for the next page, None on the last one.
    `newer` is the same for the previous page, None on the first one. Of tags and branches beyond
    the first few hundred, only the number is given.
    """

    moments: tuple[Moment, ...]
    tags: tuple[TagLine, ...]
    branches: tuple[BranchLine, ...]
    more_tags: int
    oldest_id: int | None
    newest_id: int | None
    before: int
    older: int | None
    newer: int | None

    @property
    def is_newest_page(self) -> bool:
        """Whether new snapshots will appear on this page."""
        return self.newer is None


def timeline_of(
    table: StoredTable, before: int | None = None, count: int = PAGE_SNAPSHOTS
) -> Timeline:
    """The snapshots with `count` ids below `before`, by default the latest.

    Reads only these, with the manifests of their commits. Raises `DataError` for damaged metadata.
    """
    seen = table.pinned().metadata
    newest, oldest = seen.latest_snapshot_id(), seen.earliest_snapshot_id()
    above = (newest or 0) + 1
    before = above if before is None else min(max(before, (oldest or 0) + 1), above)
    entries = entries_before(seen, before, count)
    tags, more_tags = _tags(table, oldest)
    branches = tuple(
        BranchLine(
            each.name,
            None if each.first is None else each.first.id,
            None if each.newest is None else each.newest.id,
            each.create_time,
        )
        for each in branches_of(table.metadata)[:_NAMES_MAX]
    )
    last = before - count
    return Timeline(
        tuple(_moments(entries, tags, branches, newest)),
        tags,
        branches,
        more_tags,
        oldest,
        newest,
        before,
        last if oldest is not None and last > oldest else None,
        min(before + count, above) if before < above else None,
    )


def _tags(table: StoredTable, oldest: int | None) -> tuple[tuple[TagLine, ...], int]:
    """The tags of the latest snapshots, and how many more there are."""
    found = tags_of(table.metadata)
    lines = tuple(
        TagLine(
            tag.name,
            tag.snapshot_id,
            utc(tag.snapshot.time_millis),
            tag.snapshot.total_record_count,
            oldest is None or tag.snapshot_id < oldest,
        )
        for tag in found[-_NAMES_MAX:]
    )
    return lines, len(found) - len(lines)


def _moments(
    entries: Sequence[HistoryEntry],
    tags: Sequence[TagLine],
    branches: Sequence[BranchLine],
    newest: int | None,
) -> list[Moment]:
    named = _by_id((tag.snapshot_id, tag.name) for tag in tags)
    begun = _by_id((each.first_id, each.name) for each in branches)
    return [
        Moment(
            entry,
            tuple(named.get(entry.snapshot_id, ())),
            tuple(begun.get(entry.snapshot_id, ())),
            entry.snapshot_id == newest,
        )
        for entry in entries
    ]


def _by_id(pairs: Iterable[tuple[int | None, str]]) -> Mapping[int | None, list[str]]:
    found: dict[int | None, list[str]] = {}
    for snapshot_id, name in pairs:
        found.setdefault(snapshot_id, []).append(name)
    return found
