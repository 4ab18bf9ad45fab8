"""The steps of a plan, and what pruning leaves.

The steps of a plan as nested lists, with pictures of the pruning steps.

A picture of the files that remain after each pruning step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from keytide.base.text import counted
from keytide.show.plan_tree import Plan, Stage
from keytide.show.svg import (
    NARROW,
    Markup,
    details,
    element,
    joined,
    paragraph,
    picture,
    rows_table,
    text,
    told,
)
from keytide.show.text import shortened, size_text

# -- A picture of the files that remain after each pruning step ------------------------------------


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


# -- the steps of a plan as nested lists, with pictures of the pruning steps -----------------------


_TEXT_MAX = 600
_CHILDREN_MAX = 50


def plan_list(plan: Plan) -> Markup:
    """The plan with its steps."""
    return element("ul", _step(plan), class_="plan")


def _step(plan: Plan) -> Markup:
    notes = (paragraph(shortened(note, _TEXT_MAX), class_="muted") for note in plan.notes)
    pruning = _pruning(plan) if plan.stages else ""
    shown = plan.children[:_CHILDREN_MAX]
    children = element("ul", *map(_step, shown)) if shown else ""
    title = paragraph(shortened(plan.title, _TEXT_MAX), class_="step")
    return element("li", title, joined(*notes), pruning, children)


def _pruning(plan: Plan) -> Markup:
    table = rows_table(
        f"What pruning leaves, {shortened(plan.title, _TEXT_MAX)}",
        _HEAD,
        map(_stage, plan.stages),
        _HEAD[1:],
    )
    return joined(funnel_picture(plan.stages), details("The same as a table", table))


_HEAD = ("After", "Partitions", "Buckets", "Files", "Rows", "Bytes")


def _stage(stage: Stage) -> tuple[str, ...]:
    counts = (stage.partitions, stage.buckets, stage.files, stage.rows)
    return stage.stage, *(f"{count:,}" for count in counts), size_text(stage.bytes)
