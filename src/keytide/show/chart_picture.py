"""A chart as a picture."""

from __future__ import annotations

from collections.abc import Iterator

from keytide.base.plural import counted
from keytide.show.chart import Chart
from keytide.show.markup import Markup, element
from keytide.show.svg import picture, text, told

__all__ = ["chart_picture"]

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
    is_line = chart.places is not None
    places = chart.places or [(place + 0.5) / count for place in range(count)]
    across = [_LEFT + (_WIDTH - _LEFT - _RIGHT) * place for place in places]
    draw = _points if is_line else _bars
    yield from draw(chart, list(zip(across, map(y_of, chart.values), strict=True)), y_of(0))
    yield from _names(chart, across)


def _points(chart: Chart, at: list[tuple[float, float]], zero: float) -> Iterator[Markup]:
    way = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    yield element("polyline", points=way, class_="line")
    for hint, (x, y) in zip(_told(chart), at, strict=True):
        yield element("circle", hint, cx=x, cy=y, r=3.0, class_="point")


def _bars(chart: Chart, at: list[tuple[float, float]], zero: float) -> Iterator[Markup]:
    width = min(48.0, (_WIDTH - _LEFT - _RIGHT) / len(at) * 0.7)
    for hint, (x, y) in zip(_told(chart), at, strict=True):
        yield element(
            "rect", hint, x=x - width / 2, y=min(y, zero), width=width, height=abs(y - zero), rx=2,
            class_="bar write",
        )  # fmt: skip


def _told(chart: Chart) -> Iterator[Markup]:
    for name, value in zip(chart.names, chart.values, strict=True):
        yield told(f"{name}: {value:,.6g}")


def _names(chart: Chart, middles: list[float]) -> Iterator[Markup]:
    """A few names below the chart, with enough space between them."""
    room = (_WIDTH - _LEFT - _RIGHT) / _LABELS_MAX
    last = -room
    for x, name in zip(middles, chart.names, strict=True):
        if x - last >= room:
            short = name if len(name) <= _LABEL_LETTERS else f"{name[: _LABEL_LETTERS - 1]}…"
            yield text(short, x=x, y=_HEIGHT - _BOTTOM + 20, class_="label middle")
            last = x
    yield text(
        chart.across, x=_LEFT + (_WIDTH - _LEFT - _RIGHT) / 2, y=_HEIGHT - 8,
        class_="label strong middle",
    )  # fmt: skip
