"""Files that are gone because what named them has expired."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from keytide.errors import DataError, NotFoundError
from keytide.format import paths
from keytide.options import keys
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.view import TableView

__all__ = ["naming_expired"]


@contextmanager
def naming_expired(view: TableView, snapshot_ids: Iterable[int]) -> Iterator[None]:
    """A block that reads snapshots: an error about a file that is gone names one that expired."""
    try:
        yield
    except DataError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        metadata = TableMetadata(view.store, view.name)
        for number in snapshot_ids:
            if not view.store.exists(paths.snapshot_path(number)) and not _is_tagged(
                metadata, number
            ):
                raise DataError(
                    f"table {view.name}: snapshot {number} expired before it was read: {error}. "
                    f"Read again: the newest snapshot is there. Raise "
                    f"'{keys.SNAPSHOT_TIME_RETAINED}' where reads take longer, or read a tag, "
                    f"which keeps its files"
                ) from error.__cause__
        raise


def _is_tagged(metadata: TableMetadata, snapshot_id: int) -> bool:
    for name in metadata.store.list_names(paths.tag_dir()):
        tag = paths.parse_tag_name(name)
        try:
            if tag is not None and metadata.tag(tag).id == snapshot_id:
                return True
        except NotFoundError:  # deleted meanwhile
            continue
    return False
