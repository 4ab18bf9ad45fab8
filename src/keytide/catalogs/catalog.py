"""A warehouse of stored tables: the filesystem catalog `warehouse/database.db/table`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from keytide.base.arguments import shown, warn_caller
from keytide.base.dataclass import dataclass, field, replace
from keytide.catalogs.local_writes import create_filled
from keytide.catalogs.warehouse import DATABASE_SUFFIX, StoredView, Warehouse, with_cache
from keytide.commit.transaction import Transaction, WriteResult
from keytide.definition.checks import (
    check_uses,
    complete_options,
    refuse_same_names,
    validate_definition,
)
from keytide.definition.kind import is_external, refuse_external
from keytide.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    NotFoundError,
    UnsupportedError,
)
from keytide.format import paths
from keytide.format.paths import split_branch
from keytide.format.schema import TableSchema
from keytide.maintenance.background import BACKGROUND, as_warning
from keytide.options import TableOptions, stored_names
from keytide.options.keys import BRANCH, GENERATED, PARTITION, PRIMARY_KEY, key_of
from keytide.publish.publish import publish
from keytide.snapshot.branch_tables import open_table, pinned_table
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import PinnedTable, Pins, StoredTable
from keytide.store import CacheFolder, Store, open_store
from keytide.tasks import Threads
from keytide.types import Field, type_from_arrow
from keytide.write.task import try_definition

DEFAULT_DATABASE = "default"
SYSTEM_DATABASE = "sys"
"""The database name for calling procedures. It contains no tables."""
_C = TypeVar("_C", bound="Catalog")
# File names have at most 255 bytes, and some systems append a suffix.
_NAME_BYTES_MAX = 240
_NAMES_SHOWN = 5
# Databases listed in parallel.
_LISTINGS = 8


def open_stored(
    path: str,
    options: Mapping[str, str] | None = None,
    branch: str | None = None,
    cache: CacheFolder | None = None,
) -> StoredTable:
    """The table at a path or address. As in names, `$branch_x` may follow.

    Raises `NotFoundError` if there is none, and `InvalidError` for two branches and for a cache of
    a table on local disk.
    """
    text, named = split_branch(path.rstrip("/"))
    if None not in (named, branch) and named != branch:
        raise InvalidError(
            f"the path {path!r} names a branch, and '{BRANCH}' is {branch!r}; give only one of them"
        )
    branch = branch or named
    name = text.rsplit("/", 1)[-1]
    parent = text.rsplit("/", 2)[-2] if text.count("/") > 1 else ""
    if parent.endswith(DATABASE_SUFFIX):
        name = f"{parent.removesuffix(DATABASE_SUFFIX)}.{name}"
    return open_table(with_cache(open_store(text, options), cache), name, branch)


@dataclass(frozen=True)
class NewTable:
    """The properties of a new table, see `Lake.create_table`."""

    schema: pa.Schema | Sequence[Field]
    primary_key: Sequence[str]
    partition_by: Sequence[str] = ()
    options: Mapping[str, str] | None = None
    comment: str | None = None
    generated: Mapping[str, str] = field(default_factory=dict)
    """The expressions of generated columns, by name."""


@dataclass(frozen=True)
class Catalog:
    """The tables under one root.

    Names are `database.table`, or only `table` in the current `database`. `allows_external_files`
    says whether queries may read files that do not belong to its tables. With `pins`, each table is
    read from the store once, and stays pinned to that state. `chosen_database` is the current
    database, if one was chosen.
    """

    warehouse: Warehouse
    allows_external_files: bool = False
    pins: Pins | None = field(default=None, compare=False, repr=False)
    chosen_database: str | None = None

    @property
    def database(self) -> str:
        """The current database, for names without a database."""
        return self.chosen_database or DEFAULT_DATABASE

    @property
    def uri(self) -> str:
        """The root."""
        return self.warehouse.uri

    def pinned(self: _C) -> _C:
        """The same for one statement, which sees each table at one snapshot.

        Itself if already pinned.
        """
        return replace(self, pins=Pins()) if self.pins is None else self

    def pin(self, table: StoredTable) -> PinnedTable:
        """A table that is already open, as the statement sees it."""
        return table.pinned() if self.pins is None else self.pins.of(table)

    @property
    def exists(self) -> bool:
        """Whether the folder exists. Always true in an object store, which has no folders.

        Creating the first table of a warehouse creates its folder.
        """
        return self.warehouse.exists

    def check_exists(self) -> None:
        """Raise `NotFoundError` if the folder does not exist: its path may be misspelled."""
        if not self.exists:
            raise NotFoundError(
                f"the warehouse {self.uri} does not exist; check the path, or create a table in "
                "it, which creates the folder"
            )

    def databases(self) -> list[str]:
        """Names of the databases, sorted. Raises `DataError` if the store fails."""
        return sorted(self.warehouse.databases())

    def using(self: _C, database: str) -> _C:
        """The same with another current database. Raises like `database_of`."""
        return replace(self, chosen_database=self.database_of(database))

    def database_of(self, name: str) -> str:
        """The database with that name, case-insensitive.

        `default` need not exist. Raises `NotFoundError`, which lists the existing ones, and
        `InvalidError` for an invalid name or if several match.
        """
        self._check_database(name)
        known = self.databases()
        if name in (DEFAULT_DATABASE, *known):
            return name
        found = [each for each in known if each.lower() == name.lower()]
        if len(found) > 1:
            raise InvalidError(f"{name!r} is ambiguous in {self.uri}: {' or '.join(found)}")
        if not found:
            self.check_exists()
            there = ", ".join(known) or "none"
            raise NotFoundError(
                f"database {name} does not exist in {self.uri}; existing databases: {there}"
            )
        return found[0]

    def create_database(
        self, name: str, comment: str | None = None, *, exists_ok: bool = False
    ) -> None:
        """Create a database: atomic. Raises like `Lake.create_database`."""
        self._check_database(name)
        taken = [each for each in self.databases() if each.lower() == name.lower()]
        if (taken or not self.warehouse.create_database(name, comment)) and not exists_ok:
            raise AlreadyExistsError(
                f"database {', '.join(taken) or name} already exists in {self.uri}; use it, or "
                "choose another name"
            )

    def drop_database(self, name: str, *, missing_ok: bool = False, cascade: bool = False) -> None:
        """Drop a database. Raises like `Lake.drop_database`."""
        try:
            database = self.database_of(name)
        except NotFoundError:
            if missing_ok:
                return
            raise
        tables, views = self.tables(database), self.views(database)
        if (tables or views) and not cascade:
            raise InvalidError(
                f"database {database} is not empty: it contains {_first_names([*tables, *views])}; "
                "drop these first, or drop everything with CASCADE in SQL or cascade=True in Python"
            )
        for table in tables:
            self.drop_table(table, missing_ok=True)
        for view in views:
            self.drop_view(view, missing_ok=True)
        if not self.warehouse.drop_database(database):
            raise ConflictError(
                f"database {database} was dropped from {self.uri}, but its folder is not empty: "
                "it contains a table that another writer created meanwhile, or unknown files; "
                "check the folder"
            )

    def _check_database(self, name: str) -> None:
        """Raise `InvalidError` if the name cannot be a database of the lake."""
        if name.lower() == SYSTEM_DATABASE or "." in name:
            raise InvalidError(f"{shown(name)} is not a valid database name; choose another one")
        self._split(f"{name}.any")

    def tables(self, database: str | None = None) -> list[str]:
        """Names of the tables, of one database or of all, sorted.

        Raises `DataError` if the store fails.
        """
        found = [d for d in self.warehouse.databases() if database in (None, d)]
        return sorted(f"{d}.{table}" for d in found for table in self.warehouse.tables(d))

    def likely_tables(self, databases: Sequence[str]) -> list[str]:
        """Names under which tables are found, sorted; `Warehouse.likely_tables` of each database.

        Databases are listed in parallel.
        """
        calls = [partial(self.warehouse.likely_tables, database) for database in databases]
        listed = zip(databases, Threads(_LISTINGS).map(calls), strict=True)
        return sorted(f"{database}.{table}" for database, tables in listed for table in tables)

    def table(self, name: str) -> StoredTable:
        """Open a table.

        `t$branch_x` is the branch x of t. Raises `NotFoundError`, which lists the existing tables
        or branches, `InvalidError` for an invalid name, and `UnsupportedError` for an external
        table.
        """
        return self.managed(self.entry(name))

    def managed(self, entry: PinnedTable) -> StoredTable:
        """The table of an entry. Raises `UnsupportedError` for an external table."""
        refuse_external(entry.schema, entry.name)
        return entry.live if self.pins is None else entry

    def entry(self, name: str) -> PinnedTable:
        """The entry with that name: a table, or the definition of an external one.

        One read, like `table`.
        """
        if self.pins is None:
            return self.look(name)
        return self.pins.named(name, partial(self.look, name))

    def look(self, name: str) -> PinnedTable:
        """The entry in its current state, whatever a statement has seen before.

        Raises like `entry`.
        """
        whole, branch = split_branch(name)
        database, table = self._split(whole)
        try:
            return pinned_table(self.warehouse.metadata(database, table), branch)
        except NotFoundError:
            if self.warehouse.holds(database, table):
                raise
            self.check_exists()
            if branch is None and self.find_view(whole) is not None:
                raise UnsupportedError(
                    f"{database}.{table} is a view, which only SELECT can read: Lake.sql('SELECT "
                    f"* FROM {database}.{table}'); write to its tables, or change it with CREATE "
                    "OR REPLACE VIEW and DROP VIEW"
                ) from None
            # The first tables of the database. Only the names of the others are requested.
            is_known = database in self.warehouse.databases()
            likely = self.likely_tables([database]) if is_known else []
            if len(likely) <= _NAMES_SHOWN:
                there = ", ".join(self.tables(database))
            else:
                own = ((name, name.removeprefix(f"{database}.")) for name in likely)
                held = (name for name, short in own if self.warehouse.holds(database, short))
                first = [*islice(held, _NAMES_SHOWN)]
                there = ", ".join(first) + (" and others" if len(first) == _NAMES_SHOWN else "")
            raise NotFoundError(
                f"table {database}.{table} does not exist in {self.uri}; tables of database "
                f"{database!r}: {there or 'none'}"
            ) from None

    def find(self, name: str) -> str | None:
        """The table with that name, case-insensitive as in SQL.

        An exact match wins. Raises `InvalidError`, which lists them, if several tables differ only
        in case.
        """
        whole, _ = split_branch(name)
        database, table = self._split(whole)
        own = f"{database}.{table}{name[len(whole) :]}"
        if self.pins is not None and own in self.pins:
            return own
        if self.warehouse.holds(database, table):
            return own
        found = [
            f"{candidate}.{known}"
            for candidate in self.warehouse.databases()
            if candidate.lower() == database.lower()
            for known in self.warehouse.tables(candidate)
            if known.lower() == table.lower()
        ]
        if len(found) > 1:
            raise InvalidError(
                f"{name!r} is ambiguous in {self.uri}: {' or '.join(found)}; write the name exactly"
            )
        return f"{found[0]}{name[len(whole) :]}" if found else None

    def views(self, database: str | None = None) -> list[str]:
        """Names of the views, of one database or of all, sorted."""
        found = [d for d in self.warehouse.databases() if database in (None, d)]
        return sorted(f"{d}.{view}" for d in found for view in self.warehouse.views(d))

    def find_view(self, name: str) -> StoredView | None:
        """The view with that name, case-insensitive. None if there is none.

        Raises `InvalidError` if several views differ only in case and none matches exactly.
        """
        database, own = self._split_whole(name)
        if (found := self.warehouse.view(database, own)) is not None:
            return found
        fitting = [each for each in self.views() if each.lower() == f"{database}.{own}".lower()]
        if len(fitting) > 1:
            raise InvalidError(f"{name!r} is ambiguous in {self.uri}: {' or '.join(fitting)}")
        return self.warehouse.view(*self._split(fitting[0])) if fitting else None

    def create_view(self, view: StoredView, *, replace: bool = False) -> bool:
        """Create a view. False if one with that name exists. Raises like `Lake.create_view`."""
        database, name = self._split_new(view.name)
        known = self.find_view(view.name)
        if known is not None and not replace:
            return False
        self._refuse_table(view.name)
        if replace:
            same = (database, name) if known is None else self._split(known.name)
            self.warehouse.replace_view(*same, view)
        elif not self.warehouse.create_view(database, name, view):
            return False
        try:
            self._refuse_table(view.name)
        except AlreadyExistsError:
            self.warehouse.drop_view(database, name)
            raise
        return True

    def _refuse_table(self, name: str) -> None:
        if (known := self.find(name)) is not None:
            raise AlreadyExistsError(
                f"table {known} already exists in {self.uri}; choose another name for the view"
            )

    def _refuse_view(self, name: str) -> None:
        """Raise `AlreadyExistsError` if a view has the name of a new table."""
        if (known := self.find_view(name)) is not None:
            raise AlreadyExistsError(
                f"view {known.name} already exists in {self.uri}; drop it, or choose another name"
            )

    def drop_view(self, name: str, *, missing_ok: bool = False) -> None:
        """Drop a view. Raises like `Lake.drop_view`."""
        known = self.find_view(name)
        if known is not None:
            self.warehouse.drop_view(*self._split(known.name))
        elif not missing_ok:
            is_table = self.find(name) is not None
            there = (
                "a table"
                if is_table
                else f"not a view; views: {_first_names(self.views()) or 'none'}"
            )
            raise NotFoundError(f"{name} in {self.uri} is {there}")

    def find_attached(self, name: str) -> tuple[str, str] | None:
        """The attached catalog that a name belongs to, and the rest of the name.

        Here always None.
        """
        return None

    def create_table(self, name: str, wanted: NewTable, *, exists_ok: bool = False) -> StoredTable:
        """Create a table. Atomic: of several callers, one creates it.

        Raises like `Lake.create_table`.
        """
        database, table = self._split_new(name)
        full_name = f"{database}.{table}"
        self._refuse_view(name)
        definition = _definition(self.warehouse.metadata(database, table), wanted)
        created = self.warehouse.create(database, table, definition)
        if not created and not exists_ok:
            raise AlreadyExistsError(
                f"table {full_name} already exists in {self.uri}; open it with table({name!r}), "
                "or choose another name"
            )
        made = self.table(full_name)
        if created:
            return made
        # Keys never change: another primary key would change which rows are stored.
        for what, stored, given in (
            ("primary key", made.schema.primary_keys, definition.primary_keys),
            ("partition columns", made.schema.partition_keys, definition.partition_keys),
        ):
            if stored != given:
                raise InvalidError(
                    f"table {made.name} has the {what} ({', '.join(stored)}), found "
                    f"({', '.join(given)}); they cannot be changed. Write the rows to a new table"
                )
        return made

    def store_for(self, name: str) -> Store:
        """The store of a table that will be created. Raises `InvalidError` for an invalid name."""
        return self.warehouse.metadata(*self._split_new(name)).store

    def create_external(
        self, name: str, definition: TableSchema, *, exists_ok: bool = False
    ) -> PinnedTable:
        """Create the definition of an external table: atomic, like `create_table`.

        Raises `AlreadyExistsError` unless `exists_ok`, and if another kind of table exists.
        """
        database, table = self._split_new(name)
        full_name = f"{database}.{table}"
        self._refuse_view(name)
        if self.warehouse.create(database, table, definition):
            return self.look(full_name)
        known = self.look(full_name)
        if not exists_ok or not is_external(known.schema):
            raise AlreadyExistsError(
                f"table {full_name} already exists in {self.uri}; open it with table({name!r}), "
                "or choose another name"
            )
        return known

    def create_filled(
        self, name: str, wanted: NewTable, fill: Callable[[Transaction], None]
    ) -> WriteResult:
        """Create a table with the rows that `fill` writes. Raises like `Lake.create_table_as`."""
        database, table = self._split_new(name)
        metadata = self.warehouse.metadata(database, table)
        definition = _definition(metadata, wanted)
        self._refuse_view(name)
        if self.warehouse.holds(database, table):
            raise AlreadyExistsError(
                f"table {metadata.name} already exists in {self.uri}; choose another name"
            )
        return create_filled(self.warehouse, database, table, definition, fill)

    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a table with all its files. Raises like `Lake.drop_table`."""
        database, table = self._split_whole(name)
        is_there = self.warehouse.holds(database, table)
        if not is_there and not self.warehouse.is_half_dropped(database, table):
            if missing_ok:
                return
            self.table(name)
        BACKGROUND.cancel_with_branches(self.warehouse.metadata(database, table).uri)
        self.warehouse.drop(database, table)

    def rename_table(self, name: str, new_name: str) -> str:
        """Rename a table. The new name is a full name. Raises like `Lake.rename_table`."""
        old = self._split_whole(name)
        entry = self.look(name)
        new = self._split_new(new_name if "." in new_name else f"{old[0]}.{new_name}")
        full_name = ".".join(new)
        known = self.find(full_name)
        if known not in (None, entry.name):
            raise AlreadyExistsError(
                f"table {known} already exists in {self.uri}; choose another name for {entry.name}"
            )
        if old == new:
            return full_name
        self._refuse_view(full_name)
        BACKGROUND.cancel_with_branches(entry.metadata.uri)
        if not self.warehouse.rename(old, new):
            raise AlreadyExistsError(
                f"{full_name} already exists in {self.uri}: another writer created this table "
                "meanwhile, or the folder contains other files; choose another name for "
                f"{entry.name}"
            )
        # Publications contain the location.
        moved = self.look(full_name)
        if not is_external(moved.schema):
            with as_warning(moved, "the table was renamed", "publishing it", "Table.publish"):
                if moved.view(moved.schema).options.publish:
                    publish(moved)
        return full_name

    def _split_whole(self, name: str) -> tuple[str, str]:
        """The parts of a name that must name a whole table."""
        whole, branch = split_branch(name)
        if branch is not None:
            raise InvalidError(
                f"{shown(name)} is a branch; create and drop branches of {whole} with "
                "Table.create_branch and Table.delete_branch, or CALL sys.create_branch and "
                "sys.delete_branch"
            )
        return self._split(name)

    def _split_new(self, name: str) -> tuple[str, str]:
        """The parts of a valid name for a new table."""
        database, table = self._split_whole(name)
        if database.lower() == SYSTEM_DATABASE:
            raise InvalidError(
                f"{shown(name)}: the database {SYSTEM_DATABASE} is reserved for procedures; "
                "choose another database"
            )
        return database, table

    def _split(self, name: str) -> tuple[str, str]:
        if self.find_attached(name) is not None:
            raise UnsupportedError(
                f"{shown(name)} is not a table of {self.uri}; it belongs to the attached catalog "
                f"{name.partition('.')[0]}. Keytide supports SELECT, DELETE, UPDATE and MERGE "
                "there; use the other system for everything else"
            )
        parts = name.split(".")
        if len(parts) > 2 or not all(part.strip() and not {"/", "\0"} & {*part} for part in parts):
            raise InvalidError(
                f"{shown(name)} is not a valid table name; expected 'table' or 'database.table', "
                "without a catalog name"
            )
        if longest := max((p for p in parts if len(p.encode()) > _NAME_BYTES_MAX), default=""):
            raise InvalidError(
                f"{shown(longest)} has {len(longest.encode())} bytes; a table or database is a "
                f"folder, whose name can have at most {_NAME_BYTES_MAX}"
            )
        return (parts[0], parts[1]) if len(parts) == 2 else (self.database, parts[0])


def _first_names(names: Sequence[str]) -> str:
    """Names for a message: the first few of many."""
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _definition(metadata: TableMetadata, wanted: NewTable) -> TableSchema:
    """The definition to store.

    Raises errors that name the table, and warns about probable mistakes.
    """
    try:
        given = stored_names({} if wanted.options is None else wanted.options)
        given |= {key_of(GENERATED, n): text for n, text in wanted.generated.items()}
        keys = _named_columns("primary_key", wanted.primary_key, given.pop(PRIMARY_KEY, None))
        partitions = _named_columns("partition_by", wanted.partition_by, given.pop(PARTITION, None))
        fields = fields_of(wanted.schema)
        bare = TableSchema.create(
            fields,
            partition_keys=partitions,
            primary_keys=keys,
            options=given,
            comment=wanted.comment,
            time_millis=time.time_ns() // 1_000_000,
        )
        stored = complete_options(bare)
        definition = replace(bare, options=stored)
        messages = validate_definition(definition, TableOptions.parse(stored))
        messages += check_uses(given)
        if TableOptions.parse(stored).branch != paths.MAIN_BRANCH:
            raise InvalidError(
                f"option '{BRANCH}' is {stored[BRANCH]!r}, but a new table has only the main "
                "branch; remove the option, and set it after creating the branch"
            )
        refuse_same_names(definition.fields)
    except (InvalidError, NotFoundError, UnsupportedError) as error:
        raise type(error)(f"table {metadata.name}: {error}") from error
    try_definition(metadata, definition)
    for message in messages:
        warn_caller(f"table {metadata.name}: {message}")
    return definition


def _named_columns(what: str, given: Sequence[str], option: str | None) -> tuple[str, ...]:
    """The columns of a key, from an argument or from the option in Spark SQL."""
    listed = () if option is None else tuple(name.strip() for name in option.split(","))
    if given and listed and tuple(given) != listed:
        raise InvalidError(
            f"{what} is ({', '.join(given)}), but the options say ({', '.join(listed)}); give "
            "only one of them"
        )
    return tuple(given) or listed


def fields_of(schema: pa.Schema | Sequence[Field]) -> list[Field]:
    """Columns as a table stores them. Raises `InvalidError` for unsupported types."""
    if not isinstance(schema, pa.Schema):
        return list(schema)
    fields = []
    for column in schema:
        try:
            type_ = type_from_arrow(column.type, column.nullable)
        except InvalidError as error:
            raise InvalidError(f"column {column.name!r}: {error}") from error

        # The comment in a column's metadata, under the name that Spark and pypaimon use.
        metadata = column.metadata or {}
        found = metadata.get(b"comment", metadata.get(b"description"))
        comment_of = None if found is None else found.decode("utf-8", "replace")
        fields.append(Field(-1, column.name, type_, comment_of))
    return fields
