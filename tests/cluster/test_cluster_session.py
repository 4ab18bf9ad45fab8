"""Sessions in processes of their own: what spark-submit and Spark's files say is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

import keytide as kt
from keytide.errors import SetupError
from keytide.spark.error_translation import keytide_error
from keytide.spark.sessions import submitted_settings

pytestmark = pytest.mark.cluster

SCRIPT = """
import json
import keytide as kt
spark = kt.spark.session()
names = ("spark.master", "spark.driver.memory", "spark.app.name", "spark.sql.session.timeZone")
print(json.dumps({name: spark.conf.get(name) for name in names}))
spark.stop()
"""
HOME = str(Path(pyspark.__file__).parent)
FOR_SPARK = {"spark.master": "local[3]", "spark.driver.memory": "611m", "spark.app.name": "mine"}
ARGUMENTS = "--master local[3] --driver-memory 611m --name mine"


def session_of(tmp_path: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
    return subprocess.run(
        command,
        cwd=tmp_path,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", ["spark-submit", "variable", "file"])
def test_settings_that_spark_was_given_are_kept(way: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    python = (sys.executable, str(script))
    if way == "spark-submit":
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        submit = (f"{HOME}/bin/spark-submit", *ARGUMENTS.split(), str(script))
        done = session_of(tmp_path, *submit, SPARK_HOME=HOME, PATH=path)
    elif way == "variable":
        done = session_of(tmp_path, *python, PYSPARK_SUBMIT_ARGS=f"{ARGUMENTS} pyspark-shell")
    else:
        lines = [f"{key} {value}\n" for key, value in FOR_SPARK.items()]
        (tmp_path / "spark-defaults.conf").write_text("".join(lines))
        done = session_of(tmp_path, *python, SPARK_CONF_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {**FOR_SPARK, "spark.sql.session.timeZone": "UTC"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell"}, {"spark.master": "yarn"}),
        ({"PYSPARK_SUBMIT_ARGS": "--master=yarn x"}, {"spark.master": "yarn"}),
        ({"PYSPARK_SUBMIT_ARGS": "--conf 'spark.a=b c' -c spark.d=e=f x"},
         {"spark.a": "b c", "spark.d": "e=f"}),
        ({"SPARK_MASTER": "spark://a:1", "MASTER": "local"}, {"spark.master": "spark://a:1"}),
        ({"SPARK_MASTER": "local", "PYSPARK_SUBMIT_ARGS": "--master yarn x"},
         {"spark.master": "yarn"}),
        ({"SPARK_REMOTE": "sc://host"}, {"spark.remote": "sc://host"}),
        ({}, {}),
    ],
)  # fmt: skip
def test_settings_are_found_before_spark_starts(
    environment: dict[str, str], expected: dict[str, str], tmp_path: Path
) -> None:
    assert submitted_settings({"SPARK_CONF_DIR": str(tmp_path), **environment}) == expected


def test_arguments_with_an_open_quote_are_refused() -> None:
    with pytest.raises(SetupError, match=r"PYSPARK_SUBMIT_ARGS is .*No closing quotation"):
        submitted_settings({"PYSPARK_SUBMIT_ARGS": "--name 'mine pyspark-shell"})


def test_a_file_of_settings_is_read_as_spark_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "own.conf"
    file.write_text("# a comment\n\nspark.a b c\nspark.d = e\nspark.f:g\nother h\n")
    arguments = f"--properties-file {file} --conf spark.d=later pyspark-shell"
    found = submitted_settings({"PYSPARK_SUBMIT_ARGS": arguments})
    assert found == {"spark.a": "b c", "spark.d": "later", "spark.f": "g"}


WITHOUT_KEYTIDE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "keytide" and "pyspark.daemon" in sys.orig_argv:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def test_executors_without_keytide_are_named_with_what_to_do(
    cluster: Any, workers: Any, warehouse: str, tmp_path: Path
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(WITHOUT_KEYTIDE)
    lake = kt.connect(warehouse, spark=cluster)
    table = lake.create_table("d.t", pa.schema([("id", pa.int64())]), ["id"])
    path = f"PYTHONPATH={tmp_path / 'bare'}:$PYTHONPATH"
    with (
        workers(f'{path} exec {sys.executable} "$@"'),
        pytest.raises(SetupError, match="No module named 'keytide") as refused,
    ):
        table.write(cluster.range(0, 100, 1, 2))
    assert "spark.pyspark.python" in str(refused.value)
    assert "--archives" in str(refused.value)


@pytest.mark.parametrize(
    "report",
    [
        "ModuleNotFoundError: No module named 'keytide.spark'",
        "ModuleNotFoundError: No module named 'polars'",
        'java.io.IOException: Cannot run program "/opt/env/bin/python": error=2, No such file or '
        "directory",
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9",
    ],
)
def test_unfit_workers_are_explained(report: str) -> None:
    error = keytide_error(f"Py4JJavaError: {report}\n\tat org.apache.spark\n")
    assert isinstance(error, SetupError)
    assert "spark.pyspark.python" in str(error)
    assert "--archives" in str(error)
