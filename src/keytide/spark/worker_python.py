"""Checks of the Python in which Spark runs tasks: its version, and that it can import keytide."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import Any

from keytide.errors import SetupError
from keytide.spark.internals import is_connect

WAY_OUT = (
    "create the session with kt.spark.session(), or set PYSPARK_PYTHON to a Python of the same "
    "version with keytide installed before you create the session. On a cluster, install keytide "
    "on every host, or send an environment with spark-submit --archives, and name its Python in "
    "spark.pyspark.python"
)


_NEEDED = ("keytide", "polars", "pyarrow")


_QUESTION = f"""
import importlib.util, sys
lacking = [name for name in {_NEEDED} if importlib.util.find_spec(name) is None]
print("%d.%d" % sys.version_info[:2], *lacking)
"""


_ANSWER_SECONDS_MAX = 60


def check_python(spark: Any) -> None:
    """Raise `SetupError` if tasks would fail in the Python that the session starts for them.

    Checks local sessions only, and each one once. For a cluster, errors of its workers are
    explained when they occur.
    """
    if is_connect(spark) or not spark.sparkContext.master.startswith("local"):
        return
    context = spark.sparkContext
    own_path = spark.conf.get("spark.executorEnv.PYTHONPATH", "")
    _check(context.pythonExec, own_path)


@cache
def _check(executable: str, path: str) -> None:
    paths = [path, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    try:
        done = subprocess.run(
            [executable, "-c", _QUESTION],
            capture_output=True,
            text=True,
            check=True,
            timeout=_ANSWER_SECONDS_MAX,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(
            f"Spark runs tasks with {executable!r}, which cannot be run ({error}): {WAY_OUT}"
        ) from error
    version, *lacking = done.stdout.split()
    this = "{}.{}".format(*sys.version_info[:2])
    if version != this:
        raise SetupError(
            f"Spark runs tasks with {executable!r}, which is Python {version}, but this is "
            f"Python {this}: {WAY_OUT}"
        )
    if lacking:
        raise SetupError(
            f"Spark runs tasks with {executable!r}, which cannot import {', '.join(lacking)}: "
            f"{WAY_OUT}"
        )
