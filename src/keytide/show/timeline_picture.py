"""A timeline: a column for each commit, with written rows above and deleted rows below."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from keytide.base.plural import counted
from keytide.show.markup import Markup, element
from keytide.show.parts import names
from keytide.show.svg import WIDE, picture, text, told

__all__ = ["Commit", "Moment", "timeline_picture"]

_LEFT, _RIGHT = 56.0, 12.0
_AXIS, _UP, _DOWN = 132.0, 92.0, 40.0
_HEIGHT = 226.0
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
        _HEIGHT,
        counted(len(moments), "commit"),
        _parts(moments, width - _RIGHT),
        "picture timeline-picture",
        "Rows written and deleted by each commit, with tags and branches; the table below says "
        "the same.",
    )


def _parts(moments: Sequence[Moment], right: float) -> Iterator[Markup]:
    most = max((max(m.entry.rows_written, m.entry.rows_deleted) for m in moments), default=0)
    yield from _scale(most, right)
    yield element("line", x1=_LEFT, y1=_AXIS, x2=right, y2=_AXIS, class_="axis")
    step = (right - _LEFT) / max(1, len(moments))
    column = min(_COLUMN_MAX, step * 0.62)
    every = max(1, math.ceil(44 / step))
    for place, moment in enumerate(moments):
        middle = _LEFT + step * (place + 0.5)
        is_named = (len(moments) - 1 - place) % every == 0
        yield from _commit(moment, middle, column, most, is_named=is_named)


def _scale(most: int, right: float) -> Iterator[Markup]:
    yield text("written", x=_LEFT - 8, y=_AXIS - 8, class_="label end")
    yield text("deleted", x=_LEFT - 8, y=_AXIS + 16, class_="label end")
    if most:
        top = _AXIS - _UP
        yield element("line", x1=_LEFT, y1=top, x2=right, y2=top, class_="grid")
        yield text(_short(most), x=_LEFT - 8, y=top + 4, class_="label end")


def _commit(
    moment: Moment, middle: float, column: float, most: int, *, is_named: bool
) -> Iterator[Markup]:
    entry = moment.entry
    kind = _KINDS.get(entry.operation, "write")
    up, down = _share(entry.rows_written, most) * _UP, _share(entry.rows_deleted, most) * _DOWN
    left = middle - column / 2
    hint = told(
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
        yield _flag(moment.tags, middle, top=_AXIS - up - 14)
    if moment.branches:
        yield _fork(moment.branches, middle)
    if is_named:
        yield text(str(entry.snapshot_id), x=middle, y=_IDS + 14, class_="label middle")


def _flag(tags: Sequence[str], x: float, top: float) -> Markup:
    """A flag above the column. The names of the tags are in the table, which has more space."""
    hint = told(f"tags: {names(tags)}")
    top = max(_FLAGS - 14, top)
    pole = element("line", x1=x, y1=top, x2=x, y2=top + 14, class_="flag-pole")
    cloth = element("path", d=f"M{x:.1f} {top:.1f} l11 4 l-11 4 z", class_="flag")
    return element("g", hint, pole, cloth)


def _fork(branches: Sequence[str], x: float) -> Markup:
    hint = told(f"branches: {names(branches)}")
    way = f"M{x:.1f} {_AXIS:.1f} c0 {_DOWN + 4:.1f} 4 {_DOWN + 12:.1f} 16 {_DOWN + 14:.1f}"
    line = element("path", d=way, class_="fork")
    end = element("circle", cx=x + 16, cy=_AXIS + _DOWN + 14, r=3.5, class_="fork-end")
    return element("g", hint, line, end)


def _share(count: int, most: int) -> float:
    return math.sqrt(count / most) if count and most else 0.0


def _short(count: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)
