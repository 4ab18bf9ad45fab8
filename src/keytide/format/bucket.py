"""Which bucket a row belongs to: the hash of the format over key columns.

The hash covers the binary row of the bucket-key columns, but no row is ever built: murmur3 takes
4-byte words, and the slots of a column give the same word of many rows together. The work is done
block by block, so that the intermediate words stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keytide.errors import InvalidError
from keytide.format.binary_row import (
    WORD_SIZE_BYTES,
    conformed,
    decimal_halves,
    header_size_bytes,
    plain_words,
    slots_of,
    text_bytes,
)
from keytide.options import keys
from keytide.types import DataType

Array = npt.NDArray[Any]
BlockFunction = Callable[[Sequence[pa.Array], Sequence[DataType]], Array]

BLOCK_ROWS = 16_384
# Defined by the format: every engine must find a key in the same bucket.
SEED = 42


def bucket_ids(
    columns: Sequence[pa.Array | pa.ChunkedArray],
    types: Sequence[DataType],
    num_buckets: int,
    function: str = "default",
) -> npt.NDArray[np.int32]:
    """The bucket of every row, from its bucket-key columns in bucket-key order.

    ``function`` is the table's ``bucket-function.type``: ``default`` (murmur3), ``mod`` (one INT or
    BIGINT column) or ``hive``. Raises InvalidError for an unknown function, for a number of buckets
    below 1, and for a column type that the function does not support.
    """
    if num_buckets < 1:
        raise InvalidError(f"The number of buckets must be at least 1, found {num_buckets}")
    if function not in _BUCKETS_BY:
        raise InvalidError(
            f"Unknown '{keys.BUCKET_FUNCTION_TYPE}' {function!r}; known are "
            f"{', '.join(_BUCKETS_BY)}"
        )
    if function == "mod" and (len(types) != 1 or types[0].root not in ("INT", "BIGINT")):
        found = ", ".join(type_.sql() for type_ in types)
        raise InvalidError(
            f"'{keys.BUCKET_FUNCTION_TYPE}' = 'mod' needs one {keys.BUCKET_KEY} column of type INT "
            f"or BIGINT, found ({found}); choose another '{keys.BUCKET_KEY}' or the function "
            "'default'"
        )
    if function == "default" and num_buckets == 1:
        return np.zeros(_row_count(columns), np.int32)
    buckets_of = partial(_BUCKETS_BY[function], num_buckets=num_buckets)
    return _by_block(buckets_of, columns, types)


def row_hashes(
    columns: Sequence[pa.Array | pa.ChunkedArray], types: Sequence[DataType]
) -> npt.NDArray[np.int32]:
    """The murmur3 hash of every row, which the index of dynamic buckets uses too.

    Types matter: INT -1 and BIGINT -1 differ, and so do decimals on both sides of precision 18.
    """
    return _by_block(_murmur_block, columns, types)


def murmur3(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    """Murmur3 (x86, 32 bits, seed 42) of every row of a matrix of little-endian words."""
    hashes = np.full(len(words), SEED, np.uint32)
    for place in range(words.shape[1]):
        hashes = _mixed(hashes, words[:, place])
    return _finished(hashes, 4 * words.shape[1])


# --- buckets from hashes -----------------------------------------------------------------------


def _default_buckets(
    block: Sequence[pa.Array], types: Sequence[DataType], num_buckets: int
) -> Array:
    # Java uses the absolute value of the remainder, which is the remainder of the absolute value.
    # The absolute value of the smallest 32-bit number wraps to itself, and is correct as an
    # unsigned number.
    magnitudes = np.abs(_murmur_block(block, types)).view(np.uint32)
    return _remainder(magnitudes, num_buckets)


def _hive_buckets(block: Sequence[pa.Array], types: Sequence[DataType], num_buckets: int) -> Array:
    hashes = np.zeros(_row_count(block), np.uint32)
    for column, type_ in zip(block, types, strict=True):
        hashes = hashes * np.uint32(31) + _hive_values(column, type_)
    # As in Hive: the sign bit is cleared instead of taking the absolute value.
    return _remainder(hashes & np.uint32(0x7FFFFFFF), num_buckets)


def _mod_buckets(block: Sequence[pa.Array], types: Sequence[DataType], num_buckets: int) -> Array:
    values = plain_words(conformed(block[0], types[0]))
    signed = values.view(f"i{values.dtype.itemsize}").astype(np.int64, copy=False)
    return _remainder(signed, num_buckets).astype(np.int32)


def _remainder(values: Array, num_buckets: int) -> Array:
    """The remainder with the divisor's sign, so never negative."""
    # Division by a constant is vectorized, the remainder is not.
    divisor = values.dtype.type(num_buckets)
    remainders: Array = values - values // divisor * divisor
    return remainders


_BUCKETS_BY = {"default": _default_buckets, "mod": _mod_buckets, "hive": _hive_buckets}


# --- blocks ------------------------------------------------------------------------------------


def _row_count(columns: Sequence[pa.Array | pa.ChunkedArray]) -> int:
    return len(columns[0]) if columns else 1


def _by_block(
    function: BlockFunction,
    columns: Sequence[pa.Array | pa.ChunkedArray],
    types: Sequence[DataType],
) -> npt.NDArray[np.int32]:
    results = np.empty(_row_count(columns), np.int32)
    for start in range(0, len(results), BLOCK_ROWS):
        block = [column.slice(start, BLOCK_ROWS) for column in columns]
        results[start : start + BLOCK_ROWS] = function(block, types)
    return results


# --- murmur ------------------------------------------------------------------------------------

_TAIL_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF], np.uint32)


def _murmur_block(columns: Sequence[pa.Array], types: Sequence[DataType]) -> Array:
    slots = [slots_of(column, type_) for column, type_ in zip(columns, types, strict=True)]
    # One element represents all rows until the first word in which rows differ.
    hashes = np.full(1, SEED, np.uint32)
    # The header: zeros for the row kind, and the null bits.
    header: list[Array] = [np.zeros(1, np.uint32)] * (header_size_bytes(len(slots)) // 4)
    for place, each in enumerate(slots):
        if each.nulls is not None:
            word, bit = divmod(place + 8, 32)
            header[word] = header[word] | (each.nulls.astype(np.uint32) << np.uint32(bit))
    for header_word in header:
        hashes = _mixed(hashes, header_word)
    sizes: Array = np.full(1, header_size_bytes(len(slots)) + WORD_SIZE_BYTES * len(slots))
    for each in slots:
        words = each.words_with_offset(sizes).view(np.uint32)
        hashes = _mixed(_mixed(hashes, words[0::2]), words[1::2])
        if each.variable_part is not None:
            sizes = sizes + each.variable_part.padded_sizes_bytes
    for items in (each.variable_part for each in slots):
        if items is None:
            continue
        # The words of each row's bytes, padded with zeros. Rows drop out when they end.
        counts = items.padded_sizes_bytes // 4
        rows = np.flatnonzero(counts)
        step = 0
        while len(rows):
            outside = items.words_at(items.starts[rows] + 4 * step, "<u4")
            left = np.clip(items.sizes_bytes[rows] - 4 * step, 0, 4)
            hashes[rows] = _mixed(hashes[rows], outside & _TAIL_MASKS[left])
            step += 1
            rows = rows[counts[rows] > step]
    return _finished(hashes, sizes)


def _mixed(hashes: Array, words: Array) -> Array:
    scrambled = _rotated(words * np.uint32(0xCC9E2D51), 15)
    scrambled *= np.uint32(0x1B873593)
    mixed = _rotated(hashes ^ scrambled, 13)
    mixed *= np.uint32(5)
    mixed += np.uint32(0xE6546B64)
    return mixed


def _rotated(words: Array, bits: int) -> Array:
    rotated: Array = words << np.uint32(bits)
    rotated |= words >> np.uint32(32 - bits)
    return rotated


def _finished(hashes: Array, sizes_bytes: Array | int) -> npt.NDArray[np.int32]:
    done = hashes ^ np.asarray(sizes_bytes, np.uint32)
    done ^= done >> np.uint32(16)
    done *= np.uint32(0x85EBCA6B)
    done ^= done >> np.uint32(13)
    done *= np.uint32(0xC2B2AE35)
    done ^= done >> np.uint32(16)
    return done.view(np.int32)


# --- hive --------------------------------------------------------------------------------------


def _hive_values(column: pa.Array, type_: DataType) -> Array:
    """The hash of every value of a column. 0 for a NULL."""
    if column.null_count == len(column):
        return np.zeros(len(column), np.uint32)
    if type_.root not in _HIVE_ROOTS:
        raise InvalidError(
            f"'{keys.BUCKET_FUNCTION_TYPE}' = 'hive' cannot hash a column of type {type_.sql()}; "
            f"choose another '{keys.BUCKET_KEY}' or the function 'default'"
        )
    array = conformed(column, type_)
    if type_.root in ("CHAR", "VARCHAR", "BINARY", "VARBINARY"):
        # The polynomial of 31 over signed bytes, as differences of running sums.
        text = text_bytes(array)
        sizes = text.sizes_bytes
        # In 32 bits throughout: overflow wraps as for an int in Java.
        powers = np.full(int(sizes.max(initial=0)), 31, np.uint32)
        powers[:1] = 1
        np.multiply.accumulate(powers, out=powers)
        ends = np.cumsum(sizes)
        exponents = np.repeat(ends, sizes) - np.arange(int(sizes.sum())) - 1
        digits = text.gathered().view(np.int8).astype(np.int32).view(np.uint32)
        sums = np.concatenate([[0], np.cumsum(digits * powers[exponents], dtype=np.uint32)])
        hashes: Array = sums[ends] - sums[ends - sizes]
        return hashes.astype(np.uint32, copy=False)
    if type_.root == "DECIMAL":
        return _hive_decimals(array, type_.to_arrow().scale)
    bits = plain_words(array)
    if type_.root in ("FLOAT", "DOUBLE"):
        # One bit pattern for both zeros, and Java's canonical one for every NaN.
        width = bits.dtype.itemsize
        values = bits.view(f"f{width}")
        canonical = np.where(values == 0, 0, np.where(np.isnan(values), np.nan, values))
        bits = canonical.astype(values.dtype).view(bits.dtype)
    # The low half of 8 bytes xor their high half. Narrower integers keep their sign.
    if bits.dtype.itemsize == 8:
        folded: Array = (bits ^ (bits >> np.uint64(32))).astype(np.uint32)
    else:
        folded = bits.view(f"i{bits.dtype.itemsize}").astype(np.int32).view(np.uint32)
    return folded


def _hive_decimals(array: pa.Array, scale: int) -> Array:
    """Java's BigDecimal hash of the value without trailing zeros after the decimal point."""
    low, high = decimal_halves(array)
    is_negative = high < 0
    # The absolute values as four rows of 32-bit digits, most significant first.
    borrowed = (low == 0).astype(np.int64)
    top = np.where(is_negative, ~high + borrowed, high).view(np.uint64)
    bottom = np.where(is_negative, ~low + np.uint64(1), low)
    shift, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    limbs = np.stack([top >> shift, top & mask, bottom >> shift, bottom & mask])
    scales = np.full(len(array), scale, np.uint32)
    left = np.arange(len(array))
    # Once for each digit after the decimal point, on the values that still end in zero.
    for _ in range(scale):
        dividends = limbs[:, left]
        quotients, remainders = np.empty_like(dividends), np.zeros(len(left), np.uint64)
        for place, limb in enumerate(dividends):
            part = (remainders << np.uint64(32)) | limb
            quotients[place] = part // np.uint64(10)
            remainders = part - quotients[place] * np.uint64(10)
        left, quotients = left[remainders == 0], quotients[:, remainders == 0]
        limbs[:, left] = quotients
        scales[left] -= np.uint32(1)
    hashes = np.zeros(len(array), np.uint32)
    for limb in limbs:
        hashes = hashes * np.uint32(31) + limb.astype(np.uint32)
    signed: Array = np.where(is_negative, ~hashes + np.uint32(1), hashes)
    scaled: Array = signed * np.uint32(31) + scales
    return scaled


_HIVE_ROOTS = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"),
    *("CHAR", "VARCHAR", "BINARY", "VARBINARY", "DATE", "TIME"),
)
