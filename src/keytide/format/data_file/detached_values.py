"""Detached values of data files: BLOB contents in other files, VARIANT parts in other columns.

A data file has a descriptor in place of each value::

    2 | magic 8 | length of the URI LE 4 | URI | offset LE 8 | length LE 8
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

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
    _check(named, path)
    uris = pc.binary_slice(named, _URI_AT, -_TAIL).dictionary_encode()
    tails = pc.binary_slice(named, -_TAIL).cast(pa.binary(_TAIL))
    begins, lengths = np.frombuffer(tails.buffers()[1], "<i8").reshape(-1, 2).T
    numbers = np.asarray(uris.indices)
    owns = [np.flatnonzero(numbers == number) for number in range(len(uris.dictionary))]
    calls = [
        partial(
            store.read_ranges,
            _sibling_path(path, uri),
            list(zip(begins[own].tolist(), (begins[own] + lengths[own]).tolist(), strict=True)),
        )
        for own, uri in zip(owns, uris.dictionary.to_pylist(), strict=True)
    ]
    contents = np.full(len(given), None, object)
    for own, found in zip(owns, store.together(calls), strict=True):
        contents[valid[own]] = np.array([*found, None], object)[:-1]
    return pl.Series(descriptors.name, pa.array(contents, pa.large_binary()))


def _check(descriptors: pa.LargeBinaryArray, path: str) -> None:
    begins = pc.binary_slice(descriptors, 0, len(_BEGIN))
    if not pc.all(pc.equal(begins, _BEGIN), min_count=0).as_py():
        raise DataError(f"{path}: a value of a BLOB column is not a descriptor of its content")


def _sibling_path(path: str, uri: bytes) -> str:
    """The path of the file that a URI names, which must be in the folder of the data file."""
    folder = path.rpartition("/")[0]
    name = uri.rpartition(b"/")[2].decode("utf-8", "replace")
    found = paths.join(folder, name)
    if not uri.decode("utf-8", "replace").endswith(f"/{found}"):
        raise UnsupportedError(
            f"{path}: the content of a BLOB is in {uri.decode('utf-8', 'replace')}, which is not "
            "next to the data file; read the table with the engine that created it"
        )
    return found


# -- VARIANT values of data files ------------------------------------------------------------------


_PARTS = "typed_value"
_WHOLE = pl.Struct({"value": pl.Binary, "metadata": pl.Binary})


def whole_variants(rows: Rows, fields: Sequence[Field], uri: str) -> Rows:
    """The rows of a file that has `fields`, with whole VARIANT values.

    `uri` names the file in the errors of the plan: `DataError` for damaged values,
    `UnsupportedError` for a part of a type that is not known.
    """
    frame, stored = rows
    shredded = {
        field.name: _whole_type(stored[field.name])
        for field in fields
        if field.name in stored and has_variant(field.type) and _is_shredded(stored[field.name])
    }
    if not shredded:
        return rows
    wholes = [
        pl.col(name).map_batches(partial(_whole_column, f"{uri}: column {name!r}"), whole)
        for name, whole in shredded.items()
    ]
    return frame.with_columns(wholes), pl.Schema({**stored, **shredded})


def _is_group(stored: pl.DataType) -> bool:
    """Whether a stored column is a VARIANT of which parts are in columns of their own."""
    return isinstance(stored, pl.Struct) and {"metadata", _PARTS} <= {
        field.name for field in stored.fields
    }


def _is_shredded(stored: pl.DataType) -> bool:
    return _is_group(stored) or any(_is_shredded(each) for each in _inner(stored))


def _inner(stored: pl.DataType) -> list[pl.DataType]:
    if isinstance(stored, pl.Struct):
        return [_type(field.dtype) for field in stored.fields]
    if HAS_MAPS and isinstance(stored, pl.Map):
        return [_type(stored.key), _type(stored.value)]
    return [_type(stored.inner)] if isinstance(stored, pl.List) else []


def _type(given: object) -> pl.DataType:
    assert isinstance(given, pl.DataType)
    return given


def _whole_type(stored: pl.DataType) -> pl.DataType:
    if _is_group(stored):
        return _WHOLE
    if isinstance(stored, pl.Struct):
        return pl.Struct({f.name: _whole_type(_type(f.dtype)) for f in stored.fields})
    if HAS_MAPS and isinstance(stored, pl.Map):
        return pl.Map(*map(_whole_type, _inner(stored)))
    return pl.List(_whole_type(_type(stored.inner))) if isinstance(stored, pl.List) else stored


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
