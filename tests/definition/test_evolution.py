"""Altering a table: what may be done and what not; old files are read under new schemas."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import (
    AddColumn,
    After,
    ChangeColumnNullability,
    ChangeColumnType,
    ChangeComment,
    DropColumn,
    First,
    MoveColumn,
    RemoveOption,
    RenameColumn,
    SchemaChange,
    SetOption,
    evolve,
)
from keytide.format.schema import TableSchema
from keytide.store import Store, open_store
from keytide.store.faults import Fault, FaultyStore
from new_tables import empty_table, fields_of
from overtaking import overtaken

T = kt.parse_sql_type
COLUMNS = {
    "p": "STRING",
    "k": "INT",
    "v": "INT",
    "r": "ROW<a INT, b ARRAY<ROW<x INT, y STRING>>>",
    "m": "MAP<STRING, ROW<z INT>>",
}
OPTIONS = {"bucket": "2", "file.format": "parquet"}


def schema_of(columns: dict[str, str] = COLUMNS, **options: str) -> TableSchema:
    """A schema with the primary key `p`, `k` and partitions by `p`."""
    return TableSchema.create(
        fields_of(columns),
        primary_keys=["p", "k"],
        partition_keys=["p"],
        options=OPTIONS | options,
    )


def described(schema: TableSchema) -> str:
    """Columns as `id:name TYPE`, members of rows with their ids too."""

    def kind(json: Any) -> str:
        if isinstance(json, str):
            return json
        if "fields" in json:
            return "ROW<" + ", ".join(field(f) for f in json["fields"]) + ">"
        parts = [kind(json[name]) for name in ("element", "key", "value") if name in json]
        return f"{json['type']}<{', '.join(parts)}>"

    def field(json: dict[str, Any]) -> str:
        return f"{json['id']}:{json['name']} {kind(json['type'])}"

    return "; ".join(field(f.to_json()) for f in schema.fields)


# -- what is done --------------------------------------------------------------------------------

P_K_V = "0:p STRING NOT NULL; 1:k INT NOT NULL; 2:v INT"
R = "3:r ROW<7:a INT, 6:b ARRAY<ROW<4:x INT, 5:y STRING>>>"


def test_ids_of_a_new_table_are_as_expected_below() -> None:
    start = described(schema_of())
    assert start == (
        "0:p STRING NOT NULL; 1:k INT NOT NULL; 2:v INT; "
        "3:r ROW<4:a INT, 7:b ARRAY<ROW<5:x INT, 6:y STRING>>>; 8:m MAP<STRING, ROW<9:z INT>>"
    )


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (AddColumn(("c",), T("STRING")), "z INT>>", "z INT>>; 10:c STRING"),
        (
            AddColumn(("c",), T("ROW<q INT, w STRING>"), position=First()),
            "0:p",
            "10:c ROW<11:q INT, 12:w STRING>; 0:p",
        ),
        (AddColumn(("c",), T("DATE"), position=After("v")), "2:v INT;", "2:v INT; 10:c DATE;"),
        (AddColumn(("r", "c"), T("INT"), position=After("a")), "a INT, 7", "a INT, 10:c INT, 7"),
        (AddColumn(("r", "b", "element", "c"), T("INT")), "y STRING>", "y STRING, 10:c INT>"),
        (AddColumn(("m", "value", "c"), T("INT")), "z INT>", "z INT, 10:c INT>"),
        (DropColumn(("v",)), "2:v INT; ", ""),
        (DropColumn(("r", "b", "element", "x")), "5:x INT, ", ""),
        (RenameColumn(("v",), "w"), "2:v", "2:w"),
        (RenameColumn(("k",), "id"), "1:k", "1:id"),
        (RenameColumn(("r", "b", "element", "y"), "w"), "6:y", "6:w"),
        (ChangeColumnType(("v",), T("BIGINT NOT NULL")), "v INT", "v BIGINT"),
        (ChangeColumnType(("r", "a"), T("DECIMAL(12, 2)")), "a INT", "a DECIMAL(12, 2)"),
        (ChangeColumnType(("m", "value", "z"), T("DOUBLE")), "z INT", "z DOUBLE"),
        (
            ChangeColumnType(("r", "b"), T("ARRAY<ROW<x BIGINT, y STRING>>")),
            "5:x INT",
            "5:x BIGINT",
        ),
        (
            ChangeColumnType(("m",), T("MAP<STRING, ROW<z BIGINT>>")),
            "9:z INT",
            "9:z BIGINT",
        ),
        (MoveColumn(("v",), First()), P_K_V, "2:v INT; 0:p STRING NOT NULL; 1:k INT NOT NULL"),
        (MoveColumn(("p",), After("v")), P_K_V, "1:k INT NOT NULL; 2:v INT; 0:p STRING NOT NULL"),
        (MoveColumn(("r", "b", "element", "x"), After("y")), "5:x INT, 6:y STRING",
         "6:y STRING, 5:x INT"),
    ],
)  # fmt: skip
def test_column_change_gives_the_next_schema_and_touches_nothing_else(
    change: SchemaChange, before: str, after: str
) -> None:
    schema = schema_of()
    evolved = evolve(schema, [change])
    assert described(evolved) == described(schema).replace(before, after)
    assert evolved.id == 1
    assert evolved.highest_field_id == max(9, *(int(i) for i in _ids(described(evolved))))
    assert TableSchema.from_json(evolved.to_json()) == evolved


def _ids(text: str) -> list[str]:
    return [part.split("<")[-1].split()[-1] for part in text.split(":")[:-1]]


def test_changes_are_made_one_after_the_other() -> None:
    changes = [
        AddColumn(("c",), T("INT")),
        RenameColumn(("c",), "d"),
        ChangeColumnType(("d",), T("BIGINT")),
        ChangeComment("the newest", ("d",)),
        ChangeComment("all of it"),
        SetOption("sequence.field", "d"),
    ]
    evolved = evolve(schema_of({"p": "STRING", "k": "INT"}), changes)
    assert described(evolved).endswith("2:d BIGINT")
    assert evolved.field("d").description == "the newest"
    assert (evolved.comment, evolved.options["sequence.field"]) == ("all of it", "d")


def test_dropped_id_is_never_given_again() -> None:
    drop, add = DropColumn(("v",)), AddColumn(("v",), T("INT"))
    again = evolve(evolve(schema_of(), [drop]), [add])
    assert described(again).endswith("; 10:v INT")
    assert evolve(again, [drop]).highest_field_id == 10


def test_not_null_column_becomes_nullable() -> None:
    schema = schema_of({"p": "STRING", "k": "INT", "v": "INT NOT NULL"})
    evolved = evolve(schema, [ChangeColumnNullability(("v",), nullable=True)])
    assert described(evolved) == P_K_V


def test_renamed_column_is_renamed_in_every_option_that_names_it() -> None:
    options = {
        "merge-engine": "partial-update",
        "bucket-key": "k",
        "fields.g,h.sequence-group": "v,w",
        "fields.v.aggregate-function": "sum",
        "partial-update.remove-record-on-sequence-group": "g",
    }
    columns = {"p": "STRING", "k": "INT", "v": "INT", "w": "INT", "g": "INT", "h": "INT"}
    schema = schema_of(columns, **options)
    renames = [RenameColumn((name,), name.upper()) for name in ("k", "v", "g")]
    evolved = evolve(schema, renames)
    assert evolved.primary_keys == ("p", "K")
    assert {k: v for k, v in evolved.options.items() if k not in OPTIONS} == {
        "merge-engine": "partial-update",
        "bucket-key": "K",
        "fields.G,h.sequence-group": "V,w",
        "fields.V.aggregate-function": "sum",
        "partial-update.remove-record-on-sequence-group": "G",
    }


def test_watermark_key_given_later_orders_versions_for_every_engine() -> None:
    columns = {"p": "STRING", "k": "INT", "v": "INT", "t": "BOOLEAN"}
    changes = [SetOption("watermark.key", "v"), SetOption("tombstone.key", "t")]
    evolved = evolve(schema_of(columns), changes, has_rows=False)
    assert evolved.options["sequence.field"] == "v"
    renamed = evolve(evolved, [RenameColumn(("v",), "w")])
    assert (renamed.options["watermark.key"], renamed.options["sequence.field"]) == ("w", "w")


WIDENINGS = """
    TINYINT -> SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL(3,0) DECIMAL(5,2)
    SMALLINT -> INT BIGINT FLOAT DOUBLE DECIMAL(5,0)
    INT -> BIGINT DOUBLE DECIMAL(10,0)
    BIGINT -> DECIMAL(19,0) DECIMAL(38,19)
    FLOAT -> DOUBLE
    DECIMAL(4,2) -> DECIMAL(5,2) DECIMAL(5,3) DECIMAL(4,2)
    CHAR(3) -> CHAR(4) VARCHAR(3) STRING
    VARCHAR(3) -> VARCHAR(4) STRING
    BINARY(3) -> VARBINARY(3) BYTES
    VARBINARY(3) -> VARBINARY(4) BYTES
    TIMESTAMP(0) -> TIMESTAMP(3) TIMESTAMP(6)
    TIMESTAMP(7) -> TIMESTAMP(9)
    TIMESTAMP_LTZ(3) -> TIMESTAMP_LTZ(6)
    TIME(0) -> TIME(3)
"""
NARROWINGS = """
    TINYINT -> DECIMAL(2,0) STRING BOOLEAN
    SMALLINT -> TINYINT DECIMAL(5,1)
    INT -> SMALLINT FLOAT DECIMAL(9,0) STRING DATE TIMESTAMP(3)
    BIGINT -> INT DOUBLE FLOAT DECIMAL(18,0)
    FLOAT -> INT DECIMAL(38,10)
    DOUBLE -> FLOAT BIGINT
    DECIMAL(4,2) -> DECIMAL(3,2) DECIMAL(4,3) DECIMAL(5,1) DOUBLE INT
    CHAR(3) -> CHAR(2) VARCHAR(2)
    VARCHAR(3) -> VARCHAR(2) CHAR(3) INT
    STRING -> VARCHAR(9) BYTES
    BINARY(3) -> BINARY(4) BINARY(2) STRING
    TIMESTAMP(3) -> TIMESTAMP(0) TIMESTAMP(9) TIMESTAMP_LTZ(3) DATE
    TIME(3) -> TIME(0)
    DATE -> TIMESTAMP(3) STRING
    BOOLEAN -> INT STRING
    ARRAY<INT> -> ARRAY<STRING> INT MAP<INT,INT>
    MAP<INT,INT> -> MAP<BIGINT,INT>
    ROW<a:INT> -> ROW<b:INT> ROW<a:INT,b:INT>
"""


def pairs_of(text: str) -> list[tuple[str, str]]:
    lines = (line.split(" -> ") for line in text.strip().splitlines())
    return [(old.strip(), new) for old, news in lines for new in news.split()]


@pytest.mark.parametrize(("old", "new"), pairs_of(WIDENINGS))
def test_type_may_become_one_that_holds_all_its_values(old: str, new: str) -> None:
    schema = schema_of({"p": "STRING", "k": "INT", "v": old, "a": f"ARRAY<{old} NOT NULL>"})
    changes = [
        ChangeColumnType(("v",), T(new)),
        ChangeColumnType(("a", "element"), T(new)),
    ]
    evolved = evolve(schema, changes)
    assert evolved.field("v").type == T(new)
    assert evolved.field("a").type == T(f"ARRAY<{new} NOT NULL>")


@pytest.mark.parametrize(("old", "new"), pairs_of(NARROWINGS))
def test_type_that_would_lose_values_is_refused_saying_what_may_be_done(old: str, new: str) -> None:
    schema = schema_of({"p": "STRING", "k": "INT", "v": old})
    with pytest.raises(kt.InvalidError, match=r"'v[.'].*(add a column|by their paths)"):
        evolve(schema, [ChangeColumnType(("v",), T(new))])


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (AddColumn(("c",), T("INT NOT NULL")), "'c' .*no value for it; add it as nullable"),
        (DropColumn(("p",)), "partition column 'p' cannot be dropped"),
        (DropColumn(("k",)), "primary key column 'k' cannot be dropped"),
        (RenameColumn(("p",), "q"), "partition column 'p' cannot be renamed"),
        (RenameColumn(("v",), " "), "'v' cannot be renamed to ' '"),
        (RenameColumn(("v",), "_KEY_v"), "begins with '_KEY_'"),
        (RenameColumn(("v",), "rowkind"), "reserved for system columns"),
        (ChangeColumnType(("p",), T("STRING")), "partition column 'p' cannot be retyped"),
        (ChangeColumnType(("k",), T("BIGINT")), "primary key column 'k' cannot be retyped"),
        (ChangeColumnNullability(("k",), nullable=True), "primary key column 'k'"),
        (ChangeColumnNullability(("v",), nullable=False), "'v' .*existing rows can contain NULL"),
        (DropColumn(("m", "value", "z")), "Cannot drop all fields: 'm.value.z' is the only one"),
        (AddColumn(("_row_kind",), T("STRING")), "reserved for row kinds"),
        (SetOption("merge-engine", "aggregation"), "cannot change 'merge-engine' from"),
        (SetOption("bucket-key", "k"), "cannot change 'bucket-key'"),
        (SetOption("primary-key", "k"), "cannot change 'primary-key'"),
        (SetOption("partition.legacy-name", "false"), "cannot change 'partition.legacy-name'"),
        (SetOption("bucket", "-1"), "Cannot change bucket to -1"),
        (SetOption("bucket", "many"), "option 'bucket' has the value 'many'"),
        (RemoveOption("bucket"), "Cannot reset bucket"),
        (SetOption("sequence.field", "zz"), "names the column 'zz', which does not exist"),
        (SetOption("deletion-vectors.enabled", "true"), "cannot change 'deletion-vectors.enabled'"),
        (DropColumn(()), "no path"),
    ],
)
def test_what_may_not_be_changed_is_refused(change: SchemaChange, message: str) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        evolve(schema_of(), [change])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ChangeColumnType(("v",), "BIGINT"), "type is 'BIGINT' .*expected DataType"),  # type: ignore[arg-type]
        (lambda: RenameColumn(("v",), 5), "new_name is 5 of type int; expected a string"),  # type: ignore[arg-type]
        (lambda: MoveColumn(("v",), None), "position is None .*expected First or After"),  # type: ignore[arg-type]
        (lambda: AddColumn((5,), T("INT")), "a member of path is 5 .*expected a string"),  # type: ignore[arg-type]
        (lambda: DropColumn("v"), r"path is 'v' .*expected a tuple of strings, such as \('v',\)"),  # type: ignore[arg-type]
        (lambda: evolve(schema_of(), ["DROP"]), "a member of changes is 'DROP' .*SetOption or"),  # type: ignore[list-item]
        (lambda: evolve(schema_of(), [None]), "a member of changes is None"),  # type: ignore[list-item]
    ],
)
def test_change_that_is_none_is_refused_where_it_is_made(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (DropColumn(("x",)), "no column 'x'"),
        (RenameColumn(("r", "aa"), "c"), r"no column 'r.aa'; did you mean a\?"),
        (AddColumn(("v", "c"), T("INT")), "INT has no part 'c'"),
        (AddColumn(("m", "z"), T("INT")), r"MAP.* has no part 'z'.*'value'"),
        (ChangeColumnType(("m", "key"), T("STRING")), "no part 'key'"),
        (AddColumn(("c",), T("INT"), position=After("x")), "no column 'x'"),
        (MoveColumn(("v",), After("v")), "no column 'v'"),
        (
            RemoveOption("sequence.field"),
            "'sequence.field' is not set; options that are set: bucket",
        ),
    ],
)
def test_what_is_not_there_cannot_be_changed(change: SchemaChange, message: str) -> None:
    with pytest.raises(kt.NotFoundError, match=message):
        evolve(schema_of(), [change])


@pytest.mark.parametrize(
    "change",
    [AddColumn(("v",), T("INT")), RenameColumn(("k",), "v"), AddColumn(("r", "a"), T("INT"))],
)
def test_taken_name_is_refused(change: SchemaChange) -> None:
    with pytest.raises(kt.AlreadyExistsError, match="already exists"):
        evolve(schema_of(), [change])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sequence.field", "v"), ("record-level.time-field", "v"),
        ("changelog-producer.row-deduplicate-ignore-fields", "w, v"),
        ("fields.v.stats-mode", "none"), ("file-index.bloom-filter.columns", "v"),
    ],
)  # fmt: skip
def test_column_that_an_option_names_cannot_be_dropped(key: str, value: str) -> None:
    columns = {"p": "STRING", "k": "INT", "v": "INT", "w": "INT"}
    schema = evolve(schema_of(columns), [SetOption(key, value)], has_rows=False)
    with pytest.raises(kt.InvalidError, match=f"'v' cannot be dropped, because '{key}'"):
        evolve(schema, [DropColumn(("v",))])
    changes = [RemoveOption(key), DropColumn(("v",))]
    assert "v" not in evolve(schema, changes, has_rows=False).names


def test_renamed_member_that_an_option_names_is_refused() -> None:
    columns = {"p": "STRING", "k": "INT", "n": "ARRAY<ROW<x INT, y INT>>"}
    options = {
        "merge-engine": "aggregation",
        "fields.n.aggregate-function": "nested_update",
        "fields.n.nested-key": "x",
    }
    changes = [SetOption(key, value) for key, value in options.items()]
    schema = evolve(schema_of(columns), changes, has_rows=False)
    with pytest.raises(kt.InvalidError, match="nested-key"):
        evolve(schema, [RenameColumn(("n", "element", "x"), "z")])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([SetOption("ignore-delete", "false")], "cannot change 'ignore-delete' from true to false"),
        ([RemoveOption("ignore-delete")], "cannot change 'ignore-delete' from true to false"),
        ([SetOption("watermark.key", "w")], "cannot change 'watermark.key'"),
        ([RemoveOption("watermark.key")], "cannot change 'watermark.key'"),
        ([SetOption("sequence.field", "w")], "so give only one"),
    ],
)
def test_option_that_cannot_go_back_is_refused(changes: list[SchemaChange], message: str) -> None:
    columns = {"p": "STRING", "k": "INT", "v": "INT", "w": "INT"}
    start = [SetOption("ignore-delete", "true"), SetOption("watermark.key", "v")]
    schema = evolve(schema_of(columns), start, has_rows=False)
    with pytest.raises(kt.InvalidError, match=message):
        evolve(schema, changes)


def test_options_of_a_table_without_rows_are_free() -> None:
    changes = [SetOption("merge-engine", "partial-update"), SetOption("bucket-key", "k")]
    evolved = evolve(schema_of(), changes, has_rows=False)
    assert evolved.options["merge-engine"] == "partial-update"


def test_same_value_of_a_fixed_option_is_no_change() -> None:
    evolve(schema_of(), [SetOption("merge-engine", "deduplicate"), SetOption("bucket", "2")])


# -- tables --------------------------------------------------------------------------------------


def new_table(columns: dict[str, str], store: Store | None = None, **options: str) -> kt.Table:
    return empty_table(columns, ["k"], options=options, store=store)


def rows(scan: kt.Scan) -> list[dict[str, Any]]:
    return sorted(scan.to_pylist(), key=lambda row: str(list(row.values())))


def test_old_rows_are_read_under_the_new_schema_and_old_snapshots_as_they_were() -> None:
    table = new_table({"k": "INT", "v": "INT", "gone": "STRING"}, **{"sequence.field": "v"})
    table.write([{"k": 1, "v": 1, "gone": "a"}, {"k": 2, "v": 9, "gone": "b"}])
    altered = table.alter(
        RenameColumn(("v",), "w"),
        ChangeColumnType(("w",), T("BIGINT")),
        DropColumn(("gone",)),
        AddColumn(("gone",), T("INT"), position=First()),
    )
    assert altered == table.table_schema
    assert altered.id == 1
    assert altered.time_millis > 0
    table.write([{"gone": 5, "k": 1, "w": 2**40}, {"gone": 6, "k": 2, "w": 3}])
    assert rows(table.scan()) == [
        {"gone": 5, "k": 1, "w": 2**40},
        {"gone": None, "k": 2, "w": 9},
    ]
    before = table.scan(snapshot_id=1)
    assert before.schema.names == ["k", "v", "gone"]
    assert rows(before) == [{"k": 1, "v": 1, "gone": "a"}, {"k": 2, "v": 9, "gone": "b"}]
    assert rows(table.scan(where="w = 9")) == [{"gone": None, "k": 2, "w": 9}]
    assert rows(table.scan(where="gone IS NULL")) == [{"gone": None, "k": 2, "w": 9}]
    assert table.get(2) == {"gone": None, "k": 2, "w": 9}


NESTED = {
    "k": "INT",
    "a": "ARRAY<INT>",
    "m": "MAP<STRING, ROW<x INT, y ROW<z INT>>>",
    "r": "ROW<d DECIMAL(4, 2), n ROW<b ARRAY<ROW<c INT>>>>",
}
NESTED_ROWS = [
    {"k": 1, "a": [1, None], "m": [("q", {"x": 1, "y": {"z": 2}}), ("w", None)],
     "r": {"d": None, "n": {"b": [{"c": 3}, None]}}},
    {"k": 2, "a": None, "m": None, "r": None},
    {"k": 3, "a": [], "m": [], "r": {"d": None, "n": None}},
]  # fmt: skip


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_parts_of_nested_columns_evolve_at_every_depth(place: str, warehouse: str) -> None:
    store = open_store(f"memory://{uuid4().hex}" if place == "memory" else warehouse)
    table = new_table(NESTED, store)
    table.write(NESTED_ROWS)
    table.alter(
        ChangeColumnType(("a", "element"), T("DECIMAL(12, 1)")),
        ChangeColumnType(("m",), T("MAP<STRING, ROW<x DOUBLE, y ROW<z BIGINT>>>")),
        RenameColumn(("m", "value", "y", "z"), "zz"),
        AddColumn(("m", "value", "new"), T("STRING"), position=First()),
        ChangeColumnType(("r", "d"), T("DECIMAL(10, 4)")),
        RenameColumn(("r", "n", "b", "element", "c"), "x"),
        AddColumn(("r", "n", "b", "element", "c"), T("ARRAY<INT>")),
    )
    expected = [
        {"k": 1, "a": [1, None], "m": [("q", {"new": None, "x": 1.0, "y": {"zz": 2}}), ("w", None)],
         "r": {"d": None, "n": {"b": [{"x": 3, "c": None}, None]}}},
        {"k": 2, "a": None, "m": None, "r": None},
        {"k": 3, "a": [], "m": [], "r": {"d": None, "n": None}},
    ]  # fmt: skip
    found = table.scan().to_arrow()
    assert found.schema == table.schema
    assert found.sort_by("k").to_pylist() == expected
    table.write([{"k": 4, "a": None, "m": None, "r": None}, NESTED_ROWS[1]])
    assert rows(table.scan(where="k < 4")) == rows_of(expected)
    assert table.scan(snapshot_id=1).to_arrow().sort_by("k").to_pylist() == NESTED_ROWS


def rows_of(expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(expected, key=lambda row: str(list(row.values())))


def test_statistics_of_a_widened_column_prune_and_nothing_wrongly() -> None:
    table = new_table({"k": "INT", "v": "INT", "s": "VARCHAR(3)"})
    table.write([{"k": 1, "v": -5, "s": "abc"}])
    table.alter(
        ChangeColumnType(("v",), T("DECIMAL(12, 2)")), ChangeColumnType(("s",), T("STRING"))
    )
    table.write([{"k": 2, "v": 100, "s": "abcd"}])
    for where, keys in [
        ("v < 0", [1]), ("v = -5.00", [1]), ("v > 99.5", [2]), ("s >= 'abc'", [1, 2]),
        ("s = 'abcd'", [2]), ("v IS NULL", []),
    ]:  # fmt: skip
        assert [row["k"] for row in rows(table.scan(where=where))] == keys
    pruned = table.scan(where="v > 99.5").explain().funnel.stages[-1]
    assert (pruned.stage, pruned.files) == ("statistics", 1)


def test_watermark_given_later_is_null_in_older_rows_which_lose() -> None:
    table = new_table({"k": "INT", "v": "STRING"})
    table.write([{"k": 1, "v": "old"}, {"k": 2, "v": "old"}])
    table.alter(AddColumn(("w",), T("INT")), SetOption("watermark.key", "w"))
    table.write([{"k": 1, "v": "new", "w": 1}])
    table.write([{"k": 1, "v": "late", "w": None}, {"k": 2, "v": "later", "w": None}])
    assert rows(table.scan()) == [
        {"k": 1, "v": "new", "w": 1},
        {"k": 2, "v": "later", "w": None},
    ]


def test_default_of_a_new_column_is_for_later_rows_only() -> None:
    table = new_table({"k": "INT"})
    table.write([{"k": 1}])
    table.alter(AddColumn(("v",), T("INT"), default="7"))
    table.write([{"k": 2, "v": None}])
    assert rows(table.scan()) == [{"k": 1, "v": None}, {"k": 2, "v": 7}]


def test_renamed_key_still_finds_its_bucket() -> None:
    table = new_table({"k": "INT", "v": "INT"}, bucket="4")
    table.write([{"k": n, "v": n} for n in range(20)])
    table.alter(RenameColumn(("k",), "id"))
    table.write([{"id": n, "v": -n} for n in range(10)])
    assert [table.get(n) for n in (3, 15)] == [{"id": 3, "v": -3}, {"id": 15, "v": 15}]
    assert table.scan().count() == 20
    assert table.primary_key == ("id",)


def test_alter_names_the_table_and_changes_nothing_when_it_refuses() -> None:
    table = new_table({"k": "INT", "v": "INT"})
    acts: list[tuple[Callable[[], object], str]] = [
        (
            lambda: table.alter(AddColumn(("c",), T("INT")), DropColumn(("k",))),
            "default.t: primary",
        ),
        (lambda: table.alter(SetOption("buckets", "3")), "unknown option 'buckets'.*'bucket'"),
        (lambda: table.alter(SetOption("bucket", 3)), "value is 3 .*expected a string"),  # type: ignore[arg-type]
        (lambda: table.alter(), "without a change"),
    ]
    for act, message in acts:
        with pytest.raises(kt.InvalidError, match=message):
            act()
    assert table.table_schema.id == 0


def test_change_that_changes_nothing_makes_no_schema() -> None:
    table = new_table({"k": "INT", "v": "INT"})
    assert table.alter(SetOption("bucket", "1"), MoveColumn(("v",), After("k"))).id == 0
    assert table.table_schema.id == 0


def test_new_doubtful_definition_warns() -> None:
    table = new_table({"k": "INT", "v": "DOUBLE"})
    with pytest.warns(UserWarning, match="watermark key 'v' is DOUBLE"):
        table.alter(SetOption("watermark.key", "v"))


# -- races ---------------------------------------------------------------------------------------


def test_of_two_changes_at_once_both_are_made() -> None:
    table = new_table({"k": "INT", "v": "INT"})
    loser = overtaken(table, lambda: table.alter(AddColumn(("a",), T("INT"))))
    made = loser.alter(AddColumn(("b",), T("INT")))
    assert described(made) == "0:k INT NOT NULL; 1:v INT; 2:a INT; 3:b INT"
    assert table.table_schema == made
    assert made.id == 2


def test_change_that_another_one_rules_out_is_a_conflict() -> None:
    table = new_table({"k": "INT", "v": "INT"})
    loser = overtaken(table, lambda: table.alter(RenameColumn(("v",), "w")))
    with pytest.raises(kt.ConflictError, match=r"by another writer first.*no column 'v'"):
        loser.alter(DropColumn(("v",)))
    assert table.table_schema.id == 1


def test_changes_of_many_threads_are_all_made(lake: kt.Lake) -> None:
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"])

    def add_all(name: str) -> None:
        for number in range(5):
            kt.open_table(table.uri).alter(AddColumn((f"{name}{number}",), T("INT")))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_all, "abcd"))
    schema = table.table_schema
    assert sorted(schema.names) == sorted(["k", *(f"{n}{i}" for n in "abcd" for i in range(5))])
    assert [f.id for f in schema.fields] == list(range(21))
    assert schema.id == 20


def test_change_whose_response_is_lost_is_made_once() -> None:
    table = new_table({"k": "INT", "v": "INT"})
    faulty = FaultyStore(table.metadata.store, [Fault("create", action="lost-response")])
    made = kt.Table(faulty, "t").alter(AddColumn(("a",), T("INT")))
    assert table.table_schema == made
    assert made.id == 1


def test_change_that_the_store_refuses_is_not_made() -> None:
    table = new_table({"k": "INT", "v": "INT"})
    faulty = FaultyStore(table.metadata.store, [Fault("create", action="fail")])
    with pytest.raises(kt.DataError):
        kt.Table(faulty, "t").alter(AddColumn(("a",), T("INT")))
    assert table.table_schema.id == 0


def test_write_that_began_before_a_change_lands_after_it() -> None:
    table = new_table({"k": "INT", "v": "INT"})
    changes = (RenameColumn(("v",), "w"), AddColumn(("v",), T("STRING")))
    writer = overtaken(table, lambda: table.alter(*changes))
    writer.write([{"k": 1, "v": 5}])
    assert rows(table.scan()) == [{"k": 1, "w": 5, "v": None}]


# -- any chain of changes, against a model -------------------------------------------------------

WIDER = {"TINYINT": "INT", "INT": "BIGINT", "BIGINT": "DECIMAL(20, 0)"}
Model = dict[int, dict[int, int | None]]
"""Rows by key; values by field id."""


@settings(max_examples=settings.default.max_examples * 3 // 2)
@given(data=st.data())
def test_any_chain_of_changes_and_writes_agrees_with_a_model(data: st.DataObject) -> None:
    table = new_table({"k": "INT", "a": "TINYINT", "b": "INT"})
    model: Model = {}
    seen: list[tuple[int, list[str], list[dict[str, Any]]]] = []
    for step in range(data.draw(st.integers(1, 8))):
        schema = table.table_schema
        change = data.draw(st.sampled_from(possible_changes(schema, step)))
        if change is None:
            keys = data.draw(st.lists(st.integers(0, 4), min_size=1, unique=True))
            for key in keys:
                values = {f.id: data.draw(st.none() | st.integers(-9, 9)) for f in schema.fields}
                model[key] = values | {0: key}
            written = [values_of(model[key], schema) for key in keys]
            snapshot = table.write(written).snapshot_id
            assert snapshot is not None
            seen.append((snapshot, list(schema.names), all_shown(model, schema)))
        else:
            table.alter(change)
        assert rows(table.scan()) == all_shown(model, table.table_schema)
    for snapshot, names, then in seen:
        scan = table.scan(snapshot_id=snapshot)
        assert (scan.schema.names, rows(scan)) == (names, then)


def possible_changes(schema: TableSchema, step: int) -> list[SchemaChange | None]:
    """None stands for a write."""
    places = [First(), *(After(name) for name in schema.names)]
    changes: list[SchemaChange | None] = [None, None]
    changes += [AddColumn((f"c{step}",), T("TINYINT"), position=place) for place in places]
    changes += [AddColumn((name,), T("INT")) for name in ("a", "b") if name not in schema.names]
    for f in schema.fields:
        free = "a" if "a" not in schema.names else f"n{step}"
        changes.append(RenameColumn((f.name,), free))
        changes += [MoveColumn((f.name,), p) for p in places if p != After(f.name)]
        if f.id:
            changes.append(DropColumn((f.name,)))
            wider = WIDER.get(f.type.sql())
            changes += [ChangeColumnType((f.name,), T(wider))] if wider else []
    return changes


def values_of(values: dict[int, int | None], schema: TableSchema) -> dict[str, Any]:
    return {f.name: values.get(f.id) for f in schema.fields}


def all_shown(model: Model, schema: TableSchema) -> list[dict[str, Any]]:
    return rows_of([values_of(values, schema) for values in model.values()])


def test_schema_of_the_table_is_the_newest_one(lake: kt.Lake) -> None:
    table = lake.create_table("t", pa.schema([("k", pa.int64())]), ["k"])
    other = kt.open_table(table.uri)
    table.alter(AddColumn(("v",), T("INT")))
    assert other.schema.names == ["k", "v"]
    other.write([{"k": 1, "v": 2}])
    assert rows(table.scan()) == [{"k": 1, "v": 2}]
