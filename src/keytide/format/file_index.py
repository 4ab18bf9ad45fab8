"""File indexes, which allow a reader to skip a data file without opening it, and bloom filters.

An index file has a header, which contains the position of each index of each column, and then the
indexes. The header ends with space reserved for later versions. Keytide stores a checksum of all
other bytes there: a damaged index would hide rows. Index files of other writers have none, and are
accepted.

A filter says that a file does not contain a value, or that it may. No filter contains NULL. Strings
and bytes are hashed with XXH64, values of up to eight bytes with Thomas Wang's integer hash.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keytide.errors import DataError
from keytide.format.binary_row import Bytes, conformed, plain_words, text_bytes
from keytide.options.keys import FILE_INDEX_READ_ENABLED
from keytide.types import AtomicType, DataType

# -- file indexes ----------------------------------------------------------------------------------


ColumnIndexes = Mapping[str, Mapping[str, bytes]]
"""Indexes by the name of a column and their kind."""

_BEGINNING = struct.Struct(">qiii")
"""Magic, version, length of the header, number of columns."""
_MAGIC = 1493475289347502
_VERSION = 1
_COUNT = struct.Struct(">i")
_PLACE = struct.Struct(">ii")
_LENGTH = struct.Struct(">H")
_SEAL = b"keytide:"
_SUM_BYTES = 4


def encode_file_index(indexes: ColumnIndexes) -> bytes:
    """The bytes of an index file."""
    head = _head(indexes, len(_head(indexes, 0)))
    body = b"".join(index for kinds in indexes.values() for index in kinds.values())
    return _sealed(head + body, len(head))


def decode_file_index(data: bytes, name: str) -> ColumnIndexes:
    """The indexes in a file of any writer.

    Raises DataError, which names the file, if it is damaged.
    """
    try:
        magic, version, length, columns = _BEGINNING.unpack_from(data)
        if (magic, version) != (_MAGIC, _VERSION):
            raise ValueError(f"it begins with magic {magic} and version {version}")
        seal = length - _SUM_BYTES
        if data[max(0, seal - len(_SEAL)) : max(0, seal)] == _SEAL:
            unsealed = data[:seal] + bytes(_SUM_BYTES) + data[length:]
            if _sealed(unsealed, length) != data:
                raise ValueError("its checksum does not match")
        found: dict[str, dict[str, bytes]] = {}
        at = _BEGINNING.size
        for _ in range(columns):
            column, at = _text(data, at)
            (kinds,), at = _COUNT.unpack_from(data, at), at + _COUNT.size
            for _ in range(kinds):
                kind, at = _text(data, at)
                (start, size), at = _PLACE.unpack_from(data, at), at + _PLACE.size
                # For an index without content, some writers record a position before the file.
                if size and start >= 0:
                    found.setdefault(column, {})[kind] = _piece(data, start, size)
        return found
    except (struct.error, ValueError, IndexError) as error:
        raise DataError(
            f"file index {name} is damaged or not a file index ({error}); restore it, or read "
            f"without indexes: '{FILE_INDEX_READ_ENABLED}' = 'false'"
        ) from error


def _head(indexes: ColumnIndexes, length: int) -> bytes:
    parts, start = [_BEGINNING.pack(_MAGIC, _VERSION, length, len(indexes))], length
    for column, kinds in indexes.items():
        parts += [_text_bytes(column), _COUNT.pack(len(kinds))]
        for kind, index in kinds.items():
            parts += [_text_bytes(kind), _PLACE.pack(start, len(index))]
            start += len(index)
    return b"".join([*parts, _COUNT.pack(len(_SEAL) + _SUM_BYTES), _SEAL, bytes(_SUM_BYTES)])


def _piece(data: bytes, start: int, size: int) -> bytes:
    if not 0 <= start <= start + size <= len(data):
        raise ValueError(f"{size} bytes from byte {start} on in a file of {len(data)} bytes")
    return data[start : start + size]


def _sealed(data: bytes, head_length: int) -> bytes:
    checksum = zlib.crc32(data).to_bytes(_SUM_BYTES, "big")
    return data[: head_length - _SUM_BYTES] + checksum + data[head_length:]


# -- strings in the encoding of Java's DataOutput --------------------------------------------------


def _text_bytes(text: str) -> bytes:
    # Each half of a surrogate pair is a separate character, and NUL takes two bytes.
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    data = "".join(map(chr, units)).encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    return _LENGTH.pack(len(data)) + data


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    start = at + _LENGTH.size
    piece = _piece(data, start, length).replace(b"\xc0\x80", b"\0")
    halves = piece.decode("utf-8", "surrogatepass").encode("utf-16-le", "surrogatepass")
    return halves.decode("utf-16-le"), start + length


# -- bloom filters ---------------------------------------------------------------------------------


Array = npt.NDArray[Any]

BLOOM_FILTER = "bloom-filter"
"""The name of this kind of index in the format."""

_TEXTS = frozenset(("CHAR", "VARCHAR", "BINARY", "VARBINARY"))
_FLOATS = frozenset(("FLOAT", "DOUBLE"))
_TIMESTAMPS = frozenset(("TIMESTAMP", "TIMESTAMP_LTZ"))
_HASHED = frozenset(
    (*_TEXTS, *_FLOATS, *_TIMESTAMPS, "TINYINT", "SMALLINT", "INT", "BIGINT", "DATE", "TIME")
)
_COUNT_BYTES = 4


def has_hash(type_: DataType) -> bool:
    """Whether the format supports filters for columns of a type."""
    return isinstance(type_, AtomicType) and type_.root in _HASHED


def bloom_filter(hashes: Array, items: int, false_positives: float) -> bytes:
    """A filter that contains the hashes.

    It is sized for `items` different hashes. It then matches this fraction of other hashes
    incorrectly.
    """
    bits = int(-items * math.log(false_positives) / math.log(2) ** 2)
    bits += 8 - bits % 8
    functions = max(1, math.floor(bits / items * math.log(2) + 0.5))
    marks = np.zeros(bits, dtype=bool)
    for places in _places(hashes, functions, bits):
        marks[places] = True
    packed = np.packbits(marks, bitorder="little").tobytes()
    return functions.to_bytes(_COUNT_BYTES, "big") + packed


def may_hold(filter_bytes: bytes, hashes: Array) -> bool:
    """Whether one of the hashes may be in a filter. Raises ValueError for an invalid filter."""
    functions = int.from_bytes(filter_bytes[:_COUNT_BYTES], "big")
    marks = np.frombuffer(filter_bytes, np.uint8, offset=min(_COUNT_BYTES, len(filter_bytes)))
    if not functions or not len(marks):
        raise ValueError(f"a filter with {functions} functions and {len(marks)} bytes")
    found = np.ones(len(hashes), dtype=bool)
    for places in _places(hashes, functions, len(marks) * 8):
        found &= (marks[places >> 3] >> (places & 7).astype(np.uint8)) & 1 == 1
        if not found.any():
            return False
    return bool(found.any())


def value_hashes(column: pa.Array | pa.ChunkedArray, type_: DataType) -> Array:
    """The hashes of the values that are not NULL. REQUIRES: the type has a hash."""
    assert isinstance(type_, AtomicType)
    values = conformed(column, type_).drop_null()
    if type_.root in _TEXTS:
        return _text_hashes(text_bytes(values))
    words = plain_words(values)
    if type_.root in _TIMESTAMPS:
        # Timestamps in milliseconds, or in microseconds from precision 4 on, rounded down.
        precision = type_.precision or 0
        ticks = words.view(np.int64)
        unit = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[values.type.unit]
        wanted = 10**3 if precision <= 3 else 10**6
        keys = ticks * (wanted // unit) if wanted >= unit else ticks // (unit // wanted)
    else:
        if type_.root in _FLOATS:
            floats = words.view(f"f{words.dtype.itemsize}")
            words = np.where(np.isnan(floats), floats.dtype.type(np.nan), floats).view(words.dtype)
        keys = words.view(f"i{words.dtype.itemsize}").astype(np.int64)
    mixed = ~keys + (keys << 21)
    mixed ^= mixed >> 24
    mixed = mixed + (mixed << 3) + (mixed << 8)
    mixed ^= mixed >> 14
    mixed = mixed + (mixed << 2) + (mixed << 4)
    mixed ^= mixed >> 28
    mixed += mixed << 31
    hashes: Array = mixed.view(np.uint64)
    return hashes


def _places(hashes: Array, functions: int, bits: int) -> Iterator[Array]:
    """The bits of the hashes, for one function after the other."""
    low = hashes.astype(np.uint32)
    high = (hashes >> np.uint64(32)).astype(np.uint32)
    for number in range(1, functions + 1):
        combined = (low + np.uint32(number) * high).view(np.int32)
        yield np.where(combined < 0, ~combined, combined) % np.int64(bits)


# -- XXH64 with the seed 0 -------------------------------------------------------------------------

_P1, _P2, _P3, _P4, _P5 = np.array(
    [
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    ],
    np.uint64,
)[:, None]  # fmt: skip
_STRIPE_BYTES = 32


def _text_hashes(items: Bytes) -> Array:
    sizes = items.sizes_bytes
    hashes = np.repeat(_P5, len(sizes))
    long = np.flatnonzero(sizes >= _STRIPE_BYTES)
    if len(long):
        hashes[long] = _striped(items, items.starts[long], sizes[long] // _STRIPE_BYTES)
    hashes += sizes.view(np.uint64)
    at, left = items.starts + (sizes & ~np.int64(31)), sizes & 31
    for width in (8, 4, 1):
        while len(rows := np.flatnonzero(left >= width)):
            words = items.words_at(at[rows], f"<u{width}").astype(np.uint64)
            if width == 8:
                words = _round(np.zeros(1, np.uint64), words)
                hashes[rows] = _rotated(hashes[rows] ^ words, 27) * _P1 + _P4
            elif width == 4:
                hashes[rows] = _rotated(hashes[rows] ^ (words * _P1), 23) * _P2 + _P3
            else:
                hashes[rows] = _rotated(hashes[rows] ^ (words * _P5), 11) * _P1
            at[rows] += width
            left[rows] -= width
    mixed: Array = (hashes ^ (hashes >> np.uint64(33))) * _P2
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _P3
    mixed ^= mixed >> np.uint64(32)
    return mixed


def _striped(items: Bytes, starts: Array, counts: Array) -> Array:
    """The hashes of all whole stripes. Rows drop out when they end."""
    seeds = (_P1 + _P2, _P2, np.zeros(1, np.uint64), ~_P1 + np.uint64(1))
    lanes = [np.repeat(seed, len(starts)) for seed in seeds]
    step, rows = 0, np.arange(len(starts))
    while len(rows):
        for number, lane in enumerate(lanes):
            words = items.words_at(starts[rows] + _STRIPE_BYTES * step + 8 * number, "<u8")
            lane[rows] = _round(lane[rows], words)
        step += 1
        rows = rows[counts[rows] > step]
    turned = [_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)]
    hashes: Array = turned[0] + turned[1] + turned[2] + turned[3]
    for lane in lanes:
        hashes = (hashes ^ _round(np.zeros(1, np.uint64), lane)) * _P1 + _P4
    return hashes


def _round(lane: Array, words: Array) -> Array:
    turned: Array = _rotated(lane + words * _P2, 31) * _P1
    return turned


def _rotated(words: Array, bits: int) -> Array:
    rotated: Array = words << np.uint64(bits)
    rotated |= words >> np.uint64(64 - bits)
    return rotated
