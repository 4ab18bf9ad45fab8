"""The state of a bucket with a key index, as a write finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.callers import warn_caller
from keytide.errors import DataError
from keytide.format.index_manifest import IndexFile
from keytide.format.manifest import ManifestEntry
from keytide.key_index.comparison import NOTHING, Numbers
from keytide.key_index.entries import Entries
from keytide.key_index.head import Head, IndexedFile
from keytide.merge.order import IS_ADD
from keytide.read.merged_versions import rows_in
from keytide.read.places import by_name, place_numbers, split_places
from keytide.read.rebuilding import bare_head, settled
from keytide.read.row_keys import Flags, exact, hashes_of
from keytide.read.runs import StoredVersions
from keytide.read.sections import PlannedFile
from keytide.snapshot.dead_rows import DeadRows, load_dead_rows
from keytide.snapshot.key_index import KeyIndex, load_key_index, why_not_covered
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.view import TableView
from keytide.write.arrivals import Arrivals, Current, floors

__all__ = [
    "Bucket",
    "arrived",
    "certain",
    "found_bucket",
    "places_of",
]


@dataclass(frozen=True)
class Bucket:
    """The state that a write in a bucket is based on: its key index, its dead rows, and its
    files.
    """

    index: KeyIndex
    dead: DeadRows
    stored: tuple[IndexFile, ...] = ()
    """The head of the index in the snapshot."""
    entries: Mapping[str, ManifestEntry] = field(default_factory=dict)
    """The data files by name."""

    def anew(
        self, view: TableView, bucket: BucketId, reason: str, *, has_read_head: bool = True
    ) -> Bucket:
        """The same with an index that is rebuilt from the bucket's rows, of which each key keeps
        one. Warns with the reason.

        Without the head of the index, it is unknown which files other engines added.
        """
        warn_caller(
            f"table {view.name}: the key index of bucket {bucket[1]} is rebuilt from its rows: "
            f"{reason}"
        )
        known = {file.name for file in self.index.head.files} if has_read_head else None
        found = settled(view, self.entries.values(), self.dead, known)
        return replace(self, index=found.index, dead=found.dead)

    def current(
        self, view: TableView, partition: bytes, known: tuple[Flags, Entries], names: Iterable[str]
    ) -> Current:
        """The current rows of some keys, with some columns.

        `known` are the results of the index.
        """
        is_known, entries = known
        columns = tuple(names)
        if not columns:
            at = np.where(is_known, np.arange(len(entries)), -1)
            return Current(pl.DataFrame(), at, np.ones(len(entries), np.bool_))
        places = place_numbers(entries.files, entries.positions)
        different, at_known = np.unique(places[is_known], return_inverse=True)
        at = np.full(len(entries), -1)
        at[is_known] = at_known
        files, positions = split_places(different)
        wanted = by_name(files, positions, self.index.names())  # this keeps their order
        rows = self._rows(view, StoredVersions(view, partition, columns), wanted)
        lives = [~np.isin(places, self.dead.of(name)) for name, places in wanted.items()]
        return Current(rows, at, np.concatenate([np.empty(0, np.bool_), *lives]))

    def lives(self, known: tuple[Flags, Entries]) -> Flags:
        """Which keys have a row. `known` are the results of the index."""
        is_known, entries = known
        lives: Flags = is_known.copy()
        for number, name in self.index.names().items():
            own = np.flatnonzero(is_known & (entries.files == number))
            lives[own] = ~np.isin(entries.positions[own], self.dead.of(name))
        return lives

    def _rows(
        self, view: TableView, stored: StoredVersions, wanted: Mapping[str, Numbers]
    ) -> pl.DataFrame:
        reads = [
            (PlannedFile(self.entries[name], has_kinds=False), positions)
            for name, positions in wanted.items()
        ]
        fields = view.schema.select(stored.columns)
        rows_max = rows_in(view.options.read_memory_bytes, [file for file, _ in reads], fields)
        return stored.at(reads, max(1, rows_max))


def arrived(
    view: TableView, bucket: BucketId, rows: pl.DataFrame, on: Bucket, wanted: Iterable[str] = ()
) -> Arrivals:
    """Rows that arrive in a bucket, with the `wanted` columns of the current rows of their keys.

    If the index does not contain the comparison values, they are also read from these rows.
    """
    comparison = view.comparison
    hashes = hashes_of(rows, view)
    is_known, entries = on.index.find(hashes)
    names = (*wanted, *(() if comparison.is_in_index else comparison.names))
    current = on.current(view, bucket[0], (is_known, entries), dict.fromkeys(names))
    own = exact(rows, comparison.fields)
    if comparison.is_in_index:
        fresh = comparison.numbers(own)
        stored = np.where(is_known, entries.comparisons, NOTHING)[np.newaxis]
        says, floor = comparison.says(fresh), _floors(rows, fresh[0], on, view)
        return Arrivals(rows, hashes, entries, current, fresh, stored, says, floor)
    both = pa.concat_tables([own, exact(current.rows, comparison.fields)])
    fresh, of_current = np.split(comparison.numbers(both), [rows.height], axis=1)
    floor, stored = np.full(rows.height, NOTHING), np.full_like(fresh, NOTHING)
    stored[:, is_known] = of_current[:, current.at[is_known]]
    return Arrivals(rows, hashes, entries, current, fresh, stored, comparison.says(fresh), floor)


def _floors(rows: pl.DataFrame, fresh: Numbers, on: Bucket, view: TableView) -> Numbers:
    """The value below which each row is too old.

    A delete is never too old, because it brings nothing back.
    """
    found = floors(fresh, on.index.head.mark, view.lateness_max)
    adds = rows.select(IS_ADD.alias("add"))["add"].to_numpy()
    return np.where(adds, found, NOTHING)


def certain() -> None:
    """Confirm a snapshot that is known to be the latest: does nothing."""


def found_bucket(
    view: TableView,
    bucket: BucketId,
    entries: Sequence[ManifestEntry],
    head: IndexFile | None,
    vectors: tuple[IndexFile, ...],
    confirm: Callable[[], None] = certain,
) -> Bucket:
    """The bucket in a snapshot, from its data files, the head of its index, and its vectors.

    If the index does not match the rows, it is rebuilt, with a warning. Before that, `confirm` is
    called, which raises an error if this is no longer the latest snapshot. Raises `DataError` for
    vectors that cannot be read, and `UnsupportedError` for an index of a newer release.
    """
    reading = view.store.begin(partial(load_dead_rows, view.store, vectors, view.name))
    index, reason = None, "there is no index"
    if head is not None:
        try:
            index = load_key_index(view.store, head, view.options.lookup_cache_bytes_max)
        except DataError as error:
            reason = str(error)
    dead = reading.result()
    if head is None and not entries:
        return Bucket(KeyIndex(bare_head(view)), dead)
    stored = () if head is None else (head,)
    files = {entry.file.file_name: entry for entry in entries}
    if index is not None:
        why = _why_not_its(index.head, files, dead, view)
        if why is None:
            return Bucket(index, dead, stored, files)
        reason = why
    confirm()
    found = Bucket(index or KeyIndex(bare_head(view)), dead, stored, files)
    has_read_head = head is None or index is not None
    return found.anew(view, bucket, reason, has_read_head=has_read_head)


def _why_not_its(
    head: Head, files: Mapping[str, ManifestEntry], dead: DeadRows, view: TableView
) -> str | None:
    """Why an index does not match a bucket with these files. None if it does."""
    rows = {name: entry.file.row_count for name, entry in files.items()}
    why = why_not_covered(head, rows, {n: len(vector) for n, vector in dead.vectors.items()})
    counted = view.comparison.counted_in
    if why is not None or head.compared == counted:
        return why
    return f"rows are now compared by {counted}, but the index has {head.compared}"


def places_of(
    entries: Iterable[ManifestEntry], head: Head
) -> tuple[Numbers, Numbers, tuple[IndexedFile, ...]]:
    """The file and position of each row of new files, and the files."""
    first = head.next_number
    files = tuple(
        IndexedFile(first + n, e.file.file_name, e.file.row_count, 0, 0)
        for n, e in enumerate(entries)
    )
    counts = [file.rows for file in files]
    numbers = np.repeat([file.number for file in files], counts).astype(np.int64)
    positions = [np.empty(0, np.int64), *(np.arange(count) for count in counts)]
    return numbers, np.concatenate(positions), files
