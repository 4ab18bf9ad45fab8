"""Values of every type, down to the smallest and up to the largest, as Arrow arrays.

Times and timestamps are counts of their Arrow unit, so that no digit is lost on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

import keytide as kt

_INSTANTS_MS = [-62_135_596_800_000, -1_000, 0, 1_700_000_000_000, 253_402_300_799_000]
_TEXTS = ["", "a", "é", "日本語", "\U0001f600", "ab"]

KEY_VALUES: dict[str, list[Any]] = {
    "BOOLEAN": [False, True],
    "TINYINT": [-128, -1, 0, 127],
    "SMALLINT": [-32_768, -1, 0, 32_767],
    "INT": [-(2**31), -1, 0, 2**31 - 1],
    "BIGINT": [-(2**63), -1, 0, 2**63 - 1],
    "FLOAT": [float("-inf"), -1.5, 0.0, 1e-45, float("inf"), float("nan")],
    "DOUBLE": [float("-inf"), -1.5, 0.0, 5e-324, float("inf"), float("nan")],
    "DECIMAL(5, 2)": [Decimal("-999.99"), Decimal("0.00"), Decimal("999.99")],
    "DECIMAL(9, 9)": [Decimal("-0.999999999"), Decimal("0.000000001")],
    "DECIMAL(10, 0)": [Decimal(-9_999_999_999), Decimal(0), Decimal(9_999_999_999)],
    "DECIMAL(18, 4)": [Decimal("-99999999999999.9999"), Decimal("0.0001")],
    "DECIMAL(19, 0)": [Decimal(-(10**19) + 1), Decimal(-1), Decimal(0), Decimal(10**19 - 1)],
    "DECIMAL(38, 10)": [Decimal("-" + "9" * 28 + "." + "9" * 10), Decimal(0), Decimal("0.5")],
    "CHAR(3)": ["abc", "日本語"],
    "VARCHAR(7)": _TEXTS,
    "STRING": [*_TEXTS, "x" * 300, "\x00 \t\n\"'\\/%=:"],
    "BINARY(2)": [b"\x00\x00", b"\xff\x7f"],
    "VARBINARY(9)": [b"", b"\x00", b"\xff" * 9],
    "BYTES": [b"", b"\x00", b"\xc3\x28", b"\xff" * 300],
    "DATE": [-719_162, -1, 0, 19_723, 2_932_896],
    "TIME": [0, 1_000, 86_399_000],
    "TIME(3)": [0, 1, 86_399_999],
    "TIMESTAMP(0)": _INSTANTS_MS,
    "TIMESTAMP(3)": [-62_135_596_800_000, -1, 0, 1, 253_402_300_799_999],
    "TIMESTAMP(6)": [-62_135_596_800_000_000, -1, 0, 1, 253_402_300_799_999_999],
    "TIMESTAMP(9)": [-(2**62), -1, 0, 1, 999, 1_700_000_000_123_456_789],
    "TIMESTAMP(0) WITH LOCAL TIME ZONE": _INSTANTS_MS,
    "TIMESTAMP(3) WITH LOCAL TIME ZONE": [-1, 0, 1, 1_700_000_000_123],
    "TIMESTAMP(6) WITH LOCAL TIME ZONE": [-1, 0, 1, 1_700_000_000_123_456],
    "TIMESTAMP(9) WITH LOCAL TIME ZONE": [-1, 0, 1, 1_700_000_000_123_456_789],
}
"""Values of the types that can be keys, no two of a list equal."""

VALUES: dict[str, list[Any]] = {
    **{text: [*values, None] for text, values in KEY_VALUES.items()},
    "FLOAT": [*KEY_VALUES["FLOAT"], -0.0, None],
    "DOUBLE": [*KEY_VALUES["DOUBLE"], -0.0, None],
    "ARRAY<INT>": [[], [1, None, -1], None],
    "ARRAY<INT NOT NULL>": [[], [1, -1], None],
    "ARRAY<DECIMAL(38, 2)>": [[Decimal("-0.01"), None], None],
    "ARRAY<TIMESTAMP(3)>": [[-1, None, 1], None],
    "ARRAY<TIMESTAMP(9)>": [[-1, None, 1_700_000_000_123_456_789], None],
    "ARRAY<ARRAY<STRING>>": [[[], ["a", None], None], [], None],
    "MAP<STRING, INT>": [[], [("a", 1), ("", None)], None],
    "MAP<DATE, DECIMAL(9, 2)>": [[(0, Decimal("-1.00")), (19_723, None)], None],
    "MAP<INT, ARRAY<STRING>>": [[(1, ["a", None]), (2, []), (3, None)], None],
    "MULTISET<STRING>": [[], [("a", 2), ("", 1)], None],
    "ROW<a INT, b STRING>": [{"a": 1, "b": None}, {"a": None, "b": ""}, None],
    "ROW<a INT, b ROW<c DECIMAL(20, 3), d ARRAY<BIGINT>>>": [
        {"a": 1, "b": {"c": Decimal("-1.125"), "d": [1, None]}},
        {"a": None, "b": {"c": None, "d": None}},
        {"a": 2, "b": None},
        None,
    ],
    "ROW<t TIMESTAMP(6), u TIMESTAMP(3) WITH LOCAL TIME ZONE>": [{"t": -1, "u": 1}, None],
    "ARRAY<ROW<x INT, y MAP<STRING, DOUBLE>>>": [
        [{"x": 1, "y": [("a", 0.5), ("b", None)]}, None, {"x": None, "y": None}],
        [],
        None,
    ],
}  # fmt: skip
"""Values of every type that can be stored, with NULL."""


def field(name: str, sql_type: str) -> kt.Field:
    """A column whose id is given when the table is made."""
    return kt.Field(-1, name, kt.parse_sql_type(sql_type))


def arrow_rows(schema: pa.Schema, columns: dict[str, Sequence[Any]]) -> pa.Table:
    """Columns of Python values in the types of a schema; a `_row_kind` column stays text."""
    types = {name: schema.field(name).type for name in schema.names}
    arrays = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
    known = [schema.field(name) if name in types else pa.field(name, array.type, nullable=False)
             for name, array in arrays.items()]  # fmt: skip
    return pa.Table.from_arrays(list(arrays.values()), schema=pa.schema(known))


def typed(table: kt.Table, *lines: str) -> pa.Table:
    """Rows written as lines of a kind and values, such as `-D 1 x NULL`."""
    kinds, *values = zip(*(line.split() for line in lines), strict=True)
    columns = {
        f.name: pa.array([None if text == "NULL" else text for text in texts], pa.string())
        .cast(f.type.to_arrow())
        .to_pylist()
        for f, texts in zip(table.table_schema.fields, values, strict=True)
    }
    return arrow_rows(table.schema, {**columns, "_row_kind": kinds})


def value_lines(table: kt.Table) -> list[str]:
    """The rows of a table as sorted lines of values."""
    lines = (
        " ".join("NULL" if v is None else str(v) for v in row.values())
        for row in table.scan().to_pylist()
    )
    return sorted(lines)
