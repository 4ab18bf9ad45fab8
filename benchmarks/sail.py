"""How fast are load, upsert, read and MERGE of Keytide on Sail, compared with Spark and with Delta?

Each job runs in a process of its own: Keytide on Sail and on Spark in `local[*]`, and Delta tables
that Sail itself writes, for which an upsert is a MERGE. All get the same rows. The first time and
the later ones are reported apart. `make sail` creates `.venv-sail`.

    python benchmarks/sail.py --rows 1000000
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SAIL = Path(__file__).parents[1] / ".venv-sail" / "bin" / "python"
JOBS = {"Keytide on Sail": SAIL, "Keytide on Spark": sys.executable, "Delta on Sail": SAIL}
TURNS = 4
SHARE = 50
"""One row of this many is upserted or merged in each turn."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print("TOOK", json.dumps(measured(arguments.job, arguments.rows)))
        return
    report({job: _in_process(job, arguments.rows) for job in JOBS})


def _in_process(job: str, rows: int) -> dict[str, list[float]]:
    command = [str(JOBS[job]), __file__, "--job", job, "--rows", str(rows)]
    paths = [str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOOK ")]
    if not lines:
        sys.exit(f"{job}: {done.stderr[-4000:]}")
    took: dict[str, list[float]] = json.loads(lines[0].removeprefix("TOOK "))
    return took


def report(took: dict[str, dict[str, list[float]]]) -> None:
    from report import print_table  # the environment of Sail lacks what it imports

    base = next(iter(JOBS))
    table = []
    for step, of_base in took[base].items():
        for job, steps in took.items():
            first, *later = steps[step]
            later = later or [first]
            middle, of_middle = statistics.median(later), statistics.median(of_base[1:] or of_base)
            ratios = f"{first / of_base[0]:.2f}", f"{middle / of_middle:.2f}"
            cells = (f"{value:.2f}" for value in (first, middle, max(later)))
            table.append([step, job, *cells, *ratios])
    headings = ["step", "job", "first s", "median s", "worst s", "first ratio", "median ratio"]
    print_table(headings, table)


# -- in the process of a job -----------------------------------------------------------------------


def measured(job: str, rows: int) -> dict[str, list[float]]:
    """The seconds of each step, in order."""
    with tempfile.TemporaryDirectory() as folder, _session(job) as spark:
        make = _Delta if job.startswith("Delta") else _Keytide
        table = make(spark, folder)
        took = {"load": [_seconds(lambda: table.load(_rows(spark, 0, rows, 1, "new")))]}
        took["read"] = [_seconds(table.read) for _ in range(TURNS)]
        for name, change in (("upsert", table.upsert), ("MERGE", table.merge)):
            took[name] = []
            for turn in range(TURNS):
                changed = _rows(spark, turn, rows, SHARE, f"{name}{turn}")
                took[name].append(_seconds(lambda of=changed, to=change: to(of)))
        took["read after changes"] = [_seconds(table.read) for _ in range(TURNS)]
        assert table.read() == rows
    return took


def _rows(spark: Any, first: int, last: int, step: int, text: str) -> Any:
    columns = "id", "id % 1000 AS a", f"concat('{text}-', id) AS s"
    return spark.range(first, last, step, 4).selectExpr(*columns)


def _seconds(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


@contextmanager
def _session(job: str) -> Iterator[Any]:
    import keytide as kt

    if job.endswith("Spark"):
        yield kt.spark.session()
        return
    from pysail.spark import SparkConnectServer

    server = SparkConnectServer()
    server.start(background=True)
    spark = kt.spark.session(remote=f"sc://localhost:{server.listening_address[1]}")
    yield spark
    spark.stop()
    server.stop()


class _Keytide:
    def __init__(self, spark: Any, folder: str) -> None:
        import keytide as kt

        self.spark = spark
        lake = kt.connect(folder, spark=spark)
        columns = "id BIGINT, a BIGINT, s STRING, PRIMARY KEY (id) NOT ENFORCED"
        lake.sql(f"CREATE TABLE t ({columns}) WITH ('bucket' = '4')")
        self.table = lake.table("t")

    def load(self, rows: Any) -> None:
        self.table.write(rows)

    def upsert(self, rows: Any) -> None:
        self.table.write(rows)

    def merge(self, rows: Any) -> None:
        merge = self.table.merge(rows, on="target.id = source.id").when_matched_update_all()
        merge.when_not_matched_insert_all().execute()

    def read(self) -> int:
        return _counted(self.table.scan().to_spark(self.spark))


class _Delta:
    def __init__(self, spark: Any, folder: str) -> None:
        self.spark, self.path = spark, f"{folder}/t"

    def load(self, rows: Any) -> None:
        rows.write.format("delta").mode("overwrite").save(self.path)
        self.spark.sql(f"CREATE TABLE t USING delta LOCATION '{self.path}'")

    def upsert(self, rows: Any) -> None:
        self.merge(rows)

    def merge(self, rows: Any) -> None:
        rows.createOrReplaceTempView("changed")
        self.spark.sql(
            "MERGE INTO t USING changed c ON t.id = c.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def read(self) -> int:
        return _counted(self.spark.read.format("delta").load(self.path))


def _counted(rows: Any) -> int:
    """The number of rows, after all columns have been read."""
    (count, *_) = rows.selectExpr("count(id)", "max(a)", "max(s)").first()
    return int(count)


if __name__ == "__main__":
    main()
