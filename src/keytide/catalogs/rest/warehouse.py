"""The tables of a catalog service as a warehouse, and their files.

Some files of such a table are written only by the catalog.
"""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import SplitResult, parse_qs, urlsplit

import pyarrow as pa

from keytide.base.arguments import shown
from keytide.catalogs.rest.client import (
    LENDS,
    MISSING,
    Answer,
    RestClient,
    RestTable,
    TableToken,
    options_in,
)
from keytide.catalogs.rest.commits import RestCommits
from keytide.catalogs.warehouse import StoredView, with_cache
from keytide.definition.kind import is_external
from keytide.errors import DataError, InvalidError, NotFoundError, UnsupportedError
from keytide.format import paths
from keytide.format.schema import TableSchema
from keytide.options import keys
from keytide.snapshot.metadata import TableMetadata
from keytide.store import CacheFolder, ObjectInfo, ObjectStore, Store, open_store, takes_options

# -- files of a table ------------------------------------------------------------------------------


T = TypeVar("T")


@dataclass(frozen=True)
class ManagedStore(Store):
    """The store `beneath` of a table in which only the catalog writes schemas, tags and branches.

    Writing or deleting these raises `UnsupportedError`, before anything is changed. Changes for
    which there are requests go through the table's `Keeper`.
    """

    beneath: Store
    table: str

    @property
    def uri(self) -> str:
        """The address of the store beneath."""
        return self.beneath.uri

    @property
    def identity(self) -> Hashable:
        """The identity of the store beneath, which has the same files."""
        return self.beneath.identity

    def uri_of(self, path: str) -> str:
        """The full name of a file."""
        return self.beneath.uri_of(path)

    def read(self, path: str) -> bytes:
        """The whole file."""
        return self.beneath.read(path)

    def read_all(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """The whole files."""
        return self.beneath.read_all(paths)

    def read_present(self, paths: Sequence[str]) -> builtins.list[bytes | None]:
        """The whole files, None for missing ones."""
        return self.beneath.read_present(paths)

    def together(self, calls: Sequence[Callable[[], T]]) -> builtins.list[T]:
        """Run several calls."""
        return self.beneath.together(calls)

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Run a call, which can still be running on return."""
        return self.beneath.begin(call)

    def uploading(self) -> tuple[Store, Callable[[], None]]:
        """A view that uploads in the background, and a function that waits for the uploads."""
        beneath, settle = self.beneath.uploading()
        return replace(self, beneath=beneath), settle

    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable file."""
        return self.beneath.open_input(path)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        """Bytes of a file."""
        return self.beneath.read_ranges(path, ranges)

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A new file."""
        return self.beneath.open_output(self._own(path))

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file."""
        self.beneath.put(self._own(path), data)

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Write several whole files."""
        self.beneath.put_all({self._own(path): data for path, data in files.items()})

    def copy(self, path: str, to: str) -> None:
        """Give a file a second name."""
        self.beneath.copy(path, self._own(to))

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file if the name is free."""
        return self.beneath.create(self._own(path), data)

    def hint(self, path: str, data: bytes) -> None:
        """Replace a file that readers do not depend on."""
        self.beneath.hint(path, data)

    def exists(self, path: str) -> bool:
        """Whether a file has this name."""
        return self.beneath.exists(path)

    def size(self, path: str) -> int:
        """Length of the file in bytes."""
        return self.beneath.size(path)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All files below `prefix`."""
        return self.beneath.list(prefix)

    def list_names(self, directory: str = "") -> builtins.list[str]:
        """Sorted names directly below `directory`."""
        return self.beneath.list_names(directory)

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files."""
        self.beneath.delete([self._own(path) for path in paths])

    def discard(self, paths: Iterable[str]) -> None:
        """Remove files that nothing refers to, on a best-effort basis."""
        self.beneath.discard([self._own(path) for path in paths])

    def delete_tree(self, directory: str) -> None:
        """Remove a directory and everything below it."""
        self.beneath.delete_tree(self._own(directory))

    def delete_empty(self, directory: str) -> None:
        """Remove a directory, except directories that contain files."""
        self.beneath.delete_empty(self._own(directory))

    def local_path(self, path: str) -> Path | None:
        """The file on local disk, otherwise None."""
        return self.beneath.local_path(path)

    def polars_options(self) -> Mapping[str, str] | None:
        """Storage options with which Polars reads `uri_of` a file directly."""
        return self.beneath.polars_options()

    def uncached(self) -> Store:
        """The same without local copies."""
        return replace(self, beneath=self.beneath.uncached())

    def forget(self, paths: Iterable[str]) -> None:
        """Remove local copies."""
        self.beneath.forget(paths)

    def sub(self, prefix: str) -> Store:
        """The folder below."""
        return self.beneath.sub(prefix)

    def _own(self, path: str) -> str:
        """A path that not only the catalog can write."""
        kind = _OF_CATALOG.get(path.partition("/")[0])
        if kind is not None:
            raise UnsupportedError(
                f"table {self.table}: {kind} of tables in a REST catalog can be changed only by "
                "the catalog, which does not support this; use a copy of the table in a folder "
                "warehouse"
            )
        return path


@dataclass(frozen=True)
class UncreatedStore(ManagedStore):
    """The store of a table that does not exist yet, and whose location is unknown: no files."""

    @classmethod
    def of(cls, table: str) -> UncreatedStore:
        """The store of a table that is not in the catalog."""
        return cls(open_store("memory://unmade"), table)

    def _own(self, path: str) -> str:
        """Raises `UnsupportedError`, because the table must exist first."""
        raise UnsupportedError(
            f"table {self.table} does not exist, and a REST catalog assigns its location on "
            "creation; create it with CREATE TABLE or Lake.create_table, then write its rows"
        )


_OF_CATALOG = {
    paths.schema_dir(): "schemas",
    paths.tag_dir(): "tags",
    paths.branches_dir(): "branches",
}


# -- tables of a catalog service -------------------------------------------------------------------


TOKEN_VARIABLE = "KEYTIDE_REST_TOKEN"
_SCHEMES = ("http://", "https://")
_WAREHOUSE, _PROVIDER, _TOKEN = "warehouse", "token.provider", "token"
_BEARER = "bear"


@dataclass(frozen=True)
class RestWarehouse:
    """The catalog determines the tables, their locations and their latest snapshots.

    `storage` are options of the tables' object store, and `copies` is a cache for it.
    """

    client: RestClient
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    copies: CacheFolder | None = None
    lends: str | None = None
    """The user's option on whether the catalog provides credentials."""

    @property
    def uri(self) -> str:
        """See `Warehouse`."""
        return self.client.uri

    @property
    def folder(self) -> str:
        """See `Warehouse`. The catalog determines the location of each table."""
        return ""

    @property
    def exists(self) -> bool:
        """See `Warehouse`. If the catalog is not there, requests raise an error."""
        return True

    @property
    def places_first(self) -> bool:
        """See `Warehouse`. The catalog returns the location after it has created the table."""
        return False

    def databases(self) -> list[str]:
        """See `Warehouse`."""
        return self.client.names("databases", "databases")

    def create_database(self, database: str, comment: str | None) -> bool:
        """See `Warehouse`."""
        options = {} if comment is None else {"comment": comment}
        return self.client.post("databases", body={"name": database, "options": options}).is_done

    def drop_database(self, database: str) -> bool:
        """See `Warehouse`."""
        self.client.delete("databases", database)
        return database not in self.databases()

    def comment_on(self, database: str) -> str | None:
        """See `Warehouse`."""
        options = self.client.get("databases", database).object("options", database)
        comment = options.get("comment")
        return comment if isinstance(comment, str) else None

    def tables(self, database: str) -> list[str]:
        """See `Warehouse`."""
        return self.client.names("tables", "databases", database, "tables")

    def likely_tables(self, database: str) -> list[str]:
        """See `Warehouse`."""
        return self.tables(database)

    def holds(self, database: str, table: str) -> bool:
        """See `Warehouse`."""
        return self._described(database, table).is_done

    def metadata(self, database: str, table: str) -> TableMetadata:
        """See `Warehouse`. One request. Raises `UnsupportedError` unless it is a managed table."""
        name = f"{database}.{table}"
        answer = self._described(database, table)
        if not answer.is_done:
            return TableMetadata(UncreatedStore.of(name), name)
        found = answer.document
        path = found.get("path")
        if not isinstance(path, str):
            raise DataError(f"table {name}: {self.uri} returns no path for it; check the service")
        _refuse_others(name, path, found)
        store = with_cache(self._opened(database, table, path), self.copies)
        commits = RestCommits(RestTable(self.client, database, table, str(found.get("id"))))
        return TableMetadata(ManagedStore(store, name), name, commits)

    def create(self, database: str, table: str, definition: TableSchema) -> bool:
        """See `Warehouse`. Creates the database if it does not exist."""
        if is_external(definition):
            raise UnsupportedError(
                f"{database}.{table}: a REST catalog cannot store external tables of Keytide; "
                "create it in a folder warehouse"
            )
        if self.holds(database, table):
            return False
        if self._make(database, table, definition):
            return True
        if self.holds(database, table):
            return False
        self.create_database(database, None)
        if self._make(database, table, definition):
            return True
        if self.holds(database, table):
            return False
        raise DataError(
            f"table {database}.{table}: {self.uri} created the database but does not find it; "
            "check the service"
        )

    def is_half_dropped(self, database: str, table: str) -> bool:
        """See `Warehouse`. Always false: the catalog decides which tables exist."""
        return False

    def drop(self, database: str, table: str) -> None:
        """See `Warehouse`. The catalog deletes the files."""
        self.client.delete("databases", database, "tables", table)

    def rename(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """See `Warehouse`."""
        source, destination = ({"database": d, "object": t} for d, t in (old, new))
        body = {"source": source, "destination": destination}
        answer = self.client.post("tables", "rename", body=body)
        if answer.status == MISSING:
            raise NotFoundError(
                f"{self.uri} cannot rename {'.'.join(old)} to {'.'.join(new)}: "
                f"{answer.document.get('message') or 'one of them is not there'}; create the "
                "database first, and check whether the table was already renamed"
            )
        return answer.is_done

    def views(self, database: str) -> list[str]:
        """See `Warehouse`.

        The catalog's views have another format than Keytide's, so none is visible.
        """
        return []

    def view(self, database: str, name: str) -> StoredView | None:
        """See `Warehouse`."""
        return None

    def create_view(self, database: str, name: str, view: StoredView) -> bool:
        """See `Warehouse`. Raises `UnsupportedError`."""
        raise UnsupportedError(
            f"view {database}.{name}: Keytide cannot create views in a REST catalog; create it "
            "with another engine, or in a folder warehouse"
        )

    def replace_view(self, database: str, name: str, view: StoredView) -> None:
        """See `Warehouse`. Raises `UnsupportedError`."""
        self.create_view(database, name, view)

    def drop_view(self, database: str, name: str) -> None:
        """See `Warehouse`. No-op, because there are no views."""

    def _make(self, database: str, table: str, definition: TableSchema) -> bool:
        """Whether this call created a table. False if something is missing or exists already."""
        identifier = {"database": database, "object": table}

        # A definition in the format of the protocol, which is that of a schema file.
        stored = json.loads(definition.to_json())
        members = ("fields", "partitionKeys", "primaryKeys", "options", "comment")
        body = {"identifier": identifier, "schema": {name: stored.get(name) for name in members}}
        return self.client.post("databases", database, "tables", body=body).is_done

    def _opened(self, database: str, table: str, path: str) -> Store:
        """The store of a table, with the catalog's credentials if it provides some."""
        options = self.storage if takes_options(path) else {}
        if not takes_options(path) or self.client.setting(LENDS, self.lends) != "true":
            return open_store(path, options)
        token = TableToken(self.client, database, table)
        opened = open_store(path, {**options, **token.options()})
        if not isinstance(opened, ObjectStore) or not path.startswith("s3"):
            raise UnsupportedError(
                f"table {database}.{table}: {self.uri} issues credentials for {path}, but this "
                "release supports only S3 credentials; connect with 'data-token.enabled' = "
                "'false' and your own credentials, if the catalog allows it"
            )
        return replace(opened, lender=token)

    def _described(self, database: str, table: str) -> Answer:
        return self.client.get("databases", database, "tables", table)


def is_rest_address(address: str) -> bool:
    """Whether an address is that of a catalog service."""
    return address.startswith(_SCHEMES)


def open_rest_warehouse(
    address: str, options: Mapping[str, str] | None, copies: CacheFolder | None
) -> RestWarehouse:
    """The warehouse of a catalog service. No request is sent yet. Raises `InvalidError`.

    Options are those of Apache Paimon's catalogs. Others are those of the tables' object store.
    """
    given = dict(options or {})
    parts = urlsplit(address)
    if "@" in address or not _has_plain_port(parts):
        raise InvalidError(
            "the URI of the catalog contains credentials, which messages would show; set the "
            "option 'token', or KEYTIDE_REST_TOKEN in the environment"
        )
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    warehouse = _named_warehouse(parts, given.pop(_WAREHOUSE, None))
    client = RestClient(base, warehouse, _token(given))
    return RestWarehouse(client, given, copies, given.pop(LENDS, None))


def _has_plain_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or parts.port > 0
    except ValueError:  # for example a key in place of the port
        return False


def _named_warehouse(parts: SplitResult, option: str | None) -> str:
    asked = parse_qs(parts.query, keep_blank_values=True)
    base = f"{parts.scheme}://{parts.hostname}"  # the rest may contain secrets
    if unknown := sorted(asked.keys() - {_WAREHOUSE}):
        raise InvalidError(
            f"{base}: the URI of a catalog supports only ?warehouse=name, found "
            f"{shown(unknown[0])}; pass everything else as options"
        )
    named = {*asked.get(_WAREHOUSE, []), *([] if option is None else [option])} - {""}
    if len(named) == 1:
        return named.pop()
    found = " and ".join(map(shown, sorted(named))) or "none"
    raise InvalidError(
        f"{base}: a catalog requires a warehouse name, found {found}; set "
        f"options={{'{_WAREHOUSE}': ...}}, or put it into the URI: {base}?{_WAREHOUSE}=name"
    )


def _token(options: dict[str, str]) -> str | None:
    """The token to send. Its option is removed from the options."""
    provider = options.pop(_PROVIDER, None)
    token = options.pop(_TOKEN, None) or os.environ.get(TOKEN_VARIABLE) or None
    if provider not in (None, _BEARER):
        raise UnsupportedError(
            f"'{_PROVIDER}' is {shown(provider)}, but this release supports only '{_BEARER}'; "
            "use a bearer token, or open tables by path: kt.open_table"
        )
    if provider is not None and token is None:
        raise InvalidError(
            f"'{_PROVIDER}' is '{_BEARER}', but there is no token; set '{_TOKEN}', or "
            f"{TOKEN_VARIABLE} in the environment"
        )
    return token


def _refuse_others(name: str, path: str, found: Mapping[str, Any]) -> None:
    """Raise `UnsupportedError` for objects in the catalog that are not managed tables."""
    kind = options_in(found, name).get(keys.TYPE, "table")
    if kind != "table":
        raise UnsupportedError(
            f"{name} is a {kind} of the catalog, which Keytide cannot read by name; read the "
            f"files at {path}"
        )
    if found.get("isExternal"):
        raise UnsupportedError(
            f"table {name} is external to the catalog, which does not manage its snapshots; open "
            f"it by path: kt.open_table({path!r})"
        )
