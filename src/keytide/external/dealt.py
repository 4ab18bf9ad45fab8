"""Versions of keys dealt out by the hash of their key, to be merged in several places at once.

What is dealt out travels as pages: the versions of a frame that fall to one place, as bytes. So an
engine that moves row by row has few rows to move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.external.cut import cut_by_key
from keytide.external.key_merge import KeyMerge
from keytide.external.versions import PART_SHIFT, SourceVersions
from keytide.scratch import scratch

__all__ = ["CUT", "DEALT", "LOST", "PART", "DealTask", "dealt_frames", "lost_rows", "positions_in"]

CUT, PAGE, PART, POSITIONS = map(scratch, ("cut", "page", "part", "positions"))
DEALT = pa.schema([(CUT, pa.int32()), (PAGE, pa.binary())])
"""The place that versions fall to, and the versions."""
LOST = pa.schema([(PART, pa.int32()), (POSITIONS, pa.binary())])
"""The place of a part among all, and positions of rows in it."""

_CUTS_ON_DISK = 64


@dataclass(frozen=True)
class DealTask:
    """Reads some columns of versions and deals them out to so many places. Pickles."""

    versions: SourceVersions
    columns: tuple[str, ...]
    places: int
    rows_max: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows of `DEALT`. Raises as reading does."""
        key = self.versions.view.order.key
        for frame in self.versions.frames(self.columns, self.rows_max):
            cut = dict(cut_by_key(frame, key, self.places))
            pages = [_page(some) for some in cut.values()]
            yield pa.record_batch([pa.array(cut, pa.int32()), pa.array(pages, pa.binary())], DEALT)


def dealt_frames(dealt: Iterable[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
    """The versions that fell to one place, in any order."""
    for batch in dealt:
        for page in batch.column(1):
            yield pl.read_ipc_stream(BytesIO(page.as_buffer()))


def lost_rows(
    by_key: KeyMerge, dealt: Iterable[pa.RecordBatch], memory_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Which of the versions that fell to one place are no rows, as rows of `LOST`.

    REQUIRES: it is known of all of them which came later.
    """
    frames = dealt_frames(dealt)
    for numbers in by_key.superseded(frames, memory_bytes, lambda *_: _CUTS_ON_DISK):
        found = np.sort(numbers.to_numpy())
        parts, begins = np.unique(found >> PART_SHIFT, return_index=True)
        positions = np.split(found & ((1 << PART_SHIFT) - 1), begins[1:])
        packed = [each.tobytes() for each in positions[: len(parts)]]
        yield pa.record_batch([pa.array(parts, pa.int32()), pa.array(packed, pa.binary())], LOST)


def positions_in(lost: Iterable[pa.RecordBatch]) -> dict[int, npt.NDArray[np.int64]]:
    """The positions of rows of `LOST`, ascending, for each part that has some."""
    found: dict[int, list[npt.NDArray[np.int64]]] = {}
    for batch in lost:
        parts, packed = batch.columns
        for part, positions in zip(parts.to_pylist(), packed, strict=True):
            found.setdefault(part, []).append(np.frombuffer(positions.as_buffer(), np.int64))
    return {part: np.sort(np.concatenate(every)) for part, every in found.items()}


def _page(versions: pl.DataFrame) -> bytes:
    written = BytesIO()
    versions.write_ipc_stream(written, compat_level=pl.CompatLevel.oldest())
    return written.getvalue()
