"""The origin of a table's files, from the commits that added and removed them.

Old commits are removed at some point. Files older than the oldest known commit have no order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from keytide.sources.commit_order import Origin, hull

__all__ = ["BEFORE_ALL", "FileCommit", "FileHistory", "RowsAre", "history_of"]

BEFORE_ALL = -1


class RowsAre(Enum):
    """The kind of rows in a file that a commit adds."""

    NEW = auto()
    """Rows of the commit, in order of arrival."""
    TAKEN_OVER = auto()
    """Rows that existed before, without an order."""
    COPIED = auto()
    """Rows of files that the commit removes."""
    MIXED = auto()
    """Rows of the commit, and some rows of files that it removes."""
    KNOWN = auto()
    """Rows of an existing file, in which more rows are deleted now, or which was restored."""


@dataclass(frozen=True)
class FileCommit:
    """A commit: the files that it adds, in order, and those that it removes."""

    number: int
    added: Mapping[str, RowsAre]
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True)
class FileHistory:
    """The origin of files. `order` has the files in the order in which they were first added."""

    origins: Mapping[str, Origin]
    order: Mapping[str, int]
    unknown: Origin

    def origin(self, file: str) -> Origin:
        """The origin of a file's rows."""
        return self.origins.get(file, self.unknown)

    def turn(self, file: str) -> tuple[int, str]:
        """A sort key for the order in which files were added. Older files are ordered by name."""
        return self.order.get(file, -1), file


def history_of(commits: Sequence[FileCommit], number: int) -> FileHistory:
    """The origin of files from the commits up to a number, oldest first and without a gap."""
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
    """The origin of the rows of a file that occurs for the first time."""
    if rows is RowsAre.KNOWN or (rows is RowsAre.COPIED and not copied):
        return unknown
    if rows is RowsAre.TAKEN_OVER:
        return Origin(number, number)
    if rows is RowsAre.COPIED:
        return hull(copied)
    if rows is RowsAre.MIXED and copied:
        return Origin(hull(copied).first, number)
    return Origin.of_commit(number)
