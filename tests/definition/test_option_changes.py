"""ALTER on a table with rows: it is refused, or no row is another one afterwards."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import (
    AddColumn,
    ChangeColumnType,
    DropColumn,
    First,
    RemoveOption,
    RenameColumn,
    SchemaChange,
    SetOption,
)
from keytide.options import SECTIONS, Change, ForOthers, Option
from keytide.options.values import ACTS
from new_tables import empty_lake, empty_table
from table_rows import dicts

pytestmark = pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")

COLUMNS = {"k": "INT", "a": "INT", "b": "INT", "s": "CHAR(4)", "t": "STRING"}
ENGINES: dict[str, dict[str, str]] = {
    "plain": {},
    "ordered": {"sequence.field": "a"},
    "watermark": {"watermark.key": "a"},
    "first-row": {"merge-engine": "first-row", "ignore-delete": "true"},
    "partial-update": {
        "merge-engine": "partial-update",
        "partial-update.remove-record-on-delete": "true",
    },
    "groups": {
        "merge-engine": "partial-update",
        "fields.a.sequence-group": "b,s",
        "partial-update.remove-record-on-sequence-group": "a",
    },
    "aggregation": {
        "merge-engine": "aggregation",
        "aggregation.remove-record-on-delete": "true",
        "fields.a.aggregate-function": "sum",
        "fields.t.aggregate-function": "listagg",
    },
}
# Inserts, out-of-order versions and deletes: each line a commit of rows `kind k a b s t`.
HISTORY = """
    +I 1 9 1 x y, +I 2 5 5 x y, +I 3 8 6 x y, +I 4 - 4 x -
    +I 2 3 8 z -, -D 1 - - - -, +I 3 8 1 - z
    -D 3 6 - - -, +I 4 2 - w w, +I 5 1 1 a a
"""
ROWS = [option for options in SECTIONS.values() for option in options]
VALUES = {
    "fields.<column>.aggregate-function": ("max", "first_value", "listagg"),
    "fields.default-aggregate-function": ("last_value",),
    "fields.<columns>.default-value": ("7",),
    "rowkind.field": ("t",),
    "tombstone.key": ("t", "b"),
    "bucket-key": ("k",),
    "record-level.time-field": ("a",),
}


def new_table(options: Mapping[str, str]) -> kt.Table:
    return empty_table(COLUMNS, ["k"], options=options)


def rows_of(line: str) -> list[dict[str, Any]]:
    rows = []
    for text in line.strip().split(", "):
        kind, *values = text.split()
        cells = zip(COLUMNS.items(), values, strict=True)
        row = {
            name: None if value == "-" else int(value) if type_ == "INT" else value
            for (name, type_), value in cells
        }
        rows.append({**row, "_row_kind": kind})
    return rows


def written(options: Mapping[str, str], commits: Sequence[list[dict[str, Any]]]) -> kt.Table:
    table = new_table(options)
    for rows in commits:
        table.write(rows)
    return table


def row_dicts(table: kt.Table, *left_out: str) -> list[dict[str, Any]]:
    names = [name for name in table.scan().schema.names if name not in left_out]
    return dicts(table.scan(columns=names))


def keys_of(option: Option) -> Iterator[str]:
    """The option's key; with places, the keys for some columns."""
    if not option.has_place:
        yield option.key
        return
    for column in ("a", "b", "t"):
        yield re.sub(r"<columns?>", column, re.sub(r"<(?!column)\w+>", "x", option.key))


def settings_of(options: Sequence[Option]) -> list[SetOption]:
    return [
        SetOption(key, value)
        for option in options
        for key in keys_of(option)
        for value in VALUES.get(option.key, option.type.samples[:2])
    ]


def is_done(table: kt.Table, *changes: SchemaChange) -> bool:
    try:
        table.alter(*changes)
    except (kt.InvalidError, kt.UnsupportedError, kt.NotFoundError):  # no such column
        return False
    return True


Rows = list[dict[str, Any]]


def check_rows_stay(before: Rows, table: kt.Table, *changes: SchemaChange) -> bool:
    """Make changes, and compare the rows unless they are refused; whether they were made."""
    number = table.table_schema.id
    if not is_done(table, *changes):
        assert table.table_schema.id == number
        return False
    if table.table_schema.id == number:
        return True
    after = row_dicts(table, "new", "newer")
    if any(getattr(c, "key", "").endswith("default-value") for c in changes):
        before, after = without_defaults(before), without_defaults(after)
    assert after == before
    return True


def without_defaults(rows: Rows) -> Rows:
    """What readers show instead of NULL is for the option to say."""
    return [{n: None if v in (7, "7") else v for n, v in row.items()} for row in rows]


# An option that names a branch leads to the rows of another one.
ELSEWHERE = ("primary-key", "branch")
ACTING = [option for option in ROWS if option.use == ACTS and option.key not in ELSEWHERE]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_option_changes_stored_rows(engine: str) -> None:
    table = written(ENGINES[engine], [rows_of(line) for line in HISTORY.strip().splitlines()])
    before = row_dicts(table)
    of_merging = [option for option in ACTING if option.change is not Change.FREE]
    for change in settings_of(ACTING if engine == "plain" else of_merging):
        if check_rows_stay(before, table, change) and change.key in table.options:
            is_done(table, RemoveOption(change.key))  # the next change finds the rows as they are
    for key in ENGINES[engine]:
        assert not check_rows_stay(before, table, RemoveOption(key)), key
    assert row_dicts(table) == before


def test_no_option_for_other_engines_changes_stored_rows() -> None:
    table = written({}, [rows_of(line) for line in HISTORY.strip().splitlines()])
    kept = [option for option in ROWS if isinstance(option.use, ForOthers)]
    free = [option for option in kept if option.change is Change.FREE]
    changes = {change.key: change for change in settings_of(free)}
    before = row_dicts(table)
    assert check_rows_stay(before, table, *changes.values())
    assert check_rows_stay(before, table, *map(RemoveOption, changes))


@pytest.mark.takes_turns
def test_without_rows_every_fixed_option_can_be_set() -> None:
    """What is refused above is refused because of the rows."""
    fixed = [option for option in ACTING if option.change is Change.FIXED]
    missing = []
    for option in fixed:
        tries = itertools.product(ENGINES.values(), settings_of([option]))
        if not any(is_done(new_table(options), change) for options, change in tries):
            missing.append(option.key)
    needs_more = {"tombstone.key", "tombstone.string-key-value"}  # a watermark key beside
    # An index of keys.
    needs_more |= {"upsert.delete-record-column", "upsert.out-of-order-record-column"}
    needs_more |= {"fields.<column>.post-merge-expression"}
    needs_nested = {option.key for option in fixed if "nested" in option.key}
    needs_map = {option.key for option in fixed if "ts-field" in option.key}
    assert set(missing) <= needs_more | needs_nested | needs_map


numbers = st.none() | st.integers(0, 3)
texts = st.none() | st.sampled_from(["x", "y"])
changes_of_rows = st.fixed_dictionaries(
    {
        "_row_kind": st.sampled_from(["+I", "+I", "-D"]),
        "k": st.integers(1, 3),
        "a": numbers,
        "b": numbers,
        "s": texts,
        "t": texts,
    }
)
histories = st.lists(st.lists(changes_of_rows, min_size=1, max_size=4), min_size=1, max_size=4)
NEW = (
    AddColumn(("new",), kt.parse_sql_type("INT")),
    AddColumn(("newer",), kt.parse_sql_type("STRING")),
)
OF_NEW_COLUMNS = [
    ("sequence.field", "new"), ("sequence.field", "a,new"), ("sequence.field", "new,a"),
    ("sequence.field.sort-order", "descending"), ("watermark.key", "new"),
    ("watermark.key", "a,new"), ("tombstone.key", "newer"), ("tombstone.string-key-value", "x"),
    ("rowkind.field", "newer"), ("fields.new.sequence-group", "newer"),
    ("fields.new.sequence-group", "b"), ("fields.a.sequence-group", "b,s,new"),
    ("fields.a,new.sequence-group", "b,s"), ("fields.new,a.sequence-group", "b,s"),
    ("partial-update.remove-record-on-sequence-group", "new"),
    ("partial-update.remove-record-on-sequence-group", "a,new"),
    ("fields.new.aggregate-function", "sum"), ("fields.new.aggregate-function", "count"),
    ("fields.newer.aggregate-function", "first_value"),
    ("fields.new.ignore-retract", "true"), ("fields.newer.distinct", "true"),
]  # fmt: skip


@pytest.mark.takes_turns
@given(
    st.sampled_from(list(ENGINES)),
    histories,
    st.lists(st.sampled_from(settings_of(ACTING)), min_size=1, max_size=4),
    st.lists(st.sampled_from(OF_NEW_COLUMNS), max_size=3),
)
def test_random_changes_after_random_histories_change_no_row(
    engine: str,
    history: list[list[dict[str, Any]]],
    changes: list[SetOption],
    of_new: list[tuple[str, str]],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kt.KeytideWarning)
        table = written(ENGINES[engine], history)
        for change in changes:
            check_rows_stay(row_dicts(table), table, change)
        check_rows_stay(row_dicts(table), table, *NEW, *itertools.starmap(SetOption, of_new))


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("plain", {"sequence.field": "new"}),
        ("plain", {"watermark.key": "new", "tombstone.key": "newer"}),
        ("ordered", {"sequence.field": "a,new"}),
        ("groups", {"fields.new.sequence-group": "newer"}),
        ("groups", {"fields.a.sequence-group": "b,s,new"}),
        ("aggregation", {"fields.new.aggregate-function": "sum"}),
        ("aggregation", {"fields.new.aggregate-function": "count"}),
    ],
)
def test_options_of_columns_added_in_the_same_step_are_taken(
    engine: str, options: dict[str, str]
) -> None:
    table = written(ENGINES[engine], [rows_of(line) for line in HISTORY.strip().splitlines()])
    before = row_dicts(table)
    assert check_rows_stay(before, table, *NEW, *itertools.starmap(SetOption, options.items()))
    (key, value), *_ = options.items()
    other = SetOption(key.replace("new", "b"), value.replace("newer", "t").replace("new", "b"))
    assert not check_rows_stay(before, table, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (DropColumn(("a",)), "'a' cannot be dropped, because 'sequence.field' uses it"),
        (ChangeColumnType(("s",), kt.parse_sql_type("STRING")), "use a longer CHAR"),
    ],
)
def test_change_of_a_column_that_orders_versions_is_refused(
    change: SchemaChange, message: str
) -> None:
    table = new_table({"sequence.field": "a,s"})
    with pytest.raises(kt.InvalidError, match=message):
        table.alter(change)


def test_last_member_that_is_the_time_of_entries_stays_the_last() -> None:
    kind = kt.parse_sql_type("MAP<INT, ROW<x INT, at INT>>")
    fields = [kt.Field(-1, "k", kt.parse_sql_type("INT")), kt.Field(-1, "m", kind)]
    options = {
        "merge-engine": "aggregation",
        "fields.m.aggregate-function": "merge_map_with_keytime",
    }
    table = empty_table(fields, ["k"], options=options)
    table.write([{"k": 1, "m": [(1, {"x": 1, "at": 5})]}])
    int_ = kt.parse_sql_type("INT")
    with pytest.raises(kt.InvalidError, match="add new fields before it"):
        table.alter(AddColumn(("m", "value", "y"), int_))
    table.alter(AddColumn(("m", "value", "y"), int_, position=First()))
    table.write([{"k": 1, "m": [(1, {"y": 9, "x": 2, "at": 3})]}])
    assert table.get(1) == {"k": 1, "m": [(1, {"y": None, "x": 1, "at": 5})]}


def test_renaming_a_column_is_no_change_of_the_options_that_name_it() -> None:
    commits = [rows_of(line) for line in HISTORY.strip().splitlines()]
    table = written(ENGINES["ordered"], commits)
    table.alter(RenameColumn(("a",), "at"), SetOption("sequence.field", "at"))
    assert table.options["sequence.field"] == "at"
    changed = r"cannot change 'sequence.field' from 'old' to nothing"
    with pytest.raises(kt.InvalidError, match=changed):
        table.alter(RenameColumn(("at",), "old"), AddColumn(("at",), kt.parse_sql_type("INT")),
                    SetOption("sequence.field", "at"))  # fmt: skip


def test_emptied_table_takes_any_option() -> None:
    table = written({}, [rows_of(line) for line in HISTORY.strip().splitlines()])
    before = row_dicts(table)
    table.truncate()
    table.alter(SetOption("merge-engine", "aggregation"), SetOption("sequence.field", "a"))
    for line in ("+I 1 9 1 x -", "+I 1 3 2 y -"):
        table.write(rows_of(line))
    assert row_dicts(table) == [{"k": 1, "a": 9, "b": 1, "s": "x", "t": None}]
    old = table.scan(snapshot_id=3).to_pylist()
    assert sorted(old, key=lambda row: row["k"]) == before


def test_rows_written_into_a_new_table_follow_its_option() -> None:
    """The way out that the refusal names."""
    lake = empty_lake()
    lake.sql("CREATE TABLE old (k INT, a INT, gone BOOLEAN, PRIMARY KEY (k) NOT ENFORCED)")
    lake.sql("INSERT INTO old VALUES (1, 9, false), (2, 5, true)")
    with pytest.raises(kt.InvalidError, match="CREATE TABLE new LIKE old WITH"):
        lake.sql("ALTER TABLE old SET ('watermark.key' = 'a')")
    lake.sql(
        "CREATE TABLE new LIKE old WITH ('watermark.key' = 'a', 'tombstone.key' = 'gone');"
        "INSERT INTO new SELECT * FROM old; INSERT INTO new VALUES (1, 3, false)"
    )
    assert lake.sql("SELECT * FROM new").to_pylist() == [{"k": 1, "a": 9, "gone": False}]
