"""A metastore as a warehouse: its address and options, its tables, and their commits.

The metastore determines the tables and their locations. The folder of a table is like any other: it
contains the schemas, and commits are those of the file system.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from keytide.base.arguments import shown, warn_caller
from keytide.base.dataclass import dataclass, field
from keytide.base.process import require
from keytide.catalogs.metastore.registry import (
    INPUT_FORMAT,
    Description,
    RegisteredDatabase,
    RegisteredTable,
    Registry,
)
from keytide.catalogs.metastore.services import GlueRegistry, HiveRegistry
from keytide.catalogs.warehouse import DATABASE_SUFFIX, ServiceWarehouse, with_cache
from keytide.definition.kind import is_external
from keytide.errors import DataError, InvalidError, KeytideError, NotFoundError, UnsupportedError
from keytide.format import paths
from keytide.format.paths import branch_of
from keytide.format.schema import TableSchema
from keytide.snapshot.authority import FolderCommits
from keytide.snapshot.metadata import TableMetadata
from keytide.store import CacheFolder, Store, created, open_store, takes_options

# -- commits of tables in a metastore --------------------------------------------------------------


@dataclass(frozen=True)
class RegisteredCommits(FolderCommits):
    """Creating `snapshot/snapshot-N` is the commit. New columns are reported to the metastore."""

    registry: Registry
    database: str
    table: str

    def altered(self, store: Store, schema: TableSchema) -> None:
        """See `Commits`.

        Warns if the metastore cannot be updated, because the table is already altered.
        """
        if branch_of(store) != paths.MAIN_BRANCH:
            return
        try:
            description = Description.of(schema, store.uri)
            self.registry.describe_table(self.database, self.table, description)
        except KeytideError as error:
            warn_caller(
                f"table {self.database}.{self.table}: it is altered, but {self.registry.uri} "
                f"still lists its old columns ({error}); engines that use the metastore see them "
                "until the next change"
            )


# -- the tables of a metastore ---------------------------------------------------------------------


_EXTERNAL = "EXTERNAL_TABLE"


@dataclass(frozen=True)
class MetastoreWarehouse(ServiceWarehouse):
    """The databases and the Apache Paimon tables that are registered in a metastore.

    New databases, and tables of databases without a location, are created below the address `root`.
    `storage` are options of the tables' object store, and `copies` is a cache for it.
    """

    registry: Registry
    root: str | None
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    copies: CacheFolder | None = None

    kind = "a metastore"

    @property
    def uri(self) -> str:
        """See `Warehouse`."""
        return self.registry.uri

    def databases(self) -> list[str]:
        """See `Warehouse`."""
        return self.registry.databases()

    def create_database(self, database: str, comment: str | None) -> bool:
        """See `Warehouse`. Raises `InvalidError` if no location is known, and for upper case."""
        _check_name(database)
        location = f"{self._root(database)}/{database}{DATABASE_SUFFIX}"
        return self.registry.create_database(RegisteredDatabase(database, location, comment))

    def drop_database(self, database: str) -> bool:
        """See `Warehouse`."""
        return self.registry.drop_database(database)

    def comment_on(self, database: str) -> str | None:
        """See `Warehouse`."""
        found = self.registry.database(database)
        return None if found is None else found.comment

    def tables(self, database: str) -> list[str]:
        """See `Warehouse`. Tables of other formats are not included."""
        return [
            table.name
            for table in self.registry.tables(database)
            if table.input_format == INPUT_FORMAT
        ]

    likely_tables = tables

    def holds(self, database: str, table: str) -> bool:
        """See `Warehouse`."""
        return self._found(database, table) is not None

    def metadata(self, database: str, table: str) -> TableMetadata:
        """See `Warehouse`. One request. Raises `UnsupportedError` for a table of another kind."""
        name, found = f"{database}.{table}", self._found(database, table)
        if found is None:
            # The location is determined when the table is created.
            return TableMetadata(open_store("memory://unmade"), name)
        store = self._store(self._place_of(database, found))
        commits = RegisteredCommits(self.registry, database, found.name)
        return TableMetadata(store, f"{database}.{found.name}", commits)

    def create(self, database: str, table: str, definition: TableSchema) -> bool:
        """See `Warehouse`. Creates the database if it does not exist.

        Creates the table's folder first, and then registers it. If that fails, the folder is
        removed.
        """
        _check_name(database)
        _check_name(table)
        if is_external(definition):
            raise UnsupportedError(
                f"{database}.{table}: a metastore cannot store external tables of Keytide; "
                "create it in a folder warehouse"
            )
        if self._found(database, table) is not None:
            return False

        # The location for a new table: its name, unless that exists, as after a rename.
        known = self.registry.database(database)
        folder = None if known is None else known.location
        folder = folder or f"{self._root(f'{database}.{table}')}/{database}{DATABASE_SUFFIX}"
        place = f"{folder.rstrip('/')}/{table}"
        is_taken = next(iter(self._store(place).list_names()), None) is not None
        location = f"{place}-{uuid.uuid4().hex[:8]}" if is_taken else place
        store = self._store(location)
        if not created(store, paths.schema_path(definition.id), definition.to_json()):
            return False
        description, is_made = Description.of(definition, location), False
        try:
            try:
                is_made = self.registry.create_table(database, table, description)
            except NotFoundError:
                self.create_database(database, None)
                is_made = self.registry.create_table(database, table, description)
        finally:
            if not is_made:
                with suppress(KeytideError):
                    self._delete(location)
        return is_made

    def drop(self, database: str, table: str) -> None:
        """See `Warehouse`. If the table is external for the metastore, its files are kept."""
        found = self._found(database, table)
        if found is None:
            return
        location = self._place_of(database, found)
        self.registry.drop_table(database, table)
        if found.kind != _EXTERNAL:
            self._delete(location)

    def rename(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        """See `Warehouse`. The files are not moved, unless the metastore moves them."""
        _check_name(new[1])
        if self.registry.database(new[0]) is None:
            raise NotFoundError(
                f"{self.uri} cannot rename {'.'.join(old)} to {'.'.join(new)}: the database "
                f"{new[0]} does not exist; create it first"
            )
        return self.registry.rename_table(old, new)

    # -- registrations ----------------------------------------------------------------------------

    def _found(self, database: str, table: str) -> RegisteredTable | None:
        # Metastores ignore the case of names. Here only the registered name is valid.
        if database != database.lower() or table != table.lower():
            return None
        return self.registry.table(database, table)

    def _place_of(self, database: str, found: RegisteredTable) -> str:
        """The location of a Paimon table. Raises `UnsupportedError` for other tables."""
        name = f"{database}.{found.name}"
        if found.input_format != INPUT_FORMAT:
            kind = found.parameters.get("table_type") or found.input_format or found.kind
            raise UnsupportedError(
                f"{name} in {self.uri} is not a Paimon table but {kind}; read it as an external "
                f"table from its location: {found.location}"
            )
        if not found.location:
            raise DataError(f"table {name}: {self.uri} has no location for it; check the metastore")
        return found.location

    # -- locations --------------------------------------------------------------------------------

    def _store(self, location: str) -> Store:
        options = self.storage if takes_options(location) else None
        copies = self.copies if takes_options(location) else None
        return with_cache(open_store(location, options), copies)

    def _root(self, name: str) -> str:
        if self.root is None:
            raise InvalidError(
                f"{name}: {self.uri} has no location for it; connect with options={{'warehouse': "
                "'s3://bucket/prefix', ...}, or create the database there with a location"
            )
        return self.root.rstrip("/")

    def _delete(self, location: str) -> None:
        folder, _, name = location.rstrip("/").rpartition("/")
        self._store(folder).delete_tree(name)


def _check_name(name: str) -> None:
    if name != name.lower():
        raise InvalidError(f"{name!r}: names in a metastore are lower case; use {name.lower()!r}")


# -- opening from an address and options -----------------------------------------------------------


_GLUE, _HIVE = "glue://", "thrift://"
_WAREHOUSE, _ENDPOINT = "warehouse", "glue.endpoint"
_HIVE_PORT = 9083
_ACCOUNT = re.compile(r"\d{12}")
# boto3's names for options of the object store that Glue also needs.
_SHARED = {
    "region": "region_name",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}


def is_metastore_address(address: str) -> bool:
    """Whether an address is that of a metastore."""
    return address.startswith((_GLUE, _HIVE))


def open_metastore_warehouse(
    address: str, options: Mapping[str, str] | None, copies: CacheFolder | None
) -> MetastoreWarehouse:
    """The warehouse of a metastore. No request is sent yet.

    The option `warehouse` is the location of new databases, and `glue.endpoint` replaces the
    service of the region. Other options are those of the tables' object store. Raises
    `InvalidError`, and `SetupError` without the client library.
    """
    given = dict(options or {})
    root = given.pop(_WAREHOUSE, None) or None
    if root is not None and not takes_options(root) and not root.startswith("file:"):
        root = Path(root).expanduser().absolute().as_uri()
    if address.startswith(_HIVE):
        require("pymetastore", "hive", "a Hive Metastore")
        return MetastoreWarehouse(_hive(address), root, given, copies)
    require("boto3", "glue", "AWS Glue")
    return MetastoreWarehouse(_glue(address, given), root, given, copies)


def _hive(address: str) -> HiveRegistry:
    parts = urlsplit(address)
    try:
        port = parts.port or _HIVE_PORT
    except ValueError:
        port = 0
    if not parts.hostname or not port or parts.username or parts.path.strip("/") or parts.query:
        raise InvalidError(
            "the URI of a Hive Metastore is thrift://host:port, found one with other parts (it "
            f"starts with {shown(address[:12])}); pass everything else as options"
        )
    return HiveRegistry(parts.hostname, port)


def _glue(address: str, options: dict[str, str]) -> GlueRegistry:
    account = address.removeprefix(_GLUE).strip("/")
    if account and not _ACCOUNT.fullmatch(account):
        raise InvalidError(
            "the URI of AWS Glue is glue:// for the catalog of your own account, or "
            f"glue://123456789012 for another account, found {shown(address)}"
        )
    endpoint = options.pop(_ENDPOINT, None)
    settings = {} if endpoint is None else {"endpoint_url": endpoint}
    for name, value in options.items():
        known = _SHARED.get(name.lower().removeprefix("aws_"))
        if known is not None:
            settings[known] = value
    return GlueRegistry(account or None, tuple(sorted(settings.items())))
