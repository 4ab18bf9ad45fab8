"""Columns may have any name that the format leaves to them, those of our own making included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import keytide as kt
from keytide.base.process import scratch
from keytide.definition.schema_evolution import AddColumn, RenameColumn
from keytide.feeds.feed_writer import REASON, PreviousValues, count_changes
from keytide.format.schema import KEY_PREFIX, SYSTEM_NAMES
from keytide.merge.order import MergeOrder
from keytide.types import ArrayType, DataType, RowType
from new_tables import empty_lake, empty_table

SOURCE = Path(kt.__file__).parent
# What gives a column its name, by position or by keyword.
NAMING = {"alias", "with_row_index", "with_row_count", "Series", "col", "field", "drop", "sort"}
BY_KEYWORD = {"with_columns", "select", "agg", "DataFrame", "struct"}
TAKEN = {"_row_kind"}


def names_in_source() -> set[str]:
    """Every text in the source that may be the name of a column of our own."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            found.update(_names(node))
    return {name for name in found if name and len(name) < 40 and name.isprintable()}


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        yield from _texts(parts)
    if not isinstance(node, ast.Call):
        return
    called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if called in NAMING:
        yield from _texts(node.args)
    if called in BY_KEYWORD:
        yield from (keyword.arg for keyword in node.keywords if keyword.arg)
        yield from _texts(node.args)
        yield from _texts(
            key for each in node.args if isinstance(each, ast.Dict) for key in each.keys if key
        )


def _texts(nodes: Any) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def is_free(name: str) -> bool:
    is_pattern = name == "*" or (name.startswith("^") and name.endswith("$"))
    is_taken = name in {*SYSTEM_NAMES, *TAKEN} or name.upper().startswith(KEY_PREFIX)
    return bool(name.strip()) and not is_pattern and not is_taken


@cache
def names() -> list[str]:
    """Names of columns that a user could have thought of, and of bounds and parts of others."""
    # Names that differ only in case cannot be columns of one table; of ours, some differ so.
    free = {name.lower(): name for name in filter(is_free, sorted(names_in_source()))}
    more = ["_POSITION", "_index", "_ROW", "_bucket", "_raw", "_KEYTIDE_ORDER", "a", "a.min", "a?"]
    return list(dict.fromkeys([*sorted(free.values()), *more]))


def new_table(names: list[str], key: list[str], **more: Any) -> kt.Table:
    fields = [kt.Field(-1, name, kt.parse_sql_type("INT")) for name in names]
    lake = empty_lake()
    return lake.create_table("t", fields, key, **more)


@pytest.mark.takes_turns
def test_the_source_is_walked() -> None:
    assert {"kept", "rank", "place", "term_0"} - set(names()) == {"term_0"}
    assert len(names()) > 100


PARTS = 6


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize("part", range(PARTS))
def test_keys_and_values_may_have_every_name(part: int) -> None:
    share = -(-len(names()) // PARTS)
    key = names()[part * share :][:share]
    taken = {name.lower() for name in key}
    values = [name for name in names() if name.lower() not in taken][:120]
    (sequence, *_) = values
    options = {
        "sequence.field": sequence,
        "write.count-out-of-order": "true",
        "bucket": "2",
    }
    partition = key[:1] if len(key) > 1 else []
    table = new_table([*key, *values], key, partition_by=partition, options=options)
    row = dict.fromkeys([*key, *values], 1)
    last = key[-1]
    table.write([{**row, last: n} for n in range(6)])
    table.write([{**row, last: n, sequence: 9} for n in range(3, 9)])
    late, dead = {**row, last: 4, sequence: 5}, {**row, last: 0}
    written = table.write([{**late, "_row_kind": "+I"}, {**dead, "_row_kind": "-D"}])
    assert written.out_of_order == 1
    expected = {n: 9 if n > 2 else 1 for n in range(1, 9)}
    found = table.scan().to_pylist()
    assert {each[last]: each[sequence] for each in found} == expected
    assert table.get({**dict.fromkeys(key, 1), last: 4}) == {**row, last: 4, sequence: 9}
    quoted = last.replace("`", "``")
    assert table.scan(where=f"`{quoted}` = 7").count() == 1
    assert table.why({**dict.fromkeys(key, 1), last: 4}).row is not None
    table.overwrite(found)
    assert table.scan().count() == 8


@pytest.mark.parametrize("engine", ["partial-update", "aggregation"])
def test_folded_columns_and_nested_members_may_have_every_name(engine: str) -> None:
    folded = names()[:60]
    members = ", ".join(f"`{name}` INT" for name in folded if "`" not in name and name != "x")
    nested = kt.parse_sql_type(f"ARRAY<ROW<x INT, {members}>>")
    fields = [kt.Field(-1, name, kt.parse_sql_type("INT")) for name in ("k?", *folded)]
    fields += [kt.Field(-1, "nested?", nested)]
    groups = {f"fields.{folded[0]}.sequence-group": "nested?"} if engine[0] == "p" else {}
    options = {
        "merge-engine": engine,
        "fields.nested?.aggregate-function": "nested_update",
        "fields.nested?.nested-key": "x",
        **groups,
    }
    table = empty_table(fields, ["k?"], options=options)
    item = {member.name: 1 for member in nested.element.fields}  # type: ignore[attr-defined]
    for n in (1, 2):
        row = {"k?": 1, **dict.fromkeys(folded, n), "nested?": [{**item, "x": n}, item]}
        table.write([row])
    (found,) = table.scan().to_pylist()
    assert {found[name] for name in folded} == {2}
    assert sorted(each["x"] for each in found["nested?"]) == [1, 2]
    assert table.why(1).row == found


def test_changes_of_a_feed_may_have_every_name() -> None:
    free = [name for name in names() if name not in ("_ordinal", "_unavailable", "_message")]
    key, left_out, rest = free[:20], free[20], free[21:]
    order = MergeOrder(key=tuple(key), sequence=(rest[0],))
    row = dict.fromkeys(free, 1)
    changes = pl.DataFrame(
        [
            {**row, "_VALUE_KIND": 2, "_ordinal": 0, "_unavailable": [left_out], left_out: None},
            {**row, rest[0]: 3, "_VALUE_KIND": 2, "_ordinal": 1, "_unavailable": []},
        ],
        schema_overrides={left_out: pl.Int64, "_unavailable": pl.List(pl.String)},
    ).with_columns(pl.lit(None, pl.Binary).alias("_message"))
    system = {"_SEQUENCE_NUMBER": [0], "_VALUE_KIND": [0]}
    stored = pl.DataFrame({**{name: [7 if name == left_out else 1] for name in free}, **system})
    stored = stored.with_columns(pl.lit(0, pl.Int64).alias(rest[0]))
    kernel = PreviousValues(order, (order,), tuple(free), tuple(free))
    filled = kernel.changed(stored, changes)
    assert filled[left_out].to_list() == [7, 1]
    assert filled[REASON].to_list() == [None, None]
    assert count_changes(changes, stored, [order]).applied == 2


def test_scratch_names_are_no_columns() -> None:
    for name in (scratch("row"), "_KEY_a", "_key_a", "*", "^.*$", "a\0b", *SYSTEM_NAMES, *TAKEN):
        with pytest.raises(kt.InvalidError, match=r"reserved|taken|kept|pattern|NUL"):
            new_table(["k", name], ["k"])
        table = new_table(["k", "v"], ["k"])
        with pytest.raises(kt.InvalidError, match=r"reserved|taken|kept|pattern|NUL"):
            table.alter(AddColumn((name,), kt.parse_sql_type("INT")))
        with pytest.raises(kt.InvalidError, match=r"reserved|taken|kept|pattern|NUL"):
            table.alter(RenameColumn(("v",), name))


@pytest.mark.parametrize("name", ["pa,b", " k", "k "])
def test_key_of_an_index_whose_name_no_list_can_hold_is_refused(tmp_path: Path, name: str) -> None:
    columns = pa.schema([pa.field(name, pa.int32(), nullable=False), ("v", pa.int32())])
    lake = kt.connect(tmp_path)
    with pytest.raises(kt.InvalidError, match=r"t: column '.*' cannot be in the primary key of a"):
        lake.create_table("t", columns, [name], options={"upsert.mode": "full"})
    table = lake.create_table("t", columns, [name])
    table.write([{name: 1, "v": 2}])
    assert table.get(1) == {name: 1, "v": 2}


INT = kt.parse_sql_type("INT")


TWICE = RowType((kt.Field(-1, "a", INT), kt.Field(-1, "a", INT)))


def deep(levels: int) -> kt.Field:
    kind: DataType = INT
    for _ in range(levels):
        kind = ArrayType(kind)
    return kt.Field(-1, "v", kind)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schema": []}, "at least one column"),
        ({"schema": pa.schema([("k", pa.int32()), ("k", pa.int32())])}, "duplicate names"),
        ({"schema": pa.schema([("k", pa.int32()), ("", pa.int32())])}, "has no name"),
        ({"schema": [kt.Field(-1, "k", INT), kt.Field(-1, "  ", INT)]}, "has no name"),
        ({"schema": [kt.Field(-1, "k", INT), deep(200)]}, "levels deep"),
        ({"schema": [kt.Field(-1, "k", INT), deep(5000)]}, "levels deep"),
        (
            {"schema": [kt.Field(-1, "k", INT), kt.Field(-1, "r", TWICE)]},
            "column 'r' has duplicate names",
        ),
        ({"primary_key": ["z"]}, "names columns that do not exist"),
        ({"primary_key": ["k", "k"]}, "has duplicate names"),
        ({"name": ""}, "not a valid table name"),
    ],
)
def test_definition_that_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    lake = empty_lake()
    sound = {"name": "t", "schema": [kt.Field(-1, "k", INT)], "primary_key": ["k"]}
    with pytest.raises(kt.InvalidError, match=message):
        lake.create_table(**{**sound, **arguments})
    assert lake.tables() == []


def test_column_that_is_added_or_renamed_needs_a_sound_name_and_type() -> None:
    table = new_table(["k", "v"], ["k"])
    for change in (
        AddColumn(("",), INT), AddColumn((" ",), INT), RenameColumn(("v",), ""),
        AddColumn(("v", "w"), deep(300).type), AddColumn(("w",), deep(300).type),
    ):  # fmt: skip
        with pytest.raises((kt.InvalidError, kt.NotFoundError)):
            table.alter(change)
    assert table.table_schema.id == 0
