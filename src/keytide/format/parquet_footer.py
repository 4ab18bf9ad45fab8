"""What Arrow does not read of Parquet: timestamps with nanoseconds, and the footer as a tree.

TIMESTAMP(7..9) as Parquet INT96, column by column.

Java readers before Paimon 2.0 support nanosecond timestamps only as INT96, while every other
timestamp in the same file must be INT64. Arrow can write INT96 for all timestamps of a file or for
none. The bytes of a plain or dictionary page are the same for INT96 and for 12-byte fixed-size
binaries. So such columns are written as fixed-size binaries, and then the footer is changed to say
what they are.

Thrift's compact protocol as a tree of numbered members, without a schema.

Footers of Parquet are encoded in it. Callers know what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.protocol.TProtocol import TType
from thrift.transport.TTransport import TMemoryBuffer

# -- thrift's compact protocol as a tree of numbered members, without a schema ---------------------


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


def write_struct(members: list[Member]) -> bytes:
    """The bytes of a struct."""
    out = TMemoryBuffer()
    _write_members(TCompactProtocol(out), members)
    return bytes(out.getvalue())


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


# -- TIMESTAMP(7..9) as Parquet INT96, column by column --------------------------------------------


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


def has_nanoseconds(data_type: pa.DataType) -> bool:
    """Whether the type contains a timestamp in nanoseconds, at any depth."""
    if pa.types.is_timestamp(data_type):
        return bool(data_type.unit == "ns")
    return any(has_nanoseconds(data_type.field(i).type) for i in range(data_type.num_fields))


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


def encode_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in its `physical_type`. Values and NULLs are preserved."""
    target = physical_type(column.type)
    return pa.chunked_array([_encode(chunk) for chunk in column.chunks], type=target)


def mark_footer(footer: bytes) -> bytes:
    """The metadata of a Parquet file, with unannotated 12-byte binaries changed to INT96.

    Their statistics are dropped: INT96 has no defined order.
    """
    metadata = read_struct(footer)
    # FileMetaData: 2 schema, 4 row_groups. SchemaElement: 1 type, 2 type_length, 5 num_children,
    # 6 and 10 annotations. RowGroup: 1 columns. ColumnChunk: 3 meta_data. ColumnMetaData: 1 type,
    # 12 statistics.
    leaves = [element for element in value_of(metadata, 2).items if not has(element, 5)]
    marked = [index for index, leaf in enumerate(leaves) if _is_bare_twelve_bytes(leaf)]
    for index in marked:
        replace(leaves[index], 1, _INT96)
        drop(leaves[index], 2)
    for group in value_of(metadata, 4).items:
        chunks = value_of(group, 1).items
        for index in marked:
            chunk = value_of(chunks[index], 3)
            replace(chunk, 1, _INT96)
            drop(chunk, 12)
    return write_struct(metadata)


def _physical_field(field: pa.Field) -> pa.Field:
    return field.with_type(physical_type(field.type))


def _encode(array: pa.Array) -> pa.Array:
    target = physical_type(array.type)
    if target.equals(array.type):
        return array
    if pa.types.is_timestamp(array.type):
        return _encode_timestamps(array)
    if pa.types.is_struct(array.type):
        children = [_encode(array.field(i)) for i in range(array.type.num_fields)]
        return pa.StructArray.from_arrays(
            children, fields=list(target), mask=array.is_null() if array.null_count else None
        )
    # Lists and maps: same offsets and validity over converted children.
    whole = pa.concat_arrays([array])  # drops a slice offset
    child = (
        pa.StructArray.from_arrays(
            [whole.keys, whole.items], fields=[array.type.key_field, array.type.item_field]
        )
        if pa.types.is_map(array.type)
        else whole.values
    )
    buffers = whole.buffers()[:2]
    return pa.Array.from_buffers(
        target, len(whole), buffers, whole.null_count, offset=whole.offset,
        children=[_encode_child(child, target)],
    )  # fmt: skip


def _encode_child(child: pa.Array, target: pa.DataType) -> pa.Array:
    if not pa.types.is_map(target):
        return _encode(child)
    columns = [_encode(child.field(0)), _encode(child.field(1))]
    return pa.StructArray.from_arrays(columns, fields=[target.key_field, target.item_field])


def _encode_timestamps(array: pa.Array) -> pa.Array:
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


def _is_bare_twelve_bytes(leaf: list[Member]) -> bool:
    annotated = has(leaf, 6) or has(leaf, 10)
    return (
        not annotated
        and has(leaf, 2)
        and value_of(leaf, 1) == _FIXED_LEN_BYTE_ARRAY
        and value_of(leaf, 2) == _WIDTH
    )
