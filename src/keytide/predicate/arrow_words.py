"""Reads the metadata of an Arrow schema with duplicate keys.

pyarrow returns a dict, which has each key only once. Arrow's C data interface returns everything:
the number of pairs, and for each its key and value, as a 32-bit length and the bytes.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

__all__ = ["words_of"]


class _Schema(ctypes.Structure):
    # The first members of the interface's struct ArrowSchema.
    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


def words_of(schema: pa.Schema) -> list[tuple[str, str]]:
    """The pairs of the schema's metadata, in order."""
    capsule = schema.__arrow_c_schema__()
    place = _Schema.from_address(_pointer(capsule, b"arrow_schema")).metadata
    if place is None:
        return []
    count, place = _number(place)
    pairs = []
    for _ in range(count):
        key, place = _text(place)
        value, place = _text(place)
        pairs.append((key, value))
    return pairs


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _number(place: int) -> tuple[int, int]:
    return ctypes.c_int32.from_address(place).value, place + 4


def _text(place: int) -> tuple[str, int]:
    length, place = _number(place)
    return ctypes.string_at(place, length).decode(), place + length
