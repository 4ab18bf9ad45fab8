"""Frames cut by the hash of their key, so that each part can be worked on by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from keytide.dml.spool import Spool
from keytide.format.arrow import from_arrow
from keytide.scratch import scratch

__all__ = ["KeyCut", "cut_by_key"]

_PART = scratch("part")
_ON_DISK = 0


def cut_by_key(
    rows: pl.DataFrame, key: Sequence[str], count: int, seed: int
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Rows in at most `count` parts, with the number of each; rows with one key are in one part.

    NULL is equal to NULL, NaN to NaN and -0.0 to 0.0. Parts keep the order of rows. Parts that were
    cut by one seed can be cut by another one, and are the same in every process.
    """
    parts = rows.select(key).hash_rows(seed=seed) % count
    cut = rows.with_columns(parts.alias(_PART)).partition_by(_PART, include_key=False, as_dict=True)
    yield from ((int(part), some) for (part,), some in cut.items())


class KeyCut:
    """`count` parts of frames with the same columns, cut as by `cut_by_key`.

    About `memory_bytes` of all parts are held, what is more lies in temporary files, which are gone
    with `close`.
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
        """The frames of each part, one part after the other, each once; nothing is added then."""
        for spool in self._spools:
            yield (from_arrow(table) for table in spool.tables())
            spool.close()

    def close(self) -> None:
        """Forget everything. More than one call is harmless."""
        for spool in self._spools:
            spool.close()
