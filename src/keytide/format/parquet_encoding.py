"""Encodings of Parquet files: INT96 timestamps, the choice for each column, and Thrift structures.

TIMESTAMP(7..9) is written as INT96. Java readers before Paimon 2.0 support nanosecond timestamps
only as INT96, while every other timestamp in the same file must be INT64. Arrow can write INT96 for
all timestamps of a file or for none. The bytes of a plain or dictionary page are the same for INT96
and for 12-byte fixed-size binaries. So such columns are written as fixed-size binaries, and then
the footer is changed to say what they are.

Footers are encoded in Thrift's compact protocol, which is read and written here as a tree of
numbered members, without a schema. Callers know what the numbers mean.

The encoding of a column is chosen from a sample of its rows. A wrong choice costs time or space,
never correctness.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.protocol.TProtocol import TType
from thrift.transport.TTransport import TMemoryBuffer

# -- Thrift's compact protocol as a tree -----------------------------------------------------------


class Member(NamedTuple):
    """One member of a struct. `type` is a `TType`."""

    type: int
    id: int
    value: Any


class Items(NamedTuple):
    """The items of a list. All have the same `TType`."""

    type: int
    items: list[Any]


def read_struct(data: bytes) -> list[Member]:
    """The members of a struct. Raises any kind of error for invalid bytes."""
    return list(_read_members(TCompactProtocol(TMemoryBuffer(data))))


def has(members: Sequence[Member], number: int) -> bool:
    """Whether a struct has a member."""
    return any(member.id == number for member in members)


def value_of(members: Sequence[Member], number: int) -> Any:
    """The value of an existing member."""
    return next(member.value for member in members if member.id == number)


def replace(members: list[Member], number: int, value: Any) -> None:
    """Replace the value of an existing member."""
    index = next(i for i, member in enumerate(members) if member.id == number)
    members[index] = members[index]._replace(value=value)


def drop(members: list[Member], number: int) -> None:
    """Remove a member."""
    members[:] = [member for member in members if member.id != number]


def _read_value(protocol: TCompactProtocol, type_: int) -> Any:
    if type_ == TType.STRUCT:
        return list(_read_members(protocol))
    if type_ in (TType.LIST, TType.SET):
        item_type, size = protocol.readListBegin()
        items = [_read_value(protocol, item_type) for _ in range(size)]
        protocol.readListEnd()
        return Items(item_type, items)
    return getattr(protocol, _READERS[type_])()


def _read_members(protocol: TCompactProtocol) -> Iterator[Member]:
    protocol.readStructBegin()
    while True:
        _, type_, number = protocol.readFieldBegin()
        if type_ == TType.STOP:
            break
        yield Member(type_, number, _read_value(protocol, type_))
        protocol.readFieldEnd()
    protocol.readStructEnd()


def _write_value(protocol: TCompactProtocol, type_: int, value: Any) -> None:
    if type_ == TType.STRUCT:
        _write_members(protocol, value)
    elif type_ in (TType.LIST, TType.SET):
        protocol.writeListBegin(value.type, len(value.items))
        for item in value.items:
            _write_value(protocol, value.type, item)
        protocol.writeListEnd()
    else:
        getattr(protocol, _READERS[type_].replace("read", "write"))(value)


def _write_members(protocol: TCompactProtocol, members: list[Member]) -> None:
    protocol.writeStructBegin("")
    for member in members:
        protocol.writeFieldBegin("", member.type, member.id)
        _write_value(protocol, member.type, member.value)
        protocol.writeFieldEnd()
    protocol.writeFieldStop()
    protocol.writeStructEnd()


_READERS = {
    TType.BOOL: "readBool",
    TType.BYTE: "readByte",
    TType.I16: "readI16",
    TType.I32: "readI32",
    TType.I64: "readI64",
    TType.DOUBLE: "readDouble",
    TType.STRING: "readBinary",
}


# -- TIMESTAMP(7..9) as INT96 ----------------------------------------------------------------------


NANOSECONDS_MIN = -106_751 * 86_400 * 1_000_000_000
"""1677-09-22, the first whole day that 64 bits can represent from the epoch: readers multiply
days.
"""

_WIDTH = 12
_NANOS_PER_DAY = 86_400 * 1_000_000_000
_JULIAN_DAY_OF_EPOCH = 2_440_588
# The numbers of types in Parquet's Thrift definition, and below those of members.
_FIXED_LEN_BYTE_ARRAY, _INT96 = 7, 3
_MAGIC = b"PAR1"


def physical_type(data_type: pa.DataType) -> pa.DataType:
    """The type under which Arrow writes a column: nanosecond timestamps as 12-byte binaries."""
    if pa.types.is_timestamp(data_type) and data_type.unit == "ns":
        return pa.binary(_WIDTH)
    if pa.types.is_map(data_type):
        return pa.map_(_physical_field(data_type.key_field), _physical_field(data_type.item_field))
    if pa.types.is_list(data_type):
        return pa.list_(_physical_field(data_type.value_field))
    if pa.types.is_struct(data_type):
        return pa.struct([_physical_field(data_type.field(i)) for i in range(data_type.num_fields)])
    return data_type


def in_physical_types(rows: pa.Table) -> pa.Table:
    """The rows with each column in its `physical_type`. Values and NULLs are preserved."""
    fields = [_physical_field(field) for field in rows.schema]
    columns = [
        pa.chunked_array([_encode(chunk) for chunk in column.chunks], type=field.type)
        for field, column in zip(fields, rows.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def mark_footer(footer: bytes) -> bytes:
    """The metadata of a Parquet file, with unannotated 12-byte binaries changed to INT96.

    Their statistics are dropped: INT96 has no defined order.
    """
    metadata = read_struct(footer)
    # FileMetaData: 2 schema, 4 row_groups. SchemaElement: 1 type, 2 type_length, 5 num_children,
    # 6 and 10 annotations. RowGroup: 1 columns. ColumnChunk: 3 meta_data. ColumnMetaData: 1 type,
    # 12 statistics.
    leaves = [element for element in value_of(metadata, 2).items if not has(element, 5)]
    marked: list[int] = []
    for index, leaf in enumerate(leaves):
        is_bare = has(leaf, 2) and not has(leaf, 6) and not has(leaf, 10)
        if is_bare and (value_of(leaf, 1), value_of(leaf, 2)) == (_FIXED_LEN_BYTE_ARRAY, _WIDTH):
            replace(leaf, 1, _INT96)
            drop(leaf, 2)
            marked.append(index)
    for group in value_of(metadata, 4).items:
        chunks = value_of(group, 1).items
        for index in marked:
            chunk = value_of(chunks[index], 3)
            replace(chunk, 1, _INT96)
            drop(chunk, 12)

    # The bytes of a struct.
    out = TMemoryBuffer()
    _write_members(TCompactProtocol(out), metadata)
    return bytes(out.getvalue())


def _physical_field(field: pa.Field) -> pa.Field:
    return field.with_type(physical_type(field.type))


def _encode(array: pa.Array) -> pa.Array:
    target = physical_type(array.type)
    if target.equals(array.type):
        return array
    if pa.types.is_timestamp(array.type):
        nanos = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        # Floor division, so the time of day counts up from midnight before the epoch too.
        days = np.floor_divide(nanos, _NANOS_PER_DAY)
        packed = np.empty(len(nanos), dtype=[("nanos", "<i8"), ("day", "<i4")])
        packed["nanos"] = nanos - days * _NANOS_PER_DAY
        packed["day"] = days + _JULIAN_DAY_OF_EPOCH
        validity = array.is_valid().buffers()[1] if array.null_count else None
        return pa.Array.from_buffers(
            pa.binary(_WIDTH), len(array), [validity, pa.py_buffer(packed.tobytes())]
        )
    if pa.types.is_struct(array.type):
        children = [_encode(array.field(i)) for i in range(array.type.num_fields)]
        return pa.StructArray.from_arrays(
            children, fields=list(target), mask=array.is_null() if array.null_count else None
        )
    # Lists and maps: same offsets and validity over converted children.
    whole = pa.concat_arrays([array])  # drops a slice offset
    if pa.types.is_map(target):
        columns = [_encode(whole.keys), _encode(whole.items)]
        child = pa.StructArray.from_arrays(columns, fields=[target.key_field, target.item_field])
    else:
        child = _encode(whole.values)
    buffers = whole.buffers()[:2]
    return pa.Array.from_buffers(
        target, len(whole), buffers, whole.null_count, offset=whole.offset, children=[child]
    )


# -- choice of encodings ---------------------------------------------------------------------------


BALANCED = "balanced"
"""A codec setting: zstd, but a faster codec for columns for which that costs little space."""

_FASTEST_FIRST: tuple[str, ...] = ("none", "lz4", "zstd")
_SAMPLE_ROWS = 10_000
# With a larger fraction of distinct values, JVM readers take several times as long with a
# dictionary.
_DISTINCT_SHARE_MAX = 0.3
# In smaller files, there is little to gain.
_CODEC_ROWS_MIN = 200_000
# The fraction of a column's bytes that a codec must save, compared with a faster one.
_SPARED_MIN = 0.1
# The same for short values, in which every few bytes are a separate match: for them, zstd
# decompresses a third of the bytes per second that it decompresses of long strings.
_SPARED_OF_SHORT_MIN = 0.3
_SHORT_BYTES_MAX = 16
_DECIMAL_DIGITS_MAX = 18


def dictionary_columns(rows: pa.Table) -> list[str]:
    """The columns with few distinct values, each of which occurs often.

    Without bytes, and decimals that do not fit 8 bytes: under a filter, Paimon's Java releases
    before 2.0 lose rows whose values are in such a dictionary.
    """
    sample = rows.slice(0, _SAMPLE_ROWS)
    limit = max(1, int(sample.num_rows * _DISTINCT_SHARE_MAX))
    found = []
    for name, column in zip(sample.column_names, sample.columns, strict=True):
        type_ = column.type
        is_long = pa.types.is_decimal(type_) and type_.precision > _DECIMAL_DIGITS_MAX
        if is_long or pa.types.is_binary(type_) or pa.types.is_nested(type_):
            continue
        # Few values are enough to see that nearly all are distinct.
        if any(len(pc.unique(part)) > limit for part in (column.slice(0, limit + 1), column)):
            continue
        found.append(name)
    return found


def bounded_leaves(rows: pa.Table) -> list[str]:
    """The leaves whose statistics bound all of their values, for every reader.

    Statistics leave out NaN, and readers for which NaN is the largest value would miss it. Engines
    disagree whether bytes have a sign.
    """
    unbounded = {
        name
        for name, column in zip(rows.column_names, rows.columns, strict=True)
        if pa.types.is_binary(column.type)
        or (pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py())
    }
    return [path for path in _leaf_paths(rows.schema) if path not in unbounded]


def densest(codec: str) -> str:
    """The codec itself or, for `BALANCED`, the one that saves most."""
    return _FASTEST_FIRST[-1] if codec == BALANCED else codec


def codecs(rows: pa.Table, codec: str, dictionary: Collection[str]) -> dict[str, str]:
    """The codec of each leaf: `codec`, or none if it would save almost nothing.

    Readers then have nothing to decompress. With `BALANCED`, a leaf gets the fastest codec that
    saves nearly as much as zstd. `dictionary` names the columns with a dictionary.
    """
    chosen = dict.fromkeys(_leaf_paths(rows.schema), densest(codec))
    plain = [name for name in rows.column_names if name not in set(dictionary)]
    if rows.num_rows < _CODEC_ROWS_MIN or codec == "none" or not plain:
        return chosen
    sample = rows.select(plain).slice(rows.num_rows // 2, _SAMPLE_ROWS)
    tried = _FASTEST_FIRST[1:] if codec == BALANCED else (densest(codec),)
    leaves = {each: _leaves(sample, each) for each in tried}
    for path, leaf in leaves[tried[-1]].items():
        stored = {"none": leaf.plain} | {each: leaves[each][path].stored for each in tried}

        # The possible codecs for a leaf, and the fraction that the last one must save compared with
        # a faster one.
        if codec == BALANCED and leaf.plain <= _SHORT_BYTES_MAX * leaf.values:
            candidates, share = _FASTEST_FIRST, _SPARED_OF_SHORT_MIN
        else:
            candidates, share = ("none", densest(codec)), _SPARED_MIN
        most = stored[candidates[-1]] + share * leaf.plain
        chosen[path] = next(each for each in candidates if stored[each] <= most)
    return chosen


class _Leaf(NamedTuple):
    """The number of values in a leaf, and their bytes, in memory and stored."""

    values: int
    plain: int
    stored: int


def _leaves(rows: pa.Table, codec: str) -> dict[str, _Leaf]:
    """The leaves of a file with these rows, without dictionaries."""
    file = io.BytesIO()
    pq.write_table(rows, file, compression=codec, use_dictionary=False)
    group: Any = pq.ParquetFile(file).metadata.row_group(0)
    found = [group.column(i) for i in range(group.num_columns)]
    return {
        leaf.path_in_schema: _Leaf(
            leaf.num_values, leaf.total_uncompressed_size, leaf.total_compressed_size
        )
        for leaf in found
    }


@lru_cache(maxsize=64)
def _leaf_paths(schema: pa.Schema) -> list[str]:
    if not any(pa.types.is_nested(type_) for type_ in schema.types):
        return list(schema.names)
    footer = io.BytesIO()
    pq.write_metadata(schema, footer)
    stored: Any = pq.ParquetFile(footer).schema
    return [stored.column(i).path for i in range(len(stored))]
