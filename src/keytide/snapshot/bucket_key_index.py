"""The key index of a bucket: where the current row of each key is stored.

A snapshot names one index file for each bucket, the head. It says which data files the index covers
and which runs it consists of. The current row of a key is the row with which it was last written,
in the order of the table. If that row is dead, the key is deleted. The entry stays, because late
rows may need it, even if another engine removes the row.

For lookups, the metadata of an index is read once and cached, and so are runs. From runs on local
disk, a lookup reads only the pages that it touches. From large remote runs, it fetches only the
ranges that it needs.
"""

from __future__ import annotations

import io
import itertools
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property, side_by_side
from keytide.errors import DataError, UnsupportedError
from keytide.format import paths
from keytide.format.cache import FILES, METADATA, version_of
from keytide.format.index_files import KEY_INDEX, IndexFile, VectorRange
from keytide.key_index.indexed_keys import Entries, KeyHashes, Numbers, newest_of_each
from keytide.key_index.sorted_runs import (
    TAIL_BYTES,
    Block,
    DamagedRunError,
    EntrySource,
    Head,
    RemoteRun,
    Run,
    StoredRun,
    blocks_of,
    merged,
    write_run,
)
from keytide.snapshot.live_files import BucketId, DeadRows, EncodedIndex
from keytide.store import Store
from keytide.store.interface import disk_errors

# -- cached runs -----------------------------------------------------------------------------------


# A mapped file stays on disk although it was deleted, and a process can map a limited number of
# files. So a mapping counts as more than the memory that it uses.
_PART_OF_MAPPED, _MAPPED_BYTES_MIN = 16, 64 << 10


def cached_run_if_any(store: Store, name: str) -> Run | None:
    """The cached run, or None. Raises `DataError` if a local file is gone."""
    path = paths.index_path(name)
    with disk_errors("read", store.uri_of(path)):
        found: Run | None = FILES.find((*version_of(store, path), "run"))
    return found


def cached_run(store: Store, name: str, size: int, kept_bytes_max: int) -> Run:
    """The same as `read_run`, but the run is cached for the next time.

    It is not cached if it is too large for `kept_bytes_max`, the limit of the cache for all files.
    """
    run = cached_run_if_any(store, name)
    if run is None:
        run = read_run(store, name, size)
        path = paths.index_path(name)
        is_far = store.local_path(path) is None
        held = size if is_far else max(size // _PART_OF_MAPPED, _MAPPED_BYTES_MIN)
        with disk_errors("read", store.uri_of(path)):
            FILES.keep((*version_of(store, path), "run"), run, held, kept_bytes_max)
    return run


def read_run(store: Store, name: str, size: int) -> Run:
    """Read a run of `size` bytes: it is mapped on local disk, and in memory if it is remote.

    Raises `DataError` if it is missing, damaged or has another size, and `UnsupportedError` if a
    newer release wrote it.
    """
    path = paths.index_path(name)
    uri, local = store.uri_of(path), store.local_path(path)
    with disk_errors("read", uri):
        if local is None:
            data = np.frombuffer(store.read(path), np.uint8)
        elif local.stat().st_size:
            data = np.asarray(np.memmap(local, np.uint8, "r"))
        else:
            data = np.empty(0, np.uint8)  # an empty file cannot be mapped
    if len(data) != size:
        raise DataError(f"{uri}: {len(data):,} bytes found, but {size:,} recorded")
    return Run.of(data, uri)


# -- the index -------------------------------------------------------------------------------------


Found: TypeAlias = "tuple[Numbers, Entries]"
"""The places of those keys that have an entry, and these entries."""

# The minimum number of keys for each thread: for fewer keys, waking a thread takes longer.
_SHARE_MIN = 10_000

# A run is merged into the next one unless it is this many times longer. So the number of runs is at
# most the logarithm of the number of keys, and each entry is merged as often.
_TIMES_LONGER = 2
# The memory that a head uses for each file that it names.
_NAMED_BYTES = 1 << 10


@dataclass(frozen=True)
class KeyIndex:
    """The index of a bucket in a snapshot: its head, and its runs, oldest first.

    Runs that the head does not name are not stored yet, for example those of a rebuilt index.
    """

    head: Head
    runs: tuple[EntrySource, ...] = ()
    pending: Entries = field(default_factory=Entries.none)
    """What is not stored yet: one entry per key, in the order of the hashes."""

    def find(self, hashes: KeyHashes) -> tuple[npt.NDArray[np.bool_], Entries]:
        """Which of the keys the index knows, and their entries.

        It says nothing about other keys.
        """
        return find_entries(hashes, partial(search_parts, (*self.runs, self.pending)), self.head)

    def on(self, store: Store) -> KeyIndex:
        """The same with its runs in `store`: after unpickling, they have no store."""
        runs = (run.on(store) if isinstance(run, _StoredPart) else run for run in self.runs)
        return replace(self, runs=tuple(runs))

    def names(self) -> dict[int, str]:
        """The data files by their numbers."""
        return {file.number: file.name for file in self.head.files}

    def with_counts(self) -> KeyIndex:
        """The same, with the current rows of its files counted again."""
        files = tuple(replace(file, current=0) for file in self.head.files)
        head = replace(self.head, files=files)
        for piece in self.pieces():
            head = head.about(head.files, piece, Entries.none(), piece.comparisons)
        return replace(self, head=head)

    def pieces(self) -> Iterator[Entries]:
        """All entries, one per key, in the order of the hashes.

        Few of them are in memory at a time.
        """
        return (without_gone(piece, self.head) for piece in merged([*self.runs, self.pending]))

    def between(self, low: int, high: int | None) -> Entries:
        """The latest entry of each key with a head from `low` up to, but not including, `high`.

        They include entries of files that were removed since then.
        """
        parts = (*self.runs, self.pending)
        return newest_of_each(Entries.together([part.between(low, high) for part in parts]))

    def rows(self) -> dict[str, BitMap64]:
        """The positions of all entries by data file, in the order of the file numbers."""
        found = {file.number: BitMap64() for file in self.head.files}
        for every in self.pieces():
            piece = every.take(np.flatnonzero(self.head.with_row(every)))
            order = np.argsort(piece.files, kind="stable")
            numbers, starts = np.unique(piece.files[order], return_index=True)
            for number, positions in zip(
                numbers.tolist(), np.split(piece.positions[order], starts[1:]), strict=True
            ):
                found[number].update(array("Q", positions.tobytes()))
        return {name: found[number] for number, name in sorted(self.names().items())}


def without_gone(entries: Entries, head: Head) -> Entries:
    """The entries without those of deleted files, whose keys were forgotten by compactions."""
    is_there = np.isin(entries.files, head.numbers)
    return entries if is_there.all() else entries.take(np.flatnonzero(is_there))


def search_parts(parts: Sequence[EntrySource], hashes: KeyHashes) -> Iterable[Found]:
    """The results of each part (given oldest first) for the keys, in the order of the key heads.

    The newest part comes first. All cores search, each for a part of the keys.
    """
    shares = min(os.cpu_count() or 1, len(hashes) // _SHARE_MIN) or 1
    ends = [len(hashes) * n // shares for n in range(shares + 1)]
    calls = [partial(_search_share, parts, hashes, slice(*two)) for two in itertools.pairwise(ends)]
    return itertools.chain.from_iterable(side_by_side(calls, shares))


def _search_share(parts: Sequence[EntrySource], hashes: KeyHashes, some: slice) -> list[Found]:
    share = hashes.take(some)
    found = [part.find(share) for part in reversed(parts)]
    return [(places + some.start, entries) for places, entries in found]


def find_entries(
    hashes: KeyHashes, look: Callable[[KeyHashes], Iterable[Found]], head: Head
) -> tuple[npt.NDArray[np.bool_], Entries]:
    """Which of the keys are known, and their entries. It says nothing about other keys.

    `look` returns what each part of an index finds, newest part first. The keys are in the order of
    their heads, as for `Run.find`.
    """
    is_known = np.zeros(len(hashes), np.bool_)
    files, positions, comparisons = np.zeros((3, len(hashes)), np.int64)
    for ordered, entries in look(hashes.ordered):
        places = hashes.order[ordered]
        new = ~is_known[places]
        places = places[new]
        is_known[places] = True
        files[places] = entries.files[new]
        positions[places] = entries.positions[new]
        comparisons[places] = entries.comparisons[new]
    known = np.flatnonzero(is_known)
    is_known[known] = np.isin(files[known], head.numbers)
    return is_known, Entries(hashes, files, positions, comparisons)


def key_files_by_bucket(files: Iterable[IndexFile]) -> dict[BucketId, IndexFile]:
    """The heads among the index files, by bucket."""
    return {(f.partition, f.bucket): f for f in files if f.index_type == KEY_INDEX}


def load_heads(store: Store, files: Sequence[IndexFile]) -> list[Head]:
    """Read the heads of several indexes in parallel, except those that the next write rebuilds.

    Raises `UnsupportedError` for a head of a newer release.
    """

    def load(file: IndexFile) -> Head | None:
        path = paths.index_path(file.file_name)
        try:
            return Head.decode(store.read(path), store.uri_of(path))
        except DataError:
            return None

    found = store.together([partial(load, file) for file in files])
    return [head for head in found if head is not None]


def load_key_index(store: Store, file: IndexFile, kept_bytes_max: int) -> KeyIndex:
    """Read the index of a bucket. Its files are read in parallel.

    `kept_bytes_max` limits the cache. Raises `DataError` for a file that is missing or damaged, and
    `UnsupportedError` for one of a newer release.
    """
    named = [StoredRun(p.data_file_name, p.cardinality or 0, p.length) for p in file.ranges or ()]
    parts = {run: _StoredPart(store, run, kept_bytes_max) for run in named}
    ahead = store.begin(lambda: store.together([part.open for part in parts.values()]))
    head = load_head(store, paths.index_path(file.file_name))
    ahead.exception()  # wait for it; the runs that the head names are opened again
    runs = tuple(parts.get(run) or _StoredPart(store, run, kept_bytes_max) for run in head.runs)
    store.together([run.open for run in runs])
    return KeyIndex(head, runs)


def load_head(store: Store, path: str) -> Head:
    """The head of an index, which is read once. Raises the same errors as `load_key_index`."""
    uri = store.uri_of(path)

    def load() -> tuple[Head, int]:
        head = Head.decode(store.read(path), uri)
        return head, _held_bytes(head)

    with disk_errors("read", uri):
        return METADATA.load((*version_of(store, path), "keys"), load)


def _held_bytes(head: Head) -> int:
    return _NAMED_BYTES * (1 + len(head.files) + len(head.runs))


def _remember(
    head: Head, runs: Mapping[str, bytes], store: Store, path: str, kept_bytes_max: int
) -> None:
    """Cache what was just stored, as if it had been read from a remote store."""
    METADATA.keep((*version_of(store, path), "keys"), head, _held_bytes(head))
    for name, data in runs.items():
        at = paths.index_path(name)
        run = Run.of(np.frombuffer(data, np.uint8), store.uri_of(at))
        FILES.keep((*version_of(store, at), "run"), run, len(data), kept_bytes_max)


@dataclass(frozen=True)
class _StoredPart:
    """A stored run. It is pickled as its name; after unpickling, `on` sets its store."""

    store: Store | None
    stored: StoredRun
    kept_bytes_max: int

    def __getstate__(self) -> dict[str, Any]:
        state = {k: v for k, v in self.__dict__.items() if k != "_run"}
        return {**state, "store": None}  # a store may belong to this process only

    def on(self, store: Store) -> _StoredPart:
        """The same in `store`, if it has no store yet."""
        return replace(self, store=store) if self.store is None else self

    def open(self) -> Run:
        """The run, which is read once. Raises the same errors as `load_key_index`."""
        return self._run

    @cached_property
    def _run(self) -> Run:
        assert self.store is not None
        return cached_run(self.store, self.stored.name, self.stored.size, self.kept_bytes_max)

    def __len__(self) -> int:
        return self.stored.entries

    def find(self, probes: KeyHashes) -> tuple[Numbers, Entries]:
        """See `Run`."""
        return self.open().find(probes)

    def cuts(self, stretch: int) -> list[int]:
        """See `Run`."""
        return self.open().cuts(stretch)

    def between(self, low: int, high: int | None) -> Entries:
        """See `Run`."""
        return self.open().between(low, high)


LIVING_AGAIN = "deleted rows exist again"


def why_not_covered(head: Head, rows: Mapping[str, int], dead: Mapping[str, int]) -> str | None:
    """Why an index does not describe the rows of a bucket. None if it does.

    `rows` has the number of rows of each live data file, and `dead` the number of its dead rows.
    Rows that died since then are deleted, as they should be. Rows that became live again, and files
    that were added or removed, are unknown to the index.
    """
    known = {file.name: file.rows for file in head.files}
    if known.keys() - rows.keys():
        return "another engine removed data files"
    if rows.keys() - known.keys():
        return "another engine added data files"
    if known != dict(rows):
        return "data files have a different number of rows"
    if any(dead.get(file.name, 0) < file.dead for file in head.files):
        return LIVING_AGAIN
    return None


# -- contents of a commit --------------------------------------------------------------------------


@dataclass(frozen=True)
class NewKeys:
    """What a commit adds to the index of a bucket. Picklable.

    `index` is the index including the additions, `dead` has the dead rows of its files.
    """

    index_type: ClassVar[str] = KEY_INDEX
    has_changed: ClassVar[bool] = True

    index: KeyIndex
    dead: DeadRows
    based_on: tuple[IndexFile, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of its files."""
        return [file.name for file in self.index.head.files]

    def joined(self, later: Sequence[NewKeys]) -> NewKeys:
        """See `BucketIndex`: the last one wins, because each includes all entries before it.

        Raises `UnsupportedError` if one does not include them, because a key could then have two
        rows.
        """
        for before, after in itertools.pairwise([self, *later]):
            if after.names[: len(before.names)] != before.names:
                raise UnsupportedError(
                    "several tasks wrote rows of the same bucket of a table with a key index in "
                    "parallel; write the rows of a bucket in one task"
                )
        return [self, *later][-1]

    def encoded(self, store: Store, before: Sequence[IndexFile], table: str) -> EncodedIndex:
        """See `BucketIndex`: adds one run, which absorbs the previous runs that are not much
        longer.
        """
        named, runs = self.index.head.runs, self.index.on(store).runs
        kept = list(zip(named, runs[: len(named)], strict=True))
        taken = list(runs[len(named) :])
        count = len(self.index.pending) + sum(map(len, taken))
        while kept and len(kept[-1][1]) < _TIMES_LONGER * count:
            taken.insert(0, kept.pop()[1])
            count += len(taken[0])
        try:
            entries, data = self._merged(taken)
        except DamagedRunError:
            # The next reader rebuilds the index. Until then, the remaining runs are still
            # distinguished.
            kept = list(zip(named, runs, strict=False))
            entries, data = self._merged(runs[len(named) :])
        stored = tuple(run for run, _ in kept)
        beside = {}
        if entries:
            name = paths.FileNames().metadata(paths.MetadataFile.INDEX)
            stored, beside = (*stored, StoredRun(name, entries, len(data))), {name: data}
        files = [replace(f, dead=self.dead.count(f.name)) for f in self.index.head.files]
        head = replace(self.index.head, files=tuple(files), runs=stored)
        ranges = tuple(VectorRange(run.name, 0, run.size, run.entries) for run in stored)
        remember = partial(_remember, head, beside)
        return EncodedIndex(head.encode(), sum(r.entries for r in stored), ranges, beside, remember)

    def _merged(self, runs: Sequence[EntrySource]) -> tuple[int, bytes]:
        """Merge some runs and the entries not stored yet into one run.

        Returns the number of entries and the run.
        """
        output = io.BytesIO()
        pieces = merged([*runs, self.index.pending])
        entries = write_run((without_gone(piece, self.index.head) for piece in pieces), output)
        return entries, output.getvalue()


# -- lookups ---------------------------------------------------------------------------------------


# A request takes about as long as the transfer of this many bytes. Smaller runs are fetched as a
# whole.
_WHOLE_BYTES_MAX = 8 << 20
_AHEAD_MAX = 16
# A run that needs a larger part of the cache would evict everything else.
_PART_OF_KEPT = 8
_BLOCKS_BYTES = 4 << 10

Range: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True)
class StoredKeys:
    """The stored index of a bucket: its head, and its runs, oldest first."""

    store: Store
    head: Head
    runs: tuple[Run | RemoteRun, ...]

    def find(self, hashes: KeyHashes) -> tuple[npt.NDArray[np.bool_], Entries]:
        """See `KeyIndex`. Remote runs are searched in parallel.

        Raises `DataError` for damaged runs.
        """
        return find_entries(hashes, self._search, self.head)

    def _search(self, probes: KeyHashes) -> Iterable[Found]:
        near = [run for run in self.runs if isinstance(run, Run)]
        if len(near) == len(self.runs):
            return search_parts(near, probes)
        return self.store.together([partial(run.find, probes) for run in reversed(self.runs)])


def open_keys(store: Store, file: IndexFile, kept_bytes_max: int) -> StoredKeys:
    """Open the index of a bucket. `kept_bytes_max` limits the cache.

    Raises `DataError` for a file that is missing or damaged, and `UnsupportedError` for one of a
    newer release.
    """
    places = file.ranges or ()
    runs = store.begin(
        lambda: store.together([partial(_opened, store, p, kept_bytes_max) for p in places])
    )
    head = load_head(store, paths.index_path(file.file_name))
    opened = tuple(runs.result())
    if [run.name for run in head.runs] != [place.data_file_name for place in places]:
        raise DataError(
            f"{store.uri_of(paths.index_path(file.file_name))}: the key index has other runs "
            "than the index manifest lists"
        )
    return StoredKeys(store, head, opened)


def open_ahead(store: Store, files: Sequence[IndexFile], kept_bytes_max: int) -> None:
    """Start to open remote indexes that will be needed, if they are few, in parallel with other
    requests.

    Errors appear when the indexes are used.
    """
    if len(files) <= _AHEAD_MAX:
        for file in files:
            store.begin(partial(open_keys, store, file, kept_bytes_max))


def _opened(store: Store, place: VectorRange, kept_bytes_max: int) -> Run | RemoteRun:
    name, size = place.data_file_name, place.length
    path = paths.index_path(name)
    if store.local_path(path) is not None or size <= _WHOLE_BYTES_MAX:
        return cached_run(store, name, size, kept_bytes_max)
    whole = cached_run_if_any(store, name)  # cached by a writer
    if whole is not None:
        return whole
    uri = store.uri_of(path)
    blocks: tuple[Block, ...] | None = FILES.find((uri, "blocks"))
    if blocks is None:
        with disk_errors("read", uri):
            blocks = _far_blocks(store, path, size)
        FILES.keep((uri, "blocks"), blocks, _BLOCKS_BYTES, kept_bytes_max)
    # Uses the store of the caller, because credentials of an earlier store may have expired.
    return RemoteRun(partial(_fetched, store, path, kept_bytes_max), uri, blocks)


def _far_blocks(store: Store, path: str, size: int) -> tuple[Block, ...]:
    """The blocks of a run. One request is enough unless there are very many blocks."""
    uri, wanted = store.uri_of(path), TAIL_BYTES
    while True:
        (tail,) = store.read_ranges(path, [(max(0, size - wanted), size)])
        found = blocks_of(np.frombuffer(tail, np.uint8), uri)
        if not isinstance(found, int):
            return found
        if found <= wanted or wanted > size:
            raise DataError(f"{uri}: this is not a key index, or it is damaged")
        wanted = found


def _fetched(store: Store, path: str, kept_bytes_max: int, ranges: Sequence[Range]) -> list[bytes]:
    key = (store.uri_of(path), tuple(ranges))
    kept: list[bytes] | None = FILES.find(key)
    if kept is None:
        kept = store.read_ranges(path, ranges)
        held = sum(map(len, kept))
        if held * _PART_OF_KEPT <= kept_bytes_max:
            FILES.keep(key, kept, held, kept_bytes_max)
    return kept
