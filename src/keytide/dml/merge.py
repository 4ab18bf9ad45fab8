"""MERGE through any connector: the sequence of calls, and the pages for merge sinks.

A *host* joins the target with the source and determines which WHEN clause applies to each pair. It
returns pages for one WHEN clause each. The engine converts these to the pages that sinks accept,
and then finishes the change once or aborts it.
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
    """Creates the pages for sinks from rows of one WHEN clause. Can be pickled."""

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
        """Deleted rows."""
        nulls = [pa.nulls(len(row_ids), c.type) for c in self.columns]
        return self._page(nulls, MergeOperation.DELETE, -1, row_ids)

    def inserted(self, values: Sequence[pa.Array], case: int) -> pa.RecordBatch:
        """Inserted rows, with the values of all columns."""
        ids = pa.nulls(len(values[0]), self.row_id.type)
        return self._page(values, MergeOperation.INSERT, case, ids)

    def updated(self, values: Sequence[pa.Array], row_ids: pa.Array, case: int) -> pa.RecordBatch:
        """Updated rows, with the values of all columns, in the connector's paradigm."""
        if self.paradigm is RowChangeParadigm.CHANGE_ONLY_UPDATED_COLUMNS:
            return self._page(values, MergeOperation.UPDATE, case, row_ids)
        nulls = [pa.nulls(len(row_ids), c.type) for c in self.columns]
        gone = self._page(nulls, MergeOperation.UPDATE_DELETE, -1, row_ids)
        come = self._page(values, MergeOperation.UPDATE_INSERT, case, row_ids)
        both = pa.Table.from_batches([gone, come]).combine_chunks()
        # Each deleted row directly precedes the inserted row that replaces it.
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
    """The destination of merged rows: a provider of sinks, and its arguments. Can be pickled."""

    provider: ConnectorMergeSinkProvider
    session: ConnectorSession
    table: ConnectorTableHandle
    pages: SinkPages
    layout: tuple[str, ...] = ()
    """The row id fields whose equal values must go to the same sink."""


class MergeHost(Protocol):
    """Joins the rows of a target with a source, and passes the results to sinks."""

    def explained(self, stored_bytes: int | None) -> Sequence[str]:
        """Lines that say where a target of this size would be merged."""
        ...

    def merge(self, scanned: Scanned, sinks: Sinks, take: Callable[[SplitResult], None]) -> None:
        """Run a MERGE, and pass on the result of each sink.

        Raises `InvalidError` if a target row is matched twice, and the first error after passing on
        the results of the other sinks.
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
    """Merge a source into a table. Atomic. Runs on the driver.

    `changes` are the possible changes of all WHEN clauses. `columns` are the target columns that
    the host needs. `matched_by` has columns if their equality is the only condition and inserted
    rows keep the values that matched nothing. Raises `UnsupportedError` if the connector has no
    MERGE, and what the connector and the host raise.
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
