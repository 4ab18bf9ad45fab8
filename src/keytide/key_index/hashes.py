"""Key hashes of 96 bits, which identify keys in an index.

The first 64 bits are those of the table's hash function. The others are an independent checksum, so
that keys which collide in one differ in the other. A key is first serialized as in Apache Pinot
(section 1.6 of its dossier): a single column unchanged, several columns one after the other, each
with a length prefix if its length varies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.lazily import cached_property
from keytide.errors import InvalidError
from keytide.types import Field

if TYPE_CHECKING:
    import polars_hash as plh

__all__ = [
    "HASH_FUNCTIONS",
    "KeyHashes",
    "Places",
    "between",
    "found_among",
    "hash_keys",
    "serialized_keys",
]

Heads = npt.NDArray[np.uint64]
Checks = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]


_FEW_KEYS = 1000


@dataclass(frozen=True)
class KeyHashes:
    """The hashes of some keys, in order."""

    heads: Heads
    checks: Checks

    def __len__(self) -> int:
        return len(self.heads)

    @cached_property
    def order(self) -> Places:
        """The indexes in the order of the heads. Equal heads keep their order."""
        order = np.argsort(self.heads)  # several times as fast as a stable sort
        heads = self.heads[order]
        is_one_of_each = bool(np.all(heads[1:] > heads[:-1]))
        return order if is_one_of_each else np.argsort(self.heads, kind="stable")

    @cached_property
    def ordered(self) -> KeyHashes:
        """The hashes in order."""
        return self.take(self.order)

    def take(self, places: Places | slice) -> KeyHashes:
        """The hashes at some positions."""
        return KeyHashes(self.heads[places], self.checks[places])

    @classmethod
    def none(cls) -> KeyHashes:
        """No hashes."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.uint32))


def between(heads: Heads, low: int, high: int | None) -> slice:
    """The slice of ascending heads from `low` up to, but not including, `high` (None: no limit)."""
    start = int(np.searchsorted(heads, np.uint64(low)))
    return slice(start, None if high is None else int(np.searchsorted(heads, np.uint64(high))))


def found_among(known: KeyHashes, probes: KeyHashes) -> tuple[Places, Places]:
    """The indexes of the probes that are among the known hashes, and their indexes there.

    REQUIRES: the known hashes are in the order of their heads.
    """
    at = np.searchsorted(known.heads, probes.heads)
    left = np.arange(len(probes))
    places, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    # Keys with equal heads are adjacent, and there is hardly ever more than one.
    while len(left := _where_equal(known.heads, at, probes.heads, left)):
        is_it = known.checks[at[left]] == probes.checks[left]
        places.append(left[is_it])
        found.append(at[left[is_it]])
        left = left[~is_it]
        at[left] += 1
    return np.concatenate(places), np.concatenate(found)


def _where_equal(heads: Heads, at: Places, asked: Heads, left: Places) -> Places:
    """The probes whose head equals the one at their position."""
    left = left[at[left] < len(heads)]
    equal: Places = left[heads[at[left]] == asked[left]]
    return equal


def hash_keys(keys: pa.Table, fields: Sequence[Field], function: str) -> KeyHashes:
    """The hashes of some keys. `fields` are the key columns in key order.

    `function` is one of `HASH_FUNCTIONS`. Raises `InvalidError` for NULL and for an unsupported
    type.
    """
    texts = pl.from_arrow(serialized_keys(keys, fields, as_uuids=function == "uuid"))
    assert isinstance(texts, pl.Series)
    frame = texts.alias("key").to_frame()
    # Sequentially, because waking a thread takes longer than hashing a few keys.
    select = frame.select_seq if len(texts) < _FEW_KEYS else frame.select
    found = select(_head_and_check(function))
    return KeyHashes(found["head"].to_numpy(), found["check"].to_numpy().astype(np.uint32))


@cache  # finding a plugin for each expression takes longer than hashing a key
def _head_and_check(function: str) -> tuple[pl.Expr, pl.Expr]:
    import polars_hash as plh  # imported here, because other tables do not need it

    head = HASH_FUNCTIONS[function](plh.col("key")).alias("head")
    return head, plh.col("key").nchash.crc32c().alias("check")


def _upper(key: plh.HExpr) -> pl.Expr:
    return (key.nchash.xxh3_128() // (1 << 64)).cast(pl.UInt64)


def _lower(key: plh.HExpr) -> pl.Expr:
    return (key.nchash.murmur128() % (1 << 64)).cast(pl.UInt64)


def _digest(key: plh.HExpr) -> pl.Expr:
    return key.nchash.md5().str.slice(0, 16).str.to_integer(base=16, dtype=pl.UInt64)


HASH_FUNCTIONS: Mapping[str, Callable[[plh.HExpr], pl.Expr]] = {
    "none": _upper,
    "uuid": _upper,
    "xxh128": _upper,
    "xxhash": lambda key: key.nchash.xxhash64(),
    "murmur3": _lower,
    "md5": _digest,
}
"""The supported hash functions by their names in Pinot, each with 64 bits.

With `none` Pinot uses whole keys, which an index of fixed width cannot do. Any of these functions
distinguishes keys just as well. With `uuid` it uses the number that a string represents.
"""


def serialized_keys(keys: pa.Table, fields: Sequence[Field], *, as_uuids: bool = False) -> pa.Array:
    """Each key as bytes in Pinot's serialization.

    If all strings are UUIDs, they can be stored as such.
    """
    if as_uuids:
        keys = _spelled_alike(keys, fields)
    columns = [_written(keys.column(f.name).combine_chunks(), f) for f in fields]
    if len(columns) == 1:
        return columns[0][0]
    parts: list[pa.Array] = []
    for values, is_long in columns:
        parts += [_lengths(values), values] if is_long else [values]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


def _spelled_alike(keys: pa.Table, fields: Sequence[Field]) -> pa.Table:
    """The keys with UUIDs in lower case, if all columns of the key contain UUIDs."""
    texts = [keys.column(f.name) for f in fields]
    if not all(pa.types.is_string(t.type) or pa.types.is_large_string(t.type) for t in texts):
        return keys
    is_uuid = pc.match_substring_regex(texts[0], _UUID)
    for each in texts[1:]:
        is_uuid = pc.and_(is_uuid, pc.match_substring_regex(each, _UUID))
    columns = [pc.if_else(is_uuid, pc.utf8_lower(each), each) for each in texts]
    return pa.table(columns, [f.name for f in fields])


def _written(values: pa.Array, field: Field) -> tuple[pa.Array, bool]:
    """The bytes of each value of a column, and whether their lengths can vary."""
    if values.null_count:
        raise InvalidError(f"key column {field.name!r} has NULL in {values.null_count} rows")
    type_ = values.type
    if pa.types.is_dictionary(type_):
        values, type_ = values.dictionary_decode(), type_.value_type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return values.cast(pa.large_string()).cast(pa.large_binary()), True
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return values.cast(pa.large_binary()), True
    if pa.types.is_fixed_size_binary(type_):
        return values.cast(pa.large_binary()), True
    if pa.types.is_decimal(type_):
        return values.cast(pa.large_string()).cast(pa.large_binary()), True
    return _fixed(_numbers(values, field)), False


def _numbers(values: pa.Array, field: Field) -> npt.NDArray[Any]:
    """Fixed-width values, big-endian: 4 bytes for types that fit, otherwise 8."""
    type_ = values.type
    if pa.types.is_floating(type_):
        # Zero has two signs, but is one key.
        found = np.asarray(values) + 0.0
        return found.astype(">f4" if type_.bit_width == 32 else ">f8")
    if pa.types.is_boolean(type_):
        return np.asarray(values.cast(pa.int8())).astype(">i4")
    if pa.types.is_temporal(type_):
        values = values.cast(pa.int32() if type_.bit_width == 32 else pa.int64())
    elif not pa.types.is_integer(type_):
        raise InvalidError(
            f"key column {field.name!r} is {field.type.sql()}, which a key index does not support"
        )
    return np.asarray(values).astype(">i4" if values.type.bit_width <= 32 else ">i8")


def _fixed(numbers: npt.NDArray[Any]) -> pa.Array:
    width = numbers.dtype.itemsize
    offsets = pa.py_buffer(np.arange(0, (len(numbers) + 1) * width, width, dtype=np.int64))
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.large_binary(), len(numbers), [None, offsets, data])


def _lengths(values: pa.Array) -> pa.Array:
    return _fixed(pc.binary_length(values).to_numpy().astype(">i4"))
