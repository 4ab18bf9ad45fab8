"""The commit order of versions in files that the table's own engine may have rewritten.

A file that was written once has rows of one commit. A file that combines older files has rows of
several commits, whose order is lost. So a file has a range of commits. Files with overlapping
ranges are treated as one commit without an internal order. So an order is used only if it is known,
and is never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Origin", "Place", "hull", "places"]


@dataclass(frozen=True)
class Origin:
    """The range of commits, from `first` to `last`, from which the rows of a file come.

    `is_in_order` means that the rows are in order of arrival, which requires a single commit.
    """

    first: int
    last: int
    is_in_order: bool = False

    @classmethod
    def of_commit(cls, commit: int) -> Origin:
        """Rows of one commit in order of arrival."""
        return cls(commit, commit, is_in_order=True)


@dataclass(frozen=True)
class Place:
    """The position of a file among others. See `SourcePart`."""

    commit: int
    is_in_order: bool


def hull(origins: Sequence[Origin]) -> Origin:
    """The origin of rows that come from one or more of these files."""
    return Origin(min(o.first for o in origins), max(o.last for o in origins))


def places(origins: Sequence[Origin]) -> list[Place]:
    """The position of each file. A later commit has a higher number."""
    found: list[Place | None] = [None] * len(origins)
    for members in _overlapping(origins):
        commit = max(origins[i].last for i in members)
        is_in_order = all(origins[i].is_in_order for i in members)
        for i in members:
            found[i] = Place(commit, is_in_order)
    return [place for place in found if place is not None]


def _overlapping(origins: Sequence[Origin]) -> list[list[int]]:
    """The file numbers, grouped by overlapping ranges, directly or through others."""
    groups: list[list[int]] = []
    end = 0
    for i in sorted(range(len(origins)), key=lambda i: origins[i].first):
        if groups and origins[i].first <= end:
            groups[-1].append(i)
            end = max(end, origins[i].last)
        else:
            groups.append([i])
            end = origins[i].last
    return groups
