"""What the data files of a table are: what reads them, and who else may.

Those of the table's own format are written by Keytide and engines like it. For files of another
format there is another class, which the `TableView` of their table brings: its reader makes of them
what a merge expects, and it says why they are not to be changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from keytide.errors import DataError, NotFoundError
from keytide.format import paths
from keytide.format.data_file import FileReader
from keytide.options import keys
from keytide.store import Store
from keytide.table.state.metadata import TableMetadata

__all__ = ["OWN_FILES", "DataFiles", "OwnFiles", "expired_error"]


class DataFiles(Protocol):
    """What is to be known of the data files of a table. Pickles."""

    @property
    def reader(self) -> Callable[..., FileReader]:
        """What reads one of them.

        Where the table keeps versions, it gives them in the order of the key, one of a key at most,
        and has their numbers and kinds, whether these are stored or not.
        """
        ...

    @property
    def are_plain(self) -> bool:
        """Whether whoever knows the format of a file finds there what `reader` gives."""
        ...

    @property
    def why_not_writable(self) -> str | None:
        """Why this release must not add to them or take them away; None where it may."""
        ...

    def why_gone(
        self, store: Store, table: str, snapshot_ids: Iterable[int], reason: str
    ) -> DataError | None:
        """What to say where a file is missing that one of some snapshots has.

        `reason` says which file it is. None where there is nothing to explain it by.
        """
        ...


@dataclass(frozen=True)
class OwnFiles:
    """Files of the table's own format, as tables have them by themselves."""

    reader: ClassVar[type[FileReader]] = FileReader
    are_plain: ClassVar[bool] = True
    why_not_writable: ClassVar[str | None] = None

    def why_gone(
        self, store: Store, table: str, snapshot_ids: Iterable[int], reason: str
    ) -> DataError | None:
        """See `DataFiles`: a snapshot that expires takes files with it."""
        expired = _expired_among(store, table, snapshot_ids)
        return expired_error(table, expired, reason) if expired else None


OWN_FILES = OwnFiles()


def _expired_among(store: Store, table: str, snapshot_ids: Iterable[int]) -> list[int]:
    """Those of some snapshots that have expired, and that no tag keeps."""
    gone = [n for n in snapshot_ids if not store.exists(paths.snapshot_path(n))]
    metadata = TableMetadata(store, table)
    return [number for number in gone if not _is_tagged(metadata, number)]


def expired_error(table: str, snapshot_ids: Sequence[int], reason: str) -> DataError:
    """What to raise where one of some snapshots expired before it was read."""
    which = " or ".join(map(str, snapshot_ids))
    return DataError(
        f"table {table}: snapshot {which} expired before it was read: {reason}. "
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
