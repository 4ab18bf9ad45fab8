"""Writes rows that were stored before, unchanged, each with its `_VALUE_KIND`.

Nothing is filled in, counted or checked, and no two rows have the same key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from keytide.merge.order import VALUE_KIND
from keytide.snapshot.state import TableState
from keytide.write.bucket_writer import SequenceBase
from keytide.write.input_rows import Rows
from keytide.write.layout import Placing
from keytide.write.task import WriteTask, Written
from keytide.write.upsert import UpsertTask

__all__ = ["task_of_stored"]


def task_of_stored(state: TableState) -> WriteTask:
    """A task whose rows replace stored rows, and are assigned to buckets as the table says now.

    Each table of rows has a column `_VALUE_KIND`. Raises the same errors as `layout_of`.
    """
    if state.view.kind.has_key_index:
        return _StoredRowsIndexed.anew(state).of_statement()
    return _StoredRows.anew(state)


@dataclass(frozen=True)
class _StoredRows(WriteTask):
    """Accepts rows in stored form."""

    def _write(
        self, run: pa.Table, base: SequenceBase, placing: Placing, before: Iterable[Written]
    ) -> Written:
        rows = Rows(run.drop_columns([VALUE_KIND]), run.column(VALUE_KIND))
        return self._placed(rows, base, placing, before)


@dataclass(frozen=True)
class _StoredRowsIndexed(_StoredRows, UpsertTask):
    """The same for tables with a key index."""
