"""Why a row is what it is: versions in merge order, what became of each, where values come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import keytide as kt
from keytide.format import paths
from new_tables import empty_table

SAMPLES = Path(__file__).parents[1] / "data/samples"

GROUPS = {
    "merge-engine": "partial-update",
    "fields.s.sequence-group": "a",
    "fields.t.sequence-group": "n,m",
    "fields.n.aggregate-function": "sum",
}


def new_table(columns: str, options: Mapping[str, str], key: tuple[str, ...] = ("k",)) -> kt.Table:
    """A table in memory with columns such as 'k int, v text'."""
    types = {"int": pa.int64(), "text": pa.string(), "bool": pa.bool_()}
    pairs = (column.split() for column in columns.split(", "))
    schema = pa.schema([(name, types[kind]) for name, kind in pairs])
    kept = {"write-only": "true", **options}  # a compaction would leave fewer versions to explain
    return empty_table(schema, key=key, options=kept)


def written(columns: str, options: Mapping[str, str], rows: Iterable[str]) -> kt.Table:
    """A table with a commit for each row, such as '+I 1 a 5', in which '-' is NULL."""
    table = new_table(columns, options)
    for row in rows:
        kind, *values = row.split()
        cells = zip(table.schema, values, strict=True)
        parsed = {
            field.name: None if text == "-" else pa.scalar(text).cast(field.type).as_py()
            for field, text in cells
        }
        table.write([{**parsed, "_row_kind": kind}])
    return table


def outcomes(why: kt.Why, *columns: str) -> list[str]:
    """The versions' values and outcomes as texts."""
    rows = why.to_arrow().to_pylist()
    return [
        " ".join([row["row_kind"], *(str(row[name] or "-") for name in columns)])
        + ": "
        + row["outcome"]
        for row in rows
    ]


# -- deduplicate -----------------------------------------------------------------------------------


def test_late_rows_lose_by_sequence_field_and_ties_by_arrival() -> None:
    table = written(
        "k int, v text, ts int",
        {"sequence.field": "ts"},
        ["+I 1 a 5", "+I 1 b 9", "+I 1 late 7", "+I 1 c 9", "+I 1 none -"],
    )
    why = table.why(1)
    assert outcomes(why, "v") == [
        "+I none: replaced by version 5: sequence field ts NULL < 9",
        "+I a: replaced by version 5: sequence field ts 5 < 9",
        "+I late: replaced by version 5: sequence field ts 7 < 9",
        "+I b: replaced by version 5: ts ties, and it arrived later (_SEQUENCE_NUMBER 1 < 3)",
        "+I c: is the row",
    ]
    assert why.row == table.get(1) == {"k": 1, "v": "c", "ts": 9}
    assert why.taken == {"v": (5,), "ts": (5,)}


def test_least_sequence_wins_where_order_descends() -> None:
    options = {"sequence.field": "ts", "sequence.field.sort-order": "descending"}
    table = written("k int, v text, ts int", options, ["+I 1 a 5", "+I 1 b 9"])
    assert outcomes(table.why(1), "v") == [
        "+I b: replaced by version 2: sequence field ts 9 > 5",
        "+I a: is the row",
    ]


def test_delete_that_comes_last_leaves_no_row() -> None:
    table = written("k int, v text", {}, ["+I 1 a", "-D 1 -"])
    why = table.why(1)
    assert outcomes(why, "v") == [
        "+I a: replaced by version 2: it arrived later (_SEQUENCE_NUMBER 0 < 1)",
        "-D -: deletes the row",
    ]
    assert (why.row, why.taken) == (None, {"v": ()})


def test_late_row_loses_to_tombstone() -> None:
    options = {"watermark.key": "at", "tombstone.key": "gone"}
    rows = ["+I 1 a 1 false", "+I 1 - 5 true", "+I 1 b 3 false"]
    table = written("k int, v text, at int, gone bool", options, rows)
    why = table.why(1)
    assert outcomes(why, "v") == [
        "+I a: replaced by version 3: sequence field at 1 < 5",
        "+I b: replaced by version 3: sequence field at 3 < 5",
        "-D -: deletes the row",
    ]
    assert why.row is table.get(1) is None


def test_stored_retracts_are_ignored_where_another_engine_says_so() -> None:
    table = written("k int, v text", {}, ["+I 1 a", "-D 1 -"])
    schema = replace(table.table_schema, id=1, options={"bucket": "1", "ignore-delete": "true"})
    table.metadata.store.create(paths.schema_path(1), schema.to_json())
    assert outcomes(table.why(1), "v") == [
        "+I a: is the row",
        "-D -: ignored: the table has 'ignore-delete'",
    ]


# -- first row -------------------------------------------------------------------------------------


def test_first_version_keeps_all_others_out() -> None:
    table = written("k int, v text", {"merge-engine": "first-row"}, ["+I 1 a", "+I 1 b"])
    why = table.why(1)
    assert outcomes(why, "v") == ["+I a: is the row", "+I b: ignored: version 1 was first"]
    assert (why.row, why.taken) == ({"k": 1, "v": "a"}, {"v": (1,)})


# -- partial update --------------------------------------------------------------------------------


def test_versions_fill_each_others_gaps() -> None:
    table = written(
        "k int, a text, b text, c text",
        {"merge-engine": "partial-update"},
        ["+I 1 a1 b1 -", "+I 1 a2 - -", "+I 1 - - -"],
    )
    why = table.why(1)
    assert outcomes(why) == [
        "+I: sets b; a replaced by version 2: it arrived later (_SEQUENCE_NUMBER 0 < 1)",
        "+I: sets a",
        "+I: ignored: all its columns are NULL",
    ]
    assert why.row == {"k": 1, "a": "a2", "b": "b1", "c": None}
    assert why.taken == {"a": (2,), "b": (1,), "c": ()}


def test_each_sequence_group_has_a_winner_of_its_own() -> None:
    table = written(
        "k int, a text, s int, b text, n int, t int",
        {
            "merge-engine": "partial-update",
            "fields.s.sequence-group": "a",
            "fields.t.sequence-group": "b,n",
            "fields.n.aggregate-function": "sum",
        },
        ["+I 1 a1 5 b1 1 1", "+I 1 a2 3 - 2 2", "+I 1 a3 - b3 4 1"],
    )
    why = table.why(1)
    assert outcomes(why) == [
        "+I: sets a, s; adds 1 to n; b, t replaced by version 2: sequence field t 1 < 2",
        "+I: sets b, t; adds 2 to n; a, s replaced by version 1: sequence field s 3 < 5",
        "+I: adds 4 to n; a ignored: all columns of its sequence group (s) are NULL; "
        "b, t replaced by version 2: sequence field t 1 < 2",
    ]
    assert why.row == {"k": 1, "a": "a1", "s": 5, "b": None, "n": 7, "t": 2}
    assert why.taken == {"a": (1,), "s": (1,), "b": (2,), "n": (1, 2, 3), "t": (2,)}


def test_retract_takes_back_columns_of_the_groups_it_is_newest_of() -> None:
    rows = ["+I 1 5 1 a 3 -", "-D 1 6 - - - -", "-U 1 2 2 - 1 -"]
    table = written("k int, s int, t int, a text, n int, m int", GROUPS, rows)
    why = table.why(1)
    assert outcomes(why) == [
        "+I: adds 3 to n; s replaced by version 2: sequence field s 5 < 6; "
        "t replaced by version 3: sequence field t 1 < 2; "
        "a retracted by version 2: sequence field s 5 < 6",
        "-D: sets s; retracts a",
        "-U: sets t; subtracts 1 from n; does not retract a: version 2 is newer, "
        "sequence field s 2 < 6; retracts m",
    ]
    assert why.row == table.get(1) == {"k": 1, "s": 6, "t": 2, "a": None, "n": 2, "m": None}


def test_delete_removes_what_came_before_it_for_good() -> None:
    options = {
        "merge-engine": "partial-update",
        "partial-update.remove-record-on-delete": "true",
    }
    table = new_table("k int, a text, b text", options)
    for kind, a, b in [("+I", "a1", "b1"), ("-D", None, None), ("-U", "x", None)]:
        table.write([{"k": 1, "a": a, "b": b, "_row_kind": kind}])
    assert outcomes(table.why(1)) == ["+I: removed by version 2", "-D: deletes the row"]
    table.write([{"k": 1, "a": "a4", "b": None}])
    table.write([{"k": 1, "a": None, "b": "b5"}])
    assert outcomes(table.why(1)) == [
        "+I: removed by version 2",
        "-D: deleted the row, and version 3 created it again",
        "+I: sets a",
        "+I: sets b",
    ]


def test_late_add_finds_no_row_where_deciding_group_removed_it() -> None:
    options = {
        "merge-engine": "partial-update",
        "fields.g.sequence-group": "a",
        "partial-update.remove-record-on-sequence-group": "g",
    }
    table = written("k int, g int, a text", options, ["+I 1 1 a", "-D 1 5 -", "+I 1 3 late"])
    assert outcomes(table.why(1)) == [
        "+I: removed by version 2",
        "-D: deletes the row",
        "+I: ignored: version 2 had already deleted the row",
    ]
    assert table.get(1) is None


# -- aggregation -----------------------------------------------------------------------------------


def test_folds_name_the_versions_that_they_fold() -> None:
    table = written(
        "k int, n int, top int, v text, w text",
        {
            "merge-engine": "aggregation",
            "fields.n.aggregate-function": "sum",
            "fields.top.aggregate-function": "max",
            "fields.w.aggregate-function": "first_value",
            "fields.top.ignore-retract": "true",
            "fields.v.ignore-retract": "true",
            "fields.w.ignore-retract": "true",
        },
        ["+I 1 1 2 x w1", "+I 1 - 3 - w2", "+I 1 5 3 y -", "-U 1 1 9 z -"],
    )
    why = table.why(1)
    assert outcomes(why) == [
        "+I: adds 1 to n; sets w; is not the max of top; "
        "v replaced by version 3: it arrived later (_SEQUENCE_NUMBER 0 < 2)",
        "+I: sets the max of top; w ignored: version 1 comes first",
        "+I: adds 5 to n; sets the max of top; sets v",
        "-U: subtracts 1 from n; leaves top, v unchanged ('ignore-retract')",
    ]
    assert why.row == table.get(1) == {"k": 1, "n": 5, "top": 3, "v": "y", "w": "w1"}
    assert why.taken == {"n": (1, 3, 4), "top": (2, 3), "v": (3,), "w": (1,)}


def test_functions_that_gather_name_every_version_that_they_were_given() -> None:
    options = {"merge-engine": "aggregation", "fields.v.aggregate-function": "listagg"}
    why = written("k int, v text", options, ["+I 1 a", "+I 1 -", "+I 1 b"]).why(1)
    assert outcomes(why) == [
        "+I: is aggregated into v (listagg)",
        "+I: ignored: all its columns are NULL",
        "+I: is aggregated into v (listagg)",
    ]
    assert (why.row, why.taken) == ({"k": 1, "v": "a,b"}, {"v": (1, 3)})


def test_lone_retract_is_kept_and_shows_no_row() -> None:
    options = {"merge-engine": "aggregation", "fields.n.aggregate-function": "sum"}
    table = written("k int, n int", options, ["-D 1 3"])
    assert outcomes(table.why(1)) == [
        "-D: is stored as a retract: there is no row yet from which to retract"
    ]
    table.write([{"k": 1, "n": 5}])
    assert outcomes(table.why(1)) == ["-D: subtracts 3 from n", "+I: adds 5 to n"]
    assert table.why(1).row == {"k": 1, "n": 2}


# -- tables of other writers -----------------------------------------------------------------------


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "name",
    [
        "wh/spec.db/partial_update_seq_group",
        "wh/spec.db/dv",
        "java-0.9/wh/spec.db/j_first",
        "java-0.9/wh/spec.db/j_agg",
        "java-0.9/wh/spec.db/j_evolve",
        "java-0.9/wh/spec.db/j_part",
        "independent/wh/spec.db/m_dv",
    ],
)
def test_every_row_of_sample_is_explained(name: str) -> None:
    table = kt.open_table(SAMPLES / name)
    for row in table.scan().to_pylist()[:20]:
        why = table.why({column: row[column] for column in table.primary_key})
        assert why.row == row
        assert_values_come_from(why)


def test_versions_that_readers_of_deletion_vectors_skip_are_shown_as_such() -> None:
    assert hidden_outcomes(SAMPLES / "wh/spec.db/dv") == {
        "marked as deleted by a deletion vector: another version replaced it",
        "not visible yet: readers of this table read only compacted files",
    }


def hidden_outcomes(path: Path) -> set[str]:
    """What is said of versions that no reader looks at, in any snapshot of a table."""
    table = kt.open_table(path)
    keys = {tuple(row[c] for c in table.primary_key) for row in table.scan().to_pylist()}
    return {
        version["outcome"]
        for snapshot in table.snapshots()
        for key in sorted(keys)[:5]
        for version in table.why(key, snapshot_id=snapshot.id).to_arrow().to_pylist()
        if version["outcome"].startswith(("not visible", "marked as deleted"))
    }


# -- the value itself ------------------------------------------------------------------------------


def test_key_that_was_never_written_has_no_versions() -> None:
    table = new_table("k int, v text", {})
    why = table.why(1)
    assert (why.row, why.snapshot_id, why.to_arrow().num_rows) == (None, None, 0)
    table.write([{"k": 2, "v": "b"}])
    assert str(table.why(1)) == "default.t, k = 1, snapshot 1: 0 versions (deduplicate)\nno row"


def test_only_files_that_may_hold_the_key_are_read(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    table = kt.connect(tmp_path).create_table("t", schema, primary_key=["k"])
    for key in (1, 100):
        table.write([{"k": key, "v": "x"}])
    (other,) = table.why(100).to_arrow()["file"].to_pylist()
    next(tmp_path.rglob(other)).unlink()
    assert table.why(1).row == {"k": 1, "v": "x"}
    with pytest.raises(kt.DataError, match=other):
        table.why(100)


def test_older_snapshots_explain_their_own_row() -> None:
    table = written("k int, v text", {}, ["+I 1 a", "+I 1 b"])
    assert outcomes(table.why(1, snapshot_id=1), "v") == ["+I a: is the row"]
    assert table.why({"k": 1}, as_of="2999-01-01").row == {"k": 1, "v": "b"}
    with pytest.raises(kt.NotFoundError, match="no snapshot 9"):
        table.why(1, snapshot_id=9)
    with pytest.raises(kt.InvalidError, match="the primary key is k"):
        table.why((1, 2))


def test_default_is_in_the_row_and_in_no_version() -> None:
    table = written("k int, v text", {"fields.v.default-value": "d"}, ["+I 1 a", "+I 1 -"])
    why = table.why(1)
    assert why.row == table.get(1) == {"k": 1, "v": "d"}
    assert why.to_arrow()["v"].to_pylist() == ["a", None]


def test_columns_called_like_ours_keep_their_names() -> None:
    table = new_table("k int, version text, _version int, outcome text", {})
    table.write([{"k": 1, "version": "v", "_version": 7, "outcome": "o"}])
    (row,) = table.why(1).to_arrow().to_pylist()
    assert (row["version"], row["_version"], row["outcome"]) == ("v", 7, "o")
    assert (row["__version"], row["_outcome"]) == (1, "is the row")


def test_text_tells_versions_and_row() -> None:
    why = written("k int, v text", {}, ["+I 1 a\x1b", "+I 1 b"]).why(1)
    files = why.to_arrow()["file"].to_pylist()
    assert str(why).splitlines() == [
        "default.t, k = 1, snapshot 2: 2 versions (deduplicate)",
        "  1 +I v = 'a\\x1b'",
        "       replaced by version 2: it arrived later (_SEQUENCE_NUMBER 0 < 1)",
        f"       level 0, _SEQUENCE_NUMBER 0, {files[0]}",
        "  2 +I v = 'b'",
        "       is the row",
        f"       level 0, _SEQUENCE_NUMBER 1, {files[1]}",
        "the row",
        "       v = 'b', from version 2",
    ]
    assert "<dd><bdi>b</bdi></dd>" in why._repr_html_()


# -- laws ------------------------------------------------------------------------------------------

ENGINES: dict[str, tuple[dict[str, str], str]] = {
    "deduplicate": ({}, "+I -D -U"),
    "sequence": ({"sequence.field": "s,t"}, "+I +U -D -U"),
    "descending": (
        {"sequence.field": "s", "sequence.field.sort-order": "descending"},
        "+I -D",
    ),
    "first row": ({"merge-engine": "first-row"}, "+I +U"),
    "partial update": ({"merge-engine": "partial-update"}, "+I +U"),
    "partial update by sequence": (
        {"merge-engine": "partial-update", "sequence.field": "s"},
        "+I",
    ),
    "removing partial update": (
        {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"},
        "+I +I -D -U",
    ),
    "groups": (GROUPS, "+I +I -D -U"),
    "removing groups": (
        {**GROUPS, "partial-update.remove-record-on-sequence-group": "s"},
        "+I +I -D",
    ),
    "aggregation": (
        {
            "merge-engine": "aggregation",
            "fields.n.aggregate-function": "sum",
            "fields.m.aggregate-function": "max",
            "fields.m.ignore-retract": "true",
        },
        "+I +I -D",
    ),
    "removing aggregation": (
        {
            "merge-engine": "aggregation",
            "sequence.field": "s",
            "aggregation.remove-record-on-delete": "true",
            "fields.n.aggregate-function": "sum",
            "fields.m.aggregate-function": "last_value",
        },
        "+I +I -D",
    ),
}
COLUMNS = "k int, s int, t int, a text, n int, m int"
numbers = st.none() | st.integers(-1, 3)
values = st.tuples(
    st.integers(1, 2), numbers, numbers, st.none() | st.sampled_from("xyz"), numbers, numbers
)


@st.composite
def histories(draw: st.DrawFn, adds_only: bool = False) -> tuple[str, list[list[dict[str, Any]]]]:
    """An engine's name, and commits of rows."""
    engine = draw(st.sampled_from(sorted(ENGINES)))
    kinds = ["+I"] if adds_only else ENGINES[engine][1].split()
    names = [column.split()[0] for column in COLUMNS.split(", ")]
    row = st.builds(
        lambda kind, row: {**dict(zip(names, row, strict=True)), "_row_kind": kind},
        st.sampled_from(kinds),
        values,
    )
    return engine, draw(st.lists(st.lists(row, min_size=1, max_size=2), max_size=6))


def assert_values_come_from(why: kt.Why) -> None:
    """Every value that comes from one version is the one that this version holds."""
    versions = {row["version"]: row for row in why.to_arrow().to_pylist()}
    for name, numbers in why.taken.items():
        if len(numbers) == 1 and why.row is not None and versions[numbers[0]]["row_kind"] == "+I":
            assert why.row[name] == versions[numbers[0]][name]


@given(history=histories())
def test_row_is_what_get_returns_and_holds_what_versions_gave(
    history: tuple[str, list[list[dict[str, Any]]]],
) -> None:
    engine, commits = history
    table = new_table(COLUMNS, ENGINES[engine][0])
    for commit in commits:
        table.write(commit)
    for key in (1, 2):
        why = table.why(key)
        assert why.row == table.get(key)
        assert all(why.to_arrow()["outcome"].to_pylist())
        assert why.to_arrow()["version"].to_pylist() == list(range(1, len(why.versions) + 1))
        assert_values_come_from(why)
        if why.row is None:
            assert not any(why.taken.values())


@pytest.mark.takes_turns
@given(history=histories(adds_only=True))
def test_versions_that_the_row_comes_from_make_it_by_themselves(
    history: tuple[str, list[list[dict[str, Any]]]],
) -> None:
    engine, commits = history
    table = new_table(COLUMNS, ENGINES[engine][0])
    for commit in commits:
        table.write(commit)
    why = table.why(1)
    used = {number for numbers in why.taken.values() for number in numbers}
    # A lone version stands as it is, with values of groups that it says nothing about.
    assume(len(used) > 1 or (used and "groups" not in engine))
    again = new_table(COLUMNS, ENGINES[engine][0])
    for row in why.to_arrow().to_pylist():
        if row["version"] in used:
            again.write([{name: row[name] for name in table.schema.names}])
    assert again.get(1) == why.row
