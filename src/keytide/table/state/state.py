"""A table at one snapshot, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from keytide.format.index_manifest import IndexFile
from keytide.format.snapshot import Snapshot
from keytide.table.state.dynamic_buckets import HashFiles
from keytide.table.state.live_files import LiveFiles
from keytide.table.state.view import TableView

__all__ = ["TableState"]


@dataclass(frozen=True)
class TableState:
    """All that reads and writes of one snapshot go by: it never changes, and it pickles.

    `view` is the table at the schema to read or write by, `live` the files of the snapshot,
    `vector_files` the index files that mark some of their rows as dead, `key_files` those that say
    where the current row of each key is, and `hash_files` those that say, to whoever writes, where
    the keys of dynamic buckets are.
    """

    view: TableView
    live: LiveFiles
    vector_files: tuple[IndexFile, ...] = ()
    hash_files: HashFiles = field(default_factory=dict)
    key_files: tuple[IndexFile, ...] = ()

    @property
    def merging(self) -> TableState:
        """The same state, of which reads see what is not compacted yet."""
        return replace(self, view=self.view.merging)

    @property
    def as_stored(self) -> TableState:
        """The same state, in which no row is dead."""
        return replace(self, vector_files=(), key_files=())

    @property
    def with_history(self) -> TableState:
        """The same state, of which a key's earlier rows are looked for too."""
        return replace(self, key_files=())

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot; None for a table that nobody has written to."""
        return self.live.snapshot
