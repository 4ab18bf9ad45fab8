"""Warehouses: where the tables and views of a lake are stored, and how a table is dropped.

A warehouse maps names to metadata, independent of what tables are. In a folder or a prefix of an
object store, each table has a folder: `FolderWarehouse`. A table service finds its tables in
another way: it is another `Warehouse`, whose tables commit with its own `Commits`.

A drop has one step that decides. Where folders can be renamed, the table's folder gets a name that
nobody reads. In an object store, a mark is written, which counts once the first schema is gone, and
then the first schema is deleted. The other files follow, the mark last. Before the step the table
is whole. After it the table does not exist, no matter which of its files are still there.

A writer that began before the drop may leave files under the name of the table. Those whose names
would be used again are deleted before another table gets the name. The mark ensures that only one
process does this, and never to a table that was just created.

Apache Paimon's filesystem catalog does not support views. They are stored where its readers do not
look for tables: `database.db/.keytide/views/name.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass
from keytide.errors import ConflictError, DataError, InvalidError, UnsupportedError
from keytide.format import paths
from keytide.format.delta_log import LOG_DIR
from keytide.format.iceberg_metadata import METADATA_DIR
from keytide.format.json_document import (
    INTEGER,
    TEXT,
    TEXTS,
    member,
    optional_member,
    read_document,
)
from keytide.format.schema import TableSchema
from keytide.options.values import size
from keytide.snapshot.metadata import TableMetadata
from keytide.store import CachedStore, CacheFolder, Store, created

# -- dropped tables --------------------------------------------------------------------------------


_FIRST = paths.schema_path(0)
_MARK = paths.dropped_path()
# Each round deletes what others have written since the previous round.
_ROUNDS_MAX = 5
# Everything else has unique names, and is an orphan without these.
_FOUND_BY_NAME = frozenset(
    {
        paths.schema_dir(), paths.snapshot_dir(), paths.tag_dir(), paths.consumer_dir(),
        paths.changelog_dir(), paths.branches_dir(), METADATA_DIR, LOG_DIR,
    }
)  # fmt: skip


def holds_table(store: Store) -> bool:
    """Whether the folder that a store is rooted at is a table."""
    if store.exists(_FIRST):
        return True
    # The first schema may have expired in an altered table. A writer that died may have left a
    # temporary file, which is not a table.
    names = store.list_names(paths.schema_dir())
    is_dropped = _MARK.rpartition("/")[2] in names
    return not is_dropped and any(paths.parse_schema_name(n) is not None for n in names)


def clear_leftovers(store: Store, there: Collection[str]) -> None:
    """Delete the documents of a dropped table. `there` are the names in the folder.

    Nothing is deleted if the folder is a table. Raises `ConflictError` if another process is
    deleting them, or died at it.
    """
    if not _documents(store, there):
        return
    if not created(store, _MARK, paths.new_uuid().encode()):
        raise ConflictError(
            f"{store.uri}: a table of this name is being dropped by another process, or the drop "
            "was interrupted; if it was, drop the table again, and then create it"
        )
    if not holds_table(store):
        files = (info.path for folder in _FOUND_BY_NAME for info in store.list(folder))
        store.delete([path for path in files if path != _MARK])
    store.delete([_MARK])


def _documents(store: Store, there: Iterable[str]) -> list[str]:
    """The folders of a table's documents that are not empty."""
    found = _FOUND_BY_NAME & {*there}
    return [folder for folder in sorted(found) if next(iter(store.list(folder)), None)]


# -- the local cache of stored files ---------------------------------------------------------------


CACHE_BYTES = 10 << 30
"""The default maximum size of a cache."""

# A smaller cache could not hold the manifests of one table.
_CACHE_BYTES_MIN = 1 << 20


def with_cache(store: Store, cache: CacheFolder | None) -> Store:
    """The store, with a cache for files that never change.

    Raises `InvalidError` for a store on local disk: a cache would only duplicate it.
    """
    if cache is None:
        return store
    if store.local_path("any") is not None:
        raise InvalidError(
            f"cache: {store.uri} is on the local disk, where files need no cache; remove the "
            "argument, which is only for object stores such as s3://"
        )
    return CachedStore(store, cache, paths.never_changes)


def cache_folder(
    cache: str | Path | None, cache_bytes: int | str | None, names: tuple[str, str]
) -> CacheFolder | None:
    """The cache in a folder, with a maximum size such as '10 gb'. None if neither is given.

    `names` are the names of the two settings in messages. Raises `InvalidError` if the folder is
    not usable, if the size is invalid, and for a size without a folder.
    """
    name, name_of_bytes = names
    if cache is None:
        if cache_bytes is None:
            return None
        raise InvalidError(
            f"{name_of_bytes} is {shown(cache_bytes)}, but {name} is not set; set it to a local "
            "folder for the cache, or remove both"
        )
    bytes_max = CACHE_BYTES
    if cache_bytes is not None:
        try:
            bytes_max = size(_CACHE_BYTES_MIN).parse(str(cache_bytes))
        except ValueError as error:
            message = f"{name_of_bytes} is {shown(cache_bytes)}; expected {error}"
            raise InvalidError(message) from None
    given, expected = str(cache), "expected a local folder, which is created if it does not exist"
    if not given.strip() or "\0" in given or "://" in given:
        raise InvalidError(f"{name} is {shown(given)}; {expected}")
    folder = there = os.path.abspath(os.path.expanduser(given))
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        raise InvalidError(f"{name} is {shown(given)}, and {there} is not a folder; {expected}")
    return CacheFolder(folder, bytes_max)


# -- views -----------------------------------------------------------------------------------------


_VERSION = 1


@dataclass(frozen=True)
class StoredView:
    """A view. `name` includes the database.

    Names in the `query` without a database are in `database`. `columns` rename the columns of the
    query. Empty if they keep their names.
    """

    name: str
    query: str
    database: str
    columns: tuple[str, ...] = ()
    comment: str | None = None

    def to_json(self) -> bytes:
        """The document."""
        document = {
            "version": _VERSION,
            "query": self.query,
            "database": self.database,
            "columns": list(self.columns),
            "comment": self.comment,
        }
        return json.dumps(document, indent=2, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, name: str, data: bytes, path: str) -> StoredView:
        """The view in a document at a path.

        Raises `DataError` for a damaged document, and `UnsupportedError` for one of a later
        release.
        """
        document = read_document(data, path)
        version = member(document, "version", INTEGER, path)
        if version > _VERSION:
            raise UnsupportedError(
                f"view {name}: {path} has version {version}, but this release supports "
                f"{_VERSION}; install a newer release"
            )
        return cls(
            name,
            member(document, "query", TEXT, path),
            member(document, "database", TEXT, path),
            tuple(optional_member(document, "columns", TEXTS, path, default=[])),
            optional_member(document, "comment", TEXT, path),
        )


# -- warehouses ------------------------------------------------------------------------------------


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


class ServiceWarehouse:
    """What warehouses have in common in which a service determines the tables.

    The service's views have another format than Keytide's, so none is visible.
    """

    kind: ClassVar[str]
    """The service in messages."""

    folder = ""  # the service determines the location of each table
    exists = True  # if the service is not there, requests raise an error
    places_first = False  # a table has a location once it is created

    def is_half_dropped(self, database: str, table: str) -> bool:
        """See `Warehouse`. Always false: the service decides which tables exist."""
        return False

    def views(self, database: str) -> list[str]:
        """See `Warehouse`."""
        return []

    def view(self, database: str, name: str) -> StoredView | None:
        """See `Warehouse`."""
        return None

    def create_view(self, database: str, name: str, view: StoredView) -> bool:
        """See `Warehouse`. Raises `UnsupportedError`."""
        raise UnsupportedError(
            f"view {database}.{name}: Keytide cannot create views in {self.kind}; create it with "
            "another engine, or in a folder warehouse"
        )

    def replace_view(self, database: str, name: str, view: StoredView) -> None:
        """See `Warehouse`. Raises `UnsupportedError`."""
        self.create_view(database, name, view)

    def drop_view(self, database: str, name: str) -> None:
        """See `Warehouse`. No-op, because there are no views."""


@dataclass(frozen=True)
class FolderWarehouse:
    """Folders: `database.db/table`. A table exists if its first schema exists."""

    store: Store

    places_first = True  # a name determines the location

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

    def databases(self) -> list[str]:
        """See `Warehouse`."""
        names = self.store.list_names()
        return [n.removesuffix(DATABASE_SUFFIX) for n in names if n.endswith(DATABASE_SUFFIX)]

    def create_database(self, database: str, comment: str | None) -> bool:
        """See `Warehouse`. A document that other engines skip creates it, also in object stores."""
        about = json.dumps({"version": 1, "comment": comment}).encode()
        if database in self.databases():
            return False
        return created(self.store, _own(database, "database.json"), about)

    def drop_database(self, database: str) -> bool:
        """See `Warehouse`."""
        for name in self.likely_tables(database):
            if self.is_half_dropped(database, name):
                self.drop(database, name)
        self.store.delete_tree(_own(database, "dropped"))
        self.store.delete([_own(database, "database.json")])
        self.store.delete_empty(f"{database}{DATABASE_SUFFIX}")
        return database not in self.databases()

    def comment_on(self, database: str) -> str | None:
        """See `Warehouse`."""
        (found,) = self.store.read_present([_own(database, "database.json")])
        if found is None:
            return None
        path = self.store.uri_of(_own(database, "database.json"))
        comment: str | None = optional_member(read_document(found, path), "comment", TEXT, path)
        return comment

    def tables(self, database: str) -> list[str]:
        """See `Warehouse`."""
        names = self.likely_tables(database)
        held = self.store.together([partial(self.holds, database, name) for name in names])
        return [name for name, is_held in zip(names, held, strict=True) if is_held]

    def likely_tables(self, database: str) -> list[str]:
        """See `Warehouse`. One listing; a folder without a schema is no table."""
        names = self.store.list_names(f"{database}{DATABASE_SUFFIX}")
        return [name for name in names if not name.startswith(".")]

    def holds(self, database: str, table: str) -> bool:
        """See `Warehouse`."""
        return holds_table(self.store.sub(_path(database, table)))

    def is_half_dropped(self, database: str, table: str) -> bool:
        """See `Warehouse`."""
        # Whether the folder is no table, but has documents of one.
        store = self.store.sub(_path(database, table))
        return not holds_table(store) and bool(_documents(store, store.list_names()))

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
        """See `Warehouse`. One step decides."""
        folder = _path(database, table)
        bin_ = _own(database, "dropped")  # a folder that nobody reads
        try:
            self.store.rename_tree(folder, paths.join(bin_, paths.new_uuid()))
        except UnsupportedError:
            store = self.store.sub(folder)
            store.put(_MARK, paths.new_uuid().encode())
            store.delete([_FIRST])
            for _ in range(_ROUNDS_MAX):
                found = [info.path for info in store.list() if info.path != _MARK]
                if not found:
                    break
                # Processes that know the table look for its latest schema.
                documents = [path for path in found if path.partition("/")[0] in _FOUND_BY_NAME]
                store.delete(sorted(documents, reverse=True))
                store.delete(found)
            store.delete([_MARK])
        except DataError as error:
            if not isinstance(error.__cause__, FileNotFoundError):  # dropped by another process
                raise
        else:
            # With everything that drops left there which were interrupted.
            self.store.delete_tree(bin_)

    def rename(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """See `Warehouse`."""
        if self.holds(*new):
            return False
        # The files of a writer whose table was dropped, and that died or was notified.
        self.store.delete_empty(_path(*new))
        return self.store.rename_tree(_path(*old), _path(*new))

    def views(self, database: str) -> list[str]:
        """See `Warehouse`."""
        names = self.store.list_names(_own(database, "views"))
        return [
            n.removesuffix(_VIEW_SUFFIX)
            for n in names
            if (n.endswith(_VIEW_SUFFIX) and not n.startswith("."))
        ]

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


_VIEW_SUFFIX = ".json"


def _own(database: str, name: str) -> str:
    """The path of one of Keytide's own files and folders in a database.

    `dropped` has dropped tables until their files are deleted.
    """
    return f"{database}{DATABASE_SUFFIX}/{_OWN}/{name}"


def _view_path(database: str, name: str) -> str:
    return _own(database, f"views/{name}{_VIEW_SUFFIX}")


def _path(database: str, table: str) -> str:
    return f"{database}{DATABASE_SUFFIX}/{table}"
