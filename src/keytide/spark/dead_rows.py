"""Rows that deletion vectors mark, taken out of what Spark's own reader reads.

Each file's vector goes to the executors as a bitmap, broadcast by the file's name, in which a row's
bit is found by its position: a look-up for each row, with no set of dead rows to be hashed. A
bitmap is a list of stretches of 65,536 rows, as a Roaring bitmap's containers, and a stretch with
no dead row is NULL, so what is broadcast grows with dead rows and not with files.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from keytide.format.deletion_vector import dead_positions
from keytide.scratch import scratch
from keytide.store.base import Store
from keytide.table.read.sections import PlannedFile

__all__ = ["without_dead_rows"]

_FILE, _BITS = map(scratch, ("file", "bits"))
# Powers of two: rows of a stretch, and of one word in it.
_STRETCH_SHIFT, _WORD_SHIFT = 16, 6
_STRETCH = 1 << _STRETCH_SHIFT
_WORDS = _STRETCH >> _WORD_SHIFT


def without_dead_rows(
    rows: DataFrame, store: Store, files: Iterable[PlannedFile], spark: SparkSession
) -> DataFrame:
    """Rows that Spark's file reader reads, lazily, without those that files' vectors mark.

    Vectors are read on the driver, and their bitmaps broadcast when the frame is evaluated.
    Raises `DataError` when a vector is missing or torn.
    """
    bitmaps = spark.createDataFrame(_bitmaps(store, files))
    # A column of the table may be called `_metadata` too.
    metadata = rows.metadataColumn("_metadata")
    known = rows.join(F.broadcast(bitmaps), metadata["file_name"] == bitmaps[_FILE], "left")
    dead = _bit(bitmaps[_BITS], metadata["row_index"])
    return known.where(F.coalesce(dead, F.lit(0)) == 0).drop(_FILE, _BITS)


def _bit(bits: Column, row: Column) -> Column:
    """Whether a row is dead: 1 or 0, and NULL in a stretch and a file that have no dead rows."""
    stretch = F.get(bits, F.shiftright(row, _STRETCH_SHIFT).cast("int"))
    word = F.shiftright(row, _WORD_SHIFT).bitwiseAND(F.lit(_WORDS - 1))
    in_word = row.bitwiseAND(F.lit((1 << _WORD_SHIFT) - 1))
    return F.getbit(F.get(stretch, word.cast("int")), in_word.cast("int"))


def _bitmaps(store: Store, files: Iterable[PlannedFile]) -> pa.Table:
    """A row for each file with dead rows: its name, and its bitmap."""
    dead = {
        file.meta.file_name: _bitmap(dead_positions(store, file.dead_rows))
        for file in files
        if file.dead_rows is not None
    }
    ends = np.cumsum([0, *map(len, dead.values())])
    stretches = pa.concat_arrays(dead.values())
    bitmaps = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), stretches)
    return pa.table({_FILE: pa.array(dead, pa.string()), _BITS: bitmaps})


def _bitmap(positions: npt.NDArray[np.int64]) -> pa.Array:
    """Bitmaps of a file's stretches up to its last dead row, each of words of 64 rows."""
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
