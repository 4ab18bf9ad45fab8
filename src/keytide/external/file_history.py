"""Where the files of a table come from, by the commits that added and removed them.

Old commits are forgotten sooner or later. Files that are older than the oldest commit which is
still known are of no order among themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from keytide.external.commit_order import Origin, hull

__all__ = ["BEFORE_ALL", "FileCommit", "FileHistory", "RowsAre", "history_of"]

BEFORE_ALL = -1


class RowsAre(Enum):
    """What the rows of a file are that a commit adds."""

    NEW = auto()
    """Rows of the commit, as they came."""
    TAKEN_OVER = auto()
    """Rows that somebody had before, in no order."""
    COPIED = auto()
    """Rows of files that the commit removes."""
    MIXED = auto()
    """Rows of the commit, and some of files that it removes."""
    KNOWN = auto()
    """Rows of a file that was there before, of which more is dead now, or which is back."""


@dataclass(frozen=True)
class FileCommit:
    """A commit: the files that it adds, in their order, and those that are gone after it."""

    number: int
    added: Mapping[str, RowsAre]
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True)
class FileHistory:
    """Where files come from; `order` has the files as they were added first."""

    origins: Mapping[str, Origin]
    order: Mapping[str, int]
    unknown: Origin

    def origin(self, file: str) -> Origin:
        """Where the rows of a file come from."""
        return self.origins.get(file, self.unknown)

    def turn(self, file: str) -> tuple[int, str]:
        """What sorts files as they were added; those that are older than all by their names."""
        return self.order.get(file, -1), file


def history_of(commits: Sequence[FileCommit], number: int) -> FileHistory:
    """Where files come from by the commits up to a number, oldest first and without a gap."""
    oldest = commits[0].number if commits else number + 1
    unknown = Origin(BEFORE_ALL, max(oldest - 1, 0))
    origins: dict[str, Origin] = {}
    for commit in commits:
        copied = [origins.get(file, unknown) for file in sorted(commit.gone)]
        for file, rows in commit.added.items():
            if file not in origins:
                origins[file] = _origin(rows, commit.number, copied, unknown)
    order = {file: place for place, file in enumerate(origins)}
    return FileHistory(origins, order, unknown)


def _origin(rows: RowsAre, number: int, copied: Sequence[Origin], unknown: Origin) -> Origin:
    """Where the rows come from of a file that is told of for the first time."""
    if rows is RowsAre.KNOWN or (rows is RowsAre.COPIED and not copied):
        return unknown
    if rows is RowsAre.TAKEN_OVER:
        return Origin(number, number)
    if rows is RowsAre.COPIED:
        return hull(copied)
    if rows is RowsAre.MIXED and copied:
        return Origin(hull(copied).first, number)
    return Origin.of_commit(number)
