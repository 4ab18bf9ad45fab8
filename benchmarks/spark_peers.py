"""Compares Keytide on Spark with Delta Lake and Apache Iceberg on the same release of Spark.

Each engine loads the rows into its own table and reads them. It gets `--upserts` upserts of 1/40 of
the rows (nine keys out of ten exist; the peers use MERGE), is read, is compacted fully, and is read
again. Then, in turns, rows are deleted and updated by their keys, by a range of keys and by a
condition on values, and a batch of 0.5 % is merged. The first operation of each kind stands apart:
it includes loading code and starting workers, and people meet it first. The median of the others is
printed with their 95th percentile and the worst. Every engine runs in its own session, one after
the other, and must end with the same rows.

`--master` selects executors in processes of their own, and `--late` puts the tables on a server of
S3 (see `far.py`) whose responses take that many milliseconds longer.

The peers' jars exist only for older releases of Spark. `scripts/get-spark-peers.sh` creates
.venv-spark-peers with such a pyspark, and fetches the jars with Maven:

    sh scripts/get-spark-peers.sh
    .venv-spark-peers/bin/python benchmarks/spark_peers.py --rows 2000000
    .venv-spark-peers/bin/python benchmarks/spark_peers.py --rows 10000000 --upserts 4 --turns 3
    .venv-spark-peers/bin/python benchmarks/spark_peers.py --master 'local-cluster[2,1,2048]'
    sh scripts/get-hadoop-aws.sh .venv-spark-peers
    .venv-spark-peers/bin/python benchmarks/spark_peers.py --late 30
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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession
from report import print_table
from spark_bench import UPSERTS, digest, into_nothing, made_of, print_goal, seconds, upserted_by

import keytide as kt
from far import BUCKET, REGION, SECRET, USER, far_server

JARS = Path(__file__).parents[1] / ".venv-spark-peers/jars"
COLUMNS = {"id": "BIGINT", "a": "BIGINT", "b": "DOUBLE", "c": "BIGINT", "s": "STRING"}
READS = 5
TURNS = 10
UPSERTED, BROUGHT = 40, 200
"""An upsert and a MERGE have one row out of this many."""

LOAD, LOADED, UPSERT, MERGED = "load", "read", "upsert of 2.5 %", "read after the upserts"
COMPACT, READ, MERGE = "compact", "read after compaction", "MERGE of 0.5 %"
BY_KEY, BY_RANGE, BY_VALUE = "by 20 keys", "of a range, 0.25 %", "by a value, 1 %"


class Engine(ABC):
    """An engine with one table of the benchmark's rows."""

    jars: tuple[str, ...] = ()
    settings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, spark: SparkSession, folder: Path, endpoint: str | None = None) -> None:
        self.spark, self.folder, self.endpoint = spark, folder, endpoint

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
    def change(self, text: str, names: Mapping[str, Any]) -> None:
        """Run a statement on `{table}`, which may use `{batch}` and these names."""


class Keytide(Engine):
    """Four buckets, with compaction after writes, as by default."""

    def load(self, rows: DataFrame) -> None:
        fields = [kt.Field(-1, name, kt.parse_sql_type(kind)) for name, kind in COLUMNS.items()]
        place, options = self.folder / "keytide", None
        if self.endpoint:
            place, options = f"s3://{BUCKET}/keytide", {
                "endpoint": self.endpoint, "region": REGION, "access_key_id": USER,
                "secret_access_key": SECRET, "allow_http": "true",
            }  # fmt: skip
        self.lake = kt.connect(place, options=options, spark=self.spark)
        self.table = self.lake.create_table("t", fields, ["id"], options={"bucket": "4"})
        self.table.write(rows)

    def upsert(self, rows: DataFrame) -> None:
        self.table.write(rows)

    def compact(self) -> None:
        self.table.compact(full=True)

    def rows(self) -> DataFrame:
        return self.table.scan().to_spark(self.spark)

    def change(self, text: str, names: Mapping[str, Any]) -> None:
        self.lake.sql(text.format(**names, table="t", batch="batch"))

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

    def change(self, text: str, names: Mapping[str, Any]) -> None:
        self.spark.sql(text.format(**names, table=self.table, batch="batch"))

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
    """Apache Iceberg, merge-on-read with deletion vectors (version 3 of its format)."""

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
        "USING iceberg TBLPROPERTIES ('format-version' = '3', "
        "'write.merge.mode' = 'merge-on-read', 'write.delete.mode' = 'merge-on-read', "
        "'write.update.mode' = 'merge-on-read')"
    )

    def compact(self) -> None:
        self.spark.sql(
            "CALL ice.system.rewrite_data_files(table => 'db.t', "
            "options => map('rewrite-all', 'true'))"
        ).collect()


CHANGES = {
    f"DELETE {BY_KEY}": "DELETE FROM {table} WHERE id IN ({keys})",
    f"DELETE {BY_RANGE}": "DELETE FROM {table} WHERE id >= {low} AND id < {middle}",
    f"DELETE {BY_VALUE}": "DELETE FROM {table} WHERE a >= {n}0 AND a < {n}5",
    f"UPDATE {BY_KEY}": "UPDATE {table} SET c = 1 WHERE id IN ({others})",
    f"UPDATE {BY_RANGE}": "UPDATE {table} SET c = 2 WHERE id >= {middle} AND id < {high}",
    f"UPDATE {BY_VALUE}": "UPDATE {table} SET c = 3 WHERE a >= {n}5 AND a < {n}9",
    MERGE: (
        "MERGE INTO {table} t USING {batch} s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.a = s.a, t.b = s.b, t.c = s.c, t.s = s.s "
        "WHEN NOT MATCHED THEN INSERT (id, a, b, c, s) VALUES (s.id, s.a, s.b, s.c, s.s)"
    ),
}
MANY = (LOADED, UPSERT, MERGED, READ, *CHANGES)
"""The operations that are repeated."""


def names_of(turn: int, rows: int) -> dict[str, Any]:
    """What the statements of a turn change."""
    step = rows // 200
    keys = [f"{(turn * 40 + n) * 7_919 % rows}" for n in range(40)]
    low = turn * step
    return {
        "keys": ", ".join(keys[:20]), "others": ", ".join(keys[20:]), "n": 10 + turn,
        "low": low, "middle": low + step // 2, "high": low + step,
    }  # fmt: skip


ENGINES: Mapping[str, type[Engine]] = {"keytide": Keytide, "delta": Delta, "iceberg": Iceberg}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--upserts", type=int, default=UPSERTS, help="number of upserts, 3 or more")
    parser.add_argument("--turns", type=int, default=TURNS, help="number of changes, 3 or more")
    parser.add_argument("--master", default="local[*]", help="such as local-cluster[2,1,2048]")
    parser.add_argument("--late", type=float, metavar="MS", help="tables on a late server of S3")
    parser.add_argument("--server", metavar="PROGRAM", help="see far.py; otherwise moto's server")
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--job", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", help=argparse.SUPPRESS)
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
    command += ["--master", arguments.master, "--job", engine]
    # Spark starts its Python workers with this interpreter.
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    with ExitStack() as stack:
        if arguments.late is not None:
            objects = Path(folder) / f"objects-{engine}"
            objects.mkdir()
            server = far_server(arguments.server, objects, arguments.late)
            command += ["--endpoint", stack.enter_context(server)]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env=environment
        )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def in_session(arguments: argparse.Namespace) -> dict[str, Any]:
    name, folder, rows = arguments.job, arguments.directory, arguments.rows
    spark = session(ENGINES[name], folder, arguments.master, arguments.endpoint)
    engine = ENGINES[name](spark, folder, arguments.endpoint)
    base = stored(spark, folder / "base", lambda: made_of(spark.range(rows), 0))
    batches = [
        stored(spark, folder / f"batch-{n}", lambda n=n: batch_of(spark, rows, n, UPSERTED))
        for n in range(arguments.upserts)
    ]
    after = arguments.upserts * BROUGHT // UPSERTED  # its new keys come after those of the upserts
    brought = stored(spark, folder / "brought", lambda: batch_of(spark, rows, after, BROUGHT))
    into_nothing(base)
    figures: dict[str, Any] = {LOAD: seconds(lambda: engine.load(base))}
    figures[LOADED] = read_seconds(engine)
    figures[UPSERT] = []
    for batch in batches:
        batch.persist().count()
        figures[UPSERT].append(seconds(lambda batch=batch: engine.upsert(batch)))
    figures[MERGED] = read_seconds(engine)
    figures[COMPACT] = seconds(engine.compact)
    figures[READ] = read_seconds(engine)
    engine.bring(brought)
    figures |= {step: [] for step in CHANGES}
    for turn in range(arguments.turns):
        names = names_of(turn, rows)
        for step, text in CHANGES.items():
            figures[step].append(seconds(lambda text=text, names=names: engine.change(text, names)))
    figures["digest"] = list(digest(engine.rows()))
    spark.stop()
    return figures


def session(
    engine: type[Engine], folder: Path, master: str = "local[*]", endpoint: str | None = None
) -> SparkSession:
    """A session with the engine's jars. Keytide's session has those of S3 at most."""
    builder = SparkSession.builder.master(master).config("spark.driver.memory", "6g")
    builder.config("spark.sql.shuffle.partitions", 2 * (os.cpu_count() or 1))
    builder.config("spark.ui.enabled", "false").config("spark.local.dir", f"{folder}/local")
    tables = f"s3a://{BUCKET}" if endpoint else str(folder)
    builder.config("spark.sql.warehouse.dir", f"{tables}/warehouse-{engine.__name__}")
    builder.config("spark.sql.catalog.ice.warehouse", f"{tables}/iceberg")
    jars = [str(jar) for prefix in engine.jars for jar in JARS.glob(f"{prefix}*.jar")]
    if endpoint:
        jars += map(str, (JARS.parent / "s3a/jars").glob("*.jar"))
        for key, value in {
            "endpoint": endpoint, "endpoint.region": REGION, "path.style.access": "true",
            "access.key": USER, "secret.key": SECRET,
        }.items():  # fmt: skip
            builder.config(f"spark.hadoop.fs.s3a.{key}", value)
    for side in ("driver", "executor") if jars else ():
        builder.config(f"spark.{side}.extraClassPath", ":".join(jars))
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
    steps = (LOAD, LOADED, UPSERT, MERGED, COMPACT, READ, *CHANGES)
    print_table(("seconds", *figures), [row for step in steps for row in rows_of(step, figures)])
    if len({tuple(found["digest"]) for found in figures.values()}) > 1:
        raise ValueError(f"different rows: { {n: f['digest'] for n, f in figures.items()} }")
    own, peers = figures.get("keytide"), [f for name, f in figures.items() if name != "keytide"]
    if own is None or not peers:
        return
    print()
    for step, of, most in (
        (LOAD, median, 1.3), (LOADED, first, 1), (LOADED, median, 1), (MERGED, first, 1),
        (MERGED, median, 1), (READ, median, 1),
    ):  # fmt: skip
        ratio = of(own[step]) / min(of(peer[step]) for peer in peers)
        print_goal(f"{step}, {of.__name__}, times the faster peer", ratio, most)
    for step, of, least in (
        (COMPACT, median, 3),
        *((step, of, 4) for step in (UPSERT, MERGE) for of in (first, median)),
        *((step, of, 2 if of is first else 4)
          for step in CHANGES if step != MERGE for of in (first, median)),
    ):  # fmt: skip
        ratio = min(of(peer[step]) for peer in peers) / of(own[step])
        outcome = "pass" if ratio >= least else "FAIL"
        print(
            f"- {step}, {of.__name__}, times as fast as the faster peer: {ratio:.1f} "
            f"(goal: {least:g}): {outcome}"
        )


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
