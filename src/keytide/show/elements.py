r"""HTML and SVG elements, readable values and styles, for pages and notebooks.

Markup is a string that is HTML or SVG already. Elements escape all other strings:

>>> str(element("td", "a < b", class_="num"))
'<td class="num">a &lt; b</td>'

Numbers, times and names are shown in readable form:

>>> size_text(1_234_567)
'1.2 MB'
>>> harmless("a" + chr(0x202E) + "b")
'a\\u202eb'

Notebook output is HTML with its own style, without scripts and requests.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import cache
from html import escape
from pathlib import Path
from typing import Protocol

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass
from keytide.base.text import cell_text, check_spelled, counted, frame_of

# -- numbers, times and names in readable form -----------------------------------------------------


# Control characters, and characters that reverse the text direction, must be visible, so that a
# string cannot look like another name.
_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def harmless(text: str) -> str:
    """The text with an escape for each character that affects how the rest is displayed."""
    return _STEERING.sub(lambda found: repr(found[0])[1:-1], text)


def shortened(text: str, most: int) -> str:
    """The text or, if it has more than `most` characters, its beginning and an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def size_text(size: float) -> str:
    """A size in the largest unit with a value of at least 1, with at most three digits."""
    unit = 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit and size < 99.5 else f"{size:.0f} {_UNITS[unit]}"


def ago_text(time: datetime, now: datetime) -> str:
    """The time since a moment, in its largest unit."""
    seconds = int((now - time).total_seconds())
    if seconds < 0:
        return "in the future"
    for span, unit in _SPANS:
        if seconds >= span:
            return f"{seconds // span:,} {unit} ago"
    return f"{seconds} s ago"


# -- Arrow rows as strings for cells ---------------------------------------------------------------


Cell = str | None
"""A string as it is shown, truncated if it is long. None for NULL."""

_TEXT_MAX = 400


@dataclass(frozen=True)
class Column:
    """A column of rows that are shown."""

    name: str
    type: str
    is_number: bool


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """The columns of some rows."""
    return tuple(Column(f.name, str(f.type), is_number(f.type)) for f in schema)


def rows_of(rows: pa.Table) -> list[tuple[Cell, ...]]:
    """The rows as strings. Raises `UnsupportedError` for a type without a text format."""
    check_spelled(rows.schema)
    if not rows.num_columns:
        return []
    texts = []
    for i, field in enumerate(rows.schema):
        text = cell_text(pl.nth(i), field.type)
        short = pl.when(text.str.len_chars() > _TEXT_MAX).then(text.str.slice(0, _TEXT_MAX) + "…")
        texts.append(short.otherwise(text).alias(str(i)))
    return frame_of(rows).select(texts).rows()


def is_number(type_: pa.DataType) -> bool:
    """Whether values of a type are numbers."""
    return bool(
        pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    )


# -- markup ----------------------------------------------------------------------------------------


class Markup(str):
    """A string that is HTML or SVG already. It is never escaped again, not even by Jinja."""

    __slots__ = ()

    def __html__(self) -> Markup:
        """See `Markup`; Jinja calls it."""
        return self


def element(name: str, *children: str, **attributes: object) -> Markup:
    """An element. In an attribute's name `_` becomes `-`, and a trailing `_` is removed.

    Children that are not `Markup` are escaped, and so are attribute values; control characters in
    them are shown as escapes. Floats are rounded to one decimal. Attributes that are None are
    left out.
    """
    pairs = ""
    for key, value in attributes.items():
        if value is None:
            continue
        shown = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
        pairs += f' {key.rstrip("_").replace("_", "-")}="{escape(harmless(shown))}"'
    return Markup(f"<{name}{pairs}>{joined(*children)}</{name}>")


def joined(*parts: str) -> Markup:
    """The parts in their order; those that are not `Markup` are escaped."""
    return Markup("".join(p if isinstance(p, Markup) else escape(harmless(p)) for p in parts))


# -- SVG -------------------------------------------------------------------------------------------


WIDE, NARROW = 960.0, 700.0
"""The widths of a page and of a notebook cell. Text in a picture of this width is 12 px high."""


def text(content: str, **attributes: object) -> Markup:
    """A text element. Characters that would affect its display are escaped."""
    return element("text", content, **attributes)


def tooltip(content: str) -> Markup:
    """A tooltip. Characters that would affect its display are escaped."""
    return element("title", content)


def picture(
    width: float,
    height: float,
    title: str,
    children: Iterable[Markup],
    class_: str = "picture",
    description: str | None = None,
) -> Markup:
    """A drawing that scales with the available width.

    `title` names its content, and `description` says more, for readers who cannot see it.
    """
    about = element("title", title)
    more = Markup() if description is None else element("desc", description)
    return element(
        "svg", about, more, *children,
        viewBox=f"0 0 {width:g} {height:g}", class_=class_, role="img",
    )  # fmt: skip


# -- styles ----------------------------------------------------------------------------------------


SCOPE = "keytide"
"""The class of notebook output. Every rule of its style begins with it."""

# Color names, with a value for the light and for the dark theme.
_COLOURS = {
    "ground": ("#f3f6f8", "#0e161c"),
    "card": ("#ffffff", "#162129"),
    "line": ("#d5dee4", "#2a3a45"),
    "strong-line": ("#7b8b96", "#7e919e"),
    "ink": ("#14232d", "#e6eef3"),
    "soft": ("#4b5c68", "#a7b7c2"),
    "accent": ("#0b5f7d", "#6cc9e4"),
    "accent-ink": ("#ffffff", "#06222d"),
    "accent-soft": ("#e0f0f5", "#163744"),
    "good": ("#1c6b3a", "#7fd6a0"),
    "good-soft": ("#e0f3e6", "#143424"),
    "warn": ("#7f4a00", "#f2c077"),
    "warn-soft": ("#fdf0d9", "#3a2a10"),
    "bad": ("#a32218", "#ff9d92"),
    "bad-soft": ("#fce6e3", "#42201d"),
    "write": ("#1582a8", "#47b4d6"),
    "compaction": ("#8a6bbf", "#a98bdc"),
    "overwrite": ("#c07a12", "#dc9a3a"),
    "deleted": ("#d0584b", "#e5786c"),
    "flag": ("#b8860b", "#e2b84a"),
    "level-0": ("#59b7d3", "#2b5c6e"),
    "level-1": ("#2f93b5", "#34788f"),
    "level-2": ("#217896", "#3d94b0"),
    "level-3": ("#185f79", "#52b0cd"),
    "level-4": ("#12495f", "#7ccae2"),
    "level-5": ("#0b3446", "#b0e3f2"),
}
# The names of the theme colors in JupyterLab and VS Code.
_OF_THEME = {
    "card": "--jp-layout-color1",
    "ink": "--jp-content-font-color1",
    "soft": "--jp-content-font-color2",
    "line": "--jp-border-color2",
}
_LIGHT_HOSTS = ('[data-jp-theme-light="true"]', "body.vscode-light", 'html[theme="light"]')
_DARK_HOSTS = ('[data-jp-theme-light="false"]', "body.vscode-dark", 'html[theme="dark"]')


# Notebooks style what cells show, such as `.jp-RenderedHTMLCommon dl dt`. The class is repeated so
# that our rules win over these, and the first rule restores the defaults of browsers.
_WITHIN = f".{SCOPE}.{SCOPE}"
_RESET = f"{_WITHIN} :where(:not(svg):not(svg *)){{all:revert}}"


@cache
def page_style() -> str:
    """The style of a whole page, which follows the reader's light or dark preference."""
    light, dark = (_variables(at) for at in (0, 1))
    dark_rule = f"@media (prefers-color-scheme: dark) {{:root{{{dark}}}}}"
    return f":root{{{light}}}\n{dark_rule}\n{_rules('style.css')}"


@cache
def notebook_style() -> str:
    """The style for elements of the class `SCOPE`. It does not affect other elements.

    It uses the light or dark theme of the notebook if the notebook declares it, otherwise the
    reader's preference.
    """
    light, dark = (_variables(at, is_themed=True) for at in (0, 1))
    hosts = (
        f"{','.join(f'{host} .{SCOPE}' for host in hosts)}{{{colours}}}"
        for hosts, colours in ((_LIGHT_HOSTS, light), (_DARK_HOSTS, dark))
    )
    dark_rule = f"@media (prefers-color-scheme:dark){{.{SCOPE}{{{dark}}}}}"
    frame = f".{SCOPE}{{{light}}}{dark_rule}{''.join(hosts)}"
    rules = re.sub(r"\s+", " ", _scoped(_rules("style.css") + _rules("notebook.css")))
    return frame + _RESET + re.sub(r"\s*([{};,])\s*", r"\1", rules).replace(": ", ":")


def _variables(at: int, *, is_themed: bool = False) -> str:
    colours = {name: pair[at] for name, pair in _COLOURS.items()}
    if is_themed:
        colours |= {name: f"var({theirs},{colours[name]})" for name, theirs in _OF_THEME.items()}
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


@cache
def _rules(file: str) -> str:
    return (Path(__file__).parent / file).read_text(encoding="utf-8")


def _scoped(rules: str) -> str:
    """The rules restricted to the scope. `&` is the scope itself."""

    def scoped(rule: re.Match[str]) -> str:
        selectors = (each.strip() for each in rule[1].split(","))
        within = (_WITHIN if each == "&" else f"{_WITHIN} {each}" for each in selectors)
        return f"{','.join(within)}{{{rule[2]}}}"

    return re.sub(r"([^{}]+)\{([^{}]*)\}", scoped, re.sub(r"/\*.*?\*/", "", rules, flags=re.DOTALL))


# -- names, cells, tables and collapsible text -----------------------------------------------------


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


def details(summary: str, content: Markup, *, is_open: bool = False) -> Markup:
    """Content that the reader can open and close."""
    return element("details", element("summary", summary), content, open="" if is_open else None)


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
    lines = []
    for first, *rest in rows:
        name = element("th", first, scope="row", class_=kinds[0])
        others = zip(rest, kinds[1:], strict=True)
        lines.append(element("tr", name, *(element("td", c, class_=kind) for c, kind in others)))
    table = element("table", top, element("tbody", *lines), class_=class_)
    return element("div", table, class_="scroll", role="region", aria_label=label, tabindex=0)


# -- notebook output -------------------------------------------------------------------------------


def notebook(*parts: str) -> str:
    """The parts below each other. Parts that are not `Markup` are escaped.

    The style does not affect the rest of the notebook. It follows the notebook's theme.
    """
    style = Markup(f"<style>{notebook_style()}</style>")
    return str(element("div", style, joined(*parts), class_=SCOPE))


# -- columns ---------------------------------------------------------------------------------------


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


# -- health ----------------------------------------------------------------------------------------


_TABLES_TEXT_MAX = 1_000
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
    parts = [paragraph(_chip(is_due=bool(due)), " ", verdict)]
    if due:
        parts.append(_table("What to do", due))
    if fine:
        passed = f"{counted(len(fine), 'check')} passed"
        parts.append(details(passed, _table("What is fine", fine), is_open=True))
    return joined(*parts)


def _table(label: str, signs: Sequence[Sign]) -> Markup:
    rows = []
    for sign in signs:
        action = element("span", "nothing", class_="muted")
        if sign.action is not None:
            action = element("strong", shortened(sign.action, _TABLES_TEXT_MAX))
        texts = (shortened(each, _TABLES_TEXT_MAX) for each in (sign.found, sign.expected))
        rows.append((sign.subject, _chip(is_due=sign.action is not None), *texts, action))
    return rows_table(label, _HEAD, rows, class_="rows signs")


def _chip(*, is_due: bool) -> Markup:
    word, class_ = ("act", "chip warn") if is_due else ("ok", "chip good")
    return element("span", word, class_=class_)
