"""Lookup files: data files laid out once more on local disk, so that their keys are found at once.

A data file has to be decoded to find rows that lie all over it. A process that looks keys up in a
file for the second time decodes it once for all, into an Arrow file that it maps into its memory:
what is not asked for is never touched, and the system may let go of it. Lookup files have no name
from the moment on when they are mapped, so that none outlives its process, however that ends.
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
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.merge.order import physical
from keytide.merge.touched import with_keys
from keytide.threads import side_by_side

__all__ = ["LOOKUP_FILES", "Bounds", "LookupFile", "LookupFiles", "searched"]

Places: TypeAlias = npt.NDArray[np.int64]

# What is remembered of files that have no lookup file.
_REMEMBERED_MAX = 10_000
# A process may map some ten thousand files.
_FILES_MAX = 10_000
# So few keys are found before threads have begun to look for them.
_ALONE_MAX = 1 << 12
# A disk that has less left is not filled further.
_FREE_SHARE_MAX = 0.5


@dataclass(frozen=True)
class Bounds:
    """How much space lookup files may take, in bytes, and how long unused ones stay, in seconds.

    Without `bytes_max` half of what the disk has left.
    """

    bytes_max: int | None
    unused_s: float


@dataclass(frozen=True)
class LookupFile:
    """The versions in a data file, in key order, with one version for each key."""

    frames: tuple[pl.DataFrame, ...]
    size: int

    def with_keys(self, keys: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """The versions of some keys, given once each and in order, frame by frame in key order."""
        at_once = 1 if keys.height <= _ALONE_MAX else os.cpu_count() or 1
        for start in range(0, len(self.frames), at_once):
            frames = self.frames[start : start + at_once]
            found = side_by_side([partial(searched, frame, keys) for frame in frames], at_once)
            yield from (rows for rows in found if rows.height)


class LookupFiles:
    """The lookup files of a process, those used last. Safe to share between threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._files: OrderedDict[Hashable, tuple[LookupFile, float]] = OrderedDict()
        self._bytes = 0
        self._remembered: OrderedDict[Hashable, bool] = OrderedDict()
        """Of files without a lookup file, whether one may be made at the next look-up."""

    def find(
        self,
        key: Hashable,
        versions: Callable[[], Iterable[pl.DataFrame]],
        bounds: Bounds,
        *,
        at_once: bool = False,
    ) -> LookupFile | None:
        """The lookup file of the data file `key`, made of its `versions` at the second call.

        None at the first one, unless it is to be made `at_once`, and where there is no space: the
        data file has to be read then.
        """
        with self._lock:
            self._drop_unused(bounds.unused_s)
            if key in self._files:
                return self._used(key)
            if not self._remembered.get(key, at_once):
                self._remember(key, may_be_made=key not in self._remembered)
                return None
        # Not under the lock: two that look the same file up at once make it twice.
        made = _made(versions(), bounds.bytes_max)
        with self._lock:
            if made is None:
                self._remember(key, may_be_made=False)
            elif key not in self._files:
                self._keep(key, made, bounds.bytes_max)
        return made

    def known(self, key: Hashable, bounds: Bounds) -> LookupFile | None:
        """The lookup file of the data file `key`, if there is one."""
        with self._lock:
            self._drop_unused(bounds.unused_s)
            return self._used(key) if key in self._files else None

    def keep(self, key: Hashable, versions: Iterable[pl.DataFrame], bounds: Bounds) -> None:
        """Make the lookup file of the data file `key` of its `versions`, where there is space."""
        made = _made(versions, bounds.bytes_max)
        with self._lock:
            self._drop_unused(bounds.unused_s)
            if made is not None and key not in self._files:
                self._keep(key, made, bounds.bytes_max)

    def forget(self, key: Hashable) -> None:
        """Give up the lookup file of the data file `key`, if there is one."""
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
            self._drop_oldest()
        self._files[key] = file, self._clock()
        self._bytes += file.size
        self._remembered.pop(key, None)

    def _drop_unused(self, unused_s: float) -> None:
        now = self._clock()
        while self._files and now - next(iter(self._files.values()))[1] > unused_s:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._files)))

    def _drop(self, key: Hashable) -> None:
        # Its space is free as soon as nobody holds rows of it any more.
        file, _ = self._files.pop(key)
        self._bytes -= file.size

    def _remember(self, key: Hashable, *, may_be_made: bool) -> None:
        self._remembered[key] = may_be_made
        self._remembered.move_to_end(key)
        if len(self._remembered) > _REMEMBERED_MAX:
            self._remembered.popitem(last=False)


LOOKUP_FILES: Final = LookupFiles()
"""Of all tables: tables are many, and a process has one disk."""


def _made(frames: Iterable[pl.DataFrame], bytes_max: int | None) -> LookupFile | None:
    """A lookup file with the rows of some frames; None where they do not fit."""
    # A full disk costs a look-up its speed and nothing else.
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
    """Whether the frames fit into so many bytes of a file."""
    writer: pa.RecordBatchFileWriter | None = None
    with pa.OSFile(path, "wb") as sink:
        for frame in frames:
            # As Polars itself has them, so that nothing is copied when they are mapped.
            rows = frame.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
            writer = writer or pa.ipc.new_file(sink, rows.schema)
            writer.write_table(rows)
            if sink.tell() > bytes_max:
                return False
        if writer is not None:
            writer.close()
    return writer is not None


def searched(rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Those of some rows, in the order of their key, that have some keys, in one row each at most.

    `keys` has each key once, in order.
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
    """Whether a column orders in a file as Polars orders it."""
    kind = key.dtype
    is_plain = kind.is_integer() or kind.is_temporal() or kind in (pl.String, pl.Binary)
    return is_plain and not key.null_count()


def _places(column: pl.Series, wanted: pl.Series) -> Places:
    """Where some values stand in a column. Both have each value once, in order."""
    near = _near(column, wanted)
    places = _search(column, near, "left")
    if _are_numbers(column, near):
        is_there = column.to_numpy()[places] == near.to_numpy()
    else:
        is_there = (column.gather(places) == near).to_numpy()
    there: Places = places[is_there]
    return there


def _stretches(column: pl.Series, wanted: pl.Series) -> Places:
    """The same where a value may come several times on either side."""
    near = _near(column, wanted).unique(maintain_order=True)
    starts, ends = _search(column, near, "left"), _search(column, near, "right")
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def _near(column: pl.Series, wanted: pl.Series) -> pl.Series:
    """Those of some values, in order, that are not beyond the ends of a column in order."""
    begin, end = _search(wanted, column[:1], "left"), _search(wanted, column[-1:], "right")
    return wanted[int(begin[0]) : int(end[0])]


def _search(column: pl.Series, values: pl.Series, side: Literal["left", "right"]) -> Places:
    if _are_numbers(column, values):  # in a fraction of the time
        return np.searchsorted(column.to_numpy(), values.to_numpy(), side)
    return column.search_sorted(values, side=side).to_numpy().astype(np.int64)


def _are_numbers(one: pl.Series, other: pl.Series) -> bool:
    return one.dtype.is_integer() and one.dtype == other.dtype
