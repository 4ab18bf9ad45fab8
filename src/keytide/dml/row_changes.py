"""Inserted, updated and deleted rows, as workers receive them.

A page source and a merge sink pass them to *changes*, which buffer them until the split or the sink
ends, write files, and describe these in fragments.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keytide.commit.transaction import discard
from keytide.dml.fragments import Told, new_attempt, write_fragment
from keytide.dml.handles import ChangedTable
from keytide.dml.pages import channel_columns, schema_of
from keytide.dml.spi import (
    ROW_ID,
    ColumnHandle,
    ConnectorMergeSink,
    Fragment,
    MergeOperation,
    UpdatablePageSource,
)
from keytide.dml.spool import Spool
from keytide.errors import InvalidError
from keytide.write.generated import regenerated
from keytide.write.task import Written

__all__ = ["Changes", "TableSink", "TableSource", "members_of"]


def members_of(structs: pa.StructArray) -> pa.RecordBatch:
    """The columns that structs consist of."""
    return pa.record_batch(structs.flatten(), [member.name for member in structs.type])


class Changes(ABC):
    """The changes of the rows of one split or one sink."""

    def __init__(self, table: ChangedTable, number: int) -> None:
        self._on, self._number = table, number
        self._made = self._spool()
        self._rows = 0
        self._written: list[Written] = []
        self._attempt = new_attempt()
        self._is_over = False

    @abstractmethod
    def delete(self, row_ids: pa.Array) -> None:
        """Delete rows."""

    @abstractmethod
    def update(
        self, values: Mapping[str, pa.Array], row_ids: pa.Array, updated: Sequence[str]
    ) -> None:
        """Set new values in rows. `updated` are the columns that the statement sets."""

    @abstractmethod
    def insert(self, rows: pa.RecordBatch) -> None:
        """Insert whole rows."""

    @abstractmethod
    def _write(self) -> None:
        """Write files and append them to `_written`."""

    def _told(self) -> Iterator[tuple[Mapping[str, Any], pa.Table]]:
        """Facts and rows for fragments, in addition to the files."""
        return iter(())

    def finish(self) -> Sequence[Fragment]:
        """Write the buffered rows. The fragments name the files and the number of rows."""
        self._refuse_after_end()
        self._is_over = True
        try:
            self._write()
            files = pa.table({"written": pa.array(map(pickle.dumps, self._written), pa.binary())})
            told = [({"rows": self._rows}, files), *self._told()]
        except BaseException:
            self.abort()
            raise
        self.close()
        return [write_fragment(Told(self._number, self._attempt, *each)) for each in told]

    def abort(self) -> None:
        """Delete the written files."""
        self._is_over = True
        written, self._written = self._written, []
        if written:
            discard(self._on.view, written)
        self.close()

    def close(self) -> None:
        """Release the buffered rows."""
        self._made.close()

    def _spool(self, parts: int = 1) -> Spool:
        """A spool with the size of a write buffer, or a fraction of it."""
        has_begun = self._on.has_begun
        return Spool(self._on.view.options.write_buffer_bytes // parts if has_begun else 1)

    def _feed(self, part: int, *spools: Spool) -> None:
        """Write the content of spools, if any, as one part of the statement."""
        assert self._on.task is not None
        rows = chain.from_iterable(spool.tables() for spool in spools if spool.rows)
        if any(spool.rows for spool in spools):
            made = self._on.task.feed(rows, part)
            if made is not None:
                self._written.append(made)

    def _image(
        self, values: Mapping[str, pa.Array], old: pa.RecordBatch | None, updated: Sequence[str]
    ) -> pa.RecordBatch:
        """Whole rows from new values and, for other columns, old values.

        Generated columns are computed, except those that the statement sets.
        """
        columns = [
            values[f.name].cast(f.type) if old is None or f.name in values else old.column(f.name)
            for f in self._on.view.schema.arrow_schema()
        ]
        rows = pa.record_batch(columns, list(self._on.view.schema.names))
        return regenerated(rows, self._on.view, updated)

    def _begin(self, row_ids: pa.Array) -> None:
        self._refuse_after_end()
        if row_ids.null_count:
            raise InvalidError(f"{self._on}: a row id is NULL; return the row ids of the pages")

    def _refuse_after_end(self) -> None:
        if self._is_over:
            raise InvalidError(f"{self._on}: split {self._number} is already finished or aborted")


class TableSource(UpdatablePageSource):
    """The rows of one split, and their changes."""

    def __init__(
        self, table: ChangedTable, columns: Sequence[ColumnHandle], changes: Changes
    ) -> None:
        self._table, self._columns, self._changes = table, tuple(columns), changes
        self._pages: Iterator[pa.RecordBatch] | None = None

    @abstractmethod
    def _read(self) -> Iterator[tuple[pa.RecordBatch, Callable[[pa.StructType], pa.Array]]]:
        """The rows, and a function that creates their ids.

        `_names` are the table columns to read.
        """

    @property
    def _id_type(self) -> pa.StructType:
        """The type of the row ids, without fields if they are not requested."""
        return next((c.type for c in self._columns if c.name == ROW_ID), pa.struct([]))

    def _names(self, carried: Sequence[str]) -> tuple[str, ...]:
        """The columns to read, including those in row ids, in the table's order."""
        wanted = {*(column.name for column in self._columns), *carried}
        return tuple(name for name in self._table.view.schema.names if name in wanted)

    def get_next_page(self) -> pa.RecordBatch | None:
        """See `ConnectorPageSource`."""
        self._pages = self._pages or self._all_pages()
        return next(self._pages, None)

    def _all_pages(self) -> Iterator[pa.RecordBatch]:
        schema = schema_of(self._columns)
        for rows, ids in self._read():
            made = [ids(c.type) if c.name == ROW_ID else rows.column(c.name) for c in self._columns]
            yield pa.record_batch(made, schema=schema)

    def delete_rows(self, row_ids: pa.Array) -> None:
        """See `UpdatablePageSource`."""
        self._changes.delete(row_ids)

    def update_rows(
        self, page: pa.RecordBatch, column_value_and_row_id_channels: Sequence[int]
    ) -> None:
        """See `UpdatablePageSource`."""
        updated = self._table.updated
        *values, ids = channel_columns(self._table, updated, page, column_value_and_row_id_channels)
        self._changes.update(dict(zip(updated, values, strict=True)), ids, updated)

    def finish(self) -> Sequence[Fragment]:
        """See `UpdatablePageSource`."""
        return self._changes.finish()

    def abort(self) -> None:
        """See `UpdatablePageSource`."""
        self._changes.abort()

    def close(self) -> None:
        """See `ConnectorPageSource`."""
        self._pages = None
        self._changes.close()


class TableSink(ConnectorMergeSink):
    """Rows of a MERGE, and their changes."""

    def __init__(self, table: ChangedTable, changes: Changes) -> None:
        self._table, self._changes = table, changes

    def store_merged_rows(self, page: pa.RecordBatch) -> None:
        """See `ConnectorMergeSink`."""
        width = page.num_columns - 3
        for operation, take in (
            (MergeOperation.DELETE, self._delete),
            (MergeOperation.UPDATE, self._update),
            (MergeOperation.INSERT, self._insert),
        ):
            rows = page.filter(pc.equal(page.column(width), pa.scalar(operation.value, pa.int8())))
            if rows.num_rows:
                take(rows, width)

    def finish(self) -> Sequence[Fragment]:
        """See `ConnectorMergeSink`."""
        return self._changes.finish()

    def abort(self) -> None:
        """See `ConnectorMergeSink`."""
        self._changes.abort()

    def _delete(self, rows: pa.RecordBatch, width: int) -> None:
        self._changes.delete(rows.column(width + 2))

    def _update(self, rows: pa.RecordBatch, width: int) -> None:
        for case in rows.column(width + 1).unique():
            some = rows.filter(pc.equal(rows.column(width + 1), case))
            values = dict(zip(some.schema.names[:width], some.columns[:width], strict=True))
            updated = self._table.cases[case.as_py()]
            self._changes.update(values, some.column(width + 2), updated)

    def _insert(self, rows: pa.RecordBatch, width: int) -> None:
        self._changes.insert(rows.select(range(width)))
