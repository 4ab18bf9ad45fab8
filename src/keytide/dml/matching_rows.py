"""DELETE and UPDATE of the rows that meet a predicate: the connector finds them, not an SQL engine.

A condition in SQL is such a predicate if all engines agree on it. New values are the same for all
rows. A statement that computes anything else goes to an engine, with the same target: see
`keytide.sql.python_calls`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.dml.assignment import given_values, stored_values
from keytide.dml.engine import (
    Changed,
    DeleteRows,
    EngineLimits,
    Host,
    RowChange,
    SplitResult,
    TargetScan,
    UpdateRows,
    change_rows,
    checked_pages,
)
from keytide.dml.row_statements import CallTarget, Target, run_on_latest
from keytide.dml.spi import ROW_ID, ColumnHandle, Isolation, UpdatablePageSource
from keytide.format.arrow import from_arrow
from keytide.predicate.condition import Condition, predicate_of
from keytide.predicate.predicate import Predicate, column_of, columns_of, conjuncts, row_filter
from keytide.predicate.where import agreed_predicate
from keytide.types import Field

# -- the rows and their new values -----------------------------------------------------------------


@dataclass(frozen=True)
class MatchingRows:
    """The rows that meet a predicate, or all rows, and their new values. Can be pickled.

    `updated` are the columns that get `values`, in the table's order. `fields` are all columns.
    """

    predicate: Predicate | None = None
    fields: Sequence[Field] = ()
    updated: Sequence[Field] = ()
    values: Sequence[pa.Scalar] = ()
    table: str = ""

    def change(self, target_scan: TargetScan, change: RowChange, number: int) -> SplitResult:
        """Change these rows of a split. Values are read only if it contains other rows too."""
        if self.predicate is None or target_scan.is_exact:
            return changed_split(
                target_scan, number, target_scan.columns[-1:], change, self._changed
            )
        return changed_split(target_scan, number, target_scan.columns, change, self._selected)

    def _selected(self, page: pa.RecordBatch) -> pa.RecordBatch:
        assert self.predicate is not None
        rows = from_arrow(pa.Table.from_batches([page]).drop_columns([ROW_ID]))
        meets = rows.select(row_filter(self.predicate, self.fields).fill_null(False)).to_series()
        return self._changed(page.select([ROW_ID]).filter(meets.to_arrow()))

    def _changed(self, row_ids: pa.RecordBatch) -> pa.RecordBatch:
        if not self.values:
            return row_ids
        count = row_ids.num_rows
        repeated = [pa.chunked_array([pa.repeat(value, count)]) for value in self.values]
        values = stored_values(repeated, self.updated, self.table)
        names = [*(field.name for field in self.updated), ROW_ID]
        return pa.record_batch([*values, *row_ids.columns], names)


HostFor: TypeAlias = Callable[[MatchingRows, EngineLimits], Host]
"""What makes the host that changes rows."""


def change_matching(
    table: CallTarget,
    values: Mapping[str, Any] | None,
    where: Condition | None,
    isolation: Isolation,
    host_for: HostFor,
    by_sql: Callable[[Target], Changed],
    *,
    is_local: bool,
) -> Changed:
    """Change the rows that meet a condition, or all rows, as `Table.update` describes.

    Without `values`, delete them. `by_sql` is for what an SQL engine must compute.
    """
    given = {} if values is None else given_values(values, "Table.update")

    def once(target: Target) -> Changed:
        rows = _rows_of(target, given, where)
        if rows is None:
            return by_sql(target)
        names = tuple(field.name for field in rows.updated)
        return change_rows(
            target.connector,
            target.session,
            target.handle,
            DeleteRows() if values is None else UpdateRows(names),
            target.columns(columns_of(rows.predicate)),
            conjuncts(rows.predicate),
            host_for(rows, target.limits),
            is_all_terms=True,
        )

    operation: Literal["DELETE", "UPDATE"] = "DELETE" if values is None else "UPDATE"
    return table.carry_out(
        lambda catalog: run_on_latest(catalog, table.name, isolation, None, once, operation),
        is_local=is_local,
    )


def _rows_of(
    target: Target, given: Mapping[str, str | pa.Scalar], where: Condition | None
) -> MatchingRows | None:
    """The rows that a call means. None if an SQL engine has to compute a condition or value."""
    predicate = None
    if isinstance(where, str):
        predicate = agreed_predicate(where, target.fields)
    elif where is not None:
        predicate = predicate_of(where, target.fields, target.name)
    literals = {name: value for name, value in given.items() if not isinstance(value, str)}
    is_plain = len({name.lower() for name in literals}) == len(given)
    if not is_plain or (predicate is None and where is not None):
        return None
    names = target.schema.names
    values = {column_of(name, names, target.name): value for name, value in literals.items()}
    updated = tuple(field for field in target.fields if field.name in values)
    made = tuple(values[field.name] for field in updated)
    return MatchingRows(predicate, target.fields, updated, made, target.name)


# -- splits in threads of this process -------------------------------------------------------------


@dataclass(frozen=True)
class MatchingRowsHost:
    """Changes the rows of splits in threads of this process. See `Host`."""

    rows: MatchingRows

    def plan_lines(self, stored_bytes: int | None, *, is_exact: bool) -> Sequence[str]:
        """See `Host.plan_lines`. There is only one place."""
        return ()

    def change(
        self, target_scan: TargetScan, change: RowChange, take: Callable[[SplitResult], None]
    ) -> None:
        """See `Host.change`. Ctrl-C cancels it."""
        run = partial(self.rows.change, target_scan, change)
        in_threads(run, [None] * len(target_scan.splits), take)


def changed_split(
    target_scan: TargetScan,
    number: int,
    columns: Sequence[ColumnHandle],
    change: RowChange,
    select: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> SplitResult:
    """Apply a change to the rows of a split that `select` returns for each page, with row ids."""
    with split_source(target_scan, number, columns) as source:
        try:
            rows = 0
            for page in checked_pages(source, columns, type(source).__name__):
                selected = select(page)
                if selected.num_rows:
                    change.apply(source, selected)
                    rows += selected.num_rows
            return SplitResult(rows, source.finish())
        except BaseException:
            with suppress(Exception):  # the original error is more useful
                source.abort()
            raise


@contextmanager
def split_source(
    target_scan: TargetScan, number: int, columns: Sequence[ColumnHandle]
) -> Iterator[UpdatablePageSource]:
    """The page source of a split, closed at the end of the block."""
    source = target_scan.pages.create_page_source(
        target_scan.session, target_scan.table, target_scan.splits[number], tuple(columns)
    )
    try:
        yield source  # type: ignore[misc]  # the contract of begin_delete and begin_update
    finally:
        source.close()


class Query(Protocol):
    """Work of an engine that another thread can end."""

    def interrupt(self) -> None:
        """End it, with an error in its own thread."""
        ...


def in_threads(
    run: Callable[[int], SplitResult],
    queries: Sequence[Query | None],
    take: Callable[[SplitResult], None],
) -> None:
    """Run the parts of a statement, one for each query, and pass on each result.

    An error or interrupt ends all of them. The results of parts that ended by then are passed on.
    """
    futures: list[Future[SplitResult]] = []
    with ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, len(queries)))) as pool:
        try:
            futures += [pool.submit(run, number) for number in range(len(queries))]
            for future in as_completed(futures):
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            for query in filter(None, queries):
                query.interrupt()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            for future in futures:
                if future.done() and not future.cancelled() and future.exception() is None:
                    take(future.result())
