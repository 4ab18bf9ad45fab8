"""Small work on a session is done by the driver, with the same outcome as on executors.

Other tests have executors do all of it; those with the fixture `place` run both ways.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keytide as kt
from keytide.spark.capacity import SETTING, WorkPlace, bytes_of_rows
from keytide.spark.runner import Cluster, Executors, SizedRunner

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int32()), ("v", pa.string()), ("n", pa.int64())])
CHANGES = pa.schema([*SCHEMA, ("op", pa.string())])
OPTIONS = {"bucket": "2", "num-sorted-run.compaction-trigger": "3"}

Rows = dict[int, tuple[str | None, int | None]]
START: Rows = {i: ("a", i) for i in range(10)}


def table_of(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist([{"id": i, "v": v, "n": n} for i, (v, n) in rows.items()], SCHEMA)


def parquet(spark: Any, folder: Path, rows: Rows) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table_of(rows), folder / "0.parquet")
    return spark.read.parquet(str(folder))


def filled(warehouse: str, spark: Any, rows: Rows = START) -> kt.Lake:
    lake = kt.connect(warehouse, spark=spark)
    lake.create_table("t", SCHEMA, ["id"], options=OPTIONS)
    lake.table("t").write(table_of(rows))
    brought = [(2, "x", 20, "u"), (5, None, None, "d"), (77, "z", 7, "u")]
    columns = [
        pa.array(values, f.type)
        for values, f in zip(zip(*brought, strict=True), CHANGES, strict=True)
    ]
    lake.create_table("s", CHANGES, ["id"]).write(pa.table(columns, schema=CHANGES))
    return lake


def found(lake: kt.Lake) -> Rows:
    return {row["id"]: (row["v"], row["n"]) for row in lake.table("t").scan().to_pylist()}


# -- the same outcome ------------------------------------------------------------------------------


def updated(rows: Rows, of: Callable[[int], bool], new: Callable[[Any, Any], Any]) -> Rows:
    return {i: new(v, n) if of(i) else (v, n) for i, (v, n) in rows.items()}


ON = "MERGE INTO t USING s ON t.id = s.id"
INSERT = "WHEN NOT MATCHED THEN INSERT (id, v, n) VALUES (s.id, s.v, s.n)"
STATEMENTS: dict[str, Callable[[Rows], Rows]] = {
    "DELETE FROM t WHERE id IN (0, 3)": lambda r: {i: x for i, x in r.items() if i not in (0, 3)},
    "UPDATE t SET v = 'k' WHERE n > 7": lambda r: updated(r, (7).__lt__, lambda v, n: ("k", n)),
    "UPDATE t SET n = n * 2, v = concat(v, '!') WHERE n % 2 = 0": lambda r: updated(
        r, lambda i: i % 2 == 0, lambda v, n: (v + "!", n * 2)
    ),
    f"{ON} WHEN MATCHED THEN UPDATE SET v = s.v, n = s.n {INSERT}": lambda r: r
    | {2: ("x", 20), 5: (None, None), 77: ("z", 7)},
    f"{ON} WHEN MATCHED AND s.op = 'd' THEN DELETE WHEN MATCHED THEN UPDATE SET n = t.n + s.n": (
        lambda r: {i: (v, n + 20 if i == 2 else n) for i, (v, n) in r.items() if i != 5}
    ),
    "DELETE FROM t WHERE id > 70 AND length(v) = 1": lambda r: {
        i: x for i, x in r.items() if i < 70
    },
    "DELETE FROM t WHERE id IN (SELECT n FROM s)": lambda r: {
        i: x for i, x in r.items() if i not in (20, 7)
    },
    "INSERT INTO t SELECT id + 1, v, n FROM s WHERE n IS NOT NULL": lambda r: r
    | {3: ("x", 20), 78: ("z", 7)},
}  # fmt: skip


@pytest.mark.one_in(14)
@pytest.mark.parametrize("text", STATEMENTS)
def test_statement_changes_the_same_rows_and_tells_the_same_changes_at_both_places(
    text: str, tmp_path: Path, spark: Any
) -> None:
    counts, told = [], []
    for limit in ("0", "1 gb"):
        lake = filled(str(tmp_path / limit), spark)
        lake.sql(f"ALTER TABLE t SET ('spark.driver-work.max-size' = '{limit}')")
        with limited(spark, None):
            counts.append(lake.sql(text).row_count)
        assert found(lake) == STATEMENTS[text](dict(START)), limit
        changes = lake.table("t").changes(1, mode="delta").to_pylist()
        told.append(sorted(map(str, changes)))
    assert counts[0] == counts[1]
    assert told[0] == told[1]


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    "text",
    [
        "UPDATE t SET n = 'x' WHERE id = 1",
        "UPDATE t SET id = 2 WHERE n = 1",
        "UPDATE t SET n = n / 0 WHERE n + 0 = 1",
        "MERGE INTO t USING (SELECT 1 AS id UNION ALL SELECT 1) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = 'b'",
        "DELETE FROM t WHERE CAST(v AS INT) = n",
    ],
)
def test_statements_are_refused_alike_at_both_places(text: str, warehouse: str, spark: Any) -> None:
    lake, words = filled(warehouse, spark), []
    for limit in ("0", None):
        with limited(spark, limit), pytest.raises(kt.KeytideError) as error:
            lake.sql(text)
        words.append((type(error.value), str(error.value)))
    assert words[0] == words[1]
    assert found(lake) == START


@pytest.mark.takes_turns
def test_later_row_of_a_key_wins_in_a_small_dataframe_of_many_partitions(
    warehouse: str, spark: Any, place: str
) -> None:
    lake = filled(warehouse, spark)
    rows = spark.range(0, 60, 1, 6).selectExpr("cast(id % 7 AS int) id", "'p' AS v", "id AS n")
    result = lake.table("t").write(rows)
    assert result.rows == 60
    assert found(lake) == START | {n % 7: ("p", n) for n in range(60)}
    with pytest.raises(kt.InvalidError, match="non-null column"):
        lake.table("t").write(rows.selectExpr("nullif(id, 3) AS id", "v", "n"))


# -- no work for executors -------------------------------------------------------------------------


@pytest.fixture
def idle(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No task in Python may run on executors."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("executors are asked")

    for kind, method in ((Cluster, "each"), (Executors, "feed"), (Executors, "rows")):
        monkeypatch.setattr(kind, method, refuse)
    with limited(spark, None):
        yield


@pytest.mark.usefixtures("idle")
def test_small_work_runs_few_jobs_and_none_in_python(
    warehouse: str, tmp_path: Path, spark: Any
) -> None:
    lake = filled(warehouse, spark)
    t, rows = lake.table("t"), parquet(spark, tmp_path / "in", {1: ("w", 1), 20: ("w", 2)})
    local = spark.createDataFrame(table_of({1: ("l", 3)}))
    assert jobs_of(spark, lambda: t.write(rows)) == 1
    assert jobs_of(spark, lambda: t.write(local)) == 1
    assert jobs_of(spark, lambda: lake.sql("DELETE FROM t WHERE id < 1")) == 0
    assert jobs_of(spark, lambda: lake.sql("UPDATE t SET n = 0 WHERE n > 8")) == 0
    assert jobs_of(spark, lambda: lake.sql(f"{ON} WHEN MATCHED THEN UPDATE SET v = s.v")) == 0
    assert jobs_of(spark, lambda: lake.sql("UPDATE t SET n = n + 1 WHERE n % 5 = 3")) > 0
    merge = t.merge(rows, "target.id = source.id").when_matched_update({"v": "source.v"})
    assert jobs_of(spark, merge.execute) == 1
    assert jobs_of(spark, lambda: t.compact(full=True)) == 0
    expected = START | {1: ("w", 4), 2: ("x", 2), 5: (None, 5), 9: ("a", 0), 20: ("w", 2)}
    expected |= {3: ("a", 4), 8: ("a", 9)}
    assert found(lake) == {i: x for i, x in expected.items() if i > 0}


@pytest.mark.usefixtures("idle")
def test_micro_batch_of_files_is_written_by_the_driver_once(
    warehouse: str, tmp_path: Path, spark: Any
) -> None:
    lake = filled(warehouse, spark)
    parquet(spark, tmp_path / "in", {1: ("s", 1), 30: ("s", 30)})
    stream = spark.readStream.schema("id int, v string, n long").parquet(str(tmp_path / "in"))
    results = []

    def write(batch: Any, number: int) -> None:
        results.extend(lake.table("t").write(batch) for _ in range(2))

    for checkpoint in ("a", "a"):
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / checkpoint))
        writer.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
    assert [result.rows for result in results] == [2, 2]
    users = [snapshot.commit_user[:6] for snapshot in lake.table("t").snapshots()]
    assert users.count("spark-") == 2
    assert found(lake) == START | {1: ("s", 1), 30: ("s", 30)}


@pytest.mark.takes_turns
@pytest.mark.usefixtures("idle")
def test_small_batch_of_a_change_feed_is_applied_by_the_driver(
    warehouse: str, tmp_path: Path, spark: Any
) -> None:
    (tmp_path / "feed").mkdir()
    change = {"op": "c", "after": {"id": 1, "v": "a"}, "source": {"lsn": 1}}
    (tmp_path / "feed" / "a.json").write_text(f"{json.dumps(change)}\nnothing\n")
    report = kt.connect(warehouse, spark=spark).ingest(
        "f", str(tmp_path / "feed"), format="debezium-json",
        schema="id BIGINT, v STRING", primary_key=["id"],
    )  # fmt: skip
    assert (report.applied, report.rejected) == (1, 1)
    assert kt.connect(warehouse).table("f").scan(["id", "v"]).to_pylist() == [{"id": 1, "v": "a"}]


# -- what is small ---------------------------------------------------------------------------------


def test_size_is_known_of_files_ranges_and_rows_of_the_driver_unless_a_step_makes_rows(
    tmp_path: Path, spark: Any
) -> None:
    files = parquet(spark, tmp_path / "in", START)
    local = spark.createDataFrame(table_of(START))
    size = (tmp_path / "in" / "0.parquet").stat().st_size
    assert bytes_of_rows(files) == 4 * size
    for rows in (local, spark.range(9), files.where("n > 3").select("id"), files.union(local)):
        assert 0 < (bytes_of_rows(rows) or 0) < 1 << 20
    for rows in (
        files.selectExpr("explode(sequence(0, 1000000))"),
        files.mapInArrow(lambda batches: batches, files.schema),
        spark.createDataFrame(spark.sparkContext.parallelize([(1, "a")]), "id int, v string"),
    ):
        assert bytes_of_rows(rows) is None


@pytest.mark.parametrize(
    ("place", "is_driver", "words"),
    [
        (WorkPlace(2000, 2000), True, "in the driver, because 2,000 bytes are at most 2,000"),
        (WorkPlace(2001, 2000), False, "on executors, because 2,001 bytes are more than 2,000"),
        (WorkPlace(None, 2000), False, "on executors, because the size of the input is unknown"),
        (WorkPlace(0, -1), False, "on executors, because driver work is disabled"),
    ],
)
def test_place_is_told_with_its_reason(place: WorkPlace, is_driver: bool, words: str) -> None:
    assert (place.is_driver, str(place)) == (is_driver, words)


def test_explain_says_where_a_statement_runs(warehouse: str, spark: Any) -> None:
    lake = filled(warehouse, spark)
    stored = sum(row["file_size_in_bytes"] for row in lake.sql("SELECT * FROM t$files").to_pylist())
    source = sum(row["file_size_in_bytes"] for row in lake.sql("SELECT * FROM s$files").to_pylist())
    plain = f"{ON} WHEN MATCHED THEN DELETE"
    sizes = {
        "DELETE FROM t WHERE n >= 0": stored,
        "UPDATE t SET n = n + 1 WHERE n >= 0": 4 * stored,
        plain: stored + 4 * source,
        f"{ON} WHEN MATCHED AND s.n + t.n > 3 THEN DELETE": stored + 4 * source,
        f"{ON} WHEN NOT MATCHED BY SOURCE AND n > 0 THEN DELETE": 4 * (stored + source),
    }
    for text, size in sizes.items():
        with limited(spark, str(size)):
            assert (
                where(lake, text)
                == f"runs in the driver, because {size:,} bytes are at most {size:,}"
            )
        with limited(spark, str(size - 1)):
            assert where(lake, text).startswith(
                f"runs on executors, because {size:,} bytes are more"
            )
    assert where(lake, plain) == "runs on executors, because driver work is disabled"
    assert where(kt.connect(warehouse), plain) == ""


def test_setting_that_is_no_size_is_refused_before_anything_is_written(
    warehouse: str, spark: Any
) -> None:
    lake = filled(warehouse, spark)
    with limited(spark, "many"), pytest.raises(kt.InvalidError, match=f"{SETTING} is 'many'"):
        lake.table("t").write(spark.range(1).selectExpr("cast(id AS int) id", "'v' v", "id n"))
    assert found(lake) == START


def test_tasks_of_unknown_size_are_for_executors(spark: Any, monkeypatch: Any) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Cluster, "each", lambda self, tasks, take: asked.append(len(tasks)))
    with limited(spark, None):
        SizedRunner(spark).each([lambda: 1, lambda: 2], asked.append)
    assert asked == [2]


# -- small parts -----------------------------------------------------------------------------------


class limited:  # noqa: N801  # reads as a block
    """A block in which the session has another limit, None: that of each table."""

    def __init__(self, spark: Any, limit: str | None) -> None:
        self._spark, self._limit, self._before = spark, limit, spark.conf.get(SETTING, None)

    def __enter__(self) -> None:
        self._set(self._limit)

    def __exit__(self, *_: object) -> None:
        self._set(self._before)

    def _set(self, limit: str | None) -> None:
        if limit is None:
            self._spark.conf.unset(SETTING)
        else:
            self._spark.conf.set(SETTING, limit)


def where(lake: kt.Lake, text: str) -> str:
    plan = [row["plan"] for row in lake.sql(f"EXPLAIN {text}").to_pylist()]
    return next((line for line in plan if line.startswith("runs ")), "")


def jobs_of(spark: Any, work: Callable[[], Any]) -> int:
    """How many jobs some work runs."""
    context, group = spark.sparkContext, f"group-{uuid.uuid4()}"
    context.setJobGroup(group, "a test")
    try:
        work()
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    return len(context.statusTracker().getJobIdsForGroup(group))
