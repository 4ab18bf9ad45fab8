"""Merges manifests of a snapshot into fewer ones. Entries are copied in encoded form."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from keytide.commit.manifest_picking import Rewrite, runs_of
from keytide.format import paths
from keytide.format.encoded_records import EncodedRecords
from keytide.format.entry import FileKind
from keytide.format.entry_columns import Entries, without_pairs
from keytide.format.manifest import ManifestFileMeta, copy_manifest, summarize_encoded
from keytide.format.paths import FileNames, MetadataFile
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.view import TableView

__all__ = ["ManifestMerger"]

# Pieces compress differently. A manifest below the target size would be merged again repeatedly.
_ROOM = 1.25


@dataclass(frozen=True)
class ManifestMerger:
    """Rewrites manifests of a table under new, unique `names`."""

    metadata: TableMetadata
    view: TableView
    names: FileNames

    def rewritten(
        self, manifests: Sequence[ManifestFileMeta], rewrite: Rewrite, files: dict[str, bytes]
    ) -> list[ManifestFileMeta]:
        """All manifests of a snapshot after the rewrite. Files to store are added to `files`.

        The old manifests stay for the snapshots that name them. Raises `DataError`, which names the
        manifest, if one is missing or damaged.
        """
        opened = self._opened(manifests, rewrite.places)
        if rewrite.is_full:
            opened |= self._added_by(manifests, opened)
        runs = runs_of(sorted(opened))
        merged = list(manifests)
        for (start, stop), left in reversed(list(zip(runs, _left(opened, rewrite), strict=True))):
            merged[start:stop] = self._stored(left, files) if len(left) else []
        return merged

    def _opened(
        self, manifests: Sequence[ManifestFileMeta], places: Collection[int]
    ) -> dict[int, EncodedRecords]:
        opened = self.metadata.open_manifests([manifests[place] for place in places])
        return dict(zip(places, opened, strict=True))

    def _added_by(
        self, manifests: Sequence[ManifestFileMeta], opened: dict[int, EncodedRecords]
    ) -> dict[int, EncodedRecords]:
        """Those of the other manifests that add a file which the opened ones delete."""
        entries = _entries_of(opened.values())
        left = entries.filter(without_pairs(entries))
        names = left.filter(left.column("_KIND") == FileKind.DELETE).column("_FILE_NAME")
        if names.is_empty():
            return {}
        places = [place for place in range(len(manifests)) if place not in opened]
        others = self._opened(manifests, places)
        return {
            place: records
            for place, records in others.items()
            if records.columns.select(_NAME.is_in(names.implode()).any()).item()
        }

    def _stored(self, entries: EncodedRecords, files: dict[str, bytes]) -> list[ManifestFileMeta]:
        """The entries as manifests of at least the target size, except for a single one."""
        whole = copy_manifest(entries)
        count = int(len(whole) / (_ROOM * self.view.options.manifest_target_bytes))
        if count < 2:
            return [self._named(entries, whole, files)]
        pieces = entries.pieces(count)
        return [self._named(piece, copy_manifest(piece), files) for piece in pieces]

    def _named(
        self, entries: EncodedRecords, data: bytes, files: dict[str, bytes]
    ) -> ManifestFileMeta:
        types = [f.type for f in self.view.schema.partition_fields()]
        name = self.names.metadata(MetadataFile.MANIFEST)
        files[paths.manifest_path(name)] = data
        return summarize_encoded(entries, name, len(data), self.view.schema.id, types)


_NAME = pl.col("_FILE").struct.field("_FILE_NAME")


def _entries_of(opened: Iterable[EncodedRecords]) -> Entries:
    return Entries.stored(pl.concat([records.columns for records in opened]))


def _left(opened: dict[int, EncodedRecords], rewrite: Rewrite) -> Iterator[EncodedRecords]:
    """The remaining entries of each run of manifests, after matching adds and deletes in any of
    them cancel out.
    """
    places = sorted(opened)
    entries = _entries_of(opened[place] for place in places)
    left = without_pairs(entries, forget=rewrite.is_full)
    first = 0
    for start, stop in runs_of(places):
        run = EncodedRecords.together([opened[place] for place in range(start, stop)])
        yield run.filter(left[first : first + len(run)])
        first += len(run)
