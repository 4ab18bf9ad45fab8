"""Federated tables: tables of another engine, with the keys by which their rows are merged.

In SQL they are tables of a connector. Reads merge rows as in an external table. INSERT, UPDATE,
DELETE and MERGE append versions of keys, in one commit of the table's own engine.

A DELETE appends tombstones and an UPDATE appends new versions, each with the watermark that rule
R21 of docs/semantics.md defines. A changed key needs both (R16). Workers read rows and return
versions in fragments. The driver appends one version of each key. Such an append depends only on
the columns, so statements never conflict (R20): if two change the same row, the one that is
committed later wins, or the one with the higher watermark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.row_kind import ROW_KIND
from keytide.catalogs.catalog import fields_of
from keytide.definition.checks import check_dml_watermark
from keytide.dml.fragments import Spool, read_fragments
from keytide.dml.keyed_table import Versions, refuse_existing_keys, row_id_of, structs_of
from keytide.dml.own_tables import ChangedByKey, TableSource, WholeRowsMetadata
from keytide.dml.spi import (
    ColumnHandle,
    Connector,
    ConnectorInsertSink,
    ConnectorMergeSink,
    ConnectorMergeSinkProvider,
    ConnectorPageSourceProvider,
    ConnectorSession,
    ConnectorTableSchema,
    Fragment,
    RowChanges,
    UpdatablePageSource,
)
from keytide.errors import InvalidError, UnsupportedError
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.schema import TableSchema
from keytide.options import TableOptions, keys
from keytide.predicate.predicate import Predicate
from keytide.snapshot.state import TableView
from keytide.sources.appends import Appender, Rows
from keytide.sources.external_definitions import check_ties
from keytide.sources.scan import ExternalHandle, ExternalMetadata, ExternalSplits, merged_pages
from keytide.sources.source import (
    AppendableSource,
    Place,
    external_schema,
    refuse_secret,
    refuse_secret_options,
)
from keytide.sources.source_state import ExternalFormat, PinnedExternal, format_named
from keytide.sources.version_merge import SourceMerge
from keytide.sources.versions import SourceVersions
from keytide.store import Store

# -- definitions and reads -------------------------------------------------------------------------


@dataclass(frozen=True)
class UpsertKeys:
    """The key columns that merge the versions of a federated table into rows.

    An argument that is not given comes from the table's own properties: `keytide.primary-key`,
    `keytide.watermark-key`, `keytide.tombstone-key`, `keytide.tombstone-string-key-value` and
    `keytide.dml-watermark`, with commas between several columns. `dml_watermark` is what UPDATE,
    DELETE and MERGE store in the watermark key: 'copy', 'statement-time' or 'explicit'.
    """

    primary_key: Sequence[str] = ()
    watermark_key: Sequence[str] = ()
    tombstone_key: str | None = None
    tombstone_string_key_value: str | None = None
    dml_watermark: str | None = None


_PRIMARY_KEY = f"keytide.{keys.PRIMARY_KEY}"


@dataclass(frozen=True)
class FederatedHandle(ExternalHandle, ChangedByKey):
    """A federated table at one version, and the change of a statement.

    `fresher_by` is 1 if the order of versions is unknown. Workers write no files.
    """

    name: str = ""
    required: frozenset[str] = frozenset()

    @property
    def view(self) -> TableView:
        """The table with its keys."""
        return self.table.view


@dataclass(frozen=True)
class FederatedTables:
    """The tables of a folder, of a namespace of a catalog, or of a database.

    A statement sees the state of a table when it first reads it.
    """

    name: str
    format: str
    location: str
    options: Mapping[str, str]
    tables: Mapping[str, UpsertKeys]
    near: Store
    pinned_tables: WeakKeyDictionary[
        ConnectorSession, dict[tuple[str, str | None], FederatedHandle]
    ] = field(default_factory=WeakKeyDictionary, compare=False, repr=False)

    def find(
        self, session: ConnectorSession, name: str, version: str | None = None
    ) -> FederatedHandle:
        """A table as the statement sees it. Raises what pinning does, and for invalid keys."""
        seen = self.pinned_tables.setdefault(session, {})
        wanted = self._declared_name(name), version
        if wanted not in seen:
            seen[wanted] = self.pinned(name, version)
        return seen[wanted]

    def appender(self, name: str) -> Appender:
        """The appender of a table. Raises `UnsupportedError` if appending is not possible."""
        assert self._format.append is not None
        return self._format.append(self.place(name))

    def append(self, table: FederatedHandle, rows: Rows) -> None:
        """Append rows to a table, in one commit."""
        self.appender(table.name).append(rows, table.view.schema.primary_keys)

    def _declared_name(self, name: str) -> str:
        return next((given for given in self.tables if given.lower() == name.lower()), name)

    @property
    def _format(self) -> ExternalFormat:
        return format_named(self.format)

    def place(self, name: str) -> Place:
        """The location of a table, without reading it."""
        name = self._declared_name(name)
        if "table" in self._format.options:
            return Place(self.location, {**self.options, "table": name}, self.near)
        is_name = any(option in self.options for option in self._format.named_by)
        location = f"{self.location}.{name}" if is_name else f"{self.location.rstrip('/')}/{name}"
        return Place(location, self.options, self.near)

    def pinned(self, name: str, version: str | int | None = None) -> FederatedHandle:
        """A table in its current state, or at a version, read once. Raises as `find`."""
        name = self._declared_name(name)
        source = self._format.open(self.place(name))
        pinned: Any = source.pin(version)
        schema = self._schema(name, pinned)
        options = TableOptions.parse(schema.options)
        full_name = f"{self.name}.{name}"
        view = TableView(self.near, full_name, schema, {schema.id: schema}, options)
        table = PinnedExternal(view, pinned, source.location)
        fresher_by = 0 if pinned.tells_order else 1
        return FederatedHandle(table, name=name, required=pinned.required, fresher_by=fresher_by)

    def _schema(self, name: str, pinned: AppendableSource) -> TableSchema:
        """The existing columns with the keys. Raises `InvalidError` for invalid keys."""
        given, properties = self.tables.get(name, UpsertKeys()), pinned.properties

        # The columns of the primary key, empty if it is unknown.
        text = properties.get(_PRIMARY_KEY, "")
        key = [*given.primary_key] or [name.strip() for name in text.split(",") if name.strip()]
        if not key:
            raise InvalidError(
                f"table {self.name}.{name}: its primary key is not known; give it with "
                f"Lake.attach(..., tables={{{name!r}: UpsertKeys(primary_key=[...], ...)}}), or "
                f"as the table property {_PRIMARY_KEY!r}"
            )
        given_options = (
            (keys.WATERMARK_KEY, "keytide.watermark-key", ",".join(given.watermark_key) or None),
            (keys.TOMBSTONE_KEY, "keytide.tombstone-key", given.tombstone_key),
            (
                keys.TOMBSTONE_STRING_KEY_VALUE,
                "keytide.tombstone-string-key-value",
                given.tombstone_string_key_value,
            ),
            (keys.UPSERT_DML_WATERMARK, "keytide.dml-watermark", given.dml_watermark),
        )
        options = {}
        for option, own_property, value in given_options:
            told_value = properties.get(own_property) if value is None else value
            if told_value is not None:
                options[option] = told_value
        try:
            schema, _ = external_schema(
                fields_of(pinned.schema),
                key,
                options,
                format_=self.format,
                location=self.location,
                on_read=True,
                comment=None,
                time_millis=0,
            )
            parsed = TableOptions.parse(schema.options)
            check_ties(self.format, parsed)
            check_dml_watermark(schema, parsed)
        except InvalidError as error:
            raise InvalidError(f"table {self.name}.{name}: {error}") from error
        return schema


def federated_tables(
    name: str,
    format_: str,
    location: str,
    options: Mapping[str, str],
    tables: Mapping[str, UpsertKeys],
    near: Store,
) -> FederatedTables:
    """The tables at a location. Nothing is read yet.

    Raises `InvalidError` for an unknown format or option, for table names that differ only in case,
    and for a secret. Raises `UnsupportedError` for a format that cannot be appended to.
    """
    refuse_secret(location)
    refuse_secret_options(options)
    found = format_named(format_.lower())
    if found.append is None:
        raise UnsupportedError(
            f"Lake.attach: appending rows to {format_} is not supported; for reading, define an "
            "external table with Lake.create_external_table"
        )
    taken = [option for option in found.options if option != "table"]
    unknown = sorted(set(options) - set(taken))
    if unknown:
        raise InvalidError(
            f"Lake.attach: format {format_} has no option {unknown[0]!r}; options: "
            f"{', '.join(taken) or 'none'}"
        )
    folded = [table.lower() for table in tables]
    if len(set(folded)) < len(folded):
        raise InvalidError(
            f"Lake.attach: table names are case-insensitive, and two of {', '.join(tables)} are "
            "the same; name each once"
        )
    return FederatedTables(name, format_.lower(), location, dict(options), dict(tables), near)


# -- row changes, by appended versions -------------------------------------------------------------


VERSIONS = "versions"
"""The fact in a fragment that gives the kind of its rows: `gone` or `made`."""


def federated_connector(tables: FederatedTables) -> Connector:
    """The connector for federated tables."""
    return Connector(tables.name, _Metadata(tables), ExternalSplits(), _Pages(), _Sinks())


def tables_of(connector: Connector) -> FederatedTables | None:
    """The argument of `federated_connector`, None for any other connector."""
    metadata = connector.metadata
    return metadata.tables if isinstance(metadata, _Metadata) else None


# -- driver ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Metadata(ExternalMetadata, WholeRowsMetadata):
    """See `ConnectorMetadata`."""

    tables: FederatedTables
    clock_ns: Callable[[], int] = time.time_ns

    # -- tables

    def list_tables(self, session: ConnectorSession) -> Sequence[str]:
        """The tables whose keys were given. Others are found by name."""
        return sorted(self.tables.tables)

    def get_table_handle(self, session: ConnectorSession, name: str) -> FederatedHandle:
        return self.tables.find(session, name)

    def get_table_version(
        self, session: ConnectorSession, name: str, version: str
    ) -> FederatedHandle:
        return self.tables.find(session, name, version)

    def get_table_schema(
        self, session: ConnectorSession, table: ExternalHandle
    ) -> ConnectorTableSchema:
        assert isinstance(table, FederatedHandle)
        schema = table.view.schema
        columns = (
            ColumnHandle(f.name, f.type, f.nullable and f.name not in table.required)
            for f in schema.arrow_schema()
        )
        return ConnectorTableSchema(table.name, tuple(columns), schema.primary_keys)

    def end_statement(self, session: ConnectorSession) -> None:
        self.tables.pinned_tables.pop(session, None)

    # -- changes

    def check_changes(
        self, session: ConnectorSession, table: FederatedHandle, changes: RowChanges
    ) -> None:
        if session.isolation == "serializable":
            raise UnsupportedError(
                f"{table}: other engines can append to it, and their changed keys are not known, "
                "so isolation 'serializable' is not supported; use 'snapshot'"
            )
        self.tables.appender(table.name)  # refuses a location that cannot be appended to
        options = table.view.options
        if (changes.deletes or changes.updated) and table.fresher_by:
            # Readers might not see the changes.
            if not options.watermark_key:
                raise UnsupportedError(
                    f"{table}: the order of its rows is not known, and it has no watermark key, "
                    "so a change would have no effect; set one in UpsertKeys"
                )
            if options.dml_watermark == "copy":
                raise UnsupportedError(
                    f"{table}: the order of its rows is not known, so a new version needs a "
                    "higher watermark (rule R21): in UpsertKeys, set dml_watermark to "
                    "'statement-time' if the watermark key is a time, or to 'explicit'"
                )
        for updated in changes.updated.values():
            table.refuse_unset(updated)
        if changes.deletes:
            table.refuse_delete()
        is_deleted = changes.deletes or changes.sets & {*table.view.schema.primary_keys}
        if is_deleted and not options.tombstone_key:
            raise UnsupportedError(
                f"{table}: it has no tombstone key, so rows cannot be deleted and keys cannot be "
                "changed; set tombstone_key of its UpsertKeys to a column that marks deletes"
            )

    def begin_insert(
        self, session: ConnectorSession, table: FederatedHandle, columns: Sequence[str]
    ) -> ConnectorInsertSink:
        return _InsertSink(self.tables, table, tuple(columns))

    def get_delete_row_id_column_handle(
        self, session: ConnectorSession, table: FederatedHandle
    ) -> ColumnHandle:
        return row_id_of(table, _version_columns(table))

    def begin_delete(self, session: ConnectorSession, table: FederatedHandle) -> FederatedHandle:
        return self.begin_update(session, table, ())

    def finish_delete(
        self, session: ConnectorSession, table: FederatedHandle, fragments: Sequence[Fragment]
    ) -> int:
        contents = read_fragments(fragments)
        refuse_existing_keys(table, contents, partial(_outcomes, table))

        # The versions that a statement appends, one for each key. Versions within one commit could
        # be ordered only by their position in files, which engines do not guarantee.
        schema = table.view.schema.arrow_schema()
        gone = [
            _tombstones(table, each.rows) for each in contents if each.facts.get(VERSIONS) == "gone"
        ]
        made = [
            each.rows.select(schema.names).cast(schema)
            for each in contents
            if each.facts.get(VERSIONS) == "made"
        ]
        every = from_arrow(pa.concat_tables([schema.empty_table(), *gone, *made]))
        # A new row is as new as the tombstone of its key. Otherwise the statement would have been
        # refused.
        last = every.unique(table.view.schema.primary_keys, keep="last", maintain_order=True)
        rows = to_arrow(last, schema)
        if rows.num_rows:
            self.tables.append(table, rows)
        return sum(int(each.facts["rows"]) for each in contents)

    def get_update_row_id_column_handle(
        self, session: ConnectorSession, table: FederatedHandle, updated_columns: Sequence[str]
    ) -> ColumnHandle:
        dropped = {*updated_columns} - {*_version_columns(table)}
        return row_id_of(table, [n for n in table.view.schema.names if n not in dropped])

    def begin_update(
        self, session: ConnectorSession, table: FederatedHandle, updated_columns: Sequence[str]
    ) -> FederatedHandle:
        began_ns, updated = self.clock_ns(), tuple(updated_columns)
        return replace(table, has_begun=True, began_ns=began_ns, updated=updated)

    finish_update = finish_delete

    get_merge_row_id_column_handle = get_delete_row_id_column_handle

    def begin_merge(
        self,
        session: ConnectorSession,
        table: FederatedHandle,
        updated_columns: Mapping[int, Sequence[str]],
    ) -> FederatedHandle:
        cases = {number: tuple(names) for number, names in updated_columns.items()}
        updated = sorted({name for names in cases.values() for name in names})
        begun = self.begin_update(session, table, updated)
        return replace(begun, cases=cases, gives_keys=True)

    def apply_match(
        self, session: ConnectorSession, table: FederatedHandle, columns: Sequence[str]
    ) -> FederatedHandle:
        if not {*columns} <= {*table.view.schema.primary_keys}:
            return table
        return replace(table, inserts_new_keys=True, gives_keys=table.moves_rows)

    finish_merge = finish_delete


def _version_columns(table: FederatedHandle) -> list[str]:
    """The columns that a tombstone copies from the deleted row."""
    schema = table.view.schema
    needed = {*schema.primary_keys, *table.view.options.watermark_key, *table.required}
    return [name for name in schema.names if name in needed]


def _outcomes(
    table: FederatedHandle, columns: tuple[str, ...], predicate: Predicate | None
) -> Iterator[pl.DataFrame]:
    merging = SourceMerge(table.table.versions(predicate), columns)
    return merging.outcomes(table.view.options.read_memory_bytes)


# -- versions to append ----------------------------------------------------------------------------


def _tombstones(table: FederatedHandle, gone: pa.Table) -> pa.Table:
    """Whole rows that are tombstones, with NULL where allowed (rule R15)."""
    schema, taken = table.view.schema.arrow_schema(), _version_columns(table)
    (mark,) = table.view.options.tombstone_key

    # A value of the tombstone key that means "deleted" (rules R6 to R8).
    type_ = schema.field(mark).type
    assert table.began_ns is not None
    text = table.view.options.tombstone_string_key_value
    if pa.types.is_boolean(type_):
        marker = pa.scalar(True)
    elif pa.types.is_string(type_):
        marker = pa.scalar("D" if text is None else text)
    elif pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
        width = type_.byte_width if pa.types.is_fixed_size_binary(type_) else 1
        marker = pa.scalar(b"\x01" * width, type_)
    elif pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        began = pa.scalar(table.began_ns // 1000, pa.timestamp("us"))
        marker = began.cast(type_, safe=False)
    else:
        marker = pa.scalar(1, pa.int32()).cast(type_)
    columns = [
        pa.repeat(marker, gone.num_rows)
        if field.name == mark
        else gone.column(field.name)
        if field.name in taken
        else pa.nulls(gone.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, names=schema.names).cast(schema)


class _InsertSink(ConnectorInsertSink):
    """Rows of an INSERT, each of which is a version (rules R22 and R24)."""

    def __init__(
        self, tables: FederatedTables, table: FederatedHandle, columns: tuple[str, ...]
    ) -> None:
        self._tables, self._table, self._columns = tables, table, columns
        self._schema = table.view.schema.arrow_schema()
        self._rows = Spool(table.view.options.read_memory_bytes)

    def store_rows(self, page: pa.RecordBatch) -> None:
        given = dict(zip(self._columns, page.columns, strict=True))
        columns = [
            given[field.name] if field.name in given else pa.nulls(page.num_rows, field.type)
            for field in self._schema
        ]
        whole = pa.table(columns, self._schema.names)
        for batch in whole.cast(self._schema).combine_chunks().to_batches():
            self._rows.add(batch)

    def finish(self) -> int:
        if self._rows.rows:
            self._tables.append(self._table, self._rows)
        self._rows.close()
        return self._rows.rows

    def abort(self) -> None:
        self._rows.close()


# -- workers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pages(ConnectorPageSourceProvider):
    def create_page_source(
        self,
        session: ConnectorSession,
        table: FederatedHandle,
        split: SourceVersions,
        columns: Sequence[ColumnHandle],
    ) -> UpdatablePageSource:
        return _Source(table, columns, split)


class _Source(TableSource):
    """The rows of a table. Their ids are columns of the rows."""

    _table: FederatedHandle

    def __init__(
        self, table: FederatedHandle, columns: Sequence[ColumnHandle], split: SourceVersions
    ) -> None:
        super().__init__(table, columns, _ReturnedVersions(table, 0, 1))
        self._split = split

    def _read(self) -> Iterator[tuple[pa.RecordBatch, Callable[[pa.StructType], pa.Array]]]:
        names = self._names([member.name for member in self._id_type])
        wanted = names or self._table.view.schema.names[:1]
        for rows in merged_pages(self._table, self._split, wanted):
            yield rows, partial(structs_of, rows)


@dataclass(frozen=True)
class _Sinks(ConnectorMergeSinkProvider):
    def create_merge_sink(
        self, session: ConnectorSession, table: FederatedHandle, number: int, count: int
    ) -> ConnectorMergeSink:
        return _ReturnedVersions(table, number, count)


class _ReturnedVersions(Versions):
    """The versions from one split or sink, returned unchanged in fragments."""

    def _write(self) -> None:
        """No-op, because the driver appends."""

    def _facts_and_rows(self) -> Iterator[tuple[Mapping[str, Any], pa.Table]]:
        yield from super()._facts_and_rows()
        for what, spool in (("gone", self._gone), ("made", self._made)):
            for rows in spool.tables() if spool.rows else ():
                yield {"rows": 0, VERSIONS: what}, rows.drop_columns([ROW_KIND])
