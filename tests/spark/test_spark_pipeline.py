"""The pipeline of demo/pipeline, run as its users run it: on Spark Connect, by Spark's command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import behind_writers
import pyarrow.parquet as pq
import pyspark
import pytest

import keytide as kt

pytestmark = [pytest.mark.spark, pytest.mark.driver, pytest.mark.slow, pytest.mark.soak]

EXAMPLE = Path(__file__).parents[2] / "demo/pipeline"
COMMAND = Path(pyspark.__file__).parent / "bin/spark-pipelines"

SPEC = """
name: shop
storage: file://{folder}/state
configuration:
  shop.feed: {folder}/feed
  shop.lake: {folder}/lake
libraries:
  - glob:
      include: transformations/**
"""


def run(command: list[str], folder: Path) -> None:
    path = behind_writers.python_path(str(Path(kt.__file__).parents[1]))
    settings = "--conf spark.driver.memory=512m --conf spark.ui.enabled=false pyspark-shell"
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=580,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": settings,
        },
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]


@pytest.mark.timeout(600)
def test_pipeline_writes_to_a_table_and_reads_from_others(tmp_path: Path) -> None:
    (tmp_path / "transformations").symlink_to(EXAMPLE / "transformations")
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    run([sys.executable, str(EXAMPLE / "make_tables.py"), str(tmp_path)], tmp_path)
    run([str(COMMAND), "run"], tmp_path)

    orders = kt.connect(tmp_path / "lake").table("shop.orders")
    assert sorted((row["id"], row["status"]) for row in orders.scan().to_pylist()) == [
        (1, "paid"),
        (2, "new"),
    ]
    assert orders.snapshots()[-1].commit_user.startswith("spark-")
    counts = pq.read_table(tmp_path / "spark-warehouse/customers_by_country").to_pylist()
    assert counts == [{"country": "PT", "count": 2}]
    changes = pq.read_table(tmp_path / "spark-warehouse/customer_changes").to_pylist()
    assert sorted((row["_row_kind"], row["id"]) for row in changes) == [("+I", 1), ("+I", 2)]
