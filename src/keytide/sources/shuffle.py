"""Shuffle of versions by a hash of their key, to merge them in several places in parallel.

The shuffled units are pages: the versions of a frame for one place, as bytes. So an engine that
shuffles row by row has few rows to shuffle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.base.process import scratch
from keytide.merge.order import SEQUENCE_NUMBER
from keytide.sources.version_merge import PLACE, KeyMerge, cut_by_key
from keytide.sources.versions import PART_SHIFT, RowNumbers, SourceVersions, arrivals

# -- shuffle of versions by a hash of their key ----------------------------------------------------


CUT, PAGE, PART, LOST, TIED = map(scratch, ("cut", "page", "part", "lost", "tied"))
DEALT = pa.schema([(CUT, pa.int32()), (PAGE, pa.binary())])
"""The number of the place, and the versions."""
FOUND = pa.schema([(PART, pa.int32()), (LOST, pa.binary()), (TIED, pa.binary())])
"""A part number, and positions of its rows. See `SortedOut`."""

Positions: TypeAlias = "npt.NDArray[np.int64]"

_SEED = 1  # differs from the seed of later divisions


@dataclass(frozen=True)
class DealTask:
    """Reads some columns of versions and divides them among the places. Can be pickled."""

    versions: SourceVersions
    columns: tuple[str, ...]
    places: int
    rows_max: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows of `DEALT`. Raises as reading does."""
        key = self.versions.view.order.key
        for frame in _in_bulk(self.versions.frames(self.columns, self.rows_max), self.rows_max):
            yield _dealt(frame, key, self.places)


def cuts_of_dealt(held_bytes: int, held_rows: int, budget: int) -> int:
    """See `Cuts`. The versions of one place should fit in memory, so their total is unknown."""
    return 64


def dealt_frames(dealt: Iterable[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
    """The versions of one place, in any order."""
    for batch in dealt:
        for page in batch.column(1):
            yield pl.read_ipc_stream(BytesIO(page.as_buffer()))


def found_rows(
    by_key: KeyMerge,
    numbers: Sequence[RowNumbers],
    frames: Iterable[pl.DataFrame],
    memory_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """The outcome of the versions of one place, or of all versions, as rows of `FOUND`.

    `numbers` are those of all parts. Versions are numbered by their position.
    """

    def placed(frame: pl.DataFrame) -> pl.DataFrame:
        places = frame[SEQUENCE_NUMBER]
        return frame.with_columns(
            places.alias(PLACE), arrivals(places, numbers).alias(SEQUENCE_NUMBER)
        )

    for found in by_key.sorted_out(map(placed, frames), memory_bytes, cuts_of_dealt):
        lost, tied = _by_part(found.lost), _by_part(found.tied)
        parts = sorted(lost.keys() | tied.keys())
        packed = [[of.get(part, b"") for part in parts] for of in (lost, tied)]
        yield pa.record_batch(
            [pa.array(parts, pa.int32()), *(pa.array(each, pa.binary()) for each in packed)],
            schema=FOUND,
        )


def _by_part(places: pl.Series) -> dict[int, bytes]:
    """Positions for each part that has some, ascending."""
    found = np.sort(places.to_numpy())
    parts, begins = np.unique(found >> PART_SHIFT, return_index=True)
    positions = np.split(found & ((1 << PART_SHIFT) - 1), begins[1:])
    return {int(part): each.tobytes() for part, each in zip(parts, positions, strict=False)}


@dataclass(frozen=True)
class Found:
    """Positions of rows of one part, ascending. See `SortedOut`."""

    lost: Positions
    tied: Positions


def read_found(batches: Iterable[pa.RecordBatch]) -> dict[int, Found]:
    """The rows of `FOUND` by part."""
    lost: dict[int, list[bytes]] = {}
    tied: dict[int, list[bytes]] = {}
    for batch in batches:
        for part, *packed in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            lost.setdefault(part, []).append(packed[0])
            tied.setdefault(part, []).append(packed[1])
    return {part: Found(_unpacked(lost[part]), _unpacked(tied[part])) for part in lost}


def _unpacked(packed: Sequence[bytes]) -> Positions:
    return np.sort(np.frombuffer(b"".join(packed), np.int64))


@dataclass(frozen=True)
class TiedTask:
    """Reads whole rows of versions that tie, and divides them among the places. Can be pickled."""

    versions: SourceVersions
    places: int
    rows_max: int

    def batches(self, found: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of `DEALT` for the parts in `found`. Raises as reading does."""
        names, key = self.versions.view.schema.names, self.versions.view.order.key
        by_place = self.versions.by_place()
        for part, each in read_found(found).items():
            if not len(each.tied):
                continue
            wanted = pl.Series(each.tied + (part << PART_SHIFT)).implode()
            whole = by_place.some([part]).frames(names, self.rows_max)
            tied_rows = (each.filter(pl.col(SEQUENCE_NUMBER).is_in(wanted)) for each in whole)
            for tied in _in_bulk(tied_rows, self.rows_max):
                came = arrivals(tied[SEQUENCE_NUMBER], self.versions.numbers)
                yield _dealt(tied.with_columns(came.alias(SEQUENCE_NUMBER)), key, self.places)


def _dealt(versions: pl.DataFrame, key: Sequence[str], places: int) -> pa.RecordBatch:
    cut = dict(cut_by_key(versions, key, places, _SEED))
    pages = [_page(some) for some in cut.values()]
    return pa.record_batch(
        [pa.array(list(cut), pa.int32()), pa.array(pages, pa.binary())], schema=DEALT
    )


def _in_bulk(frames: Iterable[pl.DataFrame], rows: int) -> Iterator[pl.DataFrame]:
    """Combine frames into fewer ones, because each page has a fixed cost."""
    held: list[pl.DataFrame] = []
    for frame in frames:
        held += [frame] if frame.height else []
        if sum(each.height for each in held) >= rows:
            yield pl.concat(held)
            held = []
    if held:
        yield pl.concat(held)


def _page(versions: pl.DataFrame) -> bytes:
    written = BytesIO()
    versions.write_ipc_stream(written, compat_level=pl.CompatLevel.oldest())
    return written.getvalue()
