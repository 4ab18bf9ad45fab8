"""Reads rows at given positions of data files.

A few rows are read individually. For more rows, their row groups are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.format.data_file.far_file import WHOLE_BYTES_MAX
from keytide.format.data_file.formats import format_of
from keytide.format.data_file.kept_rows import FEW_ROWS, read_few
from keytide.format.data_file.reader import FileReader, spans_of
from keytide.format.deletion_vector import living_among
from keytide.store import Store

__all__ = ["begin_footers", "read_places"]

Places: TypeAlias = "npt.NDArray[np.int64]"

# More spans of a file take as long as reading what is between them.
_SPANS_MAX = 8
# With more files, more requests would be made than saved.
_AHEAD_MAX = 16


@dataclass(frozen=True)
class _Read:
    """A span of a file, and the positions of the wanted, live rows in the file."""

    reader: FileReader
    start: int
    length: int
    living: Future[Places]

    @property
    def are_wanted(self) -> pl.Series:
        """Whether each row of the span is wanted."""
        places = self.living.result()
        first, last = np.searchsorted(places, [self.start, self.start + self.length])
        wanted = np.zeros(self.length, np.bool_)
        wanted[places[first:last] - self.start] = True
        return pl.Series(wanted)


def begin_footers(files: Iterable[tuple[Store, str, int]], kept_bytes_max: int) -> None:
    """Start to fetch the footers of large remote files, in parallel with other requests.

    If there are many files, none is fetched. Errors appear when the files are read.
    """
    far = [f for f in files if f[2] > WHOLE_BYTES_MAX and f[0].local_path(f[1]) is None]
    if len(far) <= _AHEAD_MAX:
        for store, path, size in far:
            store.begin(partial(format_of(path).group_rows, store, path, size, kept_bytes_max))


def read_places(
    files: Sequence[tuple[FileReader, Places]], where: pl.Expr | None, rows_max: int
) -> Iterator[pl.DataFrame]:
    """The rows at given positions of files, ascending, that are live and match `where`.

    At most about `rows_max` rows are decoded at a time. Raises like `FileReader.read`.
    """
    store = files[0][0].store
    living = [store.begin(partial(_living, reader, places)) for reader, places in files]
    # For local files, dead rows are known immediately. For remote files, they are read in parallel
    # with the rows.
    near = [_is_near(reader) for reader, _ in files]
    known = [
        (reader, alive.result() if is_near else places)
        for (reader, places), alive, is_near in zip(files, living, near, strict=True)
    ]
    spans = store.together([partial(_spans, reader, at, rows_max) for reader, at in known])
    reads = [
        _Read(replace(reader, dead_rows=None), start, length, alive)
        for (reader, _), own, alive in zip(files, spans, living, strict=True)
        for start, length in own
    ]
    for batch in _batches(reads, rows_max):
        yield from _read(batch, where)


def _read(batch: Sequence[_Read], where: pl.Expr | None) -> Iterator[pl.DataFrame]:
    spans = [(read.reader, (read.start, read.length)) for read in batch]
    if all(read.length == 1 and _is_near(read.reader) for read in batch):
        yield from read_few(spans, where)  # nothing to leave out
        return
    for read, frame in zip(batch, read_few(spans), strict=True):
        rows = frame.filter(read.are_wanted)  # faster than selecting rows from chunks
        yield rows if where is None else rows.filter(where)


def _is_near(reader: FileReader) -> bool:
    return reader.store.local_path(reader.path) is not None


def _living(reader: FileReader, places: Places) -> Places:
    if reader.dead_rows is None:
        return places
    return living_among(reader.table or reader.store, reader.dead_rows, places)


def _spans(reader: FileReader, places: Places, rows_max: int) -> list[tuple[int, int]]:
    if not len(places):
        return []
    cuts = np.flatnonzero(np.diff(places) > FEW_ROWS) + 1
    if _is_near(reader) and len(cuts) < _SPANS_MAX:
        parts = np.split(places, cuts)
        return [(int(part[0]), int(part[-1] - part[0]) + 1) for part in parts]
    # From a remote file, whole column chunks are fetched.
    groups = reader.groups()
    ends = (groups["offset"] + groups["rows"]).to_numpy()
    counts = np.bincount(np.searchsorted(ends, places, side="right"), minlength=len(ends))
    found = spans_of(groups.filter(pl.Series(counts > 0)), rows_max)
    return [(start, length) for start, length in found if length is not None]


def _batches(reads: Sequence[_Read], rows_max: int) -> Iterator[Sequence[_Read]]:
    batch: list[_Read] = []
    rows = 0
    for read in reads:
        if batch and rows + read.length > rows_max:
            yield batch
            batch, rows = [], 0
        batch.append(read)
        rows += read.length
    if batch:
        yield batch
