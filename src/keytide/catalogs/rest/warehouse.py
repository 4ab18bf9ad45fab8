"""The tables of a catalog service as a warehouse, and their files.

Some files of such a table are written only by the catalog.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, parse_qs, urlsplit

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass, field, replace
from keytide.catalogs.rest.client import (
    LENDS,
    MISSING,
    RestClient,
    RestTable,
    TableToken,
    options_in,
)
from keytide.catalogs.rest.commits import RestCommits
from keytide.catalogs.warehouse import ServiceWarehouse, with_cache
from keytide.definition.kind import is_external
from keytide.errors import DataError, InvalidError, NotFoundError, UnsupportedError
from keytide.format import paths
from keytide.format.schema import TableSchema
from keytide.options import keys
from keytide.snapshot.metadata import TableMetadata
from keytide.store import CacheFolder, ObjectStore, PassingStore, Store, open_store, takes_options

# -- files of a table ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ManagedStore(PassingStore):
    """The store `beneath` of a table in which only the catalog writes schemas, tags and branches.

    Writing or deleting these raises `UnsupportedError`, before anything is changed. Changes for
    which there are requests go through the table's `Keeper`.
    """

    table: str

    def read_all(self, paths: Sequence[str]) -> list[bytes]:
        """The whole files."""
        return self.beneath.read_all(paths)

    def read_present(self, paths: Sequence[str]) -> list[bytes | None]:
        """The whole files, None for missing ones."""
        return self.beneath.read_present(paths)

    def delete_empty(self, directory: str) -> None:
        """Remove a directory, except directories that contain files."""
        self.beneath.delete_empty(self._changed(directory))

    def _changed(self, path: str) -> str:
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

    def _changed(self, path: str) -> str:
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
class RestWarehouse(ServiceWarehouse):
    """The catalog determines the tables, their locations and their latest snapshots.

    `storage` are options of the tables' object store, and `copies` is a cache for it.
    """

    client: RestClient
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    copies: CacheFolder | None = None
    lends: str | None = None
    """The user's option on whether the catalog provides credentials."""

    kind = "a REST catalog"

    @property
    def uri(self) -> str:
        """See `Warehouse`."""
        return self.client.uri

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

    likely_tables = tables

    def holds(self, database: str, table: str) -> bool:
        """See `Warehouse`."""
        return self.client.get("databases", database, "tables", table).is_done

    def metadata(self, database: str, table: str) -> TableMetadata:
        """See `Warehouse`. One request. Raises `UnsupportedError` unless it is a managed table."""
        name = f"{database}.{table}"
        answer = self.client.get("databases", database, "tables", table)
        if not answer.is_done:
            return TableMetadata(UncreatedStore(open_store("memory://unmade"), name), name)
        found = answer.document
        path = found.get("path")
        if not isinstance(path, str):
            raise DataError(f"table {name}: {self.uri} returns no path for it; check the service")
        kind = options_in(found, name).get(keys.TYPE, "table")
        if kind != "table":
            raise UnsupportedError(
                f"{name} is a {kind} of the catalog, which Keytide cannot read by name; read the "
                f"files at {path}"
            )
        if found.get("isExternal"):
            raise UnsupportedError(
                f"table {name} is external to the catalog, which does not manage its snapshots; "
                f"open it by path: kt.open_table({path!r})"
            )
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
        # A definition in the format of the protocol, which is that of a schema file.
        stored = json.loads(definition.to_json())
        members = ("fields", "partitionKeys", "primaryKeys", "options", "comment")
        schema = {name: stored.get(name) for name in members}
        body = {"identifier": {"database": database, "object": table}, "schema": schema}
        for makes_database in (False, True):
            if self.holds(database, table):
                return False
            if makes_database:
                self.create_database(database, None)
            if self.client.post("databases", database, "tables", body=body).is_done:
                return True
        if self.holds(database, table):
            return False
        raise DataError(
            f"table {database}.{table}: {self.uri} created the database but does not find it; "
            "check the service"
        )

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
    try:
        has_plain_port = parts.port is None or parts.port > 0
    except ValueError:  # for example a key in place of the port
        has_plain_port = False
    if "@" in address or not has_plain_port:
        raise InvalidError(
            "the URI of the catalog contains credentials, which messages would show; set the "
            "option 'token', or KEYTIDE_REST_TOKEN in the environment"
        )
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    warehouse = _named_warehouse(parts, given.pop(_WAREHOUSE, None))
    client = RestClient(base, warehouse, _token(given))
    return RestWarehouse(client, given, copies, given.pop(LENDS, None))


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
