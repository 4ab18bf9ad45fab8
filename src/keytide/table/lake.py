"""A warehouse of tables: the filesystem catalog `warehouse/database.db/table`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from keytide.arguments import checked, shown
from keytide.errors import (
    AlreadyExistsError,
    InvalidError,
    KeytideWarning,
    NotFoundError,
    UnsupportedError,
)
from keytide.format import paths
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, stored_names
from keytide.options.keys import PARTITION, PRIMARY_KEY
from keytide.store import Store, open_store
from keytide.table.definition.checks import (
    check_uses,
    complete_options,
    refuse_same_names,
    validate_definition,
)
from keytide.table.filling import create_filled
from keytide.table.host import sql_door
from keytide.table.result import Result
from keytide.table.table import Table, WriteResult
from keytide.types import Field, type_from_arrow

__all__ = ["DEFAULT_DATABASE", "Lake", "connect", "open_table"]

DEFAULT_DATABASE = "default"
_DATABASE_SUFFIX = ".db"
_NAME_BYTES_MAX = 240


@checked
def connect(
    warehouse: str | Path,
    spark: Any = None,
    *,
    options: Mapping[str, str] | None = None,
    store: Store | None = None,
    allow_external_files: bool = False,
) -> Lake:
    """Open a warehouse: a folder, or an `s3://`, `gs://` or `az://` address.

    Nothing is read or made yet. `options` go to the object store (obstore's names, such as
    `aws_region`); what they leave out comes from the environment. With `spark`, bulk reads and
    writes of Spark DataFrames use that session. `store` replaces the store, in tests.

    SQL sees the tables of the warehouse and nothing else, unless `allow_external_files`: then
    queries may name other files and addresses too (`read_csv('...')`, `FROM 'a.parquet'`), and
    whatever else the engine reaches, with the rights of this process.
    """
    opened = store if store is not None else open_store(str(warehouse), options)
    return Lake(opened, spark, allows_external_files=allow_external_files)


@checked
def open_table(path: str | Path, *, options: Mapping[str, str] | None = None) -> Table:
    """Open the table that lies at a path or address, whatever warehouse it is in.

    Raises `NotFoundError` when there is none.
    """
    text = str(path).rstrip("/")
    name = text.rsplit("/", 1)[-1]
    parent = text.rsplit("/", 2)[-2] if text.count("/") > 1 else ""
    if parent.endswith(_DATABASE_SUFFIX):
        name = f"{parent.removesuffix(_DATABASE_SUFFIX)}.{name}"
    return Table(open_store(text, options), name)


class Lake:
    """Tables under one root. Names are `database.table`; without a database, `default`."""

    def __init__(
        self, store: Store, spark: Any = None, *, allows_external_files: bool = False
    ) -> None:
        self._store = store
        self._spark = spark
        self._allows_external_files = allows_external_files

    def __repr__(self) -> str:
        return f"Lake({self.uri!r})"

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{name}</li>" for name in self.tables())
        return f"<b>Lake</b> <code>{self.uri}</code><ul>{items}</ul>"

    @property
    def uri(self) -> str:
        """The root."""
        return self._store.uri

    @property
    def spark(self) -> Any:
        """The Spark session given to `connect`, or None."""
        return self._spark

    @property
    def allows_external_files(self) -> bool:
        """Whether queries may read files that belong to no table of the lake."""
        return self._allows_external_files

    @property
    def exists(self) -> bool:
        """Whether the folder is there; true in an object store, which knows no folders.

        The first table that is made in a warehouse makes its folder.
        """
        below = self._store.local_path(DEFAULT_DATABASE)
        return below is None or below.parent.is_dir()

    @checked
    def tables(self, database: str | None = None) -> list[str]:
        """Names of the tables, of one database or of all, sorted."""
        names = []
        for folder in self._databases():
            found = folder.removesuffix(_DATABASE_SUFFIX)
            if database is not None and found != database:
                continue
            tables = self._store.list_names(folder)
            names += [f"{found}.{t}" for t in tables if self._exists(f"{folder}/{t}")]
        return sorted(names)

    @checked
    def table(self, name: str) -> Table:
        """Open a table. Raises `NotFoundError` naming the tables there are."""
        database, table = self._split(name)
        path = _path(database, table)
        if not self._exists(path):
            there = ", ".join(self.tables(database)) or "none"
            raise NotFoundError(
                f"no table {database}.{table} in {self.uri}; database {database!r} has: {there}"
            )
        return Table(self._store.sub(path), f"{database}.{table}")

    @checked
    def find(self, name: str) -> str | None:
        """The table that a name means where case does not matter, as it does not in SQL.

        The name itself where there is such a table. Raises `InvalidError` naming them when several
        tables differ in case only.
        """
        database, table = self._split(name)
        if self._exists(_path(database, table)):
            return f"{database}.{table}"
        wanted = f"{database}{_DATABASE_SUFFIX}".lower()
        found = [
            f"{folder.removesuffix(_DATABASE_SUFFIX)}.{known}"
            for folder in self._databases()
            if folder.lower() == wanted
            for known in self._store.list_names(folder)
            if known.lower() == table.lower() and self._exists(f"{folder}/{known}")
        ]
        if len(found) > 1:
            raise InvalidError(
                f"{name!r} may mean {' or '.join(found)} in {self.uri}: write the name as it is"
            )
        return found[0] if found else None

    @checked
    def create_table(
        self,
        name: str,
        schema: pa.Schema | Sequence[Field],
        primary_key: Sequence[str],
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        comment: str | None = None,
        *,
        exists_ok: bool = False,
    ) -> Table:
        """Make a table; atomic: of several callers one makes it.

        `schema` is an Arrow schema, or Keytide fields where a type has no Arrow name of its own.
        Primary key columns become NOT NULL. Without the option `bucket` a table gets one bucket
        a partition. Raises `AlreadyExistsError` unless `exists_ok`, `InvalidError` for a
        definition that cannot work, or whose keys are not those of the table that exists,
        `UnsupportedError` for an option that nobody would obey, with nothing made. Warns of
        options that only other engines obey.
        """
        database, table = self._split(name)
        full_name = f"{database}.{table}"
        definition = self._definition(
            full_name, schema, primary_key, partition_by, options, comment
        )
        path = _path(database, table)
        created = not self._exists(path) and self._store.create(
            paths.join(path, paths.schema_path(0)), definition.to_json()
        )
        if not created and not exists_ok:
            raise AlreadyExistsError(
                f"table {full_name} exists in {self.uri}; open it with table({name!r}), or choose "
                f"another name"
            )
        made = self.table(full_name)
        if not created:
            _check_same_keys(made, definition)
        return made

    @checked
    def create_table_as(
        self,
        name: str,
        rows: Any,
        schema: pa.Schema | Sequence[Field],
        primary_key: Sequence[str],
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        comment: str | None = None,
    ) -> WriteResult:
        """Make a table that holds `rows` from the start; after an error there is none.

        `rows` is what `Table.write` takes, the rest as in `create_table`. Readers see the table
        when its rows are committed; a process that dies at that moment may leave it empty. Raises
        what `create_table` and `Table.write` raise.
        """
        database, table = self._split(name)
        full_name, path = f"{database}.{table}", _path(database, table)
        definition = self._definition(
            full_name, schema, primary_key, partition_by, options, comment
        )
        if self._exists(path):
            raise AlreadyExistsError(f"table {full_name} exists in {self.uri}; choose another name")
        return create_filled(self._store.sub(path), full_name, definition, rows)

    @checked
    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a table with all its files. Readers of it fail from then on.

        Raises `NotFoundError` when there is no such table, unless `missing_ok`.
        """
        database, table = self._split(name)
        path = _path(database, table)
        if not self._exists(path):
            if missing_ok:
                return
            self.table(name)
        self._store.delete_tree(path)

    @checked
    def sql(self, text: str) -> Result:
        """Run SQL statements, separated by semicolons; the result is that of the last one.

        Runs on DuckDB in this process, or on the Spark session given to `connect`. All of the
        text is parsed first; then each statement is carried out in turn, atomically, and what
        was done before a statement that fails stays. Raises `InvalidError` with the place of
        what does not parse or fit, and what reads and writes of tables raise.
        """
        result: Result = sql_door().run(self, text)
        return result

    def _definition(
        self,
        name: str,
        schema: pa.Schema | Sequence[Field],
        primary_key: Sequence[str],
        partition_by: Sequence[str],
        options: Mapping[str, str] | None,
        comment: str | None,
    ) -> TableSchema:
        try:
            given = stored_names({} if options is None else options)
            keys = _named_columns("primary_key", primary_key, given.pop(PRIMARY_KEY, None))
            partitions = _named_columns("partition_by", partition_by, given.pop(PARTITION, None))
            fields = _fields(schema)
            stored = complete_options(given)
            definition = TableSchema.create(
                fields,
                partition_keys=partitions,
                primary_keys=keys,
                options=stored,
                comment=comment,
                time_millis=time.time_ns() // 1_000_000,
            )
            messages = validate_definition(definition, TableOptions.parse(stored))
            messages += check_uses(given)
            refuse_same_names(definition.fields)
        except (InvalidError, NotFoundError, UnsupportedError) as error:
            raise type(error)(f"table {name}: {error}") from error
        for message in messages:
            warnings.warn(f"table {name}: {message}", KeytideWarning, stacklevel=5)
        return definition

    def _databases(self) -> list[str]:
        return [n for n in self._store.list_names() if n.endswith(_DATABASE_SUFFIX)]

    def _exists(self, path: str) -> bool:
        if self._store.exists(paths.join(path, paths.schema_path(0))):
            return True
        # A writer that died may have left a temporary file, which makes no table.
        names = self._store.list_names(paths.join(path, paths.schema_dir()))
        return any(paths.parse_schema_name(name) is not None for name in names)

    def _split(self, name: str) -> tuple[str, str]:
        parts = name.split(".")
        if len(parts) > 2 or not all(part.strip() and not {"/", "\0"} & {*part} for part in parts):
            raise InvalidError(
                f"{shown(name)} is no table name; expected 'table' or 'database.table'"
            )
        if longest := max((p for p in parts if len(p.encode()) > _NAME_BYTES_MAX), default=""):
            raise InvalidError(
                f"{shown(longest)} has {len(longest.encode())} bytes; a table or database is a "
                f"folder, whose name has at most {_NAME_BYTES_MAX}"
            )
        return (parts[0], parts[1]) if len(parts) == 2 else (DEFAULT_DATABASE, parts[0])


def _check_same_keys(table: Table, wanted: TableSchema) -> None:
    """Keys are for life: another primary key would make other rows of the stored ones."""
    pairs = (
        ("primary key", table.primary_key, wanted.primary_keys),
        ("partition columns", table.partition_by, wanted.partition_keys),
    )
    for what, stored, given in pairs:
        if stored != given:
            raise InvalidError(
                f"table {table.name} has the {what} ({', '.join(stored)}), found "
                f"({', '.join(given)}); they cannot be changed later. Write the rows into a new "
                f"table"
            )


def _path(database: str, table: str) -> str:
    return f"{database}{_DATABASE_SUFFIX}/{table}"


def _named_columns(what: str, given: Sequence[str], option: str | None) -> tuple[str, ...]:
    """The columns of a key, given as an argument or as the option of Spark's SQL."""
    listed = () if option is None else tuple(name.strip() for name in option.split(","))
    if given and listed and tuple(given) != listed:
        raise InvalidError(
            f"{what} is ({', '.join(given)}), and the options name ({', '.join(listed)}); give one "
            f"of them"
        )
    return tuple(given) or listed


def _fields(schema: pa.Schema | Sequence[Field]) -> list[Field]:
    if not isinstance(schema, pa.Schema):
        return list(schema)
    fields = []
    for column in schema:
        try:
            kind = type_from_arrow(column.type, column.nullable)
        except InvalidError as error:
            raise InvalidError(f"column {column.name!r}: {error}") from error
        fields.append(Field(-1, column.name, kind))
    return fields
