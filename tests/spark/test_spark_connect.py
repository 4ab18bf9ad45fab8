"""The same functions on a Spark Connect session, and words for what cannot work there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from consoles import run_console
from pages import PAGES, Changed, blocks_of

# All of it, or nothing: what is long is the script that they all look at.
pytestmark = [
    pytest.mark.spark, pytest.mark.driver, pytest.mark.slow, pytest.mark.takes_turns,
    pytest.mark.timeout(900),
]  # fmt: skip

CLIENT = """
import json, os, sys
import pyarrow as pa
import pyarrow.parquet as pq
import keytide as kt
from keytide.spark import external_merge
from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

warehouse, source, page = sys.argv[1:]
spark = kt.spark.session(
    {"spark.keytide.driver-work.max-size": "0"},
    remote="local[2]", spark_driver_memory="1g", spark_sql_shuffle_partitions=2
)
found = {"session": type(spark).__module__}
lake = kt.connect(warehouse)
schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
table = lake.create_table("t", schema, ["id"], options={"bucket": "2"})

rows = spark.range(0, 100, 1, 3).selectExpr("id", "concat('v', id) as v")
result = table.write(rows)
found["write"] = [result.rows, result.files, result.snapshot_id]
found["native"] = table.scan(where="id < 7").to_spark(spark).count()
table.write(rows.where("id < 50").selectExpr("id", "'new' as v"))
merged = table.scan().to_spark(spark)
found["merged"] = merged.groupBy((merged.v == "new").alias("new")).count().orderBy("new").collect()
indexed = lake.create_table("i", schema, ["id"], options={"upsert.mode": "full"})
indexed.write(rows)
indexed.write(rows.where("id < 10").selectExpr("id", "'new' as v"))
shown = indexed.scan().to_spark(spark)
found["indexed"] = [shown.count(), shown.where("v = 'new'").count()]
found["source"] = spark.read.format("keytide").option("where", "id < 60").load(table.uri).count()
rows.selectExpr("id + 1000 as id", "v").write.format("keytide").mode("append").save(table.uri)
found["appended"] = table.scan().count()
try:
    table.write(rows.selectExpr("if(id = 3, null, id) as id", "v"))
except kt.InvalidError as error:
    found["refused"] = str(error)

try:
    spark.read.format("keytide").option("colums", "id").load(table.uri).collect()
except kt.InvalidError as error:
    found["words"] = [str(error), "PYTHON_DATA_SOURCE_ERROR" in error.report]

on_spark = kt.connect(warehouse, spark=spark)
query = "SELECT '{keytide_0}' AS text, count(*) AS n FROM t a JOIN t b ON a.id = b.id"
found["sql"] = on_spark.sql(f"{query} WHERE a.id < 5").to_pylist()

external_merge._SMALL_BYTES = -1  # every table is large
os.mkdir(f"{source}-theirs")
for number, versions in enumerate([{"id": [1, 2, 3], "w": [1, 1, 1]}, {"id": [1, 2], "w": [2, 1]}]):
    texts = [f"{number}{n}" for n in versions["id"]]
    pq.write_table(pa.table({**versions, "v": texts}), f"{source}-theirs/{number}.parquet")
try:
    on_spark.ingest("fed", f"{source}/*.json", format="json", primary_key=["id"])
except kt.UnsupportedError as error:
    found["ingest"] = [str(error), on_spark.tables().count("fed")]
on_spark.create_external_table(
    "e", format="parquet", location=f"{source}-theirs", primary_key=["id"], watermark_key=["w"]
)
shown = on_spark.sql("SELECT id, v FROM e WHERE v <> '02' ORDER BY id").to_pylist()
found["external"] = [[row["id"], row["v"]] for row in shown]

changed = on_spark.create_table("c", schema, ["id"], options={"bucket": "2"})
changed.write(rows.where("id < 10"))
merge = (
    "MERGE INTO c USING (SELECT id + 5 AS id, v FROM c) s ON c.id = s.id "
    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.v)"
)
found["changed"] = [
    on_spark.sql(text).row_count
    for text in ("DELETE FROM c WHERE id < 2", "DELETE FROM c WHERE id % 4 = 2", merge,
                 "UPDATE c SET v = 'last' WHERE id > 13", "INSERT OVERWRITE c SELECT * FROM c")
]
found["rows"] = sorted(row["v"] for row in changed.scan().to_pylist())
spark.conf.unset("spark.keytide.driver-work.max-size")
texts = ("DELETE FROM c WHERE id < 4", "UPDATE c SET v = concat(v, '!') WHERE v LIKE '%5'", merge)
plans = [row["plan"] for text in texts for row in on_spark.sql(f"EXPLAIN {text}").to_pylist()]
found["plans"] = [line for line in plans if line.startswith("runs ")]
found["in driver"] = [on_spark.sql(text).row_count for text in texts[:2]]
found["rows after"] = sorted(row["v"] for row in changed.scan().to_pylist())

begin = DataStreamWriter.start

def begun(writer, *given, **options):
    # Spark waits ten seconds for the process of a function, which a busy machine may not keep.
    for _ in range(5):
        try:
            return begin(writer, *given, **options)
        except Exception as error:
            late = error
    raise late

DataStreamWriter.start = begun

def stream(checkpoint):
    reader = spark.readStream.schema("id long, v string").json(source)
    return reader.writeStream.option("checkpointLocation", f"{source}-{checkpoint}").trigger(
        availableNow=True
    )

stream("sink").format("keytide").start(table.uri).awaitTermination()
found["sink"] = table.snapshots()[-1].commit_user[:6]

def without_name(batch, number):
    kt.open_table(f"{warehouse}/default.db/t").write(batch)

def with_name(batch, number):
    kt.open_table(f"{warehouse}/default.db/t").write(
        batch, commit_user="mine", commit_identifier=number
    )

try:
    stream("anonymous").foreachBatch(without_name).start().awaitTermination()
except Exception as error:
    found["anonymous"] = str(error)
stream("named").foreachBatch(with_name).start().awaitTermination()
found["named"] = [s.commit_user for s in table.snapshots() if s.commit_kind.value == "APPEND"][-1]

from pyspark.sql import Observation
from pyspark.sql import functions as F

observed = Observation("rows")
seen = rows.observe(observed, F.count(F.lit(1)).alias("n"), F.max("id").alias("last"))
table.write(seen)
found["observed"] = [observed.get]
observed = Observation("rows of the source")
seen = rows.observe(observed, F.count(F.lit(1)).alias("n"))
seen.write.format("keytide").mode("append").save(table.uri)
found["observed"].append(observed.get)

views = kt.spark.register_lake(spark, lake, ["t", "i"], name="{database}_{table}")
query = "SELECT count(*) FROM default_t t JOIN default_i i ON t.id = i.id"
found["views"] = [sorted(views), spark.sql(query).collect()[0][0]]

events = spark.sql(
    "SELECT * FROM VALUES (1L, 'a', 'c', 1L), (1L, 'b', 'u', 6L), (2L, 'x', 'c', 2L), "
    "(1L, NULL, 'd', 8L), (CAST(NULL AS LONG), NULL, 't', 5L) AS events(k, v, op, s)"
)
def apply(target, of, **more):
    on_spark.auto_cdc(
        target, of, [F.col("k")], F.col("s"), apply_as_deletes=F.col("op") == "d",
        except_column_list=["op"], **more,
    )
    return sorted(row["v"] for row in on_spark.table(target).scan(["v"]).to_pylist())

truncates = {"apply_as_truncates": F.expr("op = 't'")}
found["newest"] = [
    apply("newest", events.where("s > 1 AND s < 8"), **truncates),
    apply("newest", events.where("s < 5 OR op = 'd'")),
]
found["history"] = apply("history", events.where("op <> 't'"), stored_as_scd_type=2)
events.where("op <> 't'").write.parquet(f"{source}-events")
stream_of = spark.readStream.schema("k LONG, v STRING, op STRING, s LONG")
on_spark.auto_cdc(
    "streamed", stream_of.parquet(f"{source}-events"), "k", "s", apply_as_deletes="op = 'd'",
    except_column_list=["op"], stored_as_scd_type=2, trigger={"availableNow": True},
    checkpoint=f"{source}-flow",
).awaitTermination()
found["streamed"] = sorted(row["v"] for row in on_spark.table("streamed").scan(["v"]).to_pylist())
before = changed.scan().count(), len(changed.snapshots())
exec(page)  # of how-to/spark-connect.md
after = changed.scan().count(), len(changed.snapshots())
found["page"] = [after[0] - before[0], after[1] - before[1], df.count()]
print("FOUND " + json.dumps(found))
"""


def page_of(table: str) -> str:
    """The program of the page about Spark Connect, with a table of this machine."""
    [code] = blocks_of(PAGES / "how-to/spark-connect.md", ["python"])
    texts = {"sc://spark:15002": "local[2]", "s3://sales/lake/shop.db/orders": table}
    return Changed(Path(), texts)(code.code)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("connect")
    (folder / "in").mkdir()
    (folder / "in" / "rows.json").write_text('{"id": 5000, "v": "streamed"}\n')
    page = page_of(f"{folder}/warehouse/default.db/c")
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(folder / "warehouse"), str(folder / "in"), page],
        capture_output=True,
        text=True,
        timeout=800,
        cwd=folder,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, Path(folder).name + done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(lines[0].removeprefix("FOUND "))


def test_program_of_the_page_reads_and_upserts(found: Any) -> None:
    rows, commits, count = found["page"]
    assert (rows, commits) == (0, 1)
    assert count > 0


def test_package_that_the_page_installs_has_this_extra() -> None:
    [console] = blocks_of(PAGES / "how-to/spark-connect.md", ["console"])
    assert run_console(console.code, "how-to/spark-connect.md") == []


def test_session_is_a_connect_session(found: Any) -> None:
    assert found["session"].startswith("pyspark.sql.connect")


def test_frame_is_written_in_one_commit(found: Any) -> None:
    assert found["write"] == [100, 2, 1]


def test_scan_is_read_natively_and_merged(found: Any) -> None:
    assert (found["native"], found["merged"]) == (7, [[False, 50], [True, 50]])


def test_dead_rows_of_a_table_with_an_index_are_left_out(found: Any) -> None:
    assert found["indexed"] == [100, 10]


def test_versions_of_an_external_table_are_merged_by_several_tasks(found: Any) -> None:
    assert found["external"] == [[1, "11"], [2, "12"], [3, "03"]]


def test_data_source_reads_and_appends(found: Any) -> None:
    assert (found["source"], found["appended"]) == (60, 200)


def test_error_of_a_task_is_a_keytide_error(found: Any) -> None:
    assert "Cannot write null to non-null column(id)" in found["refused"]


def test_error_of_the_data_source_is_said_in_its_own_words(found: Any) -> None:
    words, has_report = found["words"]
    assert words.startswith("format 'keytide' has no option 'colums'; did you mean 'columns'")
    assert has_report


def test_sql_finds_the_tables(found: Any) -> None:
    assert found["sql"] == [{"text": "{keytide_0}", "n": 5}]


def test_feeds_of_files_are_refused_with_the_ways_that_work(found: Any) -> None:
    message, tables = found["ingest"]
    assert "use a classic session, or apply the events with Lake.auto_cdc" in message
    assert tables == 0


def test_streaming_sink_knows_its_query(found: Any) -> None:
    assert found["sink"] == "spark-"


def test_batch_function_has_to_name_its_query(found: Any) -> None:
    assert "Spark Connect does not tell foreachBatch functions" in found["anonymous"]
    assert found["named"] == "mine"


def test_rows_are_changed_merged_and_overwritten(found: Any) -> None:
    # Of 0 to 9 there are left 3, 4, 5, 7, 8 and 9; 8 and 9 are matched, 10, 12, 13 and 14 are new.
    assert found["changed"] == [2, 2, 6, 1, 10]
    assert found["rows"] == ["last", "v3", "v3", "v4", "v4", "v5", "v5", "v7", "v7", "v8"]


def test_rows_are_changed_by_the_driver_where_sizes_are_known(found: Any) -> None:
    delete, update, merge = found["plans"]
    assert delete.startswith("runs in the driver, because ")
    assert update.startswith("runs in the driver, because ")
    assert merge == "runs on executors, because the size of the input is unknown"
    assert found["in driver"] == [1, 2]
    left = ["last", "v3", "v4", "v4", "v5!", "v5!", "v7", "v7", "v8"]
    assert found["rows after"] == left


def test_observed_figures_are_those_of_the_write(found: Any) -> None:
    assert found["observed"] == [{"n": 100, "last": 99}, {"n": 100}]


def test_tables_of_a_lake_become_views(found: Any) -> None:
    assert found["views"] == [["default_i", "default_t"], 100]


def test_events_become_newest_rows_and_histories(found: Any) -> None:
    assert found["newest"] == [["b"], []]
    assert found["history"] == found["streamed"] == ["a", "b", "x"]
