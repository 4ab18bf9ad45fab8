"""Data files as the strictest readers of the format want them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from interop_values import VALUES, arrow_rows, field

import keytide as kt

PHYSICAL = {
    "BOOLEAN": "BOOLEAN None",
    "TINYINT": "INT32 Int(bitWidth=8, isSigned=true)",
    "SMALLINT": "INT32 Int(bitWidth=16, isSigned=true)",
    "INT": "INT32 None",
    "BIGINT": "INT64 None",
    "FLOAT": "FLOAT None",
    "DOUBLE": "DOUBLE None",
    "DECIMAL(5, 2)": "INT32 Decimal(precision=5, scale=2)",
    "DECIMAL(9, 9)": "INT32 Decimal(precision=9, scale=9)",
    "DECIMAL(10, 0)": "INT64 Decimal(precision=10, scale=0)",
    "DECIMAL(18, 4)": "INT64 Decimal(precision=18, scale=4)",
    "DECIMAL(19, 0)": "FIXED_LEN_BYTE_ARRAY Decimal(precision=19, scale=0)",
    "DECIMAL(38, 10)": "FIXED_LEN_BYTE_ARRAY Decimal(precision=38, scale=10)",
    "CHAR(3)": "BYTE_ARRAY String",
    "VARCHAR(7)": "BYTE_ARRAY String",
    "STRING": "BYTE_ARRAY String",
    "BINARY(2)": "BYTE_ARRAY None",
    "VARBINARY(9)": "BYTE_ARRAY None",
    "BYTES": "BYTE_ARRAY None",
    "DATE": "INT32 Date",
    "TIME": "INT32 Time(isAdjustedToUTC=true, timeUnit=milliseconds)",
    "TIME(3)": "INT32 Time(isAdjustedToUTC=true, timeUnit=milliseconds)",
    **{
        f"TIMESTAMP({digits}){zone}": f"INT64 Timestamp(isAdjustedToUTC={adjusted}, "
        f"timeUnit={unit}, is_from_converted_type=false, force_set_converted_type=false)"
        for digits, unit in ((0, "milliseconds"), (3, "milliseconds"), (6, "microseconds"))
        for zone, adjusted in (("", "false"), (" WITH LOCAL TIME ZONE", "true"))
    },
    "TIMESTAMP(9)": "INT96 None",
    "TIMESTAMP(9) WITH LOCAL TIME ZONE": "INT96 None",
}


def data_files(table: kt.Table) -> list[pq.ParquetFile]:
    return [pq.ParquetFile(path) for path in sorted(Path(table.uri).rglob("data-*.parquet"))]


def leaf_columns(file: pq.ParquetFile) -> dict[str, pq.ColumnSchema]:
    return {leaf.path: leaf for leaf in (file.schema.column(i) for i in range(len(file.schema)))}


@pytest.mark.parametrize("sql_type", PHYSICAL)
def test_interop_type_is_stored_as_old_readers_expect_it(lake: kt.Lake, sql_type: str) -> None:
    table = lake.create_table("db.t", [field("id", "INT NOT NULL"), field("v", sql_type)], ["id"])
    values = VALUES[sql_type]
    table.write(arrow_rows(table.schema, {"id": range(len(values)), "v": values}))
    (file,) = data_files(table)
    leaf = leaf_columns(file)["v"]
    assert f"{leaf.physical_type} {leaf.logical_type}" == PHYSICAL[sql_type]


def test_interop_encodings_and_pages_are_those_of_old_readers(lake: kt.Lake) -> None:
    fields = [field("id", "INT NOT NULL")]
    fields += [field(f"v{i}", sql_type) for i, sql_type in enumerate(VALUES)]
    table = lake.create_table("db.t", fields, ["id"])
    count = 50
    columns = {
        f"v{i}": [values[n % len(values)] for n in range(count)]
        for i, values in enumerate(VALUES.values())
    }
    table.write(arrow_rows(table.schema, {"id": range(count), **columns}))
    (file,) = data_files(table)
    group = file.metadata.row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    encodings = {encoding for chunk in chunks for encoding in chunk.encodings}
    assert encodings <= {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}
    assert {chunk.compression for chunk in chunks} <= {"ZSTD", "LZ4", "UNCOMPRESSED"}


def test_interop_key_columns_come_first_with_the_ids_of_the_format(lake: kt.Lake) -> None:
    fields = [
        field("v", "STRING"), field("b", "INT NOT NULL"), field("p", "INT NOT NULL"),
        field("a", "STRING NOT NULL"), field("r", "ARRAY<ROW<x INT, y STRING>>"),
    ]  # fmt: skip
    table = lake.create_table("db.t", fields, ["a", "b", "p"], ["p"])
    table.write([{"v": "x", "b": 1, "p": 2, "a": "k", "r": [{"x": 1, "y": "z"}]}])
    (file,) = data_files(table)
    ids = {column.name: int(column.metadata[b"PARQUET:field_id"]) for column in file.schema_arrow}
    key = 1_073_741_823
    assert ids == {
        "_KEY_a": key + 3, "_KEY_b": key + 1,
        "_SEQUENCE_NUMBER": 2_147_483_646, "_VALUE_KIND": 2_147_483_645,
        "v": 0, "b": 1, "p": 2, "a": 3, "r": 4,
    }  # fmt: skip
    assert list(ids)[:4] == ["_KEY_a", "_KEY_b", "_SEQUENCE_NUMBER", "_VALUE_KIND"]
    assert "r.list.element.x" in leaf_columns(file)


def test_interop_file_is_sorted_with_one_row_per_key(lake: kt.Lake) -> None:
    table = lake.create_table("db.t", [field("k", "STRING NOT NULL"), field("v", "INT")], ["k"])
    keys = ["b", "\U0001f600", "a", "\uffff", "b", "", "é"]
    table.write(arrow_rows(table.schema, {"k": keys, "v": range(len(keys))}))
    (file,) = data_files(table)
    stored = file.read(columns=["_KEY_k", "k", "v", "_VALUE_KIND"]).to_pydict()
    assert stored["k"] == sorted(set(keys), key=lambda text: text.encode())
    assert stored["_KEY_k"] == stored["k"]
    assert stored["v"][stored["k"].index("b")] == 4
