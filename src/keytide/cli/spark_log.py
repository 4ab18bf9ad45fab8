"""Where Spark's own words go while a command runs: into a file, out of the way of the command's."""

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
    """A file for what Spark's processes write to standard error."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def standard_error(self) -> Iterator[None]:
        """Processes that start in here, and theirs, write to the file; so does this one until then.

        Spark's driver and its Python workers inherit their standard error, and no setting of Spark
        reaches what they write before it is read or past the log.
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
    """A log that stays, and is named on standard error, where a command ends unexpectedly.

    An error of Keytide's says itself what happened and what to do.
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
