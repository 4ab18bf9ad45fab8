"""The data files of a table: how they are read, and who else can read them.

Files in the table's own format are written by Keytide and compatible engines. The `TableView` of a
table with another file format provides another class. Its reader returns what a merge expects, and
the class says why the files must not be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from keytide.errors import DataError, NotFoundError
from keytide.format import paths
from keytide.format.data_file import FileReader
from keytide.options import keys
from keytide.snapshot.metadata import TableMetadata
from keytide.store import Store

__all__ = ["OWN_FILES", "DataFiles", "OwnFiles", "expired_error"]


class DataFiles(Protocol):
    """Describes the data files of a table. Picklable."""

    @property
    def reader(self) -> Callable[..., FileReader]:
        """The class that reads one file.

        If the table stores versions, it returns them in key order, at most one version per key. It
        also returns their sequence numbers and kinds, whether these are stored or not.
        """
        ...

    @property
    def are_plain(self) -> bool:
        """Whether readers of the plain file format find the same rows as `reader` returns."""
        ...

    @property
    def why_not_writable(self) -> str | None:
        """Why this release must not add or remove files. None if it can."""
        ...

    def why_gone(
        self, store: Store, table: str, snapshot_ids: Iterable[int], reason: str
    ) -> DataError | None:
        """The error to raise if a file of one of these snapshots is missing.

        `reason` says which file it is. None if nothing explains the missing file.
        """
        ...


@dataclass(frozen=True)
class OwnFiles:
    """Files in the table's own format. This is the default."""

    reader: ClassVar[type[FileReader]] = FileReader
    are_plain: ClassVar[bool] = True
    why_not_writable: ClassVar[str | None] = None

    def why_gone(
        self, store: Store, table: str, snapshot_ids: Iterable[int], reason: str
    ) -> DataError | None:
        """See `DataFiles`: the expiry of a snapshot deletes files."""
        expired = _expired_among(store, table, snapshot_ids)
        return expired_error(table, expired, reason) if expired else None


OWN_FILES = OwnFiles()


def _expired_among(store: Store, table: str, snapshot_ids: Iterable[int]) -> list[int]:
    """Those snapshots that have expired and are not kept by a tag."""
    gone = [n for n in snapshot_ids if not store.exists(paths.snapshot_path(n))]
    metadata = TableMetadata(store, table)
    return [number for number in gone if not _is_tagged(metadata, number)]


def expired_error(table: str, snapshot_ids: Sequence[int], reason: str) -> DataError:
    """The error to raise if one of these snapshots expired before it was read."""
    which = " or ".join(map(str, snapshot_ids))
    return DataError(
        f"table {table}: snapshot {which} expired before it was read: {reason}. Read again from "
        "the latest snapshot, with a new DataFrame if you use Spark. If reads take longer, "
        f"increase '{keys.SNAPSHOT_TIME_RETAINED}', or read from a tag, which keeps its files"
    )


def _is_tagged(metadata: TableMetadata, snapshot_id: int) -> bool:
    for name in metadata.store.list_names(paths.tag_dir()):
        tag = paths.parse_tag_name(name)
        try:
            if tag is not None and metadata.tag(tag).id == snapshot_id:
                return True
        except NotFoundError:  # deleted in the meantime
            continue
    return False
