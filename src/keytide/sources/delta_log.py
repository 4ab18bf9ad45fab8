"""The origin of a Delta table's files, from its log.

A commit is a JSON file with one action per line. Old commits are removed once there is a
checkpoint, and a checkpoint does not say which commit added a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from keytide.errors import DataError
from keytide.format.cache import METADATA
from keytide.sources.file_history import FileCommit, RowsAre
from keytide.store import Store

__all__ = ["read_commits"]

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
    return FileCommit(number, _rows_of(info, added, removed), removed - added.keys())


def _rows_of(
    info: Mapping[str, Any], added: Mapping[str, bool], removed: Iterable[str]
) -> dict[str, RowsAre]:
    """The kind of rows in files, given whether the files changed data."""
    new = _new_rows(info)
    return {
        path: RowsAre.KNOWN if path in removed else new if changes else RowsAre.COPIED
        for path, changes in added.items()
    }


def _new_rows(info: Mapping[str, Any]) -> RowsAre:
    """The kind of rows in new files, by operation."""
    operation = str(info.get("operation") or "")
    if operation == "RESTORE":
        return RowsAre.KNOWN
    if operation in _TAKES_OVER:
        return RowsAre.TAKEN_OVER
    if operation == "DELETE":
        return RowsAre.COPIED
    told = info.get("operationParameters") or {}
    conditions = (told.get(name) for name in ("predicate", "replaceWhere"))
    is_partial = any(condition not in (None, "", "[]") for condition in conditions)
    return RowsAre.NEW if operation in _WRITES and not is_partial else RowsAre.MIXED
