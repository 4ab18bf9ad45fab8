"""Spark with executors in processes of their own, which share no memory with the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTORS = 2


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two executors of one core. Blocks of the other executor arrive last."""
    import keytide.spark
    from keytide.spark.place import SETTING
    from keytide.spark.sizing import TASK_SIZE

    scratch = tmp_path_factory.mktemp("cluster")
    session = keytide.spark.session(
        **{
            "spark.master": f"local-cluster[{EXECUTORS},1,1024]",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "900m",
            "spark.sql.shuffle.partitions": "4",
            # Rows reach Python in many pieces, as large amounts do.
            "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
            # All that tests read is small: the driver alone, or one task, would do all the work.
            SETTING: "0",
            TASK_SIZE: "256 kb",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.local.dir": str(scratch / "local"),
        }
    )
    yield session
    session.stop()
