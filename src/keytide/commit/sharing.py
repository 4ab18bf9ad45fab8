"""Folders that the processes of a statement must share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from keytide.base.process import this_host
from keytide.commit.change import made_files
from keytide.errors import DataError, SetupError
from keytide.format.manifest import ManifestEntry
from keytide.snapshot.state import TableView
from keytide.store.sharing import HOW_TO_SHARE
from keytide.write.task import Written

__all__ = ["check_shared"]


def check_shared(view: TableView, written: Iterable[Written]) -> None:
    """Raise `SetupError` if files that tasks of other processes wrote are not here.

    Looks for one file of each task, in a folder only: everyone sees the same object store.
    """
    away = view.statement is not None and view.statement.is_away
    if not away or view.store.local_path("schema") is None:
        return
    parts = [part for part in written if made_files(part.entries)]
    lasts = [made_files(part.entries)[-1] for part in parts]
    are_here = view.store.together([partial(_is_here, view, last) for last in lasts])
    _refuse(view, [part for part, is_here in zip(parts, are_here, strict=True) if not is_here])


def _is_here(view: TableView, entry: ManifestEntry) -> bool:
    try:
        return view.store.size(view.file_path(entry)) == entry.file.file_size
    except DataError:
        return False


def _refuse(view: TableView, lacking: Sequence[Written]) -> None:
    if not lacking:
        return
    hosts = ", ".join(sorted({part.host for part in lacking}))
    lost = made_files(lacking[0].entries)[-1]
    raise SetupError(
        f"table {view.name}: tasks on {hosts} wrote files into {view.store.uri} that do not exist "
        f"for the driver on {this_host()}, such as {view.file_path(lost)}. {HOW_TO_SHARE} "
        "Nothing was committed"
    )
