"""Where a command runs its tasks: in threads of this process, or as Spark jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from keytide.cli.progress import TrackedThreads
from keytide.cli.spark_log import SparkLog, spark_log
from keytide.compaction.compact import local_runner
from keytide.errors import SetupError
from keytide.tasks.runner import TaskRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkMaster", "spark_session", "tasks_run"]

_MASTER = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?|yarn|(spark|k8s|sc)://.+")


def _checked(master: str | None) -> str | None:
    if master is not None and not _MASTER.fullmatch(master):
        raise typer.BadParameter(
            f"{master!r} is not a Spark master; expected local[*], local[4], spark://host:7077, "
            "yarn, k8s://... or sc://host"
        )
    return master


SparkMaster = Annotated[
    str | None,
    typer.Option(
        "--spark",
        metavar="MASTER",
        callback=_checked,
        help="Run on Spark with one task per bucket: local[*], spark://host:7077, yarn, or "
        "sc://host for a Spark Connect server. Default: threads of this process. Requires pip "
        "install 'keytide[spark]'.",
        show_default=False,
    ),
]


@contextmanager
def tasks_run(on_spark: str | None, what: str) -> Iterator[TaskRunner]:
    """Runs tasks within a block: in threads with a progress bar that counts `what`, or on a master.

    Raises `SetupError` if pyspark or Java is missing, or if Spark does not start.
    """
    if on_spark is None:
        yield TrackedThreads(local_runner(), what)
        return
    # Spark is an extra. If it is missing, the error of this import says how to install it.
    from keytide.spark.runner import Cluster

    with spark_log() as log:
        yield Cluster(spark_session(on_spark, log))


def spark_session(master: str | None, log: SparkLog) -> SparkSession:
    """A session on a master, or a local one. Raises `SetupError` if Spark does not start."""
    from pyspark.errors import PySparkException

    from keytide.spark.errors import on_driver
    from keytide.spark.sessions import session

    try:
        with log.standard_error(), on_driver():
            if master is None:
                return session()
            return session({"remote" if master.startswith("sc://") else "master": master})
    except PySparkException as error:
        raise SetupError(
            f"Spark could not start with --spark {master or 'local[*]'}: {error}"
        ) from error
