"""Columns of every type: random values, how they compare, and how a read gives them back.

A value is kept plain, as Python compares it by `repr`: times and timestamps are ticks of their
Arrow type, maps sorted lists of pairs.
"""

from __future__ import annotations

import random
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa

import keytide as kt
from keytide.types import ArrayType, AtomicType, DataType, MapType, MultisetType, RowType

__all__ = ["KEYS", "ORDERS", "PLAIN", "array", "kind_of", "plain", "rank", "value"]

KEYS = [
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "STRING", "VARCHAR(5)", "CHAR(3)", "BYTES",
    "BINARY(3)", "VARBINARY(4)", "DATE", "DECIMAL(10, 2)", "DECIMAL(30, 5)", "TIMESTAMP(3)",
    "TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP(3) WITH LOCAL TIME ZONE", "TIME(3)", "FLOAT",
    "DOUBLE", "TIMESTAMP(0)", "DECIMAL(18, 0)",
]  # fmt: skip
ORDERS = [
    "INT", "BIGINT", "STRING", "DOUBLE", "BOOLEAN", "BYTES", "DATE", "DECIMAL(20, 2)",
    "TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP(3) WITH LOCAL TIME ZONE", "TINYINT", "FLOAT",
]  # fmt: skip
_NESTED = [
    "ARRAY<INT>", "ARRAY<STRING>", "MAP<STRING, INT>", "ROW<a INT, b STRING>", "MULTISET<STRING>",
    "ARRAY<ROW<a INT, b ARRAY<BIGINT>>>", "MAP<INT, ARRAY<STRING>>", "ARRAY<TIMESTAMP(6)>",
    "ROW<t TIMESTAMP(3), r ROW<d DATE>>",
]  # fmt: skip
PLAIN = [*KEYS, *_NESTED]


@cache
def kind_of(text: str) -> DataType:
    """The type of a SQL text."""
    return kt.parse_sql_type(text)


def value(kind: DataType, chance: random.Random, nulls: float = 0.0, few: bool = False) -> Any:
    """A random value; with `few`, of a handful, so that keys meet."""
    if nulls and chance.random() < nulls:
        return None
    if isinstance(kind, ArrayType):
        return [value(kind.element, chance, 0.2) for _ in range(chance.choice([0, 1, 3]))]
    if isinstance(kind, MapType | MultisetType):
        key = kind.key if isinstance(kind, MapType) else kind.element
        keys = {repr(k): k for k in (value(key, chance) for _ in range(chance.choice([0, 1, 2])))}
        counted = isinstance(kind, MultisetType)
        pairs = [
            (k, chance.choice([1, 3]) if counted else value(kind.value, chance, 0.2))
            for k in keys.values()
        ]
        return sorted(pairs, key=repr)
    if isinstance(kind, RowType):
        return tuple(value(f.type, chance, 0.2) for f in kind.fields)
    assert isinstance(kind, AtomicType)
    return _atom(kind, chance, few)


def _atom(kind: AtomicType, chance: random.Random, few: bool) -> Any:
    bits = {"TINYINT": 7, "SMALLINT": 15, "INT": 31, "BIGINT": 63}.get(kind.root)
    if bits:
        ends = [-(2**bits), 2**bits - 1, 0, 1, -1, 2]
        return chance.choice(ends if few else [*ends, chance.randrange(-(2**bits), 2**bits)])
    if kind.root == "BOOLEAN":
        return chance.random() < 0.5
    if kind.root in ("FLOAT", "DOUBLE"):
        return chance.choice([0.0, 1.5, -2.0, float("inf"), float("-inf"), float("nan"), -0.0])
    if kind.root == "DECIMAL":
        largest = 10 ** (kind.precision or 1) - 1
        unscaled = chance.choice([0, 1, -1, largest, -largest, 50, 100])
        digits = tuple(map(int, str(abs(unscaled))))
        return Decimal((int(unscaled < 0), digits, -(kind.scale or 0)))
    if kind.root in ("CHAR", "VARCHAR"):
        longest = 3 if kind.root == "CHAR" else min(kind.length or 1, 60)
        texts = ["", "a", "ab", "b", "A", "ü", "\U0001f600", "é", "%", "\0", "a ", " "]
        text = chance.choice([*texts, "x" * longest])
        return text[:longest]
    if kind.root in ("BINARY", "VARBINARY"):
        if kind.root == "BINARY":
            return chance.choice([b"\0\0\0", b"abc", b"\xff\xff\xff"])
        return chance.choice([b"", b"a", b"\0", b"\xff", b"\x7f\x80"])
    if kind.root == "DATE":
        return chance.choice([0, -1, 19_782, -719_162, 2_932_896])
    if kind.root == "TIME":
        return chance.choice([0, 1, 86_399_999])
    assert kind.root in ("TIMESTAMP", "TIMESTAMP_LTZ")
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.to_arrow().unit]
    step = 10 ** (digits - (kind.precision or 0))
    return chance.choice([0, -1, 1, 1_709_210_096 * 10**digits // step, -86_400]) * step


def array(values: list[Any], kind: DataType) -> pa.Array:
    """Plain values as an Arrow column."""
    return pa.array([_arrow_value(v, kind) for v in values], kind.to_arrow())


def _arrow_value(v: Any, kind: DataType) -> Any:
    if v is None:
        return None
    if isinstance(kind, ArrayType):
        return [_arrow_value(item, kind.element) for item in v]
    if isinstance(kind, MapType):
        return [(_arrow_value(k, kind.key), _arrow_value(x, kind.value)) for k, x in v]
    if isinstance(kind, RowType):
        members = zip(kind.fields, v, strict=True)
        return {f.name: _arrow_value(x, f.type) for f, x in members}
    return v


def plain(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """An Arrow column as plain values."""
    if isinstance(column, pa.ChunkedArray):
        return [v for chunk in column.chunks for v in plain(chunk)]
    kind = column.type
    if pa.types.is_map(kind):
        pairs = list(zip(plain(column.keys), plain(column.items), strict=True))
        return [None if p is None else sorted(p, key=repr) for p in _cut(column, pairs)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _cut(column, plain(column.values))
    if pa.types.is_struct(kind):
        members = [plain(column.field(i)) for i in range(kind.num_fields)]
        rows = list(zip(*members, strict=True))
        valid = column.is_valid().to_pylist()
        return [row if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]
    if pa.types.is_timestamp(kind):
        return list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_time32(kind) or pa.types.is_date32(kind):
        return list(column.cast(pa.int32()).to_pylist())
    return list(column.to_pylist())


def _cut(column: pa.Array, values: list[Any]) -> list[Any]:
    offsets = column.offsets.to_pylist()
    return [
        values[offsets[i] : offsets[i + 1]] if is_valid else None
        for i, is_valid in enumerate(column.is_valid().to_pylist())
    ]


def rank(v: Any, kind: DataType, descending: bool = False) -> tuple[int, Any]:
    """The place of a value in an order: NULL lowest in both directions, NaN highest."""
    if v is None:
        return (0, 0)
    assert isinstance(kind, AtomicType)
    if isinstance(v, float) and v != v:
        return (1, _Last()) if descending else (2, 0)
    if kind.root == "CHAR":
        v = v.rstrip(" ")
    v = v.encode() if isinstance(v, str) else v
    return (1, _Reversed(v) if descending else v)


class _Reversed:
    """A value that compares the other way round."""

    def __init__(self, v: Any) -> None:
        self.value = v

    def __lt__(self, other: Any) -> bool:
        return isinstance(other, _Reversed) and bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and bool(other.value == self.value)

    __hash__ = None  # type: ignore[assignment]


class _Last:
    """NaN in a descending order: below every number."""

    def __lt__(self, other: Any) -> bool:
        return not isinstance(other, _Last)

    def __gt__(self, other: Any) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Last)

    __hash__ = None  # type: ignore[assignment]
