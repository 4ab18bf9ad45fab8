"""Whatever else tables do, they do with deletion vectors too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.changes.follower import Pace, Start, follow
from keytide.definition.schema_evolution import RemoveOption, SetOption
from keytide.format.data_file import FileReader, parquet
from new_tables import empty_table
from overtaking import overtaken
from table_rows import lines, parsed, write_lines

VECTORS = {"deletion-vectors.enabled": "true"}
SCHEMA = pa.schema([("p", pa.int32()), ("k", pa.int32()), ("s", pa.int32()), ("v", pa.string())])
DYNAMIC = {"bucket": "-1", "dynamic-bucket.target-row-num": "3"}
KINDS = ("+I", "+U", "-U", "-D")
Row = tuple[int, int, int, str]


def new_table(
    key: Sequence[str] = ("k",), partition_by: Sequence[str] = (), **options: str
) -> kt.Table:
    return empty_table(SCHEMA, key, partition_by, options={**VECTORS, **options})


# -- partitions and buckets ------------------------------------------------------------------------

versions = st.tuples(st.integers(0, 1), st.integers(0, 7), st.integers(0, 5), st.sampled_from("ab"))
batches = st.lists(
    st.lists(st.tuples(st.sampled_from(KINDS), versions), min_size=1, max_size=6), max_size=6
)


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("key", "options"),
    [
        (("p", "k"), {"bucket": "3"}),
        (("p", "k"), DYNAMIC),
        (("p", "k"), {"sequence.field": "s"}),
        (("k",), DYNAMIC),
    ],
    ids=["fixed", "dynamic", "sequence", "moving"],
)
@given(history=batches, full=st.integers(0, 5))
def test_any_history_gives_the_rows_of_a_dict(
    key: Sequence[str], options: dict[str, str], history: list[Any], full: int
) -> None:
    table = new_table(key, ("p",), **options)
    model: dict[Any, tuple[str, Row]] = {}
    for number, batch in enumerate(history):
        for kind, row in batch:
            at = row[1] if key == ("k",) else row[:2]
            is_late = "sequence.field" in options and at in model and model[at][1][2] > row[2]
            if not is_late:
                model[at] = (kind, row)
        write_lines(table, *(f"{kind} {p} {k} {s} {v}" for kind, (p, k, s, v) in batch))
        if number == full:
            table.compact(full=True)
        expected = [row for kind, row in model.values() if kind in ("+I", "+U")]
        assert lines(table) == sorted(" ".join(map(str, row)) for row in expected)
    assert not table.verify().findings


def test_overwritten_partition_has_no_marks() -> None:
    table = new_table(("p", "k"), ("p",))
    write_lines(table, "0 1 0 a", "0 2 0 a", "1 1 0 a")
    write_lines(table, "0 1 0 b", "1 1 0 b")
    table.overwrite(parsed(SCHEMA, "0 9 0 c"), {"p": 0})
    assert lines(table) == ["0 9 0 c", "1 1 0 b"]
    assert len(table.scan().state.vector_files) == 1
    table.truncate()
    assert lines(table) == []
    assert not table.verify().findings


def test_rescaled_table_has_its_rows_and_its_deletes() -> None:
    table = new_table(**{"bucket": "1", "sequence.field": "s"})
    write_lines(table, *(f"0 {k} 5 a" for k in range(9)))
    write_lines(table, "-D 0 1 7", "0 2 7 b")
    table.alter(SetOption("bucket", "4"))
    table.rescale()
    expected = ["0 2 7 b", *(f"0 {k} 5 a" for k in (0, *range(3, 9)))]
    assert lines(table) == sorted(expected)
    write_lines(table, "0 1 6 late", "0 2 6 late")
    assert lines(table) == sorted(expected)
    assert not table.verify().findings


# -- rows that are made of rows --------------------------------------------------------------------


def test_update_and_delete_find_what_is_shown(lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE t (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED) "
             "WITH ('deletion-vectors.enabled' = 'true')")  # fmt: skip
    lake.sql("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    assert lake.sql("UPDATE t SET v = v + 10 WHERE k > 1").row_count == 2
    assert lake.sql("DELETE FROM t WHERE k = 3").row_count == 1
    assert lake.sql("SELECT * FROM t ORDER BY k").to_pylist() == [
        {"k": 1, "v": 1}, {"k": 2, "v": 12},
    ]  # fmt: skip


def test_update_undoes_no_row_that_is_not_shown_yet(lake: kt.Lake) -> None:
    table = lake.create_table("t", SCHEMA, ["k"], options={**VECTORS, "write-only": "true"})
    write_lines(table, "0 1 1 a")
    table.compact()
    write_lines(table, "0 1 5 b")
    with pytest.raises(kt.UnsupportedError, match="are not compacted"):
        lake.sql("UPDATE t SET s = s + 1")
    table.alter(RemoveOption("write-only"))
    lake.sql("UPDATE t SET s = s + 1")
    assert lines(table) == ["0 1 6 b"]


def test_rows_made_of_others_are_made_again_beside_a_write() -> None:
    table = new_table()
    write_lines(table, "0 1 1 a", "0 2 1 a")
    late = overtaken(table, lambda: write_lines(table, "0 1 5 b"))

    late.update({"s": "s + 1"})
    assert lines(table) == ["0 1 6 b", "0 2 2 a"]


def test_rows_out_of_order_are_counted_behind_deletes_that_nobody_sees() -> None:
    table = new_table(**{"sequence.field": "s", "write.count-out-of-order": "true"})
    write_lines(table, "0 1 5 a", "0 2 5 a")
    assert write_lines(table, "-D 0 1 9").out_of_order == 0
    assert write_lines(table, "0 1 7 b", "0 2 4 b", "0 3 0 b").out_of_order == 2


# -- look-ups and changes --------------------------------------------------------------------------


def test_keys_are_looked_up_beside_dead_rows() -> None:
    table = new_table(**{"sequence.field": "s"})
    write_lines(table, *(f"0 {k} 5 a" for k in range(9)))
    write_lines(table, "0 3 6 b", "-D 0 4 6")
    assert table.get(3) == {"p": 0, "k": 3, "s": 6, "v": "b"}
    assert table.get(4) is None
    assert table.get_many([4, 3, 5])["v"].to_pylist() == ["b", "a"]
    assert lines(table.scan(where="v = 'a' AND k < 5")) == ["0 0 5 a", "0 1 5 a", "0 2 5 a"]
    assert lines(table.scan(where="v = 'b'")) == ["0 3 6 b"]
    assert table.scan().count() == 8


def test_versions_that_are_dead_are_explained() -> None:
    table = new_table(**{"sequence.field": "s"})
    write_lines(table, "0 1 5 a", "0 2 5 a")
    write_lines(table, "0 1 6 b")
    write_lines(table, "-D 0 1 8")
    write_lines(table, "0 1 7 late")
    why = table.why(1)
    assert why.row is None
    assert why.versions["outcome"].to_pylist() == [
        "marked as deleted by a deletion vector: another version replaced it",
        "marked as deleted by a deletion vector: another version replaced it",
        "marked as deleted by a deletion vector: another version replaced it",
        "marked as deleted: a delete, kept to detect late rows",
    ]


def test_differences_are_told_by_the_snapshot_that_shows_them() -> None:
    table = new_table()
    write_lines(table, "0 1 0 a", "0 2 0 a", "0 3 0 a")
    write_lines(table, "0 1 0 b", "-D 0 2 0", "0 4 0 b")
    assert lines(table.changes(2, 3)) == []
    expected = ["+I 0 4 0 b", "+U 0 1 0 b", "-D 0 2 0 a", "-U 0 1 0 a"]
    assert lines(table.changes(3, 4)) == lines(table.changes(2)) == sorted(expected)
    delta = ["+I 0 1 0 b", "+I 0 4 0 b", "-D 0 2 0 -"]
    assert lines(table.changes(2, 3, mode="delta")) == sorted(delta)
    assert lines(table.changes(3, 4, mode="delta")) == []
    table.compact(full=True)
    assert lines(table.changes(4)) == []


@pytest.mark.takes_turns
@given(history=batches)
def test_changes_lead_from_any_snapshot_to_any_other(history: list[Any]) -> None:
    table = new_table(("p", "k"), ("p",), **{"sequence.field": "s"})
    for batch in history:
        write_lines(table, *(f"{kind} {p} {k} {s} {v}" for kind, (p, k, s, v) in batch))
    ids = [snapshot.id for snapshot in table.snapshots()]
    for start, end in zip([0, *ids[::3]], [*ids[::3], *ids[-1:]], strict=False):
        found = set(lines(table.scan(snapshot_id=start))) if start else set()
        changes = [change.split(" ", 1) for change in lines(table.changes(start, end))]
        found -= {row for kind, row in changes if kind in ("-D", "-U")}
        found |= {row for kind, row in changes if kind in ("+I", "+U")}
        assert sorted(found) == lines(table.scan(snapshot_id=end))


@pytest.mark.parametrize("mode", ["diff", "delta", "changelog"])
def test_nothing_is_missed_by_who_begins_before_a_compaction(mode: str) -> None:
    table = new_table(**{"changelog-producer": "input", "write-only": "true"})
    write_lines(table, "0 1 0 a")
    table.compact()
    write_lines(table, "0 2 0 b")
    write_lines(table, "0 3 0 c")
    start = Start(3, is_full=True)
    seen = [b.to_pylist() for b in follow(table.stored, start, mode, Pace(timeout_seconds=0))]
    rows = sorted(row["k"] for batch in seen for row in batch)
    assert rows == ([1] if mode == "diff" else [1, 2, 3])
    table.compact()
    assert sorted(row["k"] for row in table.changes(4).to_pylist()) == [2, 3]


def test_fully_compacted_rows_are_what_ro_shows(lake: kt.Lake) -> None:
    table = lake.create_table("t", SCHEMA, ["k"], options=VECTORS)
    write_lines(table, "0 1 0 a", "0 2 0 a")
    write_lines(table, "0 1 0 b")
    rows = lake.sql("SELECT k, v FROM t$ro").to_pylist()
    assert rows == [{"k": 2, "v": "a"}]
    table.compact(full=True)
    assert len(lake.sql("SELECT k, v FROM t$ro").to_pylist()) == 2


CONDITIONS = [
    "k = 57", "k IN (3, 58, 400)", "k > 90 AND k < 95", "v = 'v7'", "v LIKE 'v1%'", "s IS NULL",
    "NOT (k < 95)", "k < 3 OR v = 'v42'", "p = 1 AND s >= 3", "v > 'v98' OR k = -1",
]  # fmt: skip


@pytest.mark.one_in(14)
@pytest.mark.parametrize("where", CONDITIONS)
def test_groups_of_rows_without_what_is_asked_for_are_skipped(where: str, tmp_path: Path) -> None:
    lake = kt.connect(tmp_path)
    tables = [
        lake.create_table(name, SCHEMA, ["k"], options=options)
        for name, options in (("marked", VECTORS), ("merged", {"write-only": "true"}))
    ]
    groups = {"_ROW_GROUP_ROWS_MIN": 10, "_ROW_GROUP_ROWS_MAX": 10, "_LAZY_FILE_BYTES_MIN": 0}
    with mock.patch.multiple(parquet, **groups):
        for table in tables:
            rows = [{"p": k % 2, "k": k, "s": k % 5 or None, "v": f"v{k}"} for k in range(100)]
            table.write(rows)
            write_lines(table, *(f"1 {k} 9 v{k + 1}" for k in range(0, 100, 7)), "-D 0 58 0")
        marked, merged = (lines(table.scan(where=where)) for table in tables)
    assert marked == merged


def test_key_is_looked_up_in_one_group_of_rows(tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table("t", SCHEMA, ["k"], options=VECTORS)
    with mock.patch.multiple(parquet, _ROW_GROUP_ROWS_MIN=10, _ROW_GROUP_ROWS_MAX=10):
        write_lines(table, *(f"0 {k} 0 a" for k in range(100)))
    write_lines(table, "0 1 0 b")
    with mock.patch.object(FileReader, "lazy", autospec=True, side_effect=FileReader.lazy) as lazy:
        assert table.get(57) == {"p": 0, "k": 57, "s": 0, "v": "a"}
        assert table.get(53) == {"p": 0, "k": 53, "s": 0, "v": "a"}
    keys_of_group, row, other_row = [call.args[1:3] for call in lazy.call_args_list]
    assert (keys_of_group, row, other_row) == ((50, 10), (57, 1), (53, 1))
