"""Where the tables of a lake lie: names to metadata, and nothing of what tables are.

A folder or a prefix of an object store has a folder for each table: `FolderWarehouse`. A table
service knows its tables otherwise: another `Warehouse`, whose tables commit by its own `Commits`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from keytide.format import paths
from keytide.format.json_document import TEXT, optional_member, read_document
from keytide.format.schema import TableSchema
from keytide.store import Store, created
from keytide.table.state.metadata import TableMetadata
from keytide.table.stored_view import StoredView

__all__ = ["DATABASE_SUFFIX", "FolderWarehouse", "Warehouse"]

DATABASE_SUFFIX = ".db"
"""What the name of a database's folder ends with."""
_SOME_DATABASE = "default"


class Warehouse(Protocol):
    """The tables under one root, by database and name, in the case in which they were made.

    Methods raise `DataError` when the place fails.
    """

    @property
    def uri(self) -> str:
        """The root, for messages and as a name that sets it apart from other warehouses."""
        ...

    @property
    def folder(self) -> str:
        """What tables' own addresses lie below; an empty text where they may lie anywhere."""
        ...

    @property
    def exists(self) -> bool:
        """Whether it is there; true where the first table that is made makes it."""
        ...

    @property
    def places_first(self) -> bool:
        """Whether a table's place is known before it is made, so that rows can be there first."""
        ...

    def databases(self) -> list[str]:
        """The names of databases."""
        ...

    def create_database(self, database: str, comment: str | None) -> bool:
        """Make a database without tables: atomic; False where there is one of that name."""
        ...

    def drop_database(self, database: str) -> bool:
        """Forget a database without tables; False where something is in it all the same."""
        ...

    def comment_on(self, database: str) -> str | None:
        """What was said of a database when it was made."""
        ...

    def tables(self, database: str) -> list[str]:
        """The names of the tables of a database; none where there is no such database."""
        ...

    def likely_tables(self, database: str) -> list[str]:
        """The same by as few requests as possible: some names may have no table any more."""
        ...

    def holds(self, database: str, table: str) -> bool:
        """Whether there is such a table."""
        ...

    def metadata(self, database: str, table: str) -> TableMetadata:
        """How a table is read and committed to, whether it is there or is to be made."""
        ...

    def create(self, database: str, table: str, definition: TableSchema) -> bool:
        """Make a table without rows: atomic; False where there is one of that name."""
        ...

    def drop(self, database: str, table: str) -> None:
        """Delete a table with all its files."""
        ...

    def views(self, database: str) -> list[str]:
        """The names of the views of a database."""
        ...

    def view(self, database: str, name: str) -> StoredView | None:
        """A view; None where there is none."""
        ...

    def create_view(self, database: str, name: str, view: StoredView) -> bool:
        """Make a view: atomic; False where there is one of that name."""
        ...

    def replace_view(self, database: str, name: str, view: StoredView) -> None:
        """Make a view, in the place of the one of that name if there is one: atomic."""
        ...

    def drop_view(self, database: str, name: str) -> None:
        """Forget a view."""
        ...

    def rename(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """Give a table, (database, name), another name: atomic; False where something has it.

        Raises `UnsupportedError` where that cannot be done in one step.
        """
        ...


@dataclass(frozen=True)
class FolderWarehouse:
    """Folders: `database.db/table`. A table is there when its first schema is."""

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
        """See `Warehouse`. True in an object store, which knows no folders."""
        below = self.store.local_path(_SOME_DATABASE)
        # A name that is too long for the disk is nowhere, which pathlib says by an error.
        return below is None or os.path.isdir(below.parent)

    @property
    def places_first(self) -> bool:
        """See `Warehouse`. A name is a place."""
        return True

    def databases(self) -> list[str]:
        """See `Warehouse`."""
        names = self.store.list_names()
        return [n.removesuffix(DATABASE_SUFFIX) for n in names if n.endswith(DATABASE_SUFFIX)]

    def create_database(self, database: str, comment: str | None) -> bool:
        """See `Warehouse`. A document that other engines skip makes it, in object stores too."""
        about = json.dumps({"version": 1, "comment": comment}).encode()
        if database in self.databases():
            return False
        return created(self.store, _about(database), about)

    def drop_database(self, database: str) -> bool:
        """See `Warehouse`."""
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
        path = _path(database, table)
        if self.store.exists(paths.join(path, paths.schema_path(0))):
            return True
        # A writer that died may have left a temporary file, which makes no table.
        names = self.store.list_names(paths.join(path, paths.schema_dir()))
        return any(paths.parse_schema_name(name) is not None for name in names)

    def metadata(self, database: str, table: str) -> TableMetadata:
        """See `Warehouse`."""
        return TableMetadata(self.store.sub(_path(database, table)), f"{database}.{table}")

    def create(self, database: str, table: str, definition: TableSchema) -> bool:
        """See `Warehouse`."""
        # Looked for first, because the schema of an altered table has another number: creating the
        # first one would succeed where it was expired.
        if self.holds(database, table):
            return False
        path = paths.join(_path(database, table), paths.schema_path(definition.id))
        return created(self.store, path, definition.to_json())

    def drop(self, database: str, table: str) -> None:
        """See `Warehouse`."""
        self.store.delete_tree(_path(database, table))

    def rename(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """See `Warehouse`."""
        if self.holds(*new):
            return False
        # What a writer left that lost its table, and died or was told so.
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
"""The folder of a database for what is Keytide's alone. Other engines take it for no table."""


def _folder(database: str) -> str:
    return f"{database}{DATABASE_SUFFIX}"


def _about(database: str) -> str:
    return f"{_folder(database)}/{_OWN}/database.json"


_VIEW_SUFFIX = ".json"


def _views(database: str) -> str:
    return f"{_folder(database)}/{_OWN}/views"


def _view_path(database: str, name: str) -> str:
    return f"{_views(database)}/{name}{_VIEW_SUFFIX}"


def _is_view(name: str) -> bool:
    return name.endswith(_VIEW_SUFFIX) and not name.startswith(".")


def _path(database: str, table: str) -> str:
    return f"{_folder(database)}/{table}"
