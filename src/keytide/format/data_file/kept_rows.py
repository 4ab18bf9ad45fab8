"""Decoded row groups that lookups use repeatedly, kept in the cache.

Reading a few rows of a local file takes about a third of the time of decoding their whole group,
most of it before the first row. So a group is decoded
at its third read. A process that does not return loses nothing, and one that does spends at most
twice what was needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate, count

import polars as pl

from keytide.format.cache import FILES
from keytide.format.data_file.reader import FileReader, Span, read_side_by_side

__all__ = ["FEW_ROWS", "read_few"]

FEW_ROWS = 64
"""This many adjacent rows are read in the time of one."""

_READS_OF_A_GROUP = 3
# A group that needs a larger part of the cache would evict everything else.
_PART_OF_KEPT = 8
_NUMBER_BYTES, _GROUP_BYTES = 32, 1 << 10


def read_few(
    reads: Sequence[tuple[FileReader, Span]], where: pl.Expr | None = None
) -> list[pl.DataFrame]:
    """The result of `read_side_by_side`, for lookups, which return for a few rows each time."""
    kept = [_kept(reader, span) for reader, span in reads]
    missing = [read for read, rows in zip(reads, kept, strict=True) if rows is None]
    others = iter(read_side_by_side(missing, where) if missing else ())
    return [
        next(others) if rows is None else rows if where is None else rows.filter(where)
        for rows in kept
    ]


def _kept(reader: FileReader, span: Span) -> pl.DataFrame | None:
    """Some rows of a cached group. None for rows of other groups."""
    start, length = span
    if length is None or length > FEW_ROWS or reader.dead_rows is not None:
        return None
    if not reader.kept_bytes_max or reader.store.local_path(reader.path) is None:
        return None
    version = reader.version
    ends = _ends(reader, version)
    number = bisect_right(ends, start)
    if number == len(ends) or start + length > ends[number]:
        return None
    begin = ends[number - 1] if number else 0
    group = _group(reader, version, (begin, ends[number] - begin))
    return None if group is None else group[start - begin : start - begin + length]


def _ends(reader: FileReader, version: tuple[Hashable, ...]) -> list[int]:
    """Where each group of a file ends."""
    kept: list[int] | None = FILES.find((*version, "ends"))
    if kept is None:
        kept = [*accumulate(reader.groups()["rows"])]
        FILES.keep((*version, "ends"), kept, _NUMBER_BYTES * len(kept), reader.kept_bytes_max)
    return kept


def _group(
    reader: FileReader, version: tuple[Hashable, ...], group: tuple[int, int]
) -> pl.DataFrame | None:
    """All rows of a group, as the reader shows them, once it has been requested often enough."""
    shape = (type(reader), reader.fields, reader.system_columns, *dict(reader.constants))
    key = (*version, "rows", group, *shape)
    rows: pl.DataFrame | None = FILES.find(key)
    if rows is None:
        asked: Iterator[int] | None = FILES.find((*key, "asked"))
        if asked is None:
            asked = count(1)
            FILES.keep((*key, "asked"), asked, _GROUP_BYTES, reader.kept_bytes_max)
        if next(asked) % _READS_OF_A_GROUP:
            return None
        rows = _decoded(reader, group)
        FILES.keep(key, rows, int(rows.estimated_size()) + _GROUP_BYTES, reader.kept_bytes_max)
    return rows if rows.height else None


def _decoded(reader: FileReader, group: tuple[int, int]) -> pl.DataFrame:
    """The rows of a group. None if it is too large for the cache."""
    rows = reader.read(*group).rechunk()
    fits = rows.estimated_size() * _PART_OF_KEPT <= reader.kept_bytes_max
    return rows if fits else rows.clear()
