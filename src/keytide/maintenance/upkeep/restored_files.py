"""Brings back files of an older snapshot.

By a rule of the format, an identity that one manifest of a snapshot deletes is gone for readers, in
whatever order it is named. The level is part of the identity. So a file that is still live, but on
another level or with another index than before, does not come back under its old identity.
Otherwise the next compaction of any engine would name its move to the present level a second time,
and the file would be lost. It comes back as a copy with a new name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from keytide.base.threads import side_by_side
from keytide.commit.change import Restored, moved_since
from keytide.format.index_manifest import DELETION_VECTORS, IndexFile
from keytide.format.manifest import ManifestEntry
from keytide.format.paths import FileNames
from keytide.snapshot.bucket_index import by_index_key
from keytide.snapshot.dead_rows import DeadRows, load_dead_rows, vector_files_by_bucket
from keytide.snapshot.live_files import BucketId, LiveFiles
from keytide.snapshot.view import TableView

__all__ = ["Returning"]

_Renamed: TypeAlias = "dict[BucketId, dict[str, str]]"
"""The new names of files by their old ones, for each bucket."""

# A copy in an object store is one request, which only waits for the store.
_COPIES_AT_ONCE = 16


@dataclass(frozen=True)
class Returning:
    """The files and index files of some partitions, to be brought back."""

    view: TableView
    files: Sequence[ManifestEntry]
    indexes: Sequence[IndexFile]

    def onto(self, live: LiveFiles) -> tuple[Restored, tuple[ManifestEntry, ...]]:
        """What comes back to a table with these live files: unchanged files, and copies.

        The copies are stored on return. Raises `DataError`, and `UnsupportedError` if a file to
        copy is outside the table.
        """
        moved = moved_since(self.files, live)
        names = FileNames()
        copies = {entry.identity: _copy_of(entry, names, self.view) for entry in moved}
        try:
            self._store(moved, copies.values())
        except BaseException:
            view = self.view
            view.store.discard([p for copy in copies.values() for p in view.stored_paths(copy)])
            raise
        renamed: _Renamed = {}
        for entry in moved:
            bucket = renamed.setdefault((entry.partition, entry.bucket), {})
            bucket[entry.file.file_name] = copies[entry.identity].file.file_name
        kept = tuple(entry for entry in self.files if entry.identity not in copies)
        return self._restored(kept, renamed), tuple(copies.values())

    def _store(self, old: Iterable[ManifestEntry], new: Iterable[ManifestEntry]) -> None:
        view = self.view
        pairs = [
            pair
            for entry, copy in zip(old, new, strict=True)
            for pair in zip(view.stored_paths(entry), view.stored_paths(copy), strict=True)
        ]
        side_by_side([partial(view.store.copy, *pair) for pair in pairs], _COPIES_AT_ONCE)

    def _restored(self, kept: tuple[ManifestEntry, ...], renamed: _Renamed) -> Restored:
        """The index files too: deletion vectors name the files that they belong to."""
        outdated = {
            bucket: files
            for bucket, files in vector_files_by_bucket(self.indexes).items()
            if bucket in renamed
        }
        dead = {bucket: self._renamed(files, renamed[bucket]) for bucket, files in outdated.items()}
        indexes = tuple(
            index
            for index in self.indexes
            if index.index_type != DELETION_VECTORS
            or (index.partition, index.bucket) not in outdated
        )
        return Restored(kept, indexes, by_index_key(dead))

    def _renamed(self, files: tuple[IndexFile, ...], names: dict[str, str]) -> DeadRows:
        before = load_dead_rows(self.view.store, files, self.view.name)
        vectors = {names.get(name, name): vector for name, vector in before.vectors.items()}
        return DeadRows(vectors=vectors, has_changed=True)


def _copy_of(entry: ManifestEntry, names: FileNames, view: TableView) -> ManifestEntry:
    """A file, and the files that belong to it, under a new name."""
    old = entry.file.file_name
    new = names.data_file(old.rpartition(".")[2], view.options.data_file_prefix)
    # Files that belong to a data file are named after it. If one is not, its name is appended.
    extra = tuple(
        f"{new}{name.removeprefix(old)}" if name.startswith(old) else f"{new}-{name}"
        for name in entry.file.extra_files
    )
    return replace(entry, file=replace(entry.file, file_name=new, extra_files=extra))
