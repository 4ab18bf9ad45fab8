"""Rows: the part of merged versions that readers see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from keytide.base.lazily import cached_property
from keytide.base.row_kind import RowKind
from keytide.format.data_file import VALUE_KIND
from keytide.merge.order import IS_ADD
from keytide.predicate.matching import row_filter
from keytide.predicate.predicate import Predicate, columns_of, without_columns
from keytide.read.merged_versions import MergedVersions
from keytide.snapshot.view import TableView

__all__ = ["Rows"]


@dataclass(frozen=True)
class Rows:
    """Rows with some columns, in order, that match a predicate.

    NULL is shown as the column's default, and a condition on such a column sees the default.
    """

    view: TableView
    columns: tuple[str, ...]
    predicate: Predicate | None = None

    def versions(self, *, tells_kinds: bool = False) -> MergedVersions:
        """The merged versions that the rows are derived from. For `tells_kinds` see there."""
        # A condition on a column with a default applies to what is shown, so it is left to
        # `outcomes`, and the column must be read for it.
        columns = (*self._table_columns, VALUE_KIND) if self._defaults else self.columns
        condition = without_columns(self.predicate, self._defaults)
        columns = tuple(dict.fromkeys((*columns, VALUE_KIND)))
        return MergedVersions(self.view, columns, condition, tells_kinds=tells_kinds)

    def outcomes(self, versions: pl.DataFrame) -> pl.DataFrame:
        """The result for each key of merged versions, including deletes.

        Has the columns and `_VALUE_KIND`, and maybe others.
        """
        if not self._defaults:
            return versions
        filled = versions.with_columns(
            pl.col(name).fill_null(pl.lit(pl.Series([value.as_py()], dtype=dtype)).first())
            for name, value in self._defaults.items()
            for dtype in [versions.schema[name]]
        )
        return filled if self._check is None else filled.filter(self._check)

    def shown(self, versions: pl.DataFrame) -> pl.DataFrame:
        """The rows of merged versions."""
        return _without_retracts(self.outcomes(versions))[list(self.columns)]

    def together(self, window: Sequence[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """The rows of a window of merged versions as one frame; none if it has only deletes."""
        shown = [frame for frame in map(self.shown, window) if frame.height]
        # They go together, so that the next window is merged while a caller works on all of them.
        if shown:
            yield pl.concat(shown, rechunk=False)

    @cached_property
    def _table_columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.columns, *sorted(columns_of(self.predicate)))))

    @cached_property
    def _defaults(self) -> Mapping[str, pa.Scalar]:
        return self.view.defaults(self._table_columns)

    @cached_property
    def _check(self) -> pl.Expr | None:
        if self.predicate is None:
            return None
        return row_filter(self.predicate, self.view.schema.select(self._table_columns))


def _without_retracts(versions: pl.DataFrame) -> pl.DataFrame:
    # Checking the kinds is much cheaper than filtering a frame without retractions.
    kinds = versions[VALUE_KIND]
    if kinds.max() == RowKind.INSERT:  # the lowest of them
        return versions
    has_retracts = ((kinds == RowKind.DELETE) | (kinds == RowKind.UPDATE_BEFORE)).any()
    return versions.filter(IS_ADD) if has_retracts else versions
