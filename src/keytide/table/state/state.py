"""A table at one snapshot, as one value."""

from __future__ import annotations

from dataclasses import dataclass

from keytide.format.index_manifest import IndexFile
from keytide.format.snapshot import Snapshot
from keytide.table.state.live_files import LiveFiles
from keytide.table.state.view import TableView

__all__ = ["TableState"]


@dataclass(frozen=True)
class TableState:
    """All that reads and writes of one snapshot go by: it never changes, and it pickles.

    `view` is the table at the schema to read or write by, `live` the files of the snapshot, and
    `vector_files` the index files that mark some of their rows as dead.
    """

    view: TableView
    live: LiveFiles
    vector_files: tuple[IndexFile, ...] = ()

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot; None for a table that nobody has written to."""
        return self.live.snapshot
