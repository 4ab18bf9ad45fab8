"""Appends and compactions of engines that know nothing of a table's index of keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa

import keytide as kt
from keytide.commit.change import Author
from keytide.commit.transaction import Transaction
from keytide.compaction.append_tables import BucketRewrite
from keytide.format.manifest_entry import FileKind
from keytide.read.sections import PlannedFile
from keytide.snapshot.live_files import BucketId, load_dead_rows, vector_files_by_bucket
from keytide.write.bucket_writer import BucketWriter, SequenceBase
from keytide.write.input_rows import Rows
from keytide.write.layout import BucketBatch, Placing
from keytide.write.refusals import writable_view
from keytide.write.task import TaskResult
from keytide.write.upsert import UpsertTask

__all__ = [
    "append_as_another_engine",
    "compact_as_another_engine",
    "overwrite_as_another_engine",
]


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


def compact_as_another_engine(table: kt.Table) -> None:
    """Write the rows of each bucket that live into one file, as an append table's compaction."""
    state = table.stored.state_to_write(writable_view(table.stored))
    view, vectors = state.view, vector_files_by_bucket(state.vector_files)
    buckets: dict[BucketId, list[PlannedFile]] = {}
    for entry in sorted(state.live.entries, key=lambda e: e.file.min_sequence_number):
        file = PlannedFile(entry, has_kinds=False)
        buckets.setdefault((entry.partition, entry.bucket), []).append(file)
    transaction = Transaction(table.stored, state, Author.fresh("another-engine"), None)
    with transaction:
        for bucket, files in buckets.items():
            rewrite = BucketRewrite(view, bucket, 1 << 20)
            dead = load_dead_rows(view.store, vectors.get(bucket, ()), view.name)
            rows = [
                frame.filter(~pl.int_range(pl.len()).is_in(dead.of(file.meta.file_name)))
                for file in files
                for frame in rewrite.rows([file])
            ]
            made = rewrite.write([(files, (frame for frame in rows if frame.height))], dead).result
            assert made is not None
            transaction.collect(made)
        transaction.compact()


def overwrite_as_another_engine(table: kt.Table, rows: pa.Table) -> None:
    """Replace all rows, as an engine that leaves the index and the deletion vectors behind."""
    state = table.stored.state_to_write(writable_view(table.stored))
    transaction = Transaction(table.stored, state, Author.fresh("another-engine"), None)
    with transaction:
        gone = tuple(replace(entry, kind=FileKind.DELETE) for entry in state.live.entries)
        transaction.collect(TaskResult(gone))
        transaction.collect(_Append(**UpsertTask.on(state).__dict__).feed([rows], 0))
        transaction.compact()
