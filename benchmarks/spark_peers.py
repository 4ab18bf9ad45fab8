"""Compares Keytide on Spark with Delta Lake and Apache Iceberg on the same release of Spark.

Each engine loads the rows into its own table and reads them once. It gets `--upserts` upserts of
1/40 of the rows (nine keys out of ten exist; the peers use MERGE), is read completely, is compacted
fully, and is read again. Then, in turns, 1 % of the rows is deleted by a condition, another 1 % is
updated, and a batch of 0.5 % is merged. The result is the median. The 95th percentile and the worst
time are printed too, and so is the first operation of each kind in the session, which includes
loading code and starting workers. Every engine runs in its own session, one after the other, and
must end with the same rows.

The peers' jars exist only for older releases of Spark. `scripts/get-spark-peers.sh` creates
.venv-spark-peers with such a pyspark, and fetches the jars with Maven:

    sh scripts/get-spark-peers.sh
    .venv-spark-peers/bin/python benchmarks/spark_peers.py --rows 2000000
    .venv-spark-peers/bin/python benchmarks/spark_peers.py --rows 10000000 --upserts 4 --turns 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from report import print_table
from spark_bench import UPSERTS, digest, into_nothing, made_of, print_goal, seconds, upserted_by

import keytide as kt

JARS = Path(__file__).parents[1] / ".venv-spark-peers/jars"
COLUMNS = {"id": "BIGINT", "a": "BIGINT", "b": "DOUBLE", "c": "BIGINT", "s": "STRING"}
READS = 5
TURNS = 10
UPSERTED, BROUGHT = 40, 200
"""An upsert and a MERGE have one row out of this many."""

LOAD, UPSERT, MERGED = "load", "upsert of 2.5 %", "read after the upserts"
COMPACT, READ = "compact", "read after compaction"
DELETE, UPDATE, MERGE = "DELETE of 1 %", "UPDATE of 1 %", "MERGE of 0.5 %"
LOADED = "load and first read"
MANY = (UPSERT, MERGED, READ, DELETE, UPDATE, MERGE)
"""The operations that are repeated."""
LOADED_MAX = 1.2
LOAD_MAX, UPSERT_MIN, READ_MAX, CHANGE_MIN, FIRST_MAX = 1.5, 5.0, 1.1, 3.0, 1.5


class Engine(ABC):
    """An engine with one table of the benchmark's rows."""

    jars: tuple[str, ...] = ()
    settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder

    @abstractmethod
    def load(self, rows: DataFrame) -> None: ...

    @abstractmethod
    def upsert(self, rows: DataFrame) -> None: ...

    @abstractmethod
    def compact(self) -> None: ...

    @abstractmethod
    def rows(self) -> DataFrame: ...

    @abstractmethod
    def bring(self, batch: DataFrame) -> None:
        """Make rows available as `batch`. Not measured."""

    @abstractmethod
    def change(self, text: str, bounds: Sequence[int]) -> None:
        """Run a statement on `{table}`, which may use `{batch}` or bounds."""


class Keytide(Engine):
    """Four buckets, with compaction after writes, as by default."""

    def load(self, rows: DataFrame) -> None:
        fields = [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, kind in COLUMNS.items()]
        self.lake = kt.connect(self.folder / "keytide", spark=self.spark)
        self.table = self.lake.create_table("t", fields, ["id"], options={"bucket": "4"})
        self.table.write(rows)

    def upsert(self, rows: DataFrame) -> None:
        self.table.write(rows)

    def compact(self) -> None:
        self.table.compact(full=True)

    def rows(self) -> DataFrame:
        return self.table.scan().to_spark(self.spark)

    def change(self, text: str, bounds: Sequence[int]) -> None:
        self.lake.sql(text.format(*bounds, table="t", batch="batch"))

    def bring(self, batch: DataFrame) -> None:
        fields = [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, kind in COLUMNS.items()]
        self.lake.create_table("batch", fields, ["id"]).write(batch)


class Peer(Engine):
    """An engine that is used through SQL, with MERGE for upserts."""

    table: str
    definition: str

    def load(self, rows: DataFrame) -> None:
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        self.spark.sql(f"CREATE TABLE {self.table} ({columns}) {self.definition}")
        rows.writeTo(self.table).append()

    def upsert(self, rows: DataFrame) -> None:
        rows.createOrReplaceTempView("batch")
        sets = ", ".join(f"t.{name} = b.{name}" for name in COLUMNS)
        names, values = ", ".join(COLUMNS), ", ".join(f"b.{name}" for name in COLUMNS)
        self.spark.sql(
            f"MERGE INTO {self.table} t USING batch b ON t.id = b.id "
            f"WHEN MATCHED THEN UPDATE SET {sets} "
            f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"
        )

    def rows(self) -> DataFrame:
        return self.spark.table(self.table)

    def change(self, text: str, bounds: Sequence[int]) -> None:
        self.spark.sql(text.format(*bounds, table=self.table, batch="batch"))

    def bring(self, batch: DataFrame) -> None:
        batch.createOrReplaceTempView("batch")


class Delta(Peer):
    """Delta Lake with deletion vectors. By default, new tables rewrite files."""

    jars = ("delta-spark", "delta-storage")
    settings: ClassVar = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    table = "delta_t"
    definition = "USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"

    def compact(self) -> None:
        self.spark.sql(f"OPTIMIZE {self.table}").collect()


class Iceberg(Peer):
    """Apache Iceberg, merge-on-read."""

    jars = ("iceberg-spark-runtime",)
    settings: ClassVar = {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
    }
    table = "ice.db.t"
    definition = (
        "USING iceberg TBLPROPERTIES ('format-version' = '2', "
        "'write.merge.mode' = 'merge-on-read', 'write.delete.mode' = 'merge-on-read', "
        "'write.update.mode' = 'merge-on-read')"
    )

    def compact(self) -> None:
        self.spark.sql(
            "CALL ice.system.rewrite_data_files(table => 'db.t', "
            "options => map('rewrite-all', 'true'))"
        ).collect()


CHANGES = {
    DELETE: "DELETE FROM {table} WHERE a >= {0} AND a < {1}",
    UPDATE: "UPDATE {table} SET c = 0 WHERE a >= {1} AND a < {2}",
    MERGE: (
        "MERGE INTO {table} t USING {batch} s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.a = s.a, t.b = s.b, t.c = s.c, t.s = s.s "
        "WHEN NOT MATCHED THEN INSERT (id, a, b, c, s) VALUES (s.id, s.a, s.b, s.c, s.s)"
    ),
}

ENGINES: Mapping[str, type[Engine]] = {"keytide": Keytide, "delta": Delta, "iceberg": Iceberg}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--upserts", type=int, default=UPSERTS, help="number of upserts, 3 or more")
    parser.add_argument("--turns", type=int, default=TURNS, help="number of changes, 3 or more")
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--job", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if min(arguments.upserts, arguments.turns) < 3:
        parser.error("--upserts and --turns are three at least: the first stands apart")
    if arguments.job:
        print(json.dumps(in_session(arguments)))
        return
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as folder:
        figures = {name: in_own_process(name, arguments, folder) for name in arguments.engines}
    report(figures)
    print(f"- load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")


def in_own_process(engine: str, arguments: argparse.Namespace, folder: str) -> dict[str, Any]:
    """The results of one engine."""
    command = [sys.executable, __file__, "--rows", str(arguments.rows), "--directory", folder]
    command += ["--upserts", str(arguments.upserts), "--turns", str(arguments.turns)]
    # Spark starts its Python workers with this interpreter.
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [*command, "--job", engine], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def in_session(arguments: argparse.Namespace) -> dict[str, Any]:
    name, folder, rows = arguments.job, arguments.directory, arguments.rows
    spark = session(ENGINES[name], folder)
    engine = ENGINES[name](spark, folder)
    base = stored(spark, folder / "base", lambda: made_of(spark.range(rows), 0))
    batches = [
        stored(spark, folder / f"batch-{n}", lambda n=n: batch_of(spark, rows, n, UPSERTED))
        for n in range(arguments.upserts)
    ]
    after = arguments.upserts * BROUGHT // UPSERTED  # its new keys come after those of the upserts
    brought = stored(spark, folder / "brought", lambda: batch_of(spark, rows, after, BROUGHT))
    into_nothing(base)
    figures: dict[str, Any] = {LOAD: seconds(lambda: engine.load(base))}
    figures[LOADED] = figures[LOAD] + seconds(lambda: computed(engine.rows()))
    figures[UPSERT] = []
    for batch in batches:
        batch.persist().count()
        figures[UPSERT].append(seconds(lambda batch=batch: engine.upsert(batch)))
    figures[MERGED] = read_seconds(engine)
    figures[COMPACT] = seconds(engine.compact)
    figures[READ] = read_seconds(engine)
    engine.bring(brought)
    turns = [
        {
            step: seconds(lambda text=text, bounds=bounds: engine.change(text, bounds))
            for step, text in CHANGES.items()
        }
        for low in range(0, 40 * arguments.turns, 40)
        for bounds in [(low, low + 20, low + 40)]
    ]
    figures |= {step: [turn[step] for turn in turns] for step in CHANGES}
    figures["digest"] = list(digest(engine.rows()))
    spark.stop()
    return figures


def session(engine: type[Engine], folder: Path) -> SparkSession:
    """A session with the engine's jars. Keytide's session has none."""
    builder = SparkSession.builder.master("local[*]").config("spark.driver.memory", "6g")
    builder.config("spark.sql.shuffle.partitions", 2 * (os.cpu_count() or 1))
    builder.config("spark.ui.enabled", "false").config("spark.local.dir", f"{folder}/local")
    builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse-{engine.__name__}")
    builder.config("spark.sql.catalog.ice.warehouse", f"{folder}/iceberg")
    jars = [str(jar) for prefix in engine.jars for jar in JARS.glob(f"{prefix}*.jar")]
    if jars:
        builder.config("spark.driver.extraClassPath", ":".join(jars))
    for key, value in engine.settings.items():
        builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def batch_of(spark: SparkSession, rows: int, number: int, part: int) -> DataFrame:
    return made_of(upserted_by(spark, rows, number, rows // part), number + 1)


def stored(spark: SparkSession, folder: Path, made: Any) -> DataFrame:
    """Rows on disk, created by the first engine that needs them."""
    if not folder.exists():
        made().write.parquet(str(folder))
    return spark.read.parquet(str(folder))


def read_seconds(engine: Engine) -> list[float]:
    return [seconds(lambda: computed(engine.rows())) for _ in range(READS + 1)]


def computed(rows: DataFrame) -> None:
    """Compute every row and column inside Spark. Delta Lake cannot be read into `noop`."""
    rows._jdf.queryExecution().toRdd().count()


def report(figures: Mapping[str, Mapping[str, Any]]) -> None:
    steps = (LOAD, LOADED, UPSERT, MERGED, COMPACT, READ, DELETE, UPDATE, MERGE)
    print_table(("seconds", *figures), [row for step in steps for row in rows_of(step, figures)])
    if len({tuple(found["digest"]) for found in figures.values()}) > 1:
        raise ValueError(f"different rows: { {n: f['digest'] for n, f in figures.items()} }")
    own, peers = figures.get("keytide"), [f for name, f in figures.items() if name != "keytide"]
    if own is None or not peers:
        return
    print()
    fastest = {step: min(median(peer[step]) for peer in peers) for step in steps}
    print_goal("load, times the faster peer", own[LOAD] / fastest[LOAD], LOAD_MAX)
    print_goal("load and first read, times the faster", own[LOADED] / fastest[LOADED], LOADED_MAX)
    for step, least in ((UPSERT, UPSERT_MIN), *((step, CHANGE_MIN) for step in CHANGES)):
        ratio = fastest[step] / median(own[step])
        outcome = "pass" if ratio >= least else "FAIL"
        print(
            f"- {step}, times as fast as the faster peer: {ratio:.1f} (goal: {least:g}): {outcome}"
        )
    ratio = median(own[READ]) / fastest[READ]
    print_goal("read after compaction, times the faster peer", ratio, READ_MAX)
    for step in (UPSERT, DELETE, UPDATE, MERGE, MERGED):
        print_goal(f"{step}, the first of the session, seconds", own[step][0], FIRST_MAX)


def rows_of(step: str, figures: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The rows of the report for a step, with a cell for each engine."""
    if step not in MANY:
        yield (step, *(f"{found[step]:.2f}" for found in figures.values()))
        return
    for name, figure in (("median", median), ("95 %", p95), ("worst", worst), ("first", first)):
        cells = (f"{figure(found[step]):.2f}" for found in figures.values())
        yield (f"{step}, {name}", *cells)


def median(took: float | list[float]) -> float:
    """The median of all except the first, which has its own row."""
    return took if isinstance(took, float) else statistics.median(took[1:])


def p95(took: list[float]) -> float:
    return statistics.quantiles(took[1:], n=20, method="inclusive")[-1]


def worst(took: list[float]) -> float:
    return max(took[1:])


def first(took: list[float]) -> float:
    return took[0]


if __name__ == "__main__":
    main()
