"""A session that knows nothing of Keytide finds the format `keytide` by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import behind_writers
import pyarrow as pa
import pytest

import keytide as kt

# Every other test of Spark has the format found like this, too, in a session that knows of it.
pytestmark = [pytest.mark.spark, pytest.mark.driver, pytest.mark.slow, pytest.mark.soak]

SESSION = """
import json, sys
from pyspark.sql import SparkSession

folder, path, grown = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config(map={
    "spark.ui.enabled": "false", "spark.driver.memory": "512m", "spark.driver.host": "127.0.0.1",
    "spark.sql.warehouse.dir": f"{folder}/warehouse", "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "1",
}).getOrCreate()
found = {}

def refused(name, action):
    try:
        action()
    except Exception as error:
        found[name] = str(error)

def read(**options):
    return spark.read.format("keytide").options(**options).load(path)

def streamed(stream, name, out):
    query = stream.writeStream.format("keytide").option(
        "checkpointLocation", f"{folder}/{name}").trigger(availableNow=True).start(out)
    query.awaitTermination()
    return query

found["read"] = [list(row) for row in read().orderBy("id").collect()]
rows = spark.createDataFrame([(7, "new")], "id long, v string")
rows.write.format("keytide").mode("append").save(path)
stream = spark.readStream.format("keytide").load(path)
found["columns"] = stream.columns
streamed(stream, "copy", grown)
rows.selectExpr("id", "'changed' AS v").write.format("keytide").mode("append").save(path)
refused("changed", lambda: streamed(stream, "copy", grown))
refused("typo", lambda: read(colums="id"))
found["loaded"] = [name for name in sys.modules if name.startswith("keytide")]
print("FOUND " + json.dumps(found), flush=True)
spark.stop()
"""

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("names")
    lake = kt.connect(folder / "lake")
    first, second = (lake.create_table(name, SCHEMA, ["id"]) for name in ("first", "second"))
    first.write([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    path = behind_writers.python_path(str(Path(kt.__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(folder), first.uri, second.uri],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(lines[0].removeprefix("FOUND "))
    tables = {"written": first, "copied": second}
    return found | {name: sorted(table.scan().to_pandas()["id"]) for name, table in tables.items()}


def test_format_is_found_without_keytide_in_the_session(found: Any) -> None:
    assert found["loaded"] == []


def test_table_is_read_and_appended_to(found: Any) -> None:
    assert found["read"] == [[1, "a"], [2, "b"]]
    assert found["written"] == [1, 2, 7]


def test_stream_without_kinds_tells_of_new_rows_and_stops_at_a_change(found: Any) -> None:
    assert (found["columns"], found["copied"]) == (["id", "v"], [1, 2, 7])
    assert "table default.first: a row was changed or deleted" in found["changed"]
    assert "option('readChangeFeed', 'true')" in found["changed"]


def test_wrong_option_is_told_in_a_line_without_a_traceback(found: Any) -> None:
    assert "format 'keytide' has no option 'colums'; did you mean 'columns'?" in found["typo"]
    assert "Traceback" not in found["typo"]
    assert len(found["typo"].strip().splitlines()) <= 2
