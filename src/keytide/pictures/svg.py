"""Elements of pictures, with every text and attribute escaped."""

from __future__ import annotations

from collections.abc import Iterable

from keytide.pictures.markup import Markup, element

__all__ = ["picture", "text", "told"]


def text(content: str, **attributes: object) -> Markup:
    """A text, which shows nothing that would steer how it is shown."""
    return element("text", content, **attributes)


def told(content: str) -> Markup:
    """What a pointer that rests on an element is told; steers nothing either."""
    return element("title", content)


def picture(
    width: float, height: float, title: str, children: Iterable[Markup], class_: str = "picture"
) -> Markup:
    """A drawing that scales with its room; `title` says to who cannot see it what it shows."""
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        class_=class_,
        role="img",
        aria_label=title,
    )
