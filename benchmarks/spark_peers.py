"""Keytide on Spark beside Delta Lake and Apache Iceberg on the same release of Spark.

Each engine loads the rows into a table of its own and reads them once, takes ten upserts of a
hundredth of them (nine keys in ten are old; the peers by MERGE), is read whole, is compacted in
full, and is read again.
Then a hundredth of the rows is deleted, another one updated, and a batch merged once more, in
turns; as for upserts, the median counts.
Every engine runs in a session of its own, one after the other, and has to end with the same rows.

The peers' jars exist for older releases of Spark than the newest. `scripts/get-spark-peers.sh`
makes .venv-spark-peers with such a pyspark, and fetches the jars with Maven:

    sh scripts/get-spark-peers.sh
    .venv-spark-peers/bin/python benchmarks/spark_peers.py --rows 2000000
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from report import print_table
from spark_bench import UPSERTS, digest, into_nothing, made_of, print_goal, seconds, upserted

import keytide as kt

JARS = Path(__file__).parents[1] / ".venv-spark-peers/jars"
COLUMNS = {"id": "BIGINT", "a": "BIGINT", "b": "DOUBLE", "c": "BIGINT", "s": "STRING"}
READS = 5
TURNS = 5

LOAD, UPSERT, MERGED = "load", "upsert, median", "read after the upserts"
COMPACT, READ = "compact", "read after compaction"
DELETE, UPDATE, MERGE = "DELETE of 1 %", "UPDATE of 1 %", "MERGE"
LOADED = "load and first read"
LOADED_MAX = 1.2
LOAD_MAX, UPSERT_MIN, READ_MAX, CHANGE_MIN = 1.5, 5.0, 1.1, 3.0


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
        """Make rows known as `batch`. Not timed."""

    @abstractmethod
    def change(self, text: str, bounds: Sequence[int]) -> None:
        """Run a statement on `{table}`, perhaps with `{batch}` or between bounds."""


class Keytide(Engine):
    """Four buckets, compaction after writes as by default."""

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
    """An engine that is used by SQL, with MERGE for upserts."""

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
    """Delta Lake with deletion vectors, its default for new tables being to rewrite files."""

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
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--job", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(in_session(arguments.job, arguments.directory, arguments.rows)))
        return
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as folder:
        figures = {name: in_own_process(name, arguments.rows, folder) for name in arguments.engines}
    report(figures)
    print(f"- load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after")


def in_own_process(engine: str, rows: int, folder: str) -> dict[str, Any]:
    """The figures of one engine."""
    command = [sys.executable, __file__, "--rows", str(rows), "--directory", folder]
    # Spark starts its Python workers by this name.
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [*command, "--job", engine], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def in_session(name: str, folder: Path, rows: int) -> dict[str, Any]:
    spark = session(ENGINES[name], folder)
    engine = ENGINES[name](spark, folder)
    base = stored(spark, folder / "base", lambda: made_of(spark.range(rows), 0))
    batches = [
        stored(spark, folder / f"batch-{n}", lambda n=n: made_of(upserted(spark, rows, n), n + 1))
        for n in range(UPSERTS)
    ]
    into_nothing(base)
    figures: dict[str, Any] = {LOAD: seconds(lambda: engine.load(base))}
    figures[LOADED] = figures[LOAD] + seconds(lambda: computed(engine.rows()))
    took = []
    for batch in batches:
        batch.persist().count()
        took.append(seconds(lambda batch=batch: engine.upsert(batch)))
    figures[UPSERT] = statistics.median(took)
    figures[MERGED] = read_seconds(engine)
    figures[COMPACT] = seconds(engine.compact)
    figures[READ] = read_seconds(engine)
    engine.bring(batches[-1])
    turns = [
        {
            step: seconds(lambda text=text, bounds=bounds: engine.change(text, bounds))
            for step, text in CHANGES.items()
        }
        for low in range(0, 40 * TURNS, 40)
        for bounds in [(low, low + 20, low + 40)]
    ]
    figures |= {step: statistics.median(turn[step] for turn in turns) for step in CHANGES}
    figures["digest"] = list(digest(engine.rows()))
    spark.stop()
    return figures


def session(engine: type[Engine], folder: Path) -> SparkSession:
    """A session with the engine's jars; Keytide's own has none."""
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


def stored(spark: SparkSession, folder: Path, made: Any) -> DataFrame:
    """Rows on disk, made by the first engine that needs them."""
    if not folder.exists():
        made().write.parquet(str(folder))
    return spark.read.parquet(str(folder))


def read_seconds(engine: Engine) -> float:
    took = [seconds(lambda: computed(engine.rows())) for _ in range(READS + 1)]
    return statistics.median(took[1:])


def computed(rows: DataFrame) -> None:
    """Compute every row and column inside of Spark. Delta Lake cannot be read into `noop`."""
    rows._jdf.queryExecution().toRdd().count()


def report(figures: Mapping[str, Mapping[str, Any]]) -> None:
    steps = (LOAD, LOADED, UPSERT, MERGED, COMPACT, READ, DELETE, UPDATE, MERGE)
    cells = [(step, *(f"{found[step]:.2f}" for found in figures.values())) for step in steps]
    print_table(("seconds", *figures), cells)
    if len({tuple(found["digest"]) for found in figures.values()}) > 1:
        raise ValueError(f"different rows: { {n: f['digest'] for n, f in figures.items()} }")
    own, peers = figures.get("keytide"), [f for name, f in figures.items() if name != "keytide"]
    if own is None or not peers:
        return
    print()
    fastest = {step: min(peer[step] for peer in peers) for step in steps}
    print_goal("load, times the faster peer", own[LOAD] / fastest[LOAD], LOAD_MAX)
    print_goal("load and first read, times the faster", own[LOADED] / fastest[LOADED], LOADED_MAX)
    for step, least in ((UPSERT, UPSERT_MIN), *((step, CHANGE_MIN) for step in CHANGES)):
        ratio = fastest[step] / own[step]
        outcome = "pass" if ratio >= least else "FAIL"
        print(
            f"- {step}, times as fast as the faster peer: {ratio:.1f} (goal: {least:g}): {outcome}"
        )
    print_goal("read after compaction, times the faster peer", own[READ] / fastest[READ], READ_MAX)


if __name__ == "__main__":
    main()
