"""Spark with executors in processes of their own, which share no memory with the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from cluster_settings import cluster_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of the run."""
    import keytide.spark

    session = keytide.spark.session(cluster_settings(tmp_path_factory.mktemp("cluster")))
    yield session
    session.stop()
