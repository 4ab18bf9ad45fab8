"""Charts of rows and timelines of commits, as pictures.

A chart has the first column on the x-axis, and a number as bars or as a line. A timeline has a
column for each commit, with written rows above and deleted rows below.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.text import counted, frame_of
from keytide.show.elements import (
    WIDE,
    Markup,
    element,
    is_number,
    names,
    picture,
    rows_of,
    text,
    tooltip,
)

# -- the chart of rows -----------------------------------------------------------------------------


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
    numbers = [i for i, f in enumerate(rows.schema) if i and is_number(f.type)]
    if not numbers or not 2 <= rows.num_rows <= _POINTS_MAX:
        return None
    frame = frame_of(rows.select([0, numbers[0]]))
    values = frame.to_series(1).cast(pl.Float64, strict=False)
    is_shown = values.is_finite().fill_null(value=False)
    texts = [cells[0] for cells in rows_of(rows.select([0]))]
    names = ["NULL" if text is None else text for text in texts]
    type_ = rows.schema.field(0).type
    across = None
    if is_number(type_) or pa.types.is_date(type_) or pa.types.is_timestamp(type_):
        # The relative positions of the values, unless they cannot be spaced.
        spots = frame.to_series(0).to_physical().cast(pl.Float64, strict=False)
        if not spots.null_count() and spots.is_finite().all():
            low, high = min(spots.to_list()), max(spots.to_list())
            if math.isfinite(high - low) and high > low:
                across = [(spot - low) / (high - low) for spot in spots]
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


# -- the picture of a chart ------------------------------------------------------------------------


_WIDTH, _HEIGHT = 720.0, 260.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 84.0, 24.0, 16.0, 52.0
_LABELS_MAX = 8
_LABEL_LETTERS = 14


def chart_picture(chart: Chart) -> Markup:
    """Bars from zero, or a line over positions to scale."""
    what = "Line" if chart.places is not None else "Bars"
    title = f"{what} of {chart.up} by {chart.across}: {counted(len(chart.values), 'point')}"
    return picture(_WIDTH, _HEIGHT, title, _parts(chart), "picture chart")


def _parts(chart: Chart) -> Iterator[Markup]:
    low, high = min(0.0, *chart.values), max(0.0, *chart.values)
    high = high if high > low else low + 1

    def y_of(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    for value in (low, (low + high) / 2, high):
        y = y_of(value)
        yield element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid")
        yield text(f"{value:.4g}", x=_LEFT - 8, y=y + 4, class_="label end")
    count = len(chart.values)
    places = chart.places or [(place + 0.5) / count for place in range(count)]
    across = [_LEFT + (_WIDTH - _LEFT - _RIGHT) * place for place in places]
    if chart.places is not None:
        pairs = zip(across, map(y_of, chart.values), strict=True)
        yield element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in pairs),
                      class_="line")  # fmt: skip
    width, zero = min(48.0, (_WIDTH - _LEFT - _RIGHT) / count * 0.7), y_of(0)
    for x, name, value in zip(across, chart.names, chart.values, strict=True):
        hint, y = tooltip(f"{name}: {value:,.6g}"), y_of(value)
        if chart.places is not None:
            yield element("circle", hint, cx=x, cy=y, r=3.0, class_="point")
        else:
            yield element(
                "rect", hint, x=x - width / 2, y=min(y, zero), width=width, height=abs(y - zero),
                rx=2, class_="bar write",
            )  # fmt: skip

    # A few names below the chart, with enough space between them.
    room = (_WIDTH - _LEFT - _RIGHT) / _LABELS_MAX
    last = -room
    for x, name in zip(across, chart.names, strict=True):
        if x - last >= room:
            short = name if len(name) <= _LABEL_LETTERS else f"{name[: _LABEL_LETTERS - 1]}…"
            yield text(short, x=x, y=_HEIGHT - _BOTTOM + 20, class_="label middle")
            last = x
    yield text(
        chart.across, x=_LEFT + (_WIDTH - _LEFT - _RIGHT) / 2, y=_HEIGHT - 8,
        class_="label strong middle",
    )  # fmt: skip


# -- the timeline ----------------------------------------------------------------------------------


_TIMELINE_PICTURE_LEFT, _TIMELINE_PICTURE_RIGHT = 56.0, 12.0
_AXIS, _UP, _DOWN = 132.0, 92.0, 40.0
_TIMELINE_PICTURE_HEIGHT = 226.0
_FLAGS, _IDS = 22.0, 204.0
_COLUMN_MAX = 26.0
_KINDS = {"compaction": "compaction", "overwrite": "overwrite", "restore": "overwrite",
          "truncate": "overwrite", "delete": "delete"}  # fmt: skip


class Commit(Protocol):
    """The values that the picture shows for a commit."""

    @property
    def snapshot_id(self) -> int:
        """The snapshot that it created."""

    @property
    def operation(self) -> str:
        """The operation, such as 'write' or 'compaction'."""

    @property
    def rows_written(self) -> int:
        """The number of rows in the files that it added."""

    @property
    def rows_deleted(self) -> int:
        """The number of tombstones, and of rows in files that it removed."""


class Moment(Protocol):
    """A snapshot: its commit, and its tags and branches."""

    @property
    def entry(self) -> Commit:
        """Its commit."""

    @property
    def tags(self) -> Sequence[str]:
        """The names of its tags."""

    @property
    def branches(self) -> Sequence[str]:
        """The names of the branches that were created from it."""

    @property
    def is_newest(self) -> bool:
        """Whether it is the latest snapshot."""


def timeline_picture(moments: Sequence[Moment], width: float = WIDE) -> Markup:
    """The moments from left to right. The first one given is the latest.

    Heights are proportional to the square root, so that small ones are visible.
    """
    moments = moments[::-1]
    return picture(
        width,
        _TIMELINE_PICTURE_HEIGHT,
        counted(len(moments), "commit"),
        _timeline_picture_parts(moments, width - _TIMELINE_PICTURE_RIGHT),
        "picture timeline-picture",
        "Rows written and deleted by each commit, with tags and branches; the table below says "
        "the same.",
    )


def _timeline_picture_parts(moments: Sequence[Moment], right: float) -> Iterator[Markup]:
    most = max((max(m.entry.rows_written, m.entry.rows_deleted) for m in moments), default=0)

    yield text("written", x=_TIMELINE_PICTURE_LEFT - 8, y=_AXIS - 8, class_="label end")
    yield text("deleted", x=_TIMELINE_PICTURE_LEFT - 8, y=_AXIS + 16, class_="label end")
    if most:
        top = _AXIS - _UP
        yield element("line", x1=_TIMELINE_PICTURE_LEFT, y1=top, x2=right, y2=top, class_="grid")
        yield text(_short(most), x=_TIMELINE_PICTURE_LEFT - 8, y=top + 4, class_="label end")
    yield element("line", x1=_TIMELINE_PICTURE_LEFT, y1=_AXIS, x2=right, y2=_AXIS, class_="axis")
    step = (right - _TIMELINE_PICTURE_LEFT) / max(1, len(moments))
    column = min(_COLUMN_MAX, step * 0.62)
    every = max(1, math.ceil(44 / step))
    for place, moment in enumerate(moments):
        middle = _TIMELINE_PICTURE_LEFT + step * (place + 0.5)
        is_named = (len(moments) - 1 - place) % every == 0
        yield from _commit(moment, middle, column, most, is_named=is_named)


def _commit(
    moment: Moment, middle: float, column: float, most: int, *, is_named: bool
) -> Iterator[Markup]:
    entry = moment.entry
    kind = _KINDS.get(entry.operation, "write")
    up = math.sqrt(entry.rows_written / max(1, most)) * _UP
    down = math.sqrt(entry.rows_deleted / max(1, most)) * _DOWN
    left = middle - column / 2
    hint = tooltip(
        f"snapshot {entry.snapshot_id}, {entry.operation}: {entry.rows_written:,} rows written, "
        f"{entry.rows_deleted:,} deleted"
    )
    bars = [
        element("rect", x=left, y=_AXIS - up, width=column, height=up, rx=2, class_=f"bar {kind}"),
        element("rect", x=left, y=_AXIS, width=column, height=down, rx=2, class_="bar deleted"),
        element("circle", cx=middle, cy=_AXIS, r=4.5, class_=f"dot {kind}"),
    ]
    yield element("g", hint, *bars)
    if moment.is_newest:
        yield element("circle", cx=middle, cy=_AXIS, r=8, class_="newest")
    if moment.tags:
        # A flag above the column. The table has more space for the names.
        top = max(_FLAGS - 14, _AXIS - up - 14)
        pole = element("line", x1=middle, y1=top, x2=middle, y2=top + 14, class_="flag-pole")
        cloth = element("path", d=f"M{middle:.1f} {top:.1f} l11 4 l-11 4 z", class_="flag")
        yield element("g", tooltip(f"tags: {names(moment.tags)}"), pole, cloth)
    if moment.branches:
        way = f"M{middle:.1f} {_AXIS:.1f} c0 {_DOWN + 4:.1f} 4 {_DOWN + 12:.1f} 16 {_DOWN + 14:.1f}"
        fork = element("path", d=way, class_="fork")
        end = element("circle", cx=middle + 16, cy=_AXIS + _DOWN + 14, r=3.5, class_="fork-end")
        yield element("g", tooltip(f"branches: {names(moment.branches)}"), fork, end)
    if is_named:
        yield text(str(entry.snapshot_id), x=middle, y=_IDS + 14, class_="label middle")


def _short(count: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)
