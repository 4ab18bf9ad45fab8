"""Frames cut by the hash of their key, so that each part can be worked on by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from keytide.dml.spool import Spool
from keytide.format.arrow import from_arrow
from keytide.scratch import scratch

__all__ = ["KeyCut"]

_PART = scratch("part")


class KeyCut:
    """`count` parts of frames with the same columns; rows with one key are in one part.

    NULL is equal to NULL, NaN to NaN and -0.0 to 0.0. About `memory_bytes` of all parts are held,
    what is more lies in temporary files, which are gone with `close`. Parts keep the order of rows.
    """

    def __init__(self, key: Sequence[str], count: int, memory_bytes: int) -> None:
        self._key = list(key)
        self._spools = [Spool(memory_bytes // count) for _ in range(count)]

    def add(self, rows: pl.DataFrame) -> None:
        """Take some rows."""
        parts = rows.select(self._key).hash_rows(seed=0) % len(self._spools)
        cut = rows.with_columns(parts.alias(_PART)).partition_by(
            _PART, include_key=False, as_dict=True
        )
        for (part,), some in cut.items():
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
