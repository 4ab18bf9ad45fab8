"""Application of a batch of decoded changes to a table.

- A `ChangeWriter` can be pickled. Executors use it for the rows of their buckets. It looks up the
  latest stored version of each key, counts the effects of the changes, fills in values that the
  source omitted, and writes the rows.
- The effect of a batch is computed by pure functions over Polars frames: `changes` are decoded rows
  of a batch, and `stored` is the latest version of each of their keys in the table (including
  deletes). The table itself does not need this, because its merge handles late and repeated
  changes. It is for people who monitor a feed.
- Decoded changes are adapted to a table: keys get their stored form, and messages that cannot be
  merged are rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import cached_property, scratch
from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.commit.transaction import Transaction
from keytide.errors import UnsupportedError
from keytide.feeds.feed import (
    MESSAGE_COLUMN,
    ORDINAL_COLUMN,
    REJECTED_SCHEMA,
    UNAVAILABLE_COLUMN,
    Decoded,
    FeedSpec,
    check_places,
)
from keytide.feeds.omitted_values import OMITTED, ROW, fill_omitted
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.data_file import VALUE_KIND
from keytide.merge.functions.registry import DEFAULT_FUNCTION, function_names
from keytide.merge.order import RANK, STORED_RANK, MergeOrder, is_late, order_of, with_ranks
from keytide.read.current_rows import hashes_of
from keytide.read.lookup import newest_versions
from keytide.read.scan import ReadTask, Scan
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableView
from keytide.write.input_rows import typed_rows
from keytide.write.layout import Layout
from keytide.write.refusals import why_refused
from keytide.write.task import TaskResult, WriteTask
from keytide.write.upsert import UpsertTask

# -- the effect of a batch on a table --------------------------------------------------------------


_SOURCE, _ROW, _AT, _UNKNOWN, _ARRIVED = map(scratch, ("source", "row", "at", "unknown", "arrived"))


@dataclass(frozen=True)
class ChangeCounts:
    """The effect of the messages of a batch.

    `applied` messages were the latest of their key when they arrived. `late` messages were older
    than earlier arrivals, and change nothing. `duplicate` messages had arrived before.
    """

    applied: int = 0
    late: int = 0
    duplicate: int = 0

    def __add__(self, other: ChangeCounts) -> ChangeCounts:
        return ChangeCounts(
            self.applied + other.applied, self.late + other.late, self.duplicate + other.duplicate
        )


@dataclass(frozen=True)
class FilledChanges:
    """Changes with omitted values filled in, and changes whose omitted values are unknown."""

    changes: pl.DataFrame
    unknown: pl.DataFrame


def count_changes(
    changes: pl.DataFrame, stored: pl.DataFrame, orders: Sequence[MergeOrder]
) -> ChangeCounts:
    """Count the messages of a batch. Without ordering columns, every message is applied.

    `changes` are in arrival order. A message with several rows counts once, with the best outcome
    of its rows. Several `orders` belong to different producers: a row has a place in the order of
    its producer, and is only compared within it.
    """
    if not orders[0].sequence:
        return ChangeCounts(applied=changes[ORDINAL_COLUMN].n_unique())
    found = []
    for order, of_it in _by_producer(changes, stored, orders):
        is_first = pl.struct(*order.key, RANK).is_first_distinct()
        # The source gives each change its place in the order, so equal places mean the same change.
        seen = (pl.col(RANK) == pl.col(STORED_RANK)) | ~is_first
        verdict = pl.when(seen).then(2).when(is_late(order)).then(1).otherwise(0)
        found.append(with_ranks(*of_it, order).select(ORDINAL_COLUMN, verdict.alias("verdict")))
    verdicts = pl.concat(found).group_by(ORDINAL_COLUMN).agg(pl.col("verdict").min())["verdict"]
    applied, late, duplicate = (int((verdicts == value).sum()) for value in range(3))
    return ChangeCounts(applied, late, duplicate)


def _by_producer(
    changes: pl.DataFrame, stored: pl.DataFrame, orders: Sequence[MergeOrder]
) -> Iterator[tuple[MergeOrder, tuple[pl.DataFrame, pl.DataFrame]]]:
    """Each order with the rows that have a place in it. If there is only one order, all rows do."""
    if len(orders) == 1:
        yield orders[0], (changes, stored)
        return
    for order in orders:
        is_its_own = pl.any_horizontal(pl.col(order.sequence).is_not_null())
        yield order, (changes.filter(is_its_own), stored.filter(is_its_own))


def fill_unavailable(
    changes: pl.DataFrame,
    stored: pl.DataFrame,
    orders: Sequence[MergeOrder],
    columns: Sequence[str],
) -> FilledChanges:
    """Fill omitted values of some columns from the previous version, in merge order.

    `stored` must have the `columns` too. A change is `unknown` if no earlier version is known and
    it would be the latest of its key. A change that loses anyway needs no value. Rows of different
    producers, each with its own order, are processed in order of arrival, and a late row is not
    used to fill later rows.
    """
    left_out = {*changes[UNAVAILABLE_COLUMN].explode().to_list()}
    names = [name for name in columns if name in left_out]
    if not names:
        return FilledChanges(changes, changes.clear())
    if len(orders) > 1:
        numbered = changes.with_row_index(_ARRIVED)
        late = pl.concat(
            with_ranks(*of_it, order).filter(is_late(order))[_ARRIVED]
            for order, of_it in _by_producer(numbered, stored, orders)
        )
        is_on_time = ~pl.col(_ARRIVED).is_in(late.implode())
        filled = _filled(numbered.filter(is_on_time), stored, MergeOrder(key=orders[0].key), names)
        known = pl.concat([filled.changes, numbered.filter(~is_on_time)]).sort(_ARRIVED)
        return FilledChanges(known.drop(_ARRIVED), filled.unknown.drop(_ARRIVED))
    return _filled(changes, stored, orders[0], names)


def _filled(
    changes: pl.DataFrame, stored: pl.DataFrame, order: MergeOrder, names: Sequence[str]
) -> FilledChanges:
    # Stored versions and changes in merge order. Of equal ones, stored versions come first.
    numbered = changes.with_row_index(_ROW).with_columns(pl.col(_ROW).cast(pl.Int64))
    before = stored.with_columns(pl.lit(-1, dtype=pl.Int64).alias(_ROW))
    versions = pl.concat([before, numbered], how="diagonal_relaxed")
    history = order.sort(versions, arrival_decides=True)

    is_unknown = pl.lit(value=False)
    for name in names:
        left_out = pl.col(UNAVAILABLE_COLUMN).list.contains(name).fill_null(value=False)
        source = pl.when(~left_out).then(pl.col(_AT)).forward_fill().over(list(order.key))
        history = history.with_row_index(_AT).with_columns(source.alias(_SOURCE))
        values = history[name].gather(history[_SOURCE].fill_null(0))
        # A delete has no values for a later row.
        dead = history["_row_kind"].is_in(["-D", "-U"]).fill_null(value=False)
        unknown = history[_SOURCE].is_null() | dead.gather(history[_SOURCE].fill_null(0))
        flags = history.select(left_out.alias("flag"))["flag"]
        history = history.with_columns(
            pl.when(flags & ~unknown).then(values).otherwise(pl.col(name)).alias(name)
        ).drop(_SOURCE, _AT)
        is_unknown |= pl.lit(flags & unknown)

    history = history.with_columns((is_unknown & order.last_of_key()).alias(_UNKNOWN))
    result = history.filter(pl.col(_ROW) >= 0).sort(_ROW)
    known, lost = result.filter(~pl.col(_UNKNOWN)), result.filter(pl.col(_UNKNOWN))
    return FilledChanges(known.select(changes.columns), lost.select(changes.columns))


# -- lookup of stored versions ---------------------------------------------------------------------


@dataclass(frozen=True)
class MergedVersions:
    """Looks up keys of a bucket by a merge of their stored versions. Can be pickled."""

    tasks: Mapping[BucketId, ReadTask]

    def of(
        self, bucket: BucketId, keys: pl.DataFrame, columns: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        """The latest version of each key that was ever written, including deletes.

        `keys` has the primary key without duplicates. The frames have `columns` and `_VALUE_KIND`.
        """
        task = self.tasks.get(bucket)
        if task is not None:
            yield from newest_versions(task, keys, columns)


@dataclass(frozen=True)
class IndexedVersions:
    """Does the same with the index of the keys of a bucket, which has the places of their rows."""

    task: UpsertTask

    def of(
        self, bucket: BucketId, keys: pl.DataFrame, columns: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        """See `MergedVersions`."""
        view, on = self.task.view, self.task.bucket(bucket)
        found = on.index.find(hashes_of(keys, view))
        names = dict.fromkeys((*columns, *keys.columns))
        current = on.current(view, bucket[0], found, names)
        kinds = pl.Series(VALUE_KIND, current.lives).replace_strict(
            {True: int(RowKind.INSERT), False: int(RowKind.DELETE)}, return_dtype=pl.Int8
        )
        rows = current.rows.with_columns(kinds)
        yield rows.join(keys, on=keys.columns, how="semi").select(*columns, VALUE_KIND)


# -- the writer of a batch -------------------------------------------------------------------------


@dataclass(frozen=True)
class WrittenChanges:
    """The result for some changes: files to commit, counts, and changes with unknown values.

    `unknown` has the columns of `REJECTED_SCHEMA`.
    """

    written: TaskResult
    counts: ChangeCounts
    unknown: pa.Table


@dataclass(frozen=True)
class ChangeWriter:
    """Writes decoded changes into one table.

    `newest` looks up the stored versions of their keys.
    """

    task: WriteTask
    spec: FeedSpec
    newest: MergedVersions | IndexedVersions

    @classmethod
    def on(
        cls, transaction: Transaction, spec: FeedSpec, layout: Layout | None = None
    ) -> ChangeWriter:
        """A writer for changes on top of the state where a transaction began.

        `layout` is for parallel tasks, which place new keys in separate buckets. Raises
        `UnsupportedError` for a table whose keys move between partitions.
        """
        view = transaction.view
        if view.moves_keys:
            raise UnsupportedError(
                f"table {view.name}: its primary key does not contain the partition columns, and "
                "changes of a feed are looked up only in their own partition; write the rows with "
                "table.write"
            )
        task = replace(transaction.task(), stored=None)
        task = task if layout is None else replace(task, layout=layout)
        if isinstance(task, UpsertTask):
            return cls(task, spec, IndexedVersions(task))
        scan = Scan(transaction.state.merging, view.order.columns)
        plans = zip(scan.plan.buckets, scan.tasks(), strict=True)
        reads = {(plan.partition, plan.bucket): read for plan, read in plans}
        return cls(task, spec, MergedVersions(reads))

    def write(self, rows: pa.Table) -> WrittenChanges:
        """Write rows from `decode`, in arrival order.

        REQUIRES: one call gets all rows of a bucket. Files are durable on return, and are not part
        of the table until their entries are committed. After an error no files are left.
        """
        view = self.task.view
        counts = ChangeCounts()
        filled, unknown = [], [REJECTED_SCHEMA.empty_table()]
        # Keys without a bucket may be placed differently when they are written, because nothing is
        # stored for them that would have to be found.
        frame, cut = self.task.layout.begin().cut(from_arrow(rows), rows, view)
        for bucket, changes in cut.parts(frame):
            if OMITTED in view.schema.by_name:
                type_ = view.schema.field(OMITTED).type.to_arrow()
                missing = pa.table({OMITTED: pa.nulls(changes.height, type_)})
                changes = pl.concat([changes, from_arrow(missing)], how="horizontal")
                stored = self._stored_versions(bucket, changes)
                counts += count_changes(changes, stored, self._orders)
                filled.append(self._with_omitted_values(changes, stored))
                continue
            stored = self._stored_versions(bucket, changes)
            result = fill_unavailable(changes, stored, self._orders, self._columns_to_fill)
            counts += count_changes(changes, stored, self._orders)
            filled.append(to_arrow(result.changes, self._stored_schema))
            if result.unknown.height:
                refused = result.unknown.select(
                    pl.col(MESSAGE_COLUMN).alias("raw"),
                    _WITHOUT_EARLIER_VERSION.alias("reason"),
                    pl.col(ORDINAL_COLUMN).alias("ordinal"),
                )
                unknown.append(to_arrow(refused, REJECTED_SCHEMA))
        # One run per bucket, because all versions of a key are merged before they are stored.
        together = [pa.concat_tables(filled)] if filled else []
        return WrittenChanges(self.task.feed(together, 0), counts, pa.concat_tables(unknown))

    def _with_omitted_values(self, changes: pl.DataFrame, stored: pl.DataFrame) -> pa.Table:
        """Changes with their omitted values, and the stored rows that change by them."""
        schema = self.task.view.schema
        is_dead = pl.col(ROW_KIND).is_in(["-D", "-U"])
        kinds = pl.when(is_dead).then(int(RowKind.DELETE)).otherwise(int(RowKind.INSERT))
        kind = kinds.cast(pl.Int8).alias(VALUE_KIND)
        of_stored = stored.with_columns(pl.lit(-1, dtype=pl.Int64).alias(ROW), kind)
        of_changes = changes.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(ROW), kind)
        versions = pl.concat([of_stored, of_changes], how="diagonal")
        found = fill_omitted(versions, self._order, schema.names)
        omitted = pa.field(OMITTED, schema.field(OMITTED).type.to_arrow())
        kept = pa.schema([*self._stored_schema, omitted])
        return to_arrow(found.select(kept.names), kept)

    @property
    def _stored_schema(self) -> pa.Schema:
        """The columns of changes that exist in the table."""
        passing = (ORDINAL_COLUMN, UNAVAILABLE_COLUMN, MESSAGE_COLUMN)
        return pa.schema([each for each in self.spec.rows_schema if each.name not in passing])

    def _stored_versions(self, bucket: BucketId, changes: pl.DataFrame) -> pl.DataFrame:
        """The latest stored version of each key of the changes, including deletes."""
        order, view = self._order, self.task.view
        columns: Sequence[str] = order.columns
        if OMITTED in view.schema.by_name or changes[UNAVAILABLE_COLUMN].list.len().max():
            columns = view.schema.names
        asked = changes.select(order.key).unique()
        empty = changes.select(columns).clear().with_columns(pl.lit("").alias(ROW_KIND))
        is_dead = pl.col(VALUE_KIND).is_in([1, 3])
        kind = pl.when(is_dead).then(pl.lit("-D")).otherwise(pl.lit("+I")).alias(ROW_KIND)
        found = self.newest.of(bucket, asked, columns)
        return pl.concat([empty, *(frame.select(*columns, kind) for frame in found)])

    @cached_property
    def _columns_to_fill(self) -> list[str]:
        """The columns whose omitted values are those of the previous version.

        If a function aggregates the column, an omitted value is NULL, which leaves the column
        unchanged. Filling it in would count the previous value twice in a sum. But a function that
        treats NULL as a value needs the previous value, and a NOT NULL column gets it if repeating
        it has no effect.
        """
        schema, options = self.task.view.schema, self.task.view.options
        fixed = {*schema.primary_keys, *options.sequence_field}
        folded = [field for field in schema.fields if field.name not in fixed]
        default = DEFAULT_FUNCTION if options.merges_rows else None
        functions = function_names([field.name for field in folded], options, default)
        left = {
            field.name
            for field in folded
            if functions.get(field.name, "last_value") != "last_value"
            and (field.type.nullable or functions[field.name] not in _SAME_AGAIN)
        }
        if len(self._orders) > 1:  # the sequence fields identify the producer of a row
            left |= {*self._order.sequence}
        return [name for name in schema.names if name not in left]

    @cached_property
    def _order(self) -> MergeOrder:
        """The order of changes with the same key, even if the table does not merge."""
        view = self.task.view
        key = view.order.key or view.schema.primary_keys
        return order_of(key, view.schema.fields, view.options)

    @cached_property
    def _orders(self) -> tuple[MergeOrder, ...]:
        """The orders of several producers, or the single order."""
        view = self.task.view
        if not (view.kind.has_key_index and view.comparison.has_producers):
            return (self._order,)
        return tuple(replace(self._order, sequence=(n,)) for n in self._order.sequence)


_SAME_AGAIN = ("last_non_null_value", "first_non_null_value", "max", "min")
"""Functions for which repeating a value has no effect."""

_WITHOUT_EARLIER_VERSION = pl.concat_str(
    pl.lit("the source omitted "),
    pl.col(UNAVAILABLE_COLUMN).list.join(", "),
    pl.lit(" and there is no earlier version of the key to take it from"),
)


# -- decoded changes in the form of a table --------------------------------------------------------


def adapt_to_table(
    decoded: Decoded, messages: pa.Array | pa.ChunkedArray, view: TableView
) -> Decoded:
    """The batch with its keys in stored form, without messages that the engine could not merge.

    Rows are assigned to buckets, and find their stored versions, by the bytes of their keys, so
    different forms of the same CHAR must be unified first. A message is rejected as a whole.
    `messages` are those that were decoded. Raises `DataError` for changes without a place, as
    `check_places` does.
    """
    check_places(decoded)
    columns = [n for n in decoded.rows.column_names if n in (*view.schema.names, ROW_KIND)]
    given_rows = decoded.rows.select(columns)
    if OMITTED in view.schema.by_name:  # the decoder does not know it
        type_ = view.schema.field(OMITTED).type.to_arrow()
        given_rows = given_rows.append_column(OMITTED, pa.nulls(given_rows.num_rows, type_))
    given = typed_rows(given_rows, view.schema, view.options, view.name)
    rows = decoded.rows
    for name in view.schema.primary_keys:
        rows = rows.set_column(rows.column_names.index(name), name, given.table[name])
    why = why_refused(given.frame, view, given.refusals)
    if why.null_count() == len(why):
        return decoded._replace(rows=rows)
    ordinals = pl.Series("ordinal", values=rows[ORDINAL_COLUMN])
    refused = pl.DataFrame([ordinals, why.alias("reason")]).drop_nulls("reason")
    refused = refused.unique("ordinal", keep="first", maintain_order=True)
    places = refused["ordinal"].to_arrow()
    rejected = pa.table(
        [messages.cast(pa.binary()).take(places), refused["reason"].to_arrow(), places],
        names=REJECTED_SCHEMA.names,
    ).cast(REJECTED_SCHEMA)
    accepted = ~ordinals.is_in(refused["ordinal"].implode())
    return decoded._replace(
        rows=rows.filter(accepted.to_arrow()),
        rejected=pa.concat_tables([decoded.rejected, rejected]),
    )
