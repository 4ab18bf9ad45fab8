"""Statements that Spark cannot run on a temporary view of a table: the error that says what does.

Spark reports a view as an unknown table, a missing feature or an internal error, depending on the
statement.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from keytide.errors import KeytideError, UnsupportedError
from keytide.spark.connect import is_connect
from keytide.spark.errors import both_errors

__all__ = ["explained", "note_view"]

_GAP = r"(?:\s|--[^\n]*\n|/\*.*?\*/)"
_NAME = r"(?P<name>(?:global_temp\s*\.\s*)?(?:`(?:[^`]|``)+`|\w+))"
_STATEMENTS = tuple(
    re.compile(rf"{_GAP}*{pattern}".replace(" ", f"{_GAP}+"), re.IGNORECASE | re.DOTALL)
    for pattern in (
        rf"(?P<verb>DELETE) FROM {_NAME}",
        rf"(?P<verb>UPDATE) {_NAME}",
        rf"(?P<verb>MERGE)(?: WITH SCHEMA EVOLUTION)? INTO {_NAME}",
        rf"(?P<verb>TRUNCATE) TABLE {_NAME}",
        rf"(?P<verb>ALTER) TABLE {_NAME}",
        rf"(?P<verb>ANALYZE) TABLE {_NAME}",
        rf"(?P<verb>DESC(?:RIBE)? (?:HISTORY|DETAIL)) {_NAME}",
        rf"(?P<verb>SHOW (?:PARTITIONS|CREATE TABLE)) {_NAME}",
        rf"(?:SELECT|WITH)\b.*?\b(?:FROM|JOIN) {_NAME} (?:FOR )?"
        r"(?P<verb>(?:SYSTEM_VERSION|VERSION|SYSTEM_TIME|TIMESTAMP) AS OF)\b",
    )
)


def note_view(spark: SparkSession, view: str, table: str) -> None:
    """Remember that a view of a session shows a table."""
    _VIEWS.setdefault(spark, {})[view.lower()] = table


def explained(spark: Any, text: str, error: Exception, source: str) -> Exception:
    """The error to raise instead of one that a statement raised.

    It is the same error, unless the statement cannot run on a view, and the view shows a table. A
    view of the data source `source` does.
    """
    match = next((m for each in _STATEMENTS if (m := each.match(text)) is not None), None)
    if match is None or isinstance(error, KeytideError):
        return error
    view = match["name"].replace("`", "").removeprefix("global_temp.").strip()
    table = _VIEWS.get(spark, {}).get(view.lower())
    if table is None and not _is_of_source(spark, match["name"], source):
        return error
    verb = " ".join(match["verb"].upper().split())
    shown = "a table of Keytide" if table is None else f"table {table}"
    found = UnsupportedError(
        f"view {view} shows {shown}, and Spark cannot run {verb} on a view. Run the statement with "
        f"lake.sql, where lake = keytide.connect(warehouse, spark=spark), and the name "
        f"{table or 'of the table'} instead of {view}"
    )
    return both_errors(found, error, str(error))


def _is_of_source(spark: Any, name: str, source: str) -> bool:
    """Whether Spark reads a view from a data source. Unknown on Spark Connect."""
    if is_connect(spark):
        return False
    with suppress(PySparkException, Py4JError):
        plan: Any = spark.table(name)._jdf.queryExecution().analyzed()
        return re.search(rf"\] {re.escape(source)}\b", str(plan.toString())) is not None
    return False


_VIEWS: WeakKeyDictionary[SparkSession, dict[str, str]] = WeakKeyDictionary()
