"""Detached values of data files: BLOB contents in other files, VARIANT parts in other columns.

A data file has a descriptor in place of each BLOB value::

    2 | magic 8 | length of the URI LE 4 | URI | offset LE 8 | length LE 8

A VARIANT column with detached parts is a group of `metadata`, `value` and `typed_value`. What
`typed_value` has is not in `value`: a scalar, the elements of an array, or fields of an object.
Each element and each field is such a group again, without metadata. What has no typed value is in
`value`, in binary form.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass
from keytide.errors import DataError, UnsupportedError
from keytide.format import paths
from keytide.format.arrow import HAS_MAPS
from keytide.format.data_file.file_format import Rows
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
from keytide.store import Store
from keytide.types import Field, has_variant

# -- contents of BLOB columns ----------------------------------------------------------------------


_BEGIN = b"\x02CSEDBOLB"
_URI_AT, _TAIL = len(_BEGIN) + 4, 16


def blob_contents(store: Store, path: str, descriptors: pl.Series) -> pl.Series:
    """The contents that the descriptors in a column of the data file at `path` refer to.

    The contents of one file are read with one request, in parallel. Raises `DataError` for a
    damaged descriptor or a missing file, and `UnsupportedError` for a file that is not next to the
    data file.
    """
    given = descriptors.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.large_binary())
    valid = np.flatnonzero(np.asarray(given.is_valid()))
    named = given.take(valid)
    if not pc.all(pc.starts_with(named, _BEGIN), min_count=0).as_py():
        raise DataError(f"{path}: a value of a BLOB column is not a descriptor of its content")
    uris = pc.binary_slice(named, _URI_AT, -_TAIL).dictionary_encode()
    tails = pc.binary_slice(named, -_TAIL).cast(pa.binary(_TAIL))
    begins, lengths = np.frombuffer(tails.buffers()[1], "<i8").reshape(-1, 2).T
    numbers = np.asarray(uris.indices)
    folder = path.rpartition("/")[0]
    owns, calls = [], []
    for number, stored_uri in enumerate(uris.dictionary.to_pylist()):
        uri = stored_uri.decode("utf-8", "replace")
        sibling = paths.join(folder, uri.rpartition("/")[2])
        if not uri.endswith(f"/{sibling}"):
            raise UnsupportedError(
                f"{path}: the content of a BLOB is in {uri}, which is not next to the data file; "
                "read the table with the engine that created it"
            )
        own = np.flatnonzero(numbers == number)
        ends = begins[own] + lengths[own]
        ranges = list(zip(begins[own].tolist(), ends.tolist(), strict=True))
        owns.append(own)
        calls.append(partial(store.read_ranges, sibling, ranges))
    contents = np.full(len(given), None, object)
    for own, found in zip(owns, store.together(calls), strict=True):
        contents[valid[own]] = np.array([*found, None], object)[:-1]
    return pl.Series(descriptors.name, pa.array(contents, pa.large_binary()))


# -- VARIANT columns of data files ----------------------------------------------------------------


_PARTS = "typed_value"
_WHOLE = pl.Struct({"value": pl.Binary, "metadata": pl.Binary})


def whole_variants(rows: Rows, fields: Sequence[Field], uri: str) -> Rows:
    """The rows of a file that has `fields`, with whole VARIANT values.

    `uri` names the file in the errors of the plan: `DataError` for damaged values,
    `UnsupportedError` for a part of a type that is not known.
    """
    frame, stored = rows
    types = {
        field.name: _whole_type(stored[field.name])
        for field in fields
        if field.name in stored and has_variant(field.type)
    }
    shredded = {name: whole for name, whole in types.items() if whole != stored[name]}
    if not shredded:
        return rows
    wholes = [
        pl.col(name).map_batches(partial(_whole_column, f"{uri}: column {name!r}"), whole)
        for name, whole in shredded.items()
    ]
    return frame.with_columns(wholes), pl.Schema({**stored, **shredded})


def _whole_type(stored: Any) -> pl.DataType:
    """The type without VARIANT values of which parts are in columns of their own."""
    if isinstance(stored, pl.Struct):
        if {"metadata", _PARTS} <= {field.name for field in stored.fields}:
            return _WHOLE
        return pl.Struct({field.name: _whole_type(field.dtype) for field in stored.fields})
    if HAS_MAPS and isinstance(stored, pl.Map):
        return pl.Map(_whole_type(stored.key), _whole_type(stored.value))
    if isinstance(stored, pl.List):
        return pl.List(_whole_type(stored.inner))
    assert isinstance(stored, pl.DataType)
    return stored


def _whole_column(place: str, column: pl.Series) -> pl.Series:
    given = column.to_arrow(compat_level=pl.CompatLevel.oldest())
    try:
        return pl.Series(column.name, _whole(place, given), _whole_type(column.dtype))
    except (ValueError, IndexError) as error:
        raise DataError(
            f"data file {place} has a damaged VARIANT value: {error}; restore the file, or read "
            "other columns"
        ) from error


def _whole(place: str, column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_struct(kind) and {"metadata", _PARTS} <= {f.name for f in kind}:
        unknown = unknown_part(kind)
        if unknown is None:
            return assembled(column)
        raise UnsupportedError(
            f"data file {place} has VARIANT values with parts of the type {unknown}, which this "
            "release does not know; read other columns, or use the engine that wrote the file"
        )
    if pa.types.is_struct(kind):
        children = [_whole(place, column.field(i)) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, [f.name for f in kind], mask=column.is_null())
    if not pa.types.is_map(kind) and not pa.types.is_large_list(kind):
        return column
    column = pa.concat_arrays([column, column[:0]])  # without an offset, which masks forbid
    if pa.types.is_map(kind):
        keys, values = _whole(place, column.keys), _whole(place, column.items)
        return pa.MapArray.from_arrays(column.offsets, keys, values, mask=column.is_null())
    values = _whole(place, column.values)
    return pa.LargeListArray.from_arrays(column.offsets, values, mask=column.is_null())


# -- VARIANT values from their parts ---------------------------------------------------------------


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
