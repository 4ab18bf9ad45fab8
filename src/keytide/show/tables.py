"""Lists of columns, and of the signs of a table's health.

The columns of a table or of a result.

The health of a table: what to do, and what is fine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from keytide.base.text import counted
from keytide.show.svg import Markup, element, joined, named, opened, paragraph, rows_table
from keytide.show.text import shortened

# -- the columns of a table or of a result ---------------------------------------------------------


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


# -- the health of a table: what to do, and what is fine -------------------------------------------


_TEXT_MAX = 1_000
_HEAD = ("Sign", "Severity", "Found", "Expected", "What to do")


class Sign(Protocol):
    """One measurement."""

    @property
    def subject(self) -> str:
        """What was checked."""

    @property
    def found(self) -> str:
        """What was found."""

    @property
    def expected(self) -> str:
        """The healthy value."""

    @property
    def action(self) -> str | None:
        """What to do, None if nothing needs to be done."""


def signs_table(signs: Sequence[Sign]) -> Markup:
    """Signs that need an action first and, below them, a collapsed list of the others."""
    due = [sign for sign in signs if sign.action is not None]
    fine = [sign for sign in signs if sign.action is None]
    verdict = f"{counted(len(due), 'finding')} to act on" if due else "Nothing has to be done."
    return joined(
        paragraph(_chip(is_due=bool(due)), " ", verdict),
        _table("What to do", due) if due else "",
        opened(f"{counted(len(fine), 'check')} passed", _table("What is fine", fine))
        if fine
        else "",
    )


def _table(label: str, signs: Sequence[Sign]) -> Markup:
    return rows_table(label, _HEAD, map(_line, signs), class_="rows signs")


def _line(sign: Sign) -> tuple[str, ...]:
    action = element("span", "nothing", class_="muted")
    if sign.action is not None:
        action = element("strong", shortened(sign.action, _TEXT_MAX))
    found, expected = (shortened(each, _TEXT_MAX) for each in (sign.found, sign.expected))
    return sign.subject, _chip(is_due=sign.action is not None), found, expected, action


def _chip(*, is_due: bool) -> Markup:
    word, class_ = ("act", "chip warn") if is_due else ("ok", "chip good")
    return element("span", word, class_=class_)
