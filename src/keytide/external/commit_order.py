"""In which order versions came that lie in files which their own engine may have written anew.

A file that was written once and left alone has rows of one commit. One into which older files were
put together has rows of several, and no longer tells which came when. Its commits are a span then;
files whose spans overlap are of one commit here, in which nothing is in order. So an order is told
where it is known, and never a wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Origin", "Place", "hull", "places"]


@dataclass(frozen=True)
class Origin:
    """The commits, from `first` to `last`, that the rows of a file came in.

    `is_in_order` tells that they lie as they came, which takes that it is one commit.
    """

    first: int
    last: int
    is_in_order: bool = False

    @classmethod
    def of_commit(cls, commit: int) -> Origin:
        """Rows of one commit, as they came."""
        return cls(commit, commit, is_in_order=True)


@dataclass(frozen=True)
class Place:
    """Where a file stands among others: see `SourcePart`."""

    commit: int
    is_in_order: bool


def hull(origins: Sequence[Origin]) -> Origin:
    """Where the rows come from that were taken out of some files, of which there is one."""
    return Origin(min(o.first for o in origins), max(o.last for o in origins))


def places(origins: Sequence[Origin]) -> list[Place]:
    """The place of each file, of which a later commit has the higher number."""
    found: list[Place | None] = [None] * len(origins)
    for members in _overlapping(origins):
        commit = max(origins[i].last for i in members)
        is_in_order = all(origins[i].is_in_order for i in members)
        for i in members:
            found[i] = Place(commit, is_in_order)
    return [place for place in found if place is not None]


def _overlapping(origins: Sequence[Origin]) -> list[list[int]]:
    """The numbers of the files, those together whose spans overlap, if only through others."""
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
