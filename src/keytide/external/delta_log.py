"""What the log of a Delta table tells of where its files come from.

A commit is a JSON file, one action on a line. Old ones are removed once a checkpoint stands for
them, and checkpoints do not tell which commit added a file: files that are older than the oldest
commit still there are of no order among themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keytide.errors import DataError
from keytide.external.commit_order import Origin, hull
from keytide.store import Store

__all__ = ["Commit", "LogHistory", "history_of", "read_commits"]

_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")

_BEFORE_ALL = -1
_PUT_TOGETHER_OLD = ("CLONE", "CONVERT")
"""Operations that take over files which somebody wrote before."""
_WRITES = ("WRITE", "CREATE OR REPLACE TABLE AS SELECT", "REPLACE TABLE AS SELECT")
"""Operations whose files have new rows only, if they replace no rows by a condition."""


@dataclass(frozen=True)
class Commit:
    """One version: its operation, the paths that it adds, in their order, and those it removes.

    `changes_data` has, for each path that is added, whether rows are new or changed by it.
    """

    version: int
    operation: str
    replaces_by_condition: bool
    changes_data: Mapping[str, bool]
    removed: frozenset[str]


@dataclass(frozen=True)
class LogHistory:
    """Where files come from; `order` has the paths as they were added first."""

    origins: Mapping[str, Origin]
    order: Mapping[str, int]
    unknown: Origin

    def origin(self, path: str) -> Origin:
        """Where the rows of a file come from."""
        return self.origins.get(path, self.unknown)

    def turn(self, path: str) -> tuple[int, str]:
        """What sorts files as they were added; those that are older than the log by their names."""
        return self.order.get(path, -1), path


def read_commits(store: Store, version: int) -> list[Commit]:
    """The commits up to a version that are there without a gap, oldest first."""
    found = {int(m[1]) for m in map(_COMMIT.fullmatch, store.list_names(_LOG)) if m is not None}
    first = version + 1
    while first - 1 in found:
        first -= 1
    paths = [f"{_LOG}/{number:020d}.json" for number in range(first, version + 1)]
    texts = store.read_all(paths)
    return [
        _commit(number, store.uri_of(path), text)
        for number, path, text in zip(range(first, version + 1), paths, texts, strict=True)
    ]


def history_of(commits: Sequence[Commit], version: int) -> LogHistory:
    """Where files come from by the commits up to a version; older ones are not known."""
    oldest = commits[0].version if commits else version + 1
    unknown = Origin(_BEFORE_ALL, max(oldest - 1, 0))
    origins: dict[str, Origin] = {}
    for commit in commits:
        for path in commit.changes_data:
            if path not in origins:
                origins[path] = _origin(commit, path, origins, unknown)
    order = {path: number for number, path in enumerate(origins)}
    return LogHistory(origins, order, unknown)


def _origin(commit: Commit, path: str, origins: Mapping[str, Origin], unknown: Origin) -> Origin:
    """Where the rows of a file come from that the log has not told of before."""
    if path in commit.removed or commit.operation == "RESTORE":
        return unknown  # it was there before; now fewer of its rows are, or it is back
    if commit.operation in _PUT_TOGETHER_OLD:
        return Origin(commit.version, commit.version)
    gone = commit.removed - commit.changes_data.keys()
    copied = [origins.get(old, unknown) for old in sorted(gone)]
    if not commit.changes_data[path]:
        return hull(copied) if copied else unknown
    if not copied or (commit.operation in _WRITES and not commit.replaces_by_condition):
        return Origin.of_commit(commit.version)
    if commit.operation == "DELETE":
        return hull(copied)
    return Origin(hull(copied).first, commit.version)


def _commit(version: int, uri: str, text: bytes) -> Commit:
    try:
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        info: Mapping[str, Any] = next(
            (a["commitInfo"] for a in actions if a.get("commitInfo")), {}
        )
        added = {a["add"]["path"]: bool(a["add"]["dataChange"]) for a in actions if a.get("add")}
        removed = frozenset(a["remove"]["path"] for a in actions if a.get("remove"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{uri}: a line is no action of a Delta log ({type(error).__name__}: {error}); restore "
            f"the file from a copy, or read a version before it"
        ) from error
    return Commit(version, str(info.get("operation") or ""), _has_condition(info), added, removed)


def _has_condition(info: Mapping[str, Any]) -> bool:
    """Whether an overwrite replaced some rows only, so that others were copied."""
    told = info.get("operationParameters") or {}
    return any(told.get(name) not in (None, "", "[]") for name in ("predicate", "replaceWhere"))
