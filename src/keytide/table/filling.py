"""A new table with its first rows: it appears when they are committed, or not at all."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from keytide.errors import AlreadyExistsError, DataError
from keytide.format import paths
from keytide.format.manifest import ManifestEntry
from keytide.format.schema import TableSchema
from keytide.store import Store
from keytide.table.commit.commit import Change, Committed
from keytide.table.state.live_files import NO_FILES, LiveFiles
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.view import TableView
from keytide.table.table import Table, WriteResult

__all__ = ["create_filled"]


def create_filled(store: Store, name: str, definition: TableSchema, rows: Any) -> WriteResult:
    """Write the first rows of a table, and make it with their commit.

    Data files come first, under names that nobody reads; the definition, which is what makes a
    table, is created right before the snapshot. After an error neither is there. A process that
    dies leaves data files that belong to no table, or, between these two, an empty table.
    Raises `AlreadyExistsError` when another made the table meanwhile, and what `Table.write` does.
    """
    table = _NewTable(store, name, definition)
    try:
        written = table.write(rows)
        table.publish()
    except (Exception, KeyboardInterrupt):
        table.withdraw()
        raise
    return written


class _NewTable(Table):
    """A table that only its maker knows before its first commit."""

    def __init__(self, store: Store, name: str, definition: TableSchema) -> None:
        self._metadata = _NewMetadata(store, name, {0: definition})
        self._live = NO_FILES
        self._lock = threading.Lock()
        self._is_published = False
        self._entries: tuple[ManifestEntry, ...] = ()

    def commit(self, view: TableView, change: Change, known: LiveFiles) -> Committed:
        """Commit the first rows of the table."""
        self._entries = change.entries
        self.publish()
        return super().commit(view, change, known)

    def publish(self) -> None:
        """Let others see the table. Raises `AlreadyExistsError` if there is one by now."""
        if self._is_published:
            return
        store, path = self._metadata.store, paths.schema_path(0)
        data = self._metadata.latest_schema().to_json()
        try:
            self._is_published = store.create(path, data)
        except DataError:
            # The answer may be lost on the way, and the file be there.
            self._is_published = store.exists(path) and store.read(path) == data
            if not self._is_published:
                raise
        if not self._is_published:
            raise AlreadyExistsError(
                f"table {self.name} was made by another writer meanwhile; insert the rows into it, "
                f"or choose another name"
            )

    def withdraw(self) -> None:
        """Take back what was written, unless a commit names it. Best effort."""
        view = self.view(self._metadata.latest_schema())
        store = self._metadata.store
        with suppress(DataError):
            if self._is_published and self._metadata.latest_snapshot_id() is not None:
                return
            if self._is_published:
                store.delete([paths.schema_path(0)])
            store.delete([view.file_path(entry) for entry in self._entries])


class _NewMetadata(TableMetadata):
    """Metadata whose definition is not stored yet."""

    def latest_schema(self) -> TableSchema:
        """The definition that the table is to have."""
        return self._schemas[0]
