"""One batch of decoded changes on its way into a table.

A `ChangeWriter` can be pickled. Executors use it for the rows of their buckets. It looks up the
latest stored version of each key, counts the effects of the changes, fills in values that the
source omitted, and writes the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from keytide.base.lazily import cached_property
from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.commit.transaction import Transaction
from keytide.errors import UnsupportedError
from keytide.feeds.apply import ChangeCounts, count_changes, fill_unavailable
from keytide.feeds.feed import (
    MESSAGE_COLUMN,
    ORDINAL_COLUMN,
    REJECTED_SCHEMA,
    UNAVAILABLE_COLUMN,
    FeedSpec,
)
from keytide.feeds.newest import NewestVersions, newest_of
from keytide.feeds.omitted import OMITTED, ROW, settled
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.data_file import VALUE_KIND
from keytide.merge.functions.registry import DEFAULT_FUNCTION, function_names
from keytide.merge.order import MergeOrder, order_of
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.view import TableView
from keytide.write.layout import Layout
from keytide.write.task import WriteTask, Written

__all__ = ["ChangeWriter", "WrittenChanges"]


@dataclass(frozen=True)
class WrittenChanges:
    """The result for some changes: files to commit, counts, and changes with unknown values.

    `unknown` has the columns of `REJECTED_SCHEMA`.
    """

    written: Written
    counts: ChangeCounts
    unknown: pa.Table


@dataclass(frozen=True)
class ChangeWriter:
    """Writes decoded changes into one table.

    `newest` looks up the stored versions of their keys.
    """

    task: WriteTask
    spec: FeedSpec
    newest: NewestVersions

    @classmethod
    def on(
        cls, transaction: Transaction, spec: FeedSpec, layout: Layout | None = None
    ) -> ChangeWriter:
        """A writer for changes on top of the state where a transaction began.

        `layout` is for parallel tasks, which place new keys in separate buckets. Raises
        `UnsupportedError` for a table whose keys move between partitions.
        """
        _refuse_unordered(transaction.view)
        task = replace(transaction.task(), stored=None)
        task = task if layout is None else replace(task, layout=layout)
        return cls(task, spec, newest_of(transaction.state, task))

    def write(self, rows: pa.Table) -> WrittenChanges:
        """Write rows from `decode`, in arrival order.

        REQUIRES: one call gets all rows of a bucket. Files are durable on return, and are not part
        of the table until their entries are committed. After an error no files are left.
        """
        view = self.task.view
        counts = ChangeCounts()
        filled, unknown = [], [REJECTED_SCHEMA.empty_table()]
        frame = from_arrow(rows)
        # Keys without a bucket may be placed differently when they are written, because nothing is
        # stored for them that would have to be found.
        frame, cut = self.task.layout.begin().cut(frame, rows, view)
        for bucket, changes in cut.parts(frame):
            changes = self._with_omitted(changes)
            stored = self._stored_versions(bucket, changes)
            if OMITTED in view.schema.by_name:
                counts += count_changes(changes, stored, self._orders)
                filled.append(self._settled(changes, stored))
                continue
            result = fill_unavailable(changes, stored, self._orders, self._columns_to_fill)
            counts += count_changes(changes, stored, self._orders)
            filled.append(to_arrow(result.changes, self._stored_schema))
            if result.unknown.height:
                unknown.append(_unknown_changes(result.unknown))
        # One run per bucket, because all versions of a key are merged before they are stored.
        together = [pa.concat_tables(filled)] if filled else []
        return WrittenChanges(self.task.feed(together, 0), counts, pa.concat_tables(unknown))

    def _with_omitted(self, changes: pl.DataFrame) -> pl.DataFrame:
        """Changes with the column `OMITTED`, if the table has it."""
        schema = self.task.view.schema
        if OMITTED not in schema.by_name:
            return changes
        type_ = schema.field(OMITTED).type.to_arrow()
        missing = pa.table({OMITTED: pa.nulls(changes.height, type_)})
        return pl.concat([changes, from_arrow(missing)], how="horizontal")

    def _settled(self, changes: pl.DataFrame, stored: pl.DataFrame) -> pa.Table:
        """Changes with their omitted values, and the stored rows that change by them."""
        schema = self.task.view.schema
        of_stored = stored.with_columns(
            pl.lit(-1, dtype=pl.Int64).alias(ROW), _value_kind().alias(VALUE_KIND)
        )
        of_changes = changes.with_columns(
            pl.int_range(pl.len(), dtype=pl.Int64).alias(ROW), _value_kind().alias(VALUE_KIND)
        )
        versions = pl.concat([of_stored, of_changes], how="diagonal")
        found = settled(versions, self._order, schema.names)
        names = [*self._stored_schema.names, OMITTED]
        omitted = pa.field(OMITTED, schema.field(OMITTED).type.to_arrow())
        kept = pa.schema([*self._stored_schema, omitted])
        return to_arrow(found.select(names), kept)

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
        found = self.newest.of(bucket, asked, columns)
        return pl.concat([empty, *(frame.select(*columns, _row_kind()) for frame in found)])

    @cached_property
    def _columns_to_fill(self) -> list[str]:
        columns = _columns_to_fill(self.task.view)
        if len(self._orders) == 1:
            return columns
        # The sequence fields identify the producer of a row.
        return [name for name in columns if name not in self._order.sequence]

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


def _refuse_unordered(view: TableView) -> None:
    if view.moves_keys:
        raise UnsupportedError(
            f"table {view.name}: its primary key does not contain the partition columns, and "
            "changes of a feed are looked up only in their own partition; write the rows with "
            "table.write"
        )


def _columns_to_fill(view: TableView) -> list[str]:
    """The columns whose omitted values are those of the previous version.

    If a function aggregates the column, an omitted value is NULL, which leaves the column
    unchanged. Filling it in would count the previous value twice in a sum. But a function that
    treats NULL as a value needs the previous value, and a NOT NULL column gets it if repeating it
    has no effect.
    """
    schema, options = view.schema, view.options
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
    return [name for name in schema.names if name not in left]


_SAME_AGAIN = ("last_non_null_value", "first_non_null_value", "max", "min")
"""Functions for which repeating a value has no effect."""


def _value_kind() -> pl.Expr:
    is_dead = pl.col(ROW_KIND).is_in(["-D", "-U"])
    kinds = pl.when(is_dead).then(int(RowKind.DELETE)).otherwise(int(RowKind.INSERT))
    return kinds.cast(pl.Int8)


def _row_kind() -> pl.Expr:
    is_dead = pl.col(VALUE_KIND).is_in([1, 3])
    return pl.when(is_dead).then(pl.lit("-D")).otherwise(pl.lit("+I")).alias(ROW_KIND)


def _unknown_changes(changes: pl.DataFrame) -> pa.Table:
    reason = pl.concat_str(
        pl.lit("the source omitted "),
        pl.col(UNAVAILABLE_COLUMN).list.join(", "),
        pl.lit(" and there is no earlier version of the key to take it from"),
    )
    frame = changes.select(
        pl.col(MESSAGE_COLUMN).alias("raw"),
        reason.alias("reason"),
        pl.col(ORDINAL_COLUMN).alias("ordinal"),
    )
    return to_arrow(frame, REJECTED_SCHEMA)
