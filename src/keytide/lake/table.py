"""A table, as users hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from keytide import html
from keytide.arguments import checked
from keytide.dml.attached import AttachedCatalog
from keytide.dml.execution import Changed
from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.kafka.address import KafkaAddress
from keytide.kafka.lag import PartitionLag, lag
from keytide.lake.changes import Changes
from keytide.lake.engines import engine_of
from keytide.lake.foreign_table import ForeignTable
from keytide.lake.members import member, member_giving
from keytide.lake.merge import MergeBuilder
from keytide.lake.picture import picture_of
from keytide.lake.scan import Scan
from keytide.lake.snapshots import Snapshots
from keytide.moments import Moment, epoch_ms
from keytide.store import Store
from keytide.table import local_writes
from keytide.table.alter import alter_table
from keytide.table.changes.change_scan import changes_of
from keytide.table.changes.follow import Pace, follow, start_of
from keytide.table.commit.author import Author
from keytide.table.commit.result import WriteResult
from keytide.table.compaction.compact import CompactionResult
from keytide.table.conditions.condition import Condition
from keytide.table.constraints import add_constraint, drop_constraint
from keytide.table.definition.evolution import SchemaChange
from keytide.table.expiry import snapshot_expiry
from keytide.table.growing import grown_for
from keytide.table.history import automatic_tags
from keytide.table.history import branches as branch_verbs
from keytide.table.history import consumers as consumer_verbs
from keytide.table.history import tags as tag_verbs
from keytide.table.history.branches import Branches, branches_of
from keytide.table.history.consumers import NamedConsumer, consumers_of
from keytide.table.history.log import History, history_of
from keytide.table.history.tags import Tags, tags_of
from keytide.table.publishing.publish import publish
from keytide.table.read.why import Why
from keytide.table.runner import TaskRunner
from keytide.table.scans import get_row, get_rows, scan_table, why_row
from keytide.table.state.branches import open_branch
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.stored import StoredTable
from keytide.table.upkeep import branches as ended_branches
from keytide.table.upkeep import (
    conversion,
    going_back,
    mending,
    old_partitions,
    orphans,
    purging,
)
from keytide.table.upkeep.behind import BEHIND
from keytide.table.upkeep.compacting import compact
from keytide.table.upkeep.doctor import doctor as diagnose
from keytide.table.upkeep.indexing import IndexingResult, index_files
from keytide.table.upkeep.rescale import RescaleResult, rescale
from keytide.table.upkeep.restore import RestoreResult, restore
from keytide.table.verify.finding import Verification
from keytide.table.verify.verify import verify_table
from keytide.table.write.input_rows import source_table, wider_table

if TYPE_CHECKING:
    from typing_extensions import Self

    from keytide.sql.query_engine import Engine

__all__ = ["Table"]


def _beside(table: Table, branch: StoredTable) -> Table:
    """A branch as users hold the table."""
    return Table.of(branch, table._spark, table._catalog)


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
        self._catalog: AttachedCatalog | None = None

    @classmethod
    def of(
        cls, stored: StoredTable, spark: Any = None, catalog: AttachedCatalog | None = None
    ) -> Table:
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

    def close(self) -> None:
        """Compact what the writes of this process have made due of this table, and wait for it.

        That is what is compacted behind them, and what was put off until it is more. A failure
        there is a warning here. The table can be used as before, by others too; the end of the
        process does the same. Nothing is lost where a process dies instead.
        """
        BEHIND.wait(self.uri)

    def __enter__(self) -> Self:
        """The table; the end of the block waits as `close`."""
        return self

    def __exit__(self, *raised: object) -> None:
        """See `close`."""
        self.close()

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
        merge_schema: bool = False,
        commit_user: str | None = None,
        commit_identifier: int | None = None,
    ) -> WriteResult:
        """Append rows as upserts and deletes, in one atomic commit.

        `data` is a pyarrow Table, RecordBatch, reader or Dataset, a Polars or pandas frame, a list
        of dicts, a Spark DataFrame, or anything else that gives an Arrow stream, such as a DuckDB
        relation, an expression of ibis or a scan of another table; all but the rows of Spark are
        held in memory. An optional column `_row_kind` holds '+I', '-U', '+U' or
        '-D'; without it every row is an insert. Several versions of a key are merged; without a
        sequence field the later row wins.

        With `merge_schema` the table first grows to take the rows: columns, and members of a ROW,
        that it lacks are added as the last ones, and types widen to the narrowest that holds all
        values of both (docs/semantics.md#schema-evolution-by-writes). Key and partition columns
        stay as they are, and columns that the rows lack are NULL in them. What cannot be so is
        refused before anything is changed. A write that fails later leaves a table that has grown.

        `commit_user` and `commit_identifier`, given together, make the write idempotent: the
        second write of a pair changes nothing, nor does one whose identifier is below one that the
        user has committed. So identifiers of one user must grow; they have at most 64 bits.

        Raises `InvalidError` or `NotFoundError` for rows that do not fit, before anything is
        written, but for those that a table with 'upsert.row-errors' = 'count' leaves out and counts
        in `errors` of the result; `UnsupportedError` for a table this release must not write to;
        `ConflictError` and `DataError` as commits do, with nothing committed.
        """
        table, author = self._stored, Author.given(commit_user, commit_identifier)
        if merge_schema:
            table, data = _grown(table, data, author)
        if is_spark_dataframe(data):
            from keytide.spark.write import append

            return append(table, data, author)
        return local_writes.append(table, data, author)

    @checked
    def kafka_lag(
        self, source: str, *, consumer_properties: Mapping[str, str] | None = None
    ) -> tuple[PartitionLag, ...]:
        """How far the table is behind topics that `Lake.ingest` feeds it from, by partition.

        `source` is `kafka://host:port/topic`, with commas between several of either. The brokers
        are asked, and no message is read; needs `pip install 'keytide[kafka]'`. Each record has
        `topic`, `partition`, `next_offset` (None where nothing was read), `end_offset`, `lag`, and
        `lost`, the offsets that expired before they were read.

        Raises `NotFoundError` where there is no such topic, `DataError` where no broker answers,
        `InvalidError` for an address or a property that is none, `SetupError` without the library.
        """
        return lag(self._stored, KafkaAddress.parse(source), consumer_properties)

    @checked
    def overwrite(
        self,
        data: Any,
        partition: Mapping[str, Any] | None = None,
        *,
        merge_schema: bool = False,
    ) -> WriteResult:
        """Replace rows by those given, in one atomic commit.

        `data` is what `write` takes. Without a `partition` the whole table is replaced; of a table
        with partitions only those that the rows touch, unless the option
        'dynamic-partition-overwrite' is false. With values for some or all partition columns as
        `partition`, the partitions that have these values are replaced, even by no rows; every row
        must lie there, and may leave these columns out. What other writers committed to the
        replaced partitions until then is replaced too. Partitions are laid out anew with the number
        of buckets that the table has now. `merge_schema` is as in `write`.

        `snapshot_id` of the result is None when there was nothing to replace and nothing to
        write. Raises what `write` raises.
        """
        table = self._stored
        if merge_schema:
            table, data = _grown(table, data, partition=partition)
        if is_spark_dataframe(data):
            from keytide.spark.write import overwrite

            return overwrite(table, data, partition)
        return local_writes.overwrite(table, data, partition)

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
        merge_schema: bool = False,
        isolation: Literal["snapshot", "serializable"] = "snapshot",
    ) -> MergeBuilder:
        """Begin a merge of rows into this table; `execute` of what is returned carries it out.

        `source` is what `write` takes, another table, one whose rows others keep too, or the SQL
        text of a query; its columns may have any names. `on` is the condition that says which rows
        belong together, such as `"target.id = source.id"`. What is to become of them say the calls
        that follow:

            t.merge(rows, "target.id = source.id")
                .when_matched_delete("source.gone")
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute()

        With `merge_schema` the table grows to take the columns of the source, as in `write`, where
        the merge is executed. `when_matched_update_all` and `when_not_matched_insert_all`, of which
        one has to be there, then mean the columns of the source: others stay as they are, and are
        NULL in new rows.

        Raises `InvalidError` for a source that is none of these, or has columns that SQL does not
        know.
        """
        from keytide.sql.forms import (
            Around,
            WhenForm,
            grown_to_merge,
            merge_source,
            source_of_rows,
        )

        engine = self._engine(source)
        given = source
        if not isinstance(source, str):
            schema_of = engine.schema if is_spark_dataframe(source) else None
            rows = source.stored if isinstance(source, Table | ForeignTable) else source
            read = wider_table if merge_schema else source_table
            given = source_of_rows(rows, Around.of(self._stored, self._catalog), schema_of, read)

        def carry_out(whens: Sequence[WhenForm]) -> Changed:
            if merge_schema:
                whens = grown_to_merge(self._stored, given, whens)
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
        return local_writes.truncate(self._stored, _places(partition))

    convert = member(conversion.convert)
    purge_files = member(purging.purge_files)
    mend_snapshots = member(mending.mend_snapshots)

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
        return compact(
            self._stored, full=full, order_by=order_by, order_strategy=order_strategy,
            partitions=_places(partition), dry_run=dry_run, runner=self._runner,
        )  # fmt: skip

    expire_snapshots = member(snapshot_expiry.expire_snapshots)
    expire_changelogs = member(snapshot_expiry.expire_changelogs)

    def consumers(self) -> list[NamedConsumer]:
        """The named readers, whose places keep snapshots from expiring. Raises `DataError`."""
        return consumers_of(self.metadata)

    reset_consumer = member(consumer_verbs.reset_consumer)
    clear_consumers = member(consumer_verbs.clear_consumers)
    expire_consumers = member(consumer_verbs.expire_consumers)
    expire_partitions = member(old_partitions.expire_partitions)
    remove_orphan_files = member(orphans.remove_orphan_files)

    @checked
    def rescale(
        self, partition: Mapping[str, Any] | None = None, *, dry_run: bool = False
    ) -> RescaleResult:
        """Lay partitions out with the number of buckets that the table has now, in one commit.

        For after a change of the option 'bucket': partitions written before stay readable as they
        are, and are not written to until they are laid out anew. Of all partitions, or of those
        with the values of `partition`, the ones that have another number are moved: every stored
        version with its place in the order, or what an index of keys names, so that deletes and
        late rows mean what they did.
        Other writers must wait. `dry_run` tells what would be done.

        Raises `ConflictError`, with nothing changed, when another writer came to one of the
        partitions meanwhile; `InvalidError` for columns that are no partition columns;
        `UnsupportedError` for a table without a primary key or a fixed number of buckets, for one
        whose compacted values contain others, and for one with 'upsert.deleted-keys-ttl';
        `DataError` when the store fails.
        """
        return rescale(self._stored, _places(partition), dry_run=dry_run, runner=self._runner)

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
        return index_files(self._stored, _places(partition), runner=self._runner)

    @property
    def _runner(self) -> TaskRunner | None:
        if self._spark is None:
            return None
        from keytide.spark.sized_runner import SizedRunner

        return SizedRunner(self._spark)

    @checked
    def alter(self, *changes: SchemaChange) -> TableSchema:
        """Change columns, options or comments, all in one step, and return the new definition.

        Changes are values of `keytide.table.definition.evolution`, made one after the other. No
        data file is touched: older ones are read under the new schema, and older snapshots are
        read as they were. Of several callers at once each one's changes are made on top of the
        others'.

        Raises, with nothing changed, `InvalidError`, `NotFoundError` or `AlreadyExistsError` for
        what may not be done, saying what may; `UnsupportedError` for what this release cannot
        keep its promises for; `ConflictError` when a change that came first rules these out, and
        while a conversion is under way or was cut short; `DataError` when the store fails.
        """
        return alter_table(self.metadata, changes)

    @checked
    def add_constraint(self, name: str, condition: str) -> None:
        """Have writes refuse rows for which a condition is false, as CHECK in SQL does.

        `condition` is a text in the grammar of `scan`, or SQL over the columns of one row, such as
        "ends > starts". Where it is NULL a row passes. Rows that are there are looked at first; a
        writer that is under way meanwhile may still know nothing of it. See
        docs/semantics.md#check-constraints.

        Raises `InvalidError` for a condition that does not parse or fit, is not BOOLEAN or does not
        follow from the row alone, and for rows that break it, naming how many and the first;
        `NotFoundError` for an unknown column, `AlreadyExistsError` where the name is taken, and as
        `alter`; nothing is changed then.
        """
        add_constraint(self._stored, name, condition)

    @checked
    def drop_constraint(self, name: str, *, missing_ok: bool = False) -> None:
        """Take a constraint away. Raises `NotFoundError` unless `missing_ok`, and as `alter`."""
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
    ) -> Scan:
        """A lazy read of one snapshot, the newest by default.

        `where` is a condition over columns and literals: a text in a small grammar of its own
        (docs/semantics.md, Reading), the tree of `keytide.table.conditions.predicate` that such
        a text stands for, or an expression of Polars or Arrow. Rows are filtered after the merge,
        files are pruned before it. One of `snapshot_id`, `tag` and `as_of` travels back in time;
        `as_of` is a datetime, an ISO text (UTC unless it says otherwise) or epoch milliseconds.
        A snapshot is read with the schema that it had. With a `limit` no more than so many rows
        are given, whichever are read first, and no further files are read.

        Of a table with 'upsert.mode', `skip_upsert` shows every row that is stored, those that
        later ones replaced, that came late or that delete their key too, as far as no compaction
        has left them out; `skip_upsert_delete` shows the row by which each key is judged: the
        current one, or the one that deletes it. The latter holds the places of all keys in memory.

        Raises `NotFoundError` for an unknown column, snapshot or tag, `InvalidError` for a
        condition that does not parse or fit and for rows that the table does not tell apart, and
        when it is read `DataError` where `skip_upsert_delete` finds no index of the rows.
        """
        return Scan.of(
            scan_table(
                self._stored, columns, where, snapshot_id, tag, as_of, skip_upsert,
                skip_upsert_delete, limit,
            )
        )  # fmt: skip

    @checked
    def get(self, key: Mapping[str, Any] | Any) -> dict[str, Any] | None:
        """The row of one key, or None.

        `key` is the value of a single-column key, a tuple in primary key order, or a dict by
        column. Reads only what can hold the key: its bucket, or every dynamic one, their files by
        key range, and of them the row groups around the key; with 'upsert.mode' the row that the
        index of keys names.

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
        as_of: Moment | None = None,
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
        as_of: Moment | None = None,
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

    doctor = member(diagnose)
    publish = member(publish)

    def plot(self) -> Any:
        """A picture: levels and buckets, files over time, and what writing cost in bytes.

        A matplotlib figure, which a notebook shows and `savefig` stores. Raises `SetupError`
        without the `plot` extra, `DataError` for torn metadata.
        """
        return picture_of(self._stored)

    def snapshots(self) -> Snapshots:
        """The snapshots that are there, oldest first. Raises `DataError` for a torn one."""
        return Snapshots(self.metadata.snapshots())

    @checked
    def history(self, limit: int | None = None) -> History:
        """What was done to the table: its commits, the newest first, as many as `limit` at most.

        When, who and what (write, delete, update, merge, overwrite, compaction, restore ...), with
        the rows and bytes that each wrote; see `HistoryEntry`. Reads metadata alone: of each commit
        its own manifests. A notebook shows a table, `print` lines. Raises `InvalidError` for a
        negative limit, `DataError` for torn metadata.
        """
        if limit is not None and limit < 0:
            raise InvalidError(f"Table.history: limit is {limit}; expected 0 or more, or None")
        return history_of(self.metadata, limit)

    # -- history --------------------------------------------------------------------------------

    def tags(self) -> Tags:
        """The tags, by the ids of their snapshots. Raises `DataError` for a torn one."""
        return tags_of(self.metadata)

    create_tag = member(tag_verbs.create_tag)
    replace_tag = member(tag_verbs.replace_tag)
    rename_tag = member(tag_verbs.rename_tag)
    delete_tag = member(tag_verbs.delete_tag)
    expire_tags = member(automatic_tags.expire_tags)
    rollback_to = member(going_back.rollback_to)

    @checked
    def restore(
        self,
        to: int | str | None = None,
        partition: Mapping[str, Any] | None = None,
        *,
        as_of: Moment | None = None,
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
        no partition, `UnsupportedError` where options have changed by which the rows are read,
        where the table was converted since, and for parts of a table whose keys move between
        partitions; `ConflictError`, with nothing
        committed, when too many races were lost; `DataError` when the store fails.
        """
        return restore(self._stored, to, _places(partition), as_of=as_of, dry_run=dry_run)

    def branches(self) -> Branches:
        """The branches beside the main one, by name. Raises `DataError` for torn metadata."""
        return branches_of(self.metadata)

    @checked
    def branch(self, name: str) -> Table:
        """A branch as a table: read, written, altered and compacted apart from the others.

        It is `lake.table("t$branch_name")` too; 'main' is the table itself. Raises `NotFoundError`
        naming the branches there are.
        """
        return _beside(self, open_branch(self._stored, name))

    create_branch = member_giving(branch_verbs.create_branch, _beside)
    delete_branch = member(ended_branches.delete_branch)
    rename_branch = member_giving(ended_branches.rename_branch, _beside)
    fast_forward = member(going_back.fast_forward)


def _places(partition: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    """The partitions that are meant; none for every one."""
    return () if partition is None else (partition,)


def _grown(
    table: StoredTable,
    data: Any,
    author: Author | None = None,
    partition: Mapping[str, Any] | None = None,
) -> tuple[StoredTable, Any]:
    """A table that takes the columns of some rows, and the rows as it takes them."""
    if is_spark_dataframe(data):
        from keytide.spark.growing import grown_for as grown_on_spark

        return grown_on_spark(table, data, author, partition)
    return grown_for(table, data, author, partition)


def is_spark_dataframe(data: Any) -> bool:
    """Whether `data` comes from pyspark, classic or Connect; pyspark itself is not loaded."""
    return type(data).__module__.split(".")[0] == "pyspark"
