"""Tables as Polars lazy frames, with projection, filter and limit pushdown."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import polars as pl
from polars.io.plugins import register_io_source

from keytide.base.arguments import checked
from keytide.base.dataclass import dataclass, replace
from keytide.errors import KeytideError
from keytide.format.arrow import polars_schema
from keytide.lake.foreign_table import ForeignTable
from keytide.lake.scan import FallbackScan, Scan
from keytide.lake.table import Table
from keytide.predicate.condition import predicate_of
from keytide.predicate.polars_expression import terms_of
from keytide.predicate.predicate import Predicate, conjunction
from keytide.sources.scan import ExternalScan

__all__ = ["scan_polars"]

_AnyScan: TypeAlias = Scan | ExternalScan | FallbackScan

_LOG = logging.getLogger("keytide.plan")


@checked
def scan_polars(table: Table | ForeignTable | Scan | ExternalScan | FallbackScan) -> pl.LazyFrame:
    """Return the rows of a table in its current state, or of a scan, as a Polars LazyFrame.

    Polars reads only the columns that a query needs, and stops at its `head`. Conditions that a
    `scan` supports skip files and rows before they are merged and read. Polars evaluates everything
    else. `LazyFrame.explain` shows this as a Python scan with PROJECT and SELECTION. When the frame
    is collected, the logger `keytide.plan` reports which conditions are left to Polars. Every
    collection of the frame reads the same snapshot. Memory is bounded by 'read.memory' when Polars
    streams.

    Raises what `scan` raises. Collecting the frame raises what reading does.
    """
    scan = table if isinstance(table, _AnyScan) else table.scan()
    # The name of the scan in `LazyFrame.explain`, if this version of Polars supports one.
    known = inspect.signature(register_io_source).parameters
    names = {"explain_name": "keytide", "explain_detail": repr(scan)}
    named: dict[str, Any] = {name: text for name, text in names.items() if name in known}
    return register_io_source(
        _Source(scan).frames, schema=dict(polars_schema(scan.fields)), is_pure=True, **named
    )


@dataclass(frozen=True)
class _Source:
    scan: _AnyScan

    def frames(
        self,
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        """Yield frames that contain these columns of the rows that satisfy the predicate."""
        del batch_size  # a hint only: 'read.memory' decides how much is read together
        shown = [f.name for f in self.scan.fields] if with_columns is None else with_columns
        if predicate is None:
            frames = self._narrowed(shown, None, n_rows).to_frames()
            yield from (frame.select(shown) for frame in frames)
            return
        read = list(dict.fromkeys([*shown, *predicate.meta.root_names()]))
        limits = [n for n in (self.scan.limit, n_rows) if n is not None]
        # A limit applies before the predicate, so the predicate must not remove rows first.
        terms: list[Predicate] = []
        left: list[pl.Expr] = []
        for term in () if limits else terms_of(predicate):
            try:
                terms.append(predicate_of(term, self.scan.fields, self.scan.view.name))
            except KeytideError:  # noqa: PERF203  # Polars evaluates it itself
                left.append(term)
        if left and _LOG.isEnabledFor(logging.DEBUG):
            by = " and ".join(map(str, left))
            _LOG.debug("%s: Polars itself filters rows by %s", self.scan.view.name, by)
        for frame in self._narrowed(read, conjunction(terms), n_rows).to_frames():
            # The whole predicate is applied again. This costs little, and makes the result
            # independent of which parts were pushed down.
            yield frame.filter(predicate).select(shown)

    def _narrowed(
        self, columns: Sequence[str], pushed: Predicate | None, limit: int | None
    ) -> _AnyScan:
        scan = self.scan
        limits = [n for n in (scan.limit, limit) if n is not None]
        terms = [each for each in (scan.predicate, pushed) if each is not None]
        names = scan.view.schema.primary_keys or scan.view.schema.names
        return replace(
            scan,
            # A result without columns would lose the number of rows.
            columns=tuple(columns) or names[:1],
            predicate=conjunction(terms),
            limit=min(limits, default=None),
        )
