"""A process with Spark and its source for Kafka, which `make kafka` fetches."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

__all__ = ["JARS", "begin", "skip_where_missing"]

_HOME = Path(__file__).parents[2] / ".venv-spark-kafka"
JARS = _HOME / "jars"


def skip_where_missing() -> None:
    """Skip the test where it could not be fetched."""
    if not (_HOME / ".ready").exists():
        why = _HOME / "why-not"
        pytest.skip(why.read_text().strip() if why.exists() else "make kafka fetches the connector")


def begin(program: str, *given: str) -> subprocess.Popen[str]:
    """Begin a program in a group of processes of its own."""
    python = str(_HOME / "bin" / "python")
    return subprocess.Popen(
        [python, "-c", program, *given], start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYSPARK_PYTHON": python},
    )  # fmt: skip
