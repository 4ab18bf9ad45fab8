"""Lookup files: copies of data files on local disk in which keys are found quickly.

To find rows that are spread over a data file, the file has to be decoded. A process that looks up
keys in a file for the second time decodes it once more, into an Arrow file that is memory-mapped.
Pages that are not needed are never touched, and the operating system can drop them. Lookup files
are unlinked as soon as they are mapped, so none of them outlives its process, however the process
ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.process import side_by_side
from keytide.merge.layers import with_keys
from keytide.merge.order import physical

Places: TypeAlias = npt.NDArray[np.int64]

# The number of data files without a lookup file that are remembered.
_REMEMBERED_MAX = 10_000
# A process can map about ten thousand files.
_FILES_MAX = 10_000
# With at most this many keys, the search ends before threads have started.
_ALONE_MAX = 1 << 12
# Lookup files use at most this fraction of the free disk space.
_FREE_SHARE_MAX = 0.5


@dataclass(frozen=True)
class Bounds:
    """The limits of lookup files: their size in bytes, and how long unused ones stay, in seconds.

    Without `bytes_max`, the limit is half of the free disk space.
    """

    bytes_max: int | None
    unused_s: float


@dataclass(frozen=True)
class LookupFile:
    """The versions in a data file, in key order, one version per key."""

    frames: tuple[pl.DataFrame, ...]
    size: int

    def with_keys(self, keys: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """The versions of some keys, frame by frame in key order.

        The keys are unique and sorted.
        """
        at_once = 1 if keys.height <= _ALONE_MAX else os.cpu_count() or 1
        for start in range(0, len(self.frames), at_once):
            frames = self.frames[start : start + at_once]
            found = side_by_side([partial(searched, frame, keys) for frame in frames], at_once)
            yield from (rows for rows in found if rows.height)


class LookupFiles:
    """The recently used lookup files of a process. Safe to share between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._files: OrderedDict[Hashable, tuple[LookupFile, float]] = OrderedDict()
        self._bytes = 0
        self._remembered: OrderedDict[Hashable, bool] = OrderedDict()
        """For files without a lookup file: whether the next lookup may create one."""

    def find(
        self,
        key: Hashable,
        versions: Callable[[], Iterable[pl.DataFrame]],
        bounds: Bounds,
        *,
        at_once: bool = False,
    ) -> LookupFile | None:
        """The lookup file of the data file `key`, created from its `versions` at the second call.

        None at the first call, unless `at_once` is set, and if there is no space: then the data
        file must be read.
        """
        with self._lock:
            self._drop_unused(bounds.unused_s)
            if key in self._files:
                return self._used(key)
            if not self._remembered.get(key, at_once):
                self._remember(key, may_be_made=key not in self._remembered)
                return None
        # Not under the lock. If two threads look up the same file at the same time, both create it.
        made = _made(versions(), bounds.bytes_max)
        with self._lock:
            if made is None:
                self._remember(key, may_be_made=False)
            elif key not in self._files:
                self._keep(key, made, bounds.bytes_max)
        return made

    def existing(self, key: Hashable, bounds: Bounds) -> LookupFile | None:
        """The lookup file of the data file `key`, if it exists."""
        with self._lock:
            self._drop_unused(bounds.unused_s)
            return self._used(key) if key in self._files else None

    def keep(self, key: Hashable, versions: Iterable[pl.DataFrame], bounds: Bounds) -> None:
        """Create the lookup file of the data file `key` from its `versions`, if there is space."""
        made = _made(versions, bounds.bytes_max)
        with self._lock:
            self._drop_unused(bounds.unused_s)
            if made is not None and key not in self._files:
                self._keep(key, made, bounds.bytes_max)

    def forget(self, key: Hashable) -> None:
        """Drop the lookup file of the data file `key`, if it exists."""
        with self._lock:
            if key in self._files:
                self._drop(key)

    def _used(self, key: Hashable) -> LookupFile:
        file, _ = self._files[key]
        self._files[key] = file, self._clock()
        self._files.move_to_end(key)
        return file

    def _keep(self, key: Hashable, file: LookupFile, bytes_max: int | None) -> None:
        while self._files and (
            len(self._files) >= _FILES_MAX
            or (bytes_max is not None and self._bytes + file.size > bytes_max)
        ):
            self._drop(next(iter(self._files)))
        self._files[key] = file, self._clock()
        self._bytes += file.size
        self._remembered.pop(key, None)

    def _drop_unused(self, unused_s: float) -> None:
        now = self._clock()
        while self._files and now - next(iter(self._files.values()))[1] > unused_s:
            self._drop(next(iter(self._files)))

    def _drop(self, key: Hashable) -> None:
        # Its space is freed when no caller holds rows of it any more.
        file, _ = self._files.pop(key)
        self._bytes -= file.size

    def _remember(self, key: Hashable, *, may_be_made: bool) -> None:
        self._remembered[key] = may_be_made
        self._remembered.move_to_end(key)
        if len(self._remembered) > _REMEMBERED_MAX:
            self._remembered.popitem(last=False)


LOOKUP_FILES: Final = LookupFiles()
"""One object for all tables, because a process may use many tables but has one disk."""


def _made(frames: Iterable[pl.DataFrame], bytes_max: int | None) -> LookupFile | None:
    """A lookup file with the rows of the frames. None if they do not fit."""
    # A full disk only makes lookups slower.
    with suppress(OSError), tempfile.NamedTemporaryFile(prefix="keytide-lookup-") as file:
        free = int(shutil.disk_usage(file.name).free * _FREE_SHARE_MAX)
        if not _is_written(frames, file.name, free if bytes_max is None else min(free, bytes_max)):
            return None
        reader = pa.ipc.open_file(pa.memory_map(file.name))
        batches = (reader.get_batch(place) for place in range(reader.num_record_batches))
        mapped = (pl.DataFrame(pl.from_arrow(batch, rechunk=False)) for batch in batches)
        return LookupFile(tuple(mapped), file.seek(0, 2))
    return None


def _is_written(frames: Iterable[pl.DataFrame], path: str, bytes_max: int) -> bool:
    """Write the frames to a file. False if they need more than `bytes_max`."""
    writer: pa.RecordBatchFileWriter | None = None
    with pa.OSFile(path, "wb") as sink:
        for frame in frames:
            # In the layout of Polars itself, so nothing is copied when the file is mapped.
            rows = frame.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
            writer = writer or pa.ipc.new_file(sink, rows.schema)
            writer.write_table(rows)
            if sink.tell() > bytes_max:
                return False
        if writer is not None:
            writer.close()
    return writer is not None


def searched(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Those rows that have one of the keys.

    The rows are sorted by key, and keys are unique in them. `keys` has each key once, sorted.
    """
    first, *more = keys.columns
    column, wanted = rows[first], keys[first]
    if not (len(column) and _is_searchable(wanted) and _is_searchable(column)):
        return with_keys(rows, keys)
    places = (_stretches if more else _places)(physical(column), physical(wanted))
    if not len(places):
        return rows.head(0)
    found = rows[pl.Series(places)]
    return with_keys(found, keys) if more else found


def _is_searchable(key: pl.Series) -> bool:
    """Whether the column's order in a file is the order of Polars."""
    kind = key.dtype
    is_plain = kind.is_integer() or kind.is_temporal() or kind in (pl.String, pl.Binary)
    return is_plain and not key.null_count()


def _places(column: pl.Series, wanted: pl.Series) -> Places:
    """The positions of the wanted values in a column. Both are sorted and unique."""
    near = _near(column, wanted)
    places = _search(column, near, "left")
    if _are_numbers(column, near):
        is_there = column.to_numpy()[places] == near.to_numpy()
    else:
        is_there = (column.gather(places) == near).to_numpy()
    there: Places = places[is_there]
    return there


def _stretches(column: pl.Series, wanted: pl.Series) -> Places:
    """The same if values may occur several times on both sides."""
    near = _near(column, wanted).unique(maintain_order=True)
    starts, ends = _search(column, near, "left"), _search(column, near, "right")
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def _near(column: pl.Series, wanted: pl.Series) -> pl.Series:
    """Those of the sorted values that are within the range of a sorted column."""
    begin, end = _search(wanted, column[:1], "left"), _search(wanted, column[-1:], "right")
    return wanted[int(begin[0]) : int(end[0])]


def _search(column: pl.Series, values: pl.Series, side: Literal["left", "right"]) -> Places:
    if _are_numbers(column, values):  # takes a fraction of the time
        return np.searchsorted(column.to_numpy(), values.to_numpy(), side)
    return column.search_sorted(values, side=side).to_numpy().astype(np.int64)


def _are_numbers(one: pl.Series, other: pl.Series) -> bool:
    return one.dtype.is_integer() and one.dtype == other.dtype
