"""Explains errors about files that are missing although a snapshot references them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from keytide.errors import DataError
from keytide.snapshot.view import TableView

__all__ = ["naming_expired"]


@contextmanager
def naming_expired(view: TableView, snapshot_ids: Iterable[int]) -> Iterator[None]:
    """A block that reads snapshots: errors about a missing file say why it may be missing."""
    try:
        yield
    except DataError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        explained = _why_gone(view, snapshot_ids, str(error))
        if explained is None:
            raise
        raise explained from error.__cause__


def _why_gone(view: TableView, snapshot_ids: Iterable[int], reason: str) -> DataError | None:
    """The explanation of the first snapshot that has one. Files can also be missing without any."""
    one_by_one: list[tuple[int, ...]] = [(number,) for number in snapshot_ids] or [()]
    found = (view.files.why_gone(view.store, view.name, ids, reason) for ids in one_by_one)
    return next(filter(None, found), None)
