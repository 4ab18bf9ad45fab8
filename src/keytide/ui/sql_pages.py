"""Pages for SQL: queries, exports, and plans.

It is decided here which statements of a page can run, and how much of their result is shown. The
plan of a query is a tree: what is read of each table, and what is pruned.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

import pyarrow as pa
from pyarrow import parquet
from starlette.responses import Response

from keytide.base.dataclass import dataclass
from keytide.base.text import check_spelled, csv_header, csv_lines
from keytide.dml.attachments import AttachedCatalog
from keytide.errors import InvalidError, KeytideError, UnsupportedError
from keytide.lake.lake import Lake
from keytide.show.chart import Chart, chart_of, chart_picture
from keytide.show.elements import Cell, Column, columns_of, rows_of
from keytide.show.explanations import Plan
from keytide.sql.engine_text import QueryAnalysis
from keytide.sql.execution import results
from keytide.sql.grammar import parse_statements
from keytide.sql.local_engine import LocalEngine
from keytide.sql.local_query import Stop
from keytide.sql.relation import StoredRelation
from keytide.sql.relations import BoundQuery, bind
from keytide.sql.result import LocalResult, PlanResult, Result
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
from keytide.ui.http import Form, RequestParameters, Run, Site

# -- plans as trees --------------------------------------------------------------------------------


def plan_of(bound: BoundQuery) -> Plan:
    """The tables of a query, without reading rows. Raises what planning their scans raises."""
    tables = []
    for relation in bound.relations:
        if isinstance(relation, StoredRelation):
            tables.append(relation.scan().explain().plan(tuple(relation.needs())))
        else:
            title, *notes = relation.plan_lines()
            tables.append(Plan(title, tuple(notes)))
    notes = [] if tables else ["reads no table"]
    return Plan("query, computed by DuckDB", tuple(notes), children=tuple(tables))


def plan_of_analysis(found: QueryAnalysis) -> Plan:
    """What was measured of a query, and below it the tables that it read."""
    notes = (found.summary,) if found.relations else (found.summary, "reads no table")
    tables = []
    for relation in found.relations:
        stages = () if relation.scan is None else relation.scan.planned.funnel.stages
        tables.append(Plan(relation.title, (relation.summary, *relation.lines()), tuple(stages)))
    return Plan("query", notes, children=tuple(tables))


# -- statements and their answers ------------------------------------------------------------------


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
            # The name of its class, as SQL keywords.
            letters = type(statement).__name__
            words = "".join(f" {each}" if each.isupper() else each for each in letters)
            name = words.strip().upper()
            if isinstance(statement, Explain):
                name = f"EXPLAIN ANALYZE {type(statement.query).__name__.upper()}"
            raise UnsupportedError(
                f"{name} can change the lake, and these pages are read-only; restart "
                f"them with keytide ui --allow-changes, or run the statement with keytide sql"
            )


def _is_plan(statement: Statement) -> bool:
    """Whether a statement is an EXPLAIN that at most runs a query."""
    if not isinstance(statement, Explain):
        return False
    return not statement.analyze or isinstance(statement.query, Query)


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
    seconds = time.perf_counter() - begun
    if isinstance(result, PlanResult):
        return Answer(seconds, plan=result.plan)
    rows = result.to_arrow()
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
            rows_max = self.rows_max
            is_full = rows_max is not None and sum(each.num_rows for each in taken) >= rows_max
            if is_full or sum(int(each.nbytes) for each in taken) > self.bytes_max:
                raise _EnoughError

        with suppress(_EnoughError):
            self.stream(bound, take)
        rows = pa.Table.from_batches(taken)
        return LocalResult(rows if self.rows_max is None else rows.slice(0, self.rows_max))


class _EnoughError(Exception):
    """The query has returned enough rows."""


# -- the SQL page, and exports ---------------------------------------------------------------------


RUN = "run"
"""The field of a form with the number of its page, by which a query is cancelled."""

_RUN_BYTES = 12

_BEFORE = {"explain": "EXPLAIN ", "analyze": "EXPLAIN ANALYZE "}


def show(site: Site, parameters: RequestParameters) -> Response:
    """The page with a text. The text is not run."""
    return _page(site, parameters.text("text") or "")


def run(site: Site, form: Form, here: Run) -> Response:
    """Run or explain a text, and show its result below it."""
    text = form.get("text", "")
    wanted = _BEFORE.get(form.get("what", ""), "") + text
    ask = partial(answer, site.lake, wanted, allows_changes=site.allows_changes)
    try:
        # A statement that changes something is not stopped: nobody would know whether it was done.
        statements = parse_statements(wanted)
        is_looking = all(_is_plan(each) or isinstance(each, _LOOKING) for each in statements)
        found = site.runs.result(here, lambda stop: ask(stop=stop)) if is_looking else ask()
    except KeytideError as error:
        return _page(site, text, status=400, problem=str(error))
    return _page(site, text, found)


def _page(
    site: Site, text: str, found: Answer | None = None, *, status: int = 200,
    problem: str | None = None, note: str | None = None,
) -> Response:  # fmt: skip
    picture = None if found is None or found.chart is None else chart_picture(found.chart)
    return site.page(
        "sql.html", status, table=None, view="sql", text=text, answer=found, picture=picture,
        problem=problem, note=note, run=secrets.token_urlsafe(_RUN_BYTES),
    )  # fmt: skip


def cancel(site: Site, parameters: RequestParameters, form: Form) -> Response:
    """Cancel what runs for a page."""
    cancelled = site.runs.cancel(form.get(RUN, ""))
    note = "The query was cancelled." if cancelled else "No query of this page is running."
    return _page(site, form.get("text", ""), note=note)


def export(site: Site, form: Form, here: Run) -> Response:
    """The rows of a text as a file."""
    kind = form.get("format", "")
    if kind not in _WRITERS:
        raise InvalidError(f"format is {kind!r}; expected one of {', '.join(_WRITERS)}")
    rows = site.runs.result(here, partial(exported, site.lake, form.get("text", "")))
    media_type, write = _WRITERS[kind]
    headers = {"Content-Disposition": f'attachment; filename="result.{kind}"'}
    return Response(write(rows), media_type=media_type, headers=headers)


def _csv(rows: pa.Table) -> bytes:
    check_spelled(rows.schema)
    return csv_header(rows.schema) + b"".join(csv_lines(batch) for batch in rows.to_batches())


def _parquet(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    try:
        parquet.write_table(rows, sink)
    except pa.ArrowException as error:
        raise InvalidError(f"the result cannot be written as Parquet: {error}") from error
    return bytes(sink.getvalue())


_WRITERS = {
    "csv": ("text/csv; charset=utf-8", _csv),
    "parquet": ("application/vnd.apache.parquet", _parquet),
}
