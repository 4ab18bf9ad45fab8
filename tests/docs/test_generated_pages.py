"""What is written by programs is what they write today, and no text of a picture leaves its box."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

import concept_pictures  # noqa: E402
import svg_text  # noqa: E402

PICTURES = sorted(ROOT.glob("docs/**/*.svg"))


@pytest.mark.parametrize("name", [*concept_pictures.PICTURES])
def test_picture_is_current(name: str) -> None:
    drawn = concept_pictures.PICTURES[name]().svg()
    assert (ROOT / "docs/images" / name).read_text() == drawn, "python scripts/concept_pictures.py"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_texts_of_picture_stay_in_their_boxes(picture: Path) -> None:
    assert svg_text.overruns(picture.read_text()) == []


def test_text_that_is_too_wide_is_told() -> None:
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg"><style>text{font:13px sans-serif}</style>'
        '<rect width="400" height="100"/><g transform="translate(10 10)"><rect width="60" '
        'height="30"/><text x="5" y="20">much wider than sixty</text></g>'
        '<text x="300" y="80">fits</text></svg>'
    )
    [told] = svg_text.overruns(svg)
    assert "'much wider than sixty' runs" in told


def test_texts_on_each_other_are_told() -> None:
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg"><rect width="400" height="100"/>'
        '<text x="10" y="50" font-size="13">one</text>'
        '<text x="15" y="52" font-size="13">two</text></svg>'
    )
    assert svg_text.overruns(svg) == ["'one' and 'two' stand on each other"]
