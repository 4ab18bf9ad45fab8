"""Rows that expire by their own time: they are not shown, whoever compacts and whenever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

import keytide as kt
from histories import stray_files
from keytide.catalogs.system_tables import audit_log
from new_tables import empty_store, empty_table
from table_rows import rows, snapshot_ids

HOUR = 3600
NOW = 1_800_000_000
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])
ENGINES: dict[str, dict[str, str]] = {
    "arrival": {},
    "sequence": {"sequence.field": "v"},
    "vectors": {"deletion-vectors.enabled": "true"},
    "first": {"merge-engine": "first-row"},
    "partial": {"merge-engine": "partial-update"},
    "sum": {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"},
}
Clock = Callable[[int], None]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Sets the time, in epoch seconds."""

    def set_(seconds: int) -> None:
        def clock_ms() -> int:
            return seconds * 1000

        monkeypatch.setattr("keytide.read.merged_versions._clock_ms", clock_ms)
        monkeypatch.setattr("keytide.compaction.compact.wall_clock_ms", clock_ms)

    set_(NOW)
    return set_


def new_table(schema: pa.Schema = SCHEMA, **options: str) -> kt.Table:
    given = {"record-level.expire-time": "1 h", "record-level.time-field": "t", **options}
    return empty_table(schema, ["k"], options=given)


def keys_of(table: kt.Table, **asked: Any) -> list[int]:
    return sorted(row["k"] for row in table.scan(**asked).to_pylist())


# -- what is shown ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "times", "shown"),
    [
        (pa.int32(), [NOW - HOUR - 1, NOW - HOUR, NOW, None, 0, -1], [1, 2, 3]),
        (pa.int64(), [NOW - HOUR - 1, NOW - HOUR, NOW, None, 0, -1], [1, 2, 3]),
        (pa.int64(), [(NOW - HOUR) * 1000 - 1, (NOW - HOUR) * 1000, 10**12, 10**12 - 1, 2**62],
         [1, 3, 4]),
        (pa.timestamp("ms"), [(NOW - HOUR) * 1000 - 1, (NOW - HOUR) * 1000, None, 0], [1, 2]),
        (pa.timestamp("us", "UTC"), [(NOW - HOUR) * 10**6 - 1, (NOW - HOUR) * 10**6], [1]),
        (pa.timestamp("ns"), [(NOW - HOUR) * 10**9 - 1, (NOW - HOUR) * 10**9], [1]),
    ],
)  # fmt: skip
def test_rows_are_shown_until_their_time_is_over(
    at: Clock, type_: pa.DataType, times: list[int | None], shown: list[int]
) -> None:
    table = new_table(pa.schema([("k", pa.int64()), ("t", type_)]))
    rows = pa.table({"k": range(len(times)), "t": pa.array(times, pa.int64()).cast(type_)})
    table.write(rows)
    assert keys_of(table) == shown
    table.compact(full=True)
    assert keys_of(table) == shown


def test_every_reader_shows_the_same(at: Clock) -> None:
    table = new_table()
    table.write([{"k": k, "t": NOW - k * HOUR // 2, "v": k} for k in range(6)])
    lake = kt.connect("", store=table.stored.store)
    scan = table.scan(["v"], where="v < 9")
    assert sorted(row["v"] for row in scan.to_pylist()) == [0, 1, 2]
    assert (scan.count(), scan.to_polars().height) == (3, 3)
    assert (table.get(2), table.get(3)) == ({"k": 2, "t": NOW - HOUR, "v": 2}, None)
    assert table.get_many([1, 2, 3, 4]).num_rows == 2
    assert sum(batch.num_rows for batch in table.scan().to_batches()) == 3
    assert audit_log(table.scan()).num_rows == 3
    assert keys_of(table, snapshot_id=1) == [0, 1, 2]
    assert lake is not None
    at(NOW + HOUR)
    assert keys_of(table) == [0]


def test_why_says_that_a_row_has_expired(at: Clock) -> None:
    table = new_table()
    table.write([{"k": 1, "t": NOW, "v": 7}])
    assert (table.why(1).row, table.why(1).has_expired) == ({"k": 1, "t": NOW, "v": 7}, False)
    at(NOW + HOUR + 1)
    why = table.why(1)
    assert (why.row, why.has_expired, why.versions.num_rows) == (None, True, 1)
    assert "no row: it has expired ('record-level.expire-time')" in str(why)
    assert "no row" in str(table.why(2))
    assert not table.why(2).has_expired


def test_changes_tell_of_rows_that_have_not_expired(at: Clock) -> None:
    table = new_table()
    table.write([{"k": 1, "t": NOW, "v": 1}, {"k": 2, "t": NOW + HOUR, "v": 2}])
    table.write([{"k": 1, "t": NOW + HOUR, "v": 3}, {"k": 2, "t": NOW + HOUR, "v": 4}])
    told = [(row["_row_kind"], row["k"]) for row in table.changes(1).to_pylist()]
    assert sorted(told) == [("+U", 1), ("+U", 2), ("-U", 1), ("-U", 2)]
    at(NOW + HOUR + 1)
    told = [(row["_row_kind"], row["k"]) for row in table.changes(1).to_pylist()]
    assert sorted(told) == [("+I", 1), ("+U", 2), ("-U", 2)]
    table.compact(full=True)
    at(NOW + 2 * HOUR + 1)
    newest = max(snapshot_ids(table))
    table.compact(full=True)
    assert table.changes(newest).to_pylist() == []  # a compaction that drops rows changes nothing


def test_updates_and_deletes_of_sql_see_no_expired_rows(at: Clock, lake: kt.Lake) -> None:
    lake.sql(
        "CREATE TABLE t (k INT, t BIGINT, v INT, PRIMARY KEY (k) NOT ENFORCED) WITH ("
        "'record-level.expire-time' = '1 h', 'record-level.time-field' = 't')"
    )
    lake.sql(f"INSERT INTO t VALUES (1, {NOW - 2 * HOUR}, 1), (2, {NOW}, 2)")
    assert lake.sql("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 1}]
    assert lake.sql("UPDATE t SET v = 9").row_count == 1
    assert lake.sql("DELETE FROM t").row_count == 1


# -- compactions -----------------------------------------------------------------------------------


def test_compaction_drops_expired_rows_where_nothing_later_could_see_them(at: Clock) -> None:
    table = new_table(**{"target-file-size": "1 b"})
    table.write([{"k": k, "t": NOW - k * HOUR, "v": k} for k in range(4)])
    table.compact(full=True)
    stored = sum(entry.file.row_count for entry in table.scan().live.entries)
    assert stored == 2
    at(NOW + 2 * HOUR)
    table.compact(full=True)
    assert table.scan().live.entries == ()
    assert table.compact(full=True).snapshot_id is None
    table.expire_snapshots(1)
    assert stray_files(table.stored.store) == set()
    assert table.verify().is_healthy


def test_expired_row_of_a_sequence_leaves_a_delete_that_late_rows_find(at: Clock) -> None:
    table = new_table(**ENGINES["sequence"])
    table.write([{"k": 1, "t": NOW - 2 * HOUR, "v": 9}])
    table.compact(full=True)
    table.write([{"k": 1, "t": NOW, "v": 5}])
    assert keys_of(table) == []
    table.write([{"k": 1, "t": NOW, "v": 10}])
    assert keys_of(table) == [1]


def test_what_is_put_together_of_many_versions_stays(at: Clock) -> None:
    for compacts in (False, True):
        table = new_table(**ENGINES["sum"])
        table.write([{"k": 1, "t": NOW - 2 * HOUR, "v": 9}])
        if compacts:
            table.compact(full=True)
        assert keys_of(table) == []
        table.write([{"k": 1, "t": NOW, "v": 1}])
        assert table.scan().to_pylist() == [{"k": 1, "t": NOW, "v": 10}]


WRITE = st.tuples(st.integers(0, 3), st.sampled_from([None, -3, -1, 0, 1]), st.integers(0, 9))
STEP = st.one_of(
    st.lists(WRITE, min_size=1, max_size=3), st.sampled_from(["compact", "full", "an hour"])
)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("engine", ENGINES)
@given(steps=st.lists(STEP, min_size=1, max_size=12))
@settings(max_examples=8)
def test_rows_are_the_same_whenever_compactions_ran(engine: str, steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        set_ = at.__wrapped__(patch)  # type: ignore[attr-defined]
        now = NOW
        options = {**ENGINES[engine], "num-sorted-run.compaction-trigger": "99"}
        tables = [new_table(**options), new_table(**options)]
        for step in steps:
            if step == "an hour":
                now += HOUR
                set_(now)
            elif isinstance(step, str):
                tables[0].compact(full=step == "full")
            else:
                step_rows = [{"k": k, "t": None if hours is None else now + hours * HOUR, "v": v}
                        for k, hours, v in step]  # fmt: skip
                for table in tables:
                    table.write(step_rows)
            if engine != "vectors":  # their rows come with compactions
                assert rows(tables[0]) == rows(tables[1])
        for table in tables:
            table.compact(full=True)
        assert rows(tables[0]) == rows(tables[1])


# -- definitions -----------------------------------------------------------------------------------


def test_option_means_nothing_to_a_table_without_a_key() -> None:
    options = {"record-level.expire-time": "1 h", "record-level.time-field": "t"}
    with pytest.warns(
        kt.KeytideWarning, match="has no effect: rows expire only in tables with a prim"
    ):
        table = empty_table(SCHEMA, [], options=options)
    table.write([{"k": 1, "t": 0, "v": 0}])
    assert table.scan().count() == 1


def test_time_column_may_be_renamed(at: Clock) -> None:
    store = empty_store()
    lake = kt.connect("", store=store)
    options = {"record-level.expire-time": "1 h", "record-level.time-field": "t"}
    table = lake.create_table("t", SCHEMA, ["k"], options=options)
    table.write([{"k": 1, "t": NOW - 2 * HOUR, "v": 0}, {"k": 2, "t": NOW, "v": 0}])
    lake.sql("ALTER TABLE t RENAME COLUMN t TO made")
    assert keys_of(lake.table("t")) == [2]
    assert keys_of(lake.table("t"), snapshot_id=1) == [2]
