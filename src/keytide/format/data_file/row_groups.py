"""Rows of some keys or positions in a data file, and the row groups that are cached for them.

Reading a few rows of a local file takes as long as decoding a small group, most of it before the
first row. So a small group is decoded at its first read, and a large one at its third. A process
that does not return loses little, and one that does spends at most twice what was needed.

Decoding the keys of one group takes as long as a lookup may take, but they are a small part of the
group. So a process caches them for the next lookup, and reads only the wanted rows of a group.

A few positions are read individually. For more, their row groups are read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import accumulate, count
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.base.dataclass import dataclass, field, replace
from keytide.format.cache import FILES, HashedOnce
from keytide.format.data_file.parquet import WHOLE_BYTES_MAX
from keytide.format.data_file.reader import FileReader, Span, format_of, read_side_by_side, spans_of
from keytide.format.index_files import living_among
from keytide.store import Store
from keytide.types import Field

# -- cached row groups -----------------------------------------------------------------------------


FEW_ROWS = 64
"""This many adjacent rows are read in the time of one."""

_READS_OF_A_GROUP = 3
# Decoding a group of this size takes as long as reading one of its rows.
_SMALL_GROUP_BYTES = 2 << 20
# A group that needs a larger part of the cache would evict everything else.
_PART_OF_KEPT = 8
_NUMBER_BYTES, _GROUP_BYTES = 32, 1 << 10


def read_few(
    reads: Sequence[tuple[FileReader, Span]], where: pl.Expr | None = None
) -> list[pl.DataFrame]:
    """The result of `read_side_by_side`, for lookups, which return for a few rows each time."""
    kept = [_cached_rows(reader, span) for reader, span in reads]
    missing = [read for read, rows in zip(reads, kept, strict=True) if rows is None]
    others = iter(read_side_by_side(missing, where) if missing else ())
    return [
        next(others) if rows is None else rows if where is None else rows.filter(where)
        for rows in kept
    ]


def _cached_rows(reader: FileReader, span: Span) -> pl.DataFrame | None:
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
    group = _group(reader, version, (begin, ends[number] - begin), ends[-1])
    return None if group is None else group.rows[start - begin : start - begin + length]


def _ends(reader: FileReader, version: tuple[Hashable, ...]) -> list[int]:
    """Where each group of a file ends."""
    ends: list[int] | None = FILES.find((*version, "ends"))
    if ends is None:
        ends = [*accumulate(reader.groups()["rows"])]
        FILES.keep((*version, "ends"), ends, _NUMBER_BYTES * len(ends), reader.kept_bytes_max)
    return ends


def _cached_places(reader: FileReader, places: Places) -> list[pl.DataFrame] | None:
    """The rows at ascending positions of a local file, if all of their groups are cached.

    None also for so many positions that whole groups are read for them, and for positions behind
    the end.
    """
    if not len(places):
        return []
    version = reader.version
    ends = np.array(_ends(reader, version))
    if not len(ends) or len(places) * FEW_ROWS > ends[-1] or places[-1] >= ends[-1]:
        return None
    numbers, starts = np.unique(np.searchsorted(ends, places, side="right"), return_index=True)
    found = []
    for number, own in zip(numbers.tolist(), np.split(places, starts[1:]), strict=True):
        begin = int(ends[number - 1]) if number else 0
        group = _group(reader, version, (begin, int(ends[number]) - begin), int(ends[-1]))
        if group is None:
            return None
        found.append(group.rows[pl.Series(own - begin)])
    return found


@dataclass(frozen=True)
class _CachedRows:
    """The rows of a group, as a reader shows them."""

    rows: pl.DataFrame
    keys: dict[HashedOnce, tuple[Sequence[Any], ...]] = field(default_factory=dict)

    def columns(self, key: HashedOnce) -> tuple[Sequence[Any], ...]:
        """The columns of a key. Empty if the rows are not sorted by it."""
        if key not in self.keys:
            self.keys[key] = _searchable(self.rows.select(_names(key)))
        return self.keys[key]


def _group(
    reader: FileReader, version: tuple[Hashable, ...], group: tuple[int, int], file_rows: int
) -> _CachedRows | None:
    """All rows of a group, as the reader shows them, once it has been requested often enough."""
    key = (*version, "rows", group[0], reader.shape)
    cached: _CachedRows | None = FILES.find(key)
    if cached is None:
        size = _SMALL_GROUP_BYTES if reader.size is None else reader.size * group[1] // file_rows
        if size >= _SMALL_GROUP_BYTES:
            asked: Iterator[int] | None = FILES.find((*key, "asked"))
            if asked is None:
                asked = count(1)
                FILES.keep((*key, "asked"), asked, _GROUP_BYTES, reader.kept_bytes_max)
            if next(asked) % _READS_OF_A_GROUP:
                return None
        rows = reader.read(*group).rechunk()
        if rows.estimated_size() * _PART_OF_KEPT > reader.kept_bytes_max:
            rows = rows.clear()  # it is too large for the cache
        cached = _CachedRows(rows)
        FILES.keep(key, cached, int(rows.estimated_size()) + _GROUP_BYTES, reader.kept_bytes_max)
    return cached if cached.rows.height else None


# -- rows of keys ----------------------------------------------------------------------------------


# More spans of one group take as long as reading what is between them.
_SPANS_MAX = 8
# A group whose keys need a larger part of the cache would evict everything else.
_TEXT_BYTES = 32
_KEY_SPANS_GROUP_BYTES = 256
# A group with at least one of so many possible keys is read whole, not its keys first.
_DENSE = 2

Key: TypeAlias = "tuple[int | str, ...]"
"""The values of the key columns."""


@dataclass(frozen=True)
class _Group:
    """Where a row group begins, how many rows it has, and the ends of its first key column."""

    offset: int
    rows: int
    low: int | str
    high: int | str

    @property
    def end(self) -> int:
        """Where the next group begins."""
        return self.offset + self.rows

    @property
    def is_dense(self) -> bool:
        """Whether it most likely has the row of any key between its ends."""
        if isinstance(self.low, str) or isinstance(self.high, str):
            return False
        return self.high - self.low < _DENSE * self.rows


def key_spans(reader: FileReader, key: Sequence[str], wanted: Sequence[Key]) -> list[Span] | None:
    """Spans of a file outside of which no row has a wanted key. None if that is unknown.

    `key` names columns that the reader reads. `wanted` are their values in ascending order:
    integers or strings. The rows need not be sorted. Raises like `FileReader.read`.
    """
    by_name = {field.name: field for field in reader.fields}
    fields = tuple(by_name[name] for name in key)
    version, shape = reader.version, HashedOnce(fields)
    groups = _groups(reader, version, shape)
    if not groups:
        return None
    first = [values[0] for values in wanted]
    spans: list[Span] = []
    for group in groups:
        start, stop = bisect_left(first, group.low), bisect_right(first, group.high)
        if start >= stop:
            continue
        columns = _columns(reader, version, group, shape)
        if not columns:
            spans.append((group.offset, group.rows))
            continue
        places = _joined(place for one in wanted[start:stop] if (place := _place(columns, one)))
        if len(places) > _SPANS_MAX:
            places = [(places[0][0], places[-1][1])]
        spans += [(group.offset + begin, end - begin) for begin, end in places]
    return spans


def _groups(
    reader: FileReader, version: tuple[Hashable, ...], fields: HashedOnce
) -> tuple[_Group, ...]:
    """The groups. Empty if their ends are unknown, or their keys are too large for the cache."""
    key = (*version, "groups", fields)
    kept: tuple[_Group, ...] | None = FILES.find(key)
    if kept is None:
        names = _names(fields)
        found = reader.groups(names)
        ends = [f"{name}.{part}" for name in names for part in ("min", "max")]
        kept = ()
        if set(ends) <= set(found.columns) and not any(found[name].null_count() for name in ends):
            rows = found.select("offset", "rows", *ends[:2]).iter_rows()
            groups = tuple(_Group(*row) for row in rows)
            row_bytes = sum(
                _TEXT_BYTES if found.schema[low] == pl.String else 8 for low in ends[::2]
            )
            largest = row_bytes * max((group.rows for group in groups), default=0)
            kept = groups if largest * _PART_OF_KEPT <= reader.kept_bytes_max else ()
        FILES.keep(key, kept, _KEY_SPANS_GROUP_BYTES * (1 + len(kept)), reader.kept_bytes_max)
    return kept


def _columns(
    reader: FileReader, version: tuple[Hashable, ...], group: _Group, fields: HashedOnce
) -> tuple[Sequence[Any], ...]:
    """The key columns of a group. Empty if its rows are not sorted by key."""
    key = (*version, "keys", group.offset, fields)
    kept: tuple[Sequence[Any], ...] | None = FILES.find(key)
    if kept is None:
        wanted = cast(tuple[Field, ...], tuple(fields))
        keys_alone = replace(reader, fields=wanted, system_columns=(), dead_rows=None)
        found = keys_alone.read(group.offset, group.rows)
        kept = _searchable(found)
        FILES.keep(
            key, kept, int(found.estimated_size()) + _KEY_SPANS_GROUP_BYTES, reader.kept_bytes_max
        )
    return kept


def _names(key: HashedOnce) -> list[str]:
    return [each.name for each in cast(tuple[Field, ...], key)]


def _searchable(keys: pl.DataFrame) -> tuple[Sequence[Any], ...]:
    """Key columns in the forms with the fastest access to single values. Empty if not sorted."""
    if not _is_sorted(keys):
        return ()
    return tuple(
        column.rechunk() if column.dtype == pl.String else column.to_numpy()  # type: ignore[misc]
        for column in keys.iter_columns()
    )


def _is_sorted(keys: pl.DataFrame) -> bool:
    """Whether rows are sorted by key, and no key is NULL."""
    if any(column.null_count() for column in keys.iter_columns()):
        return False
    if keys.width == 1 and keys.dtypes[0].is_integer():  # takes a fraction of the time
        values = keys.to_series().to_numpy()
        return bool((values[1:] >= values[:-1]).all())
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


# -- the row of one key ----------------------------------------------------------------------------


class Place(NamedTuple):
    """A row: some rows of a file, and its position among them."""

    rows: pl.DataFrame
    position: int


@dataclass(frozen=True)
class KeyedFile:
    """Finds the row of a key in a file, which has at most one for each key.

    `key` are the columns of the key, which the reader reads: integers and strings.
    """

    reader: FileReader
    key: HashedOnce

    @property
    def is_read_often(self) -> bool:
        """Whether lookups read more often from the file than it has groups. Raises like `find`."""
        reads: list[int] | None = FILES.find((*self.reader.version, "reads"))
        return reads is not None and reads[0] > reads[1]

    def is_searchable(self) -> bool:
        """Whether rows can be found by key: the file is local, and the ends of its groups are
        known.

        Raises like `FileReader.read`.
        """
        if self.reader.store.local_path(self.reader.path) is None:
            return False
        return bool(_groups(self.reader, self.reader.version, self.key))

    def find(self, key: Key) -> Place | None:
        """The row of a key. None if there is none. Raises like `FileReader.read`.

        REQUIRES: the file `is_searchable`.
        """
        reader, version = self.reader, self.reader.version
        groups = _groups(reader, version, self.key)
        for group in groups:
            if not group.low <= key[0] <= group.high:  # type: ignore[operator]
                continue
            span = group.offset, group.rows
            cached: _CachedRows | None = FILES.find((*version, "rows", group.offset, reader.shape))
            if cached is None or not cached.rows.height:
                counts: list[int] | None = FILES.find((*version, "reads"))
                if counts is None:
                    counts = [0, len(groups)]
                    FILES.keep((*version, "reads"), counts, _NUMBER_BYTES, reader.kept_bytes_max)
                counts[0] += 1  # how many exactly does not matter
            if cached is None and group.is_dense:
                cached = _group(reader, version, span, groups[-1].end)
            if cached is not None and cached.rows.height:
                columns = cached.columns(self.key)
            else:
                columns = _columns(reader, version, group, self.key)
            place = _place(columns, key) if columns else self._in_unsorted(group, key)
            if place is None:
                continue
            if cached is None:
                cached = _group(reader, version, span, groups[-1].end)
                if cached is not None:  # its rows contain the keys
                    FILES.drop((*version, "keys", group.offset, self.key))
            if cached is not None and cached.rows.height:
                return Place(cached.rows, place[0])
            return Place(reader.read(group.offset + place[0], 1), 0)
        return None

    def _in_unsorted(self, group: _Group, key: Key) -> tuple[int, int] | None:
        names = _names(self.key)
        rows = self.reader.read(group.offset, group.rows)
        alike = (pl.col(name) == value for name, value in zip(names, key, strict=True))
        found = rows.select(pl.arg_where(pl.all_horizontal(alike))).to_series()
        return (found[0], found[0] + 1) if len(found) else None


@dataclass(frozen=True)
class SortedRows:
    """Finds the row of a key in frames of sorted rows, which follow each other in key order."""

    frames: Sequence[pl.DataFrame]
    columns: Sequence[tuple[Sequence[Any], ...]]
    lasts: Sequence[Any]
    """The last value of the first key column in each frame."""

    @classmethod
    def of(cls, frames: Sequence[pl.DataFrame], key: HashedOnce) -> SortedRows | None:
        """None if the rows are not sorted, or a key is NULL."""
        filled = [frame for frame in frames if frame.height]
        columns = [_searchable(frame.select(_names(key))) for frame in filled]
        if not all(columns):
            return None
        return cls(filled, columns, [each[0][-1] for each in columns])

    def find(self, key: Key) -> Place | None:
        """The row of a key. None if there is none."""
        number = bisect_left(self.lasts, key[0])
        # Keys of several columns can have the same first value in several frames.
        while number < len(self.frames) and self.columns[number][0][0] <= key[0]:
            place = _place(self.columns[number], key)
            if place is not None:
                return Place(self.frames[number], place[0])
            number += 1
        return None


def row_at(reader: FileReader, position: int) -> Place:
    """The row at a position of a file. Raises like `FileReader.read`."""
    rows = _cached_rows(reader, (position, 1))
    return Place(reader.read(position, 1) if rows is None else rows, 0)


# -- rows at positions -----------------------------------------------------------------------------


Places: TypeAlias = "npt.NDArray[np.int64]"

# More spans of a file take as long as reading what is between them.
# With more files, more requests would be made than saved.
_AHEAD_MAX = 16


@dataclass(frozen=True)
class _SpanRead:
    """A span of a file, and the positions of the wanted, live rows in the file."""

    reader: FileReader
    start: int
    length: int
    live_positions: Future[Places]


def begin_footers(files: Iterable[tuple[Store, str, int]], kept_bytes_max: int) -> None:
    """Start to fetch the footers of large remote files, in parallel with other requests.

    If there are many files, none is fetched. Errors appear when the files are read.
    """
    far = [f for f in files if f[2] > WHOLE_BYTES_MAX and f[0].local_path(f[1]) is None]
    if len(far) <= _AHEAD_MAX:
        for store, path, size in far:
            store.begin(partial(format_of(path).group_rows, store, path, size, kept_bytes_max))


def read_places(
    files: Sequence[tuple[FileReader, Places]], where: pl.Expr | None, rows_max: int
) -> Iterator[pl.DataFrame]:
    """The rows at given positions of files, ascending, that are live and match `where`.

    At most about `rows_max` rows are decoded at a time. Raises like `FileReader.read`.
    """
    store = files[0][0].store
    living = [store.begin(partial(_living, reader, places)) for reader, places in files]
    # For local files, dead rows are known immediately. For remote files, they are read in parallel
    # with the rows.
    near = [_is_near(reader) for reader, _ in files]
    known = [
        (reader, alive.result() if is_near else places)
        for (reader, places), alive, is_near in zip(files, living, near, strict=True)
    ]
    are_few = sum(len(at) for _, at in known) <= rows_max
    cached, others = list[pl.DataFrame](), []
    for (reader, at), alive, is_near in zip(known, living, near, strict=True):
        bare = replace(reader, dead_rows=None)
        frames = _cached_places(bare, at) if are_few and is_near and bare.kept_bytes_max else None
        if frames is None:
            others.append((bare, at, alive))
        cached += frames or ()
    if cached:
        rows = pl.concat(cached)  # one filter takes less time than one of each group
        yield rows if where is None else rows.filter(where)
    if not others:
        return
    spans = store.together([partial(_spans, reader, at, rows_max) for reader, at, _ in others])
    reads = [
        _SpanRead(reader, start, length, alive)
        for (reader, _, alive), own in zip(others, spans, strict=True)
        for start, length in own
    ]
    for batch in _batches(reads, rows_max):
        ranges = [(read.reader, (read.start, read.length)) for read in batch]
        if all(read.length == 1 and _is_near(read.reader) for read in batch):
            yield from read_few(ranges, where)  # nothing to leave out
            continue
        for read, frame in zip(batch, read_few(ranges), strict=True):
            at = read.live_positions.result()
            first, last = np.searchsorted(at, [read.start, read.start + read.length])
            wanted = np.zeros(read.length, np.bool_)
            wanted[at[first:last] - read.start] = True
            rows = frame.filter(pl.Series(wanted))  # faster than selecting rows from chunks
            yield rows if where is None else rows.filter(where)


def _is_near(reader: FileReader) -> bool:
    return reader.store.local_path(reader.path) is not None


def _living(reader: FileReader, places: Places) -> Places:
    if reader.dead_rows is None:
        return places
    return living_among(reader.table or reader.store, reader.dead_rows, places)


def _spans(reader: FileReader, places: Places, rows_max: int) -> list[tuple[int, int]]:
    if not len(places):
        return []
    cuts = np.flatnonzero(np.diff(places) > FEW_ROWS) + 1
    if _is_near(reader) and len(cuts) < _SPANS_MAX:
        parts = np.split(places, cuts)
        return [(int(part[0]), int(part[-1] - part[0]) + 1) for part in parts]
    # From a remote file, whole column chunks are fetched.
    groups = reader.groups()
    ends = (groups["offset"] + groups["rows"]).to_numpy()
    counts = np.bincount(np.searchsorted(ends, places, side="right"), minlength=len(ends))
    found = spans_of(groups.filter(pl.Series(counts > 0)), rows_max)
    return [(start, length) for start, length in found if length is not None]


def _batches(reads: Sequence[_SpanRead], rows_max: int) -> Iterator[Sequence[_SpanRead]]:
    batch: list[_SpanRead] = []
    rows = 0
    for read in reads:
        if batch and rows + read.length > rows_max:
            yield batch
            batch, rows = [], 0
        batch.append(read)
        rows += read.length
    if batch:
        yield batch
