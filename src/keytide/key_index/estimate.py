"""Estimates the size of an index of keys before it exists."""

from __future__ import annotations

from dataclasses import dataclass

from keytide.base.record import Record
from keytide.errors import InvalidError

__all__ = ["Size", "sizes_of"]

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
    entry = _HASH_BYTES + _width(files - 1) + _width(of_bucket - 1) + _stored(comparison_bytes)
    sizes = [
        Size("index", entry * keys, entry),
        Size("index, including runs that are not merged yet", *_all_runs(entry, keys)),
        Size("index of a bucket, including these runs", *_all_runs(entry, of_bucket)),
    ]
    if key_bytes is not None:
        of_pinot = key_bytes + _PINOT_KEY_BYTES + _PINOT_ENTRY_BYTES
        sizes.append(
            Size("heap of Pinot, according to its own estimator", of_pinot * keys, of_pinot)
        )
    return tuple(sizes)


def _all_runs(entry: int, keys: int) -> tuple[int, float]:
    return _OF_ALL_RUNS * entry * keys, _OF_ALL_RUNS * entry


_WIDTHS = (0, 1, 2, 4, 8)


def _width(top: int) -> int:
    """The bytes per entry for numbers up to this one."""
    return next(width for width in _WIDTHS if top < 1 << 8 * width)


def _stored(width: int) -> int:
    return next(stored for stored in _WIDTHS if width <= stored)
