"""Values of every storable type, extremes included, as Arrow columns.

Times and timestamps are given as ticks of their Arrow type.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

import keytide as kt
from keytide.types import DataType

_DAY_MS = 86_400_000
_MIN_MS, _MAX_MS = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999


def _decimals(precision: int, scale: int) -> list[Decimal]:
    largest = Decimal((0, (9,) * precision, -scale))
    one = Decimal((0, (1,), -scale))
    return [largest, largest.copy_negate(), Decimal((0, (0,), -scale)), one, one.copy_negate()]


def _ticks(digits: int, precision: int) -> list[int]:
    """Instants of a precision, as ticks of which a second has 10**digits."""
    step = 10 ** (digits - precision)
    seconds = [-62_135_596_800, 253_402_300_799] if digits < 9 else [-9_223_286_400, 9_223_372_036]
    fraction = 10**precision - 1
    ends = [s * 10**digits for s in seconds]
    return [*ends, 0, -step, step, 1_709_210_096 * 10**digits + fraction * step]


_TEXTS = ["", " ", "a", "\0", "%", "ü", "\uffff", "\U0010ffff", "z" * 40, "\U0010ffff" * 20]
_BYTES = [b"", b"\0", b"\xff", b"\x00\xff" * 20, b"\xff" * 40, b"abc"]

SCALARS: dict[str, list[Any]] = {
    "BOOLEAN": [True, False],
    "TINYINT": [-128, 127, 0],
    "SMALLINT": [-(2**15), 2**15 - 1, 0],
    "INT": [-(2**31), 2**31 - 1, 0],
    "BIGINT": [-(2**63), 2**63 - 1, 0],
    "FLOAT": [float("nan"), float("inf"), float("-inf"), 1e-45, 3.4028234663852886e38, 0.0],
    "DOUBLE": [float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308, 0.1],
    **{
        f"DECIMAL({p}, {s})": _decimals(p, s)
        for p, s in [(1, 0), (9, 2), (10, 10), (18, 4), (19, 0), (28, 28), (38, 0), (38, 38)]
    },
    "CHAR(3)": ["abc", "a", "äöü", ""],
    "VARCHAR(5)": ["abcde", "", "ü", "  "],
    "STRING": _TEXTS,
    "BINARY(3)": [b"\0\0\0", b"\xff\xff\xff", b"abc"],
    "VARBINARY(3)": [b"", b"\xff", b"abc"],
    "BYTES": _BYTES,
    "DATE": [date.min, date.max, date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29)],
    "TIME(0)": [0, _DAY_MS - 1000],
    "TIME(3)": [0, 1, _DAY_MS - 1],
    **{
        f"TIMESTAMP({p}){zone}": _ticks(digits, p)
        for zone in ("", " WITH LOCAL TIME ZONE")
        for p, digits in [(0, 3), (3, 3), (4, 6), (6, 6), (7, 9), (9, 9)]
    },
}
"""Values of the scalar types; each type's values differ from one another as keys."""

_NS = 1_709_210_096_123_456_789

NESTED: dict[str, list[Any]] = {
    "ARRAY<INT>": [[], [1, None, -1], [None], [2**31 - 1]],
    "ARRAY<INT NOT NULL>": [[], [1, 2]],
    "ARRAY<STRING>": [["", None, "x" * 300], []],
    "ARRAY<DATE>": [[date(2024, 2, 29), None]],
    "ARRAY<TIME(3)>": [[1, None, _DAY_MS - 1]],
    "ARRAY<TIMESTAMP(3)>": [[_MIN_MS, None, _MAX_MS]],
    "ARRAY<TIMESTAMP(9)>": [[_NS, None, -1], []],
    "ARRAY<DECIMAL(38, 10)>": [[Decimal("1.0000000001"), None]],
    "ARRAY<ARRAY<TIMESTAMP(9)>>": [[[_NS], None, []], []],
    "MAP<STRING, INT>": [[("a", 1), ("b", None)], []],
    "MAP<TIMESTAMP(9), TIMESTAMP(9)>": [[(_NS, None), (1, _NS)], []],
    "MAP<INT, TIMESTAMP(6)>": [[(1, -1), (2, None)]],
    "MAP<DECIMAL(20, 2), BOOLEAN>": [[(Decimal("-1.25"), True)]],
    "MAP<STRING, ARRAY<ROW<a INT, b MAP<INT, STRING>>>>": [
        [("k", [{"a": 1, "b": [(1, "x"), (2, None)]}, None]), ("l", None)],
        [],
    ],
    "MULTISET<STRING>": [[("z", 3), ("", 1)], []],
    "MULTISET<BYTES>": [[(b"\0", 2)]],
    "ARRAY<MULTISET<INT>>": [[[(1, 1)], None, []]],
    "ROW<a INT, b STRING>": [{"a": 1, "b": None}, {"a": None, "b": ""}],
    "ROW<a INT NOT NULL, b STRING NOT NULL>": [{"a": 1, "b": "x"}],
    "ROW<t TIMESTAMP(9), r ROW<u TIMESTAMP(9) WITH LOCAL TIME ZONE, d DATE>>": [
        {"t": _NS, "r": {"u": -1, "d": None}},
        {"t": None, "r": None},
    ],
    "ROW<l ARRAY<TIMESTAMP(9)>, m MAP<STRING, TIMESTAMP(9)>, s MULTISET<DATE>>": [
        {"l": [_NS, None], "m": [("k", _NS)], "s": [(date(2024, 1, 1), 2)]},
        {"l": None, "m": None, "s": None},
    ],
    "ARRAY<ROW<x TIMESTAMP(9), y ARRAY<ROW<z TINYINT>>>>": [
        [{"x": _NS, "y": [{"z": 1}, None]}, None, {"x": None, "y": None}],
    ],
}

ALL = {**SCALARS, **NESTED}


def kind_of(text: str) -> DataType:
    return kt.parse_sql_type(text)


def column_of(values: list[Any], kind: DataType) -> pa.Array:
    return pa.array(values, type=kind.to_arrow())


def cycled(values: list[Any], count: int) -> list[Any]:
    """Values over and over, every one beside NULL."""
    longer = [*values, None]
    return [longer[i % len(longer)] for i in range(count)]
