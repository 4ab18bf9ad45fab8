"""Keys in an index: hashes, entries, comparison values, and the size of an index.

A key is identified by a hash of 96 bits. The first 64 bits are those of the table's hash function.
The others are an independent checksum, so that keys which collide in one differ in the other. A key
is first serialized as in Apache Pinot (section 1.6 of its dossier): a single column unchanged,
several columns one after the other, each with a length prefix if its length varies.

Rows of a key are compared by values. Numbers and times are stored in the index as 8-byte integers
with the same order as the values. Strings, bytes, decimals, and the columns of several producers
have no such numbers. For these, the index contains the location of the current row, and the row is
read.

The size of an index can be estimated before it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass
from keytide.base.process import cached_property
from keytide.base.record import Record
from keytide.errors import InvalidError
from keytide.types import Field

# -- key hashes of 96 bits -------------------------------------------------------------------------


if TYPE_CHECKING:
    import polars_hash as plh


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


def matches_among(known: KeyHashes, probes: KeyHashes) -> tuple[Places, Places]:
    """The indexes of the probes that are among the known hashes, and their indexes there.

    REQUIRES: the known hashes are in the order of their heads.
    """
    at = np.searchsorted(known.heads, probes.heads)
    heads, left = known.heads, np.arange(len(probes))
    places, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    # Keys with equal heads are adjacent, and there is hardly ever more than one.
    while True:
        left = left[at[left] < len(heads)]
        left = left[heads[at[left]] == probes.heads[left]]
        if not len(left):
            break
        is_it = known.checks[at[left]] == probes.checks[left]
        places.append(left[is_it])
        found.append(at[left[is_it]])
        left = left[~is_it]
        at[left] += 1
    return np.concatenate(places), np.concatenate(found)


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


HASH_FUNCTIONS: Mapping[str, Callable[[plh.HExpr], pl.Expr]] = {
    "none": _upper,
    "uuid": _upper,
    "xxh128": _upper,
    "xxhash": lambda key: key.nchash.xxhash64(),
    "murmur3": lambda key: (key.nchash.murmur128() % (1 << 64)).cast(pl.UInt64),
    "md5": lambda key: key.nchash.md5().str.slice(0, 16).str.to_integer(base=16, dtype=pl.UInt64),
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
        parts += (
            [_fixed(pc.binary_length(values).to_numpy().astype(">i4")), values]
            if is_long
            else [values]
        )
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
    is_text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
    if is_text or pa.types.is_decimal(type_):
        return values.cast(pa.large_string()).cast(pa.large_binary()), True
    is_bytes = pa.types.is_binary(type_) or pa.types.is_large_binary(type_)
    if is_bytes or pa.types.is_fixed_size_binary(type_):
        return values.cast(pa.large_binary()), True
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


# -- entries as columns ----------------------------------------------------------------------------


Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Entries:
    """The location of the current row of each key, and its comparison number.

    `files` are the numbers of the data files in the index, and `positions` the positions of the
    rows in them.
    """

    hashes: KeyHashes
    files: Numbers
    positions: Numbers
    comparisons: Numbers

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, places: Numbers | slice) -> Entries:
        """The entries at some positions."""
        return Entries(
            self.hashes.take(places),
            self.files[places],
            self.positions[places],
            self.comparisons[places],
        )

    def find(self, probes: KeyHashes) -> tuple[Numbers, Entries]:
        """The indexes of the probes that have an entry here, and these entries.

        REQUIRES: the entries are in hash order.
        """
        places, at = matches_among(self.hashes, probes)
        return places, self.take(at)

    def cuts(self, stretch: int) -> list[int]:
        """See `Run`. REQUIRES: as `find`."""
        return [int(head) for head in self.hashes.heads[::stretch].tolist()]

    def between(self, low: int, high: int | None) -> Entries:
        """See `Run`. REQUIRES: as `find`."""
        return self.take(between(self.hashes.heads, low, high))

    @classmethod
    def together(cls, parts: Sequence[Entries]) -> Entries:
        """Concatenated entries."""
        given = [part for part in parts if len(part)] or [cls.none()]
        if len(given) == 1:
            return given[0]
        heads = np.concatenate([part.hashes.heads for part in given])
        checks = np.concatenate([part.hashes.checks for part in given])
        return cls(
            KeyHashes(heads, checks),
            np.concatenate([part.files for part in given]),
            np.concatenate([part.positions for part in given]),
            np.concatenate([part.comparisons for part in given]),
        )

    @classmethod
    def none(cls) -> Entries:
        """No entries."""
        nothing = np.empty(0, np.int64)
        return cls(KeyHashes.none(), nothing, nothing, nothing)


def newest_of_each(entries: Entries) -> Entries:
    """The last entry of each key, in hash order."""
    heads, checks = entries.hashes.heads, entries.hashes.checks
    if bool(np.all(heads[1:] > heads[:-1])):
        return entries
    order = np.argsort(heads, kind="stable")
    heads, checks = heads[order], checks[order]
    if not bool(np.all((heads[1:] != heads[:-1]) | (checks[1:] >= checks[:-1]))):
        order = np.lexsort((np.arange(len(entries)), entries.hashes.checks, entries.hashes.heads))
        heads, checks = entries.hashes.heads[order], entries.hashes.checks[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (heads[1:] != heads[:-1]) | (checks[1:] != checks[:-1])
    return entries.take(order[is_last])


# -- comparison values -----------------------------------------------------------------------------


NOTHING = np.iinfo(np.int64).min
"""The number for NULL, and for a key that was never written: lower than all values."""

_NUMBERED = frozenset(
    ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "TIME",
     "TIMESTAMP", "TIMESTAMP_LTZ")
)  # fmt: skip


_MS_OF_A_DAY = 86_400_000
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def reduced(numbers: Numbers, by: int) -> Numbers:
    """The numbers reduced by `by`. `NOTHING` stays."""
    low = min(NOTHING + by, np.iinfo(np.int64).max)
    return np.asarray(np.maximum(numbers, low) - by, np.int64)


@dataclass(frozen=True)
class Comparison:
    """How rows of a key are compared: by one column, or by one for each producer. Can be pickled.

    If there are several columns, a row has a value in the column of its producer and is compared
    with the key's value there. It takes over the values in the other columns. With `descending` the
    smallest value is the latest. Without columns all rows tie.
    """

    fields: tuple[Field, ...] = ()
    descending: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The column names."""
        return tuple(field.name for field in self.fields)

    @property
    def has_producers(self) -> bool:
        """Whether there are several columns, one for each producer."""
        return len(self.fields) > 1

    @property
    def is_in_index(self) -> bool:
        """Whether index entries contain everything for a comparison. If not, rows are read."""
        return not self.has_producers and all(f.type.root in _NUMBERED for f in self.fields)

    @property
    def unit(self) -> str:
        """The unit of the numbers in entries. It can change if a column gets a wider type."""
        if not self.fields or not self.is_in_index:
            return "nothing"
        type_ = self.fields[0].type.to_arrow()
        if pa.types.is_floating(type_):
            return "floating point"
        return str(type_.unit) if pa.types.is_timestamp(type_) else "whole numbers"

    def in_index(self, rows: pa.Table) -> Numbers:
        """The numbers of rows for index entries, 0 if entries do not contain them."""
        if not self.fields or not self.is_in_index:
            return np.zeros(rows.num_rows, np.int64)
        numbers: Numbers = self.numbers(rows)[0]
        return numbers

    def numbers(self, rows: pa.Table) -> Numbers:
        """The rows of each column as numbers with the same order as the values.

        The larger number is the later one. NULL is `NOTHING`, and NaN is highest (rule R1 of
        docs/semantics.md). Only numbers of one call, or of columns stored in the index, can be
        compared.
        """
        if not self.fields:
            return np.zeros((1, rows.num_rows), np.int64)
        return np.stack([self._of_column(rows.column(f.name), f) for f in self.fields])

    def compared_columns(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """In which columns rows with these numbers are compared with their keys' values."""
        if not self.has_producers:
            return np.ones_like(numbers, np.bool_)
        says: npt.NDArray[np.bool_] = numbers > NOTHING
        return says

    def ticks(self, milliseconds: int) -> int:
        """The difference between numbers of times with this distance, rounded down."""
        type_ = self.fields[0].type.to_arrow()
        if pa.types.is_date(type_):
            return milliseconds // _MS_OF_A_DAY
        unit = str(type_.unit) if pa.types.is_timestamp(type_) else "ms"
        return milliseconds * _PER_SECOND[unit] // 1000

    def _of_column(self, values: pa.ChunkedArray, field: Field) -> Numbers:
        array = values.combine_chunks()
        if field.type.root not in _NUMBERED:
            padded = pc.utf8_rtrim(array, " ") if field.type.root == "CHAR" else array
            ranks = pc.rank(padded, sort_keys="ascending", tiebreaker="dense")
            numbers = np.asarray(ranks).astype(np.int64)
        elif pa.types.is_floating(array.type):
            found = np.asarray(array.cast(pa.float64()).fill_null(0.0)) + 0.0  # a single zero
            bits = np.where(np.isnan(found), np.nan, found).view(np.int64)  # a single NaN
            # The bits of negative numbers are in reverse order.
            numbers = np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits)
        else:
            wide = array.cast(pa.int32()) if array.type in (pa.date32(), pa.time32("ms")) else array
            numbers = np.asarray(wide.cast(pa.int64()).fill_null(0)).astype(np.int64)
        if self.descending:
            numbers = ~numbers
        # The lowest number is reserved for NULL, so the two lowest BIGINT values are equal.
        numbers = np.maximum(numbers, NOTHING + 1)
        numbers[np.asarray(array.is_null())] = NOTHING
        return numbers


# -- estimates of the size -------------------------------------------------------------------------


_HASH_BYTES = 8 + 4
# A run absorbs older runs less than twice as long, so all other runs together have at most as many
# entries as the longest one.
_OF_ALL_RUNS = 2
# With these, every size is a number of 64 bits.
_KEYS_MAX, _KEY_BYTES_MAX, _INT_MAX = 1 << 48, 1 << 14, (1 << 31) - 1
# From Pinot's own estimator: heap per key in addition to the values, and per entry.
_PINOT_KEY_BYTES, _PINOT_ENTRY_BYTES = 32, 60


@dataclass(frozen=True)
class Size(Record):
    """A size in bytes, in total and per key."""

    what: str
    bytes: int
    bytes_a_key: float


def sizes_of(
    keys: int, buckets: int, files: int, comparison_bytes: int, key_bytes: int | None = None
) -> tuple[Size, ...]:
    """The sizes for a table with this many keys: its index, that of one bucket, and Pinot's heap.

    `files` are the data files of a bucket. `comparison_bytes` is the number of bytes in which
    comparison values differ, 0 to 8. The widths of keys, `key_bytes` in total, do not affect an
    index, which stores hashes. Without them the result does not include Pinot. Raises
    `InvalidError` for impossible numbers.
    """
    for name, number, least, most in (
        ("keys", keys, 1, _KEYS_MAX),
        ("buckets", buckets, 1, _INT_MAX),
        ("files", files, 1, _INT_MAX),
        ("comparison_bytes", comparison_bytes, 0, _WIDTHS[-1]),
        ("key_bytes", key_bytes or 0, 0, _KEY_BYTES_MAX),
    ):
        if number < least:
            raise InvalidError(f"{name} is {number}; expected {least} or more")
        if number > most:
            raise InvalidError(f"{name} is {number}; expected {most} or less")
    of_bucket = -(-keys // buckets)
    entry = (
        _HASH_BYTES
        + _width(files - 1)
        + _width(of_bucket - 1)
        + next(stored for stored in _WIDTHS if comparison_bytes <= stored)
    )
    of_runs = _OF_ALL_RUNS * entry
    sizes = [
        Size("index", entry * keys, entry),
        Size("index, including runs that are not merged yet", of_runs * keys, of_runs),
        Size("index of a bucket, including these runs", of_runs * of_bucket, of_runs),
    ]
    if key_bytes is not None:
        of_pinot = key_bytes + _PINOT_KEY_BYTES + _PINOT_ENTRY_BYTES
        sizes.append(
            Size("heap of Pinot, according to its own estimator", of_pinot * keys, of_pinot)
        )
    return tuple(sizes)


_WIDTHS = (0, 1, 2, 4, 8)


def _width(top: int) -> int:
    """The bytes per entry for numbers up to this one."""
    return next(width for width in _WIDTHS if top < 1 << 8 * width)
