"""How late rows may come, and how long deletes are kept, in tables with an index of keys."""

from __future__ import annotations

import warnings
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_key_index import (
    COMMITS,
    INDEXED,
    ROWS,
    STEPS,
    Model,
    Row,
    new_table,
    rows_of,
    take,
    write,
)

import keytide as kt
from key_indexes import assert_index_is_that_of_the_rows
from keytide.definition.schema_evolution import RemoveOption, SetOption
from new_tables import empty_table
from table_rows import by_key

TTLS = {
    "late rows": {"upsert.metadata-ttl": "1"},
    "deletes": {"upsert.deleted-keys-ttl": "1"},
    "both": {"upsert.metadata-ttl": "1", "upsert.deleted-keys-ttl": "3"},
}
IN_ONE_BUCKET = STEPS.filter(lambda step: not (isinstance(step, str) and "bucket" in step))
DELETES_GO = {"upsert.deleted-keys-ttl": "10"}


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", TTLS)
@given(steps=st.lists(IN_ONE_BUCKET, min_size=2, max_size=10))
def test_any_history_gives_the_rows_and_the_index_of_a_model_that_forgets_nothing(
    name: str, steps: list[Any]
) -> None:
    """So rows do not tell when a compaction ran, and what was deleted stays it."""
    table, model = new_table(**TTLS[name]), Model(ttl=1)
    for step in steps:
        with warnings.catch_warnings(action="error"):
            take(table, model, step)
        assert by_key(table, "ts", "v") == model.shown()
        assert_index_is_that_of_the_rows(table)
    assert not table.verify().findings


@given(rows=st.lists(ROWS, min_size=1, max_size=12), size=st.integers(1, 5))
def test_where_writes_end_does_not_matter_for_what_is_too_old(rows: list[Row], size: int) -> None:
    one, other = new_table(**TTLS["deletes"]), new_table(**TTLS["deletes"])
    late = write(one, *rows).out_of_order
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    assert sum(write(other, *part).out_of_order or 0 for part in parts) == late
    assert by_key(one, "ts", "v") == by_key(other, "ts", "v")


@given(commits=COMMITS, order=st.randoms(use_true_random=False))
def test_order_does_not_matter_for_rows_that_are_not_too_old(
    commits: list[list[Row]], order: Any
) -> None:
    every = [row for rows in commits for row in rows if row[2] is not None]
    distinct = [*{(row[1], row[2]): row for row in every}.values()]
    one = new_table()
    other = new_table(**{"upsert.deleted-keys-ttl": "3"})  # as far as any two lie apart
    order.shuffle(distinct)
    for start in range(0, len(distinct), 3):
        write(one, *distinct[start : start + 3])
        write(other, *distinct[start : start + 3])
        other.compact(full=True)
    assert by_key(one, "ts", "v") == by_key(other, "ts", "v")


def stored_rows(table: kt.Table) -> set[tuple[int, int | None]]:
    return {(r["k"], r["ts"]) for r in table.scan(skip_upsert=True).to_pylist()}


def test_compaction_forgets_deletes_that_lie_further_behind() -> None:
    table = new_table(**DELETES_GO)
    write(table, *rows_of("+I 1 5 a", "+I 2 5 a", "-D 1 89 a", "-D 2 90 a", "+I 3 1 old"))
    write(table, *rows_of("+I 4 100 a"))
    assert stored_rows(table) >= {(1, 89), (2, 90)}
    table.compact(full=True)
    assert stored_rows(table) == {(2, 90), (4, 100)}
    assert_index_is_that_of_the_rows(table)
    late = write(table, *rows_of("+I 1 89 late", "+I 2 89 late", "+I 7 89 late"))
    assert (late.out_of_order, by_key(table, "ts", "v")) == (3, {4: (100, "a")})
    write(table, *rows_of("+I 1 90 back", "+I 2 90 back"))
    assert by_key(table, "ts", "v") == {1: (90, "back"), 2: (90, "back"), 4: (100, "a")}
    assert_index_is_that_of_the_rows(table)


def test_delete_is_taken_however_late_it_comes() -> None:
    table = new_table(**DELETES_GO)
    write(table, *rows_of("+I 1 5 a", "+I 2 7 a", "+I 3 100 a", "+I 1 50 late", "-D 1 6 x"))
    write(table, *rows_of("-D 2 6 late", "-D 9 6 unknown"))
    assert by_key(table, "ts", "v") == {2: (7, "a"), 3: (100, "a")}
    assert_index_is_that_of_the_rows(table)
    table.compact(full=True)
    assert stored_rows(table) == {(2, 7), (3, 100)}
    assert_index_is_that_of_the_rows(table)


def test_without_a_ttl_of_deletes_compactions_forget_none() -> None:
    table = new_table(**{"upsert.metadata-ttl": "10"})
    write(table, *rows_of("-D 1 5 a", "+I 2 100 a"))
    table.compact(full=True)
    assert stored_rows(table) == {(1, 5), (2, 100)}


def with_a_large_file(*lines: str) -> kt.Table:
    """Deletes go, and compactions leave a file of many rows with 5 where it is."""
    table = new_table(**DELETES_GO, **{"target-file-size": "16 kb"})
    write(table, *rows_of(*(f"+I {k} 5 {uuid4().hex}" for k in range(100, 600)), *lines))
    (entry,) = table.scan().live.entries
    assert entry.file.file_size > 16 << 10
    return table


def test_delete_stays_while_a_file_may_have_an_older_row_of_its_key() -> None:
    table = with_a_large_file("+I 1 5 a")
    for n in range(6):
        write(table, *rows_of(f"-D 1 {6 + n} a"))
    write(table, *rows_of("+I 2 100 b"))
    table.compact()
    assert len(table.scan(skip_upsert=True).live.entries) == 2
    assert {(1, 5), (1, 11)} <= stored_rows(table)
    assert_index_is_that_of_the_rows(table)
    table.compact(full=True)
    assert 1 not in {key for key, _ in stored_rows(table)}
    assert_index_is_that_of_the_rows(table)


def test_key_that_is_forgotten_is_not_taken_for_a_row_of_a_later_file() -> None:
    table = with_a_large_file("+I 99 100 a")
    write(table, *rows_of("-D 1 6 x", "-D 2 6 x"))
    table.compact(full=True)
    assert not {1, 2} & {key for key, _ in stored_rows(table)}
    write(table, *rows_of("+I 3 100 c"))
    write(table, *rows_of("+I 1 100 a"))
    assert {1: (100, "a"), 3: (100, "c")}.items() <= by_key(table, "ts", "v").items()
    assert table.get(2) is None
    assert_index_is_that_of_the_rows(table)


def test_delete_by_sql_is_forgotten_as_others_are() -> None:
    table = new_table(**DELETES_GO)
    write(table, *rows_of("+I 1 5 a", "+I 2 100 a"))
    table.delete("k = 1")
    assert by_key(table, "ts", "v") == {2: (100, "a")}
    table.compact(full=True)
    assert stored_rows(table) == {(2, 100)}
    assert_index_is_that_of_the_rows(table)


def test_statement_may_change_a_row_that_is_too_old_and_make_none() -> None:
    table = new_table(**DELETES_GO)
    write(table, *rows_of("+I 1 5 a", "+I 2 5 a", "+I 3 100 a"))
    table.update({"v": "'b'"}, "k = 1")
    assert by_key(table, "ts", "v")[1] == (5, "b")
    with pytest.raises(kt.InvalidError, match=r"upsert.deleted-keys-ttl' = '10'.*k = 9.*ts is 5"):
        table.update({"k": "9"}, "k = 2")
    assert by_key(table, "ts", "v")[2] == (5, "a")
    table.update({"k": "9", "ts": "99"}, "k = 2")
    assert by_key(table, "ts", "v") == {1: (5, "b"), 9: (99, "a"), 3: (100, "a")}
    assert_index_is_that_of_the_rows(table)


def test_table_that_forgets_deletes_is_not_rescaled() -> None:
    """A new bucket might not know how fresh the rows were by which they were forgotten."""
    table = new_table(**DELETES_GO)
    write(table, *rows_of("+I 1 5 a"))
    table.alter(SetOption("bucket", "2"))
    with pytest.raises(kt.UnsupportedError, match=r"'upsert.deleted-keys-ttl' = '10'.*new table"):
        table.rescale()


def test_overwrite_takes_rows_in_any_order() -> None:
    table = new_table(**DELETES_GO)
    write(table, *rows_of("+I 1 500 a"))
    table.overwrite([{"k": 1, "ts": 100, "v": "o"}, {"k": 2, "ts": 5, "v": "o"}])
    assert by_key(table, "ts", "v") == {1: (100, "o"), 2: (5, "o")}


@pytest.mark.parametrize(
    ("type_", "ttl", "mark", "edge"),
    [
        (pa.int64(), "10", 2**62, 2**62 - 10),
        (pa.int64(), "10", -(2**63) + 3, -(2**63) + 2),
        (pa.date32(), "36 h", 100, 99),
        (pa.timestamp("ms"), "2 s", 9_000, 7_000),
        (pa.timestamp("us"), "2 s", 9_000_000, 7_000_000),
        (pa.timestamp("us", "UTC"), "2 s", 9_000_000, 7_000_000),
        (pa.time32("ms"), "2 s", 9_000, 7_000),
    ],
    ids=str,
)
def test_row_is_too_old_that_lies_further_behind_than_the_ttl(
    type_: pa.DataType, ttl: str, mark: int, edge: int
) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), False), ("ts", type_)])
    options = {**INDEXED, "upsert.metadata-ttl": ttl}
    table = empty_table(schema, ["k"], options=options)
    numbers = pa.array([mark, edge, edge - 1], pa.int32() if type_.bit_width == 32 else pa.int64())
    table.write(pa.table({"k": [1, 2, 3], "ts": numbers.cast(type_)}, schema))
    is_lowest = edge - 1 <= -(2**63) + 1  # which there is nothing below
    assert {row["k"] for row in table.scan(columns=["k"]).to_pylist()} == {
        1, 2, *([3] if is_lowest else []),
    }  # fmt: skip


def test_where_the_least_is_the_freshest_greater_ones_are_too_old() -> None:
    table = new_table(**DELETES_GO, **{"sequence.field.sort-order": "descending"})
    write(table, *rows_of("+I 1 50 a", "+I 2 60 a", "+I 3 61 a", "+I 4 - a"))
    assert by_key(table, "ts", "v") == {1: (50, "a"), 2: (60, "a")}


@pytest.mark.parametrize("ttl", ["upsert.metadata-ttl", "upsert.deleted-keys-ttl"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sequence.field": "v"}, r"must be a time or an integer.*'v'.*STRING"),
        ({"sequence.field": "ts,v"}, "names ts, v; name one"),
        ({"upsert.mode": "none"}, "requires 'upsert.mode'"),
        ({"ttl": "10 s"}, "'ts', which is INT; expected an integer"),
        ({"ttl": "a while"}, "expected a duration"),
        ({"ttl": "0"}, "expected a duration"),
    ],
)
def test_ttl_that_cannot_count_is_refused(ttl: str, options: dict[str, str], expected: str) -> None:
    given = dict(options)
    with pytest.raises(kt.InvalidError, match=expected):
        new_table(**{ttl: given.pop("ttl", "10"), **given})


def test_deletes_that_may_be_forgotten_are_not_waited_for_longer() -> None:
    """A row that is taken then could bring back what was deleted."""
    table = new_table(**DELETES_GO)
    write(table, *rows_of("+I 1 5 a"))
    for change in (SetOption("upsert.deleted-keys-ttl", "11"),
                   RemoveOption("upsert.deleted-keys-ttl")):  # fmt: skip
        with pytest.raises(kt.InvalidError, match="deleted or older rows could come back"):
            table.alter(change)
    table.alter(SetOption("upsert.deleted-keys-ttl", "9"))
    assert table.options["upsert.deleted-keys-ttl"] == "9"


def test_row_that_is_too_old_is_not_merged() -> None:
    refusing = new_table(**DELETES_GO, **{"upsert.mode": "partial"})
    dropping = new_table(
        **DELETES_GO, **{"upsert.mode": "partial", "upsert.drop-out-of-order-record": "true"}
    )
    rows = rows_of("+I 1 100 a", "+I 2 90 b", "+I 3 89 too-old")
    with pytest.raises(kt.InvalidError, match=r"1 of 3 rows are further behind.*k = 3.*ts is 89"):
        write(refusing, *rows)
    assert write(dropping, *rows).out_of_order == 1
    for table in (refusing, dropping):
        write(table, *rows[:2], *rows_of("-D 2 90 b"))
        assert by_key(table, "ts", "v") == {1: (100, "a")}
    assert_index_is_that_of_the_rows(dropping)


def test_rescaling_keeps_rows_that_would_be_too_old_if_they_came_now() -> None:
    table = new_table(bucket="2", **{"upsert.metadata-ttl": "10"})
    for k in range(12):
        write(table, ("+I", k, 5 * k, "a"))
    table.delete("k = 3")
    before = by_key(table, "ts", "v")
    table.alter(SetOption("bucket", "1"))
    table.rescale()
    assert by_key(table, "ts", "v") == before
    assert len(before) == 11
    assert_index_is_that_of_the_rows(table)
