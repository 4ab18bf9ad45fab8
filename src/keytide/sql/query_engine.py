"""The interface of SQL engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import pyarrow as pa

from keytide.catalogs.catalog import Catalog
from keytide.commit.change import Author
from keytide.commit.transaction import Transaction, WriteResult
from keytide.dml.engine import EngineLimits, Host, MergeHost
from keytide.feeds.flow import FlowRequest
from keytide.snapshot.stored_table import StoredTable
from keytide.sql.change_queries import MergeQuery, RowQuery
from keytide.sql.engine_text import QueryAnalysis
from keytide.sql.relations import BoundQuery
from keytide.sql.result import Result


class Engine(Protocol):
    """An SQL engine: DuckDB in this process, or Spark. Each has its own representation of rows."""

    def query(self, bound: BoundQuery) -> Result:
        """Run a query."""
        ...

    def analyze(self, bound: BoundQuery) -> QueryAnalysis:
        """Run a query, and return measurements instead of its rows.

        Raises `UnsupportedError` if the engine cannot measure.
        """
        ...

    def rows(self, bound: BoundQuery) -> Any:
        """The rows of a query, for an INSERT."""
        ...

    def stream(self, bound: BoundQuery, take: Callable[[pa.RecordBatch], None]) -> None:
        """Pass on the rows of a query as they arrive, on the driver.

        The first batch has no rows.
        """
        ...

    def schema(self, rows: Any) -> pa.Schema:
        """The columns of rows."""
        ...

    def assigned(
        self, rows: Any, columns: Mapping[str, int | pa.Scalar], table: StoredTable
    ) -> Any:
        """Rows with the columns of a table, each taken by position or from a constant."""
        ...

    def append(self, table: StoredTable, rows: Any) -> WriteResult:
        """Append rows to a table, in one commit."""
        ...

    def overwrite(
        self, table: StoredTable, rows: Any, partition: Mapping[str, Any] | None
    ) -> WriteResult:
        """Replace the rows of a table, or of one partition if given, in one commit."""
        ...

    def fill(self, transaction: Transaction, rows: Any) -> None:
        """Write rows as part of a transaction."""
        ...

    def apply_events(
        self, catalog: Catalog, request: FlowRequest, rows: Any, author: Author | None
    ) -> WriteResult:
        """Apply rows that are change events to the target of a flow."""
        ...

    def row_host(self, query: RowQuery, limits: EngineLimits) -> Host:
        """The host for a DELETE or an UPDATE."""
        ...

    def merge_host(self, query: MergeQuery, limits: EngineLimits) -> MergeHost:
        """The host for a MERGE."""
        ...
