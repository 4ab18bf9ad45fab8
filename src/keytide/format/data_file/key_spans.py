"""Finds the rows of keys in a file with the keys of its row groups, which are cached.

Decoding the keys of one group takes as long as a lookup may take, but they are a small part of the
group. So a process caches them for the next lookup, and reads only the wanted rows of a group.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import polars as pl

from keytide.format.cache import FILES
from keytide.format.data_file.reader import FileReader, Span
from keytide.types import Field

__all__ = ["Key", "key_spans"]

# More spans of one group take as long as reading what is between them.
_SPANS_MAX = 8
# A group whose keys need a larger part of the cache would evict everything else.
_PART_OF_KEPT = 8
_TEXT_BYTES = 32
_GROUP_BYTES = 256

Key: TypeAlias = "tuple[int | str, ...]"
"""The values of the key columns."""


@dataclass(frozen=True)
class _Group:
    """Where a row group begins, how many rows it has, and the ends of its first key column."""

    offset: int
    rows: int
    low: int | str
    high: int | str


def key_spans(reader: FileReader, key: Sequence[str], wanted: Sequence[Key]) -> list[Span] | None:
    """Spans of a file outside of which no row has a wanted key. None if that is unknown.

    `key` names columns that the reader reads. `wanted` are their values in ascending order:
    integers or strings. The rows need not be sorted. Raises like `FileReader.read`.
    """
    by_name = {field.name: field for field in reader.fields}
    fields = tuple(by_name[name] for name in key)
    groups = _groups(reader, fields)
    if not groups:
        return None
    first = [values[0] for values in wanted]
    spans: list[Span] = []
    for group in groups:
        start, stop = bisect_left(first, group.low), bisect_right(first, group.high)
        if start < stop:
            spans += _spans_in(reader, group, fields, wanted[start:stop])
    return spans


def _groups(reader: FileReader, fields: tuple[Field, ...]) -> tuple[_Group, ...]:
    """The groups. Empty if their ends are unknown, or their keys are too large for the cache."""
    key = (*reader.version, "groups", *fields)
    kept: tuple[_Group, ...] | None = FILES.find(key)
    if kept is None:
        kept = tuple(_read_groups(reader, fields))
        FILES.keep(key, kept, _GROUP_BYTES * (1 + len(kept)), reader.kept_bytes_max)
    return kept


def _read_groups(reader: FileReader, fields: Sequence[Field]) -> list[_Group]:
    names = [field.name for field in fields]
    found = reader.groups(names)
    ends = [f"{name}.{part}" for name in names for part in ("min", "max")]
    if not set(ends) <= set(found.columns) or any(found[name].null_count() for name in ends):
        return []
    groups = [_Group(*group) for group in found.select("offset", "rows", *ends[:2]).iter_rows()]
    row_bytes = sum(_TEXT_BYTES if found.schema[low] == pl.String else 8 for low in ends[::2])
    largest = row_bytes * max((group.rows for group in groups), default=0)
    return groups if largest * _PART_OF_KEPT <= reader.kept_bytes_max else []


def _spans_in(
    reader: FileReader, group: _Group, fields: tuple[Field, ...], wanted: Sequence[Key]
) -> list[Span]:
    columns = _columns(reader, group, fields)
    if not columns:
        return [(group.offset, group.rows)]
    places = _joined(place for key in wanted if (place := _place(columns, key)))
    if len(places) > _SPANS_MAX:
        places = [(places[0][0], places[-1][1])]
    return [(group.offset + start, stop - start) for start, stop in places]


def _columns(
    reader: FileReader, group: _Group, fields: tuple[Field, ...]
) -> tuple[Sequence[Any], ...]:
    """The key columns of a group. Empty if its rows are not sorted by key."""
    key = (*reader.version, "keys", group.offset, *fields)
    kept: tuple[Sequence[Any], ...] | None = FILES.find(key)
    if kept is None:
        keys_alone = replace(reader, fields=fields, system_columns=(), dead_rows=None)
        found = keys_alone.read(group.offset, group.rows)
        kept = tuple(map(_searched, found.iter_columns())) if _is_sorted(found) else ()
        FILES.keep(key, kept, int(found.estimated_size()) + _GROUP_BYTES, reader.kept_bytes_max)
    return kept


def _searched(column: pl.Series) -> Sequence[Any]:
    """A column in the form with the fastest access to single values."""
    return column.rechunk() if column.dtype == pl.String else column.to_numpy()  # type: ignore[return-value]


def _is_sorted(keys: pl.DataFrame) -> bool:
    """Whether rows are sorted by key, and no key is NULL."""
    if any(column.null_count() for column in keys.iter_columns()):
        return False
    before, after = keys[:-1], keys[1:]
    ordered = pl.repeat(value=True, n=before.height, eager=True)
    for name in reversed(keys.columns):
        one, next_one = before[name], after[name]
        ordered = (one < next_one) | ((one == next_one) & ordered)
    return bool(ordered.all())


def _place(columns: Sequence[Sequence[Any]], key: Key) -> tuple[int, int] | None:
    """Where the rows of a key begin and end in sorted columns, if there are any."""
    start, stop = 0, len(columns[0])
    for column, value in zip(columns, key, strict=True):
        start = bisect_left(column, value, start, stop)
        stop = bisect_right(column, value, start, stop)
    return (start, stop) if start < stop else None


def _joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending ranges, with consecutive ones joined."""
    joined: list[tuple[int, int]] = []
    for start, stop in places:
        if joined and joined[-1][1] >= start:
            start, _ = joined.pop()
        joined.append((start, stop))
    return joined
