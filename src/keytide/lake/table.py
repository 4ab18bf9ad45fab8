"""The `Table` class: reads, writes and maintains one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from keytide.base.arguments import checked
from keytide.base.text import Moment, epoch_ms
from keytide.catalogs import local_writes
from keytide.catalogs.local_writes import extended_for
from keytide.catalogs.schema_changes import add_constraint, alter_table, drop_constraint
from keytide.changes.change_scan import changes_of
from keytide.changes.follower import Pace, follow, start_of
from keytide.commit.change import Author
from keytide.commit.transaction import WriteResult
from keytide.compaction.compact import CompactionResult
from keytide.definition.schema_evolution import SchemaChange
from keytide.dml.attachments import AttachedCatalog
from keytide.dml.engine import Changed
from keytide.errors import InvalidError
from keytide.feeds.kafka.start import PartitionLag, lag
from keytide.feeds.kafka.topics import KafkaAddress
from keytide.format.schema import TableSchema
from keytide.lake.display import Snapshots, picture_of, table_html
from keytide.lake.foreign_table import ForeignTable
from keytide.lake.placement import change_rows, engine_of
from keytide.lake.scan import Changes, FallbackScan, Scan
from keytide.lake.table_methods import MergeBuilder, member, member_with_result
from keytide.maintenance import actions, expiry, orphans, repair
from keytide.maintenance import branches as branch_verbs
from keytide.maintenance import history as consumer_verbs
from keytide.maintenance import tags as tag_verbs
from keytide.maintenance.actions import compact
from keytide.maintenance.background import BACKGROUND
from keytide.maintenance.branches import Branches, branches_of
from keytide.maintenance.doctor import doctor as diagnose
from keytide.maintenance.history import History, NamedConsumer, consumers_of, history_of
from keytide.maintenance.overviews import table_summary
from keytide.maintenance.repair import IndexingResult, index_files
from keytide.maintenance.rescale import RescaleResult, convert, rescale
from keytide.maintenance.restore import RestoreResult, restore
from keytide.maintenance.tags import Tags, tags_of
from keytide.predicate.condition import Condition
from keytide.publish.publish import publish
from keytide.read import scan as core
from keytide.read.fallback import get_row, get_rows, scan_table
from keytide.read.requests import why_row
from keytide.read.why import Why
from keytide.snapshot.branch_tables import open_branch
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import StoredTable
from keytide.store import Store
from keytide.tasks import TaskRunner
from keytide.verify.finding import Verification
from keytide.verify.verify import verify_table
from keytide.write.input_rows import source_table, wider_table

if TYPE_CHECKING:
    from typing_extensions import Self


__all__ = ["Table"]


def _branch_table(table: Table, branch: StoredTable) -> Table:
    """A branch as a `Table` with the same Spark session and catalog."""
    return Table.of(branch, table._spark, table._catalog)


class Table:
    """One table, usually with a primary key.

    Any number of tables, processes and engines can write at the same time. Every reader sees one
    merged row per key or, in an append table, every row that was written.

    A table object is safe to share between threads. Each call that reads or writes loads the latest
    schema and snapshot once, and does not see later commits of other writers.
    """

    def __init__(self, store: Store, name: str) -> None:
        """Open the table at the root of a store. Raises `NotFoundError` when there is none."""
        self._stored = StoredTable(store, name)
        self._spark: Any = None
        self._catalog: AttachedCatalog | None = None

    @classmethod
    def of(
        cls, stored: StoredTable, spark: Any = None, catalog: AttachedCatalog | None = None
    ) -> Table:
        """Wrap a stored table in a `Table`.

        If there is a Spark session, it compacts the table and computes changes of rows. SQL in
        these changes can name the tables of `catalog`.
        """
        table = cls.__new__(cls)
        table._stored = stored
        table._spark = spark
        table._catalog = catalog
        return table

    # -- properties -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name, as `database.table`."""
        return self._stored.name

    @property
    def uri(self) -> str:
        """The location of the table, as `spark.read.format("keytide").load` accepts it."""
        return self._stored.uri

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema. Raises as `table_schema`."""
        return self.table_schema.arrow_schema()

    @property
    def table_schema(self) -> TableSchema:
        """The latest stored definition: columns with their ids, keys and options.

        Raises `NotFoundError` when the table was dropped, and `DataError` for a corrupt schema
        file.
        """
        return self._stored.schema

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The primary key columns. Raises as `table_schema`."""
        return self.table_schema.primary_keys

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns. Raises as `table_schema`."""
        return self.table_schema.partition_keys

    @property
    def options(self) -> dict[str, str]:
        """The options as they are stored. Raises as `table_schema`."""
        return dict(self.table_schema.options)

    @property
    def metadata(self) -> TableMetadata:
        """The stored metadata, for tools that need details."""
        return self._stored.metadata

    @property
    def stored(self) -> StoredTable:
        """The table as the lower layers use it."""
        return self._stored

    def close(self) -> None:
        """Run the compactions that this process's writes of the table made due, and wait for them.

        These are background compactions, and those that were postponed to combine several. A
        compaction that fails causes a warning here. You can continue to use the table, and so can
        other objects and threads. The same happens at the end of the process. If the process dies
        instead, no data is lost.
        """
        BACKGROUND.wait(self.uri)

    def __enter__(self) -> Self:
        """Return the table. Leaving the `with` block waits, as `close` does."""
        return self

    def __exit__(self, *raised: object) -> None:
        """See `close`."""
        self.close()

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {self.uri!r})"

    def _repr_html_(self) -> str:
        return table_html(self.name, self.uri, table_summary(self._stored))

    # -- writing --------------------------------------------------------------------------------

    @checked
    def write(
        self,
        data: Any,
        *,
        merge_schema: bool = False,
        commit_user: str | None = None,
        commit_identifier: int | None = None,
    ) -> WriteResult:
        """Write rows as upserts and deletes, in one atomic commit.

        `data` is a PyArrow Table, RecordBatch, reader or Dataset, a Polars or pandas DataFrame, a
        list of dicts, a Spark DataFrame, or any other object that exports an Arrow stream, such as
        a DuckDB relation, an ibis expression or a scan of another table. All data except a Spark
        DataFrame is held in memory. An optional column `_row_kind` contains '+I', '-U', '+U' or
        '-D'. Without it, every row is an insert. Rows with the same key are merged. Without a
        sequence field, the later row wins.

        `merge_schema` first adds missing columns, and missing fields of a ROW, at the end, and
        widens types to the narrowest type that holds all values of both
        (docs/semantics.md#schema-evolution-by-writes). Key and partition columns do not change.
        Columns that the rows lack are NULL. Changes that are not possible are refused before
        anything is changed. If the write fails later, the table keeps its new columns.

        `commit_user` and `commit_identifier` must be given together. They make the write
        idempotent: a write with the same pair changes nothing. The identifiers of a user must
        increase. A lower one that no snapshot has is refused, because nobody can say whether it was
        written. They are integers of at most 64 bits.

        If several threads write to the table at once, the writes that wait for another one can
        share a commit: those without a commit user, an extension of the table and `_row_kind`. The
        outcome is that of writing them one after the other, in the order of the calls. Each has its
        own result, in which `files` and `bytes` are those of the commit.

        Raises:

        - `InvalidError` or `NotFoundError` for rows that do not fit, before anything is written. A
          table with 'upsert.row-errors' = 'count' skips some invalid rows instead, and counts them
          in `errors` of the result.
        - `UnsupportedError` for a table that this release must not write to.
        - `ConflictError` when too many races with other writers were lost, and `DataError` when the
          store fails. Nothing is committed then.
        """
        table, author = self._stored, Author.of(commit_user, commit_identifier)
        if merge_schema:
            table, data = _add_missing_columns(table, data, author)
        if is_spark_dataframe(data):
            from keytide.spark.dataframe_writes import append

            return append(table, data, author)
        return local_writes.append(table, data, author)

    @checked
    def kafka_lag(
        self, source: str, *, consumer_properties: Mapping[str, str] | None = None
    ) -> tuple[PartitionLag, ...]:
        """Report how far the table is behind the Kafka topics that feed it, by partition.

        `source` is `kafka://host:port/topic`, the source of `Lake.ingest`, with commas between
        several hosts or topics. This sends requests to the brokers but reads no messages. It needs
        `pip install 'keytide[kafka]'`. Each record has `topic`, `partition`, `next_offset` (None
        when nothing was read), `end_offset`, `lag`, and `lost`, the number of offsets that expired
        before they were read.

        Raises `NotFoundError` when there is no such topic, `DataError` when no broker answers,
        `InvalidError` for an invalid address or property, and `SetupError` when the library is not
        installed.
        """
        return lag(self._stored, KafkaAddress.parse(source), consumer_properties)

    @checked
    def overwrite(
        self, data: Any, partition: Mapping[str, Any] | None = None, *, merge_schema: bool = False
    ) -> WriteResult:
        """Replace the table, or some of its partitions, with the given rows in one atomic commit.

        `data` is what `write` accepts. What is replaced:

        - The whole table, if it has no partitions.
        - The partitions that the rows belong to, if it has partitions. If the option
          'dynamic-partition-overwrite' is false, the whole table.
        - With `partition`, which gives values for some or all partition columns: all partitions
          with these values, even if there are no rows. Every row must belong to them, and can omit
          these columns.

        Commits of other writers to the replaced partitions that precede this commit are replaced
        too. The new partitions have the table's current number of buckets. `merge_schema` has the
        same meaning as in `write`.

        `snapshot_id` of the result is None when there was nothing to replace and nothing to write.
        Raises what `write` raises.
        """
        table = self._stored
        if merge_schema:
            table, data = _add_missing_columns(table, data, partition=partition)
        if is_spark_dataframe(data):
            from keytide.spark.dataframe_writes import overwrite

            return overwrite(table, data, partition)
        return local_writes.overwrite(table, data, partition)

    @checked
    def delete(
        self,
        where: Condition | None = None,
        *,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
    ) -> Changed:
        """Delete the rows that match a condition, or all rows, in one atomic commit.

        `where` is SQL as after WHERE, in which the table is called `target`. It can contain queries
        of other tables in the lake. DuckDB evaluates it, or the lake's Spark session. Neither of
        them is needed for comparisons of columns with literals, or a condition object as in `scan`.

        If another writer changes one of the affected buckets meanwhile, the rows are searched
        again. With `isolation` 'serializable', any bucket counts. `rows` of the result is the
        number of deleted rows.

        Raises the following, with nothing changed:

        - `InvalidError`, with the position, for text that does not parse or cannot run.
        - `NotFoundError` for unknown names.
        - `UnsupportedError` for a table that does not support deletes.
        - `ConflictError` when too many races with other writers were lost.
        - `DataError` when the store fails.
        """
        from keytide.dml.row_statements import OpenTableCatalog

        around = OpenTableCatalog.of(self._stored, self._catalog)
        return change_rows(around, None, where, isolation, self._spark)

    @checked
    def update(
        self,
        set: Mapping[str, Any],
        where: Condition | None = None,
        *,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
    ) -> Changed:
        """Change columns of the rows that match a condition, or of all rows, in one atomic commit.

        `set` maps columns to new values. A string is an SQL expression, such as `"qty + 1"` or `"'a
        string'"`. Numbers, booleans, bytes, dates, times and None are literal values, which need
        no SQL. The other arguments are as in `delete`. `rows` of the result is the number of
        changed rows.

        Raises as `delete`. Also raises `InvalidError` for values that do not fit their columns and
        when two rows would have the same primary key, and `UnsupportedError` for a table that would
        not store the new values unchanged.
        """
        from keytide.dml.row_statements import OpenTableCatalog

        around = OpenTableCatalog.of(self._stored, self._catalog)
        return change_rows(around, set, where, isolation, self._spark)

    @checked
    def merge(
        self,
        source: Any,
        on: str,
        *,
        merge_schema: bool = False,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
    ) -> MergeBuilder:
        """Start a merge of rows into this table. Calling `execute` on the result runs it.

        `source` is what `write` accepts, another table (also an external one), or the text of an
        SQL query. Its columns can have any names. `on` is the condition that matches source and
        target rows, such as `"target.id = source.id"`. The calls that follow say what happens to
        the rows:

            t.merge(rows, "target.id = source.id")
                .when_matched_delete("source.gone")
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute()

        `merge_schema` adds the columns of the source to the table, as in `write`, when the merge is
        executed. It requires `when_matched_update_all` or `when_not_matched_insert_all`, which then
        apply to the columns of the source. Other columns keep their values, and are NULL in new
        rows.

        Raises `InvalidError` for any other kind of source, and for a source with columns that SQL
        does not support.
        """
        from keytide.dml.row_statements import OpenTableCatalog
        from keytide.sql.python_calls import (
            WhenCall,
            add_source_columns,
            merge_source,
            source_of_rows,
        )

        # The SQL engine: the Spark session of the rows or of the lake, otherwise DuckDB.
        spark = source.sparkSession if is_spark_dataframe(source) else self._spark
        allows = self._catalog is not None and self._catalog.allows_external_files
        engine = engine_of(spark, allows)
        given = source
        if not isinstance(source, str):
            schema_of = engine.schema if is_spark_dataframe(source) else None
            rows = source.stored if isinstance(source, Table | ForeignTable) else source
            read = wider_table if merge_schema else source_table
            given = source_of_rows(
                rows, OpenTableCatalog.of(self._stored, self._catalog), schema_of, read
            )

        def carry_out(whens: Sequence[WhenCall]) -> Changed:
            if merge_schema:
                whens = add_source_columns(self._stored, given, whens)
            around = OpenTableCatalog.of(self._stored, self._catalog)
            return merge_source(around, engine, given, on, whens, isolation)

        return MergeBuilder(carry_out)

    @checked
    def truncate(self, partition: Mapping[str, Any] | None = None) -> WriteResult:
        """Delete all rows in one atomic commit. Older snapshots keep their rows.

        `partition` gives values for some or all partition columns, and limits the call to the
        partitions with these values. `snapshot_id` of the result is None when there were no rows.
        Raises `InvalidError` for values that do not describe a partition, and `UnsupportedError`,
        `ConflictError` and `DataError` as `write` does.
        """
        return local_writes.truncate(self._stored, _places(partition))

    convert = member(convert)
    purge_files = member(actions.purge_files)
    mend_snapshots = member(repair.mend_snapshots)

    @checked
    def compact(
        self, *, full: bool = False, dry_run: bool = False, order_by: Sequence[str] = (),
        order_strategy: str | None = None, partition: Mapping[str, Any] | None = None,
    ) -> CompactionResult:  # fmt: skip
        """Merge files into fewer and larger ones that contain the same rows, in one atomic commit.

        Writes compact automatically when a bucket has 'num-sorted-run.compaction-trigger' sorted
        runs, unless the table is 'write-only'. This call checks every bucket. With `full`, each
        bucket becomes one sorted run. Tombstones are kept as long as a late row could restore their
        key (docs/semantics.md). A full compaction removes tombstones older than
        'tombstone.retention'. Other writers can continue, and older snapshots keep their files.
        The work runs in threads of this process or, if the lake has a Spark session and the files
        are larger than 'spark.driver-work.max-size', on Spark executors.

        In a table without a primary key, a compaction combines small files and drops rows that are
        marked as deleted. With `full`, two files in a bucket are enough. With `order_by`, it sorts
        all rows by these columns, so that scans with conditions on them can skip files.
        `order_strategy` is 'order' (the default: by one column after the other), 'zorder' or
        'hilbert' (both weigh all columns equally). Rows are sorted within each bucket, and rows
        written later are not sorted.

        `partition` gives values for some or all partition columns, and limits the call to the
        partitions with these values. With `dry_run`, nothing changes, and the result says what
        would be compacted. When another compaction commits first, the result says so (`overtaken`),
        and no work is repeated.

        Raises:

        - `UnsupportedError`, with the reason, for a table whose versions must not be merged, and
          for `order_by` in a table with a primary key.
        - `InvalidError` for an invalid order strategy and for values that do not describe a
          partition.
        - `NotFoundError` for an unknown column.
        - `DataError` when the store fails.
        """
        return compact(
            self._stored, full=full, order_by=order_by, order_strategy=order_strategy,
            partitions=_places(partition), dry_run=dry_run, runner=self._runner,
        )  # fmt: skip

    expire_snapshots = member(expiry.expire_snapshots)
    expire_changelogs = member(expiry.expire_changelogs)

    def consumers(self) -> list[NamedConsumer]:
        """The named consumers. Their positions keep snapshots from expiring. Raises `DataError`."""
        return consumers_of(self.metadata)

    reset_consumer = member(consumer_verbs.reset_consumer)
    clear_consumers = member(consumer_verbs.clear_consumers)
    expire_consumers = member(consumer_verbs.expire_consumers)
    expire_partitions = member(actions.expire_partitions)
    remove_orphan_files = member(orphans.remove_orphan_files)

    @checked
    def rescale(
        self, partition: Mapping[str, Any] | None = None, *, dry_run: bool = False
    ) -> RescaleResult:
        """Rewrite partitions with the table's current number of buckets, in one commit.

        Use it after a change of the option 'bucket'. Partitions written before the change stay
        readable, but writes to them are refused until they are rewritten. The call rewrites those
        that have another number of buckets, in the whole table or among the partitions with the
        values in `partition`. It moves every stored version with its position in the merge order
        (with an index of keys, the rows that the index points to), so deletes and late rows keep
        their meaning.

        Other writers must wait. With `dry_run`, nothing changes, and the result says what would be
        done.

        Raises:

        - `ConflictError`, with nothing changed, when another writer changed one of the partitions
          meanwhile.
        - `InvalidError` for columns that are not partition columns.
        - `UnsupportedError` for a table without a primary key or without a fixed number of buckets,
          for one whose compacted values include older ones, and for one with
          'upsert.deleted-keys-ttl'.
        - `DataError` when the store fails.
        """
        return rescale(self._stored, _places(partition), dry_run=dry_run, runner=self._runner)

    @checked
    def rewrite_file_index(self, partition: Mapping[str, Any] | None = None) -> IndexingResult:
        """Add missing bloom filters to stored files, as the options ask for them.

        Use it after a change of 'file-index.bloom-filter.columns', because existing files have no
        filters for the new columns. The call reads these files and replaces their metadata in one
        atomic commit. It rewrites no data file. `partition` gives values for some or all partition
        columns, and limits the call to the partitions with these values. Other writers can
        continue.

        Raises:

        - `InvalidError` when the options ask for no filters, and for values that do not describe a
          partition.
        - `ConflictError`, with nothing changed, when files were replaced meanwhile.
        - `UnsupportedError` for a table that this release must not write to.
        - `DataError` when the store fails.
        """
        return index_files(self._stored, _places(partition), runner=self._runner)

    @property
    def _runner(self) -> TaskRunner | None:
        if self._spark is None:
            return None
        from keytide.spark.runner import SizedRunner

        return SizedRunner(self._spark)

    @checked
    def alter(self, *changes: SchemaChange) -> TableSchema:
        """Change columns, options or comments in one atomic step, and return the new definition.

        `changes` are objects from `keytide.definition.schema_evolution`, applied in order. No data
        file is rewritten: older files are read with the new schema, and older snapshots are read as
        before. If several callers alter the table at the same time, each call's changes are applied
        on top of the others.

        Raises the following, with nothing changed:

        - `InvalidError`, `NotFoundError` or `AlreadyExistsError` for a change that is not allowed.
          The message says what is allowed.
        - `UnsupportedError` for a change that this release does not support.
        - `ConflictError` when another change that came first rules these out, and while a
          conversion is running or was interrupted.
        - `DataError` when the store fails.
        """
        return alter_table(self.metadata, changes)

    @checked
    def add_constraint(self, name: str, condition: str) -> None:
        """Add a CHECK constraint: writes refuse rows for which the condition is false.

        `condition` is a string in the grammar of `scan`, or an SQL expression over the columns of
        one row, such as "ends > starts". A row for which it is NULL passes. Existing rows are
        checked first. A writer that is already running may not enforce the new constraint yet. See
        docs/semantics.md#check-constraints.

        Raises the following, with nothing changed:

        - `InvalidError` for a condition that does not parse, does not match the columns, is not
          BOOLEAN or does not depend on the row alone, and for existing rows that violate it. The
          message gives their number and the first one.
        - `NotFoundError` for an unknown column.
        - `AlreadyExistsError` when the name is taken.
        - What `alter` raises.
        """
        add_constraint(self._stored, name, condition)

    @checked
    def drop_constraint(self, name: str, *, missing_ok: bool = False) -> None:
        """Remove a constraint. Raises `NotFoundError` unless `missing_ok`, and as `alter`."""
        drop_constraint(self._stored, name, missing_ok=missing_ok)

    # -- reading --------------------------------------------------------------------------------

    @checked
    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Condition | None = None,
        snapshot_id: int | None = None,
        tag: str | None = None,
        as_of: Moment | None = None,
        *,
        limit: int | None = None,
        skip_upsert: bool = False,
        skip_upsert_delete: bool = False,
    ) -> Scan | FallbackScan:
        """Return a lazy scan of one snapshot, by default the latest.

        - `where` is a condition over columns and literals: a string in a small grammar
          (docs/semantics.md, Reading), the equivalent object of
          `keytide.predicate.predicate`, or a Polars or Arrow expression. Files are pruned
          before the merge, and rows are filtered after it.
        - `snapshot_id`, `tag` or `as_of` reads an older snapshot. Only one of them can be given.
          `as_of` is a datetime, an ISO string (UTC unless it contains an offset) or epoch
          milliseconds. A snapshot is read with the schema that it had.
        - `limit` is the maximum number of rows. It returns the rows that are read first, and reads
          no more files than needed.
        - `skip_upsert` (tables with 'upsert.mode') returns every stored row that no compaction has
          removed, including replaced rows, late rows and deletes.
        - `skip_upsert_delete` (tables with 'upsert.mode') returns the deciding row of each key: the
          current row or the delete. It holds the locations of all keys in memory.

        Returns a `FallbackScan` for a table whose options name a second branch to read.

        Raises `NotFoundError` for an unknown column, snapshot or tag, and `InvalidError` for a
        condition that does not parse or match the columns and for a `skip_` argument that the table
        does not support. Reading the scan raises `DataError` when `skip_upsert_delete` finds no
        index of the rows.
        """
        scan = scan_table(
            self._stored, columns, where, snapshot_id, tag, as_of, skip_upsert,
            skip_upsert_delete, limit,
        )  # fmt: skip
        return Scan.of(scan) if isinstance(scan, core.Scan) else FallbackScan.wrapping(scan)

    @checked
    def get(self, key: Mapping[str, Any] | Any) -> dict[str, Any] | None:
        """Return the row of one key as a dict, or None.

        `key` is the value of a single-column key, a tuple in primary key order, or a dict by
        column. The call reads only what can contain the key: its bucket (with dynamic buckets, all
        buckets), the files whose key range includes it, and the row groups around it. With
        'upsert.mode', it reads the row that the index of keys points to.

        Raises:

        - `InvalidError` for a value that is not a key of the table.
        - `UnsupportedError` for a table without a primary key, and for a time outside the years 1
          to 9999, which Python cannot represent.
        - `DataError` for a file that is missing or corrupt.
        """
        return get_row(self._stored, key)

    @checked
    def get_many(self, keys: Sequence[Mapping[str, Any] | Any]) -> pa.Table:
        """Return the existing rows of several keys, in the order of the keys, each row once.

        Keys are given as in `get`. All keys are looked up together, which reads far less than
        calling `get` for each key. Raises what `get` raises.
        """
        return get_rows(self._stored, keys)

    @checked
    def why(
        self,
        key: Mapping[str, Any] | Any,
        snapshot_id: int | None = None,
        tag: str | None = None,
        as_of: Moment | None = None,
    ) -> Why:
        """List every stored version of a key in merge order, and explain the result.

        For each column, the result says which versions its value comes from. For each other
        version, it says why it lost. `key` is what `get` accepts, and the call reads as much as
        `get`. `snapshot_id`, `tag` and `as_of` are as in `scan`. A key that was never written has
        no versions.

        Raises what `get` raises, and `NotFoundError` for an unknown snapshot or tag.
        """
        return why_row(self._stored, key, snapshot_id, tag, as_of)

    @checked
    def changes(
        self, start: int | str, end: int | str | None = None, mode: str = "diff"
    ) -> Changes:
        """Return what changed after snapshot `start` up to `end`, as rows with their `_row_kind`.

        Both are snapshot ids or tag names. 0 is the beginning, and the default `end` is the latest
        snapshot. The rows have the columns of the end snapshot. There are three modes:

        - 'diff' compares the rows of both snapshots, and works for any table. Keys in only one of
          them give '+I' or '-D'. Rows that differ give the before image '-U', directly followed by
          the after image '+U'. In a table without a primary key, files are compared instead: rows
          of removed files are '-D' and rows of new files are '+I', so the same row can appear as
          both.
        - 'delta' returns the rows as they were written, commit by commit, with the kinds that were
          written. It does not show the rows that an overwrite replaced.
        - 'changelog' returns the changelog that was stored with the commits. The option
          'changelog-producer' makes writes or compactions store it.

        Raises `NotFoundError` for a snapshot that does not exist or has expired, and for an unknown
        tag. Raises `InvalidError` for an unknown mode, a start after the end, and mode 'changelog'
        for a table that stores no changelog.
        """
        return Changes.of(changes_of(self._stored, start, end, mode))

    @checked
    def follow(
        self,
        start: int | str | None = None,
        mode: str = "diff",
        *,
        as_of: Moment | None = None,
        consumer: str | None = None,
        poll_seconds: float | int = 1.0,
        timeout_seconds: float | int | None = None,
        stop: Event | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes of each snapshot as it is committed: Arrow batches with `_row_kind`.

        - `start` is where to begin. 'full' (the default) first returns the rows of the latest
          snapshot as '+I'. 'latest' begins after the latest snapshot. A number begins after the
          snapshot with that id, and 0 at the beginning. `as_of` begins after the snapshot that was
          the latest one at that time.
        - `mode` is as in `changes`.
        - `consumer` is a name under which the position is stored in the table. A later call with
          the same name continues there and ignores `start`. Snapshots that a consumer still has to
          read do not expire. A snapshot is marked as read when the caller asks for the batch after
          it. If the caller stops before that, the whole snapshot is returned again.
        - `poll_seconds` is the time between checks for new snapshots.
        - `timeout_seconds` ends the iteration after that time without a new snapshot. None never
          ends it, and 0 ends it once everything that exists was returned. Both times must be
          between 0 and 292 years.
        - `stop` is an event that ends the iteration when it is set.

        Each batch has the columns of its snapshot. Its schema metadata contains the snapshot id as
        b'keytide.snapshot_id'.

        Raises what `changes` raises, and `ConflictError` when the table is rolled back to before a
        snapshot that was already returned.
        """
        moment = None if as_of is None else epoch_ms(as_of, self.name)
        pace = Pace(poll_seconds, timeout_seconds, stop or Event())
        table = self._stored.pinned()
        return follow(table, start_of(table, start, moment), mode, pace, consumer)

    @checked
    def verify(self, *, quick: bool = False) -> Verification:
        """Check stored files against their metadata, and the rows against the guarantees.

        This covers snapshots, tags, branches, schemas, manifests and index files. For each data
        file, it checks the bytes, the columns and every row: sorted by key, one row per key, in the
        right bucket, and consistent with the row counts, NULL counts and bounds in the manifests.
        Each problem is a finding that names the file, the expected state and how to fix it.
        `unchecked` lists what this release cannot check.

        The call changes nothing, and its memory stays within 'read.memory'. `quick` reads no data:
        it checks the metadata, and that each file exists with its full size. For a branch, the
        whole table is checked.

        Raises `DataError` only when the store cannot even be listed.
        """
        return verify_table(self._stored, quick=quick)

    doctor = member(diagnose)
    publish = member(publish)

    def plot(self) -> Any:
        """Draw the table: levels and buckets, files over time, and the write amplification.

        The result is a matplotlib figure, which a notebook shows and `savefig` stores. Raises
        `SetupError` without the `plot` extra, and `DataError` for corrupt metadata.
        """
        return picture_of(self._stored)

    def snapshots(self) -> Snapshots:
        """The existing snapshots, oldest first. Raises `DataError` for a corrupt one."""
        return Snapshots(self.metadata.snapshots())

    @checked
    def history(self, limit: int | None = None) -> History:
        """The commits of the table, latest first, at most `limit` of them.

        Each entry has the time, the user, the kind of commit (write, delete, update, merge,
        overwrite, compaction, restore, ...) and the rows and bytes that it wrote. See
        `HistoryEntry`. Only metadata is read: each commit's own manifests. A notebook shows a
        table, and `print` shows lines. Raises `InvalidError` for a negative limit, and `DataError`
        for corrupt metadata.
        """
        if limit is not None and limit < 0:
            raise InvalidError(f"Table.history: limit is {limit}; expected 0 or more, or None")
        return history_of(self.metadata, limit)

    # -- history --------------------------------------------------------------------------------

    def tags(self) -> Tags:
        """The tags, with the ids of their snapshots. Raises `DataError` for a corrupt one."""
        return tags_of(self.metadata)

    create_tag = member(tag_verbs.create_tag)
    replace_tag = member(tag_verbs.replace_tag)
    rename_tag = member(tag_verbs.rename_tag)
    delete_tag = member(tag_verbs.delete_tag)
    expire_tags = member(tag_verbs.expire_tags)
    rollback_to = member(actions.rollback_to)

    @checked
    def restore(
        self,
        to: int | str | None = None,
        partition: Mapping[str, Any] | None = None,
        *,
        as_of: Moment | None = None,
        dry_run: bool = False,
    ) -> RestoreResult:
        """Restore a partition, or the whole table, to an earlier state, in a new commit.

        `to` is a snapshot id or tag name, and `as_of` is a time as in `scan`. `partition` gives
        values for some or all partition columns. No data is rewritten: files of that time become
        live again. Files that a compaction has since moved to another level come back as copies
        (hard links on local disk, copied inside an object store). The restore also replaces what
        other writers committed to these partitions until then. Unlike after `rollback_to`, that
        data can still be read in its own snapshots. The current columns do not change. Everything
        that follows a write also follows a restore: compaction, tags, expiry.

        A tag `restored-...` protects the older files until the snapshots in between have expired,
        and is then removed automatically. With `dry_run`, nothing changes, and the result says what
        would be done.

        Raises the following, with nothing committed:

        - `NotFoundError` for a snapshot or tag that does not exist.
        - `InvalidError` for values that do not describe a partition.
        - `UnsupportedError` when options that affect how rows are read have changed, when the table
          was converted in the meantime, and for some partitions of a table whose keys can move
          between partitions.
        - `ConflictError` when too many races with other writers were lost.
        - `DataError` when the store fails.
        """
        return restore(self._stored, to, _places(partition), as_of=as_of, dry_run=dry_run)

    def branches(self) -> Branches:
        """The branches other than the main one, by name.

        Raises `DataError` for corrupt metadata.
        """
        return branches_of(self.metadata)

    @checked
    def branch(self, name: str) -> Table:
        """Open a branch as a table, which is read, written, altered and compacted independently.

        It is the same as `lake.table("t$branch_name")`. 'main' is the table itself. Raises
        `NotFoundError`, listing the existing branches, for an unknown one.
        """
        return _branch_table(self, open_branch(self._stored, name))

    create_branch = member_with_result(branch_verbs.create_branch, _branch_table)
    delete_branch = member(actions.delete_branch)
    rename_branch = member_with_result(actions.rename_branch, _branch_table)
    fast_forward = member(actions.fast_forward)


def _places(partition: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    """The partitions to use. An empty list means all of them."""
    return () if partition is None else (partition,)


def _add_missing_columns(
    table: StoredTable,
    data: Any,
    author: Author | None = None,
    partition: Mapping[str, Any] | None = None,
) -> tuple[StoredTable, Any]:
    """The table after adding the columns of the rows, and the rows in the table's types."""
    if is_spark_dataframe(data):
        from keytide.spark.dataframe_writes import add_missing_columns

        return add_missing_columns(table, data, author, partition)
    return extended_for(table, data, author, partition)


def is_spark_dataframe(data: Any) -> bool:
    """Whether `data` is a Spark DataFrame, classic or Connect. This does not import pyspark."""
    return type(data).__module__.split(".")[0] == "pyspark"
