"""Contents of BLOB columns, which are stored in files of their own.

A data file has a descriptor in place of each value::

    2 | magic 8 | length of the URI LE 4 | URI | offset LE 8 | length LE 8

The URI names a file next to the data file. Only the end of the URI counts, so a table can be moved,
and no file outside the table is ever read.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from keytide.errors import DataError, UnsupportedError
from keytide.format import paths
from keytide.store import Store

__all__ = ["blob_contents"]

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
            _beside(path, uri),
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


def _beside(path: str, uri: bytes) -> str:
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
