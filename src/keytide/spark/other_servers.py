"""Uses of a data source that Spark Connect servers other than Apache Spark's lack or misunderstand.

They are refused before they reach the server: Sail appends for every save mode but `overwrite`, and
has no streams of Python data sources.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

from keytide.errors import UnsupportedError
from keytide.spark.connect import is_apache_spark, refuse_other_servers, server_name

__all__ = ["refuse_what_they_lack"]

_MODES = ("append", "overwrite")


def refuse_what_they_lack(source: str) -> None:
    """Refuse such uses of a source in every Spark Connect session of this process, from now on."""
    batches: Any = sys.modules.get("pyspark.sql.connect.readwriter")
    streams: Any = sys.modules.get("pyspark.sql.connect.streaming.readwriter")
    if batches is None or hasattr(batches.DataFrameWriter.save, "__wrapped__"):
        return
    _check_before(batches.DataFrameWriter, "save", _check_mode, source)
    _check_before(streams.DataStreamReader, "load", _check_read, source)
    _check_before(streams.DataStreamWriter, "start", _check_write, source)


def _check_before(
    owner: Any, name: str, check: Callable[[Any, dict[str, Any]], None], source: str
) -> None:
    """Run a check before a method of a reader or writer, if it is used for a source."""
    original = getattr(owner, name)

    @wraps(original)
    def checked(self: Any, *arguments: Any, **named: Any) -> Any:
        given = signature(original).bind(self, *arguments, **named).arguments
        if str(given.get("format") or _format_of(self)).lower() == source:
            check(self, given)
        return original(self, *arguments, **named)

    setattr(owner, name, checked)


def _format_of(made: Any) -> Any:
    """The format that a reader or writer was given before."""
    if hasattr(made, "_write"):
        return made._write.source
    return made._format if hasattr(made, "_format") else made._write_proto.format


def _check_mode(writer: Any, given: dict[str, Any]) -> None:
    mode = given.get("mode") or writer._write.mode or "error"
    if str(mode).lower() not in _MODES and not is_apache_spark(writer._spark):
        raise UnsupportedError(
            f"save mode {mode!r} is not supported: {server_name(writer._spark)} would append. Set "
            "mode('append') or mode('overwrite')"
        )


def _check_read(reader: Any, given: dict[str, Any]) -> None:
    refuse_other_servers(
        reader._client,
        "a stream of a table",
        "streams of Python data sources",
        "Read table.changes(start=...).to_spark(spark) from time to time",
    )


def _check_write(writer: Any, given: dict[str, Any]) -> None:
    refuse_other_servers(
        writer._session,
        "a stream into a table",
        "streams of Python data sources",
        "Write batches with table.write(df)",
    )
