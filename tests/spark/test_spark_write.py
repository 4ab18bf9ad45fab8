"""DataFrames into tables: one commit, checked first, in the DataFrame's order."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.commit.change import Author
from keytide.commit.transaction import Transaction
from keytide.errors import DataError, InvalidError
from keytide.spark.capacity import TASKS_PER_SLOT
from keytide.spark.columns import tasks_for_rows
from keytide.spark.error_translation import keytide_error
from keytide.spark.runner import BufferedTask
from keytide.tasks import Outcome, collect_results, run_feed_task
from keytide.write.refusals import writable_view
from keytide.write.task import RUNS_PER_PART, TaskResult
from table_rows import dicts

AUTHOR = Author("user", 1)
SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.float64())])


def new_table(warehouse: str, **options: str) -> kt.Table:
    return kt.connect(warehouse).create_table(
        "t", SCHEMA, ["id", "p"], partition_by=["p"], options={"bucket": "3", **options}
    )


def make_rows(spark: Any, count: int, partitions: int = 4) -> Any:
    numbers = spark.range(0, count, 1, partitions)
    return numbers.selectExpr("id", "concat('p', id % 2) as p", "id * 1.5D as v")


def data_files(table: kt.Table) -> list[Path]:
    return sorted(Path(table.uri).rglob("*.parquet"))


def runs(table: kt.Table) -> list[str]:
    return [
        f"{e.bucket}:{e.file.row_count}@{e.file.min_sequence_number}"
        for e in sorted(table.stored.newest_files().entries, key=lambda e: (e.partition, e.bucket))
    ]


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.one_in(14)
@pytest.mark.spark
@pytest.mark.parametrize("partitions", [1, 4])
def test_written_rows_are_there_in_one_snapshot(
    partitions: int, warehouse: str, spark: Any
) -> None:
    table = new_table(warehouse)
    result = table.write(make_rows(spark, 100, partitions))
    assert (result.snapshot_id, result.rows, result.rows_stored, result.files) == (1, 100, 100, 6)
    assert len(table.snapshots()) == 1
    expected = [{"id": i, "p": f"p{i % 2}", "v": i * 1.5} for i in range(100)]
    assert dicts(table, by="id") == expected


@pytest.mark.one_in(14)
@pytest.mark.spark
@pytest.mark.parametrize("buckets", ["1", "3"])
@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_each_bucket_gets_one_run(
    partitions: int, buckets: str, warehouse: str, spark: Any
) -> None:
    table = new_table(warehouse, bucket=buckets)
    table.write(make_rows(spark, 300, partitions))
    assert table.scan().explain().runs_max == 0
    assert len(table.stored.newest_files().entries) == 2 * int(buckets)


@pytest.mark.one_in(14)
@pytest.mark.spark
@pytest.mark.parametrize("buckets", ["1", "2"])
@pytest.mark.parametrize("buffer", ["256 mb", "1 kb"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_later_row_of_a_key_wins_through_the_shuffle(
    partitions: int, buffer: str, buckets: str, warehouse: str, spark: Any
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    options = {"bucket": buckets, "write-buffer-size": buffer}
    table = kt.connect(warehouse).create_table("t", schema, ["id"], options=options)
    table.write(spark.range(0, 3000, 1, partitions).selectExpr("id % 10 as id", "id as v"))
    found = {row["id"]: row["v"] for row in table.scan().to_pylist()}
    assert found == {key: 2990 + key for key in range(10)}
    assert {row.id: row.v for row in table.scan().to_spark(spark).collect()} == found


@pytest.mark.spark
def test_kinds_travel_and_deletions_need_only_the_key(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse)
    table.write(make_rows(spark, 10))
    dead = make_rows(spark, 4).selectExpr("id", "p", "'-D' as _row_kind")
    assert table.write(dead).rows == 4
    assert sorted(row["id"] for row in table.scan().to_pylist()) == [4, 5, 6, 7, 8, 9]


@pytest.mark.takes_turns
@pytest.mark.spark
def test_rows_that_could_not_be_merged_are_refused_on_executors(
    warehouse: str, spark: Any, tmp_path: Path
) -> None:
    options = {"merge-engine": "aggregation", "fields.v.aggregate-function": "rbm32"}
    schema = pa.schema([("k", pa.int64()), ("v", pa.binary())])
    table = kt.connect(warehouse).create_table("t", schema, ["k"], options=options)
    rows = spark.range(4).selectExpr("id AS k", "CAST('garbage' AS BINARY) AS v")

    with pytest.raises(InvalidError, match=r"default\.t: .* no serialized roaring bitmap"):
        table.write(rows)
    rows.write.mode("append").parquet(str(tmp_path / "source"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "source"))
    query = (
        stream.writeStream.format("keytide")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(table.uri)
    )
    with pytest.raises(Exception, match="no serialized roaring bitmap"):
        query.awaitTermination()
    assert table.snapshots() == []


@pytest.mark.spark
def test_sequence_field_orders_rows_of_several_writes(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse, **{"sequence.field": "v"})
    table.write(make_rows(spark, 20))
    table.write(make_rows(spark, 20).selectExpr("id", "p", "if(id < 5, -1D, 1000D) as v"))
    values = {row["id"]: row["v"] for row in table.scan().to_pylist()}
    assert [values[i] for i in (0, 4, 5, 19)] == [0.0, 6.0, 1000.0, 1000.0]


@pytest.mark.takes_turns
@pytest.mark.spark
@pytest.mark.parametrize("rows_per_run", ["10000", "1"])
def test_rows_out_of_order_are_counted_across_the_runs_of_a_write(
    warehouse: str, spark: Any, rows_per_run: str
) -> None:
    options = {"sequence.field": "v", "write.count-out-of-order": "true"}
    table = new_table(warehouse, **options, **{"write-buffer-size": "1 b"})
    first = make_rows(spark, 20)
    # Ids 0 and 1 are older than the stored value, 15 to 19 than the rows before them.
    second = first.selectExpr("id", "p", "if(id < 2, -1D, 1000D) as v").coalesce(1)
    third = first.where("id >= 15").selectExpr("id", "p", "999D as v").coalesce(1)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", rows_per_run)
    try:
        written = [table.write(rows) for rows in (first, second.unionAll(third))]
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert [result.out_of_order for result in written] == [0, 2 + 5]
    assert (written[1].files == 25) == (rows_per_run == "1")


@pytest.mark.spark
def test_no_rows_make_no_snapshot(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse)
    assert table.write(make_rows(spark, 0)) == kt.WriteResult(None, 0, 0, 0)
    assert table.snapshots() == []


# -- who commits -----------------------------------------------------------------------------------


@pytest.mark.spark
def test_repeated_identifier_changes_nothing(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse)
    first = table.write(make_rows(spark, 10), commit_user="job", commit_identifier=7)
    again = table.write(make_rows(spark, 20), commit_user="job", commit_identifier=7)
    assert (first.is_new, again.is_new) == (True, False)
    assert again.snapshot_id == first.snapshot_id
    assert table.scan().count() == 10


@pytest.mark.takes_turns
@pytest.mark.spark
def test_foreach_batch_is_exactly_once_without_an_option(
    tmp_path: Path, warehouse: str, spark: Any
) -> None:
    table = new_table(warehouse, **{"write-only": "true"})
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    for number in range(3):
        make_rows(spark, 10 * (number + 1)).coalesce(1).write.mode("append").parquet(str(source))
    results: list[tuple[int, kt.WriteResult]] = []

    def apply(batch: Any, number: int) -> None:
        results.append((number, table.write(batch)))
        results.append((number, table.write(batch.selectExpr("id + 100 as id", "p", "v"))))

    def run() -> None:
        stream = spark.readStream.schema("id long, p string, v double")
        query = (
            stream.option("maxFilesPerTrigger", 1)
            .parquet(str(source))
            .writeStream.foreachBatch(apply)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert [(number, result.is_new) for number, result in results] == [
        (number, True) for number in (0, 0, 1, 1, 2, 2)
    ]
    users = {snapshot.commit_user for snapshot in table.snapshots()}
    assert sorted(user.count("-") for user in users) == [5, 6]  # spark-<uuid>, spark-<uuid>-2
    assert {user[:6] for user in users} == {"spark-"}

    # The driver died after the last batch was in the table and before Spark noted it.
    for note in (checkpoint / "commits").glob("*2*"):
        note.unlink()
    results.clear()
    run()
    assert [(number, result.is_new) for number, result in results] == [(2, False), (2, False)]
    assert len(table.snapshots()) == 6

    table.write(make_rows(spark, 1))
    assert not table.snapshots()[-1].commit_user.startswith("spark-")


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        (["id", "p", "v", "1 as extra"], kt.NotFoundError, "no column 'extra'"),
        (["id", "p"], kt.InvalidError, "lack the column 'v'"),
        (["p", "v"], kt.InvalidError, "lack the primary key column 'id'"),
        (["id", "p", "'x' as v"], kt.InvalidError, "column 'v' is DOUBLE, found string"),
        (["id", "p", "v", "v"], kt.InvalidError, "two columns named 'v'"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_any_task_runs(
    columns: list[str], kind: type[Exception], message: str, warehouse: str, spark: Any
) -> None:
    table = new_table(warehouse)
    with pytest.raises(kind, match=message):
        table.write(make_rows(spark, 10).selectExpr(*columns))
    assert data_files(table) == []


@pytest.mark.spark
@pytest.mark.parametrize("partitions", [1, 4])
def test_value_that_does_not_fit_is_refused_and_its_files_are_deleted(
    partitions: int, warehouse: str, spark: Any
) -> None:
    table = new_table(warehouse)
    rows = make_rows(spark, 100, partitions).selectExpr("if(id = 99, null, id) as id", "p", "v")
    with pytest.raises(
        kt.InvalidError, match="primary key column 'id' is BIGINT NOT NULL and 1 of"
    ):
        table.write(rows)
    assert (table.snapshots(), data_files(table)) == ([], [])


@pytest.mark.spark
def test_key_too_large_for_its_column_is_refused(warehouse: str, spark: Any) -> None:
    schema = pa.schema([("id", pa.int32()), ("v", pa.int64())])
    table = kt.connect(warehouse).create_table("t", schema, ["id"], options={"bucket": "2"})
    with pytest.raises(kt.InvalidError, match="column 'id' is INT"):
        table.write(spark.range(0, 5, 1, 2).selectExpr("id + 3000000000 as id", "id as v"))
    assert (table.snapshots(), data_files(table)) == ([], [])


@pytest.mark.spark
def test_failing_query_of_the_user_stays_its_own_error(warehouse: str, spark: Any) -> None:
    table = new_table(warehouse)
    rows = make_rows(spark, 10).selectExpr("id", "p", "double(raise_error('mine')) as v")
    with pytest.raises(Exception, match="mine") as error:
        table.write(rows)
    assert not isinstance(error.value, kt.KeytideError)


@pytest.mark.spark
def test_error_of_a_store_on_an_executor_arrives_as_itself(
    tmp_path: Path, warehouse: str, spark: Any
) -> None:
    table = new_table(warehouse)
    table.write(make_rows(spark, 4))
    (Path(table.uri) / "p=p2").write_text("a file where a folder has to be")
    with pytest.raises(kt.DataError, match="p=p2"):
        table.write(make_rows(spark, 4).selectExpr("id", "'p2' as p", "v"))
    assert len(table.snapshots()) == 1


def test_lost_race_deletes_what_the_tasks_wrote(
    warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(warehouse, **{"commit.max-retries": "2"})
    transaction = begun(table)
    result = outcome(transaction, batches(10), 0)
    assert result.result is not None
    assert len(data_files(table)) == len(result.result.entries) > 0
    monkeypatch.setattr(type(table.metadata.store), "create", lambda store, path, data: False)
    with pytest.raises(kt.ConflictError, match="failed after"):
        commit(transaction, [result])
    assert data_files(table) == []


# -- tasks -----------------------------------------------------------------------------------------


def begun(table: kt.Table) -> Transaction:
    return Transaction.begin(table.stored, writable_view(table.stored), AUTHOR)


def outcome(
    transaction: Transaction, rows: list[pa.RecordBatch], number: int
) -> Outcome[TaskResult]:
    pieces = (pa.Table.from_batches([batch]) for batch in rows)
    return run_feed_task(BufferedTask(transaction.task()), pieces, number)


def commit(transaction: Transaction, outcomes: Iterable[Outcome[TaskResult]]) -> kt.WriteResult:
    with transaction:
        collect_results(outcomes, transaction.collect)
        return transaction.commit()


def batches(count: int, batch_rows: int = 10_000) -> list[pa.RecordBatch]:
    rows = pa.table({"id": range(count), "p": ["x"] * count, "v": [float(i) for i in range(count)]})
    return rows.to_batches(max_chunksize=batch_rows)


def test_task_cuts_its_rows_into_runs_of_rising_numbers(warehouse: str) -> None:
    table = new_table(warehouse, bucket="1", **{"write-buffer-size": "2 kb"})
    transaction = begun(table)
    result = outcome(transaction, batches(500, 100), 0)
    commit(transaction, [result])
    assert runs(table) == ["0:100@0", "0:100@1", "0:100@2", "0:100@3", "0:100@4"]


REMOVING = {
    "merge-engine": "aggregation",
    "fields.v.aggregate-function": "sum",
    "aggregation.remove-record-on-delete": "true",
    "bucket": "1",
}


def begun_anew(*values: float) -> list[pa.RecordBatch]:
    """Batches that each delete row 1 and begin it anew with a value."""
    return [
        pa.record_batch(
            {"id": [1, 1], "p": ["x", "x"], "v": [0.0, value], "_row_kind": ["-D", "+I"]}
        )
        for value in values
    ]


def test_runs_and_tasks_come_after_the_layers_of_those_before_them(warehouse: str) -> None:
    table = new_table(warehouse, **REMOVING, **{"write-buffer-size": "1 b"})
    transaction = begun(table)
    results = [outcome(transaction, begun_anew(5, 7), 0), outcome(transaction, begun_anew(9), 1)]
    commit(transaction, results)
    after = RUNS_PER_PART
    numbers = [0, 1, 2, 3, after, after + 1]
    assert runs(table) == [f"0:1@{number}" for number in numbers]
    assert table.get({"id": 1, "p": "x"}) == {"id": 1, "p": "x", "v": 9.0}


@pytest.mark.spark
def test_dataframe_with_a_delete_and_what_follows_it_forgets_neither(
    warehouse: str, spark: Any
) -> None:
    table = new_table(warehouse, **REMOVING)
    table.write(pa.table({"id": [1, 2], "p": ["x", "x"], "v": [5.0, 5.0]}))
    rows = [(1, "x", 5.0, "-D"), (1, "x", 7.0, "+I"), (2, "x", 1.0, "+I")]
    frame = spark.createDataFrame(rows, "id long, p string, v double, _row_kind string")
    assert table.write(frame.coalesce(1)).files == 2
    expected = [{"id": 1, "p": "x", "v": 7.0}, {"id": 2, "p": "x", "v": 6.0}]
    assert dicts(table, by="id") == expected


def test_tasks_of_one_write_have_numbers_in_their_order(warehouse: str) -> None:
    table = new_table(warehouse, bucket="1")
    transaction = begun(table)
    results = [outcome(transaction, batches(10), number) for number in (0, 1, 2)]
    commit(transaction, reversed(results))
    assert runs(table) == [f"0:10@{number * RUNS_PER_PART}" for number in (0, 1, 2)]


def test_error_of_one_task_deletes_the_files_of_all(warehouse: str) -> None:
    table = new_table(warehouse)
    transaction = begun(table)
    good = outcome(transaction, batches(10), 0)
    bad = outcome(transaction, [pa.record_batch({"id": [None], "p": ["x"], "v": [1.0]})], 1)
    assert isinstance(bad.error, kt.InvalidError)
    with pytest.raises(kt.InvalidError, match="Cannot write null"):
        commit(transaction, [good, bad])
    assert (table.snapshots(), data_files(table)) == ([], [])


def test_nothing_written_is_nothing_committed(warehouse: str) -> None:
    table = new_table(warehouse)
    result = commit(begun(table), [Outcome(0)])
    assert result == kt.WriteResult(None, 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            '  File "x.py", line 1, in f\nkeytide.errors.InvalidError: table t: bad\nsecond line\n',
            InvalidError,
            "table t: bad\nsecond line",
        ),
        (
            "keytide.errors.NotFoundError: first\n\nThe above exception was the direct cause of "
            "the following exception:\n\nTraceback\nkeytide.errors.DataError: last\n"
            " SQLSTATE: 38000",
            DataError,
            "last",
        ),
        ("ValueError: keytide.errors.InvalidError: quoted", None, ""),
        ("java.lang.OutOfMemoryError", None, ""),
    ],
)
def test_error_is_found_in_the_text_of_a_worker(
    text: str, kind: type[Exception] | None, message: str
) -> None:
    found = keytide_error(text)
    assert (None if found is None else type(found)) == kind
    assert str(found or "") == message


@pytest.mark.spark
def test_little_is_written_by_one_task_and_much_by_several_for_each_core(spark: Any) -> None:
    cores = int(spark.sparkContext.defaultParallelism)
    little, much = spark.range(1000), spark.range(40_000)
    assert (tasks_for_rows(little), tasks_for_rows(much)) == (1, cores * TASKS_PER_SLOT)
