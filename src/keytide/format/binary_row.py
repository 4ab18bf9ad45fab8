"""Binary rows: the bytes of partitions, keys and statistics.

A row consists of a header (row kind, null bits), one 8-byte slot per field, and a part of variable
length for values that do not fit a slot. Rows are encoded and decoded column by column.
:func:`slots_of` returns one column of many rows. :func:`encode_rows` lays it out as bytes, and
bucket hashing uses it without laying it out.

NULLs of DECIMAL(p > 18) and TIMESTAMP(p > 3) reserve space outside the slot, as in Java's key and
partition rows. This affects the hash, so it must not be left out. A reader checks the null bit
first and never reads the slot of a NULL, because older writers filled it differently.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.row_kind import RowKind
from keytide.errors import DataError, InvalidError, UnsupportedError
from keytide.types import AtomicType, DataType

Array = npt.NDArray[Any]

EMPTY_ROW = bytes(12)
"""The serialized row without fields: the partition of every unpartitioned table."""

ARITY_SIZE_BYTES = 4
INLINE_SIZE_BYTES_MAX = 7
WORD_SIZE_BYTES = 8


@dataclass(frozen=True)
class Bytes:
    """Byte strings of many rows: row i has ``data[starts[i] : starts[i] + sizes_bytes[i]]``.

    ``data`` ends with at least 8 bytes that belong to no row, so words can be read at any byte of a
    row.
    """

    data: Array
    starts: Array
    sizes_bytes: Array

    @property
    def padded_sizes_bytes(self) -> Array:
        """The sizes in a row: rounded up to whole words."""
        padded: Array = (self.sizes_bytes + 7) & ~np.int64(7)
        return padded

    def words_at(self, positions: Array, dtype: str) -> Array:
        """The little-endian words that begin at the given byte positions of ``data``."""
        width = np.dtype(dtype).itemsize
        shape = (len(self.data) - width + 1,)
        view: Array = np.ndarray(shape, dtype, buffer=self.data, strides=(1,))
        return view[positions]

    def gathered(self) -> Array:
        """The bytes of all rows, one row after the other, without gaps."""
        return self.data[_ranges(self.starts, self.sizes_bytes)]


@dataclass(frozen=True)
class Slots:
    """One column of many rows.

    ``words`` are the slots, before the offset is added for rows with a ``variable_part``.
    ``nulls`` is None if no value is NULL.
    """

    words: Array
    nulls: Array | None = None
    variable_part: Bytes | None = None

    def words_with_offset(self, offsets: Array | int) -> Array:
        """The slots, with offsets from the row's start if bytes are outside."""
        if self.variable_part is None:
            return self.words
        pointers = np.asarray(offsets, np.uint64) << np.uint64(32)
        words: Array = self.words | np.where(
            self.variable_part.sizes_bytes > 0, pointers, np.uint64(0)
        )
        return words


def header_size_bytes(arity: int) -> int:
    """The size of row kind and null bits, in whole words."""
    # 8 bits of row kind, then one for each field.
    return (arity + 8 + 63) // 64 * 8


def encode_rows(
    columns: Sequence[pa.Array | pa.ChunkedArray],
    types: Sequence[DataType],
    *,
    row_kind: RowKind = RowKind.INSERT,
) -> list[bytes]:
    """Serialize rows, given as columns of equal length, each with its 4-byte arity in front.

    No columns make one empty row. Columns are cast to their type's Arrow type. A decimal beyond its
    precision becomes NULL. Raises InvalidError for values of a nested type.
    """
    if not columns:
        return [EMPTY_ROW[:ARITY_SIZE_BYTES] + bytes([row_kind]) + EMPTY_ROW[5:]]
    slots = [slots_of(column, type_) for column, type_ in zip(columns, types, strict=True)]
    fixed_size = header_size_bytes(len(slots)) + WORD_SIZE_BYTES * len(slots)
    # Where each column's outside bytes begin, from the row's start, and the sizes of the rows.
    row_sizes = np.full(len(slots[0].words), fixed_size, np.int64)
    offsets = []
    for each in slots:
        offsets.append(row_sizes)
        if each.variable_part is not None:
            row_sizes = row_sizes + each.variable_part.padded_sizes_bytes

    # Arity, header and slots of every row, as a matrix of bytes.
    slots_start = ARITY_SIZE_BYTES + header_size_bytes(len(slots))
    fixed = np.zeros((len(slots[0].words), ARITY_SIZE_BYTES + fixed_size), np.uint8)
    fixed[:, :ARITY_SIZE_BYTES] = np.frombuffer(len(slots).to_bytes(4, "big"), np.uint8)
    fixed[:, ARITY_SIZE_BYTES] = row_kind
    for place, (each, offset) in enumerate(zip(slots, offsets, strict=True)):
        if each.nulls is not None:
            byte, bit = divmod(place + 8, 8)
            fixed[:, ARITY_SIZE_BYTES + byte] |= each.nulls.astype(np.uint8) << np.uint8(bit)
        start = slots_start + WORD_SIZE_BYTES * place
        words = each.words_with_offset(offset).astype("<u8", copy=False)
        fixed[:, start : start + WORD_SIZE_BYTES] = words.view(np.uint8).reshape(-1, 8)

    ends = np.cumsum(row_sizes + ARITY_SIZE_BYTES)
    starts = ends - row_sizes
    image = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    image[(starts - ARITY_SIZE_BYTES)[:, None] + np.arange(fixed.shape[1])] = fixed
    for each, offset in zip(slots, offsets, strict=True):
        if each.variable_part is not None:
            image[_ranges(starts + offset, each.variable_part.sizes_bytes)] = (
                each.variable_part.gathered()
            )
    blob = image.tobytes()
    bounds = np.concatenate([[0], ends]).tolist()
    return [blob[start:end] for start, end in itertools.pairwise(bounds)]


def decode_rows(rows: Sequence[bytes], types: Sequence[DataType]) -> list[pa.Array]:
    """Decode serialized rows into one Arrow array per type.

    Columns of nested types are decoded as NULLs: they do not occur in keys, partitions or
    statistics that a reader needs. Raises DataError for rows of another arity or with invalid
    offsets, and UnsupportedError for a TIMESTAMP beyond the range of nanoseconds.
    """
    arity = len(types)
    header_size = header_size_bytes(arity)
    sizes = np.fromiter(map(len, rows), np.int64, len(rows)) - ARITY_SIZE_BYTES
    starts = np.cumsum(sizes + ARITY_SIZE_BYTES) - sizes
    data = np.frombuffer(b"".join(rows) + bytes(WORD_SIZE_BYTES), np.uint8)
    spans = Bytes(data, starts, sizes)
    if (sizes < header_size + WORD_SIZE_BYTES * arity).any():
        raise DataError(
            f"A binary row of {sizes.min() + ARITY_SIZE_BYTES} bytes is too short for the "
            f"{arity} expected fields"
        )
    arities = spans.words_at(starts - ARITY_SIZE_BYTES, ">u4")
    if (arities != arity).any():
        found = arities[arities != arity][0]
        raise DataError(f"A binary row has {found} fields, expected {arity}")
    image = _RowImage(spans, header_size)
    return [_decoded(image, place, type_) for place, type_ in enumerate(types)]


def slots_of(column: pa.Array | pa.ChunkedArray, type_: DataType) -> Slots:
    """One column of its rows. The cost is linear in rows and bytes."""
    array = conformed(column, type_)
    nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if not isinstance(type_, AtomicType) or type_.is_nested:
        if array.null_count < len(array):
            raise InvalidError(
                f"A key, partition or statistics row cannot contain a value of type {type_.sql()}: "
                "use a column of a scalar type"
            )
        return Slots(np.zeros(len(array), np.uint64), np.ones(len(array), bool))
    if type_.root in ("CHAR", "VARCHAR", "BINARY", "VARBINARY"):
        text = text_bytes(array)
        sizes = text.sizes_bytes
        is_inline = sizes <= INLINE_SIZE_BYTES_MAX
        inline_sizes = np.where(is_inline, sizes, 0)
        # The bytes are in the slot, starting at the lowest. The highest byte has its high bit set
        # and contains the length.
        inline = text.words_at(text.starts, "<u8") & _INLINE_MASKS[inline_sizes]
        marks = (inline_sizes.astype(np.uint64) | np.uint64(0x80)) << np.uint64(56)
        words = np.where(is_inline, inline | marks, sizes.astype(np.uint64))
        if nulls is not None:
            words[nulls] = 0
        outside_sizes = np.where(is_inline, 0, sizes)
        outside = Bytes(text.data, text.starts, outside_sizes) if outside_sizes.any() else None
        return Slots(words, nulls, outside)
    if type_.root == "DECIMAL":
        return _decimal_slots(array, type_.precision or 0)
    if type_.root in ("TIMESTAMP", "TIMESTAMP_LTZ") and (type_.precision or 0) > 3:
        values = plain_words(array).view(np.int64)
        per_milli, nanos_per_unit = (1_000, 1_000) if array.type.unit == "us" else (1_000_000, 1)
        millis = values // per_milli
        # Floor division, so nanoseconds count up from the millisecond before the epoch too.
        nanos = (values - millis * per_milli) * nanos_per_unit
        outside = _equal_items(millis.astype("<i8").view(np.uint8), WORD_SIZE_BYTES)
        return Slots(nanos.astype(np.uint64), nulls, outside)
    return Slots(plain_words(array).astype(np.uint64, copy=False), nulls)


def text_bytes(array: pa.Array) -> Bytes:
    """The bytes of a string or binary array. A NULL has size 0."""
    _, offset_buffer, data_buffer = array.buffers()
    bounds = np.frombuffer(offset_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    first, last = (int(bounds[0]), int(bounds[-1])) if len(array) else (0, 0)
    data = np.zeros(last - first + WORD_SIZE_BYTES, np.uint8)
    if last > first:
        data[: last - first] = np.frombuffer(data_buffer, np.uint8)[first:last]
    starts = bounds[: len(array)].astype(np.int64) - first
    sizes = np.diff(bounds[: len(array) + 1]).astype(np.int64)
    if array.null_count:
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return Bytes(data, starts, sizes)


def decimal_halves(array: pa.Array) -> tuple[Array, Array]:
    """The low (unsigned) and high (signed) 64 bits of a decimal128 array. 0 for a NULL."""
    halves = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)
    halves = halves[array.offset : array.offset + len(array)]
    if array.null_count:
        halves = np.where(array.is_valid().to_numpy(zero_copy_only=False)[:, None], halves, 0)
    low, high = np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1])
    return low.view(np.uint64), high


def conformed(column: pa.Array | pa.ChunkedArray, type_: DataType) -> pa.Array:
    """The column as one array of exactly its type's Arrow type.

    Raises InvalidError if impossible.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    target = type_.to_arrow()
    if array.type.equals(target):
        return array
    try:
        return array.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidError(
            f"Values of Arrow type {array.type} do not fit a column of type {type_.sql()}: {error}"
        ) from error


def plain_words(array: pa.Array) -> Array:
    """Values of up to 8 bytes as unsigned integers of their own width. 0 for a NULL."""
    if pa.types.is_boolean(array.type):
        bits = array.cast(pa.uint8())
    else:
        carriers = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
        bits = array.view(carriers[array.type.bit_width])
    whole = bits.fill_null(0) if bits.null_count else bits
    # Not by `to_numpy`, which first imports pandas, if it is installed.
    words = np.frombuffer(whole.buffers()[1], np.dtype(f"u{whole.type.bit_width // 8}"))
    return words[whole.offset : whole.offset + len(whole)]


# --- encoding ----------------------------------------------------------------------------------

_INLINE_MASKS = np.array([(1 << 8 * size) - 1 for size in range(8)], np.uint64)


def _decimal_slots(array: pa.Array, precision: int) -> Slots:
    low, high = decimal_halves(array)

    # Whether a decimal's absolute value needs more digits than its precision.
    # Negated in 128 bits by halves: the low half carries into the high one if it is 0.
    magnitude_low = np.where(high < 0, ~low + np.uint64(1), low)
    carry = (magnitude_low == 0).astype(np.int64)
    magnitude_high = np.where(high < 0, ~high + carry, high).view(np.uint64)
    limit_high, limit_low = divmod(10**precision, 1 << 64)
    is_equal = magnitude_high == np.uint64(limit_high)
    is_beyond: Array = magnitude_high > np.uint64(limit_high)
    is_beyond |= is_equal & (magnitude_low >= np.uint64(limit_low))
    nulls = array.is_null().to_numpy(zero_copy_only=False) | is_beyond
    low, high = np.where(nulls, np.uint64(0), low), np.where(nulls, np.int64(0), high)
    found_nulls = nulls if nulls.any() else None
    if precision <= 18:
        return Slots(low, found_nulls)

    # The shortest two's complement bytes, left-aligned in 16 bytes, and their number.
    bytes_of = [half.astype(half.dtype.newbyteorder(">")).view(np.uint8) for half in (high, low)]
    big_endian = np.hstack([half.reshape(-1, 8) for half in bytes_of])
    signs = big_endian[:, :1] >> 7
    # A leading byte can be dropped if it contains only the sign and the next one begins with the
    # sign too.
    is_sign = big_endian[:, :-1] == signs * np.uint8(255)
    is_redundant = is_sign & ((big_endian[:, 1:] >> 7) == signs)
    skipped = np.logical_and.accumulate(is_redundant, axis=1).sum(axis=1)
    places = skipped[:, None] + np.arange(16)
    shifted = np.take_along_axis(big_endian, np.minimum(places, 15), axis=1)
    data, significant = np.where(places < 16, shifted, 0).astype(np.uint8), 16 - skipped
    sizes = np.where(nulls, 0, significant).astype(np.uint64)
    return Slots(sizes, found_nulls, _equal_items(data, 16))


def _equal_items(data: Array, size: int) -> Bytes:
    flat = np.concatenate([data.ravel(), np.zeros(WORD_SIZE_BYTES, np.uint8)])
    starts = np.arange(0, data.size, size, dtype=np.int64)
    return Bytes(flat, starts, np.full(len(starts), size, np.int64))


def _ranges(starts: Array, sizes: Array) -> Array:
    """All positions of all ranges, one range after the other."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))


# --- decoding ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RowImage:
    """Serialized rows without gaps. ``rows`` spans each row without its arity."""

    rows: Bytes
    header_size: int

    def nulls(self, place: int) -> Array:
        byte, bit = divmod(place + 8, 8)
        flags: Array = (self.rows.data[self.rows.starts + byte] >> np.uint8(bit)) & 1
        return flags.astype(bool)

    def slot_starts(self, place: int) -> Array:
        return self.rows.starts + self.header_size + WORD_SIZE_BYTES * place

    def words(self, place: int) -> Array:
        return np.where(
            self.nulls(place), 0, self.rows.words_at(self.slot_starts(place), "<u8")
        ).astype(np.uint64)

    def variable_part(self, words: Array, sizes: Array) -> Bytes:
        """The bytes that slots point to. Raises DataError if some are outside their row."""
        offsets = (words >> np.uint64(32)).astype(np.int64)
        if (offsets + sizes > self.rows.sizes_bytes).any():
            raise DataError("A binary row points to bytes after its end: the row is corrupt")
        return Bytes(self.rows.data, self.rows.starts + offsets, sizes)


def _decoded(image: _RowImage, place: int, type_: DataType) -> pa.Array:
    target = type_.to_arrow()
    nulls = image.nulls(place)
    if not isinstance(type_, AtomicType) or type_.is_nested:
        return pa.nulls(len(nulls), target)
    if type_.root in ("CHAR", "VARCHAR", "BINARY", "VARBINARY"):
        words = image.words(place)
        # See `slots_of`.
        marks = (words >> np.uint64(56)).astype(np.int64)
        is_inline = marks >= 0x80
        sizes = np.where(is_inline, marks & 0x7F, (words & np.uint64(0xFFFFFFFF)).astype(np.int64))
        if (is_inline & (sizes > INLINE_SIZE_BYTES_MAX)).any():
            raise DataError("A binary row has an inline value of more than 7 bytes: it is corrupt")
        outside = image.variable_part(np.where(is_inline, 0, words), np.where(is_inline, 0, sizes))
        starts = np.where(is_inline, image.slot_starts(place), outside.starts)
        data = Bytes(image.rows.data, starts, sizes).gathered()
        bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        buffers = [_validity(nulls), pa.py_buffer(bounds), pa.py_buffer(data)]
        return pa.Array.from_buffers(target, len(nulls), buffers)
    if type_.root == "DECIMAL":
        return _decoded_decimal(image, place, nulls, target)
    words = image.words(place)
    if type_.root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        if (type_.precision or 0) > 3:
            words = _units_since_epoch(image, words, nulls, target.unit)
        values = words
    elif type_.root == "BOOLEAN":
        # A boolean is the first byte of its slot.
        values = np.packbits((words & np.uint64(0xFF)) != 0, bitorder="little")
    else:
        values = words.astype(np.dtype(f"u{target.bit_width // 8}"))
    # From buffers: to make an array of values, Arrow first imports pandas, if it is installed.
    buffers = [_validity(nulls), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(target, len(nulls), buffers)


def _decoded_decimal(image: _RowImage, place: int, nulls: Array, target: pa.DataType) -> pa.Array:
    words = image.words(place)
    if target.precision <= 18:
        low = words.view(np.int64)
        halves = np.column_stack([low, low >> 63])
    else:
        # Big-endian two's complement of 0 to 16 bytes as pairs of low and high 64 bits.
        sizes = (words & np.uint64(0xFFFFFFFF)).astype(np.int64)
        if (sizes > 16).any():
            raise DataError("A binary row has a decimal of more than 16 bytes: it is corrupt")
        item = image.variable_part(words, sizes)
        places = np.arange(16) - (16 - sizes)[:, None]
        found = item.data[item.starts[:, None] + np.maximum(places, 0)]
        # Java writes as few bytes as the sign allows. The sign fills the rest.
        fill = np.where(sizes > 0, (item.data[item.starts] >> 7) * np.uint8(255), 0)
        big_endian = np.where(places >= 0, found, fill[:, None]).astype(np.uint8)
        halves = np.ascontiguousarray(big_endian[:, ::-1]).view("<i8")
    buffers = [_validity(nulls), pa.py_buffer(np.ascontiguousarray(halves))]
    return pa.Array.from_buffers(target, len(nulls), buffers)


def _units_since_epoch(image: _RowImage, words: Array, nulls: Array, unit: str) -> Array:
    sizes = np.where(nulls, 0, WORD_SIZE_BYTES)
    starts = image.variable_part(words, sizes).starts
    millis = np.where(nulls, 0, image.rows.words_at(starts, "<i8"))
    nanos = (words & np.uint64(0xFFFFFFFF)).astype(np.int64)
    per_milli, nanos_per_unit = (1_000, 1_000) if unit == "us" else (1_000_000, 1)
    # One less, because nanoseconds are added.
    millis_max = np.iinfo(np.int64).max // per_milli - 1
    if (np.abs(millis) > millis_max).any():
        raise UnsupportedError(
            f"A timestamp of a binary row is out of range for 64 bits of {unit} since 1970"
        )
    units: Array = millis * per_milli + nanos // nanos_per_unit
    return units


def _validity(nulls: Array) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
