"""Pictures of buckets: the runs of one bucket over its keys, and the levels of many as bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from unicodedata import east_asian_width

from keytide.base.plural import counted
from keytide.show.buckets import Bucket, Part, Run
from keytide.show.markup import Markup, element
from keytide.show.svg import WIDE, picture, text, told
from keytide.show.text import shortened, size_text

__all__ = ["bucket_picture", "levels_bar"]

_LEFT, _RIGHT = 188.0, 96.0
_ROW, _BAR, _TOP, _BOTTOM = 30.0, 18.0, 30.0, 34.0
_PART_MIN = 3.0
_LEVELS_COLOURED = 6
_NAME_MAX = 60
_KEY_MAX = 32


def bucket_picture(bucket: Bucket, width: float = WIDE) -> Markup:
    """The runs of a bucket, the latest at the top: each file from its first key to its last."""
    height = _TOP + _ROW * len(bucket.runs) + _BOTTOM
    return picture(
        width,
        height,
        f"{counted(len(bucket.runs), 'sorted run')} of {shortened(bucket.line.name, _NAME_MAX)}",
        _rows(bucket, height, width - _LEFT - _RIGHT),
        "picture bucket-picture",
        "Each file from its first key to its last; the table below says the same.",
    )


def levels_bar(levels: Sequence[tuple[int, int]], largest: int) -> Markup:
    """The bytes of each level of a bucket. A bar of `largest` bytes has the full width."""
    width, left = 240.0, 0.0
    parts = []
    for level, size in levels:
        length = max(2.0, size / max(1, largest) * width)
        hint = told(f"level {level}: {size_text(size)}")
        bar = element("rect", hint, x=left, y=2.0, width=length, height=12.0, class_=_level(level))
        parts.append(bar)
        left += length
    title = ", ".join(f"level {level}: {size_text(size)}" for level, size in levels)
    return picture(width + 8, 16.0, title, parts, "picture levels-bar")


def _rows(bucket: Bucket, height: float, width: float) -> Iterator[Markup]:
    bottom = height - _BOTTOM
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _LEFT + share * width
        yield element("line", x1=x, y1=_TOP - 6, x2=x, y2=bottom, class_="grid")
    yield text("run", x=8.0, y=16.0, class_="label")
    yield text("rows", x=_LEFT - 10, y=16.0, class_="label end")
    yield text("size", x=_LEFT + width + _RIGHT - 8, y=16.0, class_="label end")
    for place, run in enumerate(bucket.runs):
        yield from _run(run, _TOP + _ROW * place, width)
    if bucket.first_key is not None and bucket.last_key is not None:
        first, last = (_fitting(key, width / 2) for key in (bucket.first_key, bucket.last_key))
        yield text(first, x=_LEFT, y=bottom + 20, class_="label")
        yield text(last, x=_LEFT + width, y=bottom + 20, class_="label end")
        yield text("keys in their order", x=_LEFT + width / 2, y=16.0, class_="label middle")


def _run(run: Run, top: float, width: float) -> Iterator[Markup]:
    middle = top + _ROW / 2 + 4
    if run.pick is not None:
        yield element(
            "rect", x=1.0, y=top + 1, width=_LEFT + width + _RIGHT - 2, height=_ROW - 2, rx=5,
            class_=f"pick pick-{run.pick % 2}",
        )  # fmt: skip
    yield text(f"level {run.level}", x=8.0, y=middle, class_="label strong")
    yield text(f"{run.rows:,}", x=_LEFT - 10, y=middle, class_="label end")
    yield text(size_text(run.size), x=_LEFT + width + _RIGHT - 8, y=middle, class_="label end")
    y = top + (_ROW - _BAR) / 2
    for part in run.parts:
        yield _part(part, run.level, y, width)


def _part(part: Part, level: int, y: float, width: float) -> Markup:
    left = _LEFT + part.start * width
    length = max(_PART_MIN, (part.end - part.start) * width)
    left = min(left, _LEFT + width - length)
    marks = [
        told(_told(part)),
        element("rect", x=left, y=y, width=length, height=_BAR, rx=3, class_=_level(level)),
    ]
    if part.rows and part.dead:
        share = max(1.5, length * part.dead / part.rows)
        marks.append(
            element("rect", x=left, y=y + _BAR - 5, width=share, height=5.0, class_="dead")
        )
    return element("g", *marks)


def _told(part: Part) -> str:
    first, last = ("", "") if part.keys is None else (shortened(k, _KEY_MAX) for k in part.keys)
    keys = "" if part.keys is None else f", keys {first} to {last}"
    dead = f", {part.dead:,} dead" if part.dead else ""
    deletes = f", {part.deletes:,} deletes" if part.deletes else ""
    return f"{part.name}: {part.rows:,} rows{dead}{deletes}, {size_text(part.size)}{keys}"


def _level(level: int) -> str:
    return f"level level-{min(level, _LEVELS_COLOURED - 1)}"


def _fitting(key: str, room: float) -> str:
    """As much of a key as fits, if characters are 8 wide, and full-width characters 14."""
    widths = (14.0 if east_asian_width(each) in "WF" else 8.0 for each in key)
    fits = sum(1 for end in accumulate(widths) if end <= room)
    return shortened(key, max(1, fits))
