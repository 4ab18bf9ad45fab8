"""Processes one batch of messages: its changes, its dead letters, and its report."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.threads import side_by_side
from keytide.commit.transaction import Transaction
from keytide.feeds.batch import ChangeWriter, WrittenChanges
from keytide.feeds.decode import decode
from keytide.feeds.feed import ORDINAL_COLUMN, Decoded, FeedSpec
from keytide.feeds.letters import PLACED_COLUMNS
from keytide.feeds.refuse import as_table_takes
from keytide.feeds.report import BatchReport
from keytide.snapshot.view import TableView

__all__ = ["changes_of", "letters_of", "report_of", "write_changes"]

# The minimum number of messages that a thread decodes.
_PIECE_MESSAGES_MIN = 5_000


def changes_of(messages: pa.ChunkedArray, spec: FeedSpec, view: TableView) -> Decoded:
    """The changes in messages, decoded on all cores, in order."""
    cores = os.cpu_count() or 1
    size = max(_PIECE_MESSAGES_MIN, -(-len(messages) // cores))
    starts = range(0, len(messages), size)
    calls = [partial(decode, messages.slice(at, size), spec) for at in starts]
    return as_table_takes(_joined(side_by_side(calls, cores), starts), messages, view)


def write_changes(transaction: Transaction, spec: FeedSpec, rows: pa.Table) -> WrittenChanges:
    """Write the changes as part of a transaction. Raises what `ChangeWriter.write` raises."""
    writer = ChangeWriter.on(transaction, spec)
    task = replace(transaction.here(writer.task), threads=os.cpu_count() or 1)
    written = replace(writer, task=task).write(rows)
    transaction.take(written.written)
    return written


def letters_of(messages: pa.Table, decoded: Decoded, written: WrittenChanges) -> pa.Table:
    """The messages that cannot be applied, with their positions and the reasons."""
    refused = pa.concat_tables([decoded.rejected, written.unknown]).sort_by("ordinal")
    found = messages.take(refused["ordinal"])
    columns = [*(found[name] for name in ("topic", "partition", "offset")), refused["reason"]]
    names = [field.name for field in PLACED_COLUMNS]
    return pa.Table.from_arrays([*columns, found["key"], found["message"]], names)


def report_of(
    number: int,
    decoded: Decoded,
    written: WrittenChanges,
    started: float,
    snapshot_id: int | None,
) -> BatchReport:
    """The report of a batch that began at a time of `time.perf_counter`."""
    counts, unknown = written.counts, written.unknown.num_rows
    rejected, skipped = decoded.rejected.num_rows + unknown, decoded.tombstones + decoded.control
    applied = counts.applied - unknown
    total = applied + counts.late + counts.duplicate + rejected + skipped
    seconds = time.perf_counter() - started
    return BatchReport(
        number, total, applied, counts.late, counts.duplicate, rejected, skipped, seconds,
        snapshot_id,
    )  # fmt: skip


def _joined(pieces: Sequence[Decoded], starts: Sequence[int]) -> Decoded:
    """Combine pieces that start at the given messages, numbered as one batch."""
    placed = list(zip(pieces, starts, strict=True))
    return Decoded(
        pa.concat_tables(_behind(piece.rows, ORDINAL_COLUMN, at) for piece, at in placed),
        pa.concat_tables(_behind(piece.rejected, "ordinal", at) for piece, at in placed),
        sum(piece.tombstones for piece in pieces),
        sum(piece.control for piece in pieces),
    )


def _behind(rows: pa.Table, name: str, count: int) -> pa.Table:
    place = rows.column_names.index(name)
    return rows.set_column(place, rows.schema.field(name), pc.add(rows[name], count))
