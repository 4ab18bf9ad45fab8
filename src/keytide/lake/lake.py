"""A lake, as users hold it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from keytide import html
from keytide.arguments import checked, shown
from keytide.dml.adbc import adbc_connector
from keytide.dml.attached import AttachedCatalog
from keytide.dml.spi import Connector, Isolation
from keytide.errors import (
    AlreadyExistsError,
    InvalidError,
    KeytideError,
    NotFoundError,
    UnsupportedError,
)
from keytide.external.adoption import AdoptionResult, NewAdopted, adopt
from keytide.external.creation import NewExternalTable, create_external, with_upsert_keys
from keytide.external.federated import UpsertKeys, federated_tables
from keytide.external.federated_changes import federated_connector, tables_of
from keytide.lake.engines import engine_of
from keytide.lake.external_table import ExternalTable
from keytide.lake.federated_table import FederatedTable
from keytide.lake.table import Table, is_spark_dataframe
from keytide.metastore.opening import is_metastore_address, open_metastore_warehouse
from keytide.rest.warehouse import is_rest_address, open_rest_warehouse
from keytide.sql.result import Result
from keytide.store import CacheFolder, Store, open_store
from keytide.table.caching import cache_folder, near
from keytide.table.catalog import (
    DEFAULT_DATABASE,
    SYSTEM_DATABASE,
    NewTable,
    fields_of,
    open_stored,
)
from keytide.table.commit.author import Author
from keytide.table.commit.result import WriteResult
from keytide.table.commit.transaction import Transaction
from keytide.table.definition.external import is_external
from keytide.table.local_writes import fill
from keytide.table.upkeep.behind import BEHIND
from keytide.table.warehouse import FolderWarehouse, Warehouse
from keytide.table.write.input_rows import to_arrow_table
from keytide.types import Field

if TYPE_CHECKING:
    from typing_extensions import Self

    from keytide.cdc.report import IngestReport
    from keytide.kafka.feeds import TablesReport
    from keytide.sql.query_engine import Engine

__all__ = ["Lake", "connect", "open_table"]


@checked
def connect(
    warehouse: str | Path,
    spark: Any = None,
    *,
    options: Mapping[str, str] | None = None,
    store: Store | None = None,
    allow_external_files: bool = False,
    cache: str | Path | None = None,
    cache_bytes: int | str | None = None,
) -> Lake:
    """Open a warehouse: a folder, an `s3://`, `gs://` or `az://` address, or a catalog.

    Nothing is read or made yet. `options` go to the object store (obstore's names, such as
    `aws_region`); what they leave out comes from the environment. The address of a service that
    speaks Apache Paimon's REST protocol begins with `http://` or `https://`; its options have
    Paimon's names, `warehouse`, `token.provider` ('bear') and `token`, and the others go to the
    object store of the tables. `glue://` is the Data Catalog of AWS Glue, `thrift://host:port` a
    Hive Metastore; their option `warehouse` is where new databases lie (docs/catalogs.md). With
    `spark`, bulk reads and writes of Spark DataFrames use that session. `store` replaces the store,
    in tests.

    SQL sees the tables of the warehouse and nothing else, unless `allow_external_files`: then
    queries may name other files and addresses too (`read_csv('...')`, `FROM 'a.parquet'`), and
    whatever else the engine reaches, with the rights of this process.

    `cache` is a folder on local disk, of this machine and of each executor of Spark, for copies of
    files of an object store that never change: data files, manifests, indexes. What was read once
    is read from there, by all processes that name the folder, until it makes room for what was used
    later: they take `cache_bytes` together, '10 gb' if left out. Whoever may read the folder, which
    is for this account alone, can read the data in it; no credentials are.

    Raises `InvalidError` for an address that no store has, or an option that its store does not
    know; for a cache of a lake on local disk, one that is no folder, and `cache_bytes` that are no
    size, less than 1 MiB, or without a cache; for a service without the name of a warehouse;
    `UnsupportedError` for another provider of tokens, and `SetupError` where the library for a
    catalog is missing.
    """
    copies = cache_folder(cache, cache_bytes, _CACHE_NAMES)
    opened = _opened(str(warehouse), options, store, copies)
    return Lake(AttachedCatalog(opened, allow_external_files), spark)


def _opened(
    address: str,
    options: Mapping[str, str] | None,
    store: Store | None,
    copies: CacheFolder | None,
) -> Warehouse:
    if store is None and is_rest_address(address):
        return open_rest_warehouse(address, options, copies)
    if store is None and is_metastore_address(address):
        return open_metastore_warehouse(address, options, copies)
    return FolderWarehouse(near(open_store(address, options) if store is None else store, copies))


@checked
def open_table(
    path: str | Path,
    *,
    options: Mapping[str, str] | None = None,
    cache: str | Path | None = None,
    cache_bytes: int | str | None = None,
) -> Table:
    """Open the table that lies at a path or address, whatever warehouse it is in.

    `options`, `cache` and `cache_bytes` are those of `connect`. Raises `NotFoundError` when there
    is none, `InvalidError` as `connect` does.
    """
    copies = cache_folder(cache, cache_bytes, _CACHE_NAMES)
    return Table.of(open_stored(str(path), options, cache=copies))


_CACHE_NAMES = ("cache", "cache_bytes")


class Lake:
    """Tables under one root. Names are `database.table`; without one, in the database in `use`.

    That is `default` as long as none was chosen, in Python as in SQL.
    """

    def __init__(self, catalog: AttachedCatalog, spark: Any = None) -> None:
        self._catalog = catalog
        self._spark = spark

    def close(self) -> None:
        """Compact what the writes of this process have made due of tables of this lake, and wait.

        See `Table.close`. The lake can be used as before.
        """
        BEHIND.wait_below(self._catalog.warehouse.folder)

    def __enter__(self) -> Self:
        """The lake; the end of the block waits as `close`."""
        return self

    def __exit__(self, *raised: object) -> None:
        """See `close`."""
        self.close()

    def __repr__(self) -> str:
        return f"Lake({self.uri!r})"

    def _repr_html_(self) -> str:
        return html.heading("Lake", self.uri) + html.bullets(self._catalog.tables())

    @property
    def uri(self) -> str:
        """The root."""
        return self._catalog.uri

    @property
    def spark(self) -> Any:
        """The Spark session given to `connect`, or None."""
        return self._spark

    @property
    def allows_external_files(self) -> bool:
        """Whether queries may read files that belong to no table of the lake."""
        return self._catalog.allows_external_files

    @property
    def catalog(self) -> AttachedCatalog:
        """The lake as the layers below know it."""
        return self._catalog

    @property
    def attached(self) -> list[str]:
        """The names of the connectors that are attached, sorted."""
        return sorted(self._catalog.attached)

    @checked
    def attach(
        self,
        name: str,
        source: Connector | str | Path,
        *,
        isolation: Isolation | None = None,
        format: str | None = None,
        options: Mapping[str, str] | None = None,
        tables: Mapping[str, UpsertKeys] | None = None,
    ) -> None:
        """Let SQL find the tables of a database as `name.table`, as long as this object lives.

        `source` is `postgresql://user@host/database`, `sqlite:///path` (with a fourth slash where
        the path begins with one), the path of a file of SQLite, or a connector. The name ignores
        letter case. With the isolation 'serializable', and not 'snapshot', each statement that
        changes a table there reads and writes in one transaction of that isolation, and is carried
        out anew where it conflicts.

        With a `format`, 'delta', 'iceberg', 'sqlite' or 'postgresql', tables are those that others
        append versions of keys to, and SQL does (docs/external-tables.md#federated-tables): reads
        merge them as those of an external table, and INSERT, UPDATE, DELETE and MERGE append
        versions, tombstones among them, by one commit of the table's own engine. `source` is the
        folder that has the folders of the tables, the namespace of a catalog of Iceberg (with the
        option 'catalog.uri'), or the address of the database; `tables` has their keys, as far as
        they are not properties of the tables, see `UpsertKeys`. Nothing is looked at before a
        statement names a table, and none is stored. There is no isolation but 'snapshot'.

        Raises `AlreadyExistsError` where something is attached, or a database of the lake is
        called, by that name; `InvalidError` for what is no name, for `sys` and words that SQL takes
        for its own, and for what is no address; `UnsupportedError` for a format to which rows
        cannot be appended, and 'serializable' with one; `NotFoundError` where there is no file,
        `SetupError` without the drivers (`keytide[databases]`), `DataError` where the database
        does not answer, or the file is none of SQLite. No message shows a password.
        """
        self._check_attachable(name)
        if format is not None:
            connector = self._federated(name, source, isolation, format, options, tables)
        elif options or tables:
            raise InvalidError(
                "Lake.attach: options and tables say something of a format alone; name the format"
            )
        else:
            connector = source if isinstance(source, Connector) else adbc_connector(name, source)
        if isolation is not None:
            connector = replace(connector, isolation=isolation)
        attached = {**self._catalog.attached, name.lower(): connector}
        self._catalog = replace(self._catalog, attached=attached)

    def _check_attachable(self, name: str) -> None:
        """Refuse a name by which nothing can be attached. Raises as `attach`."""
        from keytide.sql.dialect import is_plain_name

        if not name.isidentifier():
            raise InvalidError(
                f"Lake.attach: {shown(name)} is no name; take letters, digits and underscores"
            )
        if name.lower() == SYSTEM_DATABASE or not is_plain_name(name):
            raise InvalidError(
                f"Lake.attach: {name} is a word of SQL's own, so nothing could be found by it; "
                f"choose another name"
            )
        taken = {database.lower() for database in self._catalog.databases()}
        if name.lower() in taken | {DEFAULT_DATABASE, *self._catalog.attached}:
            raise AlreadyExistsError(
                f"{name} is the name of a database of {self.uri}, or of what is attached; choose "
                f"another one"
            )

    def _federated(
        self,
        name: str,
        source: Connector | str | Path,
        isolation: Isolation | None,
        format: str,
        options: Mapping[str, str] | None,
        tables: Mapping[str, UpsertKeys] | None,
    ) -> Connector:
        """What appends to tables of a format. Raises as `attach`."""
        if isinstance(source, Connector) or isolation == "serializable":
            raise UnsupportedError(
                f"Lake.attach: a format goes with a location and with isolation 'snapshot', as "
                f"tables of {format} are only appended to; leave one of them out"
            )
        near = self._catalog.store_for(f"{DEFAULT_DATABASE}.{name}")
        return federated_connector(
            federated_tables(name, format, os.fspath(source), options or {}, tables or {}, near)
        )

    @checked
    def detach(self, name: str) -> None:
        """Forget a connector. Raises `NotFoundError` where none of that name is attached."""
        left = {n: c for n, c in self._catalog.attached.items() if n != name.lower()}
        if len(left) == len(self._catalog.attached):
            there = ", ".join(self.attached) or "nothing"
            raise NotFoundError(f"nothing is attached as {shown(name)}; there is: {there}")
        self._catalog = replace(self._catalog, attached=left)

    @property
    def exists(self) -> bool:
        """Whether the folder is there; true in an object store, which knows no folders.

        The first table that is made in a warehouse makes its folder.
        """
        return self._catalog.exists

    @checked
    def databases(self) -> list[str]:
        """Names of the databases, sorted: those that were made, and those that have tables.

        In an object store a database that nobody made by its name is there as long as it has a
        table. Raises `NotFoundError` where the folder is not there, `DataError` when the store
        fails.
        """
        self._catalog.check_exists()
        return self._catalog.databases()

    @property
    def database(self) -> str:
        """The database that names without one mean; see `use`."""
        return self._catalog.database

    @checked
    def use(self, database: str) -> None:
        """From now on names without a database are in this one: of SQL, and of Python's calls.

        As `USE database` in SQL, for this object, in all threads. Tables that are open stay what
        they are. Raises `NotFoundError` naming the databases there are (`default` may always be
        used), `InvalidError` for what is no name, `DataError` when the store fails.
        """
        self._catalog = self._catalog.using(database)

    @checked
    def create_database(
        self, name: str, comment: str | None = None, *, exists_ok: bool = False
    ) -> None:
        """Make a database without tables; atomic: of several callers one makes it.

        There is no need to: a table's database is there with the table. The comment is Keytide's
        own; other engines see the database without it. Raises `AlreadyExistsError` unless
        `exists_ok`, `InvalidError` for what is no name, `DataError` when the store fails.
        """
        if name.lower() in self._catalog.attached:
            raise AlreadyExistsError(f"{name} is the name of what is attached; choose another one")
        self._catalog.create_database(name, comment, exists_ok=exists_ok)

    @checked
    def drop_database(self, name: str, *, missing_ok: bool = False, cascade: bool = False) -> None:
        """Delete a database, and with `cascade` all of its tables with their files, one by one.

        Raises `NotFoundError` where there is none, unless `missing_ok`; `InvalidError` where it has
        tables, without `cascade`; `ConflictError` where somebody makes a table there meanwhile,
        which stays; `DataError` when the store fails.
        """
        self._catalog.drop_database(name, missing_ok=missing_ok, cascade=cascade)

    @checked
    def rename_table(self, name: str, new_name: str) -> Table | ExternalTable:
        """Give a table another name, in one step, and open it; without a database it stays in its.

        Its branches, tags, snapshots and indexes stay what they are, and it is published anew where
        its option 'publish' says so. On local disk only: an object store renames nothing, and a
        copy would not hold still. Whoever reads or writes it by its old name meanwhile fails, with
        nothing committed or, where the commit came before the new name, with all of it; that holds
        for writers of Keytide, so let those of other engines end before.

        Raises `NotFoundError` where there is no such table, `AlreadyExistsError` where the new name
        is taken, `InvalidError` for what is no name and for a branch, `UnsupportedError` in an
        object store, `DataError` when the store fails.
        """
        new = self._catalog.rename_table(name, new_name)
        opened = self.table(new)
        assert not isinstance(opened, FederatedTable)
        return opened

    @checked
    def tables(self, database: str | None = None) -> list[str]:
        """Names of the tables, of one database or of all, sorted.

        Raises `NotFoundError` where the folder is not there, which the first table that is made
        makes, and `DataError` when the store fails.
        """
        self._catalog.check_exists()
        return self._catalog.tables(database)

    @checked
    def table(self, name: str) -> Table | ExternalTable | FederatedTable:
        """Open a table, which is an `ExternalTable` where others keep its rows.

        `attached.table` is the `FederatedTable` of what is attached with a format.

        Raises `NotFoundError` naming the tables there are, `InvalidError` for what is no name,
        `UnsupportedError` for the table of another connector, which SQL alone can use.
        """
        if (found := self._catalog.find_attached(name)) is not None:
            return self._federated_table(name, *found)
        entry = self._catalog.entry(name)
        if is_external(entry.schema):
            return ExternalTable(entry)
        return Table.of(self._catalog.managed(entry), self._spark, self._catalog)

    def _federated_table(self, name: str, attached: str, table: str) -> FederatedTable:
        """A table of what is attached by a name. Raises as `table`."""
        tables = tables_of(self._catalog.attached[attached])
        if tables is None:
            raise UnsupportedError(
                f"{name}: the tables of {attached} are changed and read by Lake.sql alone; attach "
                f"it with a format to have its rows merged by keys"
            )
        tables.pinned(table)  # which tells of a table that is not there, or has no keys
        return FederatedTable(self._catalog, self._spark, name, tables)

    @checked
    def find(self, name: str) -> str | None:
        """The table that a name means where case does not matter, as it does not in SQL.

        The name itself where there is such a table. Raises `InvalidError` naming them when several
        tables differ in case only.
        """
        return self._catalog.find(name)

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
        generated: Mapping[str, str] | None = None,
        exists_ok: bool = False,
    ) -> Table:
        """Make a table; atomic: of several callers one makes it.

        `schema` is an Arrow schema, or Keytide fields where a type has no Arrow name of its own; a
        `comment` or `description` in the metadata of an Arrow field is the comment of the column.
        Primary key columns become NOT NULL. An empty `primary_key` asks for an append table: it
        keeps every row that is written. Without the option `bucket` a table gets one bucket a
        partition. `generated` has the expressions of columns that writes compute, by their names,
        such as `{"day": "CAST(ts AS DATE)"}` (docs/semantics.md#generated-columns).

        Raises `AlreadyExistsError` unless `exists_ok`, `InvalidError` for a definition that cannot
        work, or whose keys are not those of the table that exists, `UnsupportedError` for an option
        that no engine would obey, with nothing made. Warns of options that only other engines obey.
        """
        wanted = NewTable(schema, primary_key, partition_by, options, comment, generated or {})
        made = self._catalog.create_table(name, wanted, exists_ok=exists_ok)
        return Table.of(made, self._spark, self._catalog)

    @checked
    def views(self, database: str | None = None) -> list[str]:
        """Names of the views, of one database or of all, sorted. Raises as `tables`."""
        self._catalog.check_exists()
        return self._catalog.views(database)

    @checked
    def create_view(
        self,
        name: str,
        query: str,
        columns: Sequence[str] = (),
        comment: str | None = None,
        *,
        replace: bool = False,
        exists_ok: bool = False,
    ) -> None:
        """Give a query a name, by which SQL reads it: as CREATE VIEW; atomic.

        `query` is the SQL text of one, which may read views too; names in it without a database are
        in the one in `use` now. `columns` are names for its columns, which keep their own without.
        Nothing of its rows is kept: it is carried out, on the newest snapshots, when it is read.
        With `replace` a view of this name gets this query. Views are Keytide's own: other engines
        of the format see none of them.

        Raises `AlreadyExistsError` where there is a table of this name, or a view unless `replace`
        or `exists_ok`; `InvalidError` for what is no query, or cannot run, for columns with the
        same name, and for a view that would be made of itself; `NotFoundError` for tables that are
        not there; `DataError` when the store fails.
        """
        from keytide.sql.grammar import parse_query
        from keytide.sql.making_views import create_view
        from keytide.sql.statements import CreateView

        if replace and exists_ok:
            raise InvalidError("Lake.create_view: give one of replace and exists_ok")
        wanted = CreateView(
            name, query, parse_query(query), tuple(columns), comment, replace, exists_ok
        )
        create_view(self._catalog, self._engine(), wanted)

    @checked
    def drop_view(self, name: str, *, missing_ok: bool = False) -> None:
        """Forget a view. Its tables stay, and views that read it cannot be read any more.

        Raises `NotFoundError` where there is no such view, unless `missing_ok`, `DataError` when
        the store fails.
        """
        self._catalog.drop_view(name, missing_ok=missing_ok)

    @checked
    def create_external_table(
        self,
        name: str,
        *,
        format: str,
        location: str | Path,
        primary_key: Sequence[str],
        watermark_key: Sequence[str] = (),
        tombstone_key: str | None = None,
        tombstone_string_key_value: str | None = None,
        schema: pa.Schema | Sequence[Field] | None = None,
        options: Mapping[str, str] | None = None,
        comment: str | None = None,
        exists_ok: bool = False,
    ) -> ExternalTable:
        """Define a table whose rows others keep, as versions of keys; atomic, as `create_table`.

        Of the rows with one `primary_key` readers see the freshest by `watermark_key`, or none
        where its `tombstone_key` says that it is deleted (docs/external-tables.md). `format` is
        'parquet', 'csv' or 'json' for files in the folder `location`, 'delta', 'iceberg', 'sqlite',
        'postgresql', or 'keytide' and 'paimon' for a table of this format. The columns are those of
        `schema` or, without one, those that lie there now; see `ExternalTable.refresh`. `options`
        are 'read.memory', 'upsert.on-tie', those of the format such as
        'external.option.delimiter', and 'user.' ones. Nothing is written but the definition, and
        it never holds a secret: what opens the location comes from the environment, or from
        `connect` where it is in the lake's own bucket.

        Raises `AlreadyExistsError` unless `exists_ok`, `NotFoundError` where nothing lies there,
        `InvalidError` for a definition that cannot work or does not fit what lies there, and for
        a location or an option with a secret in it, which is not shown; `UnsupportedError` for an
        option that nothing would obey; `SetupError` and `DataError` as the format has it.
        """
        given = with_upsert_keys(
            name, options, watermark_key, tombstone_key, tombstone_string_key_value
        )
        fields = () if schema is None else fields_of(schema)
        wanted = NewExternalTable(format, str(location), primary_key, fields, given, comment)
        entry = create_external(self._catalog, name, wanted, exists_ok=exists_ok)
        return ExternalTable(entry)

    @checked
    def adopt(
        self,
        name: str,
        *,
        format: str,
        location: str | Path,
        primary_key: Sequence[str],
        watermark_key: Sequence[str] = (),
        tombstone_key: str | None = None,
        tombstone_string_key_value: str | None = None,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        comment: str | None = None,
    ) -> AdoptionResult:
        """Make a table of the rows that a Delta, Iceberg or Parquet table has now.

        What lies at `location` is read once, at one version, and stays as it is: the new table has
        files of its own and needs it no more (docs/adopting.md). They are what a compaction of all
        rows would leave, sorted and on the lowest level, so nothing is to be merged before more
        rows come. Rows that come in the order of the key pass straight through, others are sorted,
        in about as much memory as 'read.memory' says and, beyond that, on local disk. Each key must
        have one row; with a `tombstone_key` one that it marks says that its key is deleted.

        `format` and `location` are those of `create_external_table`, the columns those that lie
        there, `partition_by`, `options` and `comment` those of `create_table`, beside options of
        the format such as 'external.option.catalog.uri'. What was adopted is the table's option
        'user.adopted-from'. Readers see the table when its rows are committed; a process that dies
        at that moment may leave it empty.

        Raises `InvalidError` for several rows of a key and NULL in a key, naming keys, and as
        `create_table` and `create_external_table` do; `AlreadyExistsError` where a table has the
        name, `NotFoundError` where nothing lies there, `UnsupportedError` where partition columns
        are not in the primary key; `SetupError` and `DataError` as the format has it, and where the
        store or the local disk fails. Then there is no table.
        """
        given = with_upsert_keys(
            name, options, watermark_key, tombstone_key, tombstone_string_key_value
        )
        wanted = NewAdopted(format, str(location), primary_key, partition_by, given, comment)
        return adopt(self._catalog, name, wanted)

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
        *,
        generated: Mapping[str, str] | None = None,
    ) -> WriteResult:
        """Make a table that holds `rows` from the start; after an error there is none.

        `rows` is what `Table.write` takes, the rest as in `create_table`. Readers see the table
        when its rows are committed; a process that dies at that moment may leave it empty. Raises
        what `create_table` and `Table.write` raise.
        """

        def write(transaction: Transaction) -> None:
            if is_spark_dataframe(rows):
                from keytide.spark.write import fill as fill_on_spark

                fill_on_spark(transaction, rows)
            else:
                view = transaction.view
                fill(transaction, to_arrow_table(rows, view.schema, view.name))

        wanted = NewTable(schema, primary_key, partition_by, options, comment, generated or {})
        return self._catalog.create_filled(name, wanted, write)

    @checked
    def auto_cdc(
        self,
        target: str,
        source: Any,
        keys: Any,
        sequence_by: Any,
        *,
        apply_as_deletes: Any = None,
        apply_as_truncates: Any = None,
        column_list: Any = None,
        except_column_list: Any = None,
        ignore_null_updates: bool = False,
        stored_as_scd_type: int | str = 1,
        track_history_column_list: Any = None,
        track_history_except_column_list: Any = None,
        options: Mapping[str, str] | None = None,
        merge_schema: bool = False,
        name: str | None = None,
        checkpoint: str | Path | None = None,
        trigger: Mapping[str, Any] | None = None,
        commit_user: str | None = None,
        commit_identifier: int | None = None,
    ) -> Any:
        """Make change events part of a table, whatever order they come in (docs/auto-cdc.md).

        `source` is what `Table.write` takes, with a row for each event; a streaming DataFrame of
        Spark gives the query that was started, anything else a `WriteResult`. `keys` say which row
        an event is about, `sequence_by` which of the events of a key is newer: one column, several,
        or the text `'struct(a, b)'`. `apply_as_deletes` is a condition as in `Table.scan`, for
        DataFrames a `Column` too; without one a column `_row_kind` says what deletes, if there is
        one. The target has the columns in `column_list`, or all but those in `except_column_list`;
        it is made, with `options`, where it is missing.

        `stored_as_scd_type` 1 keeps the newest row of each key, and the columns of `sequence_by`. 2
        keeps a row for each interval in which a key had the same values, from `__START_AT` to
        `__END_AT`, which is NULL for what is so now; with several columns in `sequence_by` they are
        `__START_AT_<column>` and so on. A change of a column in `track_history_column_list`, or of
        one not in `track_history_except_column_list`, begins an interval; others replace the value
        in it. By default that is all but the keys and `sequence_by`. With `ignore_null_updates` a
        NULL leaves a value as it is. With type 1, an event that meets the condition
        `apply_as_truncates` ends all rows from before its place; events that come later from before
        it bring none back.

        The result depends on the set of events alone: late ones, and such as come twice, change
        what they would have changed in time. Of events with one key and one place in the order the
        last one counts. Deletes are kept as `tombstone.retention` says. One atomic commit, and one
        before it where events truncate the target; with type 2, and where NULLs are ignored, it is
        made anew where another writer came to one of its buckets. `name`, `checkpoint` and
        `trigger` (such as `{"availableNow": True}`) are those of the query of a stream, each batch
        of which is one commit; `commit_user`, `commit_identifier` and `merge_schema` as in
        `Table.write`.

        Raises `InvalidError` for arguments that do not go together, a table that is no target of
        the flow, and an event without a place in the order (type 2, and truncates), `NotFoundError`
        for columns that the source lacks, and what `Table.write` raises.
        """
        from keytide.cdc.auto_cdc import apply_events
        from keytide.cdc.flow import FlowRequest, names_of, refuse_stream_settings

        def named(given: Any, argument: str) -> tuple[str, ...] | None:
            return None if given is None else names_of(given, argument)

        request = FlowRequest(
            target=target,
            keys=names_of(keys, "keys"),
            sequence_by=names_of(sequence_by, "sequence_by"),
            deletes=apply_as_deletes,
            truncates=apply_as_truncates,
            columns=named(column_list, "column_list"),
            except_columns=named(except_column_list, "except_column_list"),
            ignores_nulls=ignore_null_updates,
            scd_type=_scd_type(stored_as_scd_type),
            tracked=named(track_history_column_list, "track_history_column_list"),
            except_tracked=named(
                track_history_except_column_list, "track_history_except_column_list"
            ),
            options=dict(options or {}),
            merge_schema=merge_schema,
        )
        author = Author.given(commit_user, commit_identifier)
        if is_spark_dataframe(source):
            from keytide.spark.auto_cdc import FlowStream
            from keytide.spark.auto_cdc import apply_events as apply_on_spark

            place = None if checkpoint is None else str(checkpoint)
            stream = FlowStream(name, place, dict(trigger or {}))
            return apply_on_spark(self._catalog, request, source, stream, author)
        refuse_stream_settings(name, checkpoint, trigger)
        return apply_events(self._catalog, request, source, author)

    @checked
    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a table with all its files. Readers of it fail from then on.

        Raises `NotFoundError` when there is no such table, unless `missing_ok`.
        """
        self._catalog.drop_table(name, missing_ok=missing_ok)

    @checked
    def ingest(
        self,
        table: str,
        source: str,
        *,
        format: str,
        schema: str | Sequence[Field] | None = None,
        primary_key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        sequence_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        empty_as_null: Sequence[str] = (),
        dead_letter: str | None = None,
        checkpoint: str | None = None,
        max_files_per_batch: int | None = None,
        max_messages_per_batch: int | None = None,
        starting_offsets: str | None = None,
        consumer_properties: Mapping[str, str] | None = None,
        if_lost: Literal["fail", "earliest", "latest"] | None = None,
        continuous: bool = False,
        merge_schema: bool = False,
        on_batch: Callable[[Any], None] | None = None,
    ) -> IngestReport:
        """Feed a table from change data in topics of Kafka, or in files.

        `source` is `kafka://host:port/topic`, with commas between several of either, or a folder,
        file or glob. `format` is 'debezium-json', 'maxwell-json', 'canal-json', 'dms-json', or
        'json' for plain rows, which replace those of their keys (docs/kafka.md). Files are read by
        the Spark session of the lake, topics by this process, whether there is a session or not
        (`pip install 'keytide[kafka]'`). The table is opened, or made from `schema`
        and `primary_key`, or from what the first messages and their keys show; `sequence_by` names
        the members that order changes where the usual ones of the format will not do.

        Topics: each batch is one commit with the offsets that it reaches, so that a later run goes
        on there, whatever ended the one before. `starting_offsets` ('earliest', 'latest', or JSON
        such as `{"orders": {"0": 23}}`) is for partitions of which the table tells nothing.
        Messages that expired before they were read, and a topic that was made anew, are errors,
        unless `if_lost` says where to go on. A batch has `max_messages_per_batch` messages (100,000
        if left out) and 64 MiB at most. `consumer_properties` are those of librdkafka.

        Files: progress lies in `checkpoint`, see `keytide.spark.ingest.ingest`.

        Members of the rows that the table has no column for are left out. With `merge_schema` it
        grows to take them, before each batch that brings some.

        Runs until all is read that was there at the beginning, or, `continuous`, until it is
        stopped. `on_batch` is called after each batch. Messages that cannot be applied are kept in
        the table `dead_letter` with the reason.

        Raises `InvalidError` for what does not go together, `NotFoundError` where there is no such
        topic or file, `DataError` for offsets that are lost and brokers that do not answer,
        `ConflictError` where another process feeds the table from the same topics, `SetupError`
        where a library is missing, and what writes raise. What was committed is whole.
        """
        from keytide.lake.feeding import FeedRequest, TopicOptions, columns_of, feed

        request = FeedRequest(
            warehouse=self.uri,
            table=table,
            source=source,
            format=format,
            columns=columns_of(schema),
            primary_key=tuple(primary_key),
            partition_by=tuple(partition_by),
            sequence_by=tuple(sequence_by),
            options=dict(options or {}),
            empty_as_null=tuple(empty_as_null),
            checkpoint=checkpoint,
            dead_letter=dead_letter,
            max_files_per_batch=max_files_per_batch,
            continuous=continuous,
            merge_schema=merge_schema,
        )
        of_topics = TopicOptions(
            starting_offsets, dict(consumer_properties or {}), max_messages_per_batch, if_lost
        )
        return feed(request, of_topics, self._catalog, self._spark, on_batch)

    @checked
    def ingest_tables(
        self,
        tables: str,
        source: str,
        *,
        format: str,
        primary_key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        sequence_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        empty_as_null: Sequence[str] = (),
        dead_letter: str | None = None,
        max_messages_per_batch: int | None = None,
        starting_offsets: str | None = None,
        consumer_properties: Mapping[str, str] | None = None,
        if_lost: Literal["fail", "earliest", "latest"] | None = None,
        continuous: bool = False,
        merge_schema: bool = False,
        on_batch: Callable[[str, Any], None] | None = None,
        on_failure: Callable[[str, KeytideError], None] | None = None,
    ) -> TablesReport:
        """Feed a table for each topic of Kafka, such as Debezium writes them, side by side.

        `tables` is a template of names, such as 'shop.{table}': `{table}` is what stands behind the
        last dot of a topic's name, `{database}` the part before that, and `{topic}` the whole name
        with underscores for dots. Topics that come to one name feed one table. In `source`,
        `kafka://host:port/shop.public.*`, a `*` stands for any part of a name.

        Each table is fed as `ingest` does it, with its offsets in its own snapshots. One that fails
        stops no other one: its error is in `failed` of the report, and `on_failure(table, error)`
        is called when it happens, as `on_batch(table, batch)` is after each commit, by any thread.
        All batches that are read at the time have 64 MiB together, and 1 MiB each at least. With
        `continuous`, up to 1,000 tables; topics that are made later are fed too where they fit and
        their table is not being fed yet, and else by the next run.

        Raises `InvalidError` for what does not go together, a template that is none and topics
        without such parts, `NotFoundError` where no topic fits, `DataError` where no broker
        answers, and `SetupError` where a library is missing.
        """
        from keytide.lake.feeding import FeedRequest, Told, TopicOptions, feed_tables

        request = FeedRequest(
            warehouse=self.uri,
            table=tables,
            source=source,
            format=format,
            primary_key=tuple(primary_key),
            partition_by=tuple(partition_by),
            sequence_by=tuple(sequence_by),
            options=dict(options or {}),
            empty_as_null=tuple(empty_as_null),
            dead_letter=dead_letter,
            continuous=continuous,
            merge_schema=merge_schema,
        )
        of_topics = TopicOptions(
            starting_offsets, dict(consumer_properties or {}), max_messages_per_batch, if_lost
        )
        return feed_tables(request, of_topics, self._catalog, Told(on_batch, on_failure))

    @checked
    def sql(self, text: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Result:
        """Run SQL statements, separated by semicolons; the result is that of the last one.

        `parameters` are values for each `?` of the text, from left to right, or a dict for each
        `:name`: numbers, texts, booleans, bytes, dates, times or None, of which nothing is ever
        taken for SQL.

        Runs on DuckDB in this process, or on the Spark session given to `connect`. All of the
        text is parsed first; then each statement is carried out in turn, atomically, and what
        was done before a statement that fails stays. Raises `InvalidError` with the place of
        what does not parse or fit, and what reads and writes of tables raise.
        """
        from keytide.sql.execute import run
        from keytide.sql.parameters import with_parameters

        text = text if parameters is None else with_parameters(text, parameters)
        return run(self, self._engine(), text)

    @checked
    def sql_results(self, text: str) -> Iterator[Result]:
        """Run SQL statements, one for each result that is taken. Parses, and raises, as `sql`."""
        from keytide.sql.execute import results

        return results(self, self._engine(), text)

    def _engine(self) -> Engine:
        return engine_of(self._spark, self.allows_external_files)


def _scd_type(given: int | str) -> int:
    return int(given) if str(given) in ("1", "2") else -1
