"""VARIANT values one by one, as Java encodes and shreds them: a model for kernels.

A value is None, a bool, an int, a float, a Decimal, a str, bytes, a date, a datetime, a list, or a
dict. A shredding schema is an Arrow type of scalars, a list of one schema, a dict of schemas, or
None for values that are not shredded.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Iterable
from decimal import Decimal
from itertools import accumulate
from typing import Any

import pyarrow as pa

__all__ = ["Encoder", "group_of", "rebuilt", "shredded"]

Encoded = tuple[bytes, bytes]
EPOCH = dt.datetime(1970, 1, 1)


def number(value: int, width: int) -> bytes:
    return value.to_bytes(width, "little", signed=value < 0)


def width_of(value: int) -> int:
    return max(1, (value.bit_length() + 7) // 8)


def in_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: name.encode("utf-16-be"))


def ends_of(parts: list[bytes]) -> list[int]:
    return [0, *accumulate(map(len, parts))]


class Encoder:
    """Encodes values that share their keys."""

    def __init__(self) -> None:
        self.keys: dict[str, int] = {}

    def key(self, name: str) -> int:
        return self.keys.setdefault(name, len(self.keys))

    def metadata(self) -> bytes:
        texts = [key.encode() for key in self.keys]
        width = width_of(max(sum(map(len, texts)), len(texts)))
        ends = ends_of(texts)
        numbers = b"".join(number(each, width) for each in [len(texts), *ends])
        return bytes([1 | (width - 1) << 6]) + numbers + b"".join(texts)

    def value(self, value: Any) -> bytes:
        """A value whose fields are in the order of the dict."""
        if isinstance(value, dict):
            fields = []
            for name, inner in value.items():
                self.key(name)
                fields.append((name, self.value(inner)))
            return self.object(fields)
        if isinstance(value, list):
            return self.array([self.value(each) for each in value])
        return scalar(value)

    def object(self, fields: list[tuple[str, bytes]]) -> bytes:
        ids = {name: self.key(name) for name, _ in fields}
        size, data = len(fields), b"".join(content for _, content in fields)
        starts, at = {}, 0
        for name, content in fields:
            starts[name], at = at, at + len(content)
        id_width, width = width_of(max(ids.values(), default=0)), width_of(len(data))
        large = size > 255
        head = 2 | (width - 1) << 2 | (id_width - 1) << 4 | large << 6
        names = in_order(ids)
        return b"".join(
            [bytes([head]), number(size, 4 if large else 1)]
            + [number(ids[name], id_width) for name in names]
            + [number(starts[name], width) for name in names]
            + [number(len(data), width), data]
        )

    def array(self, elements: list[bytes]) -> bytes:
        size, data = len(elements), b"".join(elements)
        width, large = width_of(len(data)), size > 255
        ends = ends_of(elements)
        return b"".join(
            [bytes([3 | (width - 1) << 2 | large << 4]), number(size, 4 if large else 1)]
            + [number(each, width) for each in ends]
            + [data]
        )


def primitive(kind: int, content: bytes = b"") -> bytes:
    return bytes([kind << 2]) + content


def scalar(value: Any) -> bytes:
    match value:
        case None:
            return primitive(0)
        case bool():
            return primitive(1 if value else 2)
        case int():
            size = next(n for n in range(4) if -(1 << (8 << n) - 1) <= value < 1 << (8 << n) - 1)
            return primitive(3 + size, value.to_bytes(1 << size, "little", signed=True))
        case float():
            return primitive(7, struct.pack("<d", float("nan") if value != value else value))
        case Decimal():
            _, digits, exponent = value.as_tuple()
            unscaled, scale = int(value.scaleb(-int(exponent))), -int(exponent)
            size = 0 if max(len(digits), scale) <= 9 else 1 if max(len(digits), scale) <= 18 else 2
            content = unscaled.to_bytes(4 << size, "little", signed=True)
            return primitive(8 + size, bytes([scale]) + content)
        case str():
            text = value.encode()
            if len(text) < 64:
                return bytes([1 | len(text) << 2]) + text
            return primitive(16, number(len(text), 4) + text)
        case bytes():
            return primitive(15, number(len(value), 4) + value)
        case dt.datetime():
            micros = (value.replace(tzinfo=None) - EPOCH) // dt.timedelta(microseconds=1)
            return primitive(12 if value.tzinfo else 13, struct.pack("<q", micros))
        case dt.date():
            return primitive(11, struct.pack("<i", (value - EPOCH.date()).days))
    raise AssertionError(value)


def sorted_deep(value: Any) -> Any:
    """A value in the order in which its binary form has it."""
    if isinstance(value, dict):
        return {name: sorted_deep(value[name]) for name in in_order(value)}
    return [sorted_deep(each) for each in value] if isinstance(value, list) else value


def group_of(schema: Any, *, top: bool = True) -> pa.DataType:
    """The Arrow type of a column that is shredded by a schema."""
    fields = [("metadata", pa.large_binary())] if top else []
    fields.append(("value", pa.large_binary()))
    if isinstance(schema, dict):
        inner = [(name, group_of(each, top=False)) for name, each in schema.items()]
        fields.append(("typed_value", pa.struct(inner)))
    elif isinstance(schema, list):
        fields.append(("typed_value", pa.large_list(group_of(schema[0], top=False))))
    elif schema is not None:
        fields.append(("typed_value", schema))
    return pa.struct(fields)


def fits(value: Any, kind: Any) -> bool:
    """Whether a scalar can be stored in a column of a type without another meaning."""
    if not isinstance(kind, pa.DataType) or value is None or isinstance(value, list | dict):
        return False
    types = {
        bool: pa.types.is_boolean, int: pa.types.is_integer, float: pa.types.is_float64,
        str: pa.types.is_large_string, bytes: pa.types.is_large_binary,
        dt.date: pa.types.is_date32, Decimal: pa.types.is_decimal,
    }  # fmt: skip
    if isinstance(value, dt.datetime):
        return pa.types.is_timestamp(kind) and (kind.tz is None) == (value.tzinfo is None)
    if not types[type(value)](kind):
        return False
    if isinstance(value, Decimal):
        exponent = -int(value.as_tuple().exponent)
        return exponent == kind.scale and len(value.as_tuple().digits) <= kind.precision
    if isinstance(value, int) and not isinstance(value, bool):
        return -(1 << kind.bit_width - 1) <= value < 1 << kind.bit_width - 1
    return True


def shredded(value: Any, schema: Any) -> Any:
    """A row of a column that is shredded by a schema."""
    if value is None:
        return None
    (plain,) = value
    encoder = Encoder()
    encoder.value(plain)
    return {"metadata": encoder.metadata(), **_shredded(plain, schema, encoder)}


def _shredded(value: Any, schema: Any, encoder: Encoder) -> dict[str, Any]:
    if isinstance(schema, list) and isinstance(value, list):
        return {"typed_value": [_shredded(each, schema[0], encoder) for each in value]}
    if isinstance(schema, dict) and isinstance(value, dict):
        typed = {
            name: _shredded(value[name], each, encoder) if name in value else {}
            for name, each in schema.items()
        }
        rest = {name: value[name] for name in in_order(value.keys() - schema.keys())}
        return {"typed_value": typed, "value": encoder.value(rest) if rest else None}
    if fits(value, schema):
        return {"typed_value": value}
    return {"value": encoder.value(value)}


def rebuilt(value: Any, schema: Any) -> Any:
    """What Java reads: its value and metadata."""
    if value is None:
        return None
    encoder = Encoder()
    return {
        "value": encoder.value(_rebuilt(value[0], schema)),
        "metadata": encoder.metadata(),
    }


def _rebuilt(value: Any, schema: Any) -> Any:
    if isinstance(schema, list) and isinstance(value, list):
        return [_rebuilt(each, schema[0]) for each in value]
    if isinstance(schema, dict) and isinstance(value, dict):
        rest = in_order(value.keys() - schema.keys())
        typed = {name: _rebuilt(value[name], schema[name]) for name in schema if name in value}
        return typed | {name: sorted_deep(value[name]) for name in rest}
    return sorted_deep(value)
