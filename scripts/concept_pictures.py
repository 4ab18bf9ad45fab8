"""Draws the pictures of docs/concepts: docs/images/concept-*.svg.

    python scripts/concept_pictures.py

Boxes are as wide as their text. The background is light, so a picture is readable on light and dark
pages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).parent))
from svg_text import width_of

__all__ = ["PICTURES", "Picture"]

FOLDER = Path(__file__).parents[1] / "docs" / "images"
SIZE, HEAD, LINE, PAD = 13, 14, 19, 10

_STYLE = """\
text{font:13px system-ui,"Segoe UI","DejaVu Sans",sans-serif;fill:#1d2b36}
.head{font-weight:600;font-size:14px}
.mono{font:13px ui-monospace,"DejaVu Sans Mono",monospace}
.note{fill:#51636f}
rect{stroke-width:1.2}
.ground{fill:#fcfdfd;stroke:none}
.outside{fill:#dcecf8;stroke:#4a86b3}
.step{fill:#e4f1e3;stroke:#5c9458}
.stored{fill:#f2eee4;stroke:#a08f62}
.commit{fill:#fbe6d4;stroke:#c27a3a}
.dead{fill:#ecebeb;stroke:#9aa3a9;stroke-dasharray:4 3}
.cell{fill:#fff;stroke:#c9d2d8}
.title{fill:#eef2f4;stroke:#c9d2d8}
.arrow{stroke:#7b8b96;stroke-width:1.6;fill:none}
"""
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0 8 4 0 8z" fill="#7b8b96"/></marker></defs>'
)


class Picture:
    """A picture to which parts are added."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = []
        self._right, self._bottom = 0.0, 0.0

    def box(
        self, x: float, y: float, kind: str, head: str, *lines: str, width: float = 0
    ) -> tuple[float, float]:
        """A box with a heading and lines below it. Returns its right and bottom edge."""
        heads = [width_of(head, HEAD, is_bold=True)] if head else []
        width = max(width, *heads, *(width_of(line, SIZE) for line in lines)) + 2 * PAD
        count = len(lines) + bool(head)
        height = count * LINE + 2 * PAD - 4
        self._rect(x, y, width, height, kind)
        below = y + PAD + SIZE
        for number, line in enumerate([*([head] if head else []), *lines]):
            class_ = "head" if head and not number else ""
            self._text(x + width / 2, below + number * LINE, line, class_, "middle")
        return x + width, y + height

    def table(
        self,
        x: float,
        y: float,
        names: Sequence[str],
        rows: Sequence[Sequence[str]],
        kinds: Sequence[str] | Sequence[Sequence[str]] = (),
    ) -> tuple[float, float]:
        """Rows below their column names. `kinds` says how each row, or cell, looks."""
        widths = [
            max(width_of(row[place], SIZE, is_mono=True) for row in [names, *rows]) + 2 * PAD
            for place in range(len(names))
        ]
        for number, row in enumerate([names, *rows]):
            left = x
            for place, cell in enumerate(row):
                kind = "title" if not number else _kind_of(kinds, number - 1, place)
                self._rect(left, y + number * 25, widths[place], 25, kind)
                self._text(left + PAD, y + number * 25 + 17, cell, "mono")
                left += widths[place]
        return x + sum(widths), y + (len(rows) + 1) * 25

    def note(self, x: float, y: float, text: str, anchor: str = "start") -> float:
        """A line of text on the background. Returns its right edge."""
        self._text(x, y, text, "note", anchor)
        return x + width_of(text, SIZE)

    def head(self, x: float, y: float, text: str) -> None:
        """A heading on the background."""
        self._text(x, y, text, "head")

    def arrow(self, *points: tuple[float, float]) -> None:
        """A line with an arrowhead at its end."""
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path class="arrow" d="M{path}" marker-end="url(#tip)"/>')
        for x, y in points:
            self._reach(x, y)

    def svg(self) -> str:
        """The picture."""
        width, height = self._right + 20, self._bottom + 20
        size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">\n'
            f'<title id="title">{escape(self._title)}</title>\n<style>\n{_STYLE}</style>\n{_TIP}\n'
            f'<rect class="ground" width="{width:.0f}" height="{height:.0f}" rx="10"/>\n'
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )

    def _rect(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        round_ = "" if kind in ("cell", "title") or "row" in kind else ' rx="6"'
        self._parts.append(
            f'<rect class="{kind.removesuffix("row")}" x="{x:g}" y="{y:g}" width="{width:.1f}" '
            f'height="{height:g}"{round_}/>'
        )
        self._reach(x + width, y + height)

    def _text(self, x: float, y: float, text: str, class_: str, anchor: str = "start") -> None:
        told = f' class="{class_}"' if class_ else ""
        placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._parts.append(f'<text{told} x="{x:.1f}" y="{y:g}"{placed}>{escape(text)}</text>')
        if anchor == "start":
            self._reach(x + width_of(text, SIZE + 1, is_bold=class_ == "head"), y)

    def _reach(self, x: float, y: float) -> None:
        self._right, self._bottom = max(self._right, x), max(self._bottom, y)


def _kind_of(kinds: Sequence[str] | Sequence[Sequence[str]], row: int, place: int) -> str:
    if row >= len(kinds):
        return "cell"
    told = kinds[row]
    return told if isinstance(told, str) else told[place]


def sequence_fields() -> Picture:
    """Two orders of arrival, one row."""
    picture = Picture("Two orders of arrival of the same three versions end in the same row")
    names = ("id", "status", "version")
    new, paid, sent = ("1", "new", "1"), ("1", "paid", "2"), ("1", "sent", "3")
    picture.head(20, 32, "rows arrive in this order")
    right, _ = picture.table(20, 46, names, [new, paid, sent], ["cell", "cell", "steprow"])
    picture.head(20, 192, "or in this one")
    picture.table(20, 206, names, [sent, new, paid], ["steprow", "cell", "cell"])
    x, _ = picture.box(right + 90, 128, "outside", "merge", "sequence.field = version",
                       "the largest version wins")  # fmt: skip
    picture.arrow((right, 100), (right + 86, 150))
    picture.arrow((right, 250), (right + 86, 180))
    picture.arrow((x, 164), (x + 60, 164))
    picture.head(x + 66, 128, "what every reader sees")
    picture.table(x + 66, 140, names, [sent], ["steprow"])
    return picture


def sequence_groups() -> Picture:
    """Two producers fill one row."""
    picture = Picture("Two producers fill one row, each in its own order")
    shop, mail = ["cell", *["steprow"] * 2], ["cell", *["commitrow"] * 2]
    picture.head(20, 32, "shop: 'fields.v_name.sequence-group' = 'name'")
    names = [("1", "Ada", "5"), ("1", "Eva", "4")]
    right, _ = picture.table(20, 46, ("id", "name", "v_name"), names,
                             [shop, ["deadrow"] * 3])  # fmt: skip
    picture.note(20, 142, "late: v_name 4 is older than 5")
    picture.head(20, 192, "mail: 'fields.v_plan.sequence-group' = 'plan'")
    plans = [("1", "basic", "1"), ("1", "full", "2")]
    below, _ = picture.table(20, 206, ("id", "plan", "v_plan"), plans,
                  [["deadrow"] * 3, mail])  # fmt: skip
    x = 480.0
    picture.arrow((right + 6, 84), (x - 6, 164))
    picture.arrow((below + 6, 268), (x - 6, 176))
    picture.head(x, 134, "one row; each group in its own order")
    row = ("1", "Ada", "5", "full", "2")
    picture.table(x, 146, ("id", "name", "v_name", "plan", "v_plan"), [row],
                  [["cell", "steprow", "steprow", "commitrow", "commitrow"]])  # fmt: skip
    return picture


def tombstones() -> Picture:
    """A delete keeps its place in the order."""
    picture = Picture("A delete keeps its place in the order of versions, also after a compaction")
    names = ("arrives", "kind", "id", "version", "row that readers see")
    rows = [
        ("1st", "+I", "1", "5", "version 5"),
        ("2nd", "-D", "1", "7", "none"),
        ("compaction", "", "", "", "none; the delete is kept"),
        ("3rd", "+I", "1", "6", "none: older than the delete"),
        ("4th", "+I", "1", "8", "version 8"),
    ]
    kinds = ["steprow", "commitrow", "storedrow", "deadrow", "steprow"]
    _, bottom = picture.table(20, 20, names, rows, kinds)
    picture.note(20, bottom + 26, "Without the kept delete, version 6 would bring the row back.")
    picture.note(
        20, bottom + 46, "tombstone.retention sets how long it is kept. The default is forever."
    )
    return picture


def changelogs() -> Picture:
    """What each producer stores for the same writes."""
    picture = Picture("What each changelog producer stores for the same two writes")
    picture.head(20, 32, "written")
    _, bottom = picture.table(
        20, 46, ("commit", "row"), [("1", "+I (1, new)"), ("2", "+I (1, paid)")]
    )
    picture.note(20, bottom + 24, "then a full compaction")
    x = 330.0
    picture.arrow((216, 92), (x - 8, 92))
    picture.head(x, 32, "stored as changelog")
    picture.table(
        x, 46, ("changelog-producer", "commit 1", "commit 2", "full compaction"),
        [
            ("none", "", "", ""),
            ("input", "+I (1, new)", "+I (1, paid)", ""),
            ("lookup", "+I (1, new)", "-U (1, new) +U (1, paid)", ""),
            ("full-compaction", "", "", "+I (1, paid)"),
        ],
        [["titlerow", *["deadrow"] * 3], ["titlerow", "steprow", "steprow", "deadrow"],
         ["titlerow", "steprow", "steprow", "deadrow"],
         ["titlerow", "deadrow", "deadrow", "steprow"]],
    )  # fmt: skip
    picture.note(
        x, 206, "none stores no changelog: Table.changes compares snapshots when you call it."
    )
    return picture


def deletion_vectors() -> Picture:
    """Replaced rows are marked in a file next to their data file."""
    picture = Picture(
        "An upsert marks the row that it replaces as deleted, in a file next to the data file"
    )
    picture.head(20, 32, "data-1.parquet")
    rows = [("0", "1", "new"), ("1", "2", "new"), ("2", "3", "new")]
    right, _ = picture.table(20, 46, ("position", "id", "status"), rows,
                             ["steprow", "deadrow", "steprow"])  # fmt: skip
    picture.head(20, 192, "data-2.parquet, the upsert")
    picture.table(20, 206, ("position", "id", "status"), [("0", "2", "paid")], ["steprow"])
    x = right + 70
    box, _ = picture.box(x, 76, "stored", "deletion vector", "of data-1.parquet: {1}")
    picture.arrow((x, 104), (right + 6, 108))
    picture.head(box + 90, 66, "readers return both files")
    picture.head(box + 90, 86, "without the marked rows and merge nothing")
    picture.table(box + 90, 100, ("id", "status"), [("1", "new"), ("3", "new"), ("2", "paid")],
                  ["steprow"] * 3)  # fmt: skip
    picture.arrow((box, 104), (box + 84, 140))
    picture.arrow((right + 6, 244), (box + 84, 190))
    return picture


def key_index() -> Picture:
    """From a key to its row."""
    picture = Picture("The key index stores the file and position of the current row of each key")
    key, _ = picture.box(20, 90, "outside", "key", "id = 42")
    hash_, _ = picture.box(key + 50, 90, "step", "hash", "64 bits, and a 32-bit check")
    picture.arrow((key, 116), (hash_ and key + 46, 116))
    x = hash_ + 50
    picture.head(x, 32, "index of the bucket: sorted runs, memory-mapped")
    right, bottom = picture.table(x, 46, ("hash", "file", "position", "sequence"),
                                  [("17c3…", "data-1", "8", "5"),
                                   ("9a41…", "data-2", "0", "7"),
                                   ("e07b…", "data-1", "3", "2")],
                                  ["cell", "steprow", "cell"])  # fmt: skip
    picture.arrow((hash_, 116), (x - 4, 109))
    y = bottom + 60
    picture.arrow(((x + right) / 2, bottom), ((x + right) / 2, y - 4))
    picture.box(x, y, "stored", "read one row of data-2.parquet",
                           "and compare its key with the requested key")  # fmt: skip
    picture.note(20, y + 18, "A write uses the same index: it marks the")
    picture.note(20, y + 36, "row that it replaces as deleted, and finds")
    picture.note(20, y + 54, "late rows by comparing the sequence.")
    return picture


def write() -> Picture:
    """How a write works."""
    picture = Picture(
        "How a write works: check, split and sort, data files, manifests, one atomic create"
    )
    y, x = 20.0, 20.0
    steps = [
        ("outside", "rows", ("Arrow, Polars, pandas", "Spark, change feeds")),
        ("step", "check", ("types, constraints", "kinds: +I -U +U -D")),
        ("step", "split and sort", ("partition, bucket", "by key and sequence")),
        ("stored", "data files", ("Parquet, level 0", "synced, then named")),
        ("stored", "manifests", ("files added, key", "ranges, statistics")),
        ("commit", "snapshot-N", ("created if absent:", "this is the commit")),
    ]
    for number, (kind, head, lines) in enumerate(steps):
        right, bottom = picture.box(x, y, kind, head, *lines)
        if number < len(steps) - 1:
            picture.arrow((right, y + 36), (right + 28, y + 36))
        last, x = x, right + 32
    picture.arrow((last + 60, bottom), (last + 60, bottom + 36))
    picture.box(last - 240, bottom + 40, "commit", "another writer created snapshot-N first",
                "read it and decide: compatible, needs higher",
                "sequence numbers, or conflict; try N + 1")  # fmt: skip
    picture.box(20, bottom + 40, "step", "after the commit",
                "if a bucket has enough sorted runs,",
                "a compaction merges them in the background")  # fmt: skip
    return picture


def read() -> Picture:
    """How a read works."""
    picture = Picture(
        "How a read works: pin a snapshot, plan, read the files that can match, merge, return"
    )
    x, y = 20.0, 20.0
    steps = [
        ("commit", "pin a snapshot", ("the latest, an id,", "a tag or a time")),
        ("step", "plan", ("partitions, buckets, key", "ranges, statistics, filters")),
        ("stored", "files", ("only the columns", "that you need")),
        ("step", "merge", ("where key ranges overlap,", "key range by key range")),
        ("outside", "rows", ("no deleted rows,", "defaults, other filters")),
    ]
    for number, (kind, head, lines) in enumerate(steps):
        right, bottom = picture.box(x, y, kind, head, *lines)
        if head == "files":
            files = x, right
        if head == "rows":
            rows = (x + right) / 2
        if number < len(steps) - 1:
            picture.arrow((right, y + 36), (right + 28, y + 36))
        x = right + 32
    low = bottom + 52
    left = (files[0] + files[1]) / 2
    picture.arrow((left, bottom), (left, low), (rows, low), (rows, bottom + 4))
    picture.note(left + 14, low - 8, "files whose key ranges do not overlap need no merge")
    picture.note(
        20,
        low + 30,
        "Filters on key columns skip files before the merge. All other filters apply after it,",
    )
    picture.note(
        20,
        low + 50,
        "because a skipped file could contain the latest version of a key.",
    )
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "concept-changelogs.svg": changelogs,
    "concept-deletion-vectors.svg": deletion_vectors,
    "concept-key-index.svg": key_index,
    "concept-read.svg": read,
    "concept-sequence-fields.svg": sequence_fields,
    "concept-sequence-groups.svg": sequence_groups,
    "concept-tombstones.svg": tombstones,
    "concept-write.svg": write,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw().svg())
