"""The explanation of a key: its row, and the versions in merge order."""

from __future__ import annotations

from keytide.base.plural import counted
from keytide.show.cells import Cell
from keytide.show.markup import Markup, element, joined
from keytide.show.parts import cell, named, paragraph, rows_table
from keytide.show.story import Story, Version
from keytide.show.text import shortened

__all__ = ["story_list"]

_VERSIONS_MAX = 20
_COLUMNS_MAX = 25
_TEXT_MAX = 400
_KINDS = {"+I": "insert", "-D": "delete", "-U": "before", "+U": "after"}


def story_list(story: Story) -> Markup:
    """The row first, then the last versions, the oldest of them first."""
    when = "" if story.snapshot_id is None else f"Snapshot {story.snapshot_id}, "
    return joined(
        paragraph(f"{when}merged by {story.merge_engine}", class_="muted"),
        _row(story),
        *_versions(story),
    )


def _row(story: Story) -> Markup:
    if story.row is None:
        return paragraph(_why_no_row(story), class_="verdict")
    shown = story.row[:_COLUMNS_MAX]
    table = rows_table(
        "The row",
        ("Column", "Value", "Taken from"),
        ((named(column), cell(value), _origin(numbers)) for column, value, numbers in shown),
    )
    return joined(table, _left_out(len(story.row) - len(shown)))


def _why_no_row(story: Story) -> str:
    if story.has_expired:
        return "There is no row: it has expired."
    if story.versions:
        return "There is no row: see the outcome of the versions."
    return "No version of this key is stored."


def _origin(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[-_VERSIONS_MAX:]))
    return f"version {shown}" if numbers else ""


def _versions(story: Story) -> list[str]:
    if not story.versions:
        return []
    shown = story.versions[-_VERSIONS_MAX:]
    older = len(story.versions) - len(shown)
    title = f"{counted(len(story.versions), 'stored version')}, in the order of the merge"
    note = paragraph(f"{counted(older, 'older version')} not shown", class_="muted")
    items = element("ol", *map(_version, shown), class_="story")
    return [element("h4", title), note if older else "", items]


def _version(version: Version) -> Markup:
    shown = version.values[:_COLUMNS_MAX]
    values = (_value(column, value, column in version.gives) for column, value in shown)
    kind = element("span", version.kind, class_=f"kind kind-{_KINDS[version.kind]}")
    return element(
        "li",
        paragraph(element("strong", f"Version {version.number}"), " ", kind),
        paragraph(shortened(version.outcome, _TEXT_MAX), class_="outcome"),
        element("dl", *values, class_="values"),
        _left_out(len(version.values) - len(shown)),
        paragraph(_place(version), class_="muted place"),
        class_="card winner" if version.gives else "card",
    )


def _place(version: Version) -> str:
    parts = [shortened(version.place, _TEXT_MAX)]
    if version.sequence is not None:
        parts.append(f"sequence number {version.sequence}")
    if version.schema_id is not None:
        parts.append(f"schema {version.schema_id}")
    return ", ".join(parts)


def _value(column: str, value: Cell, is_taken: bool) -> Markup:  # a cell's own
    mark = " (in the row)" if is_taken else ""
    term = element("dt", named(column), mark)
    return element("div", term, element("dd", cell(value)), class_="gives" if is_taken else None)


def _left_out(columns: int) -> Markup:
    if columns <= 0:
        return Markup()
    return paragraph(counted(columns, "more column"), class_="muted")
