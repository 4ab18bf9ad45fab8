"""Detached values of data files: BLOB contents in other files, VARIANT parts in other columns.

A data file has a descriptor in place of each value::

    2 | magic 8 | length of the URI LE 4 | URI | offset LE 8 | length LE 8
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.errors import DataError, UnsupportedError
from keytide.format import paths
from keytide.format.arrow import HAS_MAPS
from keytide.format.data_file.file_format import Rows
from keytide.format.variant_shredding import assembled, unknown_part
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


# -- VARIANT values of data files ------------------------------------------------------------------


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
