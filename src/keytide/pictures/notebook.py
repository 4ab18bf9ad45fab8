"""What a notebook shows of an object: HTML with its own style, no script and no request."""

from __future__ import annotations

from keytide.pictures.markup import Markup, element, joined
from keytide.pictures.style import SCOPE, notebook_style

__all__ = ["notebook"]


def notebook(*parts: str) -> str:
    """The parts below each other; those that are not `Markup` are escaped.

    The style applies to nothing else in the notebook. It follows the notebook's theme.
    """
    style = Markup(f"<style>{notebook_style()}</style>")
    return str(element("div", style, joined(*parts), class_=SCOPE))
