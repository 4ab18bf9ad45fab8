"""Thrift's compact protocol as a tree of numbered members, without a schema.

Footers of Parquet are encoded in it. Callers know what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.protocol.TProtocol import TType
from thrift.transport.TTransport import TMemoryBuffer

__all__ = ["Items", "Member", "drop", "has", "read_struct", "replace", "value_of", "write_struct"]


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
