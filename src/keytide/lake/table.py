"""A table, as users hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from keytide import html
from keytide.arguments import checked
from keytide.dml.execution import Changed
from keytide.format.schema import TableSchema
from keytide.lake.branches import Branches
from keytide.lake.changes import Changes
from keytide.lake.engines import engine_of
from keytide.lake.merge import MergeBuilder
from keytide.lake.picture import picture_of
from keytide.lake.scan import Scan
from keytide.lake.snapshots import Snapshots
from keytide.lake.tags import Tags
from keytide.store import Store
from keytide.table import local_writes
from keytide.table.alter import alter_table
from keytide.table.catalog import Catalog
from keytide.table.changes.change_scan import changes_of
from keytide.table.changes.follow import Pace, follow, start_of
from keytide.table.commit.author import Author
from keytide.table.commit.result import WriteResult
from keytide.table.compaction.compact import CompactionResult
from keytide.table.conditions.condition import Condition
from keytide.table.definition.evolution import SchemaChange
from keytide.table.expiry.orphans import OrphanFiles, remove_orphan_files
from keytide.table.expiry.partition_expiry import (
    ExpiredPartitions,
    PartitionAge,
)
from keytide.table.expiry.retention import Asked
from keytide.table.expiry.snapshot_expiry import ExpiryResult, expire_changelogs, expire_snapshots
from keytide.table.history.automatic_tags import expire_tags
from keytide.table.history.branch_renaming import rename_branch
from keytide.table.history.branches import (
    FastForwardResult,
    branches_of,
    create_branch,
    delete_branch,
)
from keytide.table.history.consumers import (
    NamedConsumer,
    clear_consumers,
    consumers_of,
    expire_consumers,
    reset_consumer,
)
from keytide.table.history.rollback import RollbackResult
from keytide.table.history.tags import (
    NamedTag,
    create_tag,
    delete_tag,
    rename_tag,
    replace_tag,
    tags_of,
)
from keytide.table.read.why import Why
from keytide.table.runner import TaskRunner
from keytide.table.scans import epoch_ms, get_row, get_rows, scan_table, why_row
from keytide.table.state.branches import open_branch
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.stored import StoredTable
from keytide.table.upkeep.compacting import cluster, compact
from keytide.table.upkeep.doctor import Diagnosis, diagnose
from keytide.table.upkeep.going_back import fast_forward, roll_back
from keytide.table.upkeep.indexing import IndexingResult, index_files
from keytide.table.upkeep.mending import MendResult, mend_snapshots
from keytide.table.upkeep.old_partitions import expire_partitions
from keytide.table.upkeep.purging import PurgeResult, purge
from keytide.table.upkeep.rescale import RescaleResult, rescale
from keytide.table.upkeep.restore import RestoreResult, restore
from keytide.table.verify.finding import Verification
from keytide.table.verify.verify import verify_table

if TYPE_CHECKING:
    from keytide.sql.query_engine import Engine

__all__ = ["Table"]


class Table:
    """One table, as a rule with a primary key.

    Any number of tables, processes and engines may write at the same time; every reader sees
    one merged row per key, or, of an append table, every row that was written.
    A table object is safe to share between threads, and looks at the newest schema and snapshot
    whenever it reads or writes: once for each call, which sees nothing that others commit
    meanwhile.
    """

    def __init__(self, store: Store, name: str) -> None:
        """Open the table that a store is rooted at. Raises `NotFoundError` when there is none."""
        self._stored = StoredTable(store, name)
        self._spark: Any = None
        self._catalog: Catalog | None = None

    @classmethod
    def of(cls, stored: StoredTable, spark: Any = None, catalog: Catalog | None = None) -> Table:
        """The same table for users.

        A Spark session, where there is one, compacts it and computes changes of its rows, in which
        SQL may name the tables of a catalog.
        """
        table = cls.__new__(cls)
        table._stored = stored
        table._spark = spark
        table._catalog = catalog
        return table

    # -- what it is -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name, as `database.table`."""
        return self._stored.name

    @property
    def uri(self) -> str:
        """Where the table lies; what `spark.read.format("keytide").load` takes."""
        return self._stored.uri

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema. Raises as `table_schema`."""
        return self.table_schema.arrow_schema()

    @property
    def table_schema(self) -> TableSchema:
        """The newest stored definition: columns with ids, keys, options.

        Raises `NotFoundError` where the table has been dropped, `DataError` for a torn schema file.
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
        """The options as stored. Raises as `table_schema`."""
        return dict(self.table_schema.options)

    @property
    def metadata(self) -> TableMetadata:
        """The stored metadata, for tools that look closer."""
        return self._stored.metadata

    @property
    def stored(self) -> StoredTable:
        """The table as the layers below know it."""
        return self._stored

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {self.uri!r})"

    def _repr_html_(self) -> str:
        schema = self.table_schema
        keys = dict.fromkeys(schema.primary_keys, "primary key")
        partitions = dict.fromkeys(schema.partition_keys, " partition")
        rows = [
            (f.name, f.type.sql(), keys.get(f.name, "") + partitions.get(f.name, ""))
            for f in schema.fields
        ]
        columns = html.table(("column", "type", "role"), rows)
        return html.heading(self.name, self.uri) + columns

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
        author = Author.given(commit_user, commit_identifier)
        if is_spark_dataframe(data):
            from keytide.spark.write import append

            return append(self._stored, data, author)
        return local_writes.append(self._stored, data, author)

    @checked
    def overwrite(self, data: Any, partition: Mapping[str, Any] | None = None) -> WriteResult:
        """Replace rows by those given, in one atomic commit.

        `data` is what `write` takes. Without a `partition` the whole table is replaced; of a table
        with partitions only those that the rows touch, unless the option
        'dynamic-partition-overwrite' is false. With values for some or all partition columns as
        `partition`, the partitions that have these values are replaced, even by no rows; every row
        must lie there, and may leave these columns out. What other writers committed to the
        replaced partitions until then is replaced too. Partitions are laid out anew with the number
        of buckets that the table has now.

        `snapshot_id` of the result is None when there was nothing to replace and nothing to
        write. Raises what `write` raises.
        """
        if is_spark_dataframe(data):
            from keytide.spark.write import overwrite

            return overwrite(self._stored, data, partition)
        return local_writes.overwrite(self._stored, data, partition)

    @checked
    def delete(
        self,
        where: Condition | None = None,
        *,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
    ) -> Changed:
        """Delete the rows that meet a condition, or all of them, in one atomic commit.

        `where` is SQL as after WHERE, with queries of other tables of the lake if need be; the
        table is called `target` in it. DuckDB computes, or the Spark session of the lake. Or it is
        a condition that is a value, as in `scan`, which needs neither. When another writer reaches
        a bucket that is changed meanwhile (with `serializable` isolation, any bucket), the rows are
        looked for anew. `rows` of the result counts those that are gone.

        Raises `InvalidError` pointing at the place of what does not parse or cannot run,
        `NotFoundError` for unknown names, `UnsupportedError` for a table that takes no deletes,
        `ConflictError` when too many races were lost, `DataError` when the store fails; nothing is
        changed then.
        """
        from keytide.sql.forms import Around, delete_where

        around = Around.of(self._stored, self._catalog)
        return delete_where(around, self._engine(), where, isolation)

    @checked
    def update(
        self,
        set: Mapping[str, Any],
        where: Condition | None = None,
        *,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
    ) -> Changed:
        """Change columns of the rows that meet a condition, or of all, in one atomic commit.

        `set` has the new values by column: a text is a SQL expression, such as `"qty + 1"` or
        `"'a text'"`; numbers, booleans, bytes, dates, times and None stand for themselves. The rest
        is as in `delete`; `rows` of the result counts the rows that were changed.

        Raises as `delete`, `InvalidError` for values that do not fit their columns and where two
        rows would have one primary key, and `UnsupportedError` for a table that would not store the
        new values as they are.
        """
        from keytide.sql.forms import Around, update_where

        around = Around.of(self._stored, self._catalog)
        return update_where(around, self._engine(), set, where, isolation)

    @checked
    def merge(
        self,
        source: Any,
        on: str,
        *,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
    ) -> MergeBuilder:
        """Begin a merge of rows into this table; `execute` of what is returned carries it out.

        `source` is what `write` takes, another table, or the SQL text of a query; its columns may
        have any names. `on` is the condition that says which rows belong together, such as
        `"target.id = source.id"`. What is to become of them say the calls that follow:

            t.merge(rows, "target.id = source.id")
                .when_matched_delete("source.gone")
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute()

        Raises `InvalidError` for a source that is none of these, or has columns that SQL does not
        know.
        """
        from keytide.sql.forms import Around, WhenForm, merge_source, source_of_rows

        engine = self._engine(source)
        given = source
        if not isinstance(source, str):
            schema_of = engine.schema if is_spark_dataframe(source) else None
            rows = source.stored if isinstance(source, Table) else source
            given = source_of_rows(rows, self._stored, schema_of)

        def carry_out(whens: Sequence[WhenForm]) -> Changed:
            around = Around.of(self._stored, self._catalog)
            return merge_source(around, engine, given, on, whens, isolation)

        return MergeBuilder(carry_out)

    def _engine(self, rows: Any = None) -> Engine:
        """What computes: the session of rows that are on Spark, or of the lake, or DuckDB."""
        spark = rows.sparkSession if is_spark_dataframe(rows) else self._spark
        allows = self._catalog is not None and self._catalog.allows_external_files
        return engine_of(spark, allows)

    @checked
    def truncate(self, partition: Mapping[str, Any] | None = None) -> WriteResult:
        """Delete all rows, in one atomic commit. Older snapshots keep theirs.

        With values for some or all partition columns as `partition`, those of the partitions that
        have them. `snapshot_id` of the result is None when there were none. Raises `InvalidError`
        for values that name no partition, and `UnsupportedError`, `ConflictError` and `DataError`
        as `write` does.
        """
        return local_writes.truncate(self._stored, () if partition is None else (partition,))

    @checked
    def purge_files(self, *, dry_run: bool = False) -> PurgeResult:
        """Delete all rows and all history: what stays is the definition and one empty snapshot.

        The rows go first, in one atomic commit; from then on the table is empty, and after a stop
        the same call goes on. Then go branches, tags, consumers, changelogs and snapshots, with
        the files that they have. Others may write meanwhile: what they commit stays. What writers
        that died have left, and files of restored snapshots, stay for orphan cleaning. `dry_run`
        tells what would go.

        Raises `InvalidError` for a branch, and where an option names one; `UnsupportedError`,
        `ConflictError` and `DataError` as `truncate` and `expire_snapshots` do.
        """
        return purge(self._stored, dry_run=dry_run)

    @checked
    def mend_snapshots(self, *, dry_run: bool = False) -> MendResult:
        """Write snapshots, changelogs and tags again that some engines cannot read.

        Those say an operation that these engines do not know; without it they show what they
        showed. All branches are mended with the table, of a branch that one alone. The newest
        snapshot gets a successor that shows the same, the others are replaced one by one; after a
        stop the same call goes on. Others may write, compact and expire meanwhile. Nobody may roll
        the table back or fast-forward it: what is committed then under the number of a snapshot
        that went could be replaced. `dry_run` counts.

        Raises `DataError` for a document that is torn and when the store fails, and
        `UnsupportedError` and `ConflictError` as `write` does.
        """
        return mend_snapshots(self._stored, dry_run=dry_run)

    @checked
    def compact(
        self, *, full: bool = False, dry_run: bool = False, order_by: Sequence[str] = (),
        order_strategy: str | None = None, partition: Mapping[str, Any] | None = None,
    ) -> CompactionResult:  # fmt: skip
        """Merge files into fewer and larger ones, with the same rows, in one atomic commit.

        Writes do so by themselves where 'num-sorted-run.compaction-trigger' sorted runs have come
        together in a bucket, unless the table is 'write-only'. Here every bucket is looked at; in
        full, each is merged into one sorted run. Deletes stay, as long as a row that comes late
        could bring their key back (docs/semantics.md); a full compaction forgets those older than
        'tombstone.retention'. Other writers are not held up, and older snapshots keep their files.

        Of a table without a primary key, small files are put together, in full from two of a bucket
        on, and rows that are marked as dead are dropped. With columns to `order_by` all its rows
        are put in order, so that readers with conditions on these columns skip files:
        `order_strategy` 'order', the default, sorts by one column after the other, 'zorder' and
        'hilbert' by all of them alike. The order is that of each bucket, and of the rows of today.

        With values for some or all partition columns as `partition`, the partitions that have them
        are looked at alone.

        `dry_run` tells what would be taken up. Where another compaction comes first, the result
        says so, and nothing is done twice. Raises `UnsupportedError` for a table whose versions
        have to stay apart, and for an order of rows that have a primary key, with the reason;
        `InvalidError` for an order that is none and for values that name no partition,
        `NotFoundError` for a column that the table lacks, and `DataError` when the store fails.
        """
        partitions = () if partition is None else (partition,)
        if order_by or order_strategy is not None:
            strategy = order_strategy or "order"
            return cluster(
                self._stored, strategy, order_by, partitions=partitions, dry_run=dry_run,
                runner=self._runner,
            )  # fmt: skip
        return compact(
            self._stored, full=full, partitions=partitions, dry_run=dry_run, runner=self._runner
        )

    @checked
    def expire_snapshots(
        self,
        retain_max: int | None = None,
        retain_min: int | None = None,
        older_than: datetime | date | str | int | None = None,
        max_deletes: int | None = None,
        *,
        dry_run: bool = False,
    ) -> ExpiryResult:
        """Forget old snapshots, and delete the files that only they have.

        Writes do so by themselves, as the options 'snapshot.time-retained',
        'snapshot.num-retained.min' and 'snapshot.num-retained.max' say, unless the table is
        'write-only'; here they say what the arguments leave out. The newest `retain_min` snapshots
        stay. Those beyond the newest `retain_max` go, and of the others those made before
        `older_than`, given as `as_of` of `scan` is; at most `max_deletes` of them, the oldest.

        Changelogs that have outlived their snapshots go as their own options say.

        A snapshot that a consumer has still to read stays, with all later ones. The files of tags
        and branches stay. A reader of a snapshot that goes fails with an error that says so.
        Others may write, compact, tag and expire meanwhile; an expiry that dies leaves every
        snapshot, tag and branch whole, and the next one finishes it. `dry_run` tells what would go.

        Raises `InvalidError` for numbers that contradict each other, `ConflictError` when the table
        is rolled back meanwhile, and `DataError` when the store fails or holds a tag or list that
        is torn.
        """
        asked = self._asked(retain_max, retain_min, older_than, max_deletes)
        return expire_snapshots(self._stored, asked, dry_run=dry_run)

    @checked
    def expire_changelogs(
        self,
        retain_max: int | None = None,
        retain_min: int | None = None,
        older_than: datetime | date | str | int | None = None,
        max_deletes: int | None = None,
        *,
        dry_run: bool = False,
    ) -> ExpiryResult:
        """Forget old changelogs that have outlived their snapshots, with the files of these.

        Where 'changelog.time-retained', 'changelog.num-retained.min' or
        'changelog.num-retained.max' are more than what snapshots have, a snapshot that expires
        leaves its changelog behind, for `changes` and `follow` in the modes 'changelog' and
        'delta'. It goes as these options say whenever snapshots expire, and as asked for here:
        arguments, errors and result are those of `expire_snapshots`, where both numbers count
        commits back from the newest one. A consumer keeps what it has still to read.

        Raises as `expire_snapshots`.
        """
        asked = self._asked(retain_max, retain_min, older_than, max_deletes)
        return expire_changelogs(self._stored, asked, dry_run=dry_run)

    def _asked(
        self,
        retain_max: int | None,
        retain_min: int | None,
        older_than: datetime | date | str | int | None,
        max_deletes: int | None,
    ) -> Asked:
        moment = None if older_than is None else epoch_ms(older_than, self.name, "older_than")
        return Asked(retain_max, retain_min, moment, max_deletes)

    def consumers(self) -> list[NamedConsumer]:
        """The named readers, whose places keep snapshots from expiring. Raises `DataError`."""
        return consumers_of(self.metadata)

    @checked
    def reset_consumer(self, name: str, next_snapshot: int | None = None) -> NamedConsumer | None:
        """Have a consumer go on at another snapshot, or forget it, which is what None means.

        A reader that runs at this moment keeps its own place again. Raises `NotFoundError` for an
        unknown consumer or a snapshot that is not there any more, `InvalidError` for one to come,
        `DataError` when the store fails.
        """
        return reset_consumer(self.metadata, name, next_snapshot)

    @checked
    def clear_consumers(
        self, including: str | None = None, excluding: str | None = None
    ) -> list[str]:
        """Forget consumers: all of them, or those whose names match one regular expression and not
        the other one, in whole. Gives their names.

        Raises `InvalidError` for what is no regular expression, `DataError` when the store fails.
        """
        return clear_consumers(self.metadata, including, excluding)

    @checked
    def expire_consumers(self, older_than: datetime | date | str | int) -> list[str]:
        """Forget consumers that have not kept their place since a time; gives their names.

        Whenever snapshots expire this is done as the option 'consumer.expiration-time' says.
        Raises `InvalidError` for what is no time, `DataError` when the store fails.
        """
        return expire_consumers(self.metadata, epoch_ms(older_than, self.name, "older_than"))

    @checked
    def expire_partitions(
        self,
        expiration_time: str | timedelta | None = None,
        *,
        strategy: str | None = None,
        timestamp_pattern: str | None = None,
        timestamp_formatter: str | None = None,
        max_expires: int | None = None,
        dry_run: bool = False,
    ) -> ExpiredPartitions:
        """Drop partitions that are older than a time such as '7 d', in one atomic commit.

        The time is a text or a timedelta, not negative and of at most 292 years.
        What is left out is as the options 'partition.expiration-time',
        'partition.expiration-strategy', 'partition.timestamp-pattern',
        'partition.timestamp-formatter' and 'partition.expiration-max-num' say, by which writes do
        the same. By the strategy 'values-time' the values tell how old a partition is, and what
        others write there meanwhile goes with it; one whose values tell no time stays. By
        'update-time' it counts from the last write, and nothing is dropped where others write
        meanwhile. Time goes by the wall clock of this machine. `dry_run` tells what would go.

        Raises `InvalidError` for a table without partitions and for what is not to be understood,
        and what `write` raises.
        """
        age = PartitionAge(
            expiration_time,
            strategy,
            timestamp_pattern,
            timestamp_formatter,
            max_expires,
        )
        return expire_partitions(self._stored, age, dry_run=dry_run)

    @checked
    def remove_orphan_files(
        self,
        older_than: datetime | date | str | int | None = None,
        *,
        dry_run: bool = True,
    ) -> OrphanFiles:
        """Delete files that nothing in the table names; with `dry_run`, the default, only tell.

        Writers that died, rollbacks, and tags and branches that were dropped leave them. What a
        snapshot, tag, branch or changelog names stays, and so does whatever has no place in the
        table. Only files that were changed last before `older_than` go, a day ago when it is left
        out: a file that a writer has not committed yet looks the same, so give no time at which
        somebody was writing what is not committed yet. Takes a listing of the whole table.

        Raises `InvalidError` for a time to come, and `DataError`, with nothing deleted, when the
        store fails or something that names files is torn.
        """
        moment = None if older_than is None else epoch_ms(older_than, self.name, "older_than")
        return remove_orphan_files(self._stored, moment, dry_run=dry_run)

    @checked
    def rescale(
        self, partition: Mapping[str, Any] | None = None, *, dry_run: bool = False
    ) -> RescaleResult:
        """Lay partitions out with the number of buckets that the table has now, in one commit.

        For after a change of the option 'bucket': partitions written before stay readable as they
        are, and are not written to until they are laid out anew. Of all partitions, or of those
        with the values of `partition`, the ones that have another number are moved: every stored
        version with its place in the order, so that deletes and late rows mean what they did.
        Other writers must wait. `dry_run` tells what would be done.

        Raises `ConflictError`, with nothing changed, when another writer came to one of the
        partitions meanwhile; `InvalidError` for columns that are no partition columns;
        `UnsupportedError` for a table without a primary key or a fixed number of buckets, and for
        one whose compacted values contain others; `DataError` when the store fails.
        """
        partitions = () if partition is None else (partition,)
        return rescale(self._stored, partitions, dry_run=dry_run, runner=self._runner)

    @checked
    def rewrite_file_index(self, partition: Mapping[str, Any] | None = None) -> IndexingResult:
        """Give stored files the bloom filters that the options ask for and that they lack.

        For after a change of 'file-index.bloom-filter.columns': files that were written before have
        no filters of these columns. They are read, and what the table says of them is replaced in
        one atomic commit; no data file is written. With values for some or all partition columns as
        `partition`, those of the partitions that have them. Others may write meanwhile.

        Raises `InvalidError` where the options ask for no filters, and for values that name no
        partition; `ConflictError`, with nothing changed, where files were replaced meanwhile;
        `UnsupportedError` for a table that this release must not write to; `DataError` when the
        store fails.
        """
        partitions = () if partition is None else (partition,)
        return index_files(self._stored, partitions, runner=self._runner)

    @property
    def _runner(self) -> TaskRunner | None:
        if self._spark is None:
            return None
        from keytide.spark.runner import Cluster

        return Cluster(self._spark)

    @checked
    def alter(self, *changes: SchemaChange) -> TableSchema:
        """Change columns, options or comments, all in one step, and return the new definition.

        Changes are values of `keytide.table.definition.evolution`, made one after the other. No
        data file is touched: older ones are read under the new schema, and older snapshots are
        read as they were. Of several callers at once each one's changes are made on top of the
        others'.

        Raises, with nothing changed, `InvalidError`, `NotFoundError` or `AlreadyExistsError` for
        what may not be done, saying what may; `UnsupportedError` for what this release cannot
        keep its promises for; `ConflictError` when a change that came first rules these out;
        `DataError` when the store fails.
        """
        return alter_table(self.metadata, changes)

    # -- reading --------------------------------------------------------------------------------

    @checked
    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Condition | None = None,
        snapshot_id: int | None = None,
        tag: str | None = None,
        as_of: datetime | date | str | int | None = None,
    ) -> Scan:
        """A lazy read of one snapshot, the newest by default.

        `where` is a condition over columns and literals: a text in a small grammar of its own
        (docs/semantics.md, Reading), or the tree of `keytide.table.conditions.predicate` that such
        a text stands for. Rows are filtered after the merge, files are pruned before it. One of
        `snapshot_id`, `tag` and `as_of` travels back in time; `as_of` is a datetime, an ISO text
        (UTC unless it says otherwise) or epoch milliseconds.
        A snapshot is read with the schema that it had.

        Raises `NotFoundError` for an unknown column, snapshot or tag, `InvalidError` for a
        condition that does not parse or fit.
        """
        return Scan.of(scan_table(self._stored, columns, where, snapshot_id, tag, as_of))

    @checked
    def get(self, key: Mapping[str, Any] | Any) -> dict[str, Any] | None:
        """The row of one key, or None.

        `key` is the value of a single-column key, a tuple in primary key order, or a dict by
        column. Reads only what can hold the key: its bucket, or every dynamic one, their files by
        key range, and of them the row groups around the key.

        Raises `InvalidError` for what is no key of the table, `UnsupportedError` for a table
        without a primary key and for a time outside of Python's years 1 to 9999, `DataError` for a
        file that is missing or torn.
        """
        return get_row(self._stored, key)

    @checked
    def get_many(self, keys: Sequence[Mapping[str, Any] | Any]) -> pa.Table:
        """The rows of those of some keys that there are, in the order of the keys, each once.

        Keys are given as to `get`. Reads what can hold one of them, all at once: far less than
        as many calls of `get`. Raises what `get` raises.
        """
        return get_rows(self._stored, keys)

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
        return why_row(self._stored, key, snapshot_id, tag, as_of)

    @checked
    def changes(
        self, start: int | str, end: int | str | None = None, mode: str = "diff"
    ) -> Changes:
        """What happened after snapshot `start` up to `end`, as rows with their `_row_kind`.

        Both are ids of snapshots or names of tags; 0 is the beginning, and without an `end` it is
        the newest snapshot. The rows have the columns of the end. They are found in one of three
        ways, the `mode`:

        - 'diff' compares the rows that both snapshots show, of any table: '+I' and '-D' for
          keys that only one of them has, '-U' and '+U' with both images, one behind the other,
          for rows that differ. Of a table without a primary key it compares files: the rows of
          files that are gone are '-D', those of new ones '+I', the same row perhaps both.
        - 'delta' gives the rows as they were written, commit by commit, with the kinds that they
          came with. An overwrite does not say what it replaced.
        - 'changelog' gives the changelog that was stored with the commits, where the table's
          'changelog-producer' asks writers or compactions for one.

        Raises `NotFoundError` for a snapshot that is not there, or not any more, and for an
        unknown tag; `InvalidError` for an unknown mode, a start behind the end, and mode
        'changelog' of a table that stores none.
        """
        return Changes.of(changes_of(self._stored, start, end, mode))

    @checked
    def follow(
        self,
        start: int | str | None = None,
        mode: str = "diff",
        *,
        as_of: datetime | date | str | int | None = None,
        consumer: str | None = None,
        poll_seconds: float | int = 1.0,
        timeout_seconds: float | int | None = None,
        stop: Event | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The changes snapshot by snapshot, as they come: Arrow batches with `_row_kind`.

        Begins with the rows of the newest snapshot as '+I' (`start` 'full', the default), or
        after it ('latest'), after the snapshot of an id (a number, 0 for the beginning), or after
        the one that was newest at a time (`as_of`). `mode` is that of `changes`. Batches have the
        columns of their snapshot, whose id is b'keytide.snapshot_id' in the metadata of their
        schema.

        Looks for new snapshots every `poll_seconds`, and ends when `stop` is set or when there was
        nothing new for `timeout_seconds`: never for None, and for 0 when all there is was told.
        Neither is negative, or more than 292 years.

        A `consumer` keeps its place in the table: who follows under the same name later goes on
        there, whatever `start` says, and snapshots that it has still to read do not expire. A
        snapshot counts as told when what comes after it is asked for, so after a stop in between
        it is told again, in whole.

        Raises what `changes` raises, and `ConflictError` when the table is rolled back behind what
        was told.
        """
        moment = None if as_of is None else epoch_ms(as_of, self.name)
        pace = Pace(poll_seconds, timeout_seconds, stop or Event())
        table = self._stored.pinned()
        return follow(table, start_of(table, start, moment), mode, pace, consumer)

    @checked
    def verify(self, *, quick: bool = False) -> Verification:
        """Check all that is stored against what is said of it, and the laws against the rows.

        Snapshots, tags, branches, schemas, manifests and index files; of each data file its bytes,
        its columns and every row: sorted by key, one for each key, in its own bucket, and within
        what the manifests say of numbers, NULLs and bounds. Whatever is wrong is a finding that
        names the file, what was expected and the way out; what this release cannot look at is in
        `unchecked`. Nothing is changed, and memory stays within 'read.memory'. `quick` reads no
        data: metadata, and whether each file is there in full length. Of a branch the whole table
        is checked.

        Raises `DataError` only where the store cannot even be listed.
        """
        return verify_table(self._stored, quick=quick)

    def doctor(self) -> Diagnosis:
        """How well the table is: small files, sorted runs, skew, tombstones, snapshots, consumers,
        orphan files, branches, manifests.

        Each sign says what was found, what is well, and what to do where it is not. Reads metadata
        and lists the table, no data. Raises `DataError` where the metadata of the newest snapshot
        is torn.
        """
        return diagnose(self._stored)

    def plot(self) -> Any:
        """A picture: levels and buckets, files over time, and what writing cost in bytes.

        A matplotlib figure, which a notebook shows and `savefig` stores. Raises `SetupError`
        without the `plot` extra, `DataError` for torn metadata.
        """
        return picture_of(self._stored)

    def snapshots(self) -> Snapshots:
        """The snapshots that are there, oldest first. Raises `DataError` for a torn one."""
        return Snapshots(self.metadata.snapshots())

    # -- history --------------------------------------------------------------------------------

    def tags(self) -> Tags:
        """The tags, by the ids of their snapshots. Raises `DataError` for a torn one."""
        return Tags(tags_of(self.metadata))

    @checked
    def create_tag(
        self,
        name: str,
        snapshot_id: int | None = None,
        time_retained: str | timedelta | None = None,
    ) -> NamedTag:
        """Name a snapshot, the newest by default; atomic: of several callers one makes the tag.

        A tag keeps its snapshot readable when the snapshot expires. It stays for `time_retained`,
        such as '7 d', counted from now, or 'forever'; left out, as 'tag.default-time-retained'
        says, which is for ever unless it is set. It is above 0, and at most 292 years.

        Raises `NotFoundError` for a snapshot that is not there, or not any more, naming those that
        are; `AlreadyExistsError` for a name that is taken; `InvalidError` for one that a tag cannot
        have, and for a time that is none; `ConflictError`, with nothing made, when the snapshot
        goes away meanwhile; `DataError` when the store fails.
        """
        return create_tag(self.metadata, name, snapshot_id, time_retained)

    @checked
    def replace_tag(
        self,
        name: str,
        snapshot_id: int | None = None,
        time_retained: str | timedelta | None = None,
    ) -> NamedTag:
        """Have a tag name another snapshot, the newest by default, in one step.

        The time that it stays begins anew, see `create_tag`. Raises `NotFoundError` for an unknown
        tag too, and as `create_tag`.
        """
        return replace_tag(self.metadata, name, snapshot_id, time_retained)

    @checked
    def rename_tag(self, name: str, new_name: str) -> NamedTag:
        """Give a tag another name.

        Both names are there for a moment; after a stop in between, the same call goes on. Raises
        `NotFoundError` for an unknown tag, `AlreadyExistsError` and `InvalidError` for a new name
        that is taken or cannot be, `DataError` when the store fails.
        """
        return rename_tag(self.metadata, name, new_name)

    @checked
    def delete_tag(self, name: str) -> None:
        """Forget a tag; its snapshot can be read by its id for as long as it is there itself.

        Raises `NotFoundError` naming the tags there are, `DataError` when the store fails.
        """
        delete_tag(self.metadata, name)

    @checked
    def expire_tags(
        self,
        older_than: datetime | date | str | int | None = None,
        *,
        dry_run: bool = False,
    ) -> Tags:
        """Delete tags whose time is over, and those made before `older_than`; gives these.

        Writes do the first by themselves, unless 'tag.time-expire-enabled' is false. Time goes by
        the wall clock of this machine, as it does where tags are made. `dry_run` tells which
        tags would go. Raises `InvalidError` for what is no time, `DataError` for a torn tag or
        when the store fails.
        """
        moment = None if older_than is None else epoch_ms(older_than, self.name, "older_than")
        return Tags(expire_tags(self.metadata, moment, dry_run=dry_run))

    @checked
    def rollback_to(
        self,
        to: int | str | None = None,
        *,
        as_of: datetime | date | str | int | None = None,
        watermark: int | None = None,
        dry_run: bool = False,
    ) -> RollbackResult:
        """Make the table what it was at a snapshot; what came later is gone.

        `to` is the id of a snapshot or the name of a tag, `as_of` a time as in `scan`; `watermark`
        means the newest snapshot with that watermark of a stream, or an earlier one. Later
        snapshots, changelogs and tags are deleted, what others commit meanwhile among them; the
        columns and options stay those of today, and data files stay for orphan cleaning. A write
        that began before and ends later counts as written after the rollback; one that goes by rows
        that are gone is made anew, or is a `ConflictError`. Other engines should not write
        meanwhile: they do not look. The upkeep that follows other changes (compactions, tags,
        expiry) is left to the next write. `dry_run` tells what would be done.

        Readers see older and older snapshots until it is done. After a stop the table is one of
        these, and the same call goes on. Raises `NotFoundError` for an unknown tag, and for a
        snapshot that is not there, naming the oldest; `InvalidError` unless one place is given;
        `ConflictError` while others go on committing; `DataError` when the store fails.
        """
        moment = None if as_of is None else epoch_ms(as_of, self.name)
        return roll_back(self._stored, to, moment, watermark, dry_run=dry_run)

    @checked
    def restore(
        self,
        to: int | str | None = None,
        partition: Mapping[str, Any] | None = None,
        *,
        as_of: datetime | date | str | int | None = None,
        dry_run: bool = False,
    ) -> RestoreResult:
        """Make a partition, or the whole table, what it was at a snapshot, in one more commit.

        `to` is the id of a snapshot or the name of a tag, `as_of` a time as in `scan`; `partition`
        has values for some or all partition columns. No data is written: files of that time are
        live again, those that compactions have moved since as copies (hard links on local disk,
        copied inside an object store). What others committed to these partitions until then is
        replaced, and unlike after `rollback_to` it can still be read in its own snapshot. Columns
        stay those of today. What follows a write follows it too: compactions, tags, expiry.
        A tag `restored-...` guards the older files until the snapshots in between have expired, and
        goes by itself then. `dry_run` tells what would be done.

        Raises `NotFoundError` for a snapshot or tag that is not there, `InvalidError` for what is
        no partition, `UnsupportedError` where options have changed by which the rows are read, and
        for parts of a table whose keys move between partitions; `ConflictError`, with nothing
        committed, when too many races were lost; `DataError` when the store fails.
        """
        moment = None if as_of is None else epoch_ms(as_of, self.name)
        partitions = () if partition is None else (partition,)
        return restore(self._stored, to, partitions, as_of_ms=moment, dry_run=dry_run)

    def branches(self) -> Branches:
        """The branches beside the main one, by name. Raises `DataError` for torn metadata."""
        return Branches(branches_of(self._stored.metadata))

    @checked
    def branch(self, name: str) -> Table:
        """A branch as a table: read, written, altered and compacted apart from the others.

        It is `lake.table("t$branch_name")` too; 'main' is the table itself. Raises `NotFoundError`
        naming the branches there are.
        """
        return Table.of(open_branch(self._stored, name), self._spark, self._catalog)

    @checked
    def create_branch(
        self,
        name: str,
        snapshot_id: int | None = None,
        tag: str | None = None,
        *,
        empty: bool = False,
    ) -> Table:
        """Make a branch of the newest snapshot, of another one or of a tag, or without rows.

        A branch has schemas, snapshots and tags of its own, and shares the files with the table;
        nothing is copied but metadata. A tag comes along with its snapshot. A snapshot of the past
        comes with the columns that it had. Atomic: of several callers one makes it, and it is
        there as a whole or not at all.

        Raises `AlreadyExistsError` for a name that is taken, `InvalidError` for one that cannot
        be, `NotFoundError` for a snapshot or tag that is not there, `ConflictError`, with nothing
        made, when it goes away meanwhile; `DataError` when the store fails.
        """
        made = create_branch(self._stored, name, snapshot_id, tag, empty=empty)
        return Table.of(made, self._spark, self._catalog)

    @checked
    def delete_branch(self, name: str) -> None:
        """Delete a branch. What only it had stays for orphan cleaning.

        Raises `NotFoundError` naming the branches there are, `InvalidError` for one that an option
        of the table names, `DataError` when the store fails; after that it may be half deleted, and
        the same call goes on.
        """
        delete_branch(self._stored, name)

    @checked
    def rename_branch(self, name: str, new_name: str) -> Table:
        """Give a branch another name. No data is copied, and none that is committed is lost.

        Until the new branch is there the old one is as it was. For a moment both are there, and
        what writers commit to the old one then moves along; after a stop in between, the same call
        goes on. Who has the branch open under its old name does not find it any more.

        Raises `NotFoundError` naming the branches there are, `AlreadyExistsError` and
        `InvalidError` for a new name that is taken or cannot be, `InvalidError` for 'main', and
        for a branch that an option of the table names; `ConflictError`, with both branches there,
        when somebody writes to the new name and another one to the old one meanwhile; `DataError`
        when the store fails.
        """
        renamed = rename_branch(self._stored, name, new_name)
        return Table.of(renamed, self._spark, self._catalog)

    @checked
    def fast_forward(self, name: str, *, dry_run: bool = False) -> FastForwardResult:
        """Make this table what a branch of it is: its schemas, snapshots and tags.

        What the table has beyond the snapshot where the two part is gone then, see `rollback_to`;
        where nothing was committed to it since, nothing is lost. The branch stays as it is. Of a
        table that is itself a branch that one goes forward. `dry_run` tells what would be done.

        After a stop the table is in a state that it or the branch had, and the same call goes on.
        Raises `NotFoundError` for an unknown branch, `InvalidError` for one without snapshots or
        the table itself, `UnsupportedError` where columns or options parted before rows did,
        `ConflictError` when other writers come between or the branch begins later than the table
        ends; `DataError` when the store fails.
        """
        return fast_forward(self._stored, name, dry_run=dry_run)


def is_spark_dataframe(data: Any) -> bool:
    """Whether `data` comes from pyspark, classic or Connect; pyspark itself is not loaded."""
    return type(data).__module__.split(".")[0] == "pyspark"
