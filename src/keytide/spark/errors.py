"""Keytide's errors on their way back from executors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

import keytide.errors
from keytide.errors import KeytideError

__all__ = ["keytide_error", "on_driver"]

# The last line of a Python traceback, up to what the JVM writes behind it.
_RAISED = re.compile(
    r"^keytide\.errors\.(\w+): (.*?)(?=\n\n|\n\s*(?:at |SQLSTATE|Driver stacktrace)|\Z)",
    re.MULTILINE | re.DOTALL,
)


@contextmanager
def on_driver() -> Iterator[None]:
    """Raise what a task raised as the same kind of Keytide error, where it was one."""
    try:
        yield
    except PySparkException as error:
        found = keytide_error(str(error))
        if found is None:
            raise
        raise found from error


def keytide_error(text: str) -> KeytideError | None:
    """The Keytide error that a Python traceback in `text` ends with, or None."""
    raised = list(_RAISED.finditer(text))
    if not raised:
        return None
    name, message = raised[-1].groups()
    kind = getattr(keytide.errors, name, KeytideError)
    error: KeytideError = kind(message.strip())
    return error
