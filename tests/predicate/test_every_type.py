"""Every type survives storage exactly, as value, key and partition, in the format's own layout."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import keytide as kt
from json_values import rows_as_text
from keytide.store import open_store
from keytide.store.faults import FaultyStore
from keytide.types import Field
from type_values import ALL, NESTED, SCALARS, column_of, cycled, kind_of

ROW_COUNT = 24
COLUMNS = {f"c{i}": text for i, text in enumerate(ALL)}
# A floating-point key, a NaN included, is one value to SQL whatever its bits are.
KEY_TYPES = list(SCALARS)


def field_of(name: str, text: str) -> Field:
    return Field(-1, name, kind_of(text))


def all_types_table(lake: kt.Lake, **options: str) -> kt.Table:
    fields = [field_of("k", "INT"), *(field_of(n, text) for n, text in COLUMNS.items())]
    return lake.create_table("all_types", fields, ["k"], options=options)


def all_types_rows(keys: range) -> pa.Table:
    columns = {"k": pa.array(keys, pa.int32())}
    for name, text in COLUMNS.items():
        values = cycled(ALL[text], ROW_COUNT)
        columns[name] = column_of([values[k % ROW_COUNT] for k in keys], kind_of(text))
    return pa.table(columns)


def in_key_order(rows: pa.Table) -> list[str]:
    return rows_as_text(rows)


# -- values ----------------------------------------------------------------------------------------


def test_every_type_comes_back_exactly_from_one_file(lake: kt.Lake) -> None:
    table = all_types_table(lake)
    rows = all_types_rows(range(ROW_COUNT))
    table.write(rows)
    found = table.scan().to_arrow()
    assert found.schema == table.schema
    assert rows_as_text(found) == rows_as_text(rows)


@pytest.mark.takes_turns
@pytest.mark.parametrize("memory", ["1 kb", "1 gb"])
@pytest.mark.parametrize("buckets", ["1", "3"])
def test_every_type_comes_back_exactly_from_a_merge(
    lake: kt.Lake, memory: str, buckets: str
) -> None:
    table = all_types_table(lake, **{"read.memory": memory, "bucket": buckets})
    for start in (0, 8, 4):
        table.write(all_types_rows(range(start, start + 16)))
    batches = pa.Table.from_batches(table.scan().to_batches(), schema=table.schema)
    expected = rows_as_text(all_types_rows(range(ROW_COUNT)))
    assert rows_as_text(batches) == expected
    assert rows_as_text(table.scan().to_arrow()) == expected


def test_every_type_comes_back_exactly_from_a_store_without_local_files(warehouse: str) -> None:
    lake = kt.connect(warehouse, store=FaultyStore(open_store(warehouse)))
    table = all_types_table(lake)
    for start in (0, 8):
        table.write(all_types_rows(range(start, start + 16)))
    assert rows_as_text(table.scan().to_arrow()) == rows_as_text(all_types_rows(range(ROW_COUNT)))


def test_columns_of_every_type_are_compared(lake: kt.Lake) -> None:
    table = all_types_table(lake)
    rows = all_types_rows(range(ROW_COUNT))
    table.write(rows)
    table.write(rows)
    assert table.changes(1).count() == 0
    table.write(rows.set_column(0, "k", pa.array([*range(1, ROW_COUNT), 0], pa.int32())))
    changes = table.changes(2).to_arrow()
    for kind, version in (("-U", 2), ("+U", 3)):
        told = changes.filter(pc.equal(changes["_row_kind"], kind)).drop_columns("_row_kind")
        assert rows_as_text(told) == rows_as_text(table.scan(snapshot_id=version).to_arrow())


def test_columns_of_nothing_but_nulls_come_back(lake: kt.Lake) -> None:
    table = all_types_table(lake)
    nulls = {name: pa.nulls(2, kind_of(text).to_arrow()) for name, text in COLUMNS.items()}
    table.write(pa.table({"k": [1, 2], **nulls}))
    table.write([{"k": key, **dict.fromkeys(COLUMNS)} for key in (2, 3)])
    found = table.scan().to_arrow()
    assert {found.column(name).null_count for name in COLUMNS} == {3}
    assert found.schema == table.schema


def test_column_read_alone_is_the_column_read_with_others(lake: kt.Lake) -> None:
    table = all_types_table(lake)
    rows = all_types_rows(range(12))
    table.write(rows)
    together = table.scan().to_arrow()
    for name in COLUMNS:
        alone = table.scan(columns=[name]).to_arrow()
        assert rows_as_text(alone) == rows_as_text(together.select([name])), name
        assert rows_as_text(alone) == rows_as_text(rows.select([name])), name


def test_required_columns_of_every_type_come_back(warehouse: str) -> None:
    required = {n: kind_of(text).with_nullable(False) for n, text in COLUMNS.items()}
    fields = [field_of("k", "INT"), *(Field(-1, n, kind) for n, kind in required.items())]
    table = kt.connect(warehouse).create_table("t", fields, ["k"])
    rows = pa.table(
        {"k": [1], **{n: column_of([ALL[text][0]], kind_of(text)) for n, text in COLUMNS.items()}}
    )
    table.write(rows)
    table.write(rows)
    assert table.scan().to_arrow().schema == table.schema
    assert rows_as_text(table.scan().to_arrow()) == rows_as_text(rows)


def test_delete_needs_only_the_key_whatever_the_other_columns_require(warehouse: str) -> None:
    required = {n: kind_of(text).with_nullable(False) for n, text in COLUMNS.items()}
    fields = [field_of("k", "INT"), *(Field(-1, n, kind) for n, kind in required.items())]
    table = kt.connect(warehouse).create_table("t", fields, ["k"])
    row = {n: column_of([ALL[text][0]], kind_of(text)) for n, text in COLUMNS.items()}
    table.write(pa.table({"k": [1], **row}))
    table.write(pa.table({"k": [1], "_row_kind": ["-D"]}))
    assert table.scan().count() == 0


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.one_in(14)
@pytest.mark.parametrize("text", KEY_TYPES)
def test_every_scalar_type_is_a_key_by_which_rows_are_found(warehouse: str, text: str) -> None:
    fields = [field_of("k", text), field_of("v", "INT")]
    table = kt.connect(warehouse).create_table("t", fields, ["k"], options={"bucket": "3"})
    keys = column_of(SCALARS[text], kind_of(text))
    for version in (1, 2):
        table.write(pa.table({"k": keys, "v": [version] * len(keys)}))
        keys = keys[::-1] if version == 1 else keys
    found = table.scan().to_arrow()
    assert rows_as_text(found) == rows_as_text(pa.table({"k": keys, "v": [2] * len(keys)}))
    table.write(pa.table({"k": keys, "v": range(10, 10 + len(keys))}))
    # Python's own datetime has no nanoseconds; an Arrow scalar has all that a key can have.
    values = keys if text.startswith("TIMESTAMP") else keys.to_pylist()
    assert [table.get(value)["v"] for value in values] == list(range(10, 10 + len(keys)))
    table.write(pa.table({"k": keys[:1], "v": [0], "_row_kind": ["-D"]}))
    assert table.scan().count() == len(keys) - 1


@pytest.mark.one_in(14)
@pytest.mark.parametrize("text", KEY_TYPES)
def test_every_scalar_type_is_part_of_a_composite_key(warehouse: str, text: str) -> None:
    fields = [field_of("a", text), field_of("b", "STRING"), field_of("v", "INT")]
    table = kt.connect(warehouse).create_table("t", fields, ["b", "a"], options={"bucket": "2"})
    values = SCALARS[text]
    pairs = [(a, b) for a in values for b in ("", "x")]
    first = column_of([a for a, _ in pairs], kind_of(text))
    rows = pa.table({"a": first, "b": [b for _, b in pairs], "v": [1] * len(pairs)})
    table.write(rows)
    table.write(rows.take(list(range(len(pairs)))[::-1]))
    assert rows_as_text(table.scan().to_arrow()) == rows_as_text(
        rows.set_column(2, "v", pa.array([1] * len(pairs), pa.int32()))
    )


@pytest.mark.one_in(14)
@pytest.mark.parametrize("text", KEY_TYPES)
def test_changes_are_told_of_keys_of_every_scalar_type(warehouse: str, text: str) -> None:
    fields = [field_of("k", text), field_of("v", "INT")]
    table = kt.connect(warehouse).create_table("t", fields, ["k"], options={"bucket": "2"})
    keys = column_of(SCALARS[text], kind_of(text))
    table.write(pa.table({"k": keys, "v": [1] * len(keys)}))
    table.write(pa.table({"k": keys[1:], "v": [2] * (len(keys) - 1)}))
    changes = table.changes(1).to_arrow()
    for kind, version in (("-U", 1), ("+U", 2)):
        told = changes.filter(pc.equal(changes["_row_kind"], kind)).drop_columns("_row_kind")
        expected = pa.table({"k": keys[1:], "v": [version] * (len(keys) - 1)})
        assert rows_as_text(told) == rows_as_text(expected)


@pytest.mark.parametrize("text", NESTED)
def test_nested_type_is_refused_as_key_and_as_partition(lake: kt.Lake, text: str) -> None:
    fields = [field_of("k", "INT"), field_of("n", text)]
    with pytest.raises(kt.InvalidError, match="primary key names column 'n' of type"):
        lake.create_table("t", fields, ["n"])
    with pytest.raises(kt.InvalidError, match="partition key names column 'n' of type"):
        lake.create_table("t", fields, ["k", "n"], partition_by=["n"])
    assert lake.tables() == []


# -- partitions ------------------------------------------------------------------------------------

ODD_TEXTS = [
    "", " ", "  ", ".", "..", "a/b", "a=b", "%2F", "é:ü", "*?[x]", '"', "'", "\\", "\n", "\0",
    "__DEFAULT_PARTITION__", "a b/c=d%", "\u3000", "~", "\U0001f600", "-", "null",
]  # fmt: skip


def partitioned(lake: kt.Lake, text: str) -> kt.Table:
    fields = [field_of("p", text), field_of("k", "INT"), field_of("v", "INT")]
    return lake.create_table(
        "t", fields, ["p", "k"], ["p"], options={"primary-key.nullable": "true"}
    )


def rows_of_partitions(values: list[Any], text: str, version: int) -> pa.Table:
    kind = kind_of(text)
    doubled = [value for value in [*values, None] for _ in range(2)]
    count = len(doubled)
    return pa.table(
        {
            "p": column_of(doubled, kind),
            "k": pa.array([i % 2 for i in range(count)], pa.int32()),
            "v": pa.array([version] * count, pa.int32()),
        }
    )


@pytest.mark.one_in(14)
@pytest.mark.parametrize("text", [*SCALARS, "odd texts"])
def test_every_scalar_type_is_a_partition(warehouse: str, text: str) -> None:
    values, text = (ODD_TEXTS, "STRING") if text == "odd texts" else (SCALARS[text], text)
    values = [value for value in values if not isinstance(value, str) or len(value) < 30]
    table = partitioned(kt.connect(warehouse), text)
    for version in (1, 2):
        table.write(rows_of_partitions(values, text, version))
    expected = rows_of_partitions(values, text, 2)
    assert rows_as_text(table.scan().to_arrow()) == rows_as_text(expected)
    assert table.scan(columns=["p"]).to_arrow().num_rows == expected.num_rows
    assert table.scan(where="p is null").count() == 2
    assert len(table.scan().plan.buckets) == len(values) + 1
    assert everything_lies_below(warehouse)


def everything_lies_below(warehouse: str) -> bool:
    """No partition value led out of the table."""
    return [path.name for path in Path(warehouse).parent.iterdir()] == ["warehouse"]


# -- the physical layout -----------------------------------------------------------------------


LAYOUT = {
    "BOOLEAN": ("BOOLEAN", "None"),
    "TINYINT": ("INT32", "Int(bitWidth=8, isSigned=true)"),
    "SMALLINT": ("INT32", "Int(bitWidth=16, isSigned=true)"),
    "INT": ("INT32", "None"),
    "BIGINT": ("INT64", "None"),
    "FLOAT": ("FLOAT", "None"),
    "DOUBLE": ("DOUBLE", "None"),
    "DECIMAL(1, 0)": ("INT32", "Decimal(precision=1, scale=0)"),
    "DECIMAL(9, 2)": ("INT32", "Decimal(precision=9, scale=2)"),
    "DECIMAL(10, 10)": ("INT64", "Decimal(precision=10, scale=10)"),
    "DECIMAL(18, 4)": ("INT64", "Decimal(precision=18, scale=4)"),
    "DECIMAL(19, 0)": ("FIXED_LEN_BYTE_ARRAY(9)", "Decimal(precision=19, scale=0)"),
    "DECIMAL(28, 28)": ("FIXED_LEN_BYTE_ARRAY(12)", "Decimal(precision=28, scale=28)"),
    "DECIMAL(38, 0)": ("FIXED_LEN_BYTE_ARRAY(16)", "Decimal(precision=38, scale=0)"),
    "DECIMAL(38, 38)": ("FIXED_LEN_BYTE_ARRAY(16)", "Decimal(precision=38, scale=38)"),
    "CHAR(3)": ("BYTE_ARRAY", "String"),
    "VARCHAR(5)": ("BYTE_ARRAY", "String"),
    "STRING": ("BYTE_ARRAY", "String"),
    "BINARY(3)": ("BYTE_ARRAY", "None"),
    "VARBINARY(3)": ("BYTE_ARRAY", "None"),
    "BYTES": ("BYTE_ARRAY", "None"),
    "DATE": ("INT32", "Date"),
    "TIME(0)": ("INT32", "Time(isAdjustedToUTC=true, timeUnit=milliseconds)"),
    "TIME(3)": ("INT32", "Time(isAdjustedToUTC=true, timeUnit=milliseconds)"),
}
for _precision in (0, 3, 4, 6, 7, 9):
    for _zone, _adjusted in (("", "false"), (" WITH LOCAL TIME ZONE", "true")):
        _unit = "milliseconds" if _precision <= 3 else "microseconds"
        LAYOUT[f"TIMESTAMP({_precision}){_zone}"] = (
            ("INT96", "None")
            if _precision > 6
            else (
                "INT64",
                f"Timestamp(isAdjustedToUTC={_adjusted}, timeUnit={_unit}, "
                "is_from_converted_type=false, force_set_converted_type=false)",
            )
        )


def data_files(warehouse: str) -> list[Path]:
    return sorted(Path(warehouse).rglob("*.parquet"))


def layout_of(file: Path) -> dict[str, tuple[str, str]]:
    schema = pq.read_metadata(file).schema
    columns = [schema.column(i) for i in range(len(schema))]
    return {
        c.path: (
            f"{c.physical_type}({c.length})"
            if c.physical_type == "FIXED_LEN_BYTE_ARRAY"
            else c.physical_type,
            str(c.logical_type),
        )
        for c in columns
    }


@pytest.mark.parametrize("text", SCALARS)
def test_scalar_type_has_the_physical_type_of_the_format(warehouse: str, text: str) -> None:
    kind = kind_of(text)
    fields = [field_of("k", text), Field(-1, "v", kind), Field(-1, "r", kind.with_nullable(False))]
    table = kt.connect(warehouse).create_table("t", fields, ["k"])
    column = column_of(SCALARS[text], kind)
    table.write(pa.table({"k": column, "v": column, "r": column}))
    (file,) = data_files(warehouse)
    found = layout_of(file)
    assert {found[name] for name in ("_KEY_k", "k", "v", "r")} == {LAYOUT[text]}
    assert found["_SEQUENCE_NUMBER"] == ("INT64", "None")
    assert found["_VALUE_KIND"] == ("INT32", "Int(bitWidth=8, isSigned=true)")


def test_nested_types_have_the_groups_of_the_format(warehouse: str) -> None:
    fields = [
        field_of("k", "INT"),
        field_of("l", "ARRAY<TIMESTAMP(9)>"),
        field_of("m", "MAP<STRING, ROW<a INT, t TIMESTAMP(3)>>"),
        field_of("s", "MULTISET<STRING>"),
    ]
    table = kt.connect(warehouse).create_table("t", fields, ["k"])
    table.write([{"k": 1, "l": [datetime(2024, 1, 1)], "m": None, "s": None}])
    (file,) = data_files(warehouse)
    assert [line for line in str(pq.read_metadata(file).schema).splitlines() if line][1:] == [
        "required group field_id=-1 schema {",
        "  required int32 field_id=1073741823 _KEY_k;",
        "  required int64 field_id=2147483646 _SEQUENCE_NUMBER;",
        "  required int32 field_id=2147483645 _VALUE_KIND (Int(bitWidth=8, isSigned=true));",
        "  required int32 field_id=0 k;",
        "  optional group field_id=1 l (List) {",
        "    repeated group field_id=-1 list {",
        "      optional int96 field_id=536871936 element;",
        "    }",
        "  }",
        "  optional group field_id=2 m (Map) {",
        "    repeated group field_id=-1 key_value {",
        "      required binary field_id=536868862 key (String);",
        "      optional group field_id=536872960 value {",
        "        optional int32 field_id=3 a;",
        "        optional int64 field_id=4 t (Timestamp(isAdjustedToUTC=false, "
        "timeUnit=milliseconds, is_from_converted_type=false, "
        "force_set_converted_type=false));",
        "      }",
        "    }",
        "  }",
        "  optional group field_id=5 s (Map) {",
        "    repeated group field_id=-1 key_value {",
        "      required binary field_id=536865790 key (String);",
        "      optional int32 field_id=536876032 value;",
        "    }",
        "  }",
        "}",
    ]


def test_files_use_pages_and_encodings_that_old_readers_know(warehouse: str) -> None:
    table = all_types_table(kt.connect(warehouse))
    table.write(all_types_rows(range(ROW_COUNT)))
    (file,) = data_files(warehouse)
    metadata, data = pq.read_metadata(file), file.read_bytes()
    chunks = [metadata.row_group(0).column(i) for i in range(metadata.row_group(0).num_columns)]
    known = {"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "BIT_PACKED"}
    assert {encoding for chunk in chunks for encoding in chunk.encodings} - known == set()
    # A page header begins with its type: compact Thrift field 1, where 0 is a page of version 1.
    starts = {data[chunk.data_page_offset : chunk.data_page_offset + 2] for chunk in chunks}
    assert starts == {b"\x15\x00"}


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "lz4", "none"])
def test_every_codec_is_used_and_read(warehouse: str, codec: str) -> None:
    table = all_types_table(kt.connect(warehouse), **{"file.compression": codec})
    rows = all_types_rows(range(ROW_COUNT))
    table.write(rows)
    (file,) = data_files(warehouse)
    group = pq.read_metadata(file).row_group(0)
    codecs = {group.column(i).compression for i in range(group.num_columns)}
    assert codecs == {"UNCOMPRESSED" if codec == "none" else codec.upper()}
    assert rows_as_text(table.scan().to_arrow()) == rows_as_text(rows)


def test_required_columns_are_required_and_others_optional(warehouse: str) -> None:
    fields = [
        field_of("k", "INT"),
        Field(-1, "r", kind_of("INT").with_nullable(False)),
        field_of("o", "INT"),
    ]
    table = kt.connect(warehouse).create_table("t", fields, ["k"])
    table.write([{"k": 1, "r": 1, "o": None}])
    (file,) = data_files(warehouse)
    schema = pq.read_metadata(file).schema
    levels = {schema.column(i).path: schema.column(i).max_definition_level for i in range(6)}
    assert levels == {
        "_KEY_k": 0, "_SEQUENCE_NUMBER": 0, "_VALUE_KIND": 0, "k": 0, "r": 0, "o": 1,
    }  # fmt: skip
