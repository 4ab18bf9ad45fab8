"""Lists of buckets, each with a bar of its bytes by level."""

from __future__ import annotations

from collections.abc import Sequence

from keytide.base.plural import counted
from keytide.show.buckets import BucketLine, ReadBucket
from keytide.show.layout_picture import levels_bar
from keytide.show.markup import Markup, element, joined
from keytide.show.parts import named, paragraph, rows_table
from keytide.show.text import size_text

__all__ = ["buckets_table", "read_buckets_table"]

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
