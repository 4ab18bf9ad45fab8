"""Scans that show more than the current rows of a table with an index of keys."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_current_rows import another_engine, filled, opened
from tests.write.test_key_index import ROWS, Model, new_table, rows_of, write

import keytide as kt


def pairs(table: kt.Table, **options: Any) -> list[tuple[int, str]]:
    return sorted((row["k"], row["v"]) for row in table.scan(**options).to_pylist())


def test_every_stored_row_is_shown() -> None:
    """Pinot's example: ten rows of three keys, two deletes, and one key that comes back."""
    table = new_table()
    write(table, *[("+I", n % 3, n, "a") for n in range(10)])
    assert (table.scan().count(), table.scan(skip_upsert=True).count()) == (3, 10)
    write(table, *rows_of("-D 0 20 x", "-D 1 20 x"))
    assert (table.scan().count(), table.scan(skip_upsert=True).count()) == (1, 12)
    write(table, *rows_of("+I 0 21 b"))
    assert (table.scan().count(), table.scan(skip_upsert=True).count()) == (2, 13)
    assert table.scan(skip_upsert_delete=True).count() == 3


def test_late_rows_are_stored_and_are_not_the_last_ones() -> None:
    table = new_table()
    write(table, *rows_of("+I 1 5 a", "+I 1 4 late", "+I 2 5 b", "-D 2 6 gone", "+I 3 1 c"))
    assert pairs(table) == [(1, "a"), (3, "c")]
    assert pairs(table, skip_upsert_delete=True) == [(1, "a"), (2, "gone"), (3, "c")]
    assert pairs(table, skip_upsert=True) == [
        (1, "a"), (1, "late"), (2, "b"), (2, "gone"), (3, "c"),
    ]  # fmt: skip
    assert pairs(table, skip_upsert=True, where="k = 1") == [(1, "a"), (1, "late")]
    assert pairs(table, skip_upsert_delete=True, where="k = 2") == [(2, "gone")]
    assert pairs(table, skip_upsert_delete=True, where="ts < 6") == [(1, "a"), (3, "c")]


@pytest.mark.takes_turns
@given(commits=st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=1, max_size=4))
@pytest.mark.parametrize("buckets", ["1", "2"])
def test_last_rows_are_those_of_the_model(buckets: str, commits: list[Any]) -> None:
    table, model, stored = new_table(bucket=buckets), Model(), 0
    for rows in commits:
        write(table, *rows)
        model.take(rows)
        stored += len(rows)
        expected = sorted((k, v) for _, k, _, v in model.newest.values())
        assert pairs(table, skip_upsert_delete=True) == expected
    if len(commits) < 4:  # no compaction has left any out
        assert table.scan(skip_upsert=True).count() == stored


def test_sql_shows_what_hints_ask_for() -> None:
    lake = kt.connect("", store=filled())
    for option, count in (("scan.skip-upsert", 6), ("scan.skip-upsert-delete", 4)):
        hint = f"/*+ OPTIONS('{option}' = 'true') */"
        assert lake.sql(f"SELECT count(*) AS n FROM t {hint}").to_arrow()["n"].to_pylist() == [
            count
        ]
    hint = "/*+ OPTIONS('scan.skip-upsert' = 'true', 'scan.snapshot-id' = '1') */"
    assert lake.sql(f"SELECT count(*) AS n FROM t {hint}").to_arrow()["n"].to_pylist() == [4]
    off = "/*+ OPTIONS('scan.skip-upsert' = 'false') */"
    assert lake.sql(f"SELECT count(*) AS n FROM t {off}").to_arrow()["n"].to_pylist() == [3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t /*+ OPTIONS('scan.skip-upsert' = 'yes') */", "expected true or false"),
        ("`t$files` /*+ OPTIONS('scan.skip-upsert' = 'true') */", "not for system tables"),
        ("t /*+ OPTIONS('scan.skip-upsert' = 'true', 'scan.skip-upsert-delete' = 'true') */",
         "give only one of them"),
    ],
)  # fmt: skip
def test_hint_that_says_nothing_is_refused(text: str, expected: str) -> None:
    with pytest.raises(kt.InvalidError, match=expected):
        kt.connect("", store=filled()).sql(f"SELECT * FROM {text}").to_arrow()


@pytest.mark.parametrize("name", ["skip_upsert", "skip_upsert_delete"])
def test_other_tables_refuse_by_name(name: str) -> None:
    table = kt.connect("", store=filled()).create_table("m", new_table().schema, ["k"])
    with pytest.raises(kt.InvalidError, match=f"scan.{name.replace('_', '-')}.*'upsert.mode'"):
        table.scan(**{name: True})


def test_stale_index_is_no_source_of_last_rows() -> None:
    store = filled()
    with another_engine(store) as table:
        table.write([{"k": 5, "ts": 1, "v": "other"}])
    table = opened(store)
    with pytest.raises(kt.DataError, match="another engine added data files"):
        table.scan(skip_upsert_delete=True).to_arrow()
    assert table.scan(skip_upsert=True).count() == 7
    with pytest.warns(kt.KeytideWarning, match="rebuilt"):
        write(table, *rows_of("+I 6 1 d"))
    assert (5, "other") in pairs(table, skip_upsert_delete=True)
