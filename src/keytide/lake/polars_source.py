"""Tables as lazy frames of Polars, which asks for the columns, rows and keys that it needs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
from polars.io.plugins import register_io_source

from keytide.arguments import checked
from keytide.errors import KeytideError
from keytide.external.scan import ExternalScan
from keytide.format.arrow import polars_schema
from keytide.lake.foreign_table import ForeignTable
from keytide.lake.scan import Scan
from keytide.lake.table import Table
from keytide.table.conditions.condition import predicate_of
from keytide.table.conditions.expression import terms_of
from keytide.table.conditions.predicate import Predicate, conjunction
from keytide.types import Field

__all__ = ["scan_polars"]

_LOG = logging.getLogger("keytide.plan")


@checked
def scan_polars(table: Table | ForeignTable | Scan | ExternalScan) -> pl.LazyFrame:
    """The rows of a table, as it is now, or of a scan, as a lazy frame of Polars.

    Polars reads the columns that a query needs, and no further than its `head`. Conditions that a
    `scan` may have leave out files and rows before they are merged and read; what else a query asks
    for, Polars does itself. `LazyFrame.explain` tells what comes of that, as a scan by Python
    with PROJECT and SELECTION, and when it runs the logger `keytide.plan` tells which conditions
    are left to Polars. Every collection of the frame reads the same snapshot, in memory bounded by
    'read.memory' where Polars streams.

    Raises what `scan` raises; collecting the frame raises what reading does.
    """
    scan = table if isinstance(table, Scan | ExternalScan) else table.scan()
    source = _Source(scan)
    return register_io_source(
        source.frames, schema=dict(polars_schema(scan.fields)), is_pure=True, **_named(scan)
    )


def _named(scan: Scan | ExternalScan) -> dict[str, Any]:
    """What `LazyFrame.explain` calls the scan, where Polars has words for it."""
    known = inspect.signature(register_io_source).parameters
    told = {"explain_name": "keytide", "explain_detail": repr(scan)}
    return {name: text for name, text in told.items() if name in known}


@dataclass(frozen=True)
class _Source:
    scan: Scan | ExternalScan

    def frames(
        self,
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        """Frames with these columns of the rows that fulfil the predicate."""
        del batch_size  # a hint: what is read at once follows 'read.memory'
        shown = [f.name for f in self.scan.fields] if with_columns is None else with_columns
        if predicate is None:
            frames = self._narrowed(shown, None, n_rows).to_frames()
            yield from (frame.select(shown) for frame in frames)
            return
        read = list(dict.fromkeys([*shown, *predicate.meta.root_names()]))
        limits = [n for n in (self.scan.limit, n_rows) if n is not None]
        # A limit comes first: it is asked of all rows, and the predicate of those that it leaves.
        terms = [] if limits else self._pushed(predicate)
        for frame in self._narrowed(read, conjunction(terms), n_rows).to_frames():
            # All of the predicate: it costs little, and then nothing hangs on how it is read here.
            yield frame.filter(predicate).select(shown)

    def _pushed(self, predicate: pl.Expr) -> list[Predicate]:
        """The parts of a predicate that a scan may have, of those that all have to hold."""
        table, terms = self.scan.view.name, terms_of(predicate)
        read = [_read(term, self.scan.fields, table) for term in terms]
        left = [term for term, known in zip(terms, read, strict=True) if known is None]
        if left and _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("%s: Polars itself asks rows for %s", table, " and ".join(map(str, left)))
        return [term for term in read if term is not None]

    def _narrowed(
        self, columns: Sequence[str], pushed: Predicate | None, limit: int | None
    ) -> Scan | ExternalScan:
        scan = self.scan
        limits = [n for n in (scan.limit, limit) if n is not None]
        terms = [each for each in (scan.predicate, pushed) if each is not None]
        names = scan.view.schema.primary_keys or scan.view.schema.names
        return replace(
            scan,
            # Rows of no columns would be none.
            columns=tuple(columns) or names[:1],
            predicate=conjunction(terms),
            limit=min(limits, default=None),
        )


def _read(term: pl.Expr, fields: Sequence[Field], table: str) -> Predicate | None:
    try:
        return predicate_of(term, fields, table)
    except KeytideError:
        return None  # Polars looks at each row itself
