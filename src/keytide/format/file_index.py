"""File indexes: allow a reader to skip a data file without opening it.

An index file has a header, which contains the position of each index of each column, and then the
indexes. The header ends with space reserved for later versions. Keytide stores a checksum of all
other bytes there: a damaged index would hide rows. Index files of other writers have none, and are
accepted.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence

from keytide.errors import DataError
from keytide.options.keys import FILE_INDEX_READ_ENABLED

__all__ = [
    "ColumnIndexes",
    "decode_file_index",
    "encode_file_index",
    "index_name",
    "index_name_among",
    "later_index_name",
]

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
_ENDING = ".index"


def index_name(data_file_name: str) -> str:
    """The name of the index file of a data file, in the same folder."""
    return f"{data_file_name}{_ENDING}"


def index_name_among(extra_files: Sequence[str]) -> str | None:
    """The index file among the extra files of a data file. Other engines number later ones."""
    return next((name for name in reversed(extra_files) if name.endswith(_ENDING)), None)


def later_index_name(data_file_name: str, before: str) -> str:
    """The name of an index file that replaces another one."""
    stem = f"{data_file_name}-"
    number = before.removesuffix(_ENDING).removeprefix(stem)
    return f"{stem}{int(number) + 1 if number.isdecimal() else 1}{_ENDING}"


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
        return _decoded(data)
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


def _decoded(data: bytes) -> ColumnIndexes:
    magic, version, length, columns = _BEGINNING.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError(f"it begins with magic {magic} and version {version}")
    if not _is_intact(data, length):
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


def _piece(data: bytes, start: int, size: int) -> bytes:
    if not 0 <= start <= start + size <= len(data):
        raise ValueError(f"{size} bytes from byte {start} on in a file of {len(data)} bytes")
    return data[start : start + size]


def _sealed(data: bytes, head_length: int) -> bytes:
    checksum = zlib.crc32(data).to_bytes(_SUM_BYTES, "big")
    return data[: head_length - _SUM_BYTES] + checksum + data[head_length:]


def _is_intact(data: bytes, head_length: int) -> bool:
    """Whether the bytes are unchanged since they were sealed, or have no seal."""
    end = head_length - _SUM_BYTES
    if data[max(0, end - len(_SEAL)) : max(0, end)] != _SEAL:
        return True
    unsealed = data[:end] + bytes(_SUM_BYTES) + data[head_length:]
    return _sealed(unsealed, head_length) == data


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
