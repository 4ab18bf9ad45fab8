"""A simple chart of rows: the first column on the x-axis, a number as bars or as a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from keytide.base.row_lines import frame_of
from keytide.show.cells import rows_of

__all__ = ["Chart", "chart_of"]

_POINTS_MAX = 200
_BARS_MAX = 40


@dataclass(frozen=True)
class Chart:
    """Points from left to right: their names and values and, for a line, their positions from 0 to
    1.

    `places` is None for bars, which are next to each other.
    """

    across: str
    up: str
    names: tuple[str, ...]
    values: tuple[float, ...]
    places: tuple[float, ...] | None


def chart_of(rows: pa.Table) -> Chart | None:
    """The chart of some rows, None if they do not fit into one.

    It requires a first column, a number in another column, and at least two rows.
    """
    numbers = [i for i, f in enumerate(rows.schema) if i and _is_number(f.type)]
    if not numbers or not 2 <= rows.num_rows <= _POINTS_MAX:
        return None
    frame = frame_of(rows.select([0, numbers[0]]))
    values = frame.to_series(1).cast(pl.Float64, strict=False)
    is_shown = values.is_finite().fill_null(value=False)
    texts = [cells[0] for cells in rows_of(rows.select([0]))]
    names = ["NULL" if text is None else text for text in texts]
    across = _places(frame.to_series(0)) if _is_continuous(rows.schema.field(0).type) else None
    kept = [place for place, shown in enumerate(is_shown) if shown]
    if len(kept) < 2 or (across is None and len(kept) > _BARS_MAX):
        return None
    if across is not None:
        kept.sort(key=across.__getitem__)
    return Chart(
        rows.schema.field(0).name,
        rows.schema.field(numbers[0]).name,
        tuple(names[place] for place in kept),
        tuple(float(values[place]) for place in kept),
        None if across is None else tuple(across[place] for place in kept),
    )


def _places(column: pl.Series) -> list[float] | None:
    """The relative positions of values, None if they cannot be spaced."""
    numbers = column.to_physical().cast(pl.Float64, strict=False)
    if numbers.null_count() or not numbers.is_finite().all():
        return None
    low, high = _ends(numbers.to_list())
    if not math.isfinite(high - low) or high <= low:
        return None
    return [(number - low) / (high - low) for number in numbers]


def _ends(numbers: Sequence[float]) -> tuple[float, float]:
    return min(numbers), max(numbers)


def _is_number(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    )


def _is_continuous(type_: pa.DataType) -> bool:
    return bool(_is_number(type_) or pa.types.is_date(type_) or pa.types.is_timestamp(type_))
