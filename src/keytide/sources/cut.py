"""Partitioning of frames by a hash of their key, for processing one part at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from keytide.base.scratch import scratch
from keytide.dml.spool import Spool
from keytide.format.arrow import from_arrow

__all__ = ["KeyCut", "cut_by_key"]

_PART = scratch("part")
_ON_DISK = 0


def cut_by_key(
    rows: pl.DataFrame, key: Sequence[str], count: int, seed: int
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Divide rows into at most `count` parts, with their numbers. Rows with equal keys are in one
    part.

    NULL equals NULL, NaN equals NaN, and -0.0 equals 0.0. Parts keep the order of rows. Parts
    created with one seed can be divided again with another seed. The result is the same in every
    process.
    """
    parts = rows.select(key).hash_rows(seed=seed) % count
    cut = rows.with_columns(parts.alias(_PART)).partition_by(_PART, include_key=False, as_dict=True)
    yield from ((int(part), some) for (part,), some in cut.items())


class KeyCut:
    """`count` parts of frames with the same columns, divided as by `cut_by_key`.

    About `memory_bytes` of all parts are in memory. The rest is in temporary files, which `close`
    removes.
    """

    def __init__(self, key: Sequence[str], count: int, memory_bytes: int) -> None:
        self._key = list(key)
        self._spools = [Spool(memory_bytes // count) for _ in range(count)]

    def add(self, rows: pl.DataFrame) -> None:
        """Take some rows."""
        for part, some in cut_by_key(rows, self._key, len(self._spools), _ON_DISK):
            for batch in some.to_arrow().combine_chunks().to_batches():
                self._spools[part].add(batch)

    def parts(self) -> Iterator[Iterator[pl.DataFrame]]:
        """The frames of each part, one part after the other, each once.

        Nothing can be added then.
        """
        for spool in self._spools:
            yield (from_arrow(table) for table in spool.tables())
            spool.close()

    def close(self) -> None:
        """Discard everything. Can be called repeatedly."""
        for spool in self._spools:
            spool.close()
