"""The `Lake` class and the functions that open a lake or a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from keytide.base import record
from keytide.base.arguments import checked, shown
from keytide.catalogs.catalog import DEFAULT_DATABASE, SYSTEM_DATABASE, NewTable, fields_of
from keytide.catalogs.local_writes import fill
from keytide.commit.change import Author
from keytide.commit.transaction import Transaction, WriteResult
from keytide.definition.kind import is_external
from keytide.dml.adbc import adbc_connector
from keytide.dml.attachments import AttachedCatalog
from keytide.dml.spi import Connector, Isolation
from keytide.errors import (
    AlreadyExistsError,
    InvalidError,
    KeytideError,
    NotFoundError,
    UnsupportedError,
)
from keytide.lake.external_tables import ExternalTable, FederatedTable
from keytide.lake.placement import engine_of
from keytide.lake.table import Table, is_spark_dataframe
from keytide.maintenance.background import BACKGROUND
from keytide.sources.external_definitions import (
    AdoptionResult,
    NewAdoption,
    NewExternalTable,
    adopt,
    create_external,
    with_upsert_keys,
)
from keytide.sources.federated import UpsertKeys, federated_connector, federated_tables, tables_of
from keytide.sql.result import Result
from keytide.types import Field
from keytide.write.input_rows import to_arrow_table

if TYPE_CHECKING:
    from typing_extensions import Self

    from keytide.feeds.feed import IngestReport
    from keytide.feeds.kafka.ingest import TablesReport

__all__ = ["Lake"]


class Lake:
    """Tables in one warehouse, addressed by `database.table`.

    A name without a database belongs to the current database, in Python as in SQL. The current
    database is `default` until `use` changes it.
    """

    def __init__(self, catalog: AttachedCatalog, spark: Any = None) -> None:
        self._catalog = catalog
        self._spark = spark

    def close(self) -> None:
        """Run the pending compactions of tables in this lake, and wait for them.

        These are the compactions that writes of this process made due. See `Table.close`. You can
        continue to use the lake afterwards.
        """
        BACKGROUND.wait_below(self._catalog.warehouse.folder)

    def __enter__(self) -> Self:
        """Return the lake. Leaving the `with` block waits, as `close` does."""
        return self

    def __exit__(self, *raised: object) -> None:
        """See `close`."""
        self.close()

    def __repr__(self) -> str:
        return f"Lake({self.uri!r})"

    def _repr_html_(self) -> str:
        return record.heading("Lake", self.uri) + record.bullets(self._catalog.tables())

    @property
    def uri(self) -> str:
        """The path or address of the warehouse."""
        return self._catalog.uri

    @property
    def spark(self) -> Any:
        """The Spark session given to `connect`, or None."""
        return self._spark

    @property
    def allows_external_files(self) -> bool:
        """Whether queries can read files outside the lake's tables."""
        return self._catalog.allows_external_files

    @property
    def catalog(self) -> AttachedCatalog:
        """The catalog that the lower layers use for this lake."""
        return self._catalog

    @property
    def attached(self) -> list[str]:
        """The names of the attached connectors, sorted."""
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
        """Attach another database, so that SQL finds its tables as `name.table`.

        The attachment lasts as long as this object and is not stored. `name` is case-insensitive.

        Without a `format`, `source` is `postgresql://user@host/database`, `sqlite:///path` (with a
        fourth slash for an absolute path), the path of an SQLite file, or a connector object. With
        the isolation 'serializable' instead of 'snapshot', each statement that changes a table
        there reads and writes in one transaction of that isolation level, and the statement is
        retried when it conflicts.

        With a `format` ('delta', 'iceberg', 'sqlite' or 'postgresql'), the attached tables are
        federated tables (docs/external-tables.md#federated-tables): other engines append versions
        of keys to them, and so does Keytide. Reads merge these versions as in an external table.
        INSERT, UPDATE, DELETE and MERGE append new versions, including tombstones, in one commit of
        the table's own engine. Then:

        - `source` is the folder that contains the table folders, the namespace of an Iceberg
          catalog (with the option 'catalog.uri'), or the address of the database.
        - `tables` gives the keys of each table, unless the table's properties define them. See
          `UpsertKeys`.
        - The only isolation is 'snapshot'.
        - Nothing is read until a statement names a table.

        Raises:

        - `AlreadyExistsError` when the name is already attached, or is a database of the lake.
        - `InvalidError` for an invalid name, for `sys` and SQL keywords, and for an invalid
          address.
        - `UnsupportedError` for a format that cannot be appended to, and for 'serializable' with a
          format.
        - `NotFoundError` when the file does not exist.
        - `SetupError` when the drivers are not installed (`keytide[databases]`).
        - `DataError` when the database does not answer, or the file is not an SQLite database.

        No message contains a password.
        """
        # Raise as `attach` does if nothing can be attached under this name.
        from keytide.sql.cursor import is_plain_name

        if not name.isidentifier():
            raise InvalidError(
                f"Lake.attach: {shown(name)} is not a valid name; use letters, digits and "
                "underscores"
            )
        if name.lower() == SYSTEM_DATABASE or not is_plain_name(name):
            raise InvalidError(f"Lake.attach: {name} is a reserved SQL name; choose another name")
        taken = {database.lower() for database in self._catalog.databases()}
        if name.lower() in taken | {DEFAULT_DATABASE, *self._catalog.attached}:
            raise AlreadyExistsError(
                f"{name} is already the name of a database of {self.uri}, or of an attached "
                "catalog; choose another name"
            )
        if format is not None:
            # The connector for tables of a format that is appended to. Raises as `attach`.
            if isinstance(source, Connector) or isolation == "serializable":
                raise UnsupportedError(
                    "Lake.attach: a format requires a location and isolation 'snapshot', because "
                    f"tables of {format} can only be appended to; change one of them"
                )
            near = self._catalog.store_for(f"{DEFAULT_DATABASE}.{name}")
            connector = federated_connector(
                federated_tables(name, format, os.fspath(source), options or {}, tables or {}, near)
            )
        elif options or tables:
            raise InvalidError("Lake.attach: options and tables require a format; set it")
        else:
            connector = source if isinstance(source, Connector) else adbc_connector(name, source)
        if isolation is not None:
            connector = replace(connector, isolation=isolation)
        attached = {**self._catalog.attached, name.lower(): connector}
        self._catalog = replace(self._catalog, attached=attached)

    @checked
    def detach(self, name: str) -> None:
        """Remove an attached connector. Raises `NotFoundError` when none has that name."""
        left = {n: c for n, c in self._catalog.attached.items() if n != name.lower()}
        if len(left) == len(self._catalog.attached):
            there = ", ".join(self.attached) or "nothing"
            raise NotFoundError(
                f"no catalog is attached as {shown(name)}; attached catalogs: {there}"
            )
        self._catalog = replace(self._catalog, attached=left)

    @property
    def exists(self) -> bool:
        """Whether the warehouse folder exists.

        Always true in an object store, which has no folders. The first table that is created in a
        warehouse creates its folder.
        """
        return self._catalog.exists

    @checked
    def databases(self) -> list[str]:
        """The names of the databases, sorted: created ones, and those that contain tables.

        In an object store, a database that was not created explicitly exists as long as it contains
        a table. Raises `NotFoundError` when the warehouse folder does not exist, and `DataError`
        when the store fails.
        """
        self._catalog.check_exists()
        return self._catalog.databases()

    @property
    def database(self) -> str:
        """The current database, to which names without a database belong. See `use`."""
        return self._catalog.database

    @checked
    def use(self, database: str) -> None:
        """Set the current database for names without a database, in SQL and in Python calls.

        This works as `USE database` in SQL. It applies to this object, in all threads. It does not
        affect tables that are already open.

        Raises `NotFoundError`, listing the existing databases, for an unknown one (`default` is
        always accepted), `InvalidError` for an invalid name, and `DataError` when the store fails.
        """
        self._catalog = self._catalog.using(database)

    @checked
    def create_database(
        self, name: str, comment: str | None = None, *, exists_ok: bool = False
    ) -> None:
        """Create an empty database. Atomic: if several callers try, exactly one creates it.

        This is optional, because creating a table also creates its database. The comment is a
        feature of Keytide. Other engines see the database without it.

        Raises `AlreadyExistsError` unless `exists_ok`, `InvalidError` for an invalid name, and
        `DataError` when the store fails.
        """
        if name.lower() in self._catalog.attached:
            raise AlreadyExistsError(
                f"{name} is the name of an attached catalog; choose another name"
            )
        self._catalog.create_database(name, comment, exists_ok=exists_ok)

    @checked
    def drop_database(self, name: str, *, missing_ok: bool = False, cascade: bool = False) -> None:
        """Delete a database and, with `cascade`, all its tables and their files, one by one.

        Raises `NotFoundError` when there is no such database, unless `missing_ok`. Raises
        `InvalidError` when it contains tables and `cascade` is not set, `ConflictError` when
        another writer creates a table there in the meantime (that table is kept), and `DataError`
        when the store fails.
        """
        self._catalog.drop_database(name, missing_ok=missing_ok, cascade=cascade)

    @checked
    def rename_table(self, name: str, new_name: str) -> Table | ExternalTable:
        """Rename a table atomically, and open it under its new name.

        If `new_name` has no database, the table stays in its database. Branches, tags, snapshots
        and indexes are kept. The table is published again if its option 'publish' is set.

        This works on local disk and in catalogs (docs/catalogs.md), where AWS Glue needs two steps.
        An object store without a catalog has no atomic rename. Readers and writers that use the old
        name meanwhile fail. Such a writer has then committed either
        nothing or, if its commit came before the rename, everything. This holds for Keytide's
        writers only, so stop the writers of other engines first.

        Raises:

        - `NotFoundError` when there is no such table.
        - `AlreadyExistsError` when the new name is taken.
        - `InvalidError` for an invalid name and for a branch.
        - `UnsupportedError` in an object store without a catalog.
        - `DataError` when the store fails.
        """
        new = self._catalog.rename_table(name, new_name)
        opened = self.table(new)
        assert not isinstance(opened, FederatedTable)
        return opened

    @checked
    def tables(self, database: str | None = None) -> list[str]:
        """The names of the tables in one database or in all of them, sorted.

        Raises `NotFoundError` when the warehouse folder does not exist (the first table creates
        it), and `DataError` when the store fails.
        """
        self._catalog.check_exists()
        return self._catalog.tables(database)

    @checked
    def table(self, name: str) -> Table | Any:
        """Open a table.

        The result is an `ExternalTable` when another engine writes the table's rows, and a
        `FederatedTable` for `attached.table`, a table of something attached with a format. Type
        checkers see a `Table`; `isinstance` narrows it to the others.

        Raises `NotFoundError`, listing the existing tables, for an unknown one, `InvalidError` for
        an invalid name, and `UnsupportedError` for a table of any other connector, which only SQL
        can use.
        """
        if (found := self._catalog.find_attached(name)) is not None:
            attached, table = found
            tables = tables_of(self._catalog.attached[attached])
            if tables is None:
                raise UnsupportedError(
                    f"{name}: tables of {attached} are available only in Lake.sql; to have their "
                    "rows merged by key, attach it with a format"
                )
            tables.pinned(table)  # raises if the table does not exist or has no keys
            return FederatedTable(self._catalog, self._spark, name, tables)
        entry = self._catalog.entry(name)
        if is_external(entry.schema):
            return ExternalTable(entry)
        return Table.of(self._catalog.managed(entry), self._spark, self._catalog)

    @checked
    def find(self, name: str) -> str | None:
        """The table that a name refers to when case is ignored, as in SQL, or None.

        An exact match wins. Raises `InvalidError`, listing the candidates, when several tables
        differ only in case.
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
        """Create a table. Atomic: if several callers try, exactly one creates it.

        - `schema` is an Arrow schema, or Keytide fields when Arrow has no equivalent type. A
          `comment` or `description` in the metadata of an Arrow field becomes the comment of the
          column.
        - `primary_key` names the key columns, which become NOT NULL. An empty key creates an append
          table, which keeps every row that is written.
        - `options` are table options (docs/options.md). Without the option `bucket`, each partition
          has one bucket.
        - `generated` maps column names to the expressions that writes compute for them, such as
          `{"day": "CAST(ts AS DATE)"}` (docs/semantics.md#generated-columns).

        Warns about options that only other engines apply.

        Raises the following, with nothing created:

        - `AlreadyExistsError` unless `exists_ok`.
        - `InvalidError` for an invalid definition, or, with `exists_ok`, when the existing table
          has other keys.
        - `UnsupportedError` for an option that no engine applies.
        """
        wanted = NewTable(schema, primary_key, partition_by, options, comment, generated or {})
        made = self._catalog.create_table(name, wanted, exists_ok=exists_ok)
        return Table.of(made, self._spark, self._catalog)

    @checked
    def views(self, database: str | None = None) -> list[str]:
        """The names of the views in one database or in all of them, sorted. Raises as `tables`."""
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
        """Create a view: a named query that SQL can read like a table. Atomic, as CREATE VIEW.

        - `query` is the SQL text of one query, which can read other views. Names in it without a
          database belong to the database that is current now.
        - `columns` renames the query's columns. By default they keep their names.
        - `replace` replaces the query of an existing view.

        A view stores no rows. Its query runs on the latest snapshots each time the view is read.
        Views are a feature of Keytide. Other engines do not see them.

        Raises:

        - `AlreadyExistsError` when a table has this name, or a view has it, unless `replace` or
          `exists_ok`.
        - `InvalidError` for text that is not a query or cannot run, for duplicate column names, and
          for a view that would read itself.
        - `NotFoundError` for tables that do not exist.
        - `DataError` when the store fails.
        """
        from keytide.sql.grammar import parse_query
        from keytide.sql.show_statements import create_view
        from keytide.sql.statements import CreateView

        if replace and exists_ok:
            raise InvalidError(
                "Lake.create_view: replace and exists_ok cannot be combined; give only one of them"
            )
        wanted = CreateView(
            name, query, parse_query(query), tuple(columns), comment, replace, exists_ok
        )
        create_view(self._catalog, engine_of(self._spark, self.allows_external_files), wanted)

    @checked
    def drop_view(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a view. Its tables are kept. Views that read it can no longer be read.

        Raises `NotFoundError` when there is no such view, unless `missing_ok`, and `DataError` when
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
        """Define an external table: another engine writes its rows as versions of keys. Atomic.

        For each `primary_key`, readers see the row with the largest `watermark_key`, or no row when
        its `tombstone_key` marks it as deleted (docs/external-tables.md).

        - `format` is 'parquet', 'csv' or 'json' for files in the folder `location`, 'delta',
          'iceberg', 'sqlite' or 'postgresql', or 'keytide' or 'paimon' for a table of Keytide's own
          format.
        - `schema` gives the columns. By default they are the columns found at `location` now. See
          `ExternalTable.refresh`.
        - `options` are 'read.memory', 'upsert.on-tie', options of the format such as
          'external.option.delimiter', and 'user.' options.

        Only the definition is written, and it never contains a secret. Credentials for the location
        come from the environment, or from `connect` when it is in the lake's own bucket.

        Raises:

        - `AlreadyExistsError` unless `exists_ok`.
        - `NotFoundError` when there is nothing at `location`.
        - `InvalidError` for an invalid definition or one that does not match the data, and for a
          location or option that contains a secret. The message does not show the secret.
        - `UnsupportedError` for an option that nothing applies.
        - `SetupError` and `DataError` depending on the format.
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
        """Create a table from the current rows of a Delta, Iceberg or Parquet table.

        The source at `location` is read once, at one version, and is not changed. The new table has
        its own files and no longer needs the source (docs/adopting.md). The files are what a full
        compaction would produce: sorted and on the highest level, so reads merge nothing until more
        rows arrive. Rows that arrive in key order are written as they are read. Other rows are
        sorted first, in about the memory that 'read.memory' allows, and beyond that on local disk.
        Each key must have one row. With a `tombstone_key`, a row that it marks means that the key
        is deleted.

        `format` and `location` have the same meaning as in `create_external_table`. The columns are
        those of the source. `partition_by`, `options` and `comment` have the same meaning as in
        `create_table`, and `options` can also hold options of the format, such as
        'external.option.catalog.uri'. The table's option 'user.adopted-from' records the source.
        Readers see the table once its rows are committed. A process that dies at that moment can
        leave the table empty.

        Raises the following, with no table created:

        - `InvalidError` for duplicate keys and NULL in a key, naming keys, and as `create_table`
          and `create_external_table` do.
        - `AlreadyExistsError` when a table has the name.
        - `NotFoundError` when there is nothing at `location`.
        - `UnsupportedError` when a partition column is not in the primary key.
        - `SetupError` depending on the format.
        - `DataError` depending on the format, and when the store or the local disk fails.
        """
        given = with_upsert_keys(
            name, options, watermark_key, tombstone_key, tombstone_string_key_value
        )
        wanted = NewAdoption(format, str(location), primary_key, partition_by, given, comment)
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
        """Create a table that already contains `rows`. After an error, no table exists.

        `rows` is what `Table.write` accepts. The other arguments have the same meaning as in
        `create_table`. Readers see the table once its rows are committed. A process that dies at
        that moment can leave the table empty. Raises what `create_table` and `Table.write` raise.
        """

        def write(transaction: Transaction) -> None:
            if is_spark_dataframe(rows):
                from keytide.spark.dataframe_writes import fill as fill_on_spark

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
        """Apply change events to a table, in whatever order they arrive (docs/auto-cdc.md).

        - `source` is what `Table.write` accepts, with one row for each event. A streaming Spark
          DataFrame starts a query, which is returned. Anything else returns a `WriteResult`.
        - `target` is created, with `options`, if it does not exist. Its columns are those in
          `column_list`, or all except those in `except_column_list`.
        - `keys` identify the row that an event describes.
        - `sequence_by` orders the events of a key: one column, several columns, or the string
          `'struct(a, b)'`.
        - `apply_as_deletes` is the condition under which an event is a delete. It is a condition as
          in `Table.scan`, or a Spark `Column` for DataFrames. Without it, a column `_row_kind`, if
          there is one, says which events are deletes.
        - `apply_as_truncates` (SCD type 1 only) is the condition under which an event removes all
          rows that precede it in the order. Events that arrive later but precede it do not restore
          those rows.
        - `ignore_null_updates` means that a NULL leaves the current value unchanged.
        - `stored_as_scd_type` 1 keeps the latest row of each key, including the columns of
          `sequence_by`. 2 keeps a row for each interval in which the values of a key did not
          change, from `__START_AT` to `__END_AT`, which is NULL for the current row. If
          `sequence_by` has several columns, they are named `__START_AT_<column>`, and so on.
        - `track_history_column_list` and `track_history_except_column_list` (SCD type 2) choose the
          columns for which a change starts a new interval. A change of any other column replaces
          the value within the interval. By default all columns except the keys and `sequence_by`
          are tracked.
        - `name`, `checkpoint` and `trigger`, such as `{"availableNow": True}`, are those of the
          streaming query. Each of its batches is one commit.
        - `commit_user`, `commit_identifier` and `merge_schema` have the same meaning as in
          `Table.write`.

        The result depends only on the set of events: late and duplicate events change only what
        they would have changed on time. Of events with the same key and the same place in the
        order, the last one wins. Deletes are kept for as long as `tombstone.retention` says.

        The events are applied in one atomic commit, preceded by another one when events truncate
        the target. With SCD type 2, and with `ignore_null_updates`, the commit is retried when
        another writer changed one of its buckets.

        Raises:

        - `InvalidError` for arguments that contradict each other, a table that cannot be the target
          of this flow, and an event without a place in the order (SCD type 2, and truncates).
        - `NotFoundError` for columns that the source lacks.
        - What `Table.write` raises.
        """
        from keytide.feeds.auto_cdc import apply_events
        from keytide.feeds.flow import FlowRequest, names_of, refuse_stream_settings

        def named(given: Any, argument: str) -> tuple[str, ...] | None:
            return None if given is None else names_of(given, argument)

        scd_type = int(stored_as_scd_type) if str(stored_as_scd_type) in ("1", "2") else -1
        request = FlowRequest(
            target=target,
            keys=names_of(keys, "keys"),
            sequence_by=names_of(sequence_by, "sequence_by"),
            deletes=apply_as_deletes,
            truncates=apply_as_truncates,
            columns=named(column_list, "column_list"),
            except_columns=named(except_column_list, "except_column_list"),
            ignores_nulls=ignore_null_updates,
            scd_type=scd_type,
            tracked=named(track_history_column_list, "track_history_column_list"),
            except_tracked=named(
                track_history_except_column_list, "track_history_except_column_list"
            ),
            options=dict(options or {}),
            merge_schema=merge_schema,
        )
        author = Author.of(commit_user, commit_identifier)
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
        """Delete a table and all its files. From then on, its readers fail.

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
        encoding: Any = None,
        epochs: Sequence[str] = (),
        source_table: str | None = None,
        on_batch: Callable[[Any], None] | None = None,
    ) -> IngestReport:
        """Load change data from Kafka topics or files into a table.

        - `source` is `kafka://host:port/topic`, with commas between several hosts or topics, or a
          folder, file or glob.
        - `format` is 'debezium-json', 'maxwell-json', 'canal-json', 'dms-json', or 'json' for plain
          rows, each of which replaces the row of its key (docs/kafka.md).
        - `schema` and `primary_key` are used when the table does not exist yet. Without them, the
          table is created from what the first messages and their keys contain.
        - `sequence_by` names the message fields that order changes, when the usual ones of the
          format do not.
        - `dead_letter` names a table that receives the messages that cannot be applied, with the
          reason.
        - `merge_schema` adds columns to the table for new message fields, before the batch that has
          them. Without it, fields that have no column are ignored.
        - `encoding`, a `cdc.Encoding`, describes how messages without a schema write decimals,
          times and bytes, such as `cdc.debezium_encoding(decimal_handling_mode='precise')`.
        - `epochs` are the logs of the source in their order, such as `['mysql-bin@1',
          'mysql-bin@2']` after a failover (docs/feed-order.md). A change from another log is an
          error.
        - `source_table` is the table of the source, as its messages name it, in which `*` matches
          any part of a name. Changes of another table are an error. By default it is the table of
          the first messages.
        - `continuous` keeps running until it is stopped. Otherwise the call returns once everything
          is read that existed when it started.
        - `on_batch` is called after each batch.

        **Topics** are read by this process, even if the lake has a Spark session (`pip install
        'keytide[kafka]'`). Each batch is one commit that also stores the offsets it reached, so a
        later run continues there, however the earlier run ended. A batch has at most
        `max_messages_per_batch` messages (default: 100,000) and 64 MiB. `starting_offsets`
        ('earliest', 'latest', or JSON such as `{"orders": {"0": 23}}`) applies to partitions for
        which the table has no offset. Messages that expired before they were read, and a topic that
        was recreated, are errors, unless `if_lost` says where to continue. `consumer_properties`
        are properties of librdkafka.

        **Files** contain one JSON message per line, optionally gzipped, and only a line feed ends a
        line. They are read by the lake's Spark session. The folder `checkpoint` stores the
        progress: with the same one, each file is applied once, and a repeated batch changes
        nothing. By default it is next to the tables of a local warehouse. `max_files_per_batch`
        limits a batch; the task that writes a bucket holds all changes of it in memory. With
        `merge_schema`, each batch is read twice.

        Committed batches stay complete after any error. Raises:

        - `InvalidError` for arguments that contradict each other.
        - `NotFoundError` when there is no such topic or file.
        - `DataError` for lost offsets, brokers that do not answer, and changes from an unknown log
          or of another table.
        - `ConflictError` when another process loads the table from the same topics.
        - `SetupError` when a library is not installed.
        - `UnsupportedError` for files on Spark Connect.
        - What writes raise.
        """
        from keytide.feeds.feed import FeedRequest, columns_of
        from keytide.lake.placement import feed

        request = FeedRequest(
            warehouse=self.uri,
            table=table,
            source=source,
            format=format,
            columns=columns_of(schema),
            primary_key=primary_key,
            partition_by=partition_by,
            sequence_by=sequence_by,
            options=options or {},
            empty_as_null=empty_as_null,
            checkpoint=checkpoint,
            dead_letter=dead_letter,
            max_files_per_batch=max_files_per_batch,
            continuous=continuous,
            merge_schema=merge_schema,
            encoding=encoding,
            epochs=epochs,
            source_table=source_table,
            max_messages_per_batch=max_messages_per_batch,
            starting_offsets=starting_offsets,
            consumer_properties=consumer_properties or {},
            if_lost=if_lost,
        )
        return feed(request, self._catalog, self._spark, on_batch)

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
        encoding: Any = None,
        epochs: Sequence[str] = (),
        source_table: str | None = None,
        on_batch: Callable[[str, Any], None] | None = None,
        on_failure: Callable[[str, KeytideError], None] | None = None,
    ) -> TablesReport:
        """Load Kafka topics, such as those that Debezium writes, into one table for each topic.

        The tables are loaded in parallel. `tables` is a template for table names, such as
        'shop.{table}':

        - `{table}` is the part of the topic name after the last dot,
        - `{database}` is the part before that dot,
        - `{topic}` is the whole topic name, with underscores instead of dots.

        Topics that result in the same name feed one table. In `source`,
        `kafka://host:port/shop.public.*`, a `*` matches any part of a name.

        `encoding`, `epochs` and `source_table` apply to every table. Each table is loaded as
        `ingest` does, with its offsets in its own snapshots. A table that
        fails does not stop the others: its error is in `failed` of the report. `on_failure(table,
        error)` is called when it fails, and `on_batch(table, batch)` after each commit. Any thread
        can make these calls. The batches being read share 64 MiB, and each gets at least 1 MiB.
        `continuous` supports up to 1,000 tables. Topics created later are loaded too if they match
        and their table is not already being loaded. Otherwise the next run loads them.

        Raises:

        - `InvalidError` for arguments that contradict each other, an invalid template, and topic
          names without the parts that the template uses.
        - `NotFoundError` when no topic matches.
        - `DataError` when no broker answers.
        - `SetupError` when a library is not installed.
        """
        from keytide.feeds.feed import FeedRequest
        from keytide.feeds.kafka.ingest import IngestListeners
        from keytide.lake.placement import feed_tables

        request = FeedRequest(
            warehouse=self.uri,
            table=tables,
            source=source,
            format=format,
            primary_key=primary_key,
            partition_by=partition_by,
            sequence_by=sequence_by,
            options=options or {},
            empty_as_null=empty_as_null,
            dead_letter=dead_letter,
            continuous=continuous,
            merge_schema=merge_schema,
            encoding=encoding,
            epochs=epochs,
            source_table=source_table,
            max_messages_per_batch=max_messages_per_batch,
            starting_offsets=starting_offsets,
            consumer_properties=consumer_properties or {},
            if_lost=if_lost,
        )
        return feed_tables(request, self._catalog, IngestListeners(on_batch, on_failure))

    @checked
    def sql(self, text: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Result:
        """Run one or more SQL statements, separated by semicolons, and return the last result.

        `parameters` are values for each `?` of the text, from left to right, or a dict of values
        for each `:name`: numbers, strings, booleans, bytes, dates, times or None. They are never
        interpreted as SQL.

        SQL runs on DuckDB in this process, or on the Spark session given to `connect`. The whole
        text is parsed first. Then the statements run in order, each of them atomically. If one
        fails, the effects of the statements before it stay.

        Raises `InvalidError`, with the position, for text that does not parse or is not valid, and
        what reads and writes of tables raise.
        """
        from keytide.sql.engine_text import with_parameters
        from keytide.sql.execution import run

        text = text if parameters is None else with_parameters(text, parameters)
        return run(self, engine_of(self._spark, self.allows_external_files), text)

    @checked
    def sql_results(self, text: str) -> Iterator[Result]:
        """Run SQL statements lazily: one statement for each result that you take.

        Parses and raises as `sql` does.
        """
        from keytide.sql.execution import results

        return results(self, engine_of(self._spark, self.allows_external_files), text)
