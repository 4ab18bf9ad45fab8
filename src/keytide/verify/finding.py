"""The findings of a verification, and how they are collected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from keytide.base import record
from keytide.base.dataclass import dataclass
from keytide.base.text import counted
from keytide.errors import DataError, InvalidError, NotFoundError, SetupError, UnsupportedError

RESTORE = "Restore the file from a backup, or read a snapshot that does not refer to it"
REWRITE = "Overwrite the damaged part with rows from their source, or read an older snapshot"


@dataclass(frozen=True)
class Finding:
    """One problem with something that is stored.

    `path` is the file, relative to the table. `what` is what was found, `expected` is what should
    be there, and `way_out` is how to fix it.
    """

    table: str
    path: str
    what: str
    expected: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}; expected: {self.expected}. {self.way_out}"


class Findings:
    """The findings in one table until now, each once, and what could not be checked."""

    def __init__(self, table: str) -> None:
        self.table = table
        self._found: dict[Finding, None] = {}
        self._unchecked: dict[str, None] = {}

    @property
    def found(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(self._found)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """What this release cannot check, with the reason."""
        return tuple(self._unchecked)

    def add(self, path: str, what: str, expected: str, way_out: str = RESTORE) -> None:
        """Something is wrong with a file."""
        self._found[Finding(self.table, path, what, expected, way_out)] = None

    def skip(self, path: str, why: str) -> None:
        """A file, or a part of its metadata, cannot be checked."""
        self._unchecked[f"{path}: {why}"] = None

    def take(self, others: Findings) -> None:
        """Add the findings of others."""
        self._found |= others._found
        self._unchecked |= others._unchecked

    @contextmanager
    def reading(self, path: str, expected: str = "the file as it was written") -> Iterator[None]:
        """A block that reads a file.

        If it cannot be read, that is a finding, and the block ends.
        """
        try:
            yield
        except (UnsupportedError, SetupError) as error:
            self.skip(path, _about(error, path))
        except (DataError, InvalidError, NotFoundError) as error:
            is_missing = isinstance(error.__cause__, FileNotFoundError)
            self.add(path, "missing" if is_missing else _about(error, path), expected)


@dataclass(frozen=True)
class Verification:
    """What a verification checked, and what it found.

    `snapshots` is the number of snapshots in all branches and tags, `files` the number of data
    files that they refer to, and `rows` the number of rows that were read. `unchecked` lists what
    this release cannot check.
    """

    table: str
    snapshots: int
    files: int
    rows: int
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def __str__(self) -> str:
        return "\n".join([self.summary, *map(str, self.findings), *self._left_out])

    def _repr_html_(self) -> str:
        rows = [(f.path, f.what, f.expected, f.way_out) for f in self.findings]
        found = record.table(("path", "what", "expected", "way out"), rows) if rows else ""
        return record.preformatted(self.summary) + found + record.bullets(self._left_out)

    @property
    def summary(self) -> str:
        """One line that says what was checked and how many findings there are."""
        seen = ", ".join(
            (
                counted(self.snapshots, "snapshot"),
                counted(self.files, "data file"),
                counted(self.rows, "row"),
            )
        )
        found = counted(len(self.findings), "finding") if self.findings else "no problems found"
        return f"table {self.table}: {seen} checked, {found}"

    @property
    def _left_out(self) -> list[str]:
        return [f"not checked: {each}" for each in self.unchecked]


def _about(error: Exception, path: str) -> str:
    """The message without the path, which the finding already has."""
    return str(error).removeprefix(f"{path}: ")
