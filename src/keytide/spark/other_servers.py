"""Uses of a data source that Spark Connect servers other than Apache Spark's lack or misunderstand.

They are refused before they reach the server: Sail appends for every save mode but `overwrite`, and
has no streams of Python data sources.
"""

from __future__ import annotations

from typing import Any

from keytide.errors import UnsupportedError
from keytide.spark.connect import is_apache_spark, refuse_other_servers, server_name
from keytide.spark.internals import check_uses

__all__ = ["refuse_what_they_lack"]

_MODES = ("append", "overwrite")
_STREAMS = "streams of Python data sources"


def refuse_what_they_lack(source: str) -> None:
    """Refuse such uses of a source in every Spark Connect session of this process, from now on."""
    check_uses(source, _check_mode, _check_read, _check_write)


def _check_mode(session: Any, mode: str | None) -> None:
    mode = mode or "error"
    if mode.lower() not in _MODES and not is_apache_spark(session):
        raise UnsupportedError(
            f"save mode {mode!r} is not supported: {server_name(session)} would append. Set "
            "mode('append') or mode('overwrite')"
        )


def _check_read(session: Any, mode: str | None) -> None:
    instead = "Read table.changes(start=...).to_spark(spark) from time to time"
    refuse_other_servers(session, "a stream of a table", _STREAMS, instead)


def _check_write(session: Any, mode: str | None) -> None:
    instead = "Write batches with table.write(df)"
    refuse_other_servers(session, "a stream into a table", _STREAMS, instead)
