"""A table at one snapshot, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from keytide.format.index_manifest import IndexFile
from keytide.format.snapshot import Snapshot
from keytide.snapshot.dynamic_buckets import HashFiles
from keytide.snapshot.live_files import LiveFiles
from keytide.snapshot.statement import Statement
from keytide.snapshot.view import TableView

__all__ = ["TableState"]


@dataclass(frozen=True)
class TableState:
    """Everything that reads and writes of one snapshot need. Immutable and picklable.

    - `view` is the table at the schema to read or write with.
    - `live` are the files of the snapshot.
    - `vector_files` are the index files that mark rows as dead.
    - `key_files` are the index files that say where the current row of each key is.
    - `hash_files` are the index files that map the keys of dynamic buckets to buckets, for writers.
    """

    view: TableView
    live: LiveFiles
    vector_files: tuple[IndexFile, ...] = ()
    hash_files: HashFiles = field(default_factory=dict)
    key_files: tuple[IndexFile, ...] = ()

    @property
    def merging(self) -> TableState:
        """The same state, for reads that include what is not compacted yet."""
        return replace(self, view=self.view.merging)

    @property
    def as_stored(self) -> TableState:
        """The same state, in which no row is dead."""
        return replace(self, vector_files=(), key_files=())

    @property
    def with_history(self) -> TableState:
        """The same state, for reads that also search earlier rows of a key."""
        return replace(self, key_files=())

    def in_statement(self, statement: Statement) -> TableState:
        """The same state, on which a statement is based."""
        return replace(self, view=self.view.in_statement(statement))

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot. None if nothing was ever written."""
        return self.live.snapshot
