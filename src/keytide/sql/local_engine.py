"""The local engine: DuckDB computes, and threads of this process read and write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from keytide.base.dataclass import dataclass, field
from keytide.catalogs.catalog import Catalog
from keytide.catalogs.local_writes import append, fill, overwrite
from keytide.commit.change import Author
from keytide.commit.transaction import Transaction, WriteResult
from keytide.dml.assignment import assign
from keytide.dml.engine import EngineLimits
from keytide.feeds.auto_cdc import apply_events
from keytide.feeds.flow import FlowRequest
from keytide.snapshot.stored_table import StoredTable
from keytide.sql.change_queries import MergeQuery, RowQuery
from keytide.sql.engine_text import QueryAnalysis
from keytide.sql.local_query import Stop, analyze_locally, run_locally, stream_locally
from keytide.sql.local_row_changes import LocalMergeHost, LocalRowHost
from keytide.sql.relations import BoundQuery
from keytide.sql.result import LocalResult, Result


@dataclass(frozen=True)
class LocalEngine:
    """Runs queries in this process. `allows_external_files` lets queries read files."""

    allows_external_files: bool = False
    stop: Stop | None = field(default=None, kw_only=True)
    """Ends queries while they run, those of a DELETE, UPDATE or MERGE excepted."""

    def query(self, bound: BoundQuery) -> Result:
        """Run a query. Raises `InvalidError`, which quotes DuckDB, if DuckDB refuses it."""
        return LocalResult(self.rows(bound))

    def analyze(self, bound: BoundQuery) -> QueryAnalysis:
        """Run a query, and return measurements instead of its rows. Raises as `query`."""
        return analyze_locally(
            bound, allows_external_files=self.allows_external_files, stop=self.stop
        )

    def rows(self, bound: BoundQuery) -> pa.Table:
        """The rows of a query, also for an INSERT. Raises as `query`."""
        return run_locally(bound, allows_external_files=self.allows_external_files, stop=self.stop)

    def stream(self, bound: BoundQuery, take: Callable[[pa.RecordBatch], None]) -> None:
        """Pass on the rows of a query as they arrive. Raises as `query`, and what `take` raises."""
        stream_locally(
            bound, take, allows_external_files=self.allows_external_files, stop=self.stop
        )

    def assigned(
        self, rows: pa.Table, columns: Mapping[str, int | pa.Scalar], table: StoredTable
    ) -> pa.Table:
        """Rows with the columns of a table, each taken by position or from a constant.

        Raises `InvalidError` for a type or value that a column does not accept.
        """
        fields = {f.name: f for f in table.schema.fields}
        made = {
            name: assign(rows.column(place), fields[name], table.name)
            if isinstance(place, int)
            else pa.chunked_array([pa.repeat(place, rows.num_rows)])
            for name, place in columns.items()
        }
        return pa.table(made)

    def schema(self, rows: pa.Table) -> pa.Schema:
        """The columns of rows."""
        return rows.schema

    def append(self, table: StoredTable, rows: pa.Table) -> WriteResult:
        """Append rows to a table, in one commit."""
        return append(table, rows)

    def overwrite(
        self, table: StoredTable, rows: pa.Table, partition: Mapping[str, Any] | None
    ) -> WriteResult:
        """Replace the rows of a table, or of one partition if given, in one commit."""
        return overwrite(table, rows, partition)

    def fill(self, transaction: Transaction, rows: pa.Table) -> None:
        """Write rows as part of a transaction."""
        fill(transaction, rows)

    def apply_events(
        self, catalog: Catalog, request: FlowRequest, rows: pa.Table, author: Author | None
    ) -> WriteResult:
        """Apply rows that are change events to the target of a flow."""
        return apply_events(catalog, request, rows, author)

    def row_host(self, query: RowQuery, limits: EngineLimits) -> LocalRowHost:
        """The host for a DELETE or an UPDATE."""
        return LocalRowHost(query, limits.memory_bytes, self.allows_external_files)

    def merge_host(self, query: MergeQuery, limits: EngineLimits) -> LocalMergeHost:
        """The host for a MERGE."""
        return LocalMergeHost(query, limits.memory_bytes, self.allows_external_files)
