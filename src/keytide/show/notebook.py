"""The notebook output of an object: HTML with its own style, without scripts and requests."""

from __future__ import annotations

from keytide.show.markup import Markup, element, joined
from keytide.show.style import SCOPE, notebook_style

__all__ = ["notebook"]


def notebook(*parts: str) -> str:
    """The parts below each other. Parts that are not `Markup` are escaped.

    The style does not affect the rest of the notebook. It follows the notebook's theme.
    """
    style = Markup(f"<style>{notebook_style()}</style>")
    return str(element("div", style, joined(*parts), class_=SCOPE))
