"""Elements of pictures, with every text and attribute escaped."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

from keytide.ui.text import harmless

__all__ = ["element", "picture", "text", "told"]


def element(name: str, *children: Markup, **attributes: object) -> Markup:
    """An element; an underscore in an attribute's name stands for a hyphen, one behind it for none.

    Numbers are rounded to tenths, which no screen shows; what is None is left out.
    """
    pairs = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _shown(value))
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{}{}>{}</{}>").format(
        Markup(name), pairs, Markup("").join(children), Markup(name)
    )


def text(content: str, **attributes: object) -> Markup:
    """A text, which shows nothing that would steer how it is shown."""
    return element("text", escape(harmless(content)), **attributes)


def told(content: str) -> Markup:
    """What a pointer that rests on an element is told; steers nothing either."""
    return element("title", escape(harmless(content)))


def picture(
    width: float, height: float, title: str, children: Iterable[Markup], class_: str = "picture"
) -> Markup:
    """A drawing that scales with its room; `title` says to who cannot see it what it shows."""
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {_shown(width)} {_shown(height)}",
        class_=class_,
        role="img",
        aria_label=harmless(title),
    )


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return str(value)
