"""Snapshots whose files Spark's own reader reads, for the error message when they expire."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from keytide.errors import DataError
from keytide.table.state.view import TableView

__all__ = ["missing_file_error", "pin"]

_PLACES_MAX, _SNAPSHOTS_MAX = 1000, 1000
_MISSING = re.compile(r"FILE_NOT_EXIST\].*?reading file (\S+?)\.\s", re.DOTALL)


def pin(folders: Iterable[str], view: TableView, snapshot_ids: tuple[int, ...]) -> None:
    """Remember that the table's files below some folders are being read for some snapshots.

    The folders are URIs whose names are not escaped.
    """
    with _LOCK:
        for folder in folders:
            place = folder.partition("://")[2], view.store.uri
            _, known = _PINNED.pop(place, (view, ()))
            ids = tuple(dict.fromkeys((*known, *snapshot_ids)))[-_SNAPSHOTS_MAX:]
            _PINNED[place] = view, ids
        while len(_PINNED) > _PLACES_MAX:
            _PINNED.popitem(last=False)


def missing_file_error(report: str) -> DataError | None:
    """The error for a file of such a table that Spark's reader did not find, otherwise None."""
    found = _MISSING.search(report)
    if found is None:
        return None
    uri = urlsplit(found[1])
    path = unquote(uri.netloc + uri.path)
    with _LOCK:
        pinned = [each for (folder, _), each in _PINNED.items() if path.startswith(f"{folder}/")]
    # Branches of a table share files, so assume the snapshot that was read last.
    return _gone(path, *pinned[-1]) if pinned else None


def _gone(path: str, view: TableView, snapshot_ids: tuple[int, ...]) -> DataError:
    reason = f"data file {path} is missing"
    return view.files.why_gone(view.store, view.name, snapshot_ids, reason) or DataError(
        f"table {view.name}: {reason}, but a snapshot needs it; restore it, or read an older "
        "snapshot"
    )


_LOCK = threading.Lock()
_PINNED: OrderedDict[tuple[str, str], tuple[TableView, tuple[int, ...]]] = OrderedDict()
