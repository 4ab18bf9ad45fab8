"""Rows with a value, a NULL and an edge of every type."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

VALUES = pa.schema(
    [
        ("k", pa.int32()),
        ("big", pa.int64()),
        ("f", pa.float64()),
        ("f32", pa.float32()),
        ("dec", pa.decimal128(38, 4)),
        ("ok", pa.bool_()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("ts", pa.timestamp("us")),
        ("ns", pa.timestamp("ns")),
        ("at", pa.timestamp("ms", "UTC")),
    ]
)
NESTED = pa.schema(
    [
        ("tags", pa.list_(pa.string())),
        ("vector", pa.list_(pa.float32(), 2)),
        ("row", pa.struct([("x", pa.int32()), ("raw", pa.binary())])),
        ("prices", pa.map_(pa.string(), pa.decimal128(10, 2))),
        ("by_day", pa.map_(pa.date32(), pa.list_(pa.float64()))),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "k": 1,
        "big": 2**63 - 1,
        "f": 0.1,
        "f32": 0.5,
        "dec": Decimal("1234567890123456789012345678901234.5600"),
        "ok": True,
        "text": 'say "hi"\\\n\x1b[31m, ünï €',
        "raw": b"\x00\xff",
        "day": date(2026, 1, 31),
        "ts": datetime(2026, 1, 31, 12, 0, 0, 1),
        "ns": 1_769_860_800_000_000_001,
        "at": datetime(2026, 1, 31, 12, tzinfo=timezone.utc),
        "tags": ["a", None, 'b"'],
        "vector": [0.5, None],
        "row": {"x": 7, "raw": b"\x01"},
        "prices": [("eur", Decimal("1.50")), ('q"', None)],
        "by_day": [(date(2026, 1, 31), [1.5, None, float("nan")])],
    },
    {name: 2 if name == "k" else None for name in (*VALUES.names, *NESTED.names)},
    {
        "k": 3,
        "f": float("nan"),
        "f32": float("-inf"),
        "dec": Decimal("0.0000"),
        "ok": False,
        "text": "",
        "raw": b"",
        "tags": [],
        "vector": [1.0, 2.0],
        "row": {"x": None, "raw": None},
        "prices": [],
        "by_day": [],
    },
]


def values_table(*schemas: pa.Schema) -> pa.Table:
    """The rows with every type of the schemas."""
    fields = [field for schema in schemas for field in schema]
    return pa.Table.from_pylist(ROWS, schema=pa.schema(fields))
