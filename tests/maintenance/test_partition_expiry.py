"""Partitions that are dropped for their age: by their values or by the last write to them."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from histories import stray_files, torn_snapshots
from keytide.definition.times import PartitionTimes
from keytide.maintenance.partition_expiry import PartitionAge, expire_partitions
from keytide.options import TableOptions
from keytide.store.faults import Crash, Fault, FaultyStore
from new_tables import empty_lake, empty_store, empty_table, fields_of, table_in
from overtaking import overtaken
from table_rows import snapshot_ids

NOW = datetime(2026, 3, 10, 12)
SCHEMA = pa.schema(
    [("dt", pa.string()), ("hour", pa.int32()), ("k", pa.int64()), ("v", pa.int64())]
)
DAYS = ("2026-03-08", "2026-03-09", "2026-03-10")


def new_table(days: tuple[Any, ...] = DAYS, store: Any = None, **options: str) -> kt.Table:
    """A table of one row a day."""
    given = {f"partition.{name.replace('_', '-')}": text for name, text in options.items()}
    table = empty_table(SCHEMA, ["dt", "k"], ["dt"], options=given, store=store)
    for place, day in enumerate(days):
        table.write([{"dt": day, "hour": 0, "k": place, "v": place}])
    return table


def expired(table: kt.Table, age: str | None = None, **asked: Any) -> list[str]:
    found = expire_partitions(table.stored, PartitionAge(age, **asked), now=lambda: NOW)
    return [path.removeprefix("dt=") for path in found.partitions]


def days_of(table: kt.Table) -> list[str]:
    return sorted(row["dt"] for row in table.scan().to_pylist())


# -- what values tell ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "formatter", "values", "time"),
    [
        (None, None, ("2026-03-08", 7), "2026-03-08"),
        (None, None, ("2026-3-8", 7), "2026-03-08"),
        (None, None, ("2026-03-08 01:02:03", 7), "2026-03-08T01:02:03"),
        (None, None, ("2026-03-08 01:02:03.5", 7), "2026-03-08T01:02:03.500000"),
        (None, None, ("20260308", 7), None),
        (None, None, ("2026-02-30", 7), None),
        (None, None, ("", 7), None),
        (None, None, (None, 7), None),
        (None, None, (date(2026, 3, 8), 7), "2026-03-08"),
        (None, None, (datetime(2026, 3, 8, 4), 7), "2026-03-08T04:00:00"),
        (None, "yyyyMMdd", ("20260308", 7), "2026-03-08"),
        (None, "yyyyMMdd", (20260308, 7), "2026-03-08"),
        (None, "yyyyMMdd", ("2026-03-08", 7), None),
        (None, "yyMMdd", ("260308", 7), "2026-03-08"),
        (None, "yyyy/M/d 'at' HH", ("2026/3/8 at 07", 7), "2026-03-08T07:00:00"),
        (None, "dd.MM.yyyy''HH", ("08.03.2026'07", 7), "2026-03-08T07:00:00"),
        ("$dt $hour:00:00", None, ("2026-03-08", 7), "2026-03-08T07:00:00"),
        ("$dt$hour", "yyyyMMddHH", ("20260308", 17), "2026-03-08T17:00:00"),
        ("$hour", "yyyyMMdd", (None, 20260308), "2026-03-08"),
        ("$dt $hour:00:00", None, ("2026-03-08", None), None),
    ],
)
def test_time_of_a_partition(
    pattern: str | None, formatter: str | None, values: tuple[Any, ...], time: str | None
) -> None:
    names = {"dt": "STRING", "hour": "INT"}
    fields = fields_of(names)
    found = PartitionTimes.of(fields, TableOptions(), pattern, formatter).time(values)
    assert found == (None if time is None else datetime.fromisoformat(time))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestamp_formatter": "yyyy"}, "year, month and day are required"),
        ({"timestamp_formatter": "yyyyMMddaa"}, "'aa' is not supported"),
        ({"timestamp_formatter": "yyyyMMdd yyyy"}, "'yyyy' is not supported, or is used twice"),
        ({"timestamp_pattern": "$day"}, r"names \$day; the partition columns are dt"),
        ({"expiration_strategy": "soon"}, "one of values-time, update-time"),
        ({"expiration_max_num": "0"}, "integer from 1"),
    ],
)
def test_options_that_are_not_to_be_understood_are_refused(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        new_table((), expiration_time="1 d", **options)


def test_table_without_partitions_has_none_that_expire() -> None:
    lake = empty_lake()
    options = {"partition.expiration-time": "1 d"}
    with pytest.raises(
        kt.InvalidError, match=r"'partition\.expiration-time' requires partition columns"
    ):
        lake.create_table("t", SCHEMA, ["k"], options=options)
    table = lake.create_table("t", SCHEMA, ["k"])
    with pytest.raises(kt.InvalidError, match="t has no partitions, so none can expire"):
        table.expire_partitions("1 d")


# -- which go --------------------------------------------------------------------------------------


def test_partitions_go_by_their_values_the_oldest_first() -> None:
    table = new_table()
    assert expired(table, "36 h") == ["2026-03-08"]
    assert days_of(table) == ["2026-03-09", "2026-03-10"]
    assert expired(table, "36 h") == []
    assert expired(table, "1 h", partitions_max=1) == ["2026-03-09"]
    assert expired(table, "1 h") == ["2026-03-10"]
    assert (table.scan().to_pylist(), len(snapshot_ids(table))) == ([], 6)
    assert table.scan(snapshot_id=3).count() == 3
    table.expire_snapshots(1)
    assert stray_files(table.stored.store) == set()
    assert table.verify().is_healthy


def test_partition_whose_values_tell_no_time_stays() -> None:
    table = empty_table(SCHEMA, [], ["dt"])
    days = ("2026-03-08", "later", None, " ")
    table.write([{"dt": day, "hour": 0, "k": 1, "v": 1} for day in days])
    assert expired(table, "1 h") == ["2026-03-08"]
    assert {row["dt"] for row in table.scan().to_pylist()} == {" ", None, "later"}


def test_age_may_count_from_the_last_write() -> None:
    table = new_table()
    asked = PartitionAge("1 d", strategy="update-time")
    later = datetime.now() + timedelta(hours=23)
    assert expire_partitions(table.stored, asked, now=lambda: later).partitions == ()
    table.write([{"dt": "2026-03-08", "hour": 0, "k": 9, "v": 9}])
    made = max(e.file.creation_time or 0 for e in table.scan().live.entries)
    just = datetime(1970, 1, 1) + timedelta(days=1, milliseconds=made)
    gone = expire_partitions(table.stored, asked, now=lambda: just).partitions
    assert set(gone) <= {"dt=2026-03-09", "dt=2026-03-10"}
    later = datetime.now() + timedelta(hours=25)
    expire_partitions(table.stored, asked, now=lambda: later)
    assert table.scan().count() == 0


def test_write_meanwhile_goes_with_its_partition_by_values_and_keeps_it_by_updates() -> None:
    for strategy, days in (("values-time", ["2026-03-10"]), ("update-time", [*DAYS, DAYS[0]])):
        table = new_table()
        late = [{"dt": "2026-03-08", "hour": 0, "k": 9, "v": 9}]
        slow = overtaken(table, lambda table=table, late=late: table.write(late))
        now = NOW if strategy == "values-time" else datetime.now() + timedelta(days=2)
        age = PartitionAge("1 d", strategy=strategy)
        expire_partitions(slow.stored, age, now=lambda now=now: now)
        assert days_of(table) == sorted(days)


def test_dry_run_drops_nothing() -> None:
    table = new_table()
    asked = PartitionAge("1 h")
    told = expire_partitions(table.stored, asked, dry_run=True, now=lambda: NOW)
    assert (told.snapshot_id, len(told.partitions)) == (None, 3)
    assert len(snapshot_ids(table)) == 3
    assert expire_partitions(table.stored, asked, now=lambda: NOW).partitions == told.partitions


@pytest.mark.takes_turns
@pytest.mark.parametrize("action", ["crash", "fail"])
def test_drop_that_dies_drops_all_of_them_or_none(action: Any) -> None:
    for nth in range(1, 9):
        store = empty_store()
        new_table(store=store)
        faulty = FaultyStore(store, [Fault("write", nth=nth, action=action)])
        with suppress(Crash, kt.DataError):
            expired(table_in(faulty), "36 h")
        table = table_in(store)
        assert days_of(table) in (list(DAYS), list(DAYS[1:]))
        expired(table, "36 h")
        assert days_of(table) == list(DAYS[1:])
        assert torn_snapshots(table.stored.store) == set()


# -- after commits ---------------------------------------------------------------------------------


def days_ago(days: int) -> str:
    return (datetime.now() - timedelta(days=days)).date().isoformat()


def test_writes_drop_old_partitions_once_in_an_interval() -> None:
    table = new_table((days_ago(40), days_ago(1)), expiration_time="30 d")
    assert days_of(table) == [days_ago(1)]
    late = [{"dt": days_ago(50), "hour": 0, "k": 9, "v": 9}]
    table.write(late)
    assert days_of(table) == [days_ago(50), days_ago(1)]  # it was looked at an hour ago or later
    anew = new_table((days_ago(40),), expiration_time="30 d", expiration_check_interval="0 s")
    anew.write(late)
    assert days_of(anew) == []


def test_table_that_is_write_only_leaves_it_to_whoever_compacts() -> None:
    store = empty_store()
    table = new_table((days_ago(40),), store)
    lake = kt.connect("", store=store)
    lake.sql(
        "ALTER TABLE t SET ('write-only' = 'true', 'partition.expiration-time' = '30 d', "
        "'partition.expiration-check-interval' = '0 s')"
    )
    table.write([{"dt": days_ago(1), "hour": 0, "k": 9, "v": 9}])
    table.write([{"dt": days_ago(1), "hour": 0, "k": 9, "v": 10}])
    assert len(days_of(table)) == 2
    table.compact(full=True)
    assert days_of(table) == [days_ago(1)]


def test_partitions_of_dynamic_buckets_and_of_append_tables_go_too() -> None:
    for key, options in ((("dt", "k"), {"bucket": "-1"}), ((), {}), (("k",), {"bucket": "-1"})):
        table = empty_table(SCHEMA, key, ["dt"], options=options)
        for place, day in enumerate(DAYS):
            table.write([{"dt": day, "hour": 0, "k": place, "v": place}])
        assert expired(table, "36 h") == ["2026-03-08"]
        assert days_of(table) == ["2026-03-09", "2026-03-10"]
        table.write([{"dt": "2026-03-08", "hour": 0, "k": 0, "v": 7}])
        assert days_of(table) == list(DAYS)
        assert table.verify().is_healthy


# -- faces -----------------------------------------------------------------------------------------


def test_python_and_the_procedure_take_what_the_format_takes() -> None:
    store = empty_store()
    table = new_table(("20200101", "20200202", days_ago(0).replace("-", "")), store)
    told = table.expire_partitions("30 d", timestamp_formatter="yyyyMMdd", dry_run=True)
    assert told.partitions == ("dt=20200101", "dt=20200202")
    assert "dt=20200202" in told._repr_html_()
    lake = kt.connect("", store=store)
    call = (
        "CALL sys.expire_partitions(table => 't', expiration_time => '30 d', "
        "timestamp_formatter => 'yyyyMMdd', timestamp_pattern => '$dt', "
        "expire_strategy => 'values-time', max_expires => 1)"
    )
    assert lake.sql(call).to_pylist() == [{"expired_partitions": "dt=20200101"}]
    done = table.expire_partitions(timedelta(days=30), timestamp_formatter="yyyyMMdd")
    assert done.partitions == ("dt=20200202",)
    assert done.snapshot_id == max(snapshot_ids(table))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "the age at which partitions expire is not set: give expiration_time, or set"),
        ({"expiration_time": "long"}, "expiration_time is 'long'; expected a duration"),
        ({"expiration_time": "1 d", "strategy": "soon"}, "strategy is 'soon'; expected"),
        ({"expiration_time": "1 d", "max_expires": 0}, "max_expires is 0; expected 1 or more"),
    ],
)
def test_call_that_is_not_to_be_understood_is_refused(asked: Any, message: str) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        new_table().expire_partitions(**asked)


def test_longest_time_expires_nothing() -> None:
    assert new_table().expire_partitions(timedelta(days=106_751)).partitions == ()
    assert expired(new_table(), f"{2**62} ns") == []
