"""The binary form of VARIANT values, read and written for many values at a time.

A value is a header and its content. The two lowest bits of the header say what it is::

    0 primitive | 1 short string | 2 object | 3 array

An object has the numbers of its keys, sorted by key, then the offsets of its fields, then the
fields. An array has offsets and elements. The keys are in the metadata of the whole value.
"""

from __future__ import annotations

import itertools
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass, field

# -- byte ranges of different lengths in one array -------------------------------------------------


Bytes: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass
class Pool:
    """Arrays of bytes that become one."""

    _parts: list[Bytes] = field(default_factory=list)
    _size: int = 0

    def add(self, part: Bytes) -> int:
        """Add bytes. Returns where they begin."""
        begin = self._size
        self._parts.append(part)
        self._size += len(part)
        return begin

    def joined(self) -> Bytes:
        """All bytes that were added."""
        return np.concatenate(self._parts) if self._parts else np.zeros(0, np.uint8)


def bytes_of(values: pa.Array) -> tuple[Bytes, Numbers, Numbers]:
    """The bytes of a column of strings or bytes: the buffer, and start and length of each value."""
    values = values.cast(pa.large_binary())
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    buffer = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return buffer, ends[:-1], np.diff(ends)


def binary_array(data: Bytes, lengths: Numbers) -> pa.Array:
    """A column of values that follow each other in `data`."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def starts_of(lengths: Numbers) -> Numbers:
    """Where each of several ranges starts that follow each other."""
    ends: Numbers = np.cumsum(lengths)
    return ends - lengths


def counted(counts: Numbers) -> tuple[Numbers, Numbers]:
    """For each member of groups of these sizes: its group, and its number in the group."""
    groups: Numbers = np.repeat(np.arange(len(counts)), counts)
    return groups, np.arange(len(groups)) - starts_of(counts)[groups]


def widths_of(numbers: Numbers) -> Numbers:
    """The number of bytes that each number needs, 1 to 4."""
    return 1 + (numbers > 0xFF).astype(np.int64) + (numbers > 0xFFFF) + (numbers > 0xFFFFFF)


def read_numbers(data: Bytes, at: Numbers, widths: Numbers) -> Numbers:
    """Unsigned numbers of 1 to 4 bytes, lowest first. Raises `IndexError` beyond the data."""
    found = np.zeros(len(at), np.int64)
    for place in range(4):
        wide = np.flatnonzero(widths > place)
        found[wide] |= data[at[wide] + place].astype(np.int64) << (8 * place)
    return found


def put_numbers(data: Bytes, at: Numbers, numbers: Numbers, widths: Numbers) -> None:
    """Write unsigned numbers, as `read_numbers` reads them."""
    for place in range(4):
        wide = np.flatnonzero(widths > place)
        data[at[wide] + place] = (numbers[wide] >> (8 * place)) & 0xFF


def copy_ranges(source: Bytes, starts: Numbers, lengths: Numbers, to: Bytes, at: Numbers) -> None:
    """Copy ranges of one array to places of another."""
    owners, steps = counted(lengths)
    to[at[owners] + steps] = source[starts[owners] + steps]


# -- the binary form -------------------------------------------------------------------------------


_PRIMITIVE, _SHORT_STRING, OBJECT, ARRAY = range(4)
NO_KEY = -1

_BINARY, _STRING = 15, 16
# The size of a primitive value by its number: null, true, false, int8 to int64, double, three
# decimals, date, two timestamps, float, bytes, text, time, two timestamps of nanoseconds, UUID.
_SIZES = np.array([1, 1, 1, 2, 3, 5, 9, 9, 6, 10, 18, 5, 9, 9, 5, 5, 5, 9, 9, 9, 17], np.int64)
_VERSION = 1
_SMALL_MAX = 255


@dataclass(frozen=True)
class Level:
    """The nodes of many values at one depth, with those of one parent next to each other.

    - `parents` are places in the level above, and `keys` numbers of keys. `NO_KEY` for elements.
    - `kinds` are those of the header.
    - `starts` and `lengths` say where the bytes of those are that are neither object nor array.
    """

    parents: Numbers
    keys: Numbers
    kinds: npt.NDArray[np.uint8]
    starts: Numbers
    lengths: Numbers


def keys_of(metadata: pa.Array) -> tuple[pa.Array, Numbers]:
    """The keys of each metadata one after the other, and the number of keys of each.

    Raises `IndexError` or `ValueError` for damaged metadata.
    """
    data, starts, lengths = bytes_of(metadata)
    header = data[starts].astype(np.int64)
    if np.any(header & 0xF != _VERSION):
        raise ValueError(f"the version of its metadata is not {_VERSION}")
    widths = (header >> 6) + 1
    counts = read_numbers(data, starts + 1, widths)
    if np.any((counts + 2) * widths + 1 > lengths):
        raise ValueError("its metadata is cut off")
    owners, numbers = counted(counts)
    at = (starts + 1 + widths)[owners] + numbers * widths[owners]
    texts = (starts + 1 + (counts + 2) * widths)[owners]
    begins = read_numbers(data, at, widths[owners])
    sizes = read_numbers(data, at + widths[owners], widths[owners]) - begins
    if np.any(sizes < 0) or np.any(texts + begins + sizes > (starts + lengths)[owners]):
        raise ValueError("its metadata is damaged")
    keys = np.zeros(sizes.sum(), np.uint8)
    copy_ranges(data, texts + begins, sizes, keys, starts_of(sizes))
    return binary_array(keys, sizes), counts


def leaf_sizes(data: Bytes, at: Numbers, ends: Numbers) -> Numbers:
    """The sizes of values that are neither objects nor arrays, and end at `ends` at the latest.

    Raises `IndexError` or `ValueError` for damaged values.
    """
    header = data[at].astype(np.int64)
    number = header >> 2
    is_short = header & 3 == _SHORT_STRING
    if np.any(~is_short & (number >= len(_SIZES))):
        raise ValueError(f"it has a value of the unknown kind {number[~is_short].max()}")
    sizes = np.where(is_short, 1 + number, _SIZES[np.minimum(number, len(_SIZES) - 1)])
    long = np.flatnonzero(~is_short & ((number == _BINARY) | (number == _STRING)))
    sizes[long] += read_numbers(data, at[long] + 1, np.full(len(long), 4))
    if np.any(at + sizes > ends):
        raise ValueError("a value is cut off")
    return sizes


def members_of(
    data: Bytes, at: Numbers, ends: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """The members of objects and arrays that end at `ends` at the latest.

    Returns for each member: which of `at` it belongs to, its number there, the number of its key
    in the metadata (`NO_KEY` for elements of arrays), and where its value is. Raises `IndexError`
    or `ValueError` for damaged values.
    """
    header = data[at].astype(np.int64)
    is_object = header & 3 == OBJECT
    large = np.where(is_object, header >> 6, header >> 4) & 1
    count_widths = np.where(large == 1, 4, 1)
    key_widths = np.where(is_object, ((header >> 4) & 3) + 1, 0)
    widths = ((header >> 2) & 3) + 1
    counts = read_numbers(data, at + 1, count_widths)
    keys_at = at + 1 + count_widths
    offsets_at = keys_at + counts * key_widths
    contents_at = offsets_at + (counts + 1) * widths
    if np.any(contents_at > ends) or counts.sum() > len(data):
        raise ValueError("an object or array is cut off")
    owners, numbers = counted(counts)
    keys = read_numbers(data, keys_at[owners] + numbers * key_widths[owners], key_widths[owners])
    at_offset = offsets_at[owners] + numbers * widths[owners]
    places = contents_at[owners] + read_numbers(data, at_offset, widths[owners])
    return owners, numbers, np.where(is_object[owners], keys, NO_KEY), places


def encoded(levels: list[Level], data: Bytes, keys: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The values whose nodes are in `levels`, and the metadata of each.

    `keys` are distinct. The metadata has the keys of the value in the order of its nodes. Raises
    `ValueError` if an object has a key twice.
    """
    numbers, metadata = _numbered(levels, keys)
    counts = [
        np.bincount(below.parents, minlength=len(level.kinds))
        for level, below in itertools.pairwise(levels)
    ] + [np.zeros(len(levels[-1].kinds), np.int64)]
    shapes = _shapes(levels, counts, numbers)
    out = np.zeros(shapes[0].sizes.sum(), np.uint8)
    at = starts_of(shapes[0].sizes)
    order = _text_order(keys)
    for place, (level, shape) in enumerate(zip(levels, shapes, strict=True)):
        leaves = np.flatnonzero(level.kinds < OBJECT)
        copy_ranges(data, level.starts[leaves], level.lengths[leaves], out, at[leaves])

        nodes = np.flatnonzero(level.kinds >= OBJECT)
        is_object = level.kinds[nodes] == OBJECT
        large = (shape.count_widths[nodes] == 4).astype(np.int64)  # bytes
        head = level.kinds[nodes] | ((shape.widths[nodes] - 1) << 2)
        head |= np.where(is_object, ((shape.key_widths[nodes] - 1) << 4) | (large << 6), large << 4)
        out[at[nodes]] = head
        put_numbers(out, at[nodes] + 1, shape.counts[nodes], shape.count_widths[nodes])
        last = at + shape.heads - shape.widths
        put_numbers(out, last[nodes], shape.contents[nodes], shape.widths[nodes])
        if place + 1 < len(levels):
            below, sizes = levels[place + 1], shapes[place + 1].sizes
            offsets = _within(below.parents, sizes, shape.counts)
            _put_members(out, at, level, shape, below, offsets, numbers[place + 1], order)
            at = (at + shape.heads)[below.parents] + offsets
    return binary_array(out, shapes[0].sizes), metadata


@dataclass(frozen=True)
class _Shape:
    """The sizes of the nodes of a level, of their heads and of the numbers in these."""

    counts: Numbers
    sizes: Numbers
    heads: Numbers
    contents: Numbers
    count_widths: Numbers
    key_widths: Numbers
    widths: Numbers


def _shapes(levels: list[Level], counts: list[Numbers], numbers: list[Numbers]) -> list[_Shape]:
    shapes: list[_Shape] = []
    for place in reversed(range(len(levels))):
        level, count = levels[place], counts[place]
        contents, key_max = np.zeros(len(count), np.int64), np.zeros(len(count), np.int64)
        if shapes:
            below = levels[place + 1]
            np.add.at(contents, below.parents, shapes[-1].sizes)
            np.maximum.at(key_max, below.parents, numbers[place + 1])
        count_widths = np.where(count > _SMALL_MAX, 4, 1)
        key_widths = np.where(level.kinds == OBJECT, widths_of(key_max), 0)
        widths = widths_of(contents)
        heads = 1 + count_widths + count * key_widths + (count + 1) * widths
        sizes = np.where(level.kinds < OBJECT, level.lengths, heads + contents)
        shapes.append(_Shape(count, sizes, heads, contents, count_widths, key_widths, widths))
    return shapes[::-1]


def _put_members(
    out: Bytes, at: Numbers, level: Level, shape: _Shape, below: Level, offsets: Numbers,
    numbers: Numbers, order: Numbers,
) -> None:  # fmt: skip
    """Write the keys and offsets of members, sorted by key in objects."""
    parents = below.parents
    rank = np.where(below.keys == NO_KEY, 0, order[below.keys] if len(order) else 0)
    sorted_ = np.lexsort((rank, parents))
    slots = np.empty(len(parents), np.int64)
    slots[sorted_] = np.arange(len(parents)) - starts_of(shape.counts)[parents]
    keys_at = (at + 1 + shape.count_widths)[parents]
    put_numbers(
        out, keys_at + slots * shape.key_widths[parents], numbers, shape.key_widths[parents]
    )
    offsets_at = keys_at + (shape.counts * shape.key_widths)[parents]
    put_numbers(out, offsets_at + slots * shape.widths[parents], offsets, shape.widths[parents])


def _within(parents: Numbers, sizes: Numbers, counts: Numbers) -> Numbers:
    """The sum of the sizes of the nodes before each that have the same parent."""
    before = starts_of(sizes)
    firsts = starts_of(counts)
    return before - before[np.minimum(firsts[parents], max(len(before) - 1, 0))]


def _numbered(levels: list[Level], keys: pa.Array) -> tuple[list[Numbers], pa.Array]:
    """The number of each node's key in its value, and the metadata of each value."""
    rows, places = _places(levels)
    keyed = [np.flatnonzero(level.keys != NO_KEY) for level in levels]
    row = np.concatenate([each[own] for each, own in zip(rows, keyed, strict=True)])
    key = np.concatenate([level.keys[own] for level, own in zip(levels, keyed, strict=True)])
    place = np.concatenate([each[own] for each, own in zip(places, keyed, strict=True)])
    for level in levels:
        own = np.flatnonzero(level.keys != NO_KEY)
        pairs = level.parents[own] * len(keys) + level.keys[own]
        if len(np.unique(pairs)) != len(pairs):
            raise ValueError("an object has a key twice")
    order = np.argsort(place)
    used, firsts, inverse = np.unique(
        row[order] * len(keys) + key[order], return_index=True, return_inverse=True
    )
    by_first = np.argsort(firsts)
    counts = np.bincount(used // max(len(keys), 1), minlength=len(levels[0].kinds))
    new = np.empty(len(used), np.int64)
    new[by_first] = counted(counts)[1]
    number = np.empty(len(order), np.int64)
    number[order] = new[inverse]
    splits = np.split(number, np.cumsum([len(own) for own in keyed])[:-1])
    numbers = []
    for level, own, part in zip(levels, keyed, splits, strict=True):
        numbers.append(np.zeros(len(level.keys), np.int64))
        numbers[-1][own] = part
    return numbers, _metadata(keys, (used % max(len(keys), 1))[by_first], counts)


def _places(levels: list[Level]) -> tuple[list[Numbers], list[Numbers]]:
    """The value of each node, and its place among all nodes, each before its members."""
    sizes = [np.ones(len(level.kinds), np.int64) for level in levels]
    for place in reversed(range(1, len(levels))):
        np.add.at(sizes[place - 1], levels[place].parents, sizes[place])
    rows = [np.arange(len(levels[0].kinds))]
    places = [starts_of(sizes[0])]
    for level, size in zip(levels[1:], sizes[1:], strict=True):
        counts = np.bincount(level.parents, minlength=len(rows[-1]))
        rows.append(rows[-1][level.parents])
        places.append(places[-1][level.parents] + 1 + _within(level.parents, size, counts))
    return rows, places


def _metadata(keys: pa.Array, used: Numbers, counts: Numbers) -> pa.Array:
    """Metadata with the used keys of each value."""
    texts, text_starts, text_lengths = bytes_of(keys.take(pa.array(used)))
    owners, numbers = counted(counts)
    totals = np.zeros(len(counts), np.int64)
    np.add.at(totals, owners, text_lengths)
    widths = widths_of(np.maximum(totals, counts))
    heads = 1 + (counts + 2) * widths
    at = starts_of(heads + totals)
    out = np.zeros((heads + totals).sum(), np.uint8)
    out[at] = _VERSION | ((widths - 1) << 6)
    put_numbers(out, at + 1, counts, widths)
    offsets = _within(owners, text_lengths, counts)
    offsets_at = (at + 1 + widths)[owners] + numbers * widths[owners]
    put_numbers(out, offsets_at, offsets, widths[owners])
    put_numbers(out, at + heads - widths, totals, widths)
    copy_ranges(texts, text_starts, text_lengths, out, (at + heads)[owners] + offsets)
    return binary_array(out, heads + totals)


def _text_order(keys: pa.Array) -> Numbers:
    """The rank of each key, compared by UTF-16 units, as other engines sort keys."""
    data = bytes_of(keys)[0]
    if np.any(data >= 0xF0):  # otherwise bytes in UTF-8 have the same order
        texts = [key.decode().encode("utf-16-be") for key in keys.to_pylist()]
        keys = pa.array(texts, pa.large_binary())
    rank = np.empty(len(keys), np.int64)
    rank[np.asarray(pc.sort_indices(keys))] = np.arange(len(keys))
    return rank


# -- columns of typed values -----------------------------------------------------------------------


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
        # Integers, each in the smallest width that holds it.
        values = _numbers(column, pa.int64())
        size = np.zeros(len(values), np.int64)
        for kind in (np.int8, np.int16, np.int32):
            size += values != values.astype(kind)
        data, starts, _ = _fixed((_INT8 + size) << 2, values)
        return data, starts, 1 + (1 << size)
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
