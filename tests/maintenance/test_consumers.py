"""Consumers: where named readers go on, and how they are forgotten."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

import keytide as kt
from histories import put_consumer
from keytide.catalogs.system_tables import system_table
from keytide.format import paths
from table_rows import snapshot_ids

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
HOUR = 3600


@pytest.fixture
def table(lake: kt.Lake) -> kt.Table:
    """Five snapshots, and the consumers `nightly` at 2, `test-1` at 3 and `test-2` at 6."""
    made = lake.create_table(
        "t", SCHEMA, ["k"], options={"num-sorted-run.compaction-trigger": "99"}
    )
    for value in range(5):
        made.write([{"k": value, "v": f"{value}"}])
    for name, place in (("nightly", 2), ("test-1", 3), ("test-2", 6)):
        put_consumer(made, name, place)
    return made


def places(table: kt.Table) -> dict[str, int]:
    return {consumer.name: consumer.next_snapshot for consumer in table.consumers()}


def make_older(table: kt.Table, name: str, seconds: int) -> None:
    path = Path(table.uri) / paths.consumer_path(name)
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_consumers_are_listed_with_the_times_of_their_places(table: kt.Table) -> None:
    make_older(table, "test-1", HOUR)
    assert places(table) == {"nightly": 2, "test-1": 3, "test-2": 6}
    times = [consumer.time.timestamp() for consumer in table.consumers()]
    assert times[1] == pytest.approx(time.time() - HOUR, abs=60)
    rows = system_table(table.stored, "consumers").to_pylist()
    assert rows[0] == {"consumer_id": "nightly", "next_snapshot_id": 2}
    assert len(rows) == 3


def test_reader_goes_on_where_its_consumer_was_set(table: kt.Table) -> None:
    reset = table.reset_consumer("test-2", 4)
    assert reset is not None
    assert (reset.name, reset.next_snapshot) == ("test-2", 4)
    stream = table.follow(mode="delta", consumer="test-2", timeout_seconds=0)
    assert [row["k"] for batch in stream for row in batch.to_pylist()] == [3, 4]
    assert places(table)["test-2"] == 6


def test_consumer_that_is_forgotten_holds_nothing(table: kt.Table) -> None:
    assert table.reset_consumer("nightly") is None
    table.expire_snapshots(1)
    assert snapshot_ids(table) == [3, 4, 5]
    with pytest.raises(
        kt.NotFoundError, match=r"no consumer 'nightly'; existing consumers: test-1, test-2"
    ):
        table.reset_consumer("nightly")


def test_consumer_cannot_go_on_where_nothing_is(table: kt.Table) -> None:
    for number in (0, -1, 7):
        with pytest.raises(
            kt.InvalidError, match=f"next_snapshot is {number}, but the latest .* is 5"
        ):
            table.reset_consumer("test-1", number)
    table.reset_consumer("nightly")
    table.expire_snapshots(1)
    with pytest.raises(kt.NotFoundError, match=r"no snapshot 2; .*expired"):
        table.reset_consumer("test-1", 2)


def test_consumers_are_cleared_by_name(table: kt.Table) -> None:
    with pytest.raises(
        kt.InvalidError, match=r"including is '\(', which is not a valid regular expression"
    ):
        table.clear_consumers("(")
    assert table.clear_consumers("test") == []  # names match in whole
    assert table.clear_consumers("test-.*", "test-2") == ["test-1"]
    assert table.clear_consumers() == ["nightly", "test-2"]
    assert table.clear_consumers() == []


def test_consumers_are_forgotten_by_age(table: kt.Table) -> None:
    make_older(table, "test-1", HOUR)
    moment = int((time.time() - HOUR / 2) * 1000)
    assert table.expire_consumers(moment) == ["test-1"]
    assert table.expire_consumers(moment) == []


def test_expiry_of_snapshots_forgets_consumers_that_do_not_come_again(table: kt.Table) -> None:
    make_older(table, "nightly", HOUR)
    table.expire_snapshots(1)
    assert snapshot_ids(table) == [2, 3, 4, 5]
    lake = kt.connect(Path(table.uri).parents[1])
    lake.sql("ALTER TABLE t SET ('consumer.expiration-time' = '30 min')")
    table.expire_snapshots(1, dry_run=True)
    assert "nightly" in places(table)
    table.expire_snapshots(1)
    assert (snapshot_ids(table), places(table)) == ([3, 4, 5], {"test-1": 3, "test-2": 6})


def test_procedures_take_the_names_that_users_of_the_format_know(table: kt.Table) -> None:
    lake = kt.connect(Path(table.uri).parents[1])
    lake.sql(
        "CALL sys.reset_consumer(table => 't', consumer_id => 'nightly', next_snapshot_id => 4)"
    )
    assert places(table)["nightly"] == 4
    lake.sql("CALL sys.reset_consumer('t', 'nightly')")
    cleared = lake.sql("CALL sys.clear_consumers(table => 't', including_consumers => 'test-2')")
    assert cleared.to_pylist() == [{"consumer_id": "test-2"}]
    make_older(table, "test-1", HOUR)
    expired = lake.sql("CALL sys.expire_consumers(table => 't', older_than => '2020-01-01')")
    assert expired.to_pylist() == []
    assert places(table) == {"test-1": 3}
