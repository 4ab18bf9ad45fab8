"""Writes Delta and Iceberg tables with their own engines on Spark, and what is to be read of them.

`scripts/get-spark-peers.sh` makes .venv-spark-peers, with whose Python this runs; it imports
nothing of Keytide. Each statement of a case is carried out, and each version that it makes is noted
with the rows that Spark reads there.

    .venv-spark-peers/bin/python tests/interop/lake_writers.py FOLDER [NAME ...] [--pack ARCHIVE]

makes FOLDER/NAME, a table, and FOLDER/NAME.json for each case, and perhaps an archive of them.
Paths of Iceberg tables are relative to the parent of FOLDER: whoever changes to it can read them,
wherever it lies.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

from lake_cases import DELTA, ICEBERG, Case
from lake_values import plain
from pyspark.sql import SparkSession

PROJECT = Path(__file__).parents[2]
JARS = PROJECT / ".venv-spark-peers/jars"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
    "spark.sql.catalog.ice.default-namespace": "",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
}


def session(folder: Path) -> SparkSession:
    """A session with the jars of both, whose catalog of Iceberg is a folder."""
    scratch = f"{folder.parent}/scratch"
    builder = SparkSession.builder.master("local[1]").config("spark.local.dir", scratch)
    builder.config("spark.driver.extraClassPath", ":".join(map(str, JARS.glob("*.jar"))))
    builder.config("spark.sql.warehouse.dir", f"{scratch}/warehouse")
    builder.config("spark.sql.catalog.ice.warehouse", folder.name)
    builder.config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC")
    for key, value in SETTINGS.items():
        builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def delta_versions(folder: Path, table: str) -> dict[str, str]:
    """The newest version of a Delta table, and how Spark reads it."""
    names = [path.stem for path in (folder / "_delta_log").glob("*.json")]
    numbers = sorted(int(name) for name in names if name.isdecimal())
    return {str(number): f"SELECT * FROM {table}" for number in numbers[-1:]}


def iceberg_versions(folder: Path, table: str) -> dict[str, str]:
    """The newest snapshot of an Iceberg table, branches and tags, and how Spark reads each."""
    found = {}
    for name, told in newest_metadata(folder)["refs"].items():
        if name == "main":
            found[str(told["snapshot-id"])] = f"SELECT * FROM {table}"
        else:
            found[name] = f"SELECT * FROM {table} VERSION AS OF '{name}'"
    return found


def kept_versions(folder: Path) -> set[str]:
    """The snapshots of an Iceberg table that have not expired, and their names."""
    told = newest_metadata(folder)
    return {str(each["snapshot-id"]) for each in told["snapshots"]} | set(told["refs"])


def newest_metadata(folder: Path) -> dict[str, Any]:
    number = (folder / "metadata/version-hint.text").read_text()
    (path,) = (folder / "metadata").glob(f"v{number}.*metadata.json")
    data = path.read_bytes()
    told: dict[str, Any] = json.loads(gzip.decompress(data) if ".gz." in path.name else data)
    return told


def make(spark: SparkSession, folder: Path, case: Case) -> None:
    """Carry a case out, and note what is there after each statement."""
    is_delta = case.format == "delta"
    table = case.name if is_delta else f"ice.`{case.name}`"
    versions = delta_versions if is_delta else iceberg_versions
    noted: dict[str, Any] = {}
    for step in case.steps:
        if callable(step):
            step(spark, table)
        else:
            location = f"LOCATION '{folder / case.name}'"
            spark.sql(step.format(t=table, location=location, folder=folder)).collect()
        for version, query in versions(folder / case.name, table).items():
            if version not in noted or not version.isdecimal():
                noted[version] = rows(spark, query)
    there = noted.keys() if is_delta else kept_versions(folder / case.name)
    told = {
        "newest": rows(spark, f"SELECT * FROM {table}"),
        "versions": {version: noted[version] for version in noted if version in there},
    }
    (folder / f"{case.name}.json").write_text(json.dumps(told, indent=0))


def rows(spark: SparkSession, query: str) -> dict[str, Any]:
    """Rows as JSON can have them; columns that it cannot have are left out."""
    found = spark.sql(query)
    columns = {f.name: f.dataType.simpleString() for f in found.schema}
    readable = [name for name, kind in columns.items() if kind != "variant"]
    read = found.select(*[f"`{name}`" for name in readable]).collect()
    return {"columns": columns, "rows": [[plain(value) for value in row] for row in read]}


def pack(folder: Path, archive: Path) -> None:
    """Put the tables that can be read elsewhere into an archive, without sums of files."""
    unwanted = [case.name for case in DELTA if case.has_full_paths]
    with tarfile.open(archive, "w:xz") as made:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if path.is_file() and path.suffix != ".crc" and name.parts[0] not in unwanted:
                made.add(path, f"{folder.name}/{name}", filter=nameless)


def nameless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member of an archive that tells of nobody."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=lambda text: Path(text).absolute())
    parser.add_argument("names", nargs="*")
    parser.add_argument("--pack", type=lambda text: Path(text).absolute())
    asked = parser.parse_args()
    os.environ["TZ"] = "UTC"
    time.tzset()
    folder: Path = asked.folder
    for each in asked.names or [""]:
        shutil.rmtree(folder / each, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder.parent)
    spark = session(folder)
    for case in [*DELTA, *ICEBERG]:
        if asked.names and case.name not in asked.names:
            continue
        print(case.name, flush=True)
        make(spark, folder, case)
    spark.stop()
    shutil.rmtree(folder.parent / "scratch", ignore_errors=True)
    if asked.pack is not None:
        pack(folder, asked.pack)


if __name__ == "__main__":
    main()
