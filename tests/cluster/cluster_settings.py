"""What sessions with executors of their own need."""

from __future__ import annotations

from pathlib import Path

__all__ = ["S3A_JARS", "cluster_settings"]

EXECUTORS = 2
S3A_JARS = Path(__file__).parents[2] / ".venv-s3a/jars"


def cluster_settings(scratch: Path) -> dict[str, str]:
    """Two executors of one core. Blocks of the other executor arrive last."""
    from keytide.spark.capacity import SETTING, TASK_SIZE

    settings = {
        "spark.master": f"local-cluster[{EXECUTORS},1,1024]",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "900m",
        "spark.sql.shuffle.partitions": "4",
        # A task is tried twice, and one that was killed ends soon: tests wait for both.
        "spark.task.maxFailures": "2",
        "spark.python.task.killTimeout": "200ms",
        # Rows reach Python in many pieces, as large amounts do.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        # All that tests read is small: the driver alone, or one task, would do all the work.
        SETTING: "0",
        TASK_SIZE: "256 kb",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
    }
    if S3A_JARS.exists():
        for role in ("driver", "executor"):
            settings[f"spark.{role}.extraClassPath"] = f"{S3A_JARS}/*"
    return settings
