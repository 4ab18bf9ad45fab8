"""Avro object container files, the form of every manifest.

Records are plain dicts with member names as keys. Reading uses the schema inside the file: members
that a writer did not know are absent, and newer ones are present. The modules that interpret
records decide what absence means.

A `RecordType` defines what each member may contain. Reading and writing both check it, so nothing
can be written that cannot be read.

Records can be copied without encoding them again. The number of bytes of a record follows from its
members: integers take one byte for every seven bits, strings their length and their bytes. So the
positions of all records are computed from the columns.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

import fastavro
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.process import cached_property
from keytide.errors import DataError, InvalidError, KeytideError, UnsupportedError
from keytide.format.checksum import HEADER_SEAL, SEAL_KEY, UNSEALED

# -- records as columns and as bytes ---------------------------------------------------------------


Lengths: TypeAlias = "npt.NDArray[np.int64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"


@dataclass(frozen=True)
class EncodedRecords:
    """Records as `columns`, one for each member of the Avro `type`, and in `encoded` form."""

    type: Mapping[str, Any]
    columns: pl.DataFrame
    encoded: bytes

    @classmethod
    def together(cls, parts: Sequence[EncodedRecords]) -> EncodedRecords:
        """The records of several parts of one type, in order. There is at least one part."""
        columns = pl.concat([part.columns for part in parts])
        return cls(parts[0].type, columns, b"".join(part.encoded for part in parts))

    def __len__(self) -> int:
        return self.columns.height

    @cached_property
    def starts(self) -> Lengths:
        """Where each record begins in the bytes, and where the last one ends."""
        lengths = _record_lengths(self.type, self.columns)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        assert starts[-1] == len(self.encoded), "record lengths do not match their members"
        return starts

    def filter(self, kept: Mask) -> EncodedRecords:
        """The records for which `kept` is true."""
        if kept.all():
            return self
        edges = np.flatnonzero(np.diff(kept, prepend=False, append=False))
        places = self.starts[edges].tolist()
        view = memoryview(self.encoded)
        runs = [view[start:stop] for start, stop in zip(places[::2], places[1::2], strict=True)]
        return EncodedRecords(self.type, self.columns.filter(pl.Series(kept)), b"".join(runs))

    def pieces(self, count: int) -> Iterator[EncodedRecords]:
        """The records in at most `count` non-empty pieces with about the same number of bytes."""
        if count < 2:  # finding where records begin takes longer than compressing them
            yield from [self] if len(self) else []
            return
        ends = np.linspace(0, len(self.encoded), count + 1)
        cuts = dict.fromkeys(np.searchsorted(self.starts, ends).tolist())
        for start, stop in pairwise(cuts):
            encoded = self.encoded[self.starts[start] : self.starts[stop]]
            yield EncodedRecords(self.type, self.columns[start:stop], encoded)


def _record_lengths(type_: Mapping[str, Any], columns: pl.DataFrame) -> Lengths:
    lengths = [_lengths(member["type"], columns[member["name"]]) for member in type_["fields"]]
    total: Lengths = np.sum(lengths, axis=0, dtype=np.int64)
    return total


def _lengths(type_: Any, values: pl.Series) -> Lengths:
    if isinstance(type_, list):  # a union of null and another type, selected by a byte in front
        is_there: Mask = values.is_not_null().to_numpy()
        return 1 + np.where(is_there, _lengths(type_[1], values), 0)
    name = type_ if isinstance(type_, str) else type_["type"]
    if name == "record":
        return _record_lengths(type_, values.struct.unnest())
    if name == "array":  # one block, and a zero that ends the array
        counts = values.list.len().fill_null(0).to_numpy().astype(np.int64)
        filled = counts > 0
        lengths = np.ones(len(values), np.int64)
        if filled.any():
            starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[filled])[:-1]])
            of_items = _lengths(type_["items"], values.filter(pl.Series(filled)).explode())
            lengths[filled] += _varint_lengths(counts[filled]) + np.add.reduceat(of_items, starts)
        return lengths
    if name in ("int", "long"):
        numbers: Lengths = values.to_physical().fill_null(0).cast(pl.Int64).to_numpy()
        return _varint_lengths(numbers)
    assert name in ("string", "bytes")
    sizes: Lengths = values.cast(pl.Binary).bin.size().fill_null(0).cast(pl.Int64).to_numpy()
    return _varint_lengths(sizes) + sizes


def _varint_lengths(numbers: Lengths) -> Lengths:
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    more: Lengths = np.searchsorted(_NEXT_BYTE, zigzag, side="right")
    return more + 1


_NEXT_BYTE = np.array([1 << bits for bits in range(7, 64, 7)], np.uint64)


# -- object container files ------------------------------------------------------------------------


Record = dict[str, Any]
V = TypeVar("V")

NAMESPACE = "org.apache.paimon.avro.generated"


StoredFile: TypeAlias = tuple[bytes, str, "int | None"]
"""The bytes of a file, its path, and its recorded size, if any."""

Misfit: TypeAlias = "Callable[[Any], str | None]"
"""Returns which member of a value does not fit and what it contains. None if all fit."""


@dataclass(frozen=True)
class RecordType:
    """The type of the records in one kind of file."""

    schema: Record
    version: int
    misfit: Misfit

    @classmethod
    def of(cls, version: int, *members: Mapping[str, Any]) -> RecordType:
        """The record type of a version, prepared for reading and writing once for all files."""
        type_ = record("record", required("_VERSION", "int"), *members)
        return cls(fastavro.parse_schema(type_), version, _misfit(type_))

    def read(self, data: bytes, path: str, size: int | None = None) -> list[Record]:
        """All records of a container file, in order.

        Supports every codec of the Avro specification. `size` is the file length recorded in
        metadata, if any: a file truncated between two blocks would otherwise look complete. Raises
        DataError, which names `path`, if the file is damaged or a member has an invalid value, and
        UnsupportedError for another version.
        """
        _check_size(data, path, size)
        try:
            records: list[Any] = list(fastavro.reader(io.BytesIO(data)))
        except Exception as error:  # codecs and the decoder raise their own errors
            raise DataError(f"{path}: not a complete Avro file ({error})") from error
        if not HEADER_SEAL.is_intact(data):
            raise DataError(f"{path}: the checksum does not match; restore the file")
        for found in records:
            if found.get("_VERSION") != self.version:
                raise UnsupportedError(
                    f"{path}: record version {found.get('_VERSION')}, but this release "
                    f"reads only {self.version}"
                )
            misfit = self.misfit(found)
            if misfit is not None:
                raise DataError(f"{path}: missing or invalid member {misfit}")
        return records

    def read_encoded(self, files: Sequence[StoredFile]) -> list[EncodedRecords | None]:
        """The records of each file as columns and in encoded form, in a fraction of the time of
        `read`.

        None for a file that Keytide did not write, or of another version: its content must be
        checked member by member. Raises DataError, which names the path, if a file is damaged.
        """
        unpacked = [self._unpacked(file) for file in files]
        known = [each for each in unpacked if each is not None]
        # All files together: starting the decoder takes longer than decoding the records of most
        # files.
        count, encoded = sum(each.records for each in known), b"".join(e.encoded for e in known)
        columns = pl.read_avro(io.BytesIO(self._bare + self._block(count, encoded)))
        spans = pairwise(itertools.accumulate((each.records for each in known), initial=0))
        found: list[EncodedRecords | None] = []
        for file in unpacked:
            if file is None:
                found.append(None)
                continue
            start, end = next(spans)
            own = columns[start:end]
            is_known = (own["_VERSION"] == self.version).all()
            found.append(EncodedRecords(self.schema, own, file.encoded) if is_known else None)
        return found

    def _unpacked(self, file: StoredFile) -> _Unpacked | None:
        """The encoded records of a file. None if their validity is not guaranteed."""
        data, path, size = file
        _check_size(data, path, size)
        # Only a checksum guarantees valid members, and the decoder does not expect damage.
        if not HEADER_SEAL.is_set(data) or not HEADER_SEAL.is_intact(data):
            return None
        header = self._header
        seal = header.index(UNSEALED.encode())
        rest, end = seal + len(UNSEALED), len(header) - _MARKER_BYTES
        # A file of this release differs from it only in its seal and its sync marker.
        if data[:seal] == header[:seal] and data[rest:end] == header[rest:end]:
            stream, counts, pieces = io.BytesIO(data), list[int](), list[bytes]()
            stream.seek(len(header))
            while stream.tell() < len(data):
                count, length = (fastavro.schemaless_reader(stream, "long", None) for _ in range(2))
                piece = pa.CompressedInputStream(pa.BufferReader(stream.read(length)), "zstd")
                counts.append(count)
                pieces.append(piece.read())
                stream.seek(_MARKER_BYTES, io.SEEK_CUR)
            return _Unpacked(sum(counts), b"".join(pieces))
        blocks = fastavro.block_reader(io.BytesIO(data))
        if blocks.metadata["avro.schema"] != self._schema_text:
            return None
        found = [(block.num_records, block.bytes_.getvalue()) for block in blocks]
        return _Unpacked(sum(count for count, _ in found), b"".join(packed for _, packed in found))

    def write_encoded(self, records: EncodedRecords) -> bytes:
        """The bytes of a container file with records that were read from other files of this
        type.
        """
        file = [self._header]
        for piece in records.pieces(-(-len(records.encoded) // _BLOCK_BYTES)):
            packed = _ZSTANDARD.compress(piece.encoded, asbytes=True)
            file.append(self._block(len(piece), packed, self._header))
        return HEADER_SEAL.set(b"".join(file))

    def encoded(self, value: V, record_of: Callable[[V], Record]) -> bytes:
        """The record of one value, for `write_pieces`. Raises like `write`."""
        buffer = io.BytesIO()
        with _refusing():
            made = {"_VERSION": self.version} | record_of(value)
            self._check_members([made])
            fastavro.schemaless_writer(buffer, self.schema, made)
        return buffer.getvalue()

    def write_pieces(self, records: Iterable[bytes]) -> bytes:
        """The bytes of a container file with records that were encoded before."""
        file, block, size = [self._header], list[bytes](), 0
        for encoded in records:
            block.append(encoded)
            size += len(encoded)
            if size >= _BLOCK_BYTES:
                file.append(self._packed(block))
                block, size = [], 0
        return HEADER_SEAL.set(b"".join([*file, self._packed(block)]))

    def _packed(self, records: Sequence[bytes]) -> bytes:
        packed = _ZSTANDARD.compress(b"".join(records), asbytes=True)
        return self._block(len(records), packed, self._header)

    def write(self, values: Iterable[V], record_of: Callable[[V], Record]) -> bytes:
        """The bytes of a container file with one record per value. There may be no values.

        Compressed with zstandard level 1. Values of nullable arrays must be lists: Avro's writer
        interprets a tuple there as a choice of type. Raises InvalidError for values that no reader
        could read.
        """
        buffer = io.BytesIO()
        with _refusing():
            records = [{"_VERSION": self.version} | record_of(value) for value in values]
            self._check_members(records)
            fastavro.writer(
                buffer, self.schema, records, codec="zstandard", codec_compression_level=1,
                sync_interval=_BLOCK_BYTES, metadata={SEAL_KEY: UNSEALED},
            )  # fmt: skip
        return HEADER_SEAL.set(buffer.getvalue())

    @cached_property
    def _bare(self) -> bytes:
        """A file without records and compression: the only one that every decoder supports."""
        buffer = io.BytesIO()
        fastavro.writer(buffer, self.schema, [], codec="null")
        return buffer.getvalue()

    @cached_property
    def _header(self) -> bytes:
        """The start of a file that `write` creates: a file without records."""
        buffer = io.BytesIO()
        fastavro.writer(buffer, self.schema, [], codec="zstandard", metadata={SEAL_KEY: UNSEALED})
        return buffer.getvalue()

    @cached_property
    def _schema_text(self) -> str:
        """The schema as it is stored in a file."""
        text: str = fastavro.block_reader(io.BytesIO(self._bare)).metadata["avro.schema"]
        return text

    def _block(self, count: int, records: bytes, header: bytes | None = None) -> bytes:
        """A block of `count` records, in the codec of the file with the header."""
        if not count:
            return b""
        block = io.BytesIO()
        fastavro.schemaless_writer(block, "long", count)
        fastavro.schemaless_writer(block, "long", len(records))
        block.write(records)
        block.write((header or self._bare)[-_MARKER_BYTES:])
        return block.getvalue()

    def _check_members(self, records: Iterable[Record]) -> None:
        for made in records:
            misfit = self.misfit(made)
            if misfit is not None:
                raise InvalidError(f"a manifest cannot contain the member {misfit}")


class _Unpacked(NamedTuple):
    """Encoded records, and their number."""

    records: int
    encoded: bytes


@contextmanager
def _refusing() -> Iterator[None]:
    """A block in which values become records.

    Values that no record can contain raise `InvalidError`.
    """
    try:
        yield
    except KeytideError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidError(f"a manifest cannot contain this value: {error}") from error


def _check_size(data: bytes, path: str, size: int | None) -> None:
    if size is not None and len(data) != size:
        raise DataError(f"{path}: damaged file: {len(data)} bytes found, {size} expected")


MILLISECONDS: Record = {"type": "long", "logicalType": "timestamp-millis"}
"""Epoch milliseconds, which are read as datetimes."""


def record(name: str, *members: Mapping[str, Any]) -> Record:
    """A record type named as in Java: `name` is the path of members that leads to it."""
    return {"type": "record", "name": name, "namespace": NAMESPACE, "fields": list(members)}


def required(name: str, type_: Any) -> dict[str, Any]:
    """A member that is never null: a plain type, because readers reject a union here."""
    return {"name": name, "type": type_}


def optional(name: str, type_: Any) -> dict[str, Any]:
    """A member that may be null: null comes first, because readers reject the other order."""
    return {"name": name, "type": ["null", type_], "default": None}


def array(items: Any) -> dict[str, Any]:
    """An array type."""
    return {"type": "array", "items": items}


def _misfit(type_: Any) -> Misfit:
    if isinstance(type_, list):
        misfit = _misfit(type_[1])
        return lambda value: None if value is None else misfit(value)
    if isinstance(type_, str):
        return _AVRO_ATOMS[type_]
    if type_["type"] == "array":
        item_misfit = _misfit(type_["items"])

        def check_array(value: Any) -> str | None:
            if not isinstance(value, list | tuple):
                return f": {value!r}"
            misfits = (item_misfit(item) for item in value)
            return next((found for found in misfits if found is not None), None)

        return check_array
    if type_["type"] != "record":
        return _milliseconds
    members: list[tuple[str, Misfit, bool]] = [
        (m["name"], _misfit(m["type"]), "default" in m) for m in type_["fields"]
    ]

    def check_record(value: Any) -> str | None:
        if not isinstance(value, Mapping):
            return f": {value!r}"
        for name, misfit, is_optional in members:
            found = None if is_optional and name not in value else misfit(value.get(name))
            if found is not None:
                return f"{name}{found if found.startswith(':') else f'.{found}'}"
        return None

    return check_record


def _integer(bits: int) -> Misfit:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)

    def check(value: Any) -> str | None:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return None if is_number and low <= value < high else f": {value!r}"

    return check


def _milliseconds(value: Any) -> str | None:
    if isinstance(value, datetime):
        return None
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return None if is_number and _FIRST_MS <= value <= _LAST_MS else f": {value!r}"


_AVRO_ATOMS = {
    "int": _integer(32),
    "long": _integer(64),
    "string": lambda value: None if isinstance(value, str) else f": {value!r}",
    "bytes": lambda value: None if isinstance(value, bytes) else f": {value!r}",
}
_BLOCK_BYTES = 1 << 18
"""The size of the records in a block, before compression."""
_ZSTANDARD = pa.Codec("zstd", compression_level=1)
_MARKER_BYTES = 16
"""The size of the sync marker that ends the header and every block."""
_FIRST_MS, _LAST_MS = (
    int(moment.replace(tzinfo=timezone.utc).timestamp()) * 1000
    for moment in (datetime.min, datetime.max)
)
