"""Plans, the versions of a key, and changed rows, as lists, tables and pictures.

A plan is a tree of steps. Its pictures show the files that remain after each pruning step. The
explanation of a key shows its row, and its versions in merge order. Changed rows are a table: one
line for each change, with the old value next to the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from keytide.base.dataclass import dataclass
from keytide.base.text import counted
from keytide.show.elements import (
    NARROW,
    Cell,
    Column,
    Markup,
    cell,
    details,
    element,
    joined,
    named,
    paragraph,
    picture,
    rows_table,
    shortened,
    size_text,
    text,
    tooltip,
)

# -- plans -----------------------------------------------------------------------------------------


class Stage(Protocol):
    """What remains after one kind of pruning."""

    @property
    def stage(self) -> str:
        """The kind of pruning."""

    @property
    def partitions(self) -> int:
        """The number of remaining partitions."""

    @property
    def buckets(self) -> int:
        """The number of remaining buckets."""

    @property
    def files(self) -> int:
        """The number of remaining files."""

    @property
    def rows(self) -> int:
        """The number of stored rows in these files."""

    @property
    def bytes(self) -> int:
        """The total size of these files, in bytes."""


@dataclass(frozen=True)
class Plan:
    """A step with its notes, the files that remain after each pruning step, and its child steps."""

    title: str
    notes: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    children: tuple[Plan, ...] = ()


# -- the picture of pruning steps ------------------------------------------------------------------


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
            tooltip(f"{label}: {kept}, {size_text(stage.bytes)}"),
            element("rect", x=_LEFT, y=y, width=width, height=_BAR, rx=3, class_="pruned"),
            element("rect", x=_LEFT, y=y, width=length, height=_BAR, rx=3, class_="kept"),
        )
        yield text(
            f"{kept}, {size_text(stage.bytes)}", x=_LEFT + width + 10, y=middle, class_="label"
        )


# -- plans as nested lists -------------------------------------------------------------------------


_TEXT_MAX = 600
_CHILDREN_MAX = 50


def plan_list(plan: Plan) -> Markup:
    """The plan with its steps."""
    return element("ul", _step(plan), class_="plan")


def _step(plan: Plan) -> Markup:
    notes = (paragraph(shortened(note, _TEXT_MAX), class_="muted") for note in plan.notes)
    pruning = ""
    if plan.stages:
        label = f"What pruning leaves, {shortened(plan.title, _TEXT_MAX)}"
        rows = []
        for each in plan.stages:
            counts = (each.partitions, each.buckets, each.files, each.rows)
            rows.append((each.stage, *(f"{n:,}" for n in counts), size_text(each.bytes)))
        table = rows_table(label, _HEAD, rows, _HEAD[1:])
        pruning = joined(funnel_picture(plan.stages), details("The same as a table", table))
    shown = plan.children[:_CHILDREN_MAX]
    children = element("ul", *map(_step, shown)) if shown else ""
    title = paragraph(shortened(plan.title, _TEXT_MAX), class_="step")
    return element("li", title, joined(*notes), pruning, children)


_HEAD = ("After", "Partitions", "Buckets", "Files", "Rows", "Bytes")


# -- the versions of a key, and changed rows -------------------------------------------------------


@dataclass(frozen=True)
class Version:
    """A stored version and its effect. `gives` are the columns whose value it provided.

    Versions of external tables have no sequence number and no schema.
    """

    number: int
    kind: str
    place: str
    schema_id: int | None
    sequence: int | None
    values: tuple[tuple[str, Cell], ...]
    gives: frozenset[str]
    outcome: str


@dataclass(frozen=True)
class Story:
    """The versions in merge order, and the resulting row with the origin of each value."""

    key: tuple[tuple[str, Cell], ...]
    snapshot_id: int | None
    merge_engine: str
    versions: tuple[Version, ...]
    row: tuple[tuple[str, Cell, tuple[int, ...]], ...] | None
    has_expired: bool


# -- the explanation of a key ----------------------------------------------------------------------


_VERSIONS_MAX = 20
_COLUMNS_MAX = 25
_STORY_TEXT_MAX = 400
_KINDS = {"+I": "insert", "-D": "delete", "-U": "before", "+U": "after"}


def story_list(story: Story) -> Markup:
    """The row first, then the last versions, the oldest of them first."""
    when = "" if story.snapshot_id is None else f"Snapshot {story.snapshot_id}, "
    parts = [paragraph(f"{when}merged by {story.merge_engine}", class_="muted"), _row(story)]
    if story.versions:
        shown = story.versions[-_VERSIONS_MAX:]
        title = f"{counted(len(story.versions), 'stored version')}, in the order of the merge"
        parts.append(element("h4", title))
        older = len(story.versions) - len(shown)
        if older:
            parts.append(paragraph(f"{counted(older, 'older version')} not shown", class_="muted"))
        parts.append(element("ol", *map(_version, shown), class_="story"))
    return joined(*parts)


def _row(story: Story) -> Markup:
    if story.row is None:
        why = "No version of this key is stored."
        if story.versions:
            why = "There is no row: see the outcome of the versions."
        if story.has_expired:
            why = "There is no row: it has expired."
        return paragraph(why, class_="verdict")
    shown = story.row[:_COLUMNS_MAX]
    rows = []
    for column, value, numbers in shown:
        origin = ", ".join(map(str, numbers[-_VERSIONS_MAX:]))
        rows.append((named(column), cell(value), f"version {origin}" if numbers else ""))
    table = rows_table("The row", ("Column", "Value", "Taken from"), rows)
    return joined(table, _left_out(len(story.row) - len(shown)))


def _version(version: Version) -> Markup:
    shown = version.values[:_COLUMNS_MAX]
    values = []
    for column, value in shown:
        is_taken = column in version.gives
        term = element("dt", named(column), " (in the row)" if is_taken else "")
        description = element("dd", cell(value))
        values.append(element("div", term, description, class_="gives" if is_taken else None))
    kind = element("span", version.kind, class_=f"kind kind-{_KINDS[version.kind]}")

    parts = [shortened(version.place, _STORY_TEXT_MAX)]
    if version.sequence is not None:
        parts.append(f"sequence number {version.sequence}")
    if version.schema_id is not None:
        parts.append(f"schema {version.schema_id}")
    return element(
        "li",
        paragraph(element("strong", f"Version {version.number}"), " ", kind),
        paragraph(shortened(version.outcome, _STORY_TEXT_MAX), class_="outcome"),
        element("dl", *values, class_="values"),
        _left_out(len(version.values) - len(shown)),
        paragraph(", ".join(parts), class_="muted place"),
        class_="card winner" if version.gives else "card",
    )


def _left_out(columns: int) -> Markup:
    if columns <= 0:
        return Markup()
    return paragraph(counted(columns, "more column"), class_="muted")


# -- changes between two snapshots -----------------------------------------------------------------


@dataclass(frozen=True)
class ChangedRow:
    """A row with its kind. `is_new` says for each cell whether it differs from the before image."""

    kind: str
    cells: tuple[Cell, ...]
    is_new: tuple[bool, ...]


@dataclass(frozen=True)
class ChangedRows:
    """The first changes after `start` up to `end`, and the mode that found them."""

    start: str
    end: str
    mode: str
    columns: tuple[Column, ...]
    rows: tuple[ChangedRow, ...]
    counts: tuple[tuple[str, int], ...]
    has_more: bool
    found_by: str


# -- changed rows ----------------------------------------------------------------------------------


_CHANGES_TABLE_KINDS = {
    "+I": ("insert", "insert"),
    "-D": ("delete", "delete"),
    "-U": ("update, before", "before"),
    "+U": ("update, after", "after"),
}


def changes_table(found: ChangedRows) -> Markup:
    """The first changes, with the number of changes of each kind.

    An update is one line. A changed value is shown as the value before, an arrow, and the value
    after.
    """
    counts = ", ".join(f"{kind} {number:,}" for kind, number in found.counts)
    shown = (
        f"The first {counted(len(found.rows), 'changed row')}; there are more. By kind: {counts}"
    )
    if not found.rows:
        return paragraph("No row changed.")
    if not found.has_more:
        shown = f"{counted(len(found.rows), 'changed row')}. By kind: {counts}"
    left_out = len(found.columns) - _COLUMNS_MAX
    columns = found.columns[:_COLUMNS_MAX]
    table = rows_table(
        "Changed rows",
        ("Change", *(named(column.name) for column in columns)),
        map(_cells, _lines(found.rows)),
        class_="rows changes",
    )
    more = paragraph(f"{counted(left_out, 'more column')}", class_="muted") if left_out > 0 else ""
    return joined(paragraph(shown), table, more)


def _lines(rows: Sequence[ChangedRow]) -> Iterator[tuple[ChangedRow, ...]]:
    """The changes: a row each or, for an update, the two adjacent images together."""
    before: ChangedRow | None = None
    for row in rows:
        if before is not None and row.kind == "+U":
            yield before, row
            before = None
            continue
        if before is not None:
            yield (before,)
        before = row if row.kind == "-U" else None
        if before is None:
            yield (row,)
    if before is not None:
        yield (before,)


def _cells(change: tuple[ChangedRow, ...]) -> tuple[str, ...]:
    if len(change) == 1:
        (row,) = change
        kind = _kind(*_CHANGES_TABLE_KINDS[row.kind], row.kind)
        return kind, *map(cell, row.cells[:_COLUMNS_MAX])
    before, after = change
    cells = [_kind("update", "after", "-U +U")]
    arrow = element("span", " → ", aria_label=" becomes ", role="img")
    pairs = zip(before.cells[:_COLUMNS_MAX], after.cells, after.is_new, strict=False)
    for old, new, is_new in pairs:
        parts = (element("del", cell(old)), arrow, element("ins", cell(new)))
        cells.append(element("span", *parts, class_="differs") if is_new else cell(new))
    return tuple(cells)


def _kind(word: str, class_: str, sign: str) -> Markup:
    return joined(element("span", sign, class_=f"kind kind-{class_}"), f" {word}")
