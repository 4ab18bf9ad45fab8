"""The steps of a plan as nested lists, with pictures of the pruning steps."""

from __future__ import annotations

from keytide.show.funnel_picture import funnel_picture
from keytide.show.markup import Markup, element, joined
from keytide.show.parts import details, paragraph, rows_table
from keytide.show.plan_tree import Plan, Stage
from keytide.show.text import shortened, size_text

__all__ = ["plan_list"]

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
