"""DELETE by a predicate: the connector of a table finds the rows, without an SQL engine.

A condition that is an SQL string can contain anything that the engine computes, and goes another
way: see `keytide.sql.python_calls`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.dml.engine import (
    Changed,
    DeleteRows,
    EngineLimits,
    Host,
    RowChange,
    SplitResult,
    TargetScan,
    change_rows,
    checked_pages,
)
from keytide.dml.row_statements import CallTarget, Target, run_on_latest
from keytide.dml.spi import ROW_ID, ColumnHandle, Isolation, UpdatablePageSource
from keytide.format.arrow import from_arrow
from keytide.predicate.condition import Condition, predicate_of
from keytide.predicate.predicate import Predicate, columns_of, row_filter
from keytide.types import Field

HostFor: TypeAlias = Callable[[Predicate | None, Sequence[Field], EngineLimits], Host]
"""What makes the host for a DELETE of the rows that meet a predicate, or of all rows."""


def delete_matching(
    table: CallTarget,
    host_for: HostFor,
    where: Condition | None,
    isolation: Isolation,
    *,
    is_local: bool,
) -> Changed:
    """Delete the rows that meet a condition, or all rows, as `Table.delete` describes."""

    def once(target: Target) -> Changed:
        predicate = None if where is None else predicate_of(where, target.fields, target.name)
        return change_rows(
            target.connector,
            target.session,
            target.handle,
            DeleteRows(),
            target.columns(() if predicate is None else columns_of(predicate)),
            () if predicate is None else (predicate,),
            host_for(predicate, target.fields, target.limits),
            is_all_terms=True,
        )

    return table.carry_out(
        lambda catalog: run_on_latest(catalog, table.name, isolation, None, once, "DELETE"),
        is_local=is_local,
    )


# -- splits in threads of this process -------------------------------------------------------------


@dataclass(frozen=True)
class PredicateHost:
    """Deletes the rows of splits that meet a predicate, in threads of this process. See `Host`.

    Values are read only if the splits contain other rows too. None means all rows.
    """

    predicate: Predicate | None
    fields: Sequence[Field]

    def plan_lines(self, stored_bytes: int | None, *, is_exact: bool) -> Sequence[str]:
        """See `Host.plan_lines`. There is only one place."""
        return ()

    def change(
        self, target_scan: TargetScan, change: RowChange, take: Callable[[SplitResult], None]
    ) -> None:
        """See `Host.change`. Ctrl-C cancels it."""
        tests_rows = self.predicate is not None and not target_scan.is_exact
        columns = target_scan.columns if tests_rows else target_scan.columns[-1:]
        select = self._meeting if tests_rows else lambda page: page
        in_threads(
            lambda number: changed_split(target_scan, number, columns, change, select),
            [None] * len(target_scan.splits),
            take,
        )

    def _meeting(self, page: pa.RecordBatch) -> pa.RecordBatch:
        assert self.predicate is not None
        rows = from_arrow(pa.Table.from_batches([page]).drop_columns([ROW_ID]))
        meets = rows.select(row_filter(self.predicate, self.fields).fill_null(False)).to_series()
        return page.select([ROW_ID]).filter(meets.to_arrow())


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
