"""Removal of rows that deletion vectors mark from what Spark's own reader reads.

The vector of each file is broadcast to the executors as a bitmap, under a value that identifies the
file. A row's bit is found by its position, so each row costs one lookup and no hashing. A bitmap is
a list of stretches of 65,536 rows, like the containers of a Roaring bitmap. A stretch without
deleted rows is NULL, so the size of the broadcast depends on the number of deleted rows and not on
the size of the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from keytide.base.scratch import scratch
from keytide.format.data_file import missing_file
from keytide.format.deletion_vector import dead_positions
from keytide.read.sections import PlannedFile
from keytide.snapshot.view import TableView
from keytide.store.base import Store, storage_error

__all__ = ["BITS", "FILE", "bitmaps_of", "told_apart", "without_dead_rows", "without_marked"]

FILE, BITS = map(scratch, ("file", "bits"))
# Powers of two: rows per stretch, and rows per word in it.
_STRETCH_SHIFT, _WORD_SHIFT = 16, 6
_STRETCH = 1 << _STRETCH_SHIFT
_WORDS = _STRETCH >> _WORD_SHIFT


def without_dead_rows(
    rows: DataFrame, view: TableView, files: Sequence[PlannedFile], spark: SparkSession
) -> DataFrame:
    """Remove the rows that deletion vectors mark from rows that Spark's file reader reads, lazily.

    `files` are the files that Spark reads, each of them with a vector. The driver reads the
    vectors, and broadcasts their bitmaps when the frame is evaluated. Raises `DataError` when a
    file or a vector is missing or corrupt.
    """
    known_by, values = told_apart([view.data_file(file.entry) for file in files])
    found = [dead_positions(view.store, f.dead_rows) for f in files if f.dead_rows is not None]
    marks = pa.table([values, bitmaps_of(found)], names=[FILE, BITS])
    return without_marked(rows, spark.createDataFrame(marks), known_by)


def without_marked(rows: DataFrame, bitmaps: DataFrame, known_by: str) -> DataFrame:
    """Remove the rows that bitmaps mark from rows that Spark's file reader reads, lazily.

    For each file, `bitmaps` has the file's value of `known_by`, a column of Spark's metadata, as
    `FILE`, and its bitmap as `BITS`. A file without a bitmap has no marked rows.
    """
    # The table may have a column that is named `_metadata` too.
    metadata = rows.metadataColumn("_metadata")
    marked = rows.join(F.broadcast(bitmaps), metadata[known_by] == bitmaps[FILE], "left")
    dead = _bit(bitmaps[BITS], metadata["row_index"])
    return marked.where(F.coalesce(dead, F.lit(0)) == 0).drop(FILE, BITS)


def told_apart(files: Sequence[tuple[Store, str]]) -> tuple[str, pa.Array]:
    """A column of Spark's file metadata that distinguishes the files, and its value for each file.

    It is the file size if no two sizes are equal, because finding a number is much faster than
    finding a name. The sizes are read from the files and not from manifests: with a wrong size,
    deleted rows would be returned. In an object store, that would take a request for each file.
    Raises `DataError` for a missing file. REQUIRES: the files have different names.
    """
    local = [path for store, name in files if (path := store.uncached().local_path(name))]
    sizes = list(map(_size, local))
    if len({*sizes}) == len(files):
        return "file_size", pa.array(sizes, pa.int64())
    names = [path.rpartition("/")[2] for _, path in files]
    return "file_name", pa.array(names, pa.string())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError as error:
        raise missing_file(str(path)) from error
    except OSError as error:
        raise storage_error("read", str(path), error) from error


def _bit(bits: Column, row: Column) -> Column:
    """Whether a row is deleted: 1 or 0. NULL in a stretch or a file without deleted rows."""
    stretch = F.get(bits, F.shiftright(row, _STRETCH_SHIFT).cast("int"))
    word = F.shiftright(row, _WORD_SHIFT).bitwiseAND(F.lit(_WORDS - 1))
    in_word = row.bitwiseAND(F.lit((1 << _WORD_SHIFT) - 1))
    return F.getbit(F.get(stretch, word.cast("int")), in_word.cast("int"))


def bitmaps_of(files: Sequence[npt.NDArray[np.int64]]) -> pa.Array:
    """The bitmap of each file, given the positions of its deleted rows."""
    found = [_bitmap(positions) for positions in files]
    ends = np.cumsum([0, *map(len, found)])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.concat_arrays(found))


def _bitmap(positions: npt.NDArray[np.int64]) -> pa.Array:
    """Bitmaps of a file's stretches up to its last deleted row, in words of 64 rows."""
    with_dead, which = np.unique(positions >> _STRETCH_SHIFT, return_inverse=True)
    flags = np.zeros(len(with_dead) * _STRETCH, dtype=np.uint8)
    flags[which * _STRETCH + (positions & (_STRETCH - 1))] = 1
    words = np.packbits(flags, bitorder="little").view("<i8")
    is_none = np.ones(int(with_dead[-1]) + 1 if len(with_dead) else 0, dtype=np.bool_)
    is_none[with_dead] = False
    offsets = np.concatenate(([0], np.cumsum(~is_none))) * _WORDS
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(words), mask=pa.array(is_none)
    )
