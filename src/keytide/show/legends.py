"""Legends for the colors of pictures."""

from __future__ import annotations

from keytide.show.markup import Markup, element, joined

__all__ = ["levels_legend", "timeline_legend"]

_OF_TIMELINE = (
    ("write", "write"), ("overwrite", "overwrite, restore"), ("compaction", "compaction"),
    ("deleted", "deleted rows"), ("tag", "tag"), ("branch", "branch"),
)  # fmt: skip
_OF_LEVELS = (
    *((f"level-{level}", f"level {level}") for level in range(5)),
    ("level-5", "level 5 and above"), ("dead", "dead rows"), ("pick", "compacted next"),
)  # fmt: skip


def timeline_legend() -> Markup:
    """The legend of the columns of a timeline."""
    return _legend(_OF_TIMELINE)


def levels_legend() -> Markup:
    """The legend of the bars of a bucket."""
    return _legend(_OF_LEVELS)


def _legend(entries: tuple[tuple[str, str], ...]) -> Markup:
    items = (
        element("span", element("span", class_=f"key {key}"), words, class_="item")
        for key, words in entries
    )
    return element("p", joined(*items), class_="legend")
