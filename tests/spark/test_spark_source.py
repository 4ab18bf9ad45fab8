"""The data source: options, filters, SQL views, appends, and what it refuses."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.functions import lit

import keytide as kt
from keytide.spark.source_options import SourceOptions
from keytide.store import CacheFolder

# With filters handed down or without, on one day or the next.
pytestmark = [pytest.mark.spark, pytest.mark.one_in(14)]

ROWS = pa.table(
    {
        "id": pa.array(range(20), pa.int64()),
        "s": pa.array([None if i % 5 == 0 else f"text {i % 4}" for i in range(20)]),
        "x": pa.array([i * 0.5 for i in range(20)]),
        "d": pa.array([Decimal(i) for i in range(20)], pa.decimal128(9, 2)),
        "day": pa.array([date(2024, 1, 1 + i) for i in range(20)]),
        "n": pa.array([datetime(2024, 1, 1 + i) for i in range(20)], pa.timestamp("us")),
        "z": pa.array(
            [datetime(2024, 1, 1 + i, tzinfo=timezone.utc) for i in range(20)],
            pa.timestamp("us", tz="UTC"),
        ),
    }
)


@pytest.fixture
def table(warehouse: str) -> kt.Table:
    options = {"bucket": "2", "compaction.background": "false"}  # a test looks for it at once
    made = kt.connect(warehouse).create_table("t", ROWS.schema, ["id"], options=options)
    made.write(ROWS)
    made.write(ROWS.slice(0, 10).append_column("_row_kind", pa.array(["+U", "-D"] * 5)))
    return made


@pytest.fixture(params=["true", "false"], ids=["filters on", "filters off"])
def session(request: pytest.FixtureRequest, spark: Any) -> Any:
    made = spark.newSession()
    made.conf.set("spark.sql.python.filterPushdown.enabled", request.param)
    kt.spark.register(made)
    return made


LIVE = [0, 2, 4, 6, 8, *range(10, 20)]


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.collect())


# -- reading ---------------------------------------------------------------------------------------


def test_branch_is_read_and_written_by_its_address_and_by_an_option(
    table: kt.Table, session: Any
) -> None:
    branch = table.create_branch("b", 1)
    reader = session.read.format("keytide")
    assert ids(reader.load(branch.uri)) == list(range(20))
    assert ids(reader.option("branch", "b").load(table.uri)) == list(range(20))
    one = reader.load(branch.uri).limit(1).withColumn("id", lit(99).cast("long"))
    one.write.format("keytide").mode("append").option("branch", "b").save(table.uri)
    assert 99 in ids(reader.load(branch.uri))
    assert ids(session.read.format("keytide").load(table.uri)) == LIVE


def test_table_is_read_by_its_path(table: kt.Table, session: Any) -> None:
    frame = session.read.format("keytide").load(table.uri)
    assert frame.columns == ROWS.column_names
    assert ids(frame) == LIVE


def test_options_choose_columns_rows_and_snapshot(table: kt.Table, session: Any) -> None:
    reader = session.read.format("keytide").option("columns", "s, id").option("where", "id < 5")
    assert reader.load(table.uri).columns == ["s", "id"]
    assert ids(reader.load(table.uri)) == [0, 2, 4]
    assert ids(reader.option("snapshot-id", "1").load(table.uri)) == [0, 1, 2, 3, 4]


def test_as_of_reads_the_past(table: kt.Table, session: Any) -> None:
    moment = table.snapshots()[0].time_millis
    frame = session.read.format("keytide").option("as-of", str(moment)).load(table.uri)
    assert len(ids(frame)) in (15, 20)  # both commits may be of one millisecond


CONDITIONS = [
    "id = 12",
    "id in (1, 2, 3)",
    "id > 3 and x <= 7.5",
    "s is null",
    "s is not null and not (s = 'text 1')",
    "s <=> 'text 2'",
    "s like 'text%'",
    "d >= 11.50",
    "day between date'2024-01-12' and date'2024-01-15'",
    "n < timestamp_ntz'2024-01-05'",
    "z = timestamp'2024-01-13 00:00:00'",
    "id = 2 or s = 'text 3'",
]


@pytest.mark.takes_turns
def test_queries_of_a_view_filter_as_spark_does(table: kt.Table, session: Any) -> None:
    session.sql(f"create or replace temporary view v using keytide options (path '{table.uri}')")
    plain = session.createDataFrame(table.scan().to_arrow())
    assert ids(plain) == LIVE
    for condition in CONDITIONS:
        found = session.sql(f"select id, x from v where {condition}")
        assert ids(found) == ids(plain.where(condition)), condition


def test_queries_of_one_frame_do_not_see_filters_of_others(table: kt.Table, session: Any) -> None:
    frame = session.read.format("keytide").load(table.uri)
    few, many = frame.where("id < 5"), frame.where("id > 10")
    assert few.union(many).count() == 3 + 9
    assert [few.count(), frame.count(), many.count(), frame.count()] == [3, 15, 9, 15]


def test_frame_stays_with_its_snapshot_and_a_view_shows_the_newest(
    table: kt.Table, spark: Any
) -> None:
    view = f"create or replace temporary view v using keytide options (path '{table.uri}')"
    spark.sql(view)
    frame = spark.read.format("keytide").load(table.uri)
    table.write(ROWS)
    assert (frame.count(), spark.table("v").count()) == (15, 20)


VIEWS = {
    "or replace temporary view": "v",
    "temp view": "`a view`",
    "global temporary view": "global_temp.g",
}


@pytest.mark.parametrize("made", VIEWS)
def test_what_is_inserted_through_a_view_is_seen_through_it(
    made: str, table: kt.Table, spark: Any
) -> None:
    name = VIEWS[made]
    spark.sql(
        f"-- a view\ncreate {made} {name.removeprefix('global_temp.')}\nUSING `keytide`\n"
        f"OPTIONS ('path' = '{table.uri}')"
    )
    before = spark.sql(f"select * from {name}")
    spark.sql(f"insert into {name} select 500, 'x', 1D, 2.5, date'2024-01-01', now(), now()")
    counts = [spark.sql(f"select * from {name}"), spark.table(name), spark.read.table(name), before]
    assert [rows.count() for rows in counts] == [16, 16, 16, 15]
    spark.sql(f"drop view {name}")
    table.write(ROWS)
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.table(name)


def test_view_that_is_another_one_by_now_or_travels_in_time_stays_as_it_is(
    table: kt.Table, spark: Any
) -> None:
    view = "create or replace temporary view {} using keytide options (path '{}'{})"
    spark.sql(view.format("v", table.uri, ""))
    spark.range(3).createOrReplaceTempView("v")
    spark.sql(view.format("old", table.uri, ", `snapshot-id` 1"))
    there = spark.table("old").count()
    table.write(ROWS)
    assert (spark.table("v").count(), spark.table("old").count()) == (3, there)


def test_view_of_a_table_that_is_gone_is_in_nobody_elses_way(lake: kt.Lake, spark: Any) -> None:
    gone = lake.create_table("gone", ROWS.schema, ["id"])
    spark.sql(f"create temporary view gone using keytide options (path '{gone.uri}')")
    lake.drop_table("gone")
    assert spark.sql("select 1").count() == 1
    with pytest.raises(kt.NotFoundError, match="gone does not exist"):
        spark.table("gone").count()
    spark.sql("drop view gone")


@pytest.mark.takes_turns
def test_frame_whose_snapshot_expired_says_so(table: kt.Table, spark: Any) -> None:
    read = spark.read.format("keytide")
    unplanned, planned = read.load(table.uri), read.load(table.uri)
    merged = table.scan().to_spark(spark)
    assert planned.count() == merged.count() == 15
    first = table.snapshots()[-1].id
    table.compact(full=True)
    native = table.scan().to_spark(spark)
    second = table.snapshots()[-1].id
    table.write(ROWS)
    table.compact(full=True)
    table.expire_snapshots(retain_max=1)
    frames = [(unplanned, first), (planned, first), (merged, first), (native, second)]
    for frame, snapshot in frames:
        with pytest.raises(kt.DataError, match=f"snapshot {snapshot} expired") as caught:
            frame.collect()
        assert isinstance(caught.value, PySparkException)
        assert len(str(caught.value)) < 700
    changes = table.changes(table.snapshots()[-1].id).to_spark(spark)
    assert changes.count() == 0


def test_missing_file_of_somebody_else_is_told_by_spark_alone(tmp_path: Path, spark: Any) -> None:
    spark.range(3).write.parquet(str(tmp_path / "other"))
    rows = spark.read.parquet(str(tmp_path / "other"))
    for file in (tmp_path / "other").glob("*.parquet"):
        file.unlink()
    with pytest.raises(Exception, match="FILE_NOT_EXIST") as caught:
        rows.collect()
    assert not isinstance(caught.value, kt.KeytideError)


def test_frame_of_an_empty_table_stays_empty(lake: kt.Lake, spark: Any) -> None:
    empty = lake.create_table("empty", ROWS.schema, ["id"])
    frame = spark.read.format("keytide").load(empty.uri)
    empty.write(ROWS)
    assert frame.count() == 0


def test_schema_given_by_the_user_chooses_columns(table: kt.Table, spark: Any) -> None:
    frame = spark.read.format("keytide").schema("x double, id bigint").load(table.uri)
    assert (frame.columns, ids(frame)) == (["x", "id"], LIVE)


# -- writing ---------------------------------------------------------------------------------------


def test_frame_is_appended_in_one_commit(table: kt.Table, session: Any) -> None:
    frame = (
        table.scan().to_spark(session).selectExpr("id + 100 as id", "s", "x", "d", "day", "n", "z")
    )
    frame.repartition(3).write.format("keytide").mode("append").save(table.uri)
    kinds = [snapshot.commit_kind.value for snapshot in table.snapshots()]
    assert kinds == ["APPEND", "APPEND", "APPEND", "COMPACT"]
    assert ids(session.read.format("keytide").load(table.uri)) == sorted(
        [*LIVE, *(100 + i for i in LIVE)]
    )


def test_insert_into_a_view_is_an_append(table: kt.Table, spark: Any) -> None:
    spark.sql(f"create or replace temporary view v using keytide options (path '{table.uri}')")
    spark.sql("insert into v select 500, 'x', 1D, 2.5, date'2024-01-01', now(), now()")
    assert table.get(500) is not None


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"snapshot-id": "one"}, "option 'snapshot-id' is 'one'; expected an integer"),
        ({"snapshot-id": "9"}, "table .* has no snapshot 9"),
        ({"tag": "t"}, "table .* has no tag 't'"),
        ({"columns": "idd"}, "table .* has no column 'idd'"),
        ({"where": "id ="}, "cannot be parsed"),
        ({"colums": "id"}, "no option 'colums'; did you mean 'columns'"),
        ({"versionAsOf": "9"}, "table .* has no snapshot 9"),
        ({"as_off": "1"}, "no option 'as_off'; did you mean 'as-of'"),
        (
            {"header": "true"},
            "no option 'header'; options: 'branch', .*'snapshot-id', 'tag',",
        ),
    ],
)
def test_wrong_option_is_named_first_and_the_report_is_kept(
    options: dict[str, str], message: str, table: kt.Table, spark: Any
) -> None:
    with pytest.raises(kt.KeytideError, match=message) as caught:
        spark.read.format("keytide").options(**options).load(table.uri)
    assert isinstance(caught.value, AnalysisException)
    assert "\n" not in str(caught.value)
    assert "PYTHON_DATA_SOURCE_ERROR" in caught.value.report
    assert "Traceback" not in caught.value.report


@pytest.mark.parametrize("options", [{"region": "eu"}, {"endpoint": "http://x", "timeout": "1 s"}])
def test_what_is_no_option_goes_to_an_object_store(options: dict[str, str]) -> None:
    parsed = SourceOptions.parse({"path": "s3://bucket/t", **options})
    assert dict(parsed.store) == options
    with pytest.raises(kt.InvalidError, match="did you mean 'snapshot-id'"):
        SourceOptions.parse({"path": "s3://bucket/t", "snapshot_id": "1"})


def test_cache_of_an_object_store_is_no_option_of_the_store(tmp_path: Path) -> None:
    given = {"cache": str(tmp_path), "cache-bytes": "1 gb", "region": "eu"}
    parsed = SourceOptions.parse({"path": "s3://bucket/t", **given})
    assert (parsed.cache, parsed.store) == (
        CacheFolder(str(tmp_path), 1 << 30),
        (("region", "eu"),),
    )
    with pytest.raises(kt.InvalidError, match="cache-bytes is 'much'; expected a size"):
        SourceOptions.parse({"path": "s3://bucket/t", **given, "cache-bytes": "much"})
    with pytest.raises(kt.InvalidError, match="cache-bytes is '1 gb', but cache is not set"):
        SourceOptions.parse({"path": "s3://bucket/t", "cache-bytes": "1 gb"})
    with pytest.raises(kt.InvalidError, match="did you mean 'cache-bytes'"):
        SourceOptions.parse({"path": "s3://bucket/t", **given, "cache_bytes": "1 gb"})


def test_cache_of_a_table_on_local_disk_is_refused(table: kt.Table, spark: Any) -> None:
    with pytest.raises(kt.InvalidError, match=r"cache: .* is on the local disk"):
        spark.read.format("keytide").option("cache", "/c").load(table.uri)


def test_executors_read_from_the_cache(tmp_path: Path, spark: Any) -> None:
    # Executors have an in-memory store of their own, which is empty: all they see is the cache.
    address = f"memory://{uuid4().hex}"
    lake = kt.connect(address, spark, cache=tmp_path / "cache")
    table = lake.create_table("t", ROWS.schema, ["id"], options={"bucket": "2"})
    table.write(ROWS)
    with pytest.raises(kt.DataError):
        ids(table.scan().to_spark(spark))
    assert table.scan().count() == 20
    table.scan().to_arrow()
    assert ids(table.scan().to_spark(spark)) == [*range(20)]


def test_missing_path_and_missing_table_are_said(tmp_path: Path, spark: Any) -> None:
    with pytest.raises(kt.InvalidError, match="format 'keytide' requires the path of a table"):
        spark.read.format("keytide").load()
    with pytest.raises(kt.NotFoundError, match="table nothing does not exist"):
        spark.read.format("keytide").load(str(tmp_path / "nothing"))


def test_overwrite_replaces_all_rows_in_one_commit_also_by_some_of_them(
    table: kt.Table, spark: Any
) -> None:
    before = table.scan()
    frame = before.to_spark(spark).where("id < 4")
    frame.write.format("keytide").mode("overwrite").save(table.uri)
    assert sorted(row["id"] for row in table.scan().to_pylist()) == [0, 2]
    assert [s.commit_kind for s in table.snapshots()] == ["APPEND", "APPEND", "OVERWRITE"]
    assert before.count() == 15  # what was read stays as it was
    frame.where("id < 0").write.format("keytide").mode("overwrite").save(table.uri)
    assert table.scan().count() == 0


def test_overwrite_replaces_partitions_that_its_rows_do_not_touch(
    lake: kt.Lake, spark: Any
) -> None:
    lake.sql("CREATE TABLE t (id BIGINT, p STRING, PRIMARY KEY (id, p) NOT ENFORCED) "
             "PARTITIONED BY (p)")  # fmt: skip
    table = lake.table("t")
    table.write([{"id": 1, "p": "a"}, {"id": 2, "p": "b"}])
    rows = spark.sql("SELECT 7L AS id, 'a' AS p")
    rows.write.format("keytide").mode("overwrite").save(table.uri)
    assert table.scan().to_pylist() == [{"id": 7, "p": "a"}]


def test_overwrite_that_fails_leaves_the_rows_and_no_file(table: kt.Table, spark: Any) -> None:
    before = sorted(Path(table.uri).rglob("*.parquet"))
    frame = table.scan().to_spark(spark).withColumn("id", lit(None).cast("bigint"))
    with pytest.raises(kt.InvalidError, match=r".*Cannot write null"):
        frame.write.format("keytide").mode("overwrite").save(table.uri)
    assert sorted(Path(table.uri).rglob("*.parquet")) == before
    assert table.scan().count() == 15


def test_wrong_value_fails_the_write_with_nothing_left(table: kt.Table, spark: Any) -> None:
    before = sorted(Path(table.uri).rglob("*.parquet"))
    frame = table.scan().to_spark(spark).withColumn("id", lit(None).cast("bigint"))
    with pytest.raises(kt.InvalidError, match=r".*Cannot write null"):
        frame.write.format("keytide").mode("append").save(table.uri)
    assert sorted(Path(table.uri).rglob("*.parquet")) == before
    assert len(table.snapshots()) == 2


def test_output_mode_complete_is_refused(tmp_path: Path, table: kt.Table, spark: Any) -> None:
    source = tmp_path / "in"
    spark.range(3).write.parquet(str(source))
    counts = spark.readStream.schema("id long").parquet(str(source)).groupBy("id").count()
    query = (
        counts.writeStream.format("keytide")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(table.uri)
    )
    with pytest.raises(kt.UnsupportedError, match=r".*output mode 'complete'"):
        query.awaitTermination()
