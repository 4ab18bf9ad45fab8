"""One batch of decoded changes on its way into a table.

A `ChangeWriter` is a picklable value: executors use it on the rows of the buckets that came to
them. It looks the newest stored version of each key up, counts what the changes do, fills in
values that the source left out, and writes the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import polars as pl
import pyarrow as pa

from keytide.cdc.apply import ChangeCounts, count_changes, fill_unavailable
from keytide.cdc.feed import (
    MESSAGE_COLUMN,
    ORDINAL_COLUMN,
    REJECTED_SCHEMA,
    UNAVAILABLE_COLUMN,
    FeedSpec,
)
from keytide.cdc.newest import NewestVersions, newest_of
from keytide.errors import UnsupportedError
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.data_file import VALUE_KIND
from keytide.merge.order import MergeOrder, order_of
from keytide.options import keys
from keytide.row_kind import ROW_KIND
from keytide.table.commit.transaction import Transaction
from keytide.table.state.live_files import BucketId
from keytide.table.state.view import TableView
from keytide.table.write.layout import Layout
from keytide.table.write.task import WriteTask, Written

__all__ = ["ChangeWriter", "WrittenChanges"]


@dataclass(frozen=True)
class WrittenChanges:
    """What became of some changes: files to commit, counts, and changes that nobody can fill.

    `unknown` has the columns of `REJECTED_SCHEMA`.
    """

    written: Written
    counts: ChangeCounts
    unknown: pa.Table


@dataclass(frozen=True)
class ChangeWriter:
    """Writes decoded changes into one table; `newest` looks up what is there of their keys."""

    task: WriteTask
    spec: FeedSpec
    newest: NewestVersions

    @classmethod
    def on(
        cls, transaction: Transaction, spec: FeedSpec, layout: Layout | None = None
    ) -> ChangeWriter:
        """Changes to be written on top of what a transaction began with.

        `layout` is for tasks side by side, which place new keys in buckets of their own.

        Raises `UnsupportedError` for a table whose keys move between partitions, and for one that
        compares the rows of each producer by themselves.
        """
        _refuse_unordered(transaction.view)
        task = replace(transaction.task(), stored=None)
        task = task if layout is None else replace(task, layout=layout)
        return cls(task, spec, newest_of(transaction.state, task))

    def write(self, rows: pa.Table) -> WrittenChanges:
        """Write rows as `decode` returned them, in arrival order.

        REQUIRES: all rows of a bucket come to one call. Files are durable on return, and belong to
        nobody until their entries are committed; none is left after an error.
        """
        view = self.task.view
        counts = ChangeCounts()
        filled, unknown = [], [REJECTED_SCHEMA.empty_table()]
        frame = from_arrow(rows)
        # Keys that are in no bucket yet may be placed otherwise when they are written: nothing is
        # stored of them that would have to be found.
        frame, cut = self.task.layout.begin().cut(frame, rows, view)
        for bucket, changes in cut.parts(frame):
            stored = self._stored_versions(bucket, changes)
            result = fill_unavailable(changes, stored, self._order, view.schema.names)
            counts += count_changes(changes, stored, self._order)
            filled.append(to_arrow(result.changes, self._stored_schema))
            if result.unknown.height:
                unknown.append(_unknown_changes(result.unknown))
        # One run per bucket, however many changes: versions of a key are merged before they are
        # stored.
        together = [pa.concat_tables(filled)] if filled else []
        return WrittenChanges(self.task.feed(together, 0), counts, pa.concat_tables(unknown))

    @property
    def _stored_schema(self) -> pa.Schema:
        """The columns of changes that the table takes."""
        passing = (ORDINAL_COLUMN, UNAVAILABLE_COLUMN, MESSAGE_COLUMN)
        return pa.schema([each for each in self.spec.rows_schema if each.name not in passing])

    def _stored_versions(self, bucket: BucketId, changes: pl.DataFrame) -> pl.DataFrame:
        """The newest stored version of each key of the changes, deletions included."""
        order, view = self._order, self.task.view
        columns: Sequence[str] = order.columns
        if changes[UNAVAILABLE_COLUMN].list.len().max():
            columns = view.schema.names
        asked = changes.select(order.key).unique()
        empty = changes.select(columns).clear().with_columns(pl.lit("").alias(ROW_KIND))
        found = self.newest.of(bucket, asked, columns)
        return pl.concat([empty, *(frame.select(*columns, _row_kind()) for frame in found)])

    @cached_property
    def _order(self) -> MergeOrder:
        """By what changes of a key come after each other, though the table may merge nothing."""
        view = self.task.view
        key = view.order.key or view.schema.primary_keys
        return order_of(key, view.schema.fields, view.options)


def _refuse_unordered(view: TableView) -> None:
    if view.moves_keys:
        raise UnsupportedError(
            f"table {view.name}: its primary key lacks the partition columns, and changes of a "
            f"feed are looked up in the partition that they name; write the rows with table.write"
        )
    if view.kind.has_key_index and view.comparison.has_producers:
        raise UnsupportedError(
            f"table {view.name}: its rows are compared by the column of their producer, one of "
            f"'{keys.SEQUENCE_FIELD}', and changes of a feed have one order; name one column, or "
            f"write the rows with table.write"
        )


def _row_kind() -> pl.Expr:
    is_dead = pl.col(VALUE_KIND).is_in([1, 3])
    return pl.when(is_dead).then(pl.lit("-D")).otherwise(pl.lit("+I")).alias(ROW_KIND)


def _unknown_changes(changes: pl.DataFrame) -> pa.Table:
    reason = pl.concat_str(
        pl.lit("the source left out "),
        pl.col(UNAVAILABLE_COLUMN).list.join(", "),
        pl.lit(" and no earlier version of the key is known to take it from"),
    )
    frame = changes.select(
        pl.col(MESSAGE_COLUMN).alias("raw"),
        reason.alias("reason"),
        pl.col(ORDINAL_COLUMN).alias("ordinal"),
    )
    return to_arrow(frame, REJECTED_SCHEMA)
