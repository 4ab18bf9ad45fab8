"""The HTML that objects show in notebooks. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["bullets", "heading", "preformatted", "table"]


def heading(title: str, address: str) -> str:
    """A title with an address."""
    return f"<b>{escape(title)}</b> <code>{escape(address)}</code>"


def bullets(items: Iterable[str]) -> str:
    """An unordered list."""
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a header row."""
    names = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    return f"<table><tr>{names}</tr>{''.join(map(_row, rows))}</table>"


def preformatted(text: str) -> str:
    """Text that keeps its spaces and line breaks."""
    return f"<pre>{escape(text)}</pre>"


def _row(cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>"
