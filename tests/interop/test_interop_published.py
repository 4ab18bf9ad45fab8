"""Published tables as Delta Lake and Iceberg on Spark find them, and who else may change them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from interop_judges import PROJECT, RefusedError
from lake_values import plain

import keytide as kt
from keytide.definition.schema_evolution import AddColumn
from keytide.types import parse_sql_type

PEERS = PROJECT / ".venv-spark-peers"
FORMS = ("delta", "iceberg")
SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("at", pa.timestamp("us"))])
KINDS: dict[str, tuple[list[str], dict[str, str]]] = {
    "indexed": (["k", "p"], {"upsert.mode": "full", "bucket": "2"}),
    "marked": (["k", "p"], {"deletion-vectors.enabled": "true", "bucket": "1"}),
    "appended": ([], {"deletion-vectors.enabled": "true"}),
}
VERSION = "publish.iceberg.format-version"
pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


class SparkProcess:
    """One process with Spark, which carries statements out until it is closed."""

    def __init__(self, scratch: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [PEERS / "bin/python", Path(__file__).with_name("spark_judge.py"), scratch / "lakes"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=environment, cwd=scratch,
        )  # fmt: skip

    def sql(self, statement: str) -> list[Any]:
        """The rows of a statement. Raises `RefusedError`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(statement), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        if "refusal" in answer:
            raise RefusedError(answer["refusal"])
        rows: list[Any] = answer["rows"]
        return rows

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def spark_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    if not (PEERS / ".ready").exists():
        pytest.skip("Spark has no engines of Delta and Iceberg; `make interop` brings them")
    process = SparkProcess(tmp_path_factory.mktemp("spark"))
    yield process
    process.close()


def new_table(lake: kt.Lake, kind: str, version: str = "2") -> kt.Table:
    key, options = KINDS[kind]
    published = {"publish": "delta,iceberg", VERSION: version}
    every = {**options, **published, "snapshot.num-retained.min": "1"}
    return lake.create_table("t", SCHEMA, key, ["p"], options=every)


def named(spark: SparkProcess, table: kt.Table, form: str) -> str:
    """What Spark calls a table; to Iceberg the lake is a catalog."""
    folder = Path(table.uri.removeprefix("file://"))
    if form == "delta":
        return f"delta.`{folder}`"
    catalog = f"c{abs(hash(folder))}"
    options = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop",
               ".warehouse": str(folder.parents[1]), ".cache-enabled": "false"}  # fmt: skip
    for name, value in options.items():
        spark.sql(f"SET `spark.sql.catalog.{catalog}{name}` = `{value}`")
    return f"{catalog}.`{folder.parent.name}`.{folder.name}"


def assert_spark_sees(spark: SparkProcess, table: kt.Table) -> None:
    rows = [[plain(value) for value in row.values()] for row in table.scan().to_pylist()]
    for form in FORMS:
        found = spark.sql(f"SELECT * FROM {named(spark, table, form)}")
        assert sorted(map(repr, found)) == sorted(map(repr, rows)), form
        ((count,),) = spark.sql(f"SELECT count(*) FROM {named(spark, table, form)} WHERE k < 4")
        assert count == sum(row[0] < 4 for row in rows)


def some_rows(table: kt.Table, keys: Sequence[int]) -> list[dict[str, Any]]:
    added = table.schema.names[3:]
    return [{"k": k, "p": "ab"[k % 2], "at": None, **dict.fromkeys(added, k)} for k in keys]


def step(lake: kt.Lake, table: kt.Table, random: Random) -> None:
    """Something that makes a commit, or some."""
    rows = some_rows(table, random.sample(range(9), 5))
    match random.choice(["write", "write", "delete", "compact", "expire", "column", "version"]):
        case "version":
            lake.sql(f"ALTER TABLE t SET ('{VERSION}' = '{random.choice('23')}')")
            table.publish()
        case "write":
            table.write(rows)
        case "delete":
            table.delete(f"k % 3 = {random.randint(0, 2)}")
        case "compact":
            table.compact(full=True)
        case "expire":
            table.expire_snapshots(retain_max=1, retain_min=1)
        case "column":
            name = f"c{len(table.schema)}"
            table.alter(AddColumn((name,), parse_sql_type("INT")))
            table.write(some_rows(table, [1, 2]))


@pytest.mark.parametrize("version", ["2", "3"])
@pytest.mark.parametrize("kind", KINDS)
def test_spark_sees_the_rows_after_every_commit(
    spark_process: SparkProcess, lake: kt.Lake, kind: str, version: str
) -> None:
    table, random = new_table(lake, kind, version), Random(kind)
    table.write(some_rows(table, range(6)))
    for _ in range(6):
        assert_spark_sees(spark_process, table)
        step(lake, table, random)
    for k in range(20):  # as many as a checkpoint sums up
        table.write(some_rows(table, [k % 4]))
    assert_spark_sees(spark_process, table)


def test_spark_finds_the_ids_of_rows_where_they_were_published_first(
    spark_process: SparkProcess, lake: kt.Lake
) -> None:
    def ids() -> dict[int, int]:
        told = spark_process.sql(f"SELECT k, _row_id FROM {named(spark_process, table, 'iceberg')}")
        return dict(told)

    table = new_table(lake, "indexed", "2")
    table.write(some_rows(table, range(6)))
    lake.sql(f"ALTER TABLE t SET ('{VERSION}' = '3')")
    table.publish()
    first = ids()
    assert sorted(first.values()) == [*range(6)]
    table.write(some_rows(table, [0, 9]))
    second = ids()
    assert {k: second[k] for k in range(1, 6)} == {k: first[k] for k in range(1, 6)}
    assert {second[0], second[9]} == {6, 7}
    table.compact(full=True)
    third = ids()
    assert min({*third.values()} - {*second.values()}) >= 8, "of rows that were written anew"
    assert len({*third.values()}) == len(third) == 7


@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO {} VALUES (7, 'a', NULL)", "DELETE FROM {} WHERE k = 1", "OPTIMIZE {}",
     "VACUUM {} RETAIN 0 HOURS"],
)  # fmt: skip
def test_delta_lake_keeps_its_hands_off(
    spark_process: SparkProcess, lake: kt.Lake, statement: str
) -> None:
    table = new_table(lake, "indexed")
    table.write(some_rows(table, range(3)))
    table.delete("k = 2")
    with pytest.raises(RefusedError, match="keytide"):
        spark_process.sql(statement.format(named(spark_process, table, "delta")))
    assert_spark_sees(spark_process, table)


@pytest.mark.parametrize("version", ["2", "3"])
@pytest.mark.parametrize(
    "statement", ["INSERT INTO {} VALUES (7, 'a', NULL)", "DELETE FROM {} WHERE k = 1"]
)
def test_what_iceberg_commits_there_is_gone_with_the_next_publication(
    spark_process: SparkProcess, lake: kt.Lake, statement: str, version: str
) -> None:
    table = new_table(lake, "indexed", version)
    table.write(some_rows(table, range(3)))
    spark_process.sql(statement.format(named(spark_process, table, "iceberg")))
    assert len(spark_process.sql(f"SELECT * FROM {named(spark_process, table, 'iceberg')}")) in (
        2,
        4,
    )
    table.write(some_rows(table, [5]))
    assert_spark_sees(spark_process, table)
