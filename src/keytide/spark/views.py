"""Temporary views of the data source that show the latest snapshot to each query.

Spark plans the read of a Python data source once per view. Therefore a view that was created by
`CREATE TEMPORARY VIEW ... USING keytide` is recreated before a query that may use it, if its table
has a newer snapshot. This works in classic sessions only, because a Spark Connect session does not
say whether a view of that name is still the same one.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, SparkSession

from keytide.errors import KeytideError
from keytide.snapshot.stored import StoredTable
from keytide.spark.connect import is_connect
from keytide.spark.source_options import SourceOptions
from keytide.spark.view_statements import explained, note_view

__all__ = ["keep_views_new"]


def keep_views_new(source: str) -> None:
    """Keep the views of a source current for `sql` and `table` of every session, from now on.

    A statement that Spark cannot run on a view raises an error that says what to do instead. A
    Spark Connect session does only that.
    """
    views = _views_of(source)
    connect: Any = sys.modules.get("pyspark.sql.connect.session")
    if connect is not None and not hasattr(connect.SparkSession.sql, "__wrapped__"):
        connect.SparkSession.sql = _noting(connect.SparkSession.sql, views)


@cache
def _views_of(source: str) -> _Views:
    views = _Views(source, SparkSession.sql)
    SparkSession.sql = _noting(SparkSession.sql, views)
    SparkSession.table = _renewing(SparkSession.table, views, lambda spark: spark)
    DataFrameReader.table = _renewing(DataFrameReader.table, views, lambda reader: reader._spark)
    return views


def _noting(original: Any, views: _Views) -> Any:
    @wraps(original)
    def sql(self: Any, sqlQuery: str, *arguments: Any, **named: Any) -> Any:  # noqa: N803  # Spark's name
        views.renew(self)
        try:
            made = original(self, sqlQuery, *arguments, **named)
        except (PySparkException, Py4JError) as error:
            if (instead := explained(self, sqlQuery, error, views.source)) is not error:
                raise instead from None
            raise
        views.note(self, sqlQuery)
        return made

    return sql


def _renewing(original: Any, views: _Views, session_of: Any) -> Any:
    @wraps(original)
    def table(self: Any, *arguments: Any, **named: Any) -> Any:
        views.renew(session_of(self))
        return original(self, *arguments, **named)

    return table


@dataclass(frozen=True)
class _View:
    """A view, and the latest snapshot and schema of its table when it was created.

    `plan` is what Spark's catalog had under its name at that time. `renewal` is the statement that
    recreates it.
    """

    name: str
    is_global: bool
    renewal: str
    table: StoredTable
    seen: tuple[int, int]
    plan: Any

    @property
    def newest(self) -> tuple[int, int]:
        """The ids of the latest snapshot, 0 if there is none, and of the latest schema."""
        return _newest(self.table)


def _newest(table: StoredTable) -> tuple[int, int]:
    seen = table.pinned()
    return seen.metadata.latest_snapshot_id() or 0, seen.schema.id


class _Views:
    """The views of this process that may have to be recreated, by session."""

    def __init__(self, source: str, run: Any) -> None:
        self.source = source
        self._made = re.compile(_MADE.format(gap=_GAP, source=source), re.IGNORECASE | re.DOTALL)
        self._run = run
        self._of_sessions: dict[str, dict[str, _View]] = {}

    def note(self, spark: Any, text: str) -> None:
        """Remember the view that a statement created, if it can become outdated."""
        found = self._made.match(text)
        if found is None:
            return
        with suppress(*_ERRORS):
            options = SourceOptions.parse(_options(found["rest"]))
            table = options.table()
            note_view(spark, _unquoted(found["name"]), table.name)
            if options.travels or is_connect(spark):
                return
            view = _View(
                _unquoted(found["name"]),
                found["global"] is not None,
                _renewal(found),
                table,
                _newest(table),
                None,
            )
            self._keep(spark, view)

    def renew(self, spark: Any) -> None:
        """Recreate the outdated views of a session."""
        if not self._of_sessions or is_connect(spark):
            return
        known = self._of_sessions.get(_session_id(spark), {})
        for view in list(known.values()):
            with suppress(*_ERRORS):
                newest = view.newest
                if newest == view.seen:
                    continue
                plan = _plan_of(spark, view)
                if plan is None or not _is_same(spark, plan, view.plan):
                    del known[view.name]  # it was dropped or replaced
                elif not spark.catalog.isCached(_full_name(spark, view)):
                    self._run(spark, view.renewal)
                    self._keep(spark, replace(view, seen=newest))

    def _keep(self, spark: Any, view: _View) -> None:
        known = self._of_sessions.setdefault(_session_id(spark), {})
        known[view.name] = replace(view, plan=_plan_of(spark, view))


# An invalid view raises an error when it is queried, but other queries must not fail because of it.
_ERRORS = KeytideError, PySparkException, Py4JError


# -- the text of a statement ----------------------------------------------------------------------

_GAP = r"(?:\s|--[^\n]*\n|/\*.*?\*/)"
_MADE = (
    r"{gap}*CREATE{gap}+(?:OR{gap}+REPLACE{gap}+)?(?P<global>GLOBAL{gap}+)?TEMP(?:ORARY)?{gap}+"
    r"VIEW{gap}+(?P<name>`(?:[^`]|``)+`|\w+)(?P<columns>{gap}*\(.*?\))?{gap}*"
    r"USING{gap}+`?{source}`?\b(?P<rest>.*)"
)
_PAIR = re.compile(
    r"(?P<key>`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\w.]+)\s*(?:=\s*)?"
    r"(?P<value>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\w.]+)"
)


def _renewal(made: re.Match[str]) -> str:
    kind = "GLOBAL TEMPORARY" if made["global"] else "TEMPORARY"
    columns = made["columns"] or ""
    using = made.string[made.end("columns") if columns else made.end("name") :]
    return f"CREATE OR REPLACE {kind} VIEW {made['name']}{columns} {using}"


def _options(rest: str) -> dict[str, str]:
    inside = rest.partition("(")[2].rpartition(")")[0]
    return {
        _unquoted(pair["key"]).lower(): _unquoted(pair["value"]) for pair in _PAIR.finditer(inside)
    }


def _unquoted(text: str) -> str:
    if text[0] == "`":
        return text[1:-1].replace("``", "`")
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text[0] in "'\"" else text


# -- views in a classic session --------------------------------------------------------------------


def _session_id(spark: Any) -> str:
    return str(spark._jsparkSession.sessionUUID())


def _full_name(spark: Any, view: _View) -> str:
    quoted = "`{}`".format(view.name.replace("`", "``"))
    return f"global_temp.{quoted}" if view.is_global else quoted


def _plan_of(spark: Any, view: _View) -> Any:
    """What Spark's catalog has under the name of a view, None if there is nothing."""
    catalog = spark._jsparkSession.sessionState().catalog()
    of = catalog.getRawGlobalTempView if view.is_global else catalog.getRawTempView
    found = of(view.name)
    return found.get() if found.isDefined() else None


def _is_same(spark: Any, one: Any, other: Any) -> bool:
    identity = spark._jvm.java.lang.System.identityHashCode
    return bool(identity(one) == identity(other))
