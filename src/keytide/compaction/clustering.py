"""How the rows of an append table are sorted, so that readers can skip files.

'order' sorts by one column after the other. 'zorder' and 'hilbert' treat all columns equally and
sort along a curve. The distribution of values is learned from a sample: each column is cut into
ranges with about the same number of rows, and the curve goes through these ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.compaction.curves import BITS_MAX, hilbert, z_order
from keytide.errors import InvalidError, NotFoundError
from keytide.format.schema import TableSchema
from keytide.types import AtomicType

__all__ = ["Clustering", "Ranges"]

_CURVES: dict[str, Callable[[Sequence[npt.NDArray[np.uint64]], int], npt.NDArray[np.uint64]]] = {
    "zorder": z_order,
    "hilbert": hilbert,
}
# This many bits distinguish a thousand ranges of a column. A file contains a few of them.
_BITS_MAX = 10


@dataclass(frozen=True)
class Clustering:
    """A strategy and its columns."""

    strategy: str
    columns: tuple[str, ...]

    @classmethod
    def parse(
        cls, strategy: str, columns: Sequence[str], schema: TableSchema, table: str
    ) -> Clustering:
        """Parse a clustering.

        Raises `InvalidError` for an unknown strategy, for no columns, too many or duplicate
        columns, and for a column whose values have no order. Raises `NotFoundError` for a column
        that the table lacks.
        """
        known = ("order", *_CURVES)
        if strategy not in known:
            raise InvalidError(
                f"table {table}: order_strategy is {strategy!r}; expected one of {', '.join(known)}"
            )
        if not 0 < len(columns) <= BITS_MAX or len(set(columns)) < len(columns):
            raise InvalidError(f"table {table}: order_by is {list(columns)}; name each column once")
        for name in columns:
            _check_column(name, schema, table)
        return cls(strategy, tuple(columns))

    def ranges(self, sample: pl.DataFrame) -> Ranges:
        """Ranges of the columns, learned from a sample of rows."""
        bits = max(1, min(_BITS_MAX, BITS_MAX // len(self.columns)))
        return Ranges(self, bits, tuple(_cuts(sample[name], 1 << bits) for name in self.columns))


@dataclass(frozen=True)
class Ranges:
    """Where the columns of a clustering are cut."""

    clustering: Clustering
    bits: int
    cuts: tuple[pl.Series, ...]

    def numbers(self, rows: pl.DataFrame) -> npt.NDArray[np.uint64]:
        """A number for each row, by which rows are sorted.

        Rows with equal numbers are sorted by the columns.
        """
        ids = [
            np.asarray(cuts.search_sorted(rows[name], side="right")).astype(np.uint64)
            for name, cuts in zip(self.clustering.columns, self.cuts, strict=True)
        ]
        curve = _CURVES.get(self.clustering.strategy)
        return ids[0] if curve is None else curve(ids, self.bits)


def _cuts(values: pl.Series, ranges: int) -> pl.Series:
    """At most `ranges - 1` values that cut a column into ranges with about the same number of
    rows.
    """
    known: pl.Series = values.drop_nulls().sort()
    if not len(known):
        return known
    places = np.linspace(0, len(known), ranges + 1)[1:-1].astype(np.int64)
    cuts: pl.Series = known.gather(np.minimum(places, len(known) - 1)).unique().sort()
    return cuts


def _check_column(name: str, schema: TableSchema, table: str) -> None:
    if name not in schema.by_name:
        raise NotFoundError(
            f"table {table}: order_by names the column {name!r}, which does not exist; columns: "
            f"{', '.join(schema.names)}"
        )
    kind = schema.field(name).type
    if not isinstance(kind, AtomicType) or kind.root == "VARIANT":
        raise InvalidError(
            f"table {table}: order_by names the column {name!r} of type {kind.sql()}, which "
            "cannot be sorted; use a column of a simple type"
        )
