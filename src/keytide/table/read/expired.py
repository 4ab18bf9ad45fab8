"""Files that are gone because what named them has expired."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from keytide.errors import DataError, NotFoundError
from keytide.format import paths
from keytide.options import keys
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.view import TableView

__all__ = ["expired_among", "expired_error", "naming_expired"]


@contextmanager
def naming_expired(view: TableView, snapshot_ids: Iterable[int]) -> Iterator[None]:
    """A block that reads snapshots: an error about a file that is gone names one that expired."""
    try:
        yield
    except DataError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        expired = expired_among(view, snapshot_ids)
        if not expired:
            raise
        raise expired_error(view, expired[:1], str(error)) from error.__cause__


def expired_among(view: TableView, snapshot_ids: Iterable[int]) -> list[int]:
    """Those of some snapshots that have expired, and that no tag keeps."""
    gone = [n for n in snapshot_ids if not view.store.exists(paths.snapshot_path(n))]
    metadata = TableMetadata(view.store, view.name)
    return [number for number in gone if not _is_tagged(metadata, number)]


def expired_error(view: TableView, snapshot_ids: Sequence[int], reason: str) -> DataError:
    """What to raise where one of some snapshots expired before it was read."""
    which = " or ".join(map(str, snapshot_ids))
    return DataError(
        f"table {view.name}: snapshot {which} expired before it was read: {reason}. "
        f"Read again: the newest snapshot is there, for a DataFrame that is made anew. Raise "
        f"'{keys.SNAPSHOT_TIME_RETAINED}' where reads take longer, or read a tag, "
        f"which keeps its files"
    )


def _is_tagged(metadata: TableMetadata, snapshot_id: int) -> bool:
    for name in metadata.store.list_names(paths.tag_dir()):
        tag = paths.parse_tag_name(name)
        try:
            if tag is not None and metadata.tag(tag).id == snapshot_id:
                return True
        except NotFoundError:  # deleted meanwhile
            continue
    return False
