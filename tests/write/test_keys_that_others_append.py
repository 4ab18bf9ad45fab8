"""Another engine appends keys that a table with an index of keys has: each key keeps one row."""

from __future__ import annotations

import warnings

import pyarrow as pa
import pytest
from hypothesis import given, settings

import keytide as kt
from another_engine import (
    append_as_another_engine,
    compact_as_another_engine,
    overwrite_as_another_engine,
)
from key_indexes import assert_index_is_that_of_the_rows
from key_lives import KEYS, SCHEMA, TABLES, Model, act, steps, table_of
from keytide.read.scan import Scan
from keytide.write.refusals import writable_view
from new_tables import empty_table
from table_rows import rows_by_key


def new_table(options: dict[str, str]) -> kt.Table:
    return empty_table(SCHEMA, ["k"], options={"upsert.mode": "full", "bucket": "1", **options})


def assert_is(table: kt.Table, model: Model) -> None:
    assert rows_by_key(table.scan().to_arrow()) == model.rows
    assert table.scan().count() == len(model.rows)
    assert table.get_many(KEYS).to_pylist() == [row for k, row in model.rows.items() if k in KEYS]
    assert table.get(0) == model.rows.get(0)
    assert rows_by_key(table.scan(where="s >= 1").to_arrow()) == {
        k: row
        for k, row in model.rows.items()
        if row["s"] >= 1  # type: ignore[operator]
    }


def assert_others_see(table: kt.Table, model: Model) -> None:
    """What is stored gives one row per key to readers that know of no index."""
    state = table.stored.state_to_write(writable_view(table.stored))
    assert rows_by_key(Scan(state, tuple(SCHEMA.names)).to_arrow()) == model.rows


@pytest.mark.filterwarnings("ignore:.*is rebuilt from its rows:keytide.KeytideWarning")
@pytest.mark.parametrize("options", TABLES.values(), ids=TABLES.keys())
@settings(max_examples=max(2, settings().max_examples // 3))
@given(life=steps)
def test_one_row_of_a_key_in_any_life_with_another_engine(
    options: dict[str, str], life: list[tuple[str, list[tuple[int, int]]]]
) -> None:
    table, model = new_table(options), Model(options)
    for step, given_rows in life:
        before = model.rows
        snapshot = table.metadata.latest_snapshot_id() or 0
        act(table, model, step, given_rows, append_as_another_engine, compact_as_another_engine)
        assert_is(table, model)
        assert step != "append" or not table.verify().findings
        now = table.metadata.latest_snapshot_id() or 0
        if now > snapshot > 0:
            assert replayed(before, table.changes(snapshot, now).to_arrow()) == model.rows
    every = [model.row(k, s) for k in (*KEYS, 50, 51, 52, 53) for s in (3, 0)]
    table.write(table_of(every))
    for row in every:
        model.arrives(row)
    assert_is(table, model)
    assert_others_see(table, model)
    assert_index_is_that_of_the_rows(table)
    assert not table.verify().findings


def replayed(rows: dict[int, dict[str, object]], changes: pa.Table) -> dict[int, dict[str, object]]:
    now = dict(rows)
    for change in changes.to_pylist():
        kind = change.pop("_row_kind")
        row = {name: change[name] for name in SCHEMA.names}
        if kind in ("-D", "-U"):
            assert now.pop(row["k"]) == row
        else:
            assert row["k"] not in now
            now[row["k"]] = row
    return dict(sorted(now.items()))


@pytest.mark.filterwarnings("ignore:.*is rebuilt from its rows:keytide.KeytideWarning")
@pytest.mark.parametrize("writes", [1, 2])
def test_rows_of_an_overwrite_are_not_compared_with_what_was_there_before(writes: int) -> None:
    table, model = new_table({"sequence.field": "s"}), Model({"sequence.field": "s"})
    for _ in range(writes):
        table.write(table_of([model.row(1, 3), model.row(2, 3)]))
    old = model.row(1, 1)
    overwrite_as_another_engine(table, table_of([old]))
    assert [*table.scan()] == [old]
    table.write(table_of([model.row(1, 0), new := model.row(2, 0)]))
    assert [*table.scan()] == [old, new]


@pytest.mark.filterwarnings("ignore:.*is rebuilt from its rows:keytide.KeytideWarning")
def test_a_key_stays_deleted_after_each_rebuild_when_no_file_says_so() -> None:
    table, model = new_table({"sequence.field": "s"}), Model({"sequence.field": "s"})
    table.write(table_of([model.row(1, 2)]))
    table.write(table_of([model.row(1, 3)], kind="-D"))
    for number in range(3):
        compact_as_another_engine(table)
        append_as_another_engine(table, table_of([model.row(1, 2), kept := model.row(2, number)]))
        assert [*table.scan()] == [kept]
        table.write(table_of([model.row(1, 1)]))
        table.write(table_of([model.row(1, 2)]))
        assert [*table.scan()] == [kept]
        assert table.get(1) is None
        assert [*table.scan(skip_upsert_delete=True)] == [kept]
        assert not table.verify().findings
    table.write(table_of([back := model.row(1, 3)]))
    assert rows_by_key(table.scan().to_arrow()) == {1: back, 2: kept}


def test_nothing_is_published_until_keys_are_settled() -> None:
    table = empty_table(SCHEMA, ["k"], options={"upsert.mode": "full", "publish": "delta"})
    model = Model({})
    table.write(table_of([model.row(1, 1)]))
    append_as_another_engine(table, table_of([model.row(1, 2)]))
    (before,) = table.publish()
    assert before.snapshot_id == 1
    assert "another engine added files to bucket 0" in str(before.reason)
    with warnings.catch_warnings(action="ignore"):
        table.write(table_of([model.row(2, 2)]))
    (after,) = table.publish()
    assert (after.snapshot_id, after.reason) == (3, None)
