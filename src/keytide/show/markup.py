"""Strings that are HTML or SVG already, and elements that escape all other strings.

>>> str(element("td", "a < b", class_="num"))
'<td class="num">a &lt; b</td>'
"""

from __future__ import annotations

from html import escape

from keytide.show.text import harmless

__all__ = ["Markup", "element", "joined"]


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
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(_shown(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{pairs}>{joined(*children)}</{name}>")


def joined(*parts: str) -> Markup:
    """The parts in their order; those that are not `Markup` are escaped."""
    return Markup("".join(p if isinstance(p, Markup) else _escaped(p) for p in parts))


def _escaped(text: str) -> str:
    return escape(harmless(text))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return str(value)
