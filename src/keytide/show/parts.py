"""Building blocks of notebook output: names, cells, tables, and collapsible text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from keytide.show.cells import Cell
from keytide.show.markup import Markup, element, joined
from keytide.show.text import shortened

__all__ = ["cell", "details", "named", "names", "opened", "paragraph", "problem", "rows_table"]

_CELL_MAX = 120
_NAME_MAX = 80
_NAMES_MAX = 3
_NAME_AMONG_OTHERS_MAX = 40
_PROBLEM_MAX = 2_000


def named(text: str) -> Markup:
    """A user's name, truncated if it is long. Its text direction does not affect other text."""
    return element("bdi", shortened(text, _NAME_MAX))


def names(texts: Sequence[str]) -> str:
    """Some names on one line. If there are many, the first few and the number of others."""
    shown = ", ".join(shortened(text, _NAME_AMONG_OTHERS_MAX) for text in texts[:_NAMES_MAX])
    more = len(texts) - _NAMES_MAX
    return f"{shown} and {more:,} more" if more > 0 else shown


def cell(value: Cell) -> Markup:
    """A user's value, truncated if it is long. NULL looks different from the string 'NULL'."""
    if value is None:
        return element("span", "NULL", class_="null")
    return element("bdi", shortened(value, _CELL_MAX))


def paragraph(*parts: str, class_: str | None = None) -> Markup:
    """A paragraph."""
    return element("p", *parts, class_=class_)


def problem(error: Exception) -> Markup:
    """What could not be read, and the reason."""
    text = shortened(str(error), _PROBLEM_MAX)
    return paragraph(element("strong", "This could not be read: "), text, class_="note")


def details(summary: str, content: Markup) -> Markup:
    """Content that the reader can open."""
    return element("details", element("summary", summary), content)


def opened(summary: str, content: Markup) -> Markup:
    """Content that is open and that the reader can close."""
    return element("details", element("summary", summary), content, open="")


def rows_table(
    label: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Collection[str] = (),
    class_: str = "rows",
) -> Markup:
    """A table whose first column names each row. The columns in `numbers` are right-aligned.

    Cells that are not `Markup` are escaped. A table that is too wide scrolls within its region,
    which `label` describes.
    """
    kinds = ["num" if each in numbers else None for each in head]
    titles = (
        element("th", each, scope="col", class_=kind)
        for each, kind in zip(head, kinds, strict=True)
    )
    top = element("thead", element("tr", *titles))
    body = element("tbody", *(_row(row, kinds) for row in rows))
    table = element("table", top, body, class_=class_)
    return element("div", table, class_="scroll", role="region", aria_label=label, tabindex=0)


def _row(cells: Sequence[str], kinds: Sequence[str | None]) -> Markup:
    first, *rest = cells
    others = (element("td", each, class_=kind) for each, kind in zip(rest, kinds[1:], strict=True))
    return element("tr", element("th", first, scope="row", class_=kinds[0]), joined(*others))
