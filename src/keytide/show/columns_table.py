"""The columns of a table or of a result."""

from __future__ import annotations

from collections.abc import Sequence

from keytide.base.plural import counted
from keytide.show.markup import Markup, element, joined
from keytide.show.parts import named, paragraph, rows_table
from keytide.show.text import shortened

__all__ = ["columns_table"]

_COLUMNS_MAX = 60
_TYPE_MAX = 200


def columns_table(head: Sequence[str], columns: Sequence[Sequence[str]]) -> Markup:
    """The first columns, each with its name, its type, and the other values in `head`."""
    shown = columns[:_COLUMNS_MAX]
    rows = (
        (named(each[0]), element("code", shortened(each[1], _TYPE_MAX)), *each[2:])
        for each in shown
    )
    table = rows_table("Columns", head, rows)
    left_out = len(columns) - len(shown)
    if left_out <= 0:
        return table
    return joined(table, paragraph(counted(left_out, "more column"), class_="muted"))
