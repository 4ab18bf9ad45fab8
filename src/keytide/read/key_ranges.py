"""Ranges of keys: a task that reads a large bucket becomes several of about equal size.

Each version of a key is in one range, so the ranges are merged separately. Metadata says where to
cut: between the files of the largest run, and at integers between the ends of a large file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from math import ceil
from typing import Any

import numpy as np

from keytide.predicate.literals import has_one_spelling
from keytide.predicate.predicate import (
    Comparison,
    Predicate,
    conjunction,
    conjuncts,
    disjunction,
)
from keytide.read.scan import ReadTask
from keytide.read.sections import PlannedFile, Run, Section, decoded, is_out_of_order

TASK_BYTES = 128 << 20
"""The size of the files that one of many tasks should read at most."""

Key = tuple[Any, ...]
"""The values of the first columns of a key: integers and strings, ordered as in Python."""

_LARGER = 1.5
"""How much larger than requested a task may be."""

_PIECES_MAX = 64
"""The maximum number of pieces of one file."""


def by_key_range(task: ReadTask, bytes_max: int) -> list[ReadTask]:
    """The same rows as tasks of some sections, or of ranges of keys in one, of `bytes_max` each.

    That is approximate. A section stays whole if its files say too little about its keys.
    """
    if task.stored_bytes <= _LARGER * bytes_max:
        return [task]
    return [part for some in _groups(task, bytes_max) for part in _ranges(some, max(1, bytes_max))]


def _groups(task: ReadTask, bytes_max: int) -> Iterator[ReadTask]:
    """The sections in order, with small ones together."""
    group: list[Section] = []
    held = 0
    for section in task.bucket.sections:
        size = sum(map(_size, section.runs))
        if group and held + size > bytes_max:
            yield _of(task, group)
            group, held = [], 0
        group.append(section)
        held += size
    if group:
        yield _of(task, group)


def _of(task: ReadTask, sections: Sequence[Section]) -> ReadTask:
    return replace(task, bucket=replace(task.bucket, sections=tuple(sections)))


def _ranges(task: ReadTask, bytes_max: int) -> list[ReadTask]:
    section = task.bucket.sections[0]
    fields = task.view.schema.trimmed_primary_key_fields() if task.view.kind.keeps_versions else ()
    # The first columns of the key whose values have one form and one order everywhere.
    comparable = takewhile(lambda field: has_one_spelling(field.type), fields)
    known = [field.name for field in comparable]
    # More sections than one are together only if they are small enough.
    if (
        task.stored_bytes <= _LARGER * bytes_max
        or not known
        or any(
            file.places is not None or is_out_of_order(file.entry, fields) for file in section.files
        )
    ):
        return [task]
    files = section.files
    rows = [row for file in files for row in (file.meta.min_key, file.meta.max_key)]
    keys = iter(decoded(rows, fields).select(known).rows())
    ends = {file.meta.file_name: (next(keys), next(keys)) for file in files}

    # Where ranges begin, after the first one: `count` ranges of about equal size, or fewer.
    count = max(2, round(task.stored_bytes / bytes_max))
    largest = max(section.runs, key=_size)
    pieces = [piece for file in largest for piece in _pieces(file, ends, count / _size(largest))]
    starts, sizes = [start for start, _ in pieces], np.array([size for _, size in pieces])
    held = sizes.copy()
    for run in section.runs:
        for file in () if run is largest else run:
            low, high = (max(0, bisect_right(starts, key) - 1) for key in ends[file.meta.file_name])
            some = slice(low, high + 1)
            held[some] += file.meta.file_size * sizes[some] / sizes[some].sum()
    # Each piece belongs to the range in which its middle is.
    of_range = ((np.cumsum(held) - held / 2) * count // held.sum()).astype(np.int64)
    cuts = _shortened([starts[i] for i in np.flatnonzero(np.diff(of_range)) + 1], starts[0])
    terms = conjuncts(task.predicate)
    return [
        replace(_of(task, [part]), predicate=conjunction([*terms, *_between(known, low, high)]))
        for low, high in pairwise([None, *cuts, None])
        for part in [_within(section, ends, low, high)]
        if part.runs
    ]


# -- cuts ------------------------------------------------------------------------------------------

Ends = dict[str, tuple[Key, Key]]
"""The lowest and the highest key of each file, by its name."""


def _size(run: Run) -> int:
    return max(1, sum(file.meta.file_size for file in run))


def _pieces(file: PlannedFile, ends: Ends, per_byte: float) -> Iterator[tuple[Key, float]]:
    """The starts and the sizes of parts of a file, as if its keys were evenly distributed."""
    low, high = ends[file.meta.file_name]
    size = float(max(1, file.meta.file_size))
    place = next((i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b), None)
    if place is None or isinstance(low[place], str):
        yield low, size
        return
    count = max(1, min(_PIECES_MAX, ceil(2 * size * per_byte), high[place] - low[place]))
    step = (high[place] - low[place] + 1) / count
    yield low, size / count
    for number in range(1, count):
        yield (*low[:place], low[place] + ceil(number * step)), size / count


def _shortened(cuts: list[Key], lowest: Key) -> list[Key]:
    """The cuts with as few columns as tell them and the lowest key apart."""
    for count in range(1, len(lowest)):
        short = [cut[:count] for cut in cuts]
        if len({lowest[:count], *short}) == len(cuts) + 1:
            return short
    return cuts


# -- reads of one range ----------------------------------------------------------------------------


def _within(section: Section, ends: Ends, low: Key | None, high: Key | None) -> Section:
    """The section without the files that have no key in a range."""
    runs: list[Run] = []
    for run in section.runs:
        placed = [(file, *ends[file.meta.file_name]) for file in run]
        reaching = (
            file
            for file, least, most in placed
            if (low is None or most >= low) and (high is None or least < high)
        )
        runs.append(tuple(reaching))
    left = [place for place, run in enumerate(runs) if run]
    containing = tuple(left.index(place) for place in section.containing if runs[place])
    return replace(section, runs=tuple(runs[place] for place in left), containing=containing)


def _between(names: Sequence[str], low: Key | None, high: Key | None) -> list[Predicate]:
    """That a key is at least `low` and below `high`: compared column by column."""
    terms: list[Predicate] = []
    for bound, strictly, last in ((low, ">", ">="), (high, "<", "<")):
        columns = [] if bound is None else [*zip(names, bound, strict=False)]
        ways = []
        for place, (name, value) in enumerate(columns):
            operator = last if place == len(columns) - 1 else strictly
            alike = [Comparison(other, "=", same) for other, same in columns[:place]]
            way = conjunction([*alike, Comparison(name, operator, value)])
            assert way is not None
            ways.append(way)
        if ways:
            terms.append(disjunction(ways))
    return terms
