"""Finds text in SVG pictures that exceeds its box or the picture, or overlaps other text.

    python scripts/svg_text.py docs/images/*.svg

Widths are those of DejaVu Sans, which is wider than the fonts that most systems use for
`system-ui`. So text that fits here fits for readers. Supports what the pictures of this project
use: rects, texts, nested `translate`s, and style sheets of plain classes.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

__all__ = ["overruns", "width_of"]

MARGIN = 2.0
"""The minimum distance of a text from the edge of its box."""

Style = Mapping[str, str]


@cache
def _face(is_mono: bool, is_bold: bool) -> Any:
    import matplotlib
    from PIL import ImageFont

    name = "DejaVuSans" + ("Mono" if is_mono else "") + ("-Bold" if is_bold else "")
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / f"{name}.ttf"), 100)


@cache
def width_of(text: str, size: float, *, is_mono: bool = False, is_bold: bool = False) -> float:
    """The width of a text."""
    return float(_face(is_mono, is_bold).getlength(text)) * size / 100


@dataclass(frozen=True)
class Area:
    """A box of the picture, or the area of a text."""

    left: float
    top: float
    right: float
    bottom: float
    text: str = ""
    anchor: tuple[float, float] = (0.0, 0.0)

    def holds(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.top <= y <= self.bottom

    def meets(self, other: Area) -> bool:
        return (
            self.left < other.right - 1
            and other.left < self.right - 1
            and self.top < other.bottom - 1
            and other.top < self.bottom - 1
        )

    @property
    def size(self) -> float:
        return (self.right - self.left) * (self.bottom - self.top)


def overruns(svg: str) -> list[str]:
    """The problems of a picture, one line for each text."""
    root = ET.fromstring(svg)
    rules = _rules(root)
    boxes, texts = [], []
    for element, x, y in _placed(root, 0.0, 0.0):
        name = element.tag.rpartition("}")[2]
        if name == "rect":
            boxes.append(_box(element, x, y))
        elif name == "text" and "".join(element.itertext()).strip():
            texts.append(_text_area(element, x, y, rules))
    return [*_too_wide(boxes, texts), *_on_each_other(texts)]


def _too_wide(boxes: list[Area], texts: list[Area]) -> Iterator[str]:
    for text in texts:
        around = [box for box in boxes if box.holds(*text.anchor)]
        if not around:
            yield f"{text.text!r} stands outside of the picture"
            continue
        box = min(around, key=lambda each: each.size)
        over = max(
            box.left - text.left, text.right - box.right, box.top - text.top,
            text.bottom - box.bottom,
        ) + MARGIN  # fmt: skip
        if over > 0:
            yield f"{text.text!r} runs {over:.0f} over its box"


def _on_each_other(texts: list[Area]) -> Iterator[str]:
    for one, other in combinations(texts, 2):
        if one.meets(other):
            yield f"{one.text!r} and {other.text!r} stand on each other"


def _placed(element: ET.Element, x: float, y: float) -> Iterator[tuple[ET.Element, float, float]]:
    """The elements with the offsets of their groups."""
    moved = re.match(r"translate\(([-\d.]+)[ ,]+([-\d.]+)\)", element.get("transform", ""))
    if moved:
        x, y = x + float(moved[1]), y + float(moved[2])
    yield element, x, y
    for child in element:
        if child.tag.rpartition("}")[2] != "defs":
            yield from _placed(child, x, y)


def _number(element: ET.Element, name: str) -> float:
    return float(element.get(name, "0"))


def _box(element: ET.Element, x: float, y: float) -> Area:
    left, top = x + _number(element, "x"), y + _number(element, "y")
    return Area(left, top, left + _number(element, "width"), top + _number(element, "height"))


def _text_area(element: ET.Element, x: float, y: float, rules: Mapping[str, Style]) -> Area:
    style = {**rules.get("text", {})}
    for name in (element.get("class") or "").split():
        style |= rules.get(f".{name}", {})
    style |= {key: value for key, value in element.attrib.items() if key in _ATTRIBUTES}
    text = " ".join("".join(element.itertext()).split())
    size = _size(style)
    face = {"is_mono": "mono" in _told(style, "font-family"), "is_bold": _is_bold(style)}
    width = width_of(text, size, **face)
    start = x + _number(element, "x")
    anchor = style.get("text-anchor", "start")
    left = start - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    base = y + _number(element, "y")
    anchor_point = start, base - 0.3 * size
    return Area(left, base - 0.76 * size, left + width, base + 0.22 * size, text, anchor_point)


_ATTRIBUTES = {"text-anchor", "font-size", "font-weight", "font-family"}


def _told(style: Style, name: str) -> str:
    return f"{style.get('font', '')} {style.get(name, '')}"


def _is_bold(style: Style) -> bool:
    return bool(re.search(r"\b([6-9]00|bold)\b", _told(style, "font-weight")))


def _size(style: Style) -> float:
    sizes = re.findall(r"([\d.]+)px", _told(style, "font-size")) or [style.get("font-size", "16")]
    return float(sizes[-1])


def _rules(root: ET.Element) -> dict[str, Style]:
    """The style sheet by selector. A later `font` replaces an earlier one."""
    rules: dict[str, dict[str, str]] = {}
    for sheet in root.iter():
        if sheet.tag.rpartition("}")[2] != "style" or not sheet.text:
            continue
        for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", sheet.text):
            told = dict(re.findall(r"([\w-]+)\s*:\s*([^;]+)", body))
            for selector in selectors.split(","):
                rules.setdefault(selector.strip(), {}).update(told)
    return {**rules}


def main(paths: list[str]) -> int:
    """Print the problems of some pictures. Returns the number of lines."""
    lines = [f"{path}: {line}" for path in paths for line in overruns(Path(path).read_text())]
    print(*lines, sep="\n", end="\n" if lines else "")
    return len(lines)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
