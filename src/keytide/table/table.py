"""A primary-key table, as users hold it."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, datetime, timezone
from html import escape
from typing import Any

import pyarrow as pa

from keytide.arguments import checked, shown
from keytide.errors import ConflictError, InvalidError, NotFoundError, UnsupportedError
from keytide.format.manifest import ManifestEntry
from keytide.format.schema import TableSchema
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.merge.functions.register import registered_functions
from keytide.options import TableOptions
from keytide.store import Store
from keytide.table.alter import alter_table
from keytide.table.commit.commit import Author, Change, Committed, Committer, Start, begin
from keytide.table.conditions.predicate import Comparison, IsNull, Predicate, conjunction, plain
from keytide.table.definition.evolution import SchemaChange
from keytide.table.host import is_spark_dataframe, spark_writer
from keytide.table.read.scan import Scan
from keytide.table.read.why import Why, why_of
from keytide.table.state.live_files import NO_FILES, LiveFiles, load_live_files
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.view import TableView
from keytide.table.values.single import key_value
from keytide.table.write.bucket_writer import BucketWriter, SequenceBase, check_writable, restamp
from keytide.table.write.out_of_order import count_out_of_order
from keytide.table.write.partition_spec import PartitionSpec, every_partition
from keytide.table.write.rows import incoming_rows, to_arrow_table
from keytide.types import Field

__all__ = ["Table", "WriteResult"]


@dataclass(frozen=True)
class WriteResult:
    """What a write did.

    `snapshot_id` is None when there was nothing to commit. `rows` counts the rows given,
    `rows_stored` those left after merging per key. `is_new` is false when the same commit user
    and identifier had been committed before: nothing was written again.

    `out_of_order` counts the rows that were older, by the sequence fields, than a version of their
    key in the snapshot that the write began with, or than a row before them in the same write.
    None unless the table has 'write.count-out-of-order', which costs a lookup of the keys, and
    for what `overwrite` and SQL's UPDATE and DELETE write.
    """

    snapshot_id: int | None
    rows: int
    rows_stored: int
    files: int
    is_new: bool = True
    out_of_order: int | None = None

    def _repr_html_(self) -> str:
        names = [member.name for member in fields(self)]
        head = "".join(f"<th>{name}</th>" for name in names)
        values = "".join(f"<td>{getattr(self, name)}</td>" for name in names)
        return f"<table><tr>{head}</tr><tr>{values}</tr></table>"


class Table:
    """One primary-key table.

    Any number of tables, processes and engines may write at the same time; every reader sees
    one merged row per key. A table object is safe to share between threads, and looks at the
    newest schema and snapshot whenever it reads or writes.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._metadata = TableMetadata(store, name)
        self._live = NO_FILES
        self._lock = threading.Lock()
        self._metadata.latest_schema()  # there is a table, or NotFoundError

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self._metadata.store, "name": self.name}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["store"], state["name"])  # type: ignore[misc]  # rebuilds its lock

    # -- what it is -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name, as `database.table`."""
        return self._metadata.name

    @property
    def uri(self) -> str:
        """Where the table lies; what `spark.read.format("keytide").load` takes."""
        return self._metadata.uri

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return self.table_schema.arrow_schema()

    @property
    def table_schema(self) -> TableSchema:
        """The newest stored definition: columns with ids, keys, options."""
        return self._metadata.latest_schema()

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The primary key columns."""
        return self.table_schema.primary_keys

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns."""
        return self.table_schema.partition_keys

    @property
    def options(self) -> dict[str, str]:
        """The options as stored."""
        return dict(self.table_schema.options)

    @property
    def metadata(self) -> TableMetadata:
        """The stored metadata, for tools that look closer."""
        return self._metadata

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {self.uri!r})"

    def _repr_html_(self) -> str:
        schema = self.table_schema
        keys = dict.fromkeys(schema.primary_keys, "primary key")
        partitions = dict.fromkeys(schema.partition_keys, " partition")
        rows = "".join(
            f"<tr><td>{escape(f.name)}</td><td>{escape(f.type.sql())}</td>"
            f"<td>{keys.get(f.name, '')}{partitions.get(f.name, '')}</td></tr>"
            for f in schema.fields
        )
        return (
            f"<b>{escape(self.name)}</b> <code>{escape(self.uri)}</code>"
            f"<table><tr><th>column</th><th>type</th><th>role</th></tr>{rows}</table>"
        )

    # -- writing --------------------------------------------------------------------------------

    @checked
    def write(
        self,
        data: Any,
        *,
        commit_user: str | None = None,
        commit_identifier: int | None = None,
    ) -> WriteResult:
        """Append rows as upserts and deletes, in one atomic commit.

        `data` is a pyarrow Table, RecordBatch or reader, a Polars or pandas frame, a list of
        dicts, or a Spark DataFrame. An optional column `_row_kind` holds '+I', '-U', '+U' or
        '-D'; without it every row is an insert. Several versions of a key are merged; without a
        sequence field the later row wins.

        `commit_user` and `commit_identifier`, given together, make the write idempotent: the
        second write of a pair changes nothing, nor does one whose identifier is below one that the
        user has committed. So identifiers of one user must grow; they have at most 64 bits.

        Raises `InvalidError` or `NotFoundError` for rows that do not fit, before anything is
        written; `UnsupportedError` for a table this release must not write to; `ConflictError`
        and `DataError` as commits do, with nothing committed.
        """
        if is_spark_dataframe(data):
            written: WriteResult = spark_writer().write_dataframe(
                self, data, commit_user, commit_identifier
            )
            return written
        author = Author.given(commit_user, commit_identifier)
        view = self.writable_view()
        rows = incoming_rows(
            to_arrow_table(data, view.schema, self.name), view.schema, view.options, self.name
        )
        count = rows.table.num_rows
        start = self.begin(author)
        if start.done is not None:
            return WriteResult(start.done.id, count, 0, 0, is_new=False)
        writer = BucketWriter(view, start.live.partition_buckets)
        out_of_order = count_out_of_order(writer, rows, start.live.entries)
        base = SequenceBase.after(start.live)
        entries = writer.write(rows, base, threads=os.cpu_count() or 1)
        if not entries:
            return WriteResult(None, count, 0, 0, out_of_order=out_of_order)
        change = Change(tuple(entries), start.author)
        result = self._result(self.commit(view, change, start.live), change, count)
        return replace(result, out_of_order=out_of_order if result.is_new else None)

    @checked
    def overwrite(self, data: Any, partition: Mapping[str, Any] | None = None) -> WriteResult:
        """Replace rows by those given, in one atomic commit.

        `data` is what `write` takes, except for a Spark DataFrame. Without a `partition` the
        whole table is replaced; of a table with partitions only those that the rows touch, unless
        the option 'dynamic-partition-overwrite' is false. With values for some or all partition
        columns as `partition`, the partitions that have these values are replaced, even by no
        rows; every row must lie there, and may leave these columns out. What other writers
        committed to the replaced partitions until then is replaced too. Partitions are laid out
        anew with the number of buckets that the table has now.

        `snapshot_id` of the result is None when there was nothing to replace and nothing to
        write. Raises what `write` raises.
        """
        if is_spark_dataframe(data):
            raise UnsupportedError(
                f"table {self.name}: this release overwrites by local data only; give df.toArrow()"
            )
        view = self.writable_view()
        spec = None if partition is None else PartitionSpec.parse(partition, view.schema, self.name)
        given = to_arrow_table(data, view.schema, self.name)
        given = given if spec is None else spec.filled(given)
        rows = incoming_rows(given, view.schema, view.options, self.name)
        if spec is not None:
            spec.check(rows.table)
        live = self.live_files()
        base = SequenceBase.after(live)
        entries = BucketWriter(view, {}).write(rows, base, threads=os.cpu_count() or 1)
        replaces: Callable[[bytes], bool] = every_partition if spec is None else spec
        if spec is None and view.schema.partition_keys and view.options.dynamic_partition_overwrite:
            replaces = frozenset(entry.partition for entry in entries).__contains__
        return self._replace(view, live, tuple(entries), replaces, given.num_rows)

    def truncate(self) -> WriteResult:
        """Delete all rows, in one atomic commit. Older snapshots keep theirs.

        `snapshot_id` of the result is None when there were none. Raises as `overwrite`.
        """
        return self._replace(self.writable_view(), self.live_files(), (), every_partition, 0)

    def _replace(
        self,
        view: TableView,
        live: LiveFiles,
        entries: tuple[ManifestEntry, ...],
        replaces: Callable[[bytes], bool],
        rows: int,
    ) -> WriteResult:
        stored = {entry.partition for entry in live.entries}
        if not entries and not any(map(replaces, stored)):
            return WriteResult(None, rows, 0, 0)
        kind = CommitKind.OVERWRITE
        change = Change(entries, Author.fresh(), kind=kind, operation=kind.value, replaces=replaces)
        return self._result(self.commit(view, change, live), change, rows)

    @checked
    def alter(self, *changes: SchemaChange) -> TableSchema:
        """Change columns, options or comments, all in one step, and return the new definition.

        Changes are values of `keytide.table.definition.evolution`, made one after the other. No
        data file is touched: older ones are read under the new schema, and older snapshots are
        read as they were. Of several callers at once each one's changes are made on top of the
        others'.

        Raises `InvalidError`, `NotFoundError` or `AlreadyExistsError` for what may not be done,
        saying what may, with nothing changed; `ConflictError` when a change that came first rules
        these out; `DataError` when the store fails.
        """
        return alter_table(self._metadata, changes)

    def write_derived(self, derive: Callable[[], Any]) -> WriteResult:
        """Write rows that `derive` makes from the newest snapshot, as UPDATE and DELETE do.

        When another writer reaches one of their buckets meanwhile, nothing is committed and they
        are made again, as often as 'commit.max-retries' says; so no other write is undone. Driver
        only. Raises what `derive` and `write` raise, `ConflictError` after the last try.
        """
        view = self.writable_view()
        for tries_left in reversed(range(view.options.commit_retries_max + 1)):
            live = self.live_files()
            given = to_arrow_table(derive(), view.schema, self.name)
            rows = incoming_rows(given, view.schema, view.options, self.name)
            writer = BucketWriter(view, live.partition_buckets)
            entries = writer.write(rows, SequenceBase.after(live), threads=os.cpu_count() or 1)
            if not entries:
                return WriteResult(None, given.num_rows, 0, 0)
            change = Change(tuple(entries), Author.fresh(), is_derived=True)
            try:
                return self._result(self.commit(view, change, live), change, given.num_rows)
            except ConflictError:
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def writable_view(self) -> TableView:
        """The newest schema as a view to write through. Raises `UnsupportedError`."""
        view = self.view(self._metadata.latest_schema())
        check_writable(view.schema, view.options, self.name)
        return view

    def begin(self, author: Author | None) -> Start:
        """Where an append begins: the newest snapshot, and the author's own commit up to it."""
        return begin(self._metadata, self.live_files(), author)

    def commit(self, view: TableView, change: Change, known: LiveFiles) -> Committed:
        """Commit entries whose files are written, as `Committer.commit` does. Driver only."""
        committed = Committer(self._metadata, view, restamp).commit(change, known)
        with self._lock:
            self._live = committed.live
        return committed

    @staticmethod
    def _result(committed: Committed, change: Change, rows: int) -> WriteResult:
        if not committed.is_new:
            return WriteResult(committed.snapshot.id, rows, 0, 0, is_new=False)
        stored = sum(entry.file.row_count for entry in change.entries)
        return WriteResult(committed.snapshot.id, rows, stored, len(change.entries))

    # -- reading --------------------------------------------------------------------------------

    @checked
    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        snapshot_id: int | None = None,
        tag: str | None = None,
        as_of: datetime | date | str | int | None = None,
    ) -> Scan:
        """A lazy read of one snapshot, the newest by default.

        `where` is a condition over columns and literals, with a small grammar of its own
        (docs/semantics.md, Reading); rows are filtered after the merge, files are pruned before
        it. One of `snapshot_id`, `tag` and `as_of` travels back in time; `as_of` is a datetime, an
        ISO text (UTC unless it says otherwise) or epoch milliseconds.
        A snapshot is read with the schema that it had.

        Raises `NotFoundError` for an unknown column, snapshot or tag, `InvalidError` for a
        condition that does not parse or fit.
        """
        snapshot = self._snapshot_to_read(snapshot_id, tag, as_of)
        travels = snapshot_id is not None or tag is not None or as_of is not None
        schema = self._metadata.latest_schema()
        if travels and snapshot is not None:
            schema = self._metadata.schema(snapshot.schema_id)
        predicate = None if where is None else _parsed(where, schema, self.name)
        return self._scan(schema, snapshot, self._selected(schema, columns), predicate)

    @checked
    def get(self, key: Mapping[str, Any] | Any) -> dict[str, Any] | None:
        """The row of one key, or None.

        `key` is the value of a single-column key, a tuple in primary key order, or a dict by
        column. Reads only what can hold the key: one bucket, its files by key range, and of
        them the row groups around the key.
        """
        schema = self._metadata.latest_schema()
        values = _key_values(key, schema, self.name)
        terms = (_equals(schema.field(n), v, self.name) for n, v in values.items())
        scan = self._scan(
            schema, self._metadata.latest_snapshot(), schema.names, conjunction(terms)
        )
        rows = scan.to_pylist()
        return rows[0] if rows else None

    @checked
    def why(
        self,
        key: Mapping[str, Any] | Any,
        snapshot_id: int | None = None,
        tag: str | None = None,
        as_of: datetime | date | str | int | None = None,
    ) -> Why:
        """Every stored version of a key in merge order, and what became of each.

        Tells for each column of the row from which versions its value comes, and for the other
        versions why they lost. `key` is what `get` takes, and as much is read; time travel goes
        as in `scan`. A key that was never written has no versions.

        Raises what `get` raises, and `NotFoundError` for an unknown snapshot or tag.
        """
        scan = self.scan(snapshot_id=snapshot_id, tag=tag, as_of=as_of)
        schema = scan.view.schema
        values = _key_values(key, schema, self.name)
        terms = (_equals(schema.field(n), v, self.name) for n, v in values.items())
        return why_of(replace(scan, predicate=conjunction(terms)), values)

    def snapshots(self) -> list[Snapshot]:
        """The snapshots that are there, oldest first."""
        return [self._metadata.snapshot(number) for number in self._metadata.snapshot_ids()]

    def live_files(self, snapshot: Snapshot | None = None) -> LiveFiles:
        """The live files of a snapshot, the newest by default."""
        target = self._metadata.latest_snapshot() if snapshot is None else snapshot
        with self._lock:
            known = self._live
        live = load_live_files(self._metadata, target, known)
        with self._lock:
            self._live = live
        return live

    def view(self, schema: TableSchema) -> TableView:
        """The table at one of its schemas, with those that stored files refer to."""
        schemas = {number: self._metadata.schema(number) for number in range(schema.id + 1)}
        options = TableOptions.parse(schema.options)
        functions = registered_functions(options)
        return TableView(self._metadata.store, self.name, schema, schemas, options, functions)

    def _scan(
        self,
        schema: TableSchema,
        snapshot: Snapshot | None,
        columns: tuple[str, ...],
        predicate: Predicate | None,
    ) -> Scan:
        live = NO_FILES if snapshot is None else self.live_files(snapshot)
        return Scan(self.view(schema), self._metadata, live, columns, predicate)

    def _snapshot_to_read(
        self, snapshot_id: int | None, tag: str | None, as_of: Any
    ) -> Snapshot | None:
        given = [name for name, value in
                 (("snapshot_id", snapshot_id), ("tag", tag), ("as_of", as_of))
                 if value is not None]  # fmt: skip
        if len(given) > 1:
            raise InvalidError(
                f"table {self.name}: {' and '.join(given)} each name a snapshot; give one of them"
            )
        if snapshot_id is not None:
            return self._metadata.snapshot(snapshot_id)
        if tag is not None:
            return self._metadata.tag(tag)
        if as_of is not None:
            return self._metadata.snapshot_as_of(_epoch_ms(as_of, self.name))
        return self._metadata.latest_snapshot()

    def _selected(self, schema: TableSchema, columns: Sequence[str] | None) -> tuple[str, ...]:
        if columns is None:
            return schema.names
        for name in columns:
            if name not in schema.by_name:
                raise NotFoundError(
                    f"table {self.name} has no column {name!r}; it has {', '.join(schema.names)}"
                )
        if not columns or len(set(columns)) < len(columns):
            raise InvalidError(
                f"table {self.name}: columns is {list(columns)}; name at least one column, and "
                f"each only once (count() counts rows without reading any)"
            )
        return tuple(columns)


def _parsed(where: str, schema: TableSchema, table: str) -> Predicate:
    # The parser takes long to load, and few worker processes need it.
    parser = importlib.import_module("keytide.table.conditions.where")
    predicate: Predicate = parser.parse_where(where, schema.fields, table)
    return predicate


def _key_values(key: Any, schema: TableSchema, table: str) -> dict[str, Any]:
    names = schema.primary_keys
    if isinstance(key, Mapping):
        if set(key) != set(names):
            raise InvalidError(
                f"table {table}: the primary key is {', '.join(names)}, found "
                f"{', '.join(map(str, key)) or 'nothing'}; give a value for each of its columns"
            )
        return {name: key[name] for name in names}
    values = key if isinstance(key, tuple | list) else (key,)
    if len(values) != len(names):
        raise InvalidError(
            f"table {table}: the primary key is {', '.join(names)}, found {len(values)} value(s) "
            f"{shown(key)}; give a tuple in this order, or a dict"
        )
    return dict(zip(names, values, strict=True))


def _equals(field: Field, value: Any, table: str) -> Predicate:
    if value is None:
        return IsNull(field.name)
    return Comparison(field.name, "=", plain(key_value(value, field, table)))


def _epoch_ms(moment: datetime | date | str | int, table: str) -> int:
    if isinstance(moment, int):
        return moment
    if isinstance(moment, str):
        try:
            text = moment[:-1] + "+00:00" if moment.endswith("Z") else moment
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidError(
                f"table {table}: as_of {moment!r} is no ISO time such as '2026-01-31T12:00:00'"
            ) from None
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    try:
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError) as error:  # pandas has a datetime that is none
        raise InvalidError(f"table {table}: as_of is {shown(moment)}: {error}") from error
