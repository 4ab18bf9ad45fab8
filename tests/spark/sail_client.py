"""What Keytide offers on Spark, tried on Sail: `sail_client.py FOLDER PAGE SEED STEPS`.

Prints what each attempt found, or the error that it raised. tests/spark/test_sail.py knows what
is expected.
"""

from __future__ import annotations

import io
import json
import os
import random
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pysail.spark import SparkConnectServer

import keytide as kt
from keytide.commit import transaction

transaction._QUIET_S = 0  # all tasks of a failed statement have ended here

folder, page, seed, steps = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
server = SparkConnectServer()
server.start(background=True)
spark = kt.spark.session(remote=f"sc://localhost:{server.listening_address[1]}")
lake = kt.connect(str(folder / "lake"), spark=spark)
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
NOT_IN_DRIVER = "spark.keytide.driver-work.max-size"
found: dict[str, Any] = {}


def tried(attempt: Callable[[], Any]) -> Callable[[], Any]:
    """Run an attempt, and note what it returns, or its error."""
    try:
        found[attempt.__name__] = attempt()
    except Exception as error:
        is_ours = isinstance(error, kt.KeytideError)
        name = type(error).__name__ if is_ours else f"not Keytide's: {type(error)}"
        found[attempt.__name__] = f"{name}: {error}"
    return attempt


def table_of(name: str, rows: Any = None, **options: str) -> Any:
    """A new table with some rows, which the client writes."""
    made = lake.create_table(name, SCHEMA, ["id"], options={"bucket": "2"} | options)
    if rows is not None:
        made.write([{"id": key, "v": value} for key, value in rows.items()])
    return made


def stored(name: str) -> dict[Any, Any]:
    """The rows of a table, read without Sail."""
    rows = kt.connect(str(folder / "lake")).table(name).scan().to_arrow()
    values = rows.drop_columns("id").to_pylist()
    shown = [row["v"] if list(row) == ["v"] else list(row.values()) for row in values]
    return dict(sorted(zip(rows["id"].to_pylist(), shown, strict=True)))


def frame(first: int, last: int, text: str = "v") -> Any:
    """Rows that Sail makes in three partitions."""
    return spark.range(first, last, 1, 3).selectExpr("id", f"concat('{text}', id) AS v")


def rows_of(rows: Any) -> list[list[Any]]:
    """The values of a DataFrame's rows, sorted."""
    return sorted(map(list, rows.collect()))


# -- reads -----------------------------------------------------------------------------------------


@tried
def names_of_folders() -> Any:
    counts = {}
    for name in ("plain", "a b", "a%20b", "a=b,c", "a[1]b", "a*b"):
        table = kt.connect(str(folder / name)).create_table("t", SCHEMA, ["id"])
        table.write([{"id": key, "v": "old"} for key in range(100)])
        counted = [table.scan().to_spark(spark).count()]
        counted.append(table.scan(where="id < 7").to_spark(spark).count())
        table.write([{"id": key, "v": "new"} for key in range(50, 150)])
        counted.append(table.scan().to_spark(spark).count())
        table.compact(full=True)
        counted.append(table.scan().to_spark(spark).count())
        counted.append(spark.read.format("keytide").load(table.uri).count())
        counts[name] = counted
    return counts


@tried
def scans() -> Any:
    table = table_of("scans", {1: "a", 2: "b", 3: "c"})
    table.write([{"id": 2, "v": "B"}])
    source = spark.read.format("keytide")
    return {
        "where": rows_of(table.scan(["v"], where="id > 1").to_spark(spark)),
        "before": rows_of(table.scan(snapshot_id=1).to_spark(spark)),
        "changes": rows_of(table.changes(1).to_spark(spark).select("_row_kind", "id", "v")),
        "format": rows_of(source.option("where", "id = 2").load(table.uri)),
        "format before": rows_of(
            spark.read.format("keytide").option("snapshot-id", 1).load(table.uri)
        ),
        "joined": lake.sql(
            "SELECT a.id, count(*) AS n FROM scans a JOIN scans b ON a.id <= b.id "
            "GROUP BY a.id ORDER BY 1"
        ).to_pylist(),
        "system": len(lake.sql("SELECT * FROM `scans$files`").to_pylist()),
    }


@tried
def views() -> Any:
    table = table_of("views", {1: "a"})
    kt.spark.register_lake(spark, lake, ["views"], name="{database} {table}")
    spark.sql(f"CREATE TEMPORARY VIEW of_sql USING keytide OPTIONS (path '{table.uri}')")
    return rows_of(spark.sql("SELECT * FROM `default views` UNION ALL SELECT * FROM of_sql"))


@tried
def deleted_rows() -> Any:
    table = table_of("deleted_rows", dict.fromkeys(range(9), "a"), **{"upsert.mode": "full"})
    table.write(frame(0, 3))
    return rows_of(table.scan(where="id < 4").to_spark(spark))


@tried
def missing_file() -> Any:
    table = table_of("missing_file", {1: "a"})
    rows = table.scan().to_spark(spark)
    for file in folder.glob("**/missing_file/bucket-*/*"):
        file.unlink()
    return rows.count()


@tried
def external() -> Any:
    place = folder / "theirs"
    place.mkdir()
    for number, versions in enumerate([{"id": [1, 2], "w": [1, 1]}, {"id": [1], "w": [2]}]):
        texts = [f"{number}{key}" for key in versions["id"]]
        pq.write_table(pa.table({**versions, "v": texts}), place / f"{number}.parquet")
    lake.create_external_table(
        "external", format="parquet", location=str(place), primary_key=["id"], watermark_key=["w"]
    )
    from keytide.spark import external_merge as of_spark

    little = rows_of(lake.table("external").scan(["id", "v"]).to_spark(spark))
    of_spark._SMALL_BYTES = -1  # every table is large
    return [little, rows_of(lake.table("external").scan(["id", "v"]).to_spark(spark))]


# -- writes ----------------------------------------------------------------------------------------


@tried
def written() -> Any:
    table = table_of("written", {1: "old", 5: "old"})
    table.write(frame(0, 4))
    written = stored("written")
    table.overwrite(frame(7, 9))
    lake.sql("INSERT INTO written SELECT id + 10, v FROM written")
    return [written, stored("written")]


@tried
def written_by_format() -> Any:
    table = table_of("written_by_format", {1: "old", 5: "old"})
    frame(0, 4).write.format("keytide").mode("append").save(table.uri)
    written = stored("written_by_format")
    frame(7, 9).write.format("keytide").mode("overwrite").save(table.uri)
    return [written, stored("written_by_format")]


@tried
def buckets() -> Any:
    schema = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.string())])
    rows = spark.range(0, 60, 1, 4).selectExpr("id", "concat('p', id % 3) AS p", "'x' AS v")
    whole = {key: [f"p{key % 3}", "x"] for key in range(60)}
    same = {}
    for bucket in ("1", "3", "-1", "-2"):
        for partitions, key in (([], ["id"]), (["p"], ["p", "id"])):
            name = f"buckets_{bucket.replace('-', 'n')}_{len(partitions)}"
            table = lake.create_table(
                name, schema, key, partition_by=partitions, options={"bucket": bucket}
            )
            table.write(rows)
            table.write(rows)  # finds its keys again
            table.compact(full=True)
            same[name] = stored(name) == whole
    return same


@tried
def sequence_decides() -> Any:
    table = table_of("sequence_decides", **{"sequence.field": "v"})
    table.write(
        spark.range(0, 900, 1, 4).selectExpr("id % 3 AS id", "CAST(1000 + id AS STRING) AS v")
    )
    rows = spark.range(0, 900, 1, 4).selectExpr("id % 3 AS id", "CAST(2000 + id AS STRING) AS v")
    rows.write.format("keytide").mode("append").save(table.uri)
    return stored("sequence_decides")


@tried
def every_type() -> Any:
    types = {
        "id": "BIGINT", "b": "BOOLEAN", "d": "DATE", "t": "TIMESTAMP(6)", "z": "TIMESTAMP_LTZ(6)",
        "n": "DECIMAL(12, 2)", "f": "FLOAT", "x": "BYTES", "l": "ARRAY<INT>",
        "m": "MAP<STRING, INT>", "s": "ROW<a INT, b STRING>",
    }  # fmt: skip
    for name in ("every_type", "every_type_back"):
        columns = ", ".join(f"{column} {type_}" for column, type_ in types.items())
        lake.sql(f"CREATE TABLE {name} ({columns}, PRIMARY KEY (id) NOT ENFORCED)")
    lake.sql(
        "INSERT INTO every_type VALUES (1, true, DATE '1500-01-02', "
        "TIMESTAMP '1500-01-01 01:01:01.5', TIMESTAMP '2020-01-01 00:00:00', "
        "1.25, 1.5, X'6162', ARRAY[1, NULL], MAP['k', 1], "
        "ROW(1, 'x')), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    )
    lake.table("every_type_back").write(lake.table("every_type").scan().to_spark(spark))
    return stored("every_type") == stored("every_type_back")


# -- statements ------------------------------------------------------------------------------------


def _statements(name: str) -> Any:
    table = table_of(name, {key: f"v{key}" for key in range(8)})
    lake.sql(f"DELETE FROM {name} WHERE id = 0")
    lake.sql(f"DELETE FROM {name} WHERE concat(v, 'x') = 'v1x'")
    lake.sql(
        f"UPDATE {name} SET v = concat(v, '!') WHERE id IN (SELECT id FROM {name} WHERE id > 6)"
    )
    table.update({"v": "'set'"}, "id = 6")
    lake.sql(
        f"MERGE INTO {name} t USING "
        "(SELECT * FROM VALUES (2, 'new'), (3, 'delete'), (9, 'in') AS s(k, w)) s "
        "ON t.id = s.k WHEN MATCHED AND s.w = 'delete' THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET v = concat(t.v, s.w) "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.k, upper(s.w)) "
        "WHEN NOT MATCHED BY SOURCE AND t.id = 4 THEN DELETE"
    )
    source = frame(5, 7, "m")
    merge = table.merge(source, on="target.id = source.id").when_matched_update_all()
    merge.when_not_matched_insert_all().execute()
    table.compact(full=True)
    return stored(name)


@tried
def statements_in_driver() -> Any:
    return _statements("statements_in_driver")


@tried
def statements_in_tasks() -> Any:
    spark.conf.set(NOT_IN_DRIVER, "0")
    try:
        return _statements("statements_in_tasks")
    finally:
        spark.conf.unset(NOT_IN_DRIVER)


@tried
def events() -> Any:
    columns = {"id": [1, 1, 2, 3], "s": [1, 2, 1, 1], "v": ["a", None, "c", "d"]}
    rows = spark.createDataFrame(pa.table({**columns, "op": ["I", "U", "I", "D"]}))
    settings = {"apply_as_deletes": "op = 'D'", "except_column_list": ["op"]}
    lake.auto_cdc("events", rows, ["id"], "s", **settings)
    lake.auto_cdc("history", rows, ["id"], "s", stored_as_scd_type=2, **settings)
    history = kt.connect(str(folder / "lake")).table("history").scan().to_arrow()
    return [stored("events"), sorted(map(list, zip(*history.to_pydict().values(), strict=True)))]


# -- what is refused -------------------------------------------------------------------------------

tied = table_of("tied", {1: "kept"})
TWICE = "SELECT id % 5 AS id, concat('v', id) AS v FROM range(0, 40, 1, 4)"


@tried
def tie_of_write() -> None:
    tied.write(spark.sql(TWICE))


@tried
def tie_of_one_task() -> None:
    tied.write(spark.createDataFrame(pa.table({"id": [3, 3], "v": ["a", "b"]})))


@tried
def tie_of_format() -> None:
    spark.sql(TWICE).write.format("keytide").mode("append").save(tied.uri)


@tried
def tie_of_history() -> None:
    rows = spark.createDataFrame(pa.table({"id": [1, 1], "s": [9, 9], "v": ["a", "b"]}))
    lake.auto_cdc("history", rows, ["id"], "s", stored_as_scd_type=2)


@tried
def tie_of_sequence() -> None:
    rows = spark.createDataFrame(pa.table({"id": [1, 1], "s": [9, 9], "v": ["a", "b"]}))
    lake.auto_cdc("events", rows, ["id"], "s")


@tried
def tie_of_statement() -> None:
    lake.sql(f"INSERT OVERWRITE tied {TWICE}")


@tried
def left_in_place() -> None:
    table_of("left_in_place", **{"write.distribution": "none"}).write(frame(0, 3))


@tried
def mode_error() -> None:
    frame(0, 3).write.format("keytide").save(tied.uri)


@tried
def mode_ignore() -> None:
    frame(0, 3).write.save(tied.uri, format="keytide", mode="ignore")


@tried
def null_key() -> None:
    frame(0, 3).selectExpr("CAST(NULL AS BIGINT) AS id", "v").write.format("keytide").mode(
        "append"
    ).save(tied.uri)


@tried
def unknown_column() -> None:
    tied.write(frame(0, 3).selectExpr("id", "v", "1 AS w"))


@tried
def unknown_option() -> None:
    frame(0, 3).write.format("keytide").option("nope", 1).mode("append").save(tied.uri)


@tried
def no_table() -> None:
    spark.read.format("keytide").load(str(folder / "nothing")).count()


@tried
def unknown_function() -> None:
    lake.sql("SELECT no_function(id) FROM tied").to_pylist()


@tried
def merge_on_an_ambiguous_name() -> None:
    tied.merge(frame(0, 3), on="id").when_matched_delete().execute()


@tried
def statement_on_a_view() -> None:
    spark.sql("DELETE FROM of_sql WHERE id = 1")


@tried
def read_stream() -> None:
    spark.readStream.format("keytide").load(tied.uri)


def _numbers() -> Any:
    return spark.readStream.format("rate").load().selectExpr("value AS id", "'s' AS v")


@tried
def write_stream() -> None:
    _numbers().writeStream.format("keytide").start(tied.uri)


@tried
def events_of_a_stream() -> None:
    lake.auto_cdc("of_stream", _numbers().selectExpr("id", "v", "id AS s"), ["id"], "s")


@tried
def ingest() -> None:
    lake.ingest("ingested", str(folder), format="debezium-json", primary_key=["id"])


@tried
def after_all_refusals() -> Any:
    files = len(list(folder.glob("lake/**/tied/bucket-*/*.parquet")))
    return [
        stored("tied"),
        files,
        lake.tables().count("of_stream"),
        lake.tables().count("ingested"),
    ]


# -- at random, against a dict ---------------------------------------------------------------------


def _step(table: Any, model: dict[int, str], rng: random.Random, number: int) -> str:
    """A random change of a table and of its model; gives what it was."""
    first, last = sorted((rng.randrange(40), rng.randrange(40)))
    given = {key: f"{number}-{key}" for key in range(first, last)}
    rows = spark.range(first, last, 1, rng.choice((1, 2, 5))).selectExpr(
        "id", f"concat('{number}-', id) AS v"
    )
    what = rng.choice(
        ("write", "format", "overwrite", "replace", "delete", "update", "merge", "compact")
    )
    if what == "write":
        table.write(rows)
        model.update(given)
    elif what == "format":
        rows.write.format("keytide").mode("append").save(table.uri)
        model.update(given)
    elif what == "overwrite":
        table.overwrite(rows)
        model.clear()
        model.update(given)
    elif what == "replace":
        rows.write.format("keytide").mode("overwrite").save(table.uri)
        model.clear()
        model.update(given)
    elif what == "delete":
        lake.sql(
            f"DELETE FROM {table.name} "
            f"WHERE id % 3 = {number % 3} AND id BETWEEN {first} AND {last}"
        )
        for key in [k for k in model if k % 3 == number % 3 and first <= k <= last]:
            del model[key]
    elif what == "update":
        lake.sql(f"UPDATE {table.name} SET v = concat(v, '+') WHERE id >= {first}")
        model.update({key: f"{value}+" for key, value in model.items() if key >= first})
    elif what == "merge":
        merge = table.merge(rows, on="target.id = source.id").when_matched_delete()
        merge.when_not_matched_insert_all().execute()
        new = {key: value for key, value in given.items() if key not in model}
        for key in given.keys() & model.keys():
            del model[key]
        model.update(new)
    else:
        table.compact(full=True)
    return f"{what} {first} to {last}"


@tried
def random_changes() -> Any:
    rng = random.Random(seed)
    kinds = ({"bucket": "1"}, {"bucket": "3"}, {"deletion-vectors.enabled": "true"})
    table = table_of("random_changes", **rng.choice(kinds))
    spark.conf.set(NOT_IN_DRIVER, rng.choice(("0", "1 gb")))
    model: dict[int, str] = {}
    done = []
    try:
        for number in range(steps):
            done.append(_step(table, model, rng, number))
            here = dict(rows_of(table.scan().to_spark(spark)))
            if not here == stored("random_changes") == model:
                return [done, here, stored("random_changes"), model]
    finally:
        spark.conf.unset(NOT_IN_DRIVER)
    return "equal"


@tried
def page_of_the_documents() -> Any:
    os.chdir(folder)
    begun = "server = SparkConnectServer()\nserver.start(background=True)\n"
    code = page.read_text()
    assert begun in code
    told = io.StringIO()
    with redirect_stdout(told):
        exec(compile(code.replace(begun, ""), "page", "exec"), {"server": server})
    return told.getvalue().splitlines()


print("FOUND", json.dumps(found, default=str))
spark.stop()
server.stop()
