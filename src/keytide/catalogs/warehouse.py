"""Where the tables of a lake are stored: maps names to metadata, independent of what tables are.

In a folder or a prefix of an object store, each table has a folder: `FolderWarehouse`. A table
service finds its tables in another way: it is another `Warehouse`, whose tables commit with its own
`Commits`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from keytide.catalogs.dropped_tables import (
    clear_leftovers,
    holds_leftovers,
    holds_table,
    remove_table,
)
from keytide.catalogs.stored_view import StoredView
from keytide.format import paths
from keytide.format.json_document import TEXT, optional_member, read_document
from keytide.format.schema import TableSchema
from keytide.snapshot.metadata import TableMetadata
from keytide.store import Store, created

__all__ = ["DATABASE_SUFFIX", "FolderWarehouse", "Warehouse"]

DATABASE_SUFFIX = ".db"
"""The suffix of a database's folder name."""
_SOME_DATABASE = "default"


class Warehouse(Protocol):
    """The tables under one root, by database and name, in the case in which they were created.

    Methods raise `DataError` if the place fails.
    """

    @property
    def uri(self) -> str:
        """The root, for messages, and as a name that distinguishes it from other warehouses."""
        ...

    @property
    def folder(self) -> str:
        """The common prefix of the tables' addresses. Empty if they may be anywhere."""
        ...

    @property
    def exists(self) -> bool:
        """Whether it exists. True if creating the first table creates it."""
        ...

    @property
    def places_first(self) -> bool:
        """Whether the location of a table is known before it is created, so that rows can be
        written first.
        """
        ...

    def databases(self) -> list[str]:
        """The names of databases."""
        ...

    def create_database(self, database: str, comment: str | None) -> bool:
        """Create a database without tables: atomic. False if one with that name exists."""
        ...

    def drop_database(self, database: str) -> bool:
        """Drop a database without tables. False if it is not empty."""
        ...

    def comment_on(self, database: str) -> str | None:
        """The comment of a database from its creation."""
        ...

    def tables(self, database: str) -> list[str]:
        """The names of the tables in a database. Empty if there is no such database."""
        ...

    def likely_tables(self, database: str) -> list[str]:
        """The same with as few requests as possible. Some of the names may no longer be tables."""
        ...

    def holds(self, database: str, table: str) -> bool:
        """Whether there is such a table."""
        ...

    def metadata(self, database: str, table: str) -> TableMetadata:
        """How a table is read and committed to, whether or not it exists already."""
        ...

    def create(self, database: str, table: str, definition: TableSchema) -> bool:
        """Create a table without rows: atomic. False if one with that name exists."""
        ...

    def drop(self, database: str, table: str) -> None:
        """Delete a table with all its files.

        Wherever this stops, the table exists whole, or it does not exist. A repeated call deletes
        what is left of one that `is_half_dropped`.
        """
        ...

    def is_half_dropped(self, database: str, table: str) -> bool:
        """Whether there is no such table, but files that an interrupted drop of one left."""
        ...

    def views(self, database: str) -> list[str]:
        """The names of the views in a database."""
        ...

    def view(self, database: str, name: str) -> StoredView | None:
        """A view. None if there is none."""
        ...

    def create_view(self, database: str, name: str, view: StoredView) -> bool:
        """Create a view: atomic. False if one with that name exists."""
        ...

    def replace_view(self, database: str, name: str, view: StoredView) -> None:
        """Create a view, or replace the one with that name: atomic."""
        ...

    def drop_view(self, database: str, name: str) -> None:
        """Drop a view."""
        ...

    def rename(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """Rename a table, (database, name): atomic. False if the new name is taken.

        Raises `UnsupportedError` if that is not possible in one step.
        """
        ...


@dataclass(frozen=True)
class FolderWarehouse:
    """Folders: `database.db/table`. A table exists if its first schema exists."""

    store: Store

    @property
    def uri(self) -> str:
        """See `Warehouse`."""
        return self.store.uri

    @property
    def folder(self) -> str:
        """See `Warehouse`."""
        return self.store.uri

    @property
    def exists(self) -> bool:
        """See `Warehouse`. True in an object store, which has no folders."""
        below = self.store.local_path(_SOME_DATABASE)
        # A name that is too long for the disk does not exist, which pathlib reports as an error.
        return below is None or os.path.isdir(below.parent)

    @property
    def places_first(self) -> bool:
        """See `Warehouse`. A name determines the location."""
        return True

    def databases(self) -> list[str]:
        """See `Warehouse`."""
        names = self.store.list_names()
        return [n.removesuffix(DATABASE_SUFFIX) for n in names if n.endswith(DATABASE_SUFFIX)]

    def create_database(self, database: str, comment: str | None) -> bool:
        """See `Warehouse`. A document that other engines skip creates it, also in object stores."""
        about = json.dumps({"version": 1, "comment": comment}).encode()
        if database in self.databases():
            return False
        return created(self.store, _about(database), about)

    def drop_database(self, database: str) -> bool:
        """See `Warehouse`."""
        for name in self.likely_tables(database):
            if self.is_half_dropped(database, name):
                self.drop(database, name)
        self.store.delete_tree(_bin(database))
        self.store.delete([_about(database)])
        self.store.delete_empty(_folder(database))
        return database not in self.databases()

    def comment_on(self, database: str) -> str | None:
        """See `Warehouse`."""
        (found,) = self.store.read_present([_about(database)])
        if found is None:
            return None
        path = self.store.uri_of(_about(database))
        comment: str | None = optional_member(read_document(found, path), "comment", TEXT, path)
        return comment

    def tables(self, database: str) -> list[str]:
        """See `Warehouse`."""
        names = self.likely_tables(database)
        held = self.store.together([partial(self.holds, database, name) for name in names])
        return [name for name, is_held in zip(names, held, strict=True) if is_held]

    def likely_tables(self, database: str) -> list[str]:
        """See `Warehouse`. One listing; a folder without a schema is no table."""
        names = self.store.list_names(_folder(database))
        return [name for name in names if not name.startswith(".")]

    def holds(self, database: str, table: str) -> bool:
        """See `Warehouse`."""
        return holds_table(self.store.sub(_path(database, table)))

    def is_half_dropped(self, database: str, table: str) -> bool:
        """See `Warehouse`."""
        return holds_leftovers(self.store.sub(_path(database, table)))

    def metadata(self, database: str, table: str) -> TableMetadata:
        """See `Warehouse`."""
        return TableMetadata(self.store.sub(_path(database, table)), f"{database}.{table}")

    def create(self, database: str, table: str, definition: TableSchema) -> bool:
        """See `Warehouse`."""
        store, path = self.store.sub(_path(database, table)), paths.schema_path(definition.id)
        if store.exists(path):
            return False
        there = store.list_names()
        # Checked first, because the first schema may have expired in an altered table. Then
        # creating it would succeed.
        if paths.schema_dir() in there and holds_table(store):
            return False
        clear_leftovers(store, there)
        return created(store, path, definition.to_json())

    def drop(self, database: str, table: str) -> None:
        """See `Warehouse`. One step decides, see `dropped_tables`."""
        remove_table(self.store, _path(database, table), _bin(database))

    def rename(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """See `Warehouse`."""
        if self.holds(*new):
            return False
        # The files of a writer whose table was dropped, and that died or was notified.
        self.store.delete_empty(_path(*new))
        return self.store.rename_tree(_path(*old), _path(*new))

    def views(self, database: str) -> list[str]:
        """See `Warehouse`."""
        names = self.store.list_names(_views(database))
        return [n.removesuffix(_VIEW_SUFFIX) for n in names if _is_view(n)]

    def view(self, database: str, name: str) -> StoredView | None:
        """See `Warehouse`."""
        path = _view_path(database, name)
        (found,) = self.store.read_present([path])
        if found is None:
            return None
        return StoredView.from_json(f"{database}.{name}", found, self.store.uri_of(path))

    def create_view(self, database: str, name: str, view: StoredView) -> bool:
        """See `Warehouse`."""
        return created(self.store, _view_path(database, name), view.to_json())

    def replace_view(self, database: str, name: str, view: StoredView) -> None:
        """See `Warehouse`."""
        self.store.put(_view_path(database, name), view.to_json())

    def drop_view(self, database: str, name: str) -> None:
        """See `Warehouse`."""
        self.store.delete([_view_path(database, name)])


_OWN = ".keytide"
"""The folder in a database for Keytide's own files. Other engines do not treat it as a table."""


def _folder(database: str) -> str:
    return f"{database}{DATABASE_SUFFIX}"


def _about(database: str) -> str:
    return f"{_folder(database)}/{_OWN}/database.json"


def _bin(database: str) -> str:
    """Where dropped tables are until their files are deleted."""
    return f"{_folder(database)}/{_OWN}/dropped"


_VIEW_SUFFIX = ".json"


def _views(database: str) -> str:
    return f"{_folder(database)}/{_OWN}/views"


def _view_path(database: str, name: str) -> str:
    return f"{_views(database)}/{name}{_VIEW_SUFFIX}"


def _is_view(name: str) -> bool:
    return name.endswith(_VIEW_SUFFIX) and not name.startswith(".")


def _path(database: str, table: str) -> str:
    return f"{_folder(database)}/{table}"
