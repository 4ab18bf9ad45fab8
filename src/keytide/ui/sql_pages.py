"""The SQL page, and exports of its rows as files."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

import pyarrow as pa
from pyarrow import parquet
from starlette.responses import Response

from keytide.base.row_lines import check_spelled, csv_header, csv_lines
from keytide.errors import InvalidError, KeytideError
from keytide.show.chart_picture import chart_picture
from keytide.sql.stopping import Stop
from keytide.ui.asked import Asked, Form
from keytide.ui.querying import Answer, answer, changes_nothing, exported
from keytide.ui.running import Run
from keytide.ui.site import Site

__all__ = ["RUN", "cancel", "export", "run", "show"]

RUN = "run"
"""The field of a form with the number of its page, by which a query is cancelled."""

_RUN_BYTES = 12

_BEFORE = {"explain": "EXPLAIN ", "analyze": "EXPLAIN ANALYZE "}


def show(site: Site, asked: Asked) -> Response:
    """The page with a text. The text is not run."""
    return _page(site, asked.text("text") or "")


def run(site: Site, form: Form, here: Run) -> Response:
    """Run or explain a text, and show its result below it."""
    text = form.get("text", "")
    wanted = _BEFORE.get(form.get("what", ""), "") + text
    ask = partial(answer, site.lake, wanted, allows_changes=site.allows_changes)
    try:
        # A statement that changes something is not stopped: nobody would know whether it was done.
        found = site.runs.result(here, _stopped_by(ask)) if changes_nothing(wanted) else ask()
    except KeytideError as error:
        return _page(site, text, status=400, problem=str(error))
    return _page(site, text, found)


def _stopped_by(ask: Callable[..., Answer]) -> Callable[[Stop], Answer]:
    return lambda stop: ask(stop=stop)


def _page(
    site: Site, text: str, found: Answer | None = None, *, status: int = 200,
    problem: str | None = None, note: str | None = None,
) -> Response:  # fmt: skip
    picture = None if found is None or found.chart is None else chart_picture(found.chart)
    return site.page(
        "sql.html", status, table=None, view="sql", text=text, answer=found, picture=picture,
        problem=problem, note=note, run=secrets.token_urlsafe(_RUN_BYTES),
    )  # fmt: skip


def cancel(site: Site, asked: Asked, form: Form) -> Response:
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
