"""The stored bytes of sets of integers. Equal sets have equal bytes.

32-bit integers use the portable roaring layout, 64-bit integers that of Java's `Roaring64Bitmap`::

    0                                          an empty set
    1  keys u64  node...  containers           any other

    node        type u8, children u16, prefix length u8, prefix, body; children follow their parent
      0, 1      up to 4 or 16 children: their key bytes in a big-endian word or two, stored swapped
      2         up to 48: for each key byte the child's number or 255, in words stored swapped
      3         up to 256: a bit for each key byte that has a child
      4         a leaf: the upper 48 bits of its numbers, big-endian, and its container u64
    containers  1 u32, 254 u8, count u32, container..., count u64, 0 u32, count - 1 u32
    container   1 u8, type u8, cardinality u32, payload (0 u8 alone: none)
      0         runs: their count u16, then first and length - 1 of each as u16
      1, 2      65536 bits, or the lower 16 bits of each number as u16

Numbers are little-endian unless stated otherwise. Payloads are those of the portable layout, which
pyroaring reads and writes, so containers are copied unchanged between the layouts. If runs are not
shorter than bits or numbers, pyroaring's choice depends on how the set was created. Here they are
never stored as runs.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence

import numpy as np
from pyroaring import BitMap, BitMap64

from keytide.base.dataclass import dataclass

_RUNS, _BITS, _NUMBERS = 0, 1, 2
_LEAF = 4
_CHILDREN_MAX = (4, 16, 48, 256)
_BODY_BYTES = (4, 16, 256, 32, 14)
_BITS_BYTES = 8192
_NUMBERS_MAX = 4096
_NOT_TRIMMED = 254
_NO_CHILD = 255
_COOKIE, _COOKIE_WITH_RUNS = 12346, 12347
_OFFSETS_FROM = 4
"""A portable bitmap with runs has an offset per container if it has at least this many."""


@dataclass(frozen=True)
class _Container:
    """The numbers that share their upper 48 bits."""

    upper: bytes
    type: int
    cardinality: int
    payload: bytes


def encode_bitmap32(bitmap: BitMap) -> bytes:
    """The bytes of the set. Equal sets have equal bytes."""
    bitmap = bitmap.copy()
    bitmap.run_optimize()
    data: bytes = bitmap.serialize()
    if not bitmap.get_statistics()["n_run_containers"]:
        return data
    return _portable32([_without_vain_runs(c) for c in _portable_containers(_Reader(data), 0)])


def decode_bitmap64(data: bytes) -> BitMap64:
    """The set. Raises `ValueError` for invalid bytes."""
    reader = _Reader(data)
    try:
        containers = list(_read(reader))
        groups = [list(g) for _, g in itertools.groupby(containers, lambda c: c.upper[:4])]
        parts = [struct.pack("<Q", len(groups))]
        for group in groups:
            parts.append(group[0].upper[:4][::-1])
            parts.append(_portable32(group))
        bitmap = BitMap64.deserialize(b"".join(parts))
    except (IndexError, struct.error) as error:
        raise ValueError(f"it ends early: {error}") from None
    if reader.position < len(data):
        raise ValueError(f"it goes on after its end, {len(data) - reader.position} bytes long")
    return bitmap


def encode_bitmap64(bitmap: BitMap64) -> bytes:
    """The bytes of the set. Equal sets have equal bytes."""
    bitmap = bitmap.copy()
    bitmap.run_optimize()
    reader = _Reader(bitmap.serialize())
    containers = []
    for _ in range(reader.number("Q")):
        read = _portable_containers(reader, reader.number("I"))
        containers += [_without_vain_runs(container) for container in read]
    if not containers:
        return b"\x00"
    count = len(containers)
    leaves = [(container.upper, number) for number, container in enumerate(containers)]
    parts = [struct.pack("<BQ", 1, count), *_nodes(leaves, 0)]
    parts.append(struct.pack("<IBI", 1, _NOT_TRIMMED, count))
    for container in containers:
        parts.append(struct.pack("<BBI", 1, container.type, container.cardinality))
        parts.append(container.payload)
    parts.append(struct.pack("<QII", count, 0, count - 1))
    return b"".join(parts)


@dataclass
class _Reader:
    """Bytes and the current read position."""

    data: bytes
    position: int = 0

    def unpack(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(f"<{layout}", self.data, self.position)
        self.position += struct.calcsize(f"<{layout}")
        return values

    def number(self, layout: str) -> int:
        return self.unpack(layout)[0]

    def take(self, count: int) -> bytes:
        taken = self.data[self.position : self.position + count]
        if len(taken) < count:
            raise IndexError(f"{count} bytes at {self.position} of {len(self.data)}")
        self.position += count
        return taken


# -- the layout of the format ----------------------------------------------------------------------


def _read(reader: _Reader) -> Iterator[_Container]:
    filled = reader.number("B")
    if filled not in (0, 1):
        raise ValueError(f"it begins with {filled}, not with 0 or 1")
    if not filled:
        return
    count = reader.number("Q")
    # Inner nodes are only followed.
    leaves: list[tuple[bytes, int]] = []
    while len(leaves) < count:
        node, _, prefix_length = reader.unpack("BHB")
        if node > _LEAF:
            raise ValueError(f"it has a node of unknown type {node}")
        reader.take(prefix_length)
        body = reader.take(_BODY_BYTES[node])
        if node == _LEAF:
            leaves.append((body[:6], int.from_bytes(body[6:], "little")))

    stored: dict[int, tuple[int, int, bytes]] = {}
    for array in range(reader.number("I")):
        if reader.number("B") != _NOT_TRIMMED:
            raise ValueError("its containers are of an unknown type")
        for number in range(reader.number("I")):
            if reader.number("B"):
                type_, cardinality = reader.unpack("BI")
                payload = _payload(reader, type_, cardinality)
                stored[array << 32 | number] = _in_portable_form(type_, cardinality, payload)
    reader.unpack("QII")
    for upper, number in sorted(leaves):
        if number not in stored:
            raise ValueError(f"container {number} is missing")
        yield _Container(upper, *stored[number])


def _payload(reader: _Reader, type_: int, cardinality: int) -> bytes:
    if type_ == _RUNS:
        (runs,) = struct.unpack_from("<H", reader.data, reader.position)
        return reader.take(2 + 4 * runs)
    if type_ not in (_BITS, _NUMBERS):
        raise ValueError(f"it has a container of unknown type {type_}")
    return reader.take(_BITS_BYTES if type_ == _BITS else 2 * cardinality)


def _in_portable_form(type_: int, cardinality: int, payload: bytes) -> tuple[int, int, bytes]:
    """The portable layout distinguishes bits from numbers by the cardinality alone."""
    if type_ == _BITS and cardinality <= _NUMBERS_MAX:
        bits = np.unpackbits(np.frombuffer(payload, np.uint8), bitorder="little")
        return _NUMBERS, cardinality, np.flatnonzero(bits).astype("<u2").tobytes()
    if type_ == _NUMBERS and cardinality > _NUMBERS_MAX:
        bits = np.zeros(1 << 16, np.uint8)
        bits[np.frombuffer(payload, "<u2")] = 1
        return _BITS, cardinality, np.packbits(bits, bitorder="little").tobytes()
    return type_, cardinality, payload


def _nodes(leaves: Sequence[tuple[bytes, int]], depth: int) -> Iterator[bytes]:
    """The nodes over sorted leaves. `depth` bytes of the upper bits are already written."""
    if len(leaves) == 1:
        ((upper, number),) = leaves
        yield struct.pack("<BHB6sQ", _LEAF, 0, 0, upper, number)
        return
    first, last = leaves[0][0], leaves[-1][0]
    place = next(place for place in range(depth, 6) if first[place] != last[place])
    prefix = first[depth:place]
    groups = [
        (key, list(group)) for key, group in itertools.groupby(leaves, lambda leaf: leaf[0][place])
    ]
    type_ = next(type_ for type_, most in enumerate(_CHILDREN_MAX) if len(groups) <= most)
    yield struct.pack("<BHB", type_, len(groups), len(prefix)) + prefix
    if type_ == 3:
        yield sum(1 << key for key, _ in groups).to_bytes(32, "little")
    else:
        if type_ == 2:
            table = bytearray([_NO_CHILD] * 256)
            for number, (key, _) in enumerate(groups):
                table[key] = number
        else:
            table = bytearray(key for key, _ in groups).ljust(_BODY_BYTES[type_], b"\x00")
        word = min(8, len(table))
        yield b"".join(bytes(table[i : i + word][::-1]) for i in range(0, len(table), word))
    for _, group in groups:
        yield from _nodes(group, place + 1)


# -- the portable layout ---------------------------------------------------------------------------


def _portable_containers(reader: _Reader, high: int) -> Iterator[_Container]:
    """The containers of the numbers whose upper 32 bits are `high`."""
    cookie = reader.number("I")
    has_runs = cookie & 0xFFFF == _COOKIE_WITH_RUNS
    # With runs, the number of containers is in the upper half of the cookie.
    count = (cookie >> 16) + 1 if has_runs else reader.number("I")
    run_flags = int.from_bytes(reader.take((count + 7) // 8), "little") if has_runs else 0
    keys = [reader.unpack("HH") for _ in range(count)]
    if not has_runs or count >= _OFFSETS_FROM:
        reader.take(4 * count)
    for number, (low, less_one) in enumerate(keys):
        cardinality = less_one + 1
        type_ = _BITS if cardinality > _NUMBERS_MAX else _NUMBERS
        type_ = _RUNS if run_flags >> number & 1 else type_
        payload = _payload(reader, type_, cardinality)
        yield _Container(struct.pack(">IH", high, low), type_, cardinality, payload)


def _without_vain_runs(container: _Container) -> _Container:
    """Bits or numbers instead of runs that are not shorter."""
    is_large = container.cardinality > _NUMBERS_MAX
    plain_bytes = _BITS_BYTES if is_large else 2 * container.cardinality
    if container.type != _RUNS or len(container.payload) < plain_bytes:
        return container
    runs = np.frombuffer(container.payload, "<u2", offset=2).reshape(-1, 2).astype(np.int64)
    numbers = np.concatenate([np.arange(first, first + more + 1) for first, more in runs])
    payload = numbers.astype("<u2").tobytes()
    type_, _, payload = _in_portable_form(_NUMBERS, container.cardinality, payload)
    return _Container(container.upper, type_, container.cardinality, payload)


def _portable32(containers: Sequence[_Container]) -> bytes:
    count = len(containers)
    run_flags = sum(1 << n for n, c in enumerate(containers) if c.type == _RUNS)
    head = struct.pack("<II", _COOKIE, count)
    if run_flags:
        cookie = struct.pack("<I", count - 1 << 16 | _COOKIE_WITH_RUNS)
        head = cookie + run_flags.to_bytes((count + 7) // 8, "little")
    for container in containers:
        (low,) = struct.unpack(">H", container.upper[4:])
        head += struct.pack("<HH", low, container.cardinality - 1)
    if not run_flags or count >= _OFFSETS_FROM:
        sizes = [len(container.payload) for container in containers[:-1]]
        offsets = itertools.accumulate(sizes, initial=len(head) + 4 * count)
        head += struct.pack(f"<{count}I", *offsets)
    return head + b"".join(container.payload for container in containers)
