"""A table service: a database says which tables there are, and which snapshot of each is newest.

Data and metadata lie in folders as those of any other table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import keytide as kt
from keytide.catalogs.warehouse import StoredView
from keytide.dml.attachments import AttachedCatalog
from keytide.errors import UnsupportedError
from keytide.format import paths
from keytide.format.schema import TableSchema
from keytide.lake.lake import Lake
from keytide.snapshot.authority import FOLDER_COMMITS, NumberedDocument, TellChanges, no_changes
from keytide.snapshot.metadata import TableMetadata
from keytide.store import Store, open_store

__all__ = ["ServiceCommits", "ServiceWarehouse", "connect_by_service"]

_TABLES = """
CREATE TABLE IF NOT EXISTS tables
    (database TEXT, name TEXT, PRIMARY KEY (database, name));
CREATE TABLE IF NOT EXISTS heads
    (line TEXT PRIMARY KEY, id INTEGER NOT NULL, data BLOB NOT NULL);
"""

_NONE = (0, b"")
"""The head of a table without snapshots."""


@contextmanager
def changing(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection in which one process at a time changes what is there, all of it or nothing."""
    with answering(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")


@contextmanager
def answering(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


@dataclass(frozen=True)
class ServiceCommits:
    """The newest snapshot of a table, or of a branch, is what the database says."""

    database: Path
    keeper = None

    def newest(self, store: Store, known: NumberedDocument | None) -> Sequence[NumberedDocument]:
        with answering(self.database) as connection:
            head = self._head(connection, store)
        if head is None:
            return []
        # Whoever knew a snapshot wants to know whether it is one of this table still.
        is_before = known is not None and known.number < head.number
        path = paths.snapshot_path(known.number) if is_before and known is not None else ""
        (data,) = store.read_present([path]) if path else (None,)
        return [known, head] if known is not None and data == known.data else [head]

    def create(
        self, store: Store, snapshot_id: int, data: bytes, changes: TellChanges = no_changes
    ) -> bool:
        with changing(self.database) as connection:
            head = self._head(connection, store)
            if head is not None and snapshot_id != head.number + 1:
                return False
            # What a process left there that died before its commit was nobody's snapshot.
            store.put(paths.snapshot_path(snapshot_id), data)
            self._move(connection, store, NumberedDocument(snapshot_id, data))
        return True

    def remove(self, store: Store, snapshot_ids: Sequence[int]) -> None:
        for number in reversed(snapshot_ids):
            with changing(self.database) as connection:
                there = FOLDER_COMMITS.ids(store)
                # What a process left behind that died before its commit would stand after a gap.
                store.delete(paths.snapshot_path(i) for i in there if i >= number)
                left = [i for i in there if i < number]
                head = left and NumberedDocument(
                    left[-1], store.read(paths.snapshot_path(left[-1]))
                )
                self._move(connection, store, head or None)

    def ids(self, store: Store) -> list[int]:
        head = self.newest(store, None)
        return [n for n in FOLDER_COMMITS.ids(store) if head and n <= head[-1].number]

    def altered(self, store: Store, schema: TableSchema) -> None:
        pass

    def _head(self, connection: sqlite3.Connection, store: Store) -> NumberedDocument | None:
        text = "SELECT id, data FROM heads WHERE line = ?"
        row = connection.execute(text, [store.uri]).fetchone()
        if row == _NONE:
            return None
        if row is not None and store.read_present([paths.snapshot_path(row[0])]) == [row[1]]:
            return NumberedDocument(*row)
        # A branch that was just made, or made again under the name of another.
        found = FOLDER_COMMITS.newest(store, None)
        return found[-1] if found else None

    def _move(
        self, connection: sqlite3.Connection, store: Store, head: NumberedDocument | None
    ) -> None:
        values = _NONE if head is None else (head.number, head.data)
        connection.execute("INSERT OR REPLACE INTO heads VALUES (?, ?, ?)", [store.uri, *values])


@dataclass(frozen=True)
class ServiceWarehouse:
    """Tables lie in folders, and those are tables that the database knows."""

    database: Path
    store: Store
    places_first = True

    @property
    def uri(self) -> str:
        return f"service:{self.database}"

    @property
    def folder(self) -> str:
        return self.store.uri

    @property
    def exists(self) -> bool:
        return True

    def create_database(self, database: str, comment: str | None) -> bool:
        raise UnsupportedError(f"{self.uri} knows tables only; make one in {database}")

    def drop_database(self, database: str) -> bool:
        return database not in self.databases()

    def comment_on(self, database: str) -> str | None:
        return None

    def views(self, database: str) -> list[str]:
        return []

    def view(self, database: str, name: str) -> StoredView | None:
        return None

    def create_view(self, database: str, name: str, view: StoredView) -> bool:
        raise UnsupportedError(f"{self.uri} keeps no views; {database}.{name} is not made")

    def replace_view(self, database: str, name: str, view: StoredView) -> None:
        self.create_view(database, name, view)

    def drop_view(self, database: str, name: str) -> None:
        return

    def rename(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        raise UnsupportedError(f"{self.uri} renames no table; make {'.'.join(new)} anew")

    def databases(self) -> list[str]:
        return [name for (name,) in self._found("SELECT DISTINCT database FROM tables")]

    def tables(self, database: str) -> list[str]:
        return [n for (n,) in self._found("SELECT name FROM tables WHERE database = ?", database)]

    def likely_tables(self, database: str) -> list[str]:
        """See `Warehouse`."""
        return self.tables(database)

    def holds(self, database: str, table: str) -> bool:
        text = "SELECT name FROM tables WHERE database = ? AND name = ?"
        return bool(self._found(text, database, table))

    def metadata(self, database: str, table: str) -> TableMetadata:
        store = self.store.sub(_folder(database, table))
        return TableMetadata(store, f"{database}.{table}", ServiceCommits(self.database))

    def create(self, database: str, table: str, definition: TableSchema) -> bool:
        folder = _folder(database, table)
        with changing(self.database) as connection:
            if self.holds(database, table):
                return False
            self.store.put(paths.join(folder, paths.schema_path(0)), definition.to_json())
            connection.execute("INSERT INTO tables VALUES (?, ?)", [database, table])
            values = [self.store.sub(folder).uri, *_NONE]
            connection.execute("INSERT OR REPLACE INTO heads VALUES (?, ?, ?)", values)
        return True

    def is_half_dropped(self, database: str, table: str) -> bool:
        """See `Warehouse`. Always false: the service decides which tables exist."""
        return False

    def drop(self, database: str, table: str) -> None:
        with changing(self.database) as connection:
            values = [database, table]
            connection.execute("DELETE FROM tables WHERE database = ? AND name = ?", values)
        self.store.delete_tree(_folder(database, table))

    def _found(self, text: str, *values: str) -> list[tuple[str, ...]]:
        with answering(self.database) as connection:
            return connection.execute(f"{text} ORDER BY 1", values).fetchall()


def _folder(database: str, table: str) -> str:
    return f"{database}-{table}"


def connect_by_service(folder: Path, spark: object = None) -> kt.Lake:
    """A lake whose tables a service keeps; made where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    database = folder / "service.db"
    with answering(database) as connection:
        connection.executescript(_TABLES)
    return Lake(
        AttachedCatalog(ServiceWarehouse(database, open_store(str(folder / "files")))), spark
    )
