"""Changes to rows of tables with a primary key: the versions that are appended.

Workers read the rows of one bucket, or receive the rows of one merge sink, and write level 0 files
like any writer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.dml.duplicate_keys import KEYS, refuse_twice_in_parts
from keytide.dml.freshness import is_older, orders_of
from keytide.dml.handles import ChangedByKey, KeyedHandle
from keytide.dml.pages import pages_of
from keytide.dml.row_changes import Changes, TableSink, TableSource, members_of
from keytide.dml.spi import (
    ColumnHandle,
    ConnectorMergeSink,
    ConnectorMergeSinkProvider,
    ConnectorPageSourceProvider,
    ConnectorSession,
    UpdatablePageSource,
)
from keytide.dml.spool import Spool
from keytide.dml.values import narrowed
from keytide.dml.watermarks import watermarks
from keytide.errors import InvalidError
from keytide.options import keys
from keytide.read.task import ReadTask
from keytide.write.generated import filled

__all__ = ["KeyedPages", "KeyedSinks", "Versions", "structs_of"]


@dataclass(frozen=True)
class KeyedPages(ConnectorPageSourceProvider):
    """Page sources of single buckets. A split is a number and the task that reads the bucket."""

    def create_page_source(
        self,
        session: ConnectorSession,
        table: KeyedHandle,
        split: tuple[int, ReadTask],
        columns: Sequence[ColumnHandle],
    ) -> UpdatablePageSource:
        """See `ConnectorPageSourceProvider`."""
        number, read = split
        return _Source(table, columns, Versions(table, number, max(table.splits, 1)), read)

    def apply_values(
        self,
        session: ConnectorSession,
        table: KeyedHandle,
        split: tuple[int, ReadTask],
        values: Mapping[str, pa.Array],
    ) -> tuple[int, ReadTask]:
        """See `ConnectorPageSourceProvider`."""
        number, read = split
        return number, replace(read, predicate=narrowed(read.predicate, values, table.view))


@dataclass(frozen=True)
class KeyedSinks(ConnectorMergeSinkProvider):
    """Sinks that append versions."""

    def create_merge_sink(
        self, session: ConnectorSession, table: KeyedHandle, number: int, count: int
    ) -> ConnectorMergeSink:
        """See `ConnectorMergeSinkProvider`."""
        return TableSink(table, Versions(table, number, count))


_KEYS = 8
"""The fraction of the row buffer that keys use (1 / this number)."""
_KINDS = ("gone", "came", "moved", "new")
"""See `duplicate_keys`."""


class _Source(TableSource):
    """The rows of one bucket. Their ids are columns of the rows."""

    def __init__(
        self,
        table: KeyedHandle,
        columns: Sequence[ColumnHandle],
        versions: Versions,
        read: ReadTask,
    ) -> None:
        super().__init__(table, columns, versions)
        self._bucket, self._splits = read, table.splits

    def _read(self) -> Iterator[tuple[pa.RecordBatch, Callable[[pa.StructType], pa.Array]]]:
        view = self._table.view
        names = self._names([member.name for member in self._id_type])
        task = replace(self._bucket, columns=names or view.schema.names[:1])
        beside = max(1, min(os.cpu_count() or 1, self._splits))  # other splits are read in parallel
        for table in task.tables(max(1, view.options.read_memory_bytes // beside)):
            for rows in pages_of(table):
                yield rows, partial(structs_of, rows)


class Versions(Changes):
    """The versions and the moved keys of one split or sink, out of `count`.

    Tombstones have lower sequence numbers than all new versions of the statement, whatever their
    split, because a row can take a key that another row gives up.
    """

    _on: ChangedByKey

    def __init__(self, table: ChangedByKey, number: int, count: int) -> None:
        super().__init__(table, number)
        self._count = count
        self._gone = self._spool()
        self._keys = {kind: self._spool(_KEYS) for kind in _KINDS}

    def delete(self, row_ids: pa.Array) -> None:
        """Append tombstones."""
        self._begin(row_ids)
        versions = members_of(row_ids)
        versions = _with(versions, watermarks(self._on, versions))
        self._gone.add(self._of_kind(versions, RowKind.DELETE))
        if self._on.gives_keys:
            self._tell("gone", versions)
        self._rows += versions.num_rows

    def update(
        self, values: Mapping[str, pa.Array], row_ids: pa.Array, updated: Sequence[str]
    ) -> None:
        """Append new versions, and tombstones (no newer) for rows that leave their key."""
        self._begin(row_ids)
        old = members_of(row_ids)
        new = self._image({**values, **watermarks(self._on, old, updated)}, old, updated)
        self._refuse_gaps(values, updated)
        self._refuse_older(old, new, updated)
        self._rows += new.num_rows
        self._made.add(self._of_kind(new, RowKind.UPDATE_AFTER))
        if self._on.moves_rows:
            moved = _differs(old, new, self._on.view.schema.primary_keys)
            order = {name: new.column(name) for name in self._on.view.options.sequence_field}
            left = _with(old, order).filter(moved)
            self._gone.add(self._of_kind(left, RowKind.DELETE))
            self._tell("gone", left)
            self._tell("moved", new.filter(moved))

    def insert(self, rows: pa.RecordBatch) -> None:
        """Append new rows."""
        self._refuse_after_end()
        self._refuse_other_kinds(rows)
        rows = filled(rows, self._on.view)
        self._made.add(self._of_kind(rows, RowKind.INSERT))
        # NULL matches nothing in ON, but a NULL in one key equals a NULL in another key.
        may_be_there = any(rows.column(n).null_count for n in self._on.view.schema.primary_keys)
        self._tell("came" if may_be_there or not self._on.inserts_new_keys else "new", rows)
        self._rows += rows.num_rows

    def close(self) -> None:
        """Release the buffered rows."""
        super().close()
        for spool in (self._gone, *self._keys.values()):
            spool.close()

    def _write(self) -> None:
        if self._count == 1:
            # One task, because the rows of a key may be merged: it must know of the tombstones.
            self._feed(self._number, self._gone, self._made)
            return
        self._feed(self._number, self._gone)
        self._feed(self._count + self._number, self._made)

    def _told(self) -> Iterator[tuple[Mapping[str, Any], pa.Table]]:
        kinds = list(_KINDS)
        if self._count == 1:
            # These keys are in no other split, and new keys need no lookup.
            come = [self._keys[kind] for kind in ("came", "moved", "new")]
            rows = sum(spool.rows for spool in come)
            refuse_twice_in_parts(self._on, lambda: _tables_of(come), rows)
            kinds.remove("new")
        for kind in kinds:
            if self._keys[kind].rows:
                yield {"rows": 0, KEYS: kind}, pa.concat_tables(self._keys[kind].tables())

    def _tell(self, kind: str, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            order = self._on.view.options.sequence_field
            names = dict.fromkeys((*self._on.view.schema.primary_keys, *order))
            self._keys[kind].add(rows.select(list(names)))

    def _of_kind(self, rows: pa.RecordBatch, kind: RowKind) -> pa.RecordBatch:
        name = self._on.view.options.rowkind_field or ROW_KIND
        kinds = pa.repeat(pa.scalar(kind.short), rows.num_rows)
        return _with(rows, {name: kinds})

    def _refuse_other_kinds(self, rows: pa.RecordBatch) -> None:
        """Refuse rows whose row kind is not an insert."""
        name = self._on.view.options.rowkind_field
        if name is None:
            return
        given = rows.column(name)
        others = given.filter(pc.not_equal(given, RowKind.INSERT.short))
        if others.null_count < len(others):
            raise InvalidError(
                f"{self._on}: a MERGE inserts a row whose {name!r} is {others[0].as_py()!r}, but "
                f"'{keys.ROWKIND_FIELD}' makes it the row kind; use {RowKind.INSERT.short!r}, or "
                "do not set the column"
            )

    def _refuse_gaps(self, values: Mapping[str, pa.Array], updated: Sequence[str]) -> None:
        """Refuse NULLs that a merge engine would interpret as 'no new value'."""
        if not self._on.view.engine.fills_gaps:
            return
        for name in updated:
            if values[name].null_count:
                raise InvalidError(
                    f"{self._on}: the UPDATE sets {name!r} to NULL, which the merge engine "
                    "ignores as 'no new value'; set a value, or delete the row and insert it "
                    "without one"
                )

    def _refuse_older(
        self, old: pa.RecordBatch, new: pa.RecordBatch, updated: Sequence[str]
    ) -> None:
        """Refuse new versions that would lose against the rows that they replace."""
        order = self._on.view.options.sequence_field
        if not set(order) & set(updated):
            return
        descends = self._on.view.options.sequence_sort_order == "descending"
        are_older = pl.repeat(False, new.num_rows, eager=True)
        for each in orders_of(self._on.view):
            are_older |= is_older(new, old, each, descends=descends)
            if self._on.fresher_by:
                are_older |= ~is_older(old, new, each, descends=descends)
        if are_older.any():
            place = are_older.arg_max()
            assert place is not None
            found = {name: new.column(name)[place].as_py() for name in order}
            stored = {name: old.column(name)[place].as_py() for name in order}
            wrong, right = (
                ("not above", "higher") if self._on.fresher_by else ("older than", "not lower")
            )
            raise InvalidError(
                f"{self._on}: the UPDATE sets {found}, which is {wrong} the stored value "
                f"{stored}, so it would have no effect; set a value that is {right}"
            )


def _tables_of(spools: Iterable[Spool]) -> Iterator[pa.Table]:
    for spool in spools:
        yield from spool.tables()


def _with(rows: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Rows with some columns replaced."""
    named = {**dict(zip(rows.schema.names, rows.columns, strict=True)), **columns}
    return pa.record_batch(list(named.values()), list(named))


def structs_of(rows: pa.RecordBatch, type_: pa.StructType) -> pa.Array:
    """Row ids of a type whose fields are columns of the rows."""
    return pa.StructArray.from_arrays([rows.column(f.name) for f in type_], fields=list(type_))


def _differs(old: pa.RecordBatch, new: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """Which rows differ in some of these columns."""
    before, after = (pl.DataFrame(pl.from_arrow(batch.select(names))) for batch in (old, new))
    same = [before[name].eq_missing(after[name]) for name in names]
    return (~pl.DataFrame(same).select(pl.all_horizontal(pl.all())).to_series()).to_arrow()
