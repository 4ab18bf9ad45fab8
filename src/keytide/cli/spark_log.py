"""Redirects Spark's own messages to a file while a command runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keytide.cli.output import note
from keytide.errors import KeytideError

__all__ = ["SparkLog", "spark_log"]


class SparkLog:
    """A file for the standard error of Spark's processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def standard_error(self) -> Iterator[None]:
        """Within the block, this process and all processes that it starts write to the file.

        Spark's driver and its Python workers inherit standard error. No setting of Spark covers
        what they write before the setting is read, or outside of Spark's log.
        """
        kept = os.dup(2)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.dup2(file, 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(file)
            os.close(kept)


@contextmanager
def spark_log() -> Iterator[SparkLog]:
    """A log that is kept, and named on standard error, if a command ends unexpectedly.

    A `KeytideError` does not need it: its message says what happened and what to do.
    """
    handle, name = tempfile.mkstemp(prefix="keytide-spark-", suffix=".log")
    os.close(handle)
    path = Path(name)
    is_wanted = False
    try:
        yield SparkLog(path)
    except KeytideError:
        raise
    except Exception:
        is_wanted = True
        note(f"Spark's own log is {path}")
        raise
    finally:
        if not is_wanted:
            path.unlink()
