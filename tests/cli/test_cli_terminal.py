"""What a terminal shows: no line wider than it is, and every column shown or named."""

from __future__ import annotations

import string
from collections.abc import Sequence

from hypothesis import assume, given
from hypothesis import strategies as st
from wcwidth import wcswidth

from keytide.base.text import visible
from keytide.cli.output import (
    WIDTH_MIN,
    Column,
    Content,
    Grid,
    Paragraph,
    Part,
    Properties,
    fitted_widths,
)

ALPHABET = string.ascii_letters + "0_.,'\"[]\\" + "éß日本語😀❤" + "\x1b\x07\n\r\t\u202e"
WIDTHS = st.integers(WIDTH_MIN, 240)
NUMBERS = st.integers(-(10**37), 10**37).map(str)
TIMES = st.just("2026-01-31T12:00:00.000Z")


def texts(length: int, least: int = 0) -> st.SearchStrategy[str]:
    """Short texts, and as many that are about so long."""
    short = st.text(ALPHABET, min_size=least, max_size=12)
    return short | short.map(lambda text: text * (length // max(1, len(text))))


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    rows = draw(st.integers(0, 4))
    contents = {Content.FIGURE: NUMBERS, Content.TIME: TIMES, Content.TEXT: texts(300)}

    def column(name: str, content: Content) -> Column:
        cells = st.lists(st.none() | contents[content], min_size=rows, max_size=rows)
        return Column(name, draw(cells), content)

    some = st.dictionaries(texts(60, least=1), st.sampled_from(Content), min_size=1, max_size=30)
    return Grid([column(name, content) for name, content in draw(some).items()])


def lines_of(shown: Part, width: int | None, *, vertical: bool = False) -> list[str]:
    return [line.plain for line in shown.lines(width, vertical=vertical)]


def joined(lines: Sequence[str]) -> str:
    """All of them without blanks and line breaks, which folding adds."""
    return "".join("".join(lines).split())


def after_cell(line: str, cell: str | None) -> str:
    """What a table's line holds after the cell that comes next: in whole, or cut visibly."""
    line, text = line.lstrip(), "NULL" if cell is None else visible(cell)
    if line.startswith(text):
        return line.removeprefix(text)
    start, ellipsis, rest = line.partition("…")
    assert ellipsis
    assert text.startswith(start.rstrip())
    return rest


@given(grids(), WIDTHS, st.booleans())
def test_no_line_is_wider_than_the_terminal(shown: Grid, width: int, vertical: bool) -> None:
    for line in lines_of(shown, width, vertical=vertical):
        assert 0 <= wcswidth(line) <= width  # -1 stands for a character that steers


@given(grids(), WIDTHS)
def test_every_column_is_shown_or_named(shown: Grid, width: int) -> None:
    fits = fitted_widths(shown.columns, width)
    assume(fits)  # else there is no table: see the blocks below
    header, *lines = lines_of(shown, width)
    for column in shown.columns[: len(fits)]:
        header = header.lstrip()
        assert header.startswith(visible(column.name))
        header = header.removeprefix(visible(column.name))
    for column in shown.columns[len(fits) :]:
        assert visible(column.name) in joined(lines).partition("notshown:")[2]


@given(grids(), WIDTHS)
def test_cells_of_shown_columns_stand_there_in_whole_or_cut_visibly(
    shown: Grid, width: int
) -> None:
    fits = fitted_widths(shown.columns, width)
    rows = list(zip(*(column.cells for column in shown.columns[: len(fits)]), strict=True))
    assume(len(shown.columns) > 1 < len(rows))
    for line, cells in zip(lines_of(shown, width)[1:], rows, strict=False):
        for cell in cells:
            line = after_cell(line, cell)
        assert line == ""


@given(grids(), WIDTHS | st.none())
def test_blocks_show_every_name_and_value_in_whole(shown: Grid, width: int | None) -> None:
    everything = joined(lines_of(shown, width, vertical=True))
    for column in shown.columns:
        for cell in column.cells:
            lines = ("NULL",) if cell is None else map(visible, cell.split("\n"))
            assert visible(column.name) in everything
            assert all(line in everything for line in lines)


@given(grids())
def test_nothing_is_cut_where_there_is_no_terminal(shown: Grid) -> None:
    header, *lines = lines_of(shown, None)
    assert len(fitted_widths(shown.columns, None)) == len(shown.columns)
    assert "…" not in header + "".join(lines)


@given(st.lists(texts(90, least=1), max_size=20).map("  ".join), WIDTHS)
def test_words_and_properties_go_on_below(text: str, width: int) -> None:
    for shown in (Paragraph(text), Properties({"name": text, text: 1})):
        lines = lines_of(shown, width)
        assert all(0 <= wcswidth(line) <= width for line in lines)
        assert all(visible(part) in joined(lines) for part in text.split())


NARROW = """\
id  text
 1  a long text of s…
not shown: amount,
  when
--format vertical,
  or \\x at the
  prompt, shows them
"""


def test_table_names_what_it_leaves_out() -> None:
    columns = [
        Column("id", ["1"], Content.FIGURE),
        Column("text", ["a long text of some words"]),
        Column("amount", ["12"], Content.FIGURE),
        Column("when", ["2026-01-31 12:00:00.000Z"], Content.TIME),
    ]
    assert lines_of(Grid(columns), 21) == NARROW.splitlines()


def test_one_value_has_all_the_room() -> None:
    assert lines_of(Grid([Column("plan", ["scan\n  of \x1b a table"])]), 12) == [
        "plan", "scan", "  of \\x1b a ", "table"
    ]  # fmt: skip
