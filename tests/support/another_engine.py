"""Appends as engines make them that know nothing of a table's index of keys."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

import keytide as kt
from keytide.commit.author import Author
from keytide.commit.transaction import Transaction
from keytide.write.bucket_writer import BucketWriter, SequenceBase
from keytide.write.input_rows import Rows
from keytide.write.layout import BucketBatch, Placing
from keytide.write.refusals import writable_view
from keytide.write.task import TaskResult
from keytide.write.upsert import UpsertTask

__all__ = ["append_as_another_engine"]


class _Append(UpsertTask):
    """Stores rows as they are, and looks nothing up."""

    def _placed(
        self, rows: Rows, base: SequenceBase, placing: Placing, before: Iterable[TaskResult]
    ) -> TaskResult:
        frame, cut = placing.cut(rows.frame, rows.table, self.view)
        writer = BucketWriter(self.view, placing.total_buckets)
        batches = [
            BucketBatch((bucket,), np.array([part.height]), part)
            for bucket, part in cut.parts(frame)
        ]
        return TaskResult(tuple(e for batch in batches for e in writer.write([batch], base).data))


def append_as_another_engine(table: kt.Table, rows: pa.Table) -> None:
    """Append rows to a table with an index of keys, past its index."""
    state = table.stored.state_to_write(writable_view(table.stored))
    transaction = Transaction(table.stored, state, Author.fresh("another-engine"), None)
    with transaction:
        transaction.collect(_Append(**UpsertTask.on(state).__dict__).feed([rows], 0))
        transaction.commit()
