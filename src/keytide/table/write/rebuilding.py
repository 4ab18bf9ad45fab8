"""Rebuilds the key index of a bucket from its rows.

Keys are processed in the order of their hashes, a part of them at a time, as many as 'read.memory'
has room for. The files are read once for each part. The result goes into a temporary file of the
process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.format.manifest import ManifestEntry
from keytide.index.comparison import NOTHING, Numbers
from keytide.index.entries import Entries, newest_of_each
from keytide.index.hashes import KeyHashes
from keytide.index.head import Head, IndexedFile
from keytide.index.run import Run, write_run
from keytide.store.base import disk_errors
from keytide.table.read.merged_versions import rows_in
from keytide.table.read.runs import StoredVersions
from keytide.table.read.sections import PlannedFile
from keytide.table.state.dead_rows import DeadRows
from keytide.table.state.key_index import KeyIndex
from keytide.table.state.view import TableView
from keytide.table.write.arrivals import Flags, exact
from keytide.table.write.row_keys import hashes_of

__all__ = ["bare_head", "rebuilt"]

# Measured: the memory for a row until it is known which row of its key is current.
_ROW_BYTES = 256
# Fewer rows save hardly any memory and take more time.
_ROWS_MIN = 8 << 10


def bare_head(view: TableView) -> Head:
    """The head of an index without rows."""
    return Head(view.options.upsert_hash_function, compared=view.comparison.counted_in)


def rebuilt(view: TableView, entries: Iterable[ManifestEntry], dead: DeadRows) -> KeyIndex:
    """The index of a bucket, built from its rows alone. The next commit stores its run.

    The current row of a key is its live row. If there is none, it is the dead row with the largest
    comparison value, and the last one on a tie. If several producers have their own columns, a row
    that was current is in no column behind earlier rows of its key. So the last of these rows has
    the largest value in each column, and late rows have smaller values in their columns.
    """
    oldest_first = sorted(entries, key=lambda e: (e.file.min_sequence_number, e.file.file_name))
    rows = _Rows(view, tuple(oldest_first), dead)
    marks, pieces = [NOTHING], _pieces(rows)

    def current() -> Iterator[Entries]:
        for piece, greatest in pieces:
            marks.append(greatest)
            yield piece

    run = _run_of(current())
    head = replace(
        bare_head(view), files=rows.covered, mark=max(marks), next_number=len(rows.covered)
    )
    return KeyIndex(head, (run,) if len(run) else ()).counted()


def _run_of(pieces: Iterable[Entries]) -> Run:
    """A run in a file that is deleted when the run is no longer used."""
    with (
        disk_errors("write", tempfile.gettempdir()),
        tempfile.TemporaryFile(prefix="keytide-index-") as file,
    ):
        write_run(pieces, file)
        file.flush()
        data = np.memmap(file, np.uint8, "r")
    return Run.of(np.asarray(data), "the rebuilt index")


def _pieces(rows: _Rows) -> Iterator[tuple[Entries, int]]:
    """The current row of each key, in the order of the hashes, and the largest comparison value."""
    rows_max = max(_ROWS_MIN, rows.view.options.read_memory_bytes // _ROW_BYTES)
    parts = -(-rows.count // rows_max)
    for part in range(parts):
        found = [*rows.of_keys(part, parts)]
        if found:
            every = Entries.together([some.entries for some in found])
            yield _current(rows.view, every, found), int(every.comparisons.max(initial=NOTHING))


@dataclass(frozen=True)
class _Some:
    """Some rows: their entries, which of them are live, and their comparison values."""

    entries: Entries
    lives: Flags
    compared: pa.Table


def _current(view: TableView, every: Entries, found: Sequence[_Some]) -> Entries:
    lives = np.concatenate([some.lives for some in found])
    freshness = view.comparison.numbers(pa.concat_tables([some.compared for some in found]))
    order = np.lexsort((np.arange(len(every)), *freshness[::-1], lives))
    return newest_of_each(every.take(order))


@dataclass(frozen=True)
class _Rows:
    """The rows of the files of a bucket, oldest file first."""

    view: TableView
    files: tuple[ManifestEntry, ...]
    dead: DeadRows

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(entry.file.row_count for entry in self.files)

    @property
    def covered(self) -> tuple[IndexedFile, ...]:
        """The index information about the files before their current rows are counted."""
        return tuple(
            IndexedFile(n, file.file_name, file.row_count, self.dead.count(file.file_name), 0)
            for n, file in enumerate(entry.file for entry in self.files)
        )

    def of_keys(self, part: int, parts: int) -> Iterator[_Some]:
        """The rows of the keys whose hashes are in one part of all hashes, in the order of
        writing.
        """
        fields = self.view.comparison.fields
        for number, entry in enumerate(self.files):
            lives = np.ones(entry.file.row_count, np.bool_)
            lives[self.dead.of(entry.file.file_name)] = False
            start = 0
            for rows in self._batches(entry):
                hashes = hashes_of(rows, self.view)
                own = np.flatnonzero(_parts_of(hashes, parts) == part)
                compared = exact(rows[pl.Series(own)], fields)
                numbers = self.view.comparison.in_index(compared)
                places = (np.full(len(own), number), start + own, numbers)
                yield _Some(Entries(hashes.take(own), *places), lives[start + own], compared)
                start += rows.height

    def _batches(self, entry: ManifestEntry) -> Iterator[pl.DataFrame]:
        """The rows of a file with their key and comparison columns."""
        names = (*self.view.schema.primary_keys, *self.view.comparison.names)
        stored = StoredVersions(self.view, entry.partition, tuple(dict.fromkeys(names)))
        file = PlannedFile(entry, has_kinds=False)
        fields = self.view.schema.select(stored.columns)
        rows_max = rows_in(self.view.options.read_memory_bytes, [file], fields)
        return stored.of_lone_files([file], max(_ROWS_MIN, rows_max))


def _parts_of(hashes: KeyHashes, parts: int) -> Numbers:
    """The part of each hash if all hashes are split into equal parts.

    The lowest hashes are in the first.
    """
    high = hashes.heads >> np.uint64(32)
    found: Numbers = (high * np.uint64(parts) >> np.uint64(32)).astype(np.int64)
    return found
