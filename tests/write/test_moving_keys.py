"""A primary key without the partition columns: a key may come in any partition, and is in one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from new_tables import empty_table
from overtaking import overtaken
from table_rows import lines, parsed, write_lines

SCHEMA = pa.schema([("p", pa.int32()), ("k", pa.int32()), ("v", pa.int64()), ("w", pa.int64())])
PARTIAL = {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}
SUMS = {"merge-engine": "aggregation", "fields.default-aggregate-function": "sum"}
FIRST = {"merge-engine": "first-row", "ignore-delete": "true"}


def new_table(options: dict[str, str] | None = None, **more: str) -> kt.Table:
    given = {"bucket": "-1", "dynamic-bucket.target-row-num": "3", **(options or {}), **more}
    return empty_table(SCHEMA, ["k"], ["p"], options=given)


# -- each engine -----------------------------------------------------------------------------------


def test_key_leaves_the_partition_that_it_was_in() -> None:
    table = new_table()
    write_lines(table, "1 1 10 -", "1 2 20 -")
    write_lines(table, "2 1 11 -", "- 2 21 -")
    assert lines(table) == ["- 2 21 -", "2 1 11 -"]
    write_lines(table, "1 1 12 -")
    assert lines(table) == ["- 2 21 -", "1 1 12 -"]
    assert table.get(2) == {"p": None, "k": 2, "v": 21, "w": None}


def test_delete_finds_its_key_in_whatever_partition() -> None:
    table = new_table()
    write_lines(table, "1 1 10 -", "1 2 20 -")
    write_lines(table, "-D 7 1", "-D 1 9")
    assert lines(table) == ["1 2 20 -"]
    write_lines(table, "3 1 12 -")
    assert lines(table) == ["1 2 20 -", "3 1 12 -"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["2 1 - 5"]),
        (PARTIAL, ["1 1 4 5"]),
        (SUMS, ["1 1 5 5"]),
        (FIRST, ["1 1 1 -"]),
    ],
    ids=["deduplicate", "partial-update", "aggregation", "first-row"],
)
def test_engine_says_what_becomes_of_a_key_that_comes_elsewhere(
    options: dict[str, str], expected: list[str]
) -> None:
    once, apart = new_table(options), new_table(options)
    write_lines(once, "1 1 1 -", "3 1 4 -", "2 1 - 5")
    for line in ("1 1 1 -", "3 1 4 -", "2 1 - 5"):
        write_lines(apart, line)
    assert lines(once) == lines(apart) == expected


@pytest.mark.one_in(14)
@pytest.mark.parametrize("engine", [{}, PARTIAL, SUMS, FIRST], ids=["last", "part", "sum", "first"])
@pytest.mark.parametrize(
    "more",
    [
        {"ignore-delete": "true"},
        {"ignore-update-before": "true"},
        {"deletion-vectors.enabled": "true"},
        {"changelog-producer": "lookup"},
        {"changelog-producer": "full-compaction"},
        {"changelog-producer": "input"},
        {"force-lookup": "true"},
        {"write-only": "true"},
    ],
    ids=str,
)
def test_no_option_shows_a_key_in_two_partitions(
    engine: dict[str, str], more: dict[str, str]
) -> None:
    try:
        table = new_table({**engine, **more})
        for line in ("1 1 10 -", "2 1 11 -", "3 1 12 -", "1 1 13 -"):
            write_lines(table, line)
    except (kt.UnsupportedError, kt.InvalidError):
        return
    assert len(lines(table)) <= 1
    table.compact(full=True)
    assert len(lines(table)) == 1


@pytest.mark.parametrize("options", [PARTIAL, SUMS], ids=["partial-update", "aggregation"])
def test_deleted_key_stays_where_it_was_whatever_is_compacted_in_between(
    options: dict[str, str],
) -> None:
    if options is SUMS:
        options = {**SUMS, "aggregation.remove-record-on-delete": "true"}
    left, compacted = new_table(options), new_table(options)
    for table in (left, compacted):
        write_lines(table, "1 1 10 -")
        write_lines(table, "-D 1 1")
        if table is compacted:
            table.compact(full=True)
        write_lines(table, "2 1 11 -")
    assert lines(left) == lines(compacted) == ["1 1 11 -"]


# -- several writers, overwrites, refusals ---------------------------------------------------------


def test_key_that_two_writers_bring_in_two_partitions_is_in_one() -> None:
    table = new_table()
    write_lines(table, "1 1 10 -")
    write_lines(
        overtaken(table, lambda: write_lines(table, "2 1 11 -", "2 5 50 -")), "3 1 12 -", "3 5 51 -"
    )
    assert lines(table) == ["3 1 12 -", "3 5 51 -"]


def test_whole_table_is_overwritten_and_parts_of_it_are_not() -> None:
    table = new_table(**{"dynamic-partition-overwrite": "false"})
    write_lines(table, "1 1 10 -", "2 2 20 -")
    with pytest.raises(kt.UnsupportedError, match="can exist in other partitions"):
        table.overwrite(parsed(SCHEMA, "1 2 5 -"), partition={"p": 1})
    table.overwrite(parsed(SCHEMA, "3 1 5 -", "1 1 6 -"))
    assert lines(table) == ["1 1 6 -"]
    with pytest.raises(kt.UnsupportedError, match="dynamic-partition-overwrite"):
        new_table().overwrite(parsed(SCHEMA, "1 1 6 -"))


@pytest.mark.parametrize(
    ("key", "partition", "options", "message"),
    [
        (["k"], ["p"], {"bucket": "2"}, "in two partitions.*'bucket' to '-1'"),
        (["k"], ["p"], {"bucket": "-1", "sequence.field": "v"}, "move a key to another partition"),
        (["k", "p"], ["p", "w"], {"bucket": "-1"}, "in two partitions"),
        (["k"], ["p"], {"bucket": "-1", "ignore-delete": "true"}, "would be in both"),
    ],
    ids=["fixed buckets", "sequence field", "part of the partition in the key", "no deletes"],
)
def test_definition_that_cannot_work_is_refused(
    key: list[str], partition: list[str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(kt.KeytideError, match=message):
        empty_table(SCHEMA, key, partition, options=options)


def test_changes_tell_of_a_move() -> None:
    table = new_table()
    write_lines(table, "1 1 10 -", "1 2 20 -")
    write_lines(table, "2 1 11 -")
    found = table.changes(1).to_arrow().to_pylist()
    assert [(row["_row_kind"], row["p"], row["k"], row["v"]) for row in found] == [
        ("-U", 1, 1, 10), ("+U", 2, 1, 11),
    ]  # fmt: skip


# -- the law ---------------------------------------------------------------------------------------

write = st.lists(
    st.tuples(
        st.sampled_from(["+I", "+U", "-D"]), st.sampled_from([1, 2, None]), st.integers(0, 4),
        st.none() | st.integers(0, 9),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


@pytest.mark.takes_turns
@pytest.mark.parametrize("options", [{}, FIRST, PARTIAL], ids=["last", "first", "partial"])
@given(
    history=st.lists(st.tuples(write, write | st.none()), max_size=4),
    most=st.integers(1, 3),
    runs=st.sampled_from(["2", "5"]),
)
def test_any_history_gives_the_rows_of_a_dict(
    options: dict[str, str], history: list[tuple[Any, Any]], most: int, runs: str
) -> None:
    more = {"dynamic-bucket.max-buckets": str(most), "num-sorted-run.compaction-trigger": runs}
    table = new_table(options, **more)
    oracle: dict[int, list[Any]] = {}
    homes: dict[int, Any] = {}
    for slow, fast in history:
        arrived = list(slow)

        def overtake(rows: Any = fast, arrived: list[Any] = arrived) -> None:
            table.write(as_dicts(rows))
            arrived[:0] = rows  # before those of the slow write, if that has anything to commit

        overtaken(table, *([overtake] if fast else [])).write(as_dicts(slow))
        for kind, p, k, v in arrived:
            learn(options, oracle, homes, kind, p, k, v)
    assert lines(table) == sorted(
        f"{'-' if p is None else p} {k} {'-' if v is None else v} -" for k, (p, v) in oracle.items()
    )


def as_dicts(found: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    cells = (["-" if cell is None else str(cell) for cell in each] for each in found)
    return parsed(SCHEMA, *(" ".join(each) for each in cells))


def learn(
    options: dict[str, str], oracle: dict[int, Any], homes: dict[int, Any],
    kind: str, p: Any, k: int, v: Any,
) -> None:  # fmt: skip
    if options is FIRST:
        if kind != "-D":
            oracle.setdefault(k, (p, v))
    elif kind == "-D":
        oracle.pop(k, None)
        homes.setdefault(k, p)
    elif options is PARTIAL:
        home = homes.setdefault(k, p)
        oracle[k] = (home, oracle.get(k, (home, None))[1] if v is None else v)
    else:
        oracle[k] = (p, v)
