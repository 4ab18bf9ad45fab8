"""Files that Spark's own reader reads for tables, for the error when it does not find one.

Spark looks for a file when it plans a query and again when it reads. Either can happen long after
the DataFrame was created, in the code of its user.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from urllib.parse import unquote

from keytide.base.process import this_host
from keytide.errors import DataError, KeytideError, SetupError
from keytide.format.data_file import missing_file
from keytide.snapshot.view import TableView
from keytide.store.base import storage_error
from keytide.store.sharing import HOW_TO_SHARE

__all__ = ["missing_file_error", "pin", "pin_external"]

_PLACES_MAX, _SNAPSHOTS_MAX = 1000, 1000
_MISSING = re.compile(
    r"FILE_NOT_EXIST\].*?reading file (?P<escaped>\S+?)\.\s"
    r"|\[PATH_NOT_FOUND\] Path does not exist: (?P<plain>.+?)\.(?: SQLSTATE|\s|$)",
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)")
_HOST = re.compile(r"\(TID \d+\) \((\S+) executor ")


def pin(folders: Iterable[str], view: TableView, snapshot_ids: tuple[int, ...]) -> None:
    """Remember that the table's files below some folders are being read for some snapshots.

    The folders are URIs whose names are not escaped.
    """
    with _LOCK:
        for folder in folders:
            place = folder.partition("://")[2], view.store.uri
            _, known = _PINNED.pop(place, (view, ()))
            ids = tuple(dict.fromkeys((*known, *snapshot_ids)))[-_SNAPSHOTS_MAX:]
            _keep(place, (view, ids))


def pin_external(uris: Iterable[str]) -> None:
    """Remember that the files at some URIs, whose names are not escaped, are being read."""
    with _LOCK:
        for folder in {uri.partition("://")[2].rpartition("/")[0] for uri in uris}:
            _PINNED.pop((folder, ""), None)
            _keep((folder, ""), (None, ()))


def missing_file_error(report: str) -> KeytideError | None:
    """The error for a file of such a table that Spark's reader did not find, otherwise None.

    It is the error of a local read of the file. It is a `SetupError` if the file exists here.
    """
    found = _MISSING.search(report)
    if found is None:
        return None
    scheme, _, after = (found["plain"] or unquote(found["escaped"])).partition(":")
    path = after.removeprefix("//")
    pinned = _pinned_above(path)
    if not pinned:  # Spark was given an escaped name, see `parquet_files`
        path = _ESCAPED.sub(r"\1", path)
        pinned = _pinned_above(path)
    if not pinned:
        return None
    if scheme == "file" and os.path.isfile(path):
        return _not_shared(path, report)
    # Branches of a table share files, so assume the snapshot that was read last.
    return _gone(path, *pinned[-1])


def _pinned_above(path: str) -> list[tuple[TableView | None, tuple[int, ...]]]:
    with _LOCK:
        return [each for (folder, _), each in _PINNED.items() if path.startswith(f"{folder}/")]


def _gone(path: str, view: TableView | None, snapshot_ids: tuple[int, ...]) -> DataError:
    if view is None:
        return storage_error("read", path, FileNotFoundError())
    reason = str(missing_file(path))
    return view.files.why_gone(view.store, view.name, snapshot_ids, reason) or DataError(reason)


def _not_shared(path: str, report: str) -> SetupError:
    hosts = ", ".join(dict.fromkeys(_HOST.findall(report))) or "an executor"
    return SetupError(
        f"{path} exists for the driver on {this_host()}, but not for a task on {hosts}. "
        f"{HOW_TO_SHARE}"
    )


def _keep(place: tuple[str, str], read: tuple[TableView | None, tuple[int, ...]]) -> None:
    """Remember what is read below a folder. REQUIRES: the lock."""
    _PINNED[place] = read
    while len(_PINNED) > _PLACES_MAX:
        _PINNED.popitem(last=False)


_LOCK = threading.Lock()
_PINNED: OrderedDict[tuple[str, str], tuple[TableView | None, tuple[int, ...]]] = OrderedDict()
