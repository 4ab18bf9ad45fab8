"""CREATE, ALTER, DROP, SHOW and DESCRIBE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.sql.grammar import parse_statements
from keytide.sql.statements import CreateTable

TYPES = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(38, 10)",
    "CHAR(3)", "VARCHAR(9)", "STRING", "BINARY(2)", "VARBINARY(7)", "BYTES", "DATE", "TIME(3)",
    "TIMESTAMP(0)", "TIMESTAMP(9)", "TIMESTAMP(6) WITH LOCAL TIME ZONE", "TIMESTAMP_LTZ(3)",
    "ARRAY<INT>", "MAP<STRING, ARRAY<BIGINT NOT NULL>>", "MULTISET<STRING>",
    "ROW<a INT, `b c` ROW<d DECIMAL(5, 2) NOT NULL>>",
)  # fmt: skip


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    return kt.connect(warehouse)


def one(lake: kt.Lake, text: str) -> Any:
    [row] = lake.sql(text).to_pylist()
    return next(iter(row.values()))


@pytest.mark.parametrize("text", TYPES)
def test_every_type_is_understood(text: str) -> None:
    [statement] = parse_statements(f"CREATE TABLE t (k INT PRIMARY KEY NOT ENFORCED, v {text})")
    assert isinstance(statement, CreateTable)
    assert statement.columns[1].type == kt.parse_sql_type(text)
    assert statement.primary_key == ("k",)


FLINK = """
CREATE TABLE IF NOT EXISTS shop.t (
  dt STRING COMMENT 'the day',
  `the id` BIGINT,
  v DECIMAL(10, 2) DEFAULT 1.50,
  note STRING NOT NULL,
  CONSTRAINT pk PRIMARY KEY (dt, `the id`) NOT ENFORCED
) COMMENT 'it''s a table' PARTITIONED BY (dt)
WITH ('bucket' = '3', 'merge-engine' = 'partial-update', 'fields.note.default-value' = '-')
"""
SPARK = """
CREATE TABLE shop.t (dt STRING COMMENT 'the day', `the id` BIGINT, v DECIMAL(10, 2) DEFAULT 1.50,
  note STRING NOT NULL)
USING paimon PARTITIONED BY (dt) COMMENT "it's a table"
TBLPROPERTIES ('primary-key' = 'dt,the id', bucket = 3, 'merge-engine' = 'partial-update',
  fields.note.default-value = '-')
"""


@pytest.mark.parametrize("text", [FLINK, SPARK], ids=["flink", "spark"])
def test_both_spellings_define_the_same_table(lake: kt.Lake, text: str) -> None:
    lake.sql(text)
    table = lake.table("shop.t").table_schema
    assert [(f.name, f.type.sql()) for f in table.fields] == [
        ("dt", "STRING NOT NULL"),
        ("the id", "BIGINT NOT NULL"),
        ("v", "DECIMAL(10, 2)"),
        ("note", "STRING NOT NULL"),
    ]
    assert table.primary_keys == ("dt", "the id")
    assert table.partition_keys == ("dt",)
    assert table.comment == "it's a table"
    assert (table.options["bucket"], table.fields[2].default_value) == ("3", "1.50")
    assert table.fields[0].description == "the day"


NAMES = st.text("ab `'\"$x", min_size=1, max_size=4).filter(str.strip)
SAID = st.none() | st.text("it's \\n\"`;--", min_size=1, max_size=9)
DEFAULTS = {"INT": "7", "DECIMAL(38, 10)": "1.50", "STRING": "it's", "DATE": "2026-01-31"}


@st.composite
def definitions(draw: st.DrawFn) -> dict[str, Any]:
    """What `create_table` takes: any columns, keys, partitions, properties and comments."""
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique_by=lambda name: name.lower()))
    kinds = [draw(st.sampled_from(TYPES)) for _ in names]
    able = [n for n, kind in zip(names, kinds, strict=True) if kind in DEFAULTS]
    keys = [n for n in able if draw(st.booleans())]
    partitions = [n for n in keys if draw(st.booleans())][: max(len(keys) - 1, 0)]
    fields = []
    for name, kind in zip(names, kinds, strict=True):
        type_ = kt.parse_sql_type(kind).with_nullable(draw(st.booleans()))
        has_default = name not in keys and kind in DEFAULTS and draw(st.booleans())
        default = DEFAULTS[kind] if has_default else None
        fields.append(kt.Field(-1, name, type_, draw(SAID), default))
    own = draw(st.dictionaries(st.text("ab.-_'", min_size=1), st.text("a'\\b\"", min_size=1)))
    options = {f"user.{key}": value for key, value in own.items()}
    if keys and draw(st.booleans()):
        options |= {"bucket": "2", "merge-engine": "partial-update"}
    return {
        "schema": fields,
        "primary_key": keys,
        "partition_by": partitions,
        "options": options,
        "comment": draw(SAID),
    }


@pytest.mark.takes_turns
@settings(max_examples=60)
@given(definition=definitions())
def test_show_create_table_makes_the_same_table_again(definition: dict[str, Any]) -> None:
    lake = kt.connect(f"memory://definitions-{uuid4()}")
    made = lake.create_table("t", **definition)
    text = one(lake, "SHOW CREATE TABLE t")
    lake.sql(text.replace("`t`", "`again`", 1))
    again = lake.table("again")
    assert isinstance(again, kt.Table)
    schemas = [replace(t.table_schema, time_millis=0) for t in (made, again)]
    assert schemas[0] == schemas[1]


def test_comments_are_set_seen_and_taken_away(lake: kt.Lake) -> None:
    lake.sql(FLINK)
    lake.sql(
        "ALTER TABLE shop.t ADD COLUMN r ROW<x INT>; COMMENT ON TABLE shop.t IS 'what is sold';"
        "COMMENT ON COLUMN shop.t.V IS 'the ''price'''; USE shop;"
        "COMMENT ON COLUMN t.r.x IS 'inside'; COMMENT ON COLUMN t.dt IS NULL"
    )
    schema = lake.table("t").table_schema
    assert schema.comment == "what is sold"
    assert {f.name: f.description for f in schema.fields if f.description} == {"v": "the 'price'"}
    assert "COMMENT 'inside'" in one(lake, "SHOW CREATE TABLE t")
    told = {(r["name"], r["role"]): r["type"] for r in lake.sql("DESC EXTENDED t").to_pylist()}
    assert told["comment", "table"] == "what is sold"
    assert told["primary key", "table"] == "dt, the id"
    assert told["partitioned by", "table"] == "dt"
    assert told["schema", "table"].startswith(f"{schema.id} of 20")
    with pytest.raises(kt.NotFoundError, match="'nobody'"):
        lake.sql("COMMENT ON COLUMN t.nobody IS 'x'")
    with pytest.raises(kt.InvalidError, match=r"expected table\.column"):
        lake.sql("COMMENT ON COLUMN v IS 'x'")


def test_comments_in_arrow_metadata_are_those_of_columns(lake: kt.Lake) -> None:
    said = [
        pa.field("k", pa.int64(), metadata={"comment": "the key"}),
        pa.field("v", pa.string(), metadata={"description": "a value"}),
    ]
    table = lake.create_table("t", pa.schema(said), ["k"])
    assert [f.description for f in table.table_schema.fields] == ["the key", "a value"]


def test_table_like_another_has_its_columns_keys_and_options(lake: kt.Lake) -> None:
    lake.sql(FLINK)
    lake.sql("CREATE TABLE u LIKE shop.t; CREATE TABLE v LIKE shop.t WITH ('bucket' = '5')")
    assert lake.table("u").table_schema.fields == lake.table("shop.t").table_schema.fields
    assert lake.table("u").options == lake.table("shop.t").options
    assert lake.table("v").options["bucket"] == "5"


def test_table_as_a_query_holds_its_rows(lake: kt.Lake) -> None:
    result = lake.sql(
        "CREATE TABLE t (PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '2') AS "
        "SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS v(id, name)"
    )
    assert result.row_count == 2
    assert lake.sql("SELECT name FROM t WHERE id = 2").to_pylist() == [{"name": "b"}]


def test_alter_table_changes_what_readers_see(lake: kt.Lake) -> None:
    lake.sql(
        """
        CREATE TABLE t (id INT, a INT, r ROW<x INT, y STRING>, PRIMARY KEY (id) NOT ENFORCED);
        INSERT INTO t VALUES (1, 10, ROW(5, 'old'));
        ALTER TABLE t ADD COLUMNS (b STRING COMMENT 'new' AFTER id, c DATE);
        ALTER TABLE t RENAME COLUMN a TO amount;
        ALTER TABLE t ALTER COLUMN amount TYPE BIGINT;
        ALTER TABLE t ADD COLUMN r.z DOUBLE;
        ALTER TABLE t DROP COLUMN c;
        ALTER TABLE t MODIFY b STRING FIRST;
        ALTER TABLE t SET ('snapshot.num-retained.min' = '7')
        """
    )
    lake.sql("INSERT INTO t VALUES ('x', 2, 5000000000, ROW(6, 'new', 1.5))")
    assert lake.sql("SELECT * FROM t ORDER BY id").to_pylist() == [
        {"b": None, "id": 1, "amount": 10, "r": {"x": 5, "y": "old", "z": None}},
        {"b": "x", "id": 2, "amount": 5_000_000_000, "r": {"x": 6, "y": "new", "z": 1.5}},
    ]
    assert lake.table("t").options["snapshot.num-retained.min"] == "7"
    lake.sql("ALTER TABLE t RESET ('snapshot.num-retained.min')")
    assert "snapshot.num-retained.min" not in lake.table("t").options
    assert lake.sql("SELECT * FROM t VERSION AS OF 1").to_pylist() == [
        {"id": 1, "a": 10, "r": {"x": 5, "y": "old"}}
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ALTER TABLE t DROP COLUMN id", "id"),
        ("ALTER TABLE t ALTER COLUMN v TYPE TINYINT", "v"),
        ("ALTER TABLE t SET ('merge-engine' = 'aggregation')", "merge-engine"),
        ("ALTER TABLE t ADD COLUMN v INT", "v"),
        ("ALTER TABLE t DROP COLUMN nobody", "nobody"),
        ("ALTER TABLE t RENAME TO sys.u", "choose another database"),
        ("ALTER TABLE t SET ('no-such-option' = '1')", "no-such-option"),
        ("CREATE TABLE u (id INTT)", "line 1, column 20"),
        ("CREATE TABLE u (id INT, PRIMARY KEY id)", "expected (, found 'id'"),
        ("CREATE TABLE u (id INT PRIMARY KEY) USING delta", "delta"),
        ("CREATE TABLE t (id INT PRIMARY KEY)", "exists"),
        ("DROP TABLE nobody", "nobody"),
        ("SHOW EVERYTHING", "expected TABLES"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    lake: kt.Lake, text: str, message: str
) -> None:
    lake.sql("CREATE TABLE t (id INT, v INT, PRIMARY KEY (id) NOT ENFORCED)")
    lake.sql("INSERT INTO t VALUES (1, 2)")
    before = lake.table("t").table_schema
    with pytest.raises(kt.KeytideError) as caught:
        lake.sql(text)
    assert message in str(caught.value)
    assert lake.table("t").table_schema == before
    assert lake.tables() == ["default.t"]


def test_show_and_describe_list_what_there_is(lake: kt.Lake) -> None:
    lake.sql(FLINK + "; CREATE TABLE other (k INT PRIMARY KEY NOT ENFORCED)")
    assert lake.sql("SHOW DATABASES").to_pylist() == [{"database": "default"}, {"database": "shop"}]
    assert lake.sql("SHOW TABLES IN shop").to_pylist() == [{"database": "shop", "table": "t"}]
    assert lake.sql("SHOW TABLES LIKE 'o%'").row_count == 1
    assert [r["name"] for r in lake.sql("DESCRIBE shop.t").to_pylist()] == [
        "dt", "the id", "v", "note",
    ]  # fmt: skip
    extended = lake.sql("DESCRIBE EXTENDED shop.t").to_pylist()
    assert {"name": "bucket", "type": "3", "role": "option", "comment": None} in extended
    properties = lake.sql("SHOW TBLPROPERTIES shop.t").to_pylist()
    assert {"key": "bucket", "value": "3"} in properties


def test_drop_and_truncate(lake: kt.Lake) -> None:
    lake.sql("CREATE TABLE t (id INT PRIMARY KEY NOT ENFORCED); INSERT INTO t VALUES (1)")
    lake.sql("TRUNCATE TABLE t")
    assert one(lake, "SELECT count(*) FROM t") == 0
    lake.sql("DROP TABLE t; DROP TABLE IF EXISTS t")
    assert lake.tables() == []
