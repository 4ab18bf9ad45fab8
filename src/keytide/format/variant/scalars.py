"""Columns of typed values in the binary form of VARIANT."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keytide.format.variant.ragged import Bytes, Numbers, bytes_of, copy_ranges, starts_of

__all__ = ["encoded_scalars"]

_TRUE, _FALSE = 1, 2
_INT8 = 3
_DOUBLE, _FLOAT = 7, 14
_DECIMAL4 = 8
_DATE, _TIMESTAMP, _TIMESTAMP_NTZ = 11, 12, 13
_BYTES, _TEXT = 15, 16
_SHORT_TEXT_MAX = 63


def encoded_scalars(column: pa.Array) -> tuple[Bytes, Numbers, Numbers] | None:
    """The values of a column: their bytes, and start and length of each. NULL is anything.

    None for a type that VARIANT values are not shredded into.
    """
    kind = column.type
    if pa.types.is_boolean(kind):
        return _fixed(np.where(_numbers(column, pa.int8()) != 0, _TRUE, _FALSE) << 2, None)
    if pa.types.is_signed_integer(kind):
        return _integers(_numbers(column, pa.int64()))
    if pa.types.is_float64(kind) or pa.types.is_float32(kind):
        number = _DOUBLE if pa.types.is_float64(kind) else _FLOAT
        values = _numbers(column, kind)
        values = np.where(np.isnan(values), np.array(np.nan, values.dtype), values)
        return _fixed(np.full(len(column), number << 2), values)
    if pa.types.is_date32(kind):
        return _fixed(np.full(len(column), _DATE << 2), _numbers(column, pa.int32()))
    if pa.types.is_timestamp(kind):
        micros = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        number = _TIMESTAMP_NTZ if kind.tz is None else _TIMESTAMP
        return _fixed(np.full(len(column), number << 2), _numbers(micros, pa.int64()))
    if pa.types.is_decimal128(kind):
        return _decimals(column)
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        return _ragged(column, _TEXT, _SHORT_TEXT_MAX)
    if pa.types.is_large_binary(kind) or pa.types.is_binary(kind):
        return _ragged(column, _BYTES, -1)
    return None


def _numbers(column: pa.Array, kind: pa.DataType) -> np.ndarray:
    return np.asarray(pc.fill_null(column.cast(kind), pa.scalar(0, kind)))


def _fixed(heads: Numbers, values: np.ndarray | None) -> tuple[Bytes, Numbers, Numbers]:
    """Values of one width: a header, and the number in it."""
    parts = [heads.astype(np.uint8)[:, None]]
    if values is not None:
        width = values.dtype.itemsize
        parts.append(np.ascontiguousarray(values).view(np.uint8).reshape(len(heads), width))
    table = np.hstack(parts)
    width = table.shape[1]
    return table.reshape(-1), np.arange(len(heads)) * width, np.full(len(heads), width)


def _integers(values: Numbers) -> tuple[Bytes, Numbers, Numbers]:
    """Integers, each in the smallest width that holds it."""
    size = np.zeros(len(values), np.int64)
    for kind in (np.int8, np.int16, np.int32):
        size += values != values.astype(kind)
    data, starts, _ = _fixed((_INT8 + size) << 2, values)
    return data, starts, 1 + (1 << size)


def _decimals(column: pa.Array) -> tuple[Bytes, Numbers, Numbers]:
    scale = column.type.scale
    words = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)
    words = words[column.offset : column.offset + len(column)]
    low, is_small = words[:, 0], words[:, 1] == words[:, 0] >> 63
    size = np.full(len(column), 2)
    for number, digits in ((1, 18), (0, 9)):
        fits = is_small & (low > -(10**digits)) & (low < 10**digits) & (scale <= digits)
        size[fits] = number
    table = np.hstack(
        [
            ((_DECIMAL4 + size) << 2).astype(np.uint8)[:, None],
            np.full((len(column), 1), scale, np.uint8),
            np.ascontiguousarray(words).view(np.uint8).reshape(len(column), 16),
        ]
    )
    return table.reshape(-1), np.arange(len(column)) * table.shape[1], 2 + (4 << size)


def _ragged(column: pa.Array, number: int, short_max: int) -> tuple[Bytes, Numbers, Numbers]:
    """Strings or bytes. A short string has its length in the header."""
    data, starts, lengths = bytes_of(column)
    is_short = lengths <= short_max
    heads = np.where(is_short, 1, 5)
    at = starts_of(heads + lengths)
    out = np.zeros((heads + lengths).sum(), np.uint8)
    out[at] = np.where(is_short, 1 | (lengths << 2), number << 2)
    long = np.flatnonzero(~is_short)
    for place in range(4):
        out[at[long] + 1 + place] = (lengths[long] >> (8 * place)) & 0xFF
    copy_ranges(data, starts, lengths, out, at + heads)
    return out, at, heads + lengths
