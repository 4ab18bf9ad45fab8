"""Buckets as pictures and lists, with legends for the colors.

A picture shows the runs of one bucket over its keys, or the levels of many buckets as bars. A list
has a bar of bytes by level for each bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from unicodedata import east_asian_width

from keytide.base.dataclass import dataclass
from keytide.base.text import counted
from keytide.show.elements import (
    WIDE,
    Markup,
    element,
    joined,
    named,
    paragraph,
    picture,
    rows_table,
    shortened,
    size_text,
    text,
    tooltip,
)

# -- values: files, sorted runs and levels ---------------------------------------------------------


@dataclass(frozen=True)
class BucketLine:
    """A bucket in the list: its bytes by level, and whether a compaction is due."""

    number: int
    """Its rank among the buckets of the table, the largest first."""
    name: str
    files: int
    rows: int
    size: int
    levels: tuple[tuple[int, int], ...]
    is_due: bool


@dataclass(frozen=True)
class Part:
    """A file of a run, or several adjacent files.

    `start` and `end` are the positions of its first and last key in the bucket's key range, from 0
    to 1.
    """

    name: str
    rows: int
    dead: int
    deletes: int
    size: int
    start: float
    end: float
    keys: tuple[str, str] | None


@dataclass(frozen=True)
class Run:
    """Files without a key in common. The latest run is the first one of a bucket."""

    level: int
    size: int
    rows: int
    dead: int
    files: int
    parts: tuple[Part, ...]
    pick: int | None
    """The number of the next compaction that includes it, None if none does."""


@dataclass(frozen=True)
class Bucket:
    """One bucket in detail. `picks` are the target levels of the next compactions."""

    line: BucketLine
    runs: tuple[Run, ...]
    runs_left_out: int
    picks: tuple[int, ...]
    first_key: str | None
    last_key: str | None


@dataclass(frozen=True)
class ReadBucket:
    """The files of a bucket that a scan reads, and how many of them it merges."""

    name: str
    files: int
    files_merged: int
    rows: int
    size: int
    levels: tuple[tuple[int, int], ...]


# -- pictures --------------------------------------------------------------------------------------


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
        hint = tooltip(f"level {level}: {size_text(size)}")
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
        length = max(_PART_MIN, (part.end - part.start) * width)
        left = min(_LEFT + part.start * width, _LEFT + width - length)
        hint = f"{part.name}: {part.rows:,} rows"
        hint += f", {part.dead:,} dead" if part.dead else ""
        hint += f", {part.deletes:,} deletes" if part.deletes else ""
        hint += f", {size_text(part.size)}"
        if part.keys is not None:
            first, last = (shortened(key, _KEY_MAX) for key in part.keys)
            hint += f", keys {first} to {last}"
        marks = [
            tooltip(hint),
            element("rect", x=left, y=y, width=length, height=_BAR, rx=3, class_=_level(run.level)),
        ]
        if part.rows and part.dead:
            share = max(1.5, length * part.dead / part.rows)
            dead = element("rect", x=left, y=y + _BAR - 5, width=share, height=5.0, class_="dead")
            marks.append(dead)
        yield element("g", *marks)


def _level(level: int) -> str:
    return f"level level-{min(level, _LEVELS_COLOURED - 1)}"


def _fitting(key: str, room: float) -> str:
    """As much of a key as fits, if characters are 8 wide, and full-width characters 14."""
    widths = (14.0 if east_asian_width(each) in "WF" else 8.0 for each in key)
    fits = sum(1 for end in accumulate(widths) if end <= room)
    return shortened(key, max(1, fits))


# -- lists -----------------------------------------------------------------------------------------


_HEAD = ("Bucket", "Levels", "Size", "Files", "Rows")


def buckets_table(lines: Sequence[BucketLine], count: int) -> Markup:
    """The largest of `count` buckets, and whether a compaction of each is due."""
    largest = max((line.size for line in lines), default=0)
    due = element("span", "compaction", class_="chip warn")
    rows = ((*_cells(line, largest), due if line.is_due else "") for line in lines)
    table = rows_table("Buckets", (*_HEAD, "Due"), rows, _HEAD[2:])
    return joined(table, _left_out(count - len(lines)))


def read_buckets_table(lines: Sequence[ReadBucket], count: int) -> Markup:
    """The buckets from which a scan reads most, and how many of their files are merged."""
    largest = max((line.size for line in lines), default=0)
    rows = ((*_cells(line, largest), f"{line.files_merged:,}") for line in lines)
    table = rows_table("Buckets that are read", (*_HEAD, "Merged"), rows, (*_HEAD[2:], "Merged"))
    return joined(table, _left_out(count - len(lines)))


def _cells(line: BucketLine | ReadBucket, largest: int) -> tuple[str, ...]:
    words = ", ".join(f"level {level}: {size_text(size)}" for level, size in line.levels)
    bar = joined(levels_bar(line.levels, largest), element("span", words, class_="sub"))
    return named(line.name), bar, size_text(line.size), f"{line.files:,}", f"{line.rows:,}"


def _left_out(count: int) -> Markup:
    if count <= 0:
        return Markup()
    return paragraph(f"{counted(count, 'smaller bucket')} not shown", class_="muted")


# -- legends ---------------------------------------------------------------------------------------


TIMELINE = (
    ("write", "write"), ("overwrite", "overwrite, restore"), ("compaction", "compaction"),
    ("deleted", "deleted rows"), ("tag", "tag"), ("branch", "branch"),
)  # fmt: skip
"""The columns of a timeline."""
LEVELS = (
    *((f"level-{level}", f"level {level}") for level in range(5)),
    ("level-5", "level 5 and above"), ("dead", "dead rows"), ("pick", "compacted next"),
)  # fmt: skip
"""The bars of a bucket."""


def legend(entries: tuple[tuple[str, str], ...]) -> Markup:
    """The legend of a picture: what its colors mean."""
    items = (
        element("span", element("span", class_=f"key {key}"), words, class_="item")
        for key, words in entries
    )
    return element("p", joined(*items), class_="legend")
