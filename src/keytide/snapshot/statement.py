"""Statements: one change of a table, by whose tasks every file that it creates is named.

A task can end without a result: a cluster kills it, loses its process, or drops its result
because another task failed. The driver then finds their files by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keytide.format.paths import FileNames, new_uuid

__all__ = ["Statement"]

# Half of a uuid identifies the statement. The other half makes the names of each task unique.
_MARK_LENGTH = len("01234567-0123-4123")


@dataclass
class Statement:
    """The names of the files of a statement. Equal names are never created twice."""

    mark: str
    is_away: bool = False
    """Whether another process may create files for it. True once it was pickled."""

    @classmethod
    def new(cls) -> Statement:
        """A statement that no file belongs to yet."""
        return cls(new_uuid()[:_MARK_LENGTH])

    def __getstate__(self) -> dict[str, Any]:
        self.is_away = True
        return self.__dict__

    def names(self) -> FileNames:
        """New names for one writer."""
        return FileNames(self.mark + new_uuid()[_MARK_LENGTH:])

    def has_named(self, path: str) -> bool:
        """Whether a file was created for this statement, by any task in any process."""
        return self.mark in path.rpartition("/")[2]
