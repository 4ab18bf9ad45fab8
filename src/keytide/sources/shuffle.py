"""Shuffle of versions by a hash of their key, to merge them in several places in parallel.

The shuffled units are pages: the versions of a frame for one place, as bytes. So an engine that
shuffles row by row has few rows to shuffle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.process import scratch
from keytide.merge.order import SEQUENCE_NUMBER
from keytide.sources.version_merge import PLACE, KeyMerge, cut_by_key
from keytide.sources.versions import PART_SHIFT, RowNumbers, SourceVersions, arrivals

# -- shuffle of versions by a hash of their key ----------------------------------------------------


CUT, PAGE, PART, LOST, TIED = map(scratch, ("cut", "page", "part", "lost", "tied"))
PAGE_SCHEMA = pa.schema([(CUT, pa.int32()), (PAGE, pa.binary())])
"""The number of the place, and the versions."""
OUTCOME_SCHEMA = pa.schema([(PART, pa.int32()), (LOST, pa.binary()), (TIED, pa.binary())])
"""A part number, and positions of its rows. See `MergeOutcome`."""

Positions: TypeAlias = "npt.NDArray[np.int64]"

_SEED = 1  # differs from the seed of later divisions


@dataclass(frozen=True)
class ShuffleTask:
    """Reads some columns of versions and divides them among the places. Can be pickled."""

    versions: SourceVersions
    columns: tuple[str, ...]
    places: int
    rows_max: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows of `PAGE_SCHEMA`. Raises as reading does."""
        key = self.versions.view.order.key
        for frame in _in_bulk(self.versions.frames(self.columns, self.rows_max), self.rows_max):
            yield _pages(frame, key, self.places)


def cuts_of_shuffle(held_bytes: int, held_rows: int, budget: int) -> int:
    """See `Cuts`. The versions of one place should fit in memory, so their total is unknown."""
    return 64


def shuffled_frames(shuffled: Iterable[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
    """The versions of one place, in any order."""
    for batch in shuffled:
        for page in batch.column(1):
            yield pl.read_ipc_stream(BytesIO(page.as_buffer()))


def outcome_rows(
    by_key: KeyMerge,
    numbers: Sequence[RowNumbers],
    frames: Iterable[pl.DataFrame],
    memory_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """The outcome of the versions of one place, or of all versions, as rows of `OUTCOME_SCHEMA`.

    `numbers` are those of all parts. Versions are numbered by their position.
    """

    def placed(frame: pl.DataFrame) -> pl.DataFrame:
        places = frame[SEQUENCE_NUMBER]
        return frame.with_columns(
            places.alias(PLACE), arrivals(places, numbers).alias(SEQUENCE_NUMBER)
        )

    for outcomes in by_key.outcomes_by_position(map(placed, frames), memory_bytes, cuts_of_shuffle):
        lost, tied = _by_part(outcomes.lost), _by_part(outcomes.tied)
        parts = sorted(lost.keys() | tied.keys())
        packed = [[of.get(part, b"") for part in parts] for of in (lost, tied)]
        yield pa.record_batch(
            [pa.array(parts, pa.int32()), *(pa.array(each, pa.binary()) for each in packed)],
            schema=OUTCOME_SCHEMA,
        )


def _by_part(places: pl.Series) -> dict[int, bytes]:
    """Positions for each part that has some, ascending."""
    outcomes = np.sort(places.to_numpy())
    parts, begins = np.unique(outcomes >> PART_SHIFT, return_index=True)
    positions = np.split(outcomes & ((1 << PART_SHIFT) - 1), begins[1:])
    return {int(part): each.tobytes() for part, each in zip(parts, positions, strict=False)}


@dataclass(frozen=True)
class PartOutcome:
    """Positions of rows of one part, ascending. See `MergeOutcome`."""

    lost: Positions
    tied: Positions


def read_outcomes(batches: Iterable[pa.RecordBatch]) -> dict[int, PartOutcome]:
    """The rows of `OUTCOME_SCHEMA` by part."""
    lost: dict[int, list[bytes]] = {}
    tied: dict[int, list[bytes]] = {}
    for batch in batches:
        for part, *packed in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            lost.setdefault(part, []).append(packed[0])
            tied.setdefault(part, []).append(packed[1])
    return {part: PartOutcome(_unpacked(lost[part]), _unpacked(tied[part])) for part in lost}


def _unpacked(packed: Sequence[bytes]) -> Positions:
    return np.sort(np.frombuffer(b"".join(packed), np.int64))


@dataclass(frozen=True)
class TiedRowsTask:
    """Reads whole rows of versions that tie, and divides them among the places. Can be pickled."""

    versions: SourceVersions
    places: int
    rows_max: int

    def batches(self, outcomes: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of `PAGE_SCHEMA` for the parts in `outcomes`. Raises as reading does."""
        names, key = self.versions.view.schema.names, self.versions.view.order.key
        by_place = self.versions.by_place()
        for part, each in read_outcomes(outcomes).items():
            if not len(each.tied):
                continue
            wanted = pl.Series(each.tied + (part << PART_SHIFT)).implode()
            whole = by_place.some([part]).frames(names, self.rows_max)
            tied_rows = (each.filter(pl.col(SEQUENCE_NUMBER).is_in(wanted)) for each in whole)
            for tied in _in_bulk(tied_rows, self.rows_max):
                came = arrivals(tied[SEQUENCE_NUMBER], self.versions.numbers)
                yield _pages(tied.with_columns(came.alias(SEQUENCE_NUMBER)), key, self.places)


def _pages(versions: pl.DataFrame, key: Sequence[str], places: int) -> pa.RecordBatch:
    cut = dict(cut_by_key(versions, key, places, _SEED))
    pages = []
    for some in cut.values():
        written = BytesIO()
        some.write_ipc_stream(written, compat_level=pl.CompatLevel.oldest())
        pages.append(written.getvalue())
    return pa.record_batch(
        [pa.array(list(cut), pa.int32()), pa.array(pages, pa.binary())], schema=PAGE_SCHEMA
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
