"""Spark with executors in processes of their own, which share no memory with the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster_settings import cluster_settings

from keytide.commit import transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


QUIET_S = 0.5
"""How long no file may have appeared: longer than a killed task runs on in this session."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of the run."""
    import keytide.spark

    scratch = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as environment:
        # Otherwise executors work in folders beside Spark's own jars.
        environment.setenv("SPARK_WORKER_DIR", str(scratch / "work"))
        environment.setattr(transaction, "_QUIET_S", QUIET_S)
        session = keytide.spark.session(cluster_settings(scratch))
        yield session
        session.stop()


@contextmanager
def _workers(spark: SparkSession, folder: Path, command: str) -> Iterator[None]:
    """A context in which workers of the session are started by a command of the shell."""
    executable = folder / "worker"
    executable.write_text(f"#!/bin/sh\n{command}\n")
    executable.chmod(0o755)
    context = spark.sparkContext
    before, context.pythonExec = context.pythonExec, str(executable)
    try:
        yield
    finally:
        context.pythonExec = before


@pytest.fixture
def workers(cluster: SparkSession, tmp_path: Path) -> Callable[[str], AbstractContextManager[None]]:
    """Starts the workers of the session in another way, which a command of the shell says."""
    return partial(_workers, cluster, tmp_path)
