"""VARIANT values of which a file stores parts in columns of their own.

The column is a group of `metadata`, `value` and `typed_value`. What `typed_value` has is not in
`value`: a scalar, the elements of an array, or fields of an object. Each element and each field is
such a group again, without metadata. What has no typed value is in `value`, in binary form.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.format.variant_encoding import (
    ARRAY,
    NO_KEY,
    OBJECT,
    Bytes,
    Level,
    Numbers,
    Pool,
    bytes_of,
    counted,
    encoded,
    encoded_scalars,
    keys_of,
    leaf_sizes,
    members_of,
)

# -- VARIANT values of which a file stores parts in columns of their own ---------------------------


_MISSING = "a value is missing"
_Bools = npt.NDArray[np.bool_]


def assembled(column: pa.Array) -> pa.Array:
    """The whole values of a shredded column, as `value` and `metadata`.

    Each is encoded as Java encodes it: with the keys of the value in the order of its fields.
    Raises `ValueError` or `IndexError` for damaged values. REQUIRES: `unknown_part` is None.
    """
    rows = np.flatnonzero(np.asarray(column.is_valid()))
    given = column.take(pa.array(rows))
    metadata = given.field("metadata").dictionary_encode()
    found, counts = keys_of(metadata.dictionary)
    pool = Pool()
    group = _group(given, pool)
    names = pa.array([name.encode() for name in group.names()], pa.large_binary())
    coded = pa.chunked_array([found, names]).combine_chunks().dictionary_encode()
    numbers = np.asarray(coded.indices).astype(np.int64)
    which = np.asarray(metadata.indices).astype(np.int64)
    keys = _Keys(
        numbers,
        (np.cumsum(counts) - counts)[which],
        counts[which],
        dict(zip(group.names(), numbers[len(found) :].tolist(), strict=True)),
    )
    data = pool.joined()
    levels = _levels(group, data, keys, len(rows))
    whole = pa.StructArray.from_arrays(
        encoded(levels, data, coded.dictionary), ["value", "metadata"]
    )
    places = np.full(len(column), -1)
    places[rows] = np.arange(len(rows))
    return whole.take(pa.array(places, mask=places < 0))


def unknown_part(kind: pa.DataType) -> pa.DataType | None:
    """The type of a typed value that no VARIANT value is shredded into. None if there is none."""
    names = [kind.field(i).name for i in range(kind.num_fields)]
    if "typed_value" not in names:
        return None
    typed = kind.field("typed_value").type
    if pa.types.is_struct(typed):
        inner = [unknown_part(each.type) for each in typed]
        return next((each for each in inner if each is not None), None)
    if isinstance(typed, pa.LargeListType | pa.ListType):
        is_group = pa.types.is_struct(typed.value_type)
        return unknown_part(typed.value_type) if is_group else typed
    return typed if encoded_scalars(pa.nulls(0, typed)) is None else None


@dataclass(frozen=True)
class _Ranges:
    """Where values are in the pool, and which there are."""

    starts: Numbers
    lengths: Numbers
    valid: _Bools


@dataclass(frozen=True)
class _Group:
    """A group of `value` and `typed_value`, for many rows."""

    valid: _Bools
    value: _Ranges | None
    is_typed: _Bools
    scalars: _Ranges | None = None
    elements: tuple[Numbers, Numbers, _Group] | None = None
    """Where the elements of each array begin, their number, and the elements of all."""
    fields: dict[str, _Group] | None = None

    def names(self) -> list[str]:
        """The names of all fields, at any depth, each once."""
        inner = [self.elements[2]] if self.elements else [*(self.fields or {}).values()]
        found = [*(self.fields or {}), *(name for each in inner for name in each.names())]
        return [*dict.fromkeys(found)]

    @property
    def is_present(self) -> _Bools:
        """Which rows have a value."""
        return self.is_typed if self.value is None else self.is_typed | self.value.valid


@dataclass(frozen=True)
class _Keys:
    """Numbers of the keys that values use."""

    numbers: Numbers
    firsts: Numbers
    counts: Numbers
    numbers_by_name: dict[str, int]

    def stored(self, rows: Numbers, ids: Numbers) -> Numbers:
        """The keys that values refer to by their place in the metadata of the row."""
        has_key = ids != NO_KEY
        if np.any(ids >= self.counts[rows]):
            raise ValueError("its metadata lacks a key")
        places = np.where(has_key, self.firsts[rows] + ids, 0)
        numbers = self.numbers if len(self.numbers) else np.zeros(1, np.int64)
        return np.where(has_key, numbers[places], NO_KEY)


def _group(column: pa.Array, pool: Pool) -> _Group:
    valid = np.asarray(column.is_valid())
    names = [column.type.field(i).name for i in range(column.type.num_fields)]
    value = None
    if "value" in names:
        stored = column.field("value")
        value = _ranges(bytes_of(stored), np.asarray(stored.is_valid()), pool)
    if "typed_value" not in names:
        return _Group(valid, value, np.zeros(len(column), np.bool_))
    typed = column.field("typed_value")
    is_typed = np.asarray(typed.is_valid())
    if pa.types.is_struct(typed.type):
        kinds = [typed.type.field(i).name for i in range(typed.type.num_fields)]
        fields = {name: _group(typed.field(i), pool) for i, name in enumerate(kinds)}
        return _Group(valid, value, is_typed, fields=fields)
    if isinstance(typed.type, pa.LargeListType | pa.ListType):
        ends = np.asarray(typed.offsets).astype(np.int64)
        elements = _group(typed.values, pool)
        return _Group(valid, value, is_typed, elements=(ends[:-1], np.diff(ends), elements))
    encoded_ = encoded_scalars(typed)
    assert encoded_ is not None
    return _Group(valid, value, is_typed, scalars=_ranges(encoded_, is_typed, pool))


def _ranges(stored: tuple[Bytes, Numbers, Numbers], valid: _Bools, pool: Pool) -> _Ranges:
    data, starts, lengths = stored
    return _Ranges(starts + pool.add(data), lengths, valid)


@dataclass(frozen=True)
class _NextNodes:
    """Nodes of the next level: members of nodes of this level.

    They are in a group, or in binary form in the pool.
    """

    parents: Numbers
    orders: Numbers
    keys: Numbers
    at: Numbers
    """Rows of the group, or places in the pool."""
    ends: Numbers
    """Where those in the pool end at the latest."""
    group: _Group | None


def _levels(group: _Group, data: Bytes, keys: _Keys, row_count: int) -> list[Level]:
    """The nodes of all values, by depth."""
    first = np.arange(row_count)
    found = [_NextNodes(first, first, np.full(row_count, NO_KEY), first, first, group)]
    levels, rows = [], first
    stored_count = 0
    while found:
        parents = np.concatenate([each.parents for each in found])
        order = np.lexsort((np.concatenate([each.orders for each in found]), parents))
        stored_count += sum(len(each.at) for each in found if each.group is None)
        if stored_count > len(data):
            raise ValueError("its parts overlap")
        rows = rows[parents[order]]
        level = _LevelBuilder(data, keys, rows)
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        ends = np.cumsum([len(each.at) for each in found])
        for each, place in zip(found, np.split(places, ends[:-1]), strict=True):
            if each.group is None:
                level.add_stored(place, each.at, each.ends)
            else:
                level.add_group(each.group, place, each.at)
        all_keys = np.concatenate([each.keys for each in found])[order]
        levels.append(Level(parents[order], all_keys, level.kinds, level.starts, level.lengths))
        found = [each for each in level.found if len(each.at)]
    return levels


class _LevelBuilder:
    """A level while its nodes are looked at."""

    def __init__(self, data: Bytes, keys: _Keys, rows: Numbers) -> None:
        self.data, self.keys, self.rows = data, keys, rows
        self.kinds = np.zeros(len(rows), np.uint8)
        self.starts = np.zeros(len(rows), np.int64)
        self.lengths = np.zeros(len(rows), np.int64)
        self.found: list[_NextNodes] = []

    def add_group(self, group: _Group, places: Numbers, at: Numbers) -> None:
        """Nodes that are rows of a group."""
        if not np.all(group.valid[at] & group.is_present[at]):
            raise ValueError(_MISSING)
        is_typed = group.is_typed[at]
        typed, typed_at = places[is_typed], at[is_typed]
        if group.scalars is not None:
            self.starts[typed] = group.scalars.starts[typed_at]
            self.lengths[typed] = group.scalars.lengths[typed_at]
        elif group.elements is not None:
            self.kinds[typed] = ARRAY
            begins, counts, elements = group.elements
            owners, numbers = counted(counts[typed_at])
            none = np.full(len(owners), NO_KEY)
            rows = begins[typed_at][owners] + numbers
            self.found.append(_NextNodes(typed[owners], numbers, none, rows, rows, elements))
        elif group.fields is not None:
            self._add_fields(group, group.fields, typed, typed_at)
        if group.value is not None:
            rest = at[~is_typed]
            begins, lengths = group.value.starts[rest], group.value.lengths[rest]
            self.add_stored(places[~is_typed], begins, begins + lengths)

    def add_stored(self, places: Numbers, at: Numbers, ends: Numbers) -> None:
        """Nodes in binary form."""
        _check_begins(at, ends)
        kinds = self.data[at] & 3
        self.kinds[places] = kinds
        leaves, inner = np.flatnonzero(kinds < OBJECT), np.flatnonzero(kinds >= OBJECT)
        self.starts[places[leaves]] = at[leaves]
        self.lengths[places[leaves]] = leaf_sizes(self.data, at[leaves], ends[leaves])
        self._add_members(places[inner], at[inner], ends[inner], 0)

    def _add_members(self, places: Numbers, at: Numbers, ends: Numbers, first: int) -> Numbers:
        """Members of objects and arrays in binary form. Returns their keys."""
        owners, numbers, ids, values = members_of(self.data, at, ends)
        parents = places[owners]
        keys = self.keys.stored(self.rows[parents], ids)
        self.found.append(_NextNodes(parents, numbers + first, keys, values, ends[owners], None))
        return keys

    def _add_fields(
        self, group: _Group, fields: dict[str, _Group], places: Numbers, at: Numbers
    ) -> None:
        self.kinds[places] = OBJECT
        for order, (name, field) in enumerate(fields.items()):
            if not np.all(field.valid[at]):
                raise ValueError(_MISSING)
            own = np.flatnonzero(field.is_present[at])
            key = np.full(len(own), self.keys.numbers_by_name[name])
            orders = np.full(len(own), order)
            self.found.append(_NextNodes(places[own], orders, key, at[own], at[own], field))
        if group.value is None:
            return
        rest = np.flatnonzero(group.value.valid[at])
        begins = group.value.starts[at[rest]]
        ends = begins + group.value.lengths[at[rest]]
        _check_begins(begins, ends)
        if np.any(self.data[begins] & 3 != OBJECT):
            raise ValueError("it has fields and a value that is not an object")
        keys = self._add_members(places[rest], begins, ends, len(fields))
        if np.any(np.isin(keys, [self.keys.numbers_by_name[name] for name in fields])):
            raise ValueError("an object has a key twice")


def _check_begins(at: Numbers, ends: Numbers) -> None:
    if np.any(at >= ends):
        raise ValueError("a value is cut off")
