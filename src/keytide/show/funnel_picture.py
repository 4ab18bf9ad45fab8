"""A picture of the files that remain after each pruning step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from keytide.base.plural import counted
from keytide.show.markup import Markup, element
from keytide.show.plan_tree import Stage
from keytide.show.svg import NARROW, picture, text, told
from keytide.show.text import size_text

__all__ = ["funnel_picture"]

_LEFT, _RIGHT = 110.0, 230.0
_ROW, _BAR, _TOP = 24.0, 14.0, 4.0


def funnel_picture(stages: Sequence[Stage]) -> Markup:
    """A bar for each step that pruned files. Remaining files are filled, others outlined."""
    first, last = stages[0], stages[-1]
    shown = [first, *(after for before, after in pairwise(stages) if after.files < before.files)]
    title = f"{last.files:,} of {counted(first.files, 'file')} left by pruning"
    return picture(
        NARROW,
        _TOP * 2 + _ROW * len(shown),
        title,
        _rows(shown, first),
        "picture funnel-picture",
        "What each stage of pruning left, if it pruned files; the table below has all stages.",
    )


def _rows(stages: Sequence[Stage], first: Stage) -> Iterator[Markup]:
    width = NARROW - _LEFT - _RIGHT
    for place, stage in enumerate(stages):
        top = _TOP + _ROW * place
        middle, y = top + _ROW / 2 + 4, top + (_ROW - _BAR) / 2
        label = f"after {stage.stage}" if place else "all files"
        length = width * stage.files / max(1, first.files)
        kept = f"{stage.files:,} of {first.files:,} files kept"
        yield text(label, x=_LEFT - 10, y=middle, class_="label end")
        yield element(
            "g",
            told(f"{label}: {kept}, {size_text(stage.bytes)}"),
            element("rect", x=_LEFT, y=y, width=width, height=_BAR, rx=3, class_="pruned"),
            element("rect", x=_LEFT, y=y, width=length, height=_BAR, rx=3, class_="kept"),
        )
        yield text(
            f"{kept}, {size_text(stage.bytes)}", x=_LEFT + width + 10, y=middle, class_="label"
        )
