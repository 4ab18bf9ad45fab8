"""Delta tables as sources: the rows that the library reads, in the order in which they came."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delta_tables import (
    actions,
    add,
    commit,
    data_file,
    delete_by_vector,
    field,
    metadata,
    protocol,
)
from keytide.errors import DataError, InvalidError, NotFoundError, SetupError, UnsupportedError
from keytide.predicate.predicate import And, Comparison, In, IsNull, Like, Not
from keytide.sources.delta import PinnedDelta, open_source
from sources import all_rows, check_order, counted, place, rows_of

deltalake = pytest.importorskip("deltalake")


def pinned(table: Path, version: str | int | None = None) -> PinnedDelta:
    return open_source(place(table)).pin(version)


def append(table: Path, **columns: Any) -> None:
    deltalake.write_deltalake(str(table), pa.table(columns), mode="append")


def library_rows(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.table(deltalake.DeltaTable(str(table)).scan()).to_pylist()
    return rows


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 4), min_size=1, max_size=5)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 4), min_size=1, max_size=1)),
        st.tuples(st.just("update"), st.lists(st.integers(0, 4), min_size=1, max_size=1)),
        st.tuples(st.just("vector"), st.lists(st.integers(0, 9), min_size=2, max_size=2)),
        st.tuples(st.just("optimize"), st.just([])),
        st.tuples(st.just("checkpoint"), st.just([])),
    ),
    min_size=2,
    max_size=9,
)


@pytest.mark.takes_turns
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_rows_are_those_of_the_library_in_the_order_in_which_they_came(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, list[int]]]
) -> None:
    table = tmp_path_factory.mktemp("delta") / "t"
    append(table, k=[0, 1], w=[0, 0], n=[0, 1])
    written = 2
    for step, keys in steps:
        delta = deltalake.DeltaTable(str(table))
        if step == "append":
            numbers = range(written, written + len(keys))
            append(table, k=keys, w=[n % 2 for n in numbers], n=numbers)
            written += len(keys)
        elif step == "delete":
            delta.delete(f"k = {keys[0]}")
        elif step == "update":
            delta.update({"w": "w + 10"}, predicate=f"k = {keys[0]}")
        elif step == "vector":
            _kill_a_row(table, delta, *keys)
        elif step == "optimize":
            delta.optimize.compact()
        else:
            delta.create_checkpoint()
    source = pinned(table)
    assert counted(all_rows(source)) == counted(library_rows(table))
    check_order(source, "n")
    about_key = Comparison("k", "<=", 1)
    expected = [row for row in library_rows(table) if row["k"] <= 1]
    assert counted(all_rows(source, about_key)) == counted(expected)


def _kill_a_row(table: Path, delta: Any, file: int, row: int) -> None:
    paths = sorted(pa.table(delta.get_add_actions()).column("path").to_pylist())
    if not paths:
        return
    path = paths[file % len(paths)]
    rows = pq.read_metadata(data_file(table, path)).num_rows
    last = [a["add"] for v in range(delta.version() + 1) for a in actions(table, v)
            if a.get("add", {}).get("path") == path][-1]  # fmt: skip
    if last.get("deletionVector") is None:
        delete_by_vector(table, path, [row % rows], inline=row % 2 == 0)


@pytest.mark.parametrize("inline", [True, False])
def test_rows_of_a_deletion_vector_are_left_out(tmp_path: Path, *, inline: bool) -> None:
    append(tmp_path / "t", k=range(10), p=["a%b c"] * 10)
    (path,) = [a["add"]["path"] for a in actions(tmp_path / "t", 0) if "add" in a]
    delete_by_vector(tmp_path / "t", path, [0, 3, 9], inline=inline)
    (part,) = pinned(tmp_path / "t").parts()
    assert [row["k"] for row in rows_of(part, pinned(tmp_path / "t").schema)] == [
        1,
        2,
        4,
        5,
        6,
        7,
        8,
    ]
    assert (part.rows, part.commit, part.is_in_order) == (10, 0, True)


def test_deletion_vector_finds_its_file_in_a_partition_whose_name_is_encoded(
    tmp_path: Path,
) -> None:
    rows = pa.table({"k": [1, 2], "p": ["a%b ü", "a%b ü"]})
    deltalake.write_deltalake(str(tmp_path / "t"), rows, partition_by=["p"])
    (path,) = [a["add"]["path"] for a in actions(tmp_path / "t", 0) if "add" in a]
    delete_by_vector(tmp_path / "t", path, [0], inline=True)
    assert all_rows(pinned(tmp_path / "t")) == [{"k": 2, "p": "a%b ü"}]


def test_deletion_vector_finds_its_file_in_the_folder_that_a_clone_is_of(tmp_path: Path) -> None:
    append(tmp_path / "origin", n=[0, 1, 2])
    (file,) = (tmp_path / "origin").glob("*.parquet")
    added = add(file, 3)
    added["add"]["path"] = f"file:{file}"  # as Spark spells it
    commit(
        tmp_path / "t", 0, protocol(3, 7, "deletionVectors"), metadata(field("n", "long")), added
    )
    delete_by_vector(tmp_path / "t", f"file:{file}", [1], inline=True)
    assert [row["n"] for row in all_rows(pinned(tmp_path / "t"))] == [0, 2]


def test_file_that_a_deletion_vector_touched_keeps_the_commit_that_brought_it(
    tmp_path: Path,
) -> None:
    table = tmp_path / "t"
    append(table, n=[0, 1])
    append(table, n=[2])
    (path,) = [a["add"]["path"] for a in actions(table, 0) if "add" in a]
    delete_by_vector(table, path, [0], inline=True)
    parts = pinned(table).parts()
    assert [(part.commit, part.is_in_order) for part in parts] == [(0, True), (1, True)]


def test_files_put_together_are_of_one_commit_without_order_and_later_ones_stay_later(
    tmp_path: Path,
) -> None:
    table = tmp_path / "t"
    for n in range(3):
        append(table, n=[n])
    deltalake.DeltaTable(str(table)).optimize.compact()
    append(table, n=[3])
    source = pinned(table)
    assert [(part.commit, part.is_in_order) for part in source.parts()] == [(2, False), (4, True)]


def test_file_between_those_that_were_put_together_loses_its_place_with_them(
    tmp_path: Path,
) -> None:
    table = tmp_path / "t"
    for n in range(3):
        deltalake.write_deltalake(
            str(table), pa.table({"n": [n], "p": [n % 2]}), mode="append", partition_by=["p"]
        )
    deltalake.DeltaTable(str(table)).optimize.compact([("p", "=", "0")])
    assert {(part.commit, part.is_in_order) for part in pinned(table).parts()} == {(2, False)}


def test_rows_that_an_update_copied_are_not_taken_for_later_ones(tmp_path: Path) -> None:
    """0 and 1 come first, then 2; an UPDATE of 1 copies 0, which stays older than 2."""
    table = tmp_path / "t"
    append(table, n=[0, 1])
    append(table, n=[2])
    deltalake.DeltaTable(str(table)).update({"n": "n + 10"}, predicate="n = 1")
    assert {(part.commit, part.is_in_order) for part in pinned(table).parts()} == {(2, False)}


def test_files_older_than_the_log_are_in_no_order_and_before_all_others(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for n in range(3):
        append(table, n=[n])
    deltalake.DeltaTable(str(table)).create_checkpoint()
    append(table, n=[3])
    append(table, n=[4])
    for version in range(3):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    source = pinned(table)
    places = [(part.commit, part.is_in_order) for part in source.parts()]
    assert places == [(2, False)] * 3 + [(3, True), (4, True)]
    check_order(source, "n")


def test_old_file_of_which_rows_died_later_is_no_later_for_that(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, n=[0, 1])
    (path,) = [a["add"]["path"] for a in actions(table, 0) if "add" in a]
    deltalake.DeltaTable(str(table)).create_checkpoint()
    append(table, n=[2])
    delete_by_vector(table, path, [0], inline=True)
    (table / "_delta_log" / f"{0:020d}.json").unlink()
    places = [(part.commit, part.is_in_order) for part in pinned(table).parts()]
    assert places == [(0, False), (1, True)]


def test_commit_that_was_read_is_not_read_again(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, n=[0])
    append(table, n=[1])
    deltalake.DeltaTable(str(table)).create_checkpoint()
    before = [(part.commit, part.is_in_order) for part in pinned(table).parts()]
    (table / "_delta_log" / f"{0:020d}.json").write_text("no action")
    append(table, n=[2])
    after = [(part.commit, part.is_in_order) for part in pinned(table).parts()]
    assert (before, after) == ([(0, True), (1, True)], [(0, True), (1, True), (2, True)])


def test_gap_in_the_log_is_as_the_end_of_what_it_tells(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, n=[0])
    append(table, n=[1])
    deltalake.DeltaTable(str(table)).create_checkpoint()
    append(table, n=[2])
    (table / "_delta_log" / f"{1:020d}.json").unlink()
    places = [(part.commit, part.is_in_order) for part in pinned(table).parts()]
    assert places == [(1, False), (1, False), (2, True)]


def test_overwritten_rows_are_gone_and_the_new_ones_are_in_order(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, n=[0])
    deltalake.write_deltalake(str(table), pa.table({"n": [1, 2]}), mode="overwrite")
    source = pinned(table)
    assert [(part.commit, part.is_in_order) for part in source.parts()] == [(1, True)]
    check_order(source, "n")


def test_rows_that_were_restored_are_as_old_as_they_were(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, n=[0])
    append(table, n=[1])
    deltalake.DeltaTable(str(table)).delete("n = 0")
    deltalake.DeltaTable(str(table)).restore(1)
    append(table, n=[2])
    source = pinned(table)
    assert [(part.commit, part.is_in_order) for part in source.parts()] == [
        (0, True), (1, True), (4, True),
    ]  # fmt: skip
    check_order(source, "n")


def test_files_that_a_table_was_made_of_are_in_no_order(tmp_path: Path) -> None:
    for n in range(2):
        pq.write_table(pa.table({"n": [n]}), tmp_path / f"{n}.parquet")
    deltalake.convert_to_deltalake(str(tmp_path))
    append(tmp_path, n=[2])
    assert [(part.commit, part.is_in_order) for part in pinned(tmp_path).parts()] == [
        (0, False), (0, False), (1, True),
    ]  # fmt: skip


def test_version_is_the_rows_that_were_there_then(tmp_path: Path) -> None:
    append(tmp_path / "t", n=[0])
    append(tmp_path / "t", n=[1])
    source = pinned(tmp_path / "t")
    assert source.version == "1"
    append(tmp_path / "t", n=[2])
    assert [row["n"] for row in all_rows(source)] == [0, 1]
    assert [row["n"] for row in all_rows(pinned(tmp_path / "t", "0"))] == [0]
    assert [row["n"] for row in all_rows(pinned(tmp_path / "t", 1))] == [0, 1]


def test_columns_that_were_renamed_or_added_are_read_from_old_files(tmp_path: Path) -> None:
    """With columns mapped by name, `c1` is what files call `now`; `more` came after the file."""
    mapped = {
        n: {"delta.columnMapping.id": i, "delta.columnMapping.physicalName": f"c{i}"}
        for i, n in enumerate(["now", "more", "s", "a"], 1)
    }
    inner = {"type": "struct", "fields": [field("a", "long", **mapped["a"])]}
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"c1": [1, None], "c3": [{"c4": 5, "gone": 1}, None]}), path)
    fields = [
        field("now", "long", **mapped["now"]),
        field("more", "string", **mapped["more"]),
        field("s", inner, **mapped["s"]),
    ]
    configuration = {"delta.columnMapping.mode": "name"}
    commit(tmp_path, 0, protocol(2, 5), metadata(*fields, **configuration), add(path, 2))
    assert all_rows(pinned(tmp_path)) == [
        {"now": 1, "more": None, "s": {"a": 5}},
        {"now": None, "more": None, "s": None},
    ]


def by_ids(folder: Path, *ids: int | None) -> None:
    fields = [
        field(name, "long", **{"delta.columnMapping.id": i, "delta.columnMapping.physicalName": p})
        for name, i, p in [("a", 1, "x"), ("b", 2, "y")]
    ]
    columns = [
        pa.field(name, pa.int64(), metadata=None if id_ is None else {"PARQUET:field_id": str(id_)})
        for name, id_ in zip("ab", ids, strict=True)
    ]
    pq.write_table(pa.table([[1], [2]], schema=pa.schema(columns)), folder / "f.parquet")
    configuration = {"delta.columnMapping.mode": "id"}
    told = metadata(*fields, **configuration)
    commit(folder, 0, protocol(2, 5), told, add(folder / "f.parquet", 1))


def test_columns_mapped_by_id_are_found_by_it_whatever_files_call_them(tmp_path: Path) -> None:
    by_ids(tmp_path, 2, 1)
    assert all_rows(pinned(tmp_path)) == [{"a": 2, "b": 1}]


def test_file_without_ids_is_refused_where_columns_are_found_by_them(tmp_path: Path) -> None:
    by_ids(tmp_path, 1, None)
    with pytest.raises(DataError, match=r"f\.parquet.*no id"):
        all_rows(pinned(tmp_path))


def test_old_files_are_read_in_the_wider_type(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"n": pa.array([7], pa.int32())}), path)
    commit(tmp_path, 0, protocol(3, 7, "typeWidening"), metadata(field("n", "long")), add(path, 1))
    assert all_rows(pinned(tmp_path)) == [{"n": 7}]


def test_all_row_groups_of_a_file_are_read_and_dead_rows_counted_through_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"n": range(7)}), path, row_group_size=2)
    commit(tmp_path, 0, protocol(1, 2), metadata(field("n", "long")), add(path, 7))
    delete_by_vector(tmp_path, path.name, [1, 4], inline=True)
    source = pinned(tmp_path)
    assert [row["n"] for row in all_rows(source)] == [0, 2, 3, 5, 6]
    assert [row["n"] for row in all_rows(source, Comparison("n", ">", 2))] == [3, 5, 6]


def test_row_groups_that_cannot_have_a_key_are_not_read(tmp_path: Path) -> None:
    """The pages of the first group are damaged, which nobody sees who asks for others."""
    path = tmp_path / "f.parquet"
    rows = pa.table({"n": range(4), "s": [f"s{n}" for n in range(4)]})
    pq.write_table(rows, path, row_group_size=2, compression="zstd", use_dictionary=False)
    told = metadata(field("n", "long"), field("s", "string"))
    commit(tmp_path, 0, protocol(1, 2), told, add(path, 4))
    data = bytearray(path.read_bytes())
    data[4:60] = bytes(56)
    path.write_bytes(data)
    assert [row["n"] for row in all_rows(pinned(tmp_path), Comparison("n", ">=", 3))] == [3]
    with pytest.raises(DataError, match=r"f\.parquet"):
        all_rows(pinned(tmp_path), Comparison("n", ">=", 1))


def test_bounds_of_a_member_are_not_taken_for_those_of_a_column_with_a_dot(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"a.b": [7], "a": [{"b": 1}]}), path)
    inner = {"type": "struct", "fields": [field("b", "long")]}
    told = metadata(field("a.b", "long"), field("a", inner))
    commit(tmp_path, 0, protocol(1, 2), told, add(path, 1))
    found = all_rows(pinned(tmp_path), Comparison("a.b", "=", 7))
    assert found == [{"a.b": 7, "a": {"b": 1}}]


def test_bounds_of_times_are_cut_to_milliseconds_and_leave_out_no_later_row(
    tmp_path: Path,
) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"t": pa.array([1_500], pa.timestamp("us", "UTC"))}), path)
    at = "1970-01-01T00:00:00.001Z"
    stats = {"numRecords": 1, "minValues": {"t": at}, "maxValues": {"t": at}, "nullCount": {"t": 0}}
    told = add(path, 1, stats=json.dumps(stats))
    commit(tmp_path, 0, protocol(1, 2), metadata(field("t", "timestamp")), told)
    assert len(all_rows(pinned(tmp_path), Comparison("t", "=", 1_500))) == 1
    assert pinned(tmp_path).parts(Comparison("t", "=", 2_500)) == []


def test_partition_columns_have_their_types_and_take_null(tmp_path: Path) -> None:
    rows = pa.table({"k": [1, 2], "d": pa.array([date(2020, 2, 29), None], pa.date32())})
    deltalake.write_deltalake(str(tmp_path / "t"), rows, partition_by=["d"])
    assert counted(all_rows(pinned(tmp_path / "t"))) == counted(rows.to_pylist())


def test_empty_text_in_a_partition_is_null_as_the_format_says(tmp_path: Path) -> None:
    rows = pa.table({"k": [1], "p": [""]})
    deltalake.write_deltalake(str(tmp_path / "t"), rows, partition_by=["p"])
    assert all_rows(pinned(tmp_path / "t")) == [{"k": 1, "p": None}]


def test_partition_of_bytes_is_refused_by_its_column(tmp_path: Path) -> None:
    rows = pa.table({"k": [1], "p": [b"a"]})
    deltalake.write_deltalake(str(tmp_path / "t"), rows, partition_by=["p"])
    with pytest.raises(UnsupportedError, match="binary column 'p'"):
        pinned(tmp_path / "t")


def test_conditions_on_the_key_leave_files_out(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for k in range(4):
        append(table, k=[k, k + 10], s=[f"s{k}", f"s{k}"])
    source = pinned(table)
    assert len(source.parts(Comparison("k", "=", 12))) == 2
    assert len(source.parts(Comparison("k", ">", 11))) == 2
    assert len(source.parts(In("s", ("s1", "s3", "zz")))) == 2
    assert len(source.parts(IsNull("k"))) == 0
    assert len(source.parts(Not(IsNull("k")))) == 4
    assert len(all_rows(source, Like("s", "%2"))) == 2
    both = And((Comparison("k", "<", 1), Comparison("s", "=", "s0")))
    assert [row["k"] for row in all_rows(source, both)] == [0]


def test_condition_on_a_partition_column_leaves_files_out(tmp_path: Path) -> None:
    rows = pa.table({"k": [1, 2, 3], "p": ["a", "b", None]})
    deltalake.write_deltalake(str(tmp_path / "t"), rows, partition_by=["p"])
    source = pinned(tmp_path / "t")
    assert all_rows(source, Comparison("p", "=", "a")) == [{"k": 1, "p": "a"}]
    assert len(source.parts(Comparison("p", "=", "a"))) == 1
    assert len(source.parts(IsNull("p"))) == 1


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ([protocol(3, 7, "rowsOfTheFuture"), metadata(field("k", "long"))], "rowsOfTheFuture"),
        ([protocol(3, 7, "catalogManaged"), metadata(field("k", "long"))], "catalog"),
        ([protocol(4, 8), metadata(field("k", "long"))], "ersion"),
        ([protocol(1, 2), metadata(field("k", "void"))], "'k'.*void"),
        ([protocol(1, 2), metadata(field("k", "interval day to second"))], "'k'.*interval"),
        ([protocol(3, 7, "variantType"), metadata(field("v", "variant"))], "'v'.*variant"),
        (
            [
                protocol(2, 5),
                metadata(
                    field("k", "long"), **{"delta.columnMapping.mode": "odd"}
                ),
            ],
            "odd",
        ),
    ],
)  # fmt: skip
def test_what_this_release_cannot_read_is_refused_by_name(
    tmp_path: Path, told: list[dict[str, Any]], names: str
) -> None:
    commit(tmp_path, 0, *told)
    with pytest.raises((UnsupportedError, DataError), match=names) as raised:
        pinned(tmp_path).parts()
    assert str(tmp_path) in str(raised.value)
    assert isinstance(raised.value, UnsupportedError) or "odd" in names


def test_no_table_or_version_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=re.escape(str(tmp_path / "t"))):
        pinned(tmp_path / "t")
    append(tmp_path / "t", n=[0])
    with pytest.raises(NotFoundError, match=r"no readable version 7.*latest one is 0"):
        pinned(tmp_path / "t", 7)


@pytest.mark.parametrize("version", ["tomorrow", -1, "1.5"])
def test_version_is_a_number(tmp_path: Path, version: Any) -> None:
    with pytest.raises(InvalidError, match="0 or more"):
        pinned(tmp_path, version)


def test_missing_or_torn_file_is_named(tmp_path: Path) -> None:
    append(tmp_path / "t", n=[0, 1])
    (file,) = (tmp_path / "t").glob("*.parquet")
    source = pinned(tmp_path / "t")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match=file.name):
        all_rows(source)
    file.unlink()
    with pytest.raises(DataError, match=file.name):
        all_rows(source)


def test_deletion_vector_that_is_gone_is_named(tmp_path: Path) -> None:
    append(tmp_path / "t", n=[0, 1])
    (path,) = [a["add"]["path"] for a in actions(tmp_path / "t", 0) if "add" in a]
    delete_by_vector(tmp_path / "t", path, [0], inline=False)
    (vector,) = (tmp_path / "t").glob("deletion_vector_*.bin")
    vector.unlink()
    with pytest.raises(DataError, match=vector.name):
        all_rows(pinned(tmp_path / "t"))


def test_damaged_log_is_named(tmp_path: Path) -> None:
    append(tmp_path / "t", n=[0])
    source = pinned(tmp_path / "t")
    (tmp_path / "t/_delta_log" / f"{0:020d}.json").write_text('{"add": 5}')
    with pytest.raises(DataError, match=f"{0:020d}.json"):
        source.parts()


def test_file_of_another_type_is_refused_by_its_column(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"n": ["seven"]}), path)
    commit(tmp_path, 0, protocol(1, 2), metadata(field("n", "long")), add(path, 1))
    with pytest.raises(DataError, match=r"f\.parquet.*'n'"):
        all_rows(pinned(tmp_path))


def test_extra_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(SetupError, match=r"keytide\[delta\]"):
        pinned(tmp_path)


def test_every_type_is_read_as_it_is(tmp_path: Path) -> None:
    from datetime import datetime, timezone
    from decimal import Decimal

    at = datetime(2024, 5, 6, 7, 8, 9, 123456)
    rows = pa.table(
        {
            "i8": pa.array([1, None], pa.int8()), "i16": pa.array([2, None], pa.int16()),
            "i32": pa.array([3, None], pa.int32()), "f": pa.array([0.5, None], pa.float32()),
            "g": [1.5, None], "b": [True, None], "s": ["ä", None], "y": [b"\x00\xff", None],
            "t": pa.array([at, None], pa.timestamp("us")),
            "z": pa.array([at.replace(tzinfo=timezone.utc), None], pa.timestamp("us", "UTC")),
            "m": pa.array([Decimal("1.25"), None], pa.decimal128(9, 2)),
            "l": [[1, None], None], "st": [{"x": 1, "y": ["q"]}, None],
            "mp": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )  # fmt: skip
    deltalake.write_deltalake(str(tmp_path / "t"), rows)
    source = pinned(tmp_path / "t")
    assert all_rows(source) == rows.to_pylist()
    assert source.schema.types[:11] == rows.schema.types[:11]


def test_partition_column_with_a_colon_is_no_address(tmp_path: Path) -> None:
    rows = pa.table({"k": [1, 2], "p:x": ["a", "b:c"]})
    deltalake.write_deltalake(tmp_path, rows, partition_by=["p:x"])
    assert counted(all_rows(pinned(tmp_path))) == counted(rows.to_pylist())
