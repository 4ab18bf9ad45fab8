"""Avro data files, written row by row and read with Polars.

Polars decodes columns, but supports neither maps nor zstandard. An Avro map has the same bytes as
an array of key and value. So Polars gets the decompressed blocks of a file, after a header that
declares each map as such an array: as many blocks at a time as contain the wanted rows.

Rows have the same form as with Java's writer of the format. Nullable members are a union with null
first. Times and timestamps are counts of milliseconds or microseconds, and decimals are integers in
bytes. A map with strings as keys is an Avro map. Any other map is an array of records of key and
value.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import fastavro
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.errors import InvalidError
from keytide.format.arrow import from_arrow, to_arrow
from keytide.format.data_file.file_format import (
    GroupEnds,
    Rows,
    StoredFile,
    numbered_rows,
    physical_schema,
)
from keytide.format.parquet_encoding import densest
from keytide.format.schema import TableSchema
from keytide.options.keys import FILE_FORMAT
from keytide.store import Store

# -- rows as records -------------------------------------------------------------------------------


_NAMESPACE = "org.apache.paimon.avro.generated"
_BATCH_ROWS = 4096


def record_type(schema: pa.Schema) -> dict[str, Any]:
    """The type of a file's records.

    Raises `InvalidError` for columns that Avro does not support.
    """
    for column in schema:
        reason = why_no_name(column.name) or _why_no_type(column.type)
        if reason is not None:
            raise InvalidError(
                f"column {column.name!r}: Avro files do not support {reason}; write the table with "
                f"'{FILE_FORMAT}' = 'parquet'"
            )
    return _record(f"{_NAMESPACE}.record", list(schema), count())


def records(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows, one after the other. A limited number of them is in memory."""
    names = rows.schema.names
    for batch in rows.to_batches(max_chunksize=_BATCH_ROWS):
        columns = map(_values, batch.columns)
        yield from (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def why_no_name(name: str) -> str | None:
    """Why no Avro record can have a member with that name. None if it can."""
    # Java's library, which reads the files, accepts any letters. Others accept only these.
    is_name = name.isascii() and name.isidentifier()
    return None if is_name else f"the name {name!r} (only ASCII letters, digits and underscores)"


def _why_no_type(kind: pa.DataType) -> str | None:
    if pa.types.is_timestamp(kind):
        return "nanoseconds" if kind.unit == "ns" else None
    if pa.types.is_struct(kind):
        reasons = (why_no_name(f.name) or _why_no_type(f.type) for f in kind.fields)
        return next(filter(None, reasons), None)
    if pa.types.is_nested(kind):
        children = (kind.field(i).type for i in range(kind.num_fields))
        return next(filter(None, map(_why_no_type, children)), None)
    return None


# -- types -----------------------------------------------------------------------------------------


def _record(name: str, members: Sequence[pa.Field], numbers: Iterator[int]) -> dict[str, Any]:
    fields = [{"name": each.name, "type": _type(each, numbers)} for each in members]
    return {"type": "record", "name": name, "fields": fields}


def _type(field: pa.Field, numbers: Iterator[int]) -> Any:
    bare = _bare_type(field.type, numbers)
    return ["null", bare] if field.nullable else bare


def _bare_type(kind: pa.DataType, numbers: Iterator[int]) -> Any:
    if pa.types.is_struct(kind):
        return _record(f"record_{next(numbers)}", kind.fields, numbers)
    if pa.types.is_map(kind):
        if pa.types.is_string(kind.key_type):
            return {"type": "map", "values": _type(kind.item_field, numbers)}
        entry = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
        items = _record(f"record_{next(numbers)}", entry, numbers)
        return {"type": "array", "logicalType": "map", "items": items}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _type(kind.value_field, numbers)}
    if pa.types.is_decimal(kind):
        digits = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if pa.types.is_timestamp(kind):
        unit = {"ms": "millis", "us": "micros"}[kind.unit]
        return {"type": "long", "logicalType": f"timestamp-{unit}"}
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        what = "date" if pa.types.is_date(kind) else "time-millis"
        return {"type": "int", "logicalType": what}
    return next(name for is_one, name in _PLAIN if is_one(kind))


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_integer, "int"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "bytes"),
)


# -- values ----------------------------------------------------------------------------------------


def _made(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """The function that converts a Python value to one that is written. None if none is needed."""
    if pa.types.is_struct(kind):
        made = {f.name: one for f in kind.fields if (one := _made(f.type)) is not None}
        if not made:
            return None
        return _unless_none(lambda row: {n: made[n](v) if n in made else v for n, v in row.items()})
    if pa.types.is_map(kind):
        key, item = (
            _made(each) or (lambda value: value) for each in (kind.key_type, kind.item_type)
        )
        if pa.types.is_string(kind.key_type):
            return _unless_none(lambda pairs: {k: item(v) for k, v in pairs})
        return _unless_none(lambda pairs: [{"key": key(k), "value": item(v)} for k, v in pairs])
    if pa.types.is_list(kind):
        one = _made(kind.value_type)
        return None if one is None else _unless_none(lambda many: list(map(one, many)))
    return None


def _unless_none(made: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else made(value)


def _counted(kind: pa.DataType) -> pa.DataType:
    """The type with counts instead of times, because Python's own types cannot represent all
    times.
    """
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return pa.int32()
    if pa.types.is_map(kind):
        return pa.map_(_counted(kind.key_type), _counted(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_counted(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _counted(f.type)) for f in kind.fields])
    return kind


def _values(column: pa.Array) -> list[Any]:
    counted = column.cast(_counted(column.type))
    made = _made(column.type)
    values: list[Any] = counted.to_pylist()
    return values if made is None else list(map(made, values))


# -- data files ------------------------------------------------------------------------------------


_SYNC_BYTES = 16
_SYNC = bytes(_SYNC_BYTES)
_BATCH_BYTES = 64 << 20
_BLOCK_BYTES = 256 << 10
# No Java reader supports lz4 in Avro files.
_CODECS = {"zstd": "zstandard", "lz4": "zstandard", "gzip": "deflate", "none": "null"}


def stored_file(
    store: Store,
    path: str,
    schema: TableSchema,
    size: int | None,
    *,
    numbered: bool,
    kept_bytes_max: int,
) -> StoredFile:
    """The file. Its types come from the schema that it was written with."""
    source = store.open_input(path)
    if size is not None and source.size() != size:
        raise OSError(f"{source.size()} bytes found, {size} expected")
    container = _Container.of(source)
    expected = physical_schema(schema)
    names = [field["name"] for field in container.schema["fields"]]
    there = [expected.field(name) for name in names if name in expected.names]
    columns = pa.schema(there).remove_metadata()
    return _BlockFile(source, container, columns, columns.names, numbered)


def group_ends(
    store: Store, path: str, names: Sequence[str], size: int | None, kept_bytes_max: int
) -> dict[str, GroupEnds]:
    """Empty: files of this format are read as a whole."""
    return {}


def group_rows(store: Store, path: str, size: int | None, kept_bytes_max: int) -> list[int]:
    """The number of rows in each block."""
    with store.open_input(path) as source:
        return [block.rows for block in _Container.of(source).blocks]


def note(store: Store, path: str, key: str) -> str | None:
    """A note in the header."""
    with store.open_input(path) as source, _decoding():
        reader: Any = fastavro.reader(source)
    found: str | None = reader.metadata.get(key)
    return found


def check_columns(columns: pa.Schema) -> None:
    """Refuse names and types that an Avro record cannot have. Raises `InvalidError`."""
    record_type(columns)


def write(
    output: Any,
    rows: pa.Table,
    codec: str,
    zstd_level: int,
    notes: Mapping[str, str],
    *,
    dictionaries: bool = True,
) -> None:
    """Write rows, one after the other.

    Raises `InvalidError` for columns that Avro does not support.
    """
    schema = fastavro.parse_schema(record_type(rows.schema))
    codec = _CODECS.get(densest(codec), codec)
    fastavro.writer(
        output, schema, records(rows), codec, _BLOCK_BYTES, dict(notes),
        codec_compression_level=zstd_level if codec == "zstandard" else None,
    )  # fmt: skip


@contextmanager
def _decoding() -> Iterator[None]:
    """A block in which codecs and the decoder fail with an OSError instead of their own errors."""
    try:
        yield
    except Exception as error:
        raise OSError(str(error)) from error


class _Block(NamedTuple):
    """The position of a block in its file, including its own header and end."""

    start: int
    stop: int
    rows: int


@dataclass(frozen=True)
class _Container:
    """The content of a file's header, and the positions of its blocks."""

    header: bytes
    schema: dict[str, Any]
    blocks: tuple[_Block, ...]

    @classmethod
    def of(cls, source: pa.NativeFile) -> _Container:
        """Scan a file. Raises OSError if it ends inside a block."""
        source.seek(0)
        with _decoding():
            reader: Any = fastavro.reader(source)
        end = source.tell()
        schema = reader.writer_schema
        source.seek(0)
        header = source.read(end)
        blocks: list[_Block] = []
        start, size = end, source.size()
        while start < size:
            source.seek(start)
            rows, length = _long(source), _long(source)
            stop = source.tell() + length + _SYNC_BYTES
            if rows < 0 or length < 0 or stop > size:
                raise OSError(f"a block from byte {start} to {stop} in a file of {size} bytes")
            blocks.append(_Block(start, stop, rows))
            start = stop
        return cls(header, schema, tuple(blocks))


def _long(source: pa.NativeFile) -> int:
    value: int = 0
    shift = 0
    while True:
        byte: bytes = source.read(1)
        if not byte or shift > 63:
            raise OSError("no valid integer at the start of a block")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7


def _long_bytes(value: int) -> bytes:
    """A count in Avro encoding."""
    value <<= 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


@dataclass(frozen=True)
class _BlockFile:
    """A file of which the blocks with wanted rows are read."""

    source: pa.NativeFile
    container: _Container
    columns: pa.Schema
    names: Sequence[str]
    numbered: bool

    def rows(self, names: Sequence[str], offset: int, length: int | None) -> Rows:
        """The decoded rows."""
        names = list(names or self.names[:1])
        schema = pa.schema([self.columns.field(name) for name in names])
        # The blocks that contain the rows, and the first row of the first block.
        blocks: list[_Block] = []
        first_row, start = offset, 0
        for block in self.container.blocks:
            if start + block.rows > offset and (length is None or start < offset + length):
                first_row = first_row if blocks else start
                blocks.append(block)
            start += block.rows
        tables = [schema.empty_table()]
        while blocks:  # in groups of limited size
            limit = blocks[0].start + _BATCH_BYTES
            end = max(1, bisect_right(blocks, limit, key=lambda block: block.stop))
            tables.append(to_arrow(self._decoded(blocks[:end], names), schema))
            blocks = blocks[end:]
        table = pa.concat_tables(tables).slice(offset - first_row, length)
        return numbered_rows(from_arrow(table), offset, numbered=self.numbered)

    def _decoded(self, blocks: list[_Block], names: list[str]) -> pl.DataFrame:
        start, stop = blocks[0].start, blocks[-1].stop
        self.source.seek(start)
        packed = io.BytesIO(self.container.header + self.source.read(stop - start))
        unpacked = io.BytesIO()
        readable = _without_maps(self.container.schema, count())
        fastavro.writer(unpacked, readable, [], codec="null", sync_marker=_SYNC)
        with _decoding():
            for block in fastavro.block_reader(packed):
                payload = block.bytes_.getvalue()
                unpacked.write(_long_bytes(block.num_records) + _long_bytes(len(payload)))
                unpacked.write(payload + _SYNC)
        unpacked.seek(0)
        return pl.read_avro(unpacked, columns=names)


def _without_maps(node: Any, numbers: Iterator[int]) -> Any:
    """A type with each map replaced by an array of key and value, which has the same bytes."""
    if isinstance(node, list):
        return [_without_maps(one, numbers) for one in node]
    if not isinstance(node, dict):
        return node
    if node["type"] == "map":
        members = [("key", "string"), ("value", _without_maps(node["values"], numbers))]
        fields = [{"name": name, "type": kind} for name, kind in members]
        entry = {"type": "record", "name": f"entry_{next(numbers)}", "fields": fields}
        return {"type": "array", "items": entry}
    if node["type"] == "array":
        return {"type": "array", "items": _without_maps(node["items"], numbers)}
    if node["type"] in ("record", "error"):
        fields = [{**f, "type": _without_maps(f["type"], numbers)} for f in node["fields"]]
        return {**node, "fields": fields}
    return node
