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

SCHEMA = pa.schema([("p", pa.int32()), ("k", pa.int32()), ("v", pa.int64()), ("w", pa.int64())])
PARTIAL = {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}
SUMS = {"merge-engine": "aggregation", "fields.default-aggregate-function": "sum"}
FIRST = {"merge-engine": "first-row", "ignore-delete": "true"}


def new_table(options: dict[str, str] | None = None, **more: str) -> kt.Table:
    given = {"bucket": "-1", "dynamic-bucket.target-row-num": "3", **(options or {}), **more}
    return empty_table(SCHEMA, ["k"], ["p"], options=given)


def rows(*lines: str) -> pa.Table:
    """Rows of lines such as `1 5 10 20` or `-D 1 5`: partition (`_` is NULL), key, values."""
    found = []
    for line in lines:
        kind, *cells = line.split() if line[0] in "+-" else ["+I", *line.split()]
        p, k, v, w = [None if c == "_" else int(c) for c in [*cells, "_", "_"][:4]]
        found.append({"p": p, "k": k, "v": v, "w": w, "_row_kind": kind})
    return pa.Table.from_pylist(found, SCHEMA.append(pa.field("_row_kind", pa.string())))


def shown(table: kt.Table) -> list[str]:
    values = (row.values() for row in table.scan().to_pylist())
    return sorted(" ".join("_" if v is None else str(v) for v in each) for each in values)


# -- each engine -----------------------------------------------------------------------------------


def test_key_leaves_the_partition_that_it_was_in() -> None:
    table = new_table()
    table.write(rows("1 1 10 _", "1 2 20 _"))
    table.write(rows("2 1 11 _", "_ 2 21 _"))
    assert shown(table) == ["2 1 11 _", "_ 2 21 _"]
    table.write(rows("1 1 12 _"))
    assert shown(table) == ["1 1 12 _", "_ 2 21 _"]
    assert table.get(2) == {"p": None, "k": 2, "v": 21, "w": None}


def test_delete_finds_its_key_in_whatever_partition() -> None:
    table = new_table()
    table.write(rows("1 1 10 _", "1 2 20 _"))
    table.write(rows("-D 7 1", "-D 1 9"))
    assert shown(table) == ["1 2 20 _"]
    table.write(rows("3 1 12 _"))
    assert shown(table) == ["1 2 20 _", "3 1 12 _"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["2 1 _ 5"]),
        (PARTIAL, ["1 1 4 5"]),
        (SUMS, ["1 1 5 5"]),
        (FIRST, ["1 1 1 _"]),
    ],
    ids=["deduplicate", "partial-update", "aggregation", "first-row"],
)
def test_engine_says_what_becomes_of_a_key_that_comes_elsewhere(
    options: dict[str, str], expected: list[str]
) -> None:
    once, apart = new_table(options), new_table(options)
    once.write(rows("1 1 1 _", "3 1 4 _", "2 1 _ 5"))
    for line in ("1 1 1 _", "3 1 4 _", "2 1 _ 5"):
        apart.write(rows(line))
    assert shown(once) == shown(apart) == expected


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
        for line in ("1 1 10 _", "2 1 11 _", "3 1 12 _", "1 1 13 _"):
            table.write(rows(line))
    except (kt.UnsupportedError, kt.InvalidError):
        return
    assert len(shown(table)) <= 1
    table.compact(full=True)
    assert len(shown(table)) == 1


@pytest.mark.parametrize("options", [PARTIAL, SUMS], ids=["partial-update", "aggregation"])
def test_deleted_key_stays_where_it_was_whatever_is_compacted_in_between(
    options: dict[str, str],
) -> None:
    if options is SUMS:
        options = {**SUMS, "aggregation.remove-record-on-delete": "true"}
    left, compacted = new_table(options), new_table(options)
    for table in (left, compacted):
        table.write(rows("1 1 10 _"))
        table.write(rows("-D 1 1"))
        if table is compacted:
            table.compact(full=True)
        table.write(rows("2 1 11 _"))
    assert shown(left) == shown(compacted) == ["1 1 11 _"]


# -- several writers, overwrites, refusals ---------------------------------------------------------


def test_key_that_two_writers_bring_in_two_partitions_is_in_one() -> None:
    table = new_table()
    table.write(rows("1 1 10 _"))
    overtaken(table, lambda: table.write(rows("2 1 11 _", "2 5 50 _"))).write(
        rows("3 1 12 _", "3 5 51 _")
    )
    assert shown(table) == ["3 1 12 _", "3 5 51 _"]


def test_whole_table_is_overwritten_and_parts_of_it_are_not() -> None:
    table = new_table(**{"dynamic-partition-overwrite": "false"})
    table.write(rows("1 1 10 _", "2 2 20 _"))
    with pytest.raises(kt.UnsupportedError, match="can exist in other partitions"):
        table.overwrite(rows("1 2 5 _"), partition={"p": 1})
    table.overwrite(rows("3 1 5 _", "1 1 6 _"))
    assert shown(table) == ["1 1 6 _"]
    with pytest.raises(kt.UnsupportedError, match="dynamic-partition-overwrite"):
        new_table().overwrite(rows("1 1 6 _"))


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
    table.write(rows("1 1 10 _", "1 2 20 _"))
    table.write(rows("2 1 11 _"))
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
            table.write(lines(rows))
            arrived[:0] = rows  # before those of the slow write, if that has anything to commit

        overtaken(table, *([overtake] if fast else [])).write(lines(slow))
        for kind, p, k, v in arrived:
            learn(options, oracle, homes, kind, p, k, v)
    assert shown(table) == sorted(
        f"{'_' if p is None else p} {k} {'_' if v is None else v} _" for k, (p, v) in oracle.items()
    )


def lines(found: list[tuple[Any, ...]]) -> pa.Table:
    cells = (["_" if cell is None else str(cell) for cell in each] for each in found)
    return rows(*(" ".join(each) for each in cells))


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
