"""MERGE of any connector's rows: the sequence of calls, and pages as merge sinks take them.

A *host* joins the target with the source and finds out for each pair which WHEN applies; it gives
pages of one WHEN each. The engine turns these into the pages that sinks take, and settles the
whole: finished once, or aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from keytide.dml.execution import (
    Changed,
    Scanned,
    SplitResult,
    aborted_on_error,
    connector_counted,
)
from keytide.dml.spi import (
    ROW_ID,
    ColumnHandle,
    Connector,
    ConnectorMergeSinkProvider,
    ConnectorSession,
    ConnectorTableHandle,
    ConnectorTableSchema,
    Fragment,
    MergeOperation,
    RowChangeParadigm,
    RowChanges,
)
from keytide.errors import UnsupportedError

__all__ = ["MergeHost", "SinkPages", "Sinks", "merge_rows"]

OPERATION, CASE = "$operation", "$case"


@dataclass(frozen=True)
class SinkPages:
    """Makes the pages that sinks take out of rows of one WHEN. Pickles."""

    columns: tuple[ColumnHandle, ...]
    row_id: ColumnHandle
    paradigm: RowChangeParadigm

    @property
    def schema(self) -> pa.Schema:
        """The columns of a page."""
        fields = [pa.field(c.name, c.type) for c in self.columns]
        last = pa.field(ROW_ID, self.row_id.type)
        return pa.schema([*fields, (OPERATION, pa.int8()), (CASE, pa.int32()), last])

    def deleted(self, row_ids: pa.Array) -> pa.RecordBatch:
        """Rows that go."""
        nulls = [pa.nulls(len(row_ids), c.type) for c in self.columns]
        return self._page(nulls, MergeOperation.DELETE, -1, row_ids)

    def inserted(self, values: Sequence[pa.Array], case: int) -> pa.RecordBatch:
        """Rows that come, with the values of all columns."""
        ids = pa.nulls(len(values[0]), self.row_id.type)
        return self._page(values, MergeOperation.INSERT, case, ids)

    def updated(self, values: Sequence[pa.Array], row_ids: pa.Array, case: int) -> pa.RecordBatch:
        """Rows that change, with the values of all columns, in the connector's paradigm."""
        if self.paradigm is RowChangeParadigm.CHANGE_ONLY_UPDATED_COLUMNS:
            return self._page(values, MergeOperation.UPDATE, case, row_ids)
        nulls = [pa.nulls(len(row_ids), c.type) for c in self.columns]
        gone = self._page(nulls, MergeOperation.UPDATE_DELETE, -1, row_ids)
        come = self._page(values, MergeOperation.UPDATE_INSERT, case, row_ids)
        both = pa.Table.from_batches([gone, come]).combine_chunks()
        # Each row that goes stands right before the one that comes in its place.
        turns = np.arange(2 * len(row_ids)).reshape(2, -1).T.ravel()
        return both.take(pa.array(turns)).combine_chunks().to_batches()[0]

    def _page(
        self, values: Sequence[pa.Array], operation: MergeOperation, case: int, row_ids: pa.Array
    ) -> pa.RecordBatch:
        count = len(row_ids)
        operations = pa.repeat(pa.scalar(operation.value, pa.int8()), count)
        cases = pa.repeat(pa.scalar(case, pa.int32()), count)
        return pa.record_batch([*values, operations, cases, row_ids], schema=self.schema)


@dataclass(frozen=True)
class Sinks:
    """Where merged rows go: a provider of sinks, and what to make them with. Pickles."""

    provider: ConnectorMergeSinkProvider
    session: ConnectorSession
    table: ConnectorTableHandle
    pages: SinkPages
    layout: tuple[str, ...] = ()
    """The members of row ids whose equal values belong in one sink."""


class MergeHost(Protocol):
    """Joins the rows of a target with a source, and has sinks take what comes of them."""

    def explained(self, stored_bytes: int | None) -> Sequence[str]:
        """Lines that say where a target of so many bytes would be merged."""
        ...

    def merge(self, scanned: Scanned, sinks: Sinks, take: Callable[[SplitResult], None]) -> None:
        """Carry a MERGE out, and hand on what came of each sink.

        Raises `InvalidError` where a row of the target is matched twice, and the first error after
        what came of the other sinks was handed on.
        """
        ...


def merge_rows(
    connector: Connector,
    session: ConnectorSession,
    table: ConnectorTableHandle,
    changes: RowChanges,
    columns: Sequence[ColumnHandle],
    matched_by: Sequence[str],
    host: MergeHost,
) -> Changed:
    """Merge a source into a table. One atomic change. Driver only.

    `changes` are what all WHENs together may do; `columns` are those of the target that the host
    computes with. Where equality of some columns is all that matches, and rows that are inserted
    have the values there that matched nothing, `matched_by` has these columns. Raises
    `UnsupportedError` where the connector has no MERGE, and what the connector and the host raise.
    """
    if connector.merge_sinks is None:
        raise UnsupportedError(f"{table}: connector {connector.name} does not support MERGE")
    metadata = connector.metadata
    metadata.check_changes(session, table, changes)
    row_id = metadata.get_merge_row_id_column_handle(session, table)
    paradigm = metadata.get_row_change_paradigm(session, table)
    schema: ConnectorTableSchema = metadata.get_table_schema(session, table)
    layout = tuple(metadata.get_update_layout(session, table))
    begun = metadata.begin_merge(session, table, changes.updated)
    results: list[SplitResult] = []
    wanted = (*columns, ColumnHandle(ROW_ID, row_id.type, nullable=False))

    def scanned(table: ConnectorTableHandle) -> Scanned:
        splits = connector.splits.get_splits(session, table)
        stored = connector.splits.stored_bytes(splits)
        return Scanned(connector.pages, session, table, splits, wanted, stored_bytes=stored)

    def among(values: Mapping[str, pa.Array]) -> Scanned:
        return scanned(metadata.apply_values(session, begun, values))

    def abort(fragments: Sequence[Fragment]) -> None:
        metadata.abort_merge(session, begun, fragments)

    with aborted_on_error(abort, results):
        if matched_by:
            begun = metadata.apply_match(session, begun, matched_by)
        whole = scanned(begun)
        pages = SinkPages(schema.columns, row_id, paradigm)
        sinks = Sinks(connector.merge_sinks, session, begun, pages, layout)
        host.merge(replace(whole, among=among), sinks, results.append)
        fragments = [fragment for result in results for fragment in result.fragments]
        counted = metadata.finish_merge(session, begun, fragments)
    rows = sum(result.rows for result in results)
    connector_counted(connector, "MERGE", rows, counted)
    return Changed(rows, len(whole.splits))
