"""One batch of decoded changes on its way into a table.

A `ChangeWriter` is a picklable value: executors use it on the rows of the buckets that came to
them. It looks the newest stored version of each key up, counts what the changes do, fills in
values that the source left out, and writes the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
from keytide.errors import UnsupportedError
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.data_file import VALUE_KIND
from keytide.row_kind import ROW_KIND
from keytide.table.commit.transaction import Transaction
from keytide.table.read.lookup import newest_versions
from keytide.table.read.scan import Scan
from keytide.table.read.task import ReadTask
from keytide.table.state.live_files import BucketId
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
    """Writes decoded changes into one table.

    `stored` holds, by bucket, a task that reads the key and ordering columns of what is there.
    """

    task: WriteTask
    spec: FeedSpec
    stored: Mapping[BucketId, ReadTask]

    @classmethod
    def on(
        cls, transaction: Transaction, spec: FeedSpec, layout: Layout | None = None
    ) -> ChangeWriter:
        """Changes to be written on top of what a transaction began with.

        `layout` is for tasks side by side, which place new keys in buckets of their own.

        Raises `UnsupportedError` for a table whose keys move between partitions.
        """
        if transaction.view.moves_keys:
            raise UnsupportedError(
                f"table {transaction.view.name}: its primary key lacks the partition columns, and "
                f"changes of a feed are looked up in the partition that they name; write the rows "
                f"with table.write"
            )
        scan = Scan(transaction.state.merging, transaction.view.order.columns)
        stored = {
            (plan.partition, plan.bucket): task
            for plan, task in zip(scan.plan.buckets, scan.tasks(), strict=True)
        }
        task = replace(transaction.task(), stored=None)
        return cls(task if layout is None else replace(task, layout=layout), spec, stored)

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
            result = fill_unavailable(changes, stored, view.order, view.schema.names)
            counts += count_changes(changes, stored, view.order)
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
        order = self.task.view.order
        columns = order.columns
        if changes[UNAVAILABLE_COLUMN].list.len().max():
            columns = self.task.view.schema.names
        keys = changes.select(order.key).unique()
        empty = changes.select(columns).clear().with_columns(pl.lit("").alias(ROW_KIND))
        task = self.stored.get(bucket)
        if task is None:
            return empty
        found = [
            frame.select(*columns, _row_kind()) for frame in newest_versions(task, keys, columns)
        ]
        return pl.concat([empty, *found])


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
