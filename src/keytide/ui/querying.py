"""SQL of a page: which statements can run, and how much of their result is shown."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from keytide.dml.attached import AttachedCatalog
from keytide.errors import InvalidError, UnsupportedError
from keytide.lake.lake import Lake
from keytide.show.cells import Cell, Column, columns_of, rows_of
from keytide.show.chart import Chart, chart_of
from keytide.show.plan_tree import Plan, plan_of_lines
from keytide.sql.execute import results
from keytide.sql.grammar import parse_statements
from keytide.sql.local_engine import LocalEngine
from keytide.sql.relations import BoundQuery, bind
from keytide.sql.result import LocalResult, Result
from keytide.sql.statements import (
    Describe,
    DescribeDatabase,
    DescribeHistory,
    Explain,
    Query,
    Show,
    Statement,
    Use,
)
from keytide.sql.stopping import Stop
from keytide.ui.plan_tree import plan_of, plan_of_analysis

__all__ = [
    "EXPORT_BYTES",
    "ROWS_MAX",
    "Answer",
    "answer",
    "changes_nothing",
    "exported",
    "refuse_changes",
]

ROWS_MAX = 200
"""How many rows a page shows."""

EXPORT_BYTES = 256 << 20
"""The maximum size of exported rows in memory."""

_LOOKING = (Query, Show, Describe, DescribeDatabase, DescribeHistory, Use)


@dataclass(frozen=True)
class Answer:
    """The result of the last statement of a text: rows, a plan, or the number of changed rows."""

    seconds: float
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    has_more: bool = False
    changed: int | None = None
    plan: Plan | None = None
    chart: Chart | None = None


def refuse_changes(statements: Sequence[Statement]) -> None:
    """Raise `UnsupportedError`, naming it, for the first statement that can change something.

    The parsed statement decides. Every CALL is refused, because a procedure can do anything.
    """
    for statement in statements:
        if not _is_plan(statement) and not isinstance(statement, _LOOKING):
            raise UnsupportedError(
                f"{_named(statement)} can change the lake, and these pages are read-only; restart "
                f"them with keytide ui --allow-changes, or run the statement with keytide sql"
            )


def changes_nothing(text: str) -> bool:
    """Whether no statement of a text can change anything. Raises `InvalidError` as parsing it."""
    return all(_is_plan(each) or isinstance(each, _LOOKING) for each in parse_statements(text))


def _is_plan(statement: Statement) -> bool:
    """Whether a statement is an EXPLAIN that at most runs a query."""
    if not isinstance(statement, Explain):
        return False
    return not statement.analyze or isinstance(statement.query, Query)


def _named(statement: Statement) -> str:
    """The name of a statement: that of its class, as SQL keywords."""
    if isinstance(statement, Explain):
        return f"EXPLAIN ANALYZE {type(statement.query).__name__.upper()}"
    name = type(statement).__name__
    words = "".join(f" {letter}" if letter.isupper() else letter for letter in name)
    return words.strip().upper()


def answer(lake: Lake, text: str, *, allows_changes: bool, stop: Stop | None = None) -> Answer:
    """Run the statements of a text, and return the answer of the last one.

    A query stops after the rows that are shown. `stop` can end it. Raises what `Lake.sql` raises,
    and `UnsupportedError` for changes, before anything runs, unless they are allowed.
    """
    begun = time.perf_counter()
    statements = _parsed(text, allows_changes=allows_changes)
    session, last = _Session(lake.catalog), statements[-1]
    engine = _FirstRows(lake.allows_external_files, ROWS_MAX + 1, EXPORT_BYTES, stop=stop)
    carried_out = results(session, engine, text)
    if isinstance(last, Explain) and isinstance(last.query, Query):
        deque(islice(carried_out, len(statements) - 1), maxlen=0)
        bound = bind(last.query, session.catalog)
        plan = plan_of_analysis(engine.analyze(bound)) if last.analyze else plan_of(bound)
        return Answer(time.perf_counter() - begun, plan=plan)
    result = deque(carried_out, maxlen=1)[0]
    return _answer(result, last, time.perf_counter() - begun)


def _answer(result: Result, statement: Statement, seconds: float) -> Answer:
    rows = result.to_arrow()
    if isinstance(statement, Explain):
        lines = [str(line) for line in rows.column(0).to_pylist()]
        return Answer(seconds, plan=plan_of_lines(lines))
    if not rows.num_columns:
        return Answer(seconds, changed=result.row_count)
    shown = rows.slice(0, ROWS_MAX)
    return Answer(
        seconds,
        columns_of(shown.schema),
        tuple(rows_of(shown)),
        rows.num_rows > ROWS_MAX,
        chart=chart_of(shown),
    )


def exported(lake: Lake, text: str, stop: Stop | None = None) -> pa.Table:
    """All rows of a text that changes nothing, in memory.

    Raises as `answer`, and `InvalidError` for more than `EXPORT_BYTES` and for a statement that
    returns no rows.
    """
    _parsed(text, allows_changes=False)
    engine = _FirstRows(lake.allows_external_files, None, EXPORT_BYTES, stop=stop)
    rows = deque(results(_Session(lake.catalog), engine, text), maxlen=1)[0].to_arrow()
    if not rows.num_columns:
        raise InvalidError("the statement returns no rows to export; write a query")
    if rows.nbytes > EXPORT_BYTES:
        raise InvalidError(
            f"the result has more than {EXPORT_BYTES >> 20} MiB, the limit of an export; write "
            f"it with keytide sql --format csv, or select less"
        )
    return rows


def _parsed(text: str, *, allows_changes: bool) -> list[Statement]:
    statements = parse_statements(text)
    if not statements:
        raise InvalidError("the SQL text has no statement; write one, such as SHOW TABLES")
    if not allows_changes:
        refuse_changes(statements)
    return statements


class _Session:
    """The session of one text: USE affects only its later statements."""

    def __init__(self, catalog: AttachedCatalog) -> None:
        self.catalog = catalog

    def use(self, database: str) -> None:
        self.catalog = self.catalog.using(database)


@dataclass(frozen=True)
class _FirstRows(LocalEngine):
    """Ends a query after `rows_max` rows, or after the batch that exceeds `bytes_max`."""

    rows_max: int | None = None
    bytes_max: int = EXPORT_BYTES

    def query(self, bound: BoundQuery) -> Result:
        """See `LocalEngine`."""
        taken: list[pa.RecordBatch] = []

        def take(batch: pa.RecordBatch) -> None:
            taken.append(batch)
            if self._is_enough(taken):
                raise _EnoughError

        with suppress(_EnoughError):
            self.stream(bound, take)
        rows = pa.Table.from_batches(taken)
        return LocalResult(rows if self.rows_max is None else rows.slice(0, self.rows_max))

    def _is_enough(self, taken: Sequence[pa.RecordBatch]) -> bool:
        if self.rows_max is not None and sum(batch.num_rows for batch in taken) >= self.rows_max:
            return True
        return sum(int(batch.nbytes) for batch in taken) > self.bytes_max


class _EnoughError(Exception):
    """The query has returned enough rows."""
