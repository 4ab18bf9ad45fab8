"""The origin of versions in a Delta table: which commit added a file, and the order of commits.

A commit is a JSON file with one action per line. Old commits are removed once there is a
checkpoint, and a checkpoint does not say which commit added a file. Files older than the oldest
known commit have no order.

A file that was written once has rows of one commit. A file that combines older files, because the
table's own engine has rewritten them, has rows of several commits, whose order is lost. So a file
has a range of commits. Files with overlapping ranges are treated as one commit without an internal
order. So an order is used only if it is known, and is never wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from keytide.base.dataclass import dataclass
from keytide.errors import DataError
from keytide.format.cache import METADATA
from keytide.store import Store

# -- the commit order of files ---------------------------------------------------------------------


@dataclass(frozen=True)
class Origin:
    """The range of commits, from `first` to `last`, from which the rows of a file come.

    `is_in_order` means that the rows are in order of arrival, which requires a single commit.
    """

    first: int
    last: int
    is_in_order: bool = False


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
    # The file numbers, grouped by overlapping ranges, directly or through others.
    groups: list[list[int]] = []
    end = 0
    for i in sorted(range(len(origins)), key=lambda i: origins[i].first):
        if groups and origins[i].first <= end:
            groups[-1].append(i)
            end = max(end, origins[i].last)
        else:
            groups.append([i])
            end = origins[i].last

    found: dict[int, Place] = {}
    for members in groups:
        commit = max(origins[i].last for i in members)
        is_in_order = all(origins[i].is_in_order for i in members)
        found |= dict.fromkeys(members, Place(commit, is_in_order))
    return [found[i] for i in range(len(origins))]


# -- origins from commits --------------------------------------------------------------------------


BEFORE_ALL = -1


class RowOrigin(Enum):
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
    added: Mapping[str, RowOrigin]
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
        number = commit.number
        copied = [origins.get(file, unknown) for file in sorted(commit.gone)]
        for file, rows in commit.added.items():
            if file in origins:
                continue
            if rows is RowOrigin.KNOWN or (rows is RowOrigin.COPIED and not copied):
                origins[file] = unknown
            elif rows is RowOrigin.TAKEN_OVER:
                origins[file] = Origin(number, number)
            elif rows is RowOrigin.COPIED:
                origins[file] = hull(copied)
            elif rows is RowOrigin.MIXED and copied:
                origins[file] = Origin(hull(copied).first, number)
            else:
                origins[file] = Origin(number, number, is_in_order=True)
    order = {file: place for place, file in enumerate(origins)}
    return FileHistory(origins, order, unknown)


# -- commits in the log ----------------------------------------------------------------------------


_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")

_TAKES_OVER = ("CLONE", "CONVERT")
"""Operations that add files which existed before."""
_WRITES = ("WRITE", "CREATE OR REPLACE TABLE AS SELECT", "REPLACE TABLE AS SELECT")
"""Operations whose files contain only new rows, unless they replace rows by a condition."""


def read_commits(store: Store, table_id: str, version: int) -> list[FileCommit]:
    """The existing commits up to a version without a gap, oldest first.

    Each commit is read once per process, because it never changes, and a table that replaces
    another one has another id.
    """
    found = {int(m[1]) for m in map(_COMMIT.fullmatch, store.list_names(_LOG)) if m is not None}
    first = version + 1
    while first - 1 in found:
        first -= 1
    numbers = range(first, version + 1)
    keys = {number: ("commit of Delta", store.identity, table_id, number) for number in numbers}
    known = {number: METADATA.find(keys[number]) for number in numbers}
    unread = [number for number in numbers if known[number] is None]
    paths = [f"{_LOG}/{number:020d}.json" for number in unread]
    for number, path, text in zip(unread, paths, store.read_all(paths), strict=True):
        known[number] = _commit(number, store.uri_of(path), text)
        METADATA.keep(keys[number], known[number], len(text))
    return list(known.values())


def _commit(number: int, uri: str, text: bytes) -> FileCommit:
    try:
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        info: Mapping[str, Any] = next(
            (a["commitInfo"] for a in actions if a.get("commitInfo")), {}
        )
        added = {a["add"]["path"]: bool(a["add"]["dataChange"]) for a in actions if a.get("add")}
        removed = frozenset(a["remove"]["path"] for a in actions if a.get("remove"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{uri}: a line is not a valid action of a Delta log ({type(error).__name__}: "
            f"{error}); restore the file from a backup, or read an earlier version"
        ) from error

    # The kind of rows in files, given whether the files changed data.

    # The kind of rows in new files, by operation.
    operation = str(info.get("operation") or "")
    if operation == "RESTORE":
        new = RowOrigin.KNOWN
    elif operation in _TAKES_OVER:
        new = RowOrigin.TAKEN_OVER
    elif operation == "DELETE":
        new = RowOrigin.COPIED
    else:
        parameters = info.get("operationParameters") or {}
        conditions = (parameters.get(name) for name in ("predicate", "replaceWhere"))
        is_partial = any(condition not in (None, "", "[]") for condition in conditions)
        new = RowOrigin.NEW if operation in _WRITES and not is_partial else RowOrigin.MIXED
    rows_of = {
        path: RowOrigin.KNOWN if path in removed else new if changes else RowOrigin.COPIED
        for path, changes in added.items()
    }
    return FileCommit(number, rows_of, removed - added.keys())
