"""Output for people: lines of text that fit the terminal, and that say what they omit.

A `Grid` shows rows as a table, or as one block per row with a value on each line. In a table, wide
strings are truncated with an ellipsis, and columns that do not fit are named below. Blocks show
everything, on as many lines as necessary. Without a terminal, the width is None and nothing is
truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Any, Protocol

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from keytide.base.value_text import visible

__all__ = ["Column", "Content", "Grid", "Part", "Properties", "Words", "grid"]

WIDTH_MIN = 10
"""The smallest terminal width that lines are fitted to."""

_GAP = 2
_TEXT_WIDTH_MIN = 12


class Part(Protocol):
    """A part of the output."""

    def lines(self, width: int | None, *, vertical: bool) -> Iterator[Text]:
        """Its lines, at most `width` wide. `vertical` shows blocks in place of tables."""


class Content(Enum):
    """The content of a column: strings can be truncated, numbers are right-aligned."""

    TEXT = "text"
    TIME = "time"
    FIGURE = "figure"


@dataclass(frozen=True)
class Column:
    """A column of strings, with NULL as None."""

    name: str
    cells: Sequence[str | None]
    content: Content = Content.TEXT

    @property
    def width(self) -> int:
        """The width in the terminal of the widest string or of the name."""
        shown = ("NULL" if cell is None else visible(cell) for cell in self.cells)
        return max(map(cell_len, (visible(self.name), *shown)))


@dataclass(frozen=True)
class Grid:
    """Rows, as columns with the same number of cells."""

    columns: Sequence[Column]

    def lines(self, width: int | None, *, vertical: bool) -> Iterator[Text]:
        """A table, or blocks if they are requested or if the first column alone is too wide."""
        widths = fitted_widths(self.columns, width)
        value = self._only_value()
        if vertical or (self.columns and not widths):
            yield from self._blocks(width)
        elif value is not None and ("\n" in value or cell_len(value) > widths[0]):
            yield Text(visible(self.columns[0].name), "bold")
            yield from map(Text, _folded(value, width))
        else:
            yield from self._table(widths)
            yield from _left_out(self.columns[len(widths) :], width)

    def _only_value(self) -> str | None:
        cells = [cell for column in self.columns for cell in column.cells]
        return cells[0] if len(cells) == 1 else None

    def _table(self, widths: Sequence[int]) -> Iterator[Text]:
        shown = self.columns[: len(widths)]
        contents = [column.content for column in shown]
        yield _row([Text(visible(column.name), "bold") for column in shown], widths, contents)
        for cells in zip(*(column.cells for column in shown), strict=True):
            yield _row(list(map(_cell, cells)), widths, contents)

    def _blocks(self, width: int | None) -> Iterator[Text]:
        names = [column.name for column in self.columns]
        for number, cells in enumerate(zip(*(c.cells for c in self.columns), strict=True), 1):
            if number > 1:
                yield Text()
            yield Text(f"row {number}", "dim")
            yield from _block(names, cells, width)


@dataclass(frozen=True)
class Properties:
    """Names and values, one per line."""

    values: Mapping[str, Any]

    def lines(self, width: int | None, *, vertical: bool) -> Iterator[Text]:
        """The same lines, whatever `vertical` is."""
        return _block(list(self.values), list(map(_figure, self.values.values())), width)


@dataclass(frozen=True)
class Words:
    """Running text. Lines that are too long are wrapped and indented."""

    text: str
    style: str = ""

    def lines(self, width: int | None, *, vertical: bool) -> Iterator[Text]:
        """The same lines, whatever `vertical` is."""
        for line in self.text.split("\n"):
            yield from _wrapped(visible(line), self.style, width)


def grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Records of one kind, without the properties that none of them has."""
    names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    return Grid(
        [
            Column(
                name,
                [_figure(row[name]) for row in rows],
                Content.FIGURE if all(_is_number(row[name]) for row in rows) else Content.TEXT,
            )
            for name in names
        ]
    )


def fitted_widths(columns: Sequence[Column], width: int | None) -> list[int]:
    """The widths of the first columns, as many as fit.

    Names, numbers and times are shown in full. Strings get the remaining width, short ones first.
    """
    wished = [column.width for column in columns]
    if width is None:
        return wished
    least = [_least_width(column, wish) for column, wish in zip(columns, wished, strict=True)]
    ends = accumulate(each + _GAP for each in least)
    room = max(width, WIDTH_MIN) + _GAP
    fitting = [end for end in ends if end <= room]
    return _grown(least[: len(fitting)], wished, room - max(fitting, default=0))


def _grown(widths: Sequence[int], wished: Sequence[int], room: int) -> list[int]:
    """The widths after the remaining width is distributed, first to columns that need little."""
    grown = list(widths)
    by_need = sorted(range(len(grown)), key=lambda i: wished[i] - grown[i])
    for left, i in zip(range(len(grown), 0, -1), by_need, strict=True):
        more = min(wished[i] - grown[i], room // left)
        grown[i] += more
        room -= more
    return grown


def _least_width(column: Column, wish: int) -> int:
    if column.content is not Content.TEXT:
        return wish
    return max(cell_len(visible(column.name)), min(wish, _TEXT_WIDTH_MIN))


def _row(cells: Sequence[Text], widths: Sequence[int], contents: Sequence[Content]) -> Text:
    for cell, width, content in zip(cells, widths, contents, strict=True):
        cell.truncate(width, overflow="ellipsis")
        blanks = width - cell.cell_len
        cell.pad_left(blanks) if content is Content.FIGURE else cell.pad_right(blanks)
    line = Text(" " * _GAP).join(cells)
    return _stripped(line)


def _stripped(line: Text) -> Text:
    line.rstrip()
    return line


def _left_out(columns: Sequence[Column], width: int | None) -> Iterator[Text]:
    if columns:
        names = ", ".join(visible(column.name) for column in columns)
        yield from _wrapped(f"not shown: {names}", "dim", width)
        yield from _wrapped(r"--format vertical, or \x at the prompt, shows them", "dim", width)


def _block(names: Sequence[str], cells: Sequence[str | None], width: int | None) -> Iterator[Text]:
    """Names next to their values, or above them if names would need more than half of the width."""
    label = max(cell_len(visible(name)) for name in names) + _GAP if names else 0
    is_beside = width is None or label <= max(width, WIDTH_MIN) // 2
    indent = label if is_beside else _GAP
    room = None if width is None else max(width, WIDTH_MIN) - indent
    for name, cell in zip(names, cells, strict=True):
        values = [_cell(None)] if cell is None else list(map(Text, _folded(cell, room)))
        shown = [Text(part, "bold") for part in _folded(visible(name), width)]
        if is_beside:
            shown[0].pad_right(indent - shown[0].cell_len)
            yield _stripped(Text.assemble(shown[0], values.pop(0)))
        else:
            yield from shown
        yield from (_stripped(Text.assemble(" " * indent, value)) for value in values)


def _cell(text: str | None) -> Text:
    return Text("NULL", "dim") if text is None else Text(visible(text))


def _folded(text: str, width: int | None) -> Iterator[str]:
    """The text, split at its own line breaks and at the width."""
    for line in map(visible, text.split("\n")):
        if width is None or not line:
            yield line
        else:
            yield from chop_cells(line, max(width, 2))


def _wrapped(text: str, style: str, width: int | None) -> Iterator[Text]:
    """A line, wrapped at blanks if possible. All lines after the first are indented."""
    if width is None or cell_len(text) <= max(width, WIDTH_MIN):
        yield Text(text, style)
        return
    bare = text.lstrip(" ")
    lead = min(len(text) - len(bare), max(width, WIDTH_MIN) // 2 - _GAP)
    room = max(width, WIDTH_MIN) - lead - _GAP
    for number, line in enumerate(Text(bare, style).wrap(Console(), room, overflow="fold")):
        line.pad_left(lead + (_GAP if number else 0))
        yield _stripped(line)


def _figure(value: Any) -> str | None:
    if value is None:
        return None
    return f"{value:,}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
