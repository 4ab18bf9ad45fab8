"""Rows of the JSON files under `data`, as Arrow tables and as text that can be compared.

Decimals, dates, times and timestamps are texts, binaries hex (or what to put into a bitmap or a
sketch, as in `{"$rbm32": [values]}`), maps pairs or objects, rows lists or objects, NaN and the
infinities texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
from datasketches import hll_sketch, update_theta_sketch
from pyroaring import BitMap, BitMap64

from keytide.merge.functions.roaring import encode_bitmap64
from keytide.types import ArrayType, AtomicType, DataType, MapType, MultisetType, RowType

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SHORT_TIME = re.compile(r"(T\d\d:\d\d)$")


def _theta(members: Iterable[int]) -> bytes:
    sketch = update_theta_sketch()
    for member in members:
        sketch.update(member)
    return sketch.compact().serialize()


def _hll(members: Iterable[int]) -> bytes:
    sketch = hll_sketch(12)
    for member in members:
        sketch.update(member)
    return sketch.serialize_compact()


MADE_OF_MEMBERS = {
    "$rbm32": lambda members: BitMap(members).serialize(),
    "$rbm64": lambda members: encode_bitmap64(BitMap64(members)),
    "$theta": _theta,
    "$hll": _hll,
}


def arrow_table(
    rows: Sequence[Sequence[Any]], names: Sequence[str], types: Sequence[DataType]
) -> pa.Table:
    """Rows of JSON values, column by column in the exact Arrow types."""
    arrays = [
        pa.array([from_json(row[i], kind) for row in rows], type=kind.to_arrow())
        for i, kind in enumerate(types)
    ]
    return pa.Table.from_arrays(arrays, names=list(names))


def from_json(value: Any, kind: DataType) -> Any:
    """A JSON value as Python value for Arrow; times count the ticks of their Arrow type."""
    if value is None:
        return None
    if isinstance(kind, ArrayType):
        return [from_json(item, kind.element) for item in value]
    if isinstance(kind, MapType):
        pairs = value.items() if isinstance(value, dict) else value
        return [(from_json(k, kind.key), from_json(v, kind.value)) for k, v in pairs]
    if isinstance(kind, MultisetType):
        return [(from_json(item, kind.element), count) for item, count in value]
    if isinstance(kind, RowType):
        return _row(value, kind)
    assert isinstance(kind, AtomicType)
    return _atom(value, kind)


def rows_as_text(table: pa.Table, *, unordered: Iterable[str] = ()) -> list[str]:
    """Rows as sorted texts, exact to the last digit; `unordered` names arrays that are bags.

    Maps have no order either.
    """
    columns = [_plain(column.combine_chunks(), name in set(unordered)) for name, column in
               zip(table.column_names, table.columns, strict=True)]  # fmt: skip
    return sorted(repr(row) for row in zip(*columns, strict=True))


def _row(value: Any, kind: RowType) -> dict[str, Any]:
    values = [value[f.name] for f in kind.fields] if isinstance(value, dict) else value
    return {f.name: from_json(item, f.type) for f, item in zip(kind.fields, values, strict=True)}


def _atom(value: Any, kind: AtomicType) -> Any:
    if isinstance(value, dict) and value.keys() <= MADE_OF_MEMBERS.keys():
        ((kind_of_set, members),) = value.items()
        return MADE_OF_MEMBERS[kind_of_set](members)
    if kind.root in ("FLOAT", "DOUBLE"):
        return float(value)
    if kind.root in ("TINYINT", "SMALLINT", "INT", "BIGINT"):
        return int(value)
    if kind.root == "DECIMAL":
        return Decimal(str(value))
    if kind.root in ("BINARY", "VARBINARY"):
        return bytes.fromhex(value)
    if kind.root == "DATE":
        return date.fromisoformat(value)
    if kind.root == "TIME":
        return _ticks(f"1970-01-01T{value}", 3)
    if kind.root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        digits = {"ms": 3, "us": 6, "ns": 9}[kind.to_arrow().unit]
        return _ticks(value, digits)
    return value


def _ticks(text: str, digits: int) -> int:
    """Ticks since the epoch, of which a second has 10**digits; exact to the nanosecond."""
    whole = _SHORT_TIME.sub(r"\1:00", text.replace(" ", "T").replace("Z", "+00:00"))
    fraction = ""
    if match := re.search(r"\.(\d+)", whole):
        fraction, whole = match.group(1), whole.replace(match.group(0), "")
    moment = datetime.fromisoformat(whole)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    seconds = int((moment - _EPOCH).total_seconds())
    return seconds * 10**digits + int(fraction.ljust(digits, "0")[:digits] or 0)


def _plain(array: pa.Array, unordered: bool = False) -> list[Any]:
    """Python values that compare by repr; timestamps and times count ticks."""
    kind = array.type
    if pa.types.is_map(kind):
        keys, items = _plain(array.keys), _plain(array.items)
        pairs = list(zip(keys, items, strict=True))
        return _cut(array, pairs, unordered=True)
    if pa.types.is_list(kind):
        return _cut(array, _plain(array.values), unordered)
    if pa.types.is_struct(kind):
        members = [_plain(array.field(i)) for i in range(kind.num_fields)]
        rows = list(zip(*members, strict=True))
        return [row if valid.as_py() else None
                for row, valid in zip(rows, array.is_valid(), strict=True)]  # fmt: skip
    if pa.types.is_timestamp(kind):
        return array.cast(pa.int64()).to_pylist()
    if pa.types.is_time(kind):
        return array.cast(pa.int32()).to_pylist()
    return array.to_pylist()


def _cut(array: pa.Array, values: list[Any], unordered: bool) -> list[Any]:
    offsets = array.offsets.to_pylist()
    lists = []
    for i, valid in enumerate(array.is_valid().to_pylist()):
        items = values[offsets[i] : offsets[i + 1]]
        items = sorted(items, key=repr) if unordered else items
        lists.append(items if valid else None)
    return lists
