"""Row kinds as readers of changes see them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.format.data_file import VALUE_KIND

__all__ = ["with_shown_kind"]

_SHOWN = {int(kind): kind.short for kind in RowKind}


def with_shown_kind(rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The columns of rows that have a `_VALUE_KIND`, after `_row_kind`."""
    kinds = pl.col(VALUE_KIND).replace_strict(_SHOWN, return_dtype=pl.String)
    return rows.select(kinds.alias(ROW_KIND), *names)
