"""Spark Connect: how to recognize its objects, and what they do not expose.

Other servers than Apache Spark's answer the protocol too, such as Sail. They need not keep the
order of rows, number their tasks, or know the parts of SQL and of DataFrames that are Spark's own.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException

from keytide.errors import UnsupportedError

__all__ = [
    "is_apache_spark",
    "is_connect",
    "refuse_other_servers",
    "runs_batch_function",
    "server_name",
]


def is_connect(handle: Any) -> bool:
    """Whether a session or DataFrame belongs to Spark Connect."""
    return type(handle).__module__.startswith("pyspark.sql.connect.")


def runs_batch_function() -> bool:
    """Whether this process is a Connect server's worker that runs `foreachBatch` functions."""
    return "SPARK_CONNECT_LOCAL_URL" in os.environ


def is_apache_spark(session: Any) -> bool:
    """Whether Apache Spark answers a session. Asks the server once."""
    # Spark's own version is followed by a git revision.
    return not is_connect(session) or len(_version(session).split()) == 2


def server_name(session: Any) -> str:
    """The server of a session that is not Apache Spark's, for messages."""
    return f"Sail {_version(session)}" if _is_sail(session) else "this Spark Connect server"


def _version(session: Any) -> str:
    if session not in _VERSIONS:
        (version,) = session.sql("SELECT version()").first()
        _VERSIONS[session] = str(version)
    return _VERSIONS[session]


_VERSIONS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _is_sail(session: Any) -> bool:
    with suppress(PySparkException):
        return bool(session.catalog.currentCatalog() == "sail")
    return False


def refuse_other_servers(session: Any, what: str, lacking: str, instead: str) -> None:
    """Raise `UnsupportedError` if a session's server is not Apache Spark, and lacks something."""
    if not is_apache_spark(session):
        raise UnsupportedError(
            f"{what} needs {lacking}, which {server_name(session)} does not have. "
            f"{instead}, or use a session of Apache Spark"
        )
