"""SVG elements, with all text and attributes escaped."""

from __future__ import annotations

from collections.abc import Iterable

from keytide.show.markup import Markup, element

__all__ = ["NARROW", "WIDE", "picture", "text", "told"]

WIDE, NARROW = 960.0, 700.0
"""The widths of a page and of a notebook cell. Text in a picture of this width is 12 px high."""


def text(content: str, **attributes: object) -> Markup:
    """A text element. Characters that would affect its display are escaped."""
    return element("text", content, **attributes)


def told(content: str) -> Markup:
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
