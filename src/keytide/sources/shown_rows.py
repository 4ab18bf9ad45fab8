"""Selects the merged rows that readers see."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from keytide.base.process import cached_property
from keytide.errors import DataError
from keytide.merge.order import IS_ADD
from keytide.predicate.matching import row_filter
from keytide.predicate.predicate import Predicate, columns_of
from keytide.snapshot.state import TableView

__all__ = ["ShownRows"]


@dataclass(frozen=True)
class ShownRows:
    """Some columns of rows that are not deleted and match a condition. Can be pickled."""

    view: TableView
    columns: tuple[str, ...]
    condition: Predicate | None = None

    def of(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The visible rows. Raises `DataError` for NULL in a NOT NULL column of the definition."""
        live = rows.filter(IS_ADD)
        if self._check is not None:
            live = live.filter(self._check)
        self._refuse_nulls(live)
        return live.select(self.columns)

    @cached_property
    def _check(self) -> pl.Expr | None:
        if self.condition is None:
            return None
        return row_filter(
            self.condition, self.view.schema.select(sorted(columns_of(self.condition)))
        )

    def _refuse_nulls(self, rows: pl.DataFrame) -> None:
        for field in self.view.schema.select(self.columns):
            if not field.type.nullable and rows[field.name].null_count():
                raise DataError(
                    f"table {self.view.name}: column {field.name!r} is {field.type.sql()} in its "
                    "definition, but a row has NULL; define the column without NOT NULL, or "
                    "correct the row in the source"
                )
