"""Merges manifests of a snapshot into fewer ones. Entries are copied in encoded form.

Which manifests of a snapshot are merged into fewer ones: values only.

Merging does not change the meaning of an entry, only its place. So a snapshot means the same with
other groups of entries. The changes of a commit itself are never merged with earlier ones, because
readers of changes look for them separately.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from keytide.format import paths
from keytide.format.encoded_records import EncodedRecords
from keytide.format.entry import FileKind
from keytide.format.entry_columns import Entries, without_pairs
from keytide.format.manifest import ManifestFileMeta, copy_manifest, summarize_encoded
from keytide.format.paths import FileNames, MetadataFile
from keytide.options import TableOptions
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import TableView

# -- which manifests of a snapshot are merged into fewer ones: values only -------------------------


@dataclass(frozen=True)
class MergeRules:
    """When manifests are merged, according to the options of a table.

    `count_min` manifests are merged however small they are. Manifests that reach `target_bytes`
    together are merged however few they are. When all manifests that are small or delete files
    reach `full_bytes`, all of them are merged.
    """

    count_min: int = 30
    target_bytes: int = 8 << 20
    full_bytes: int = 16 << 20

    @classmethod
    def of(cls, options: TableOptions) -> MergeRules:
        """The rules of a table."""
        return cls(
            options.manifest_merge_min_count,
            options.manifest_target_bytes,
            options.manifest_full_merge_bytes,
        )


@dataclass(frozen=True)
class Rewrite:
    """The indexes of the manifests to rewrite, ascending.

    A full rewrite leaves no deletes: no manifest mentions a deleted file any more.
    """

    places: tuple[int, ...] = ()
    is_full: bool = False


def pick(manifests: Sequence[ManifestFileMeta], rules: MergeRules) -> Rewrite:
    """What to rewrite of a snapshot's manifests, given oldest first. Empty if it can wait."""
    everything = pick_all(manifests, rules)
    size = sum(manifests[place].file_size for place in everything.places)
    if everything.places and size >= rules.full_bytes:
        return everything
    return Rewrite(tuple(_minor(manifests, rules)))


def pick_all(manifests: Sequence[ManifestFileMeta], rules: MergeRules) -> Rewrite:
    """All manifests that are small or delete files. Empty if merging would not help."""
    places = tuple(
        place
        for place, manifest in enumerate(manifests)
        if manifest.num_deleted_files or _is_small(manifest, rules)
    )
    has_gain = any(stop - start > 1 for start, stop in runs_of(places)) or any(
        manifests[place].num_deleted_files for place in places
    )
    return Rewrite(places, is_full=True) if has_gain else Rewrite()


def runs_of(places: Sequence[int]) -> list[tuple[int, int]]:
    """Adjacent indexes as ranges, with exclusive ends."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs


def _minor(manifests: Sequence[ManifestFileMeta], rules: MergeRules) -> list[int]:
    """Adjacent manifests that reach the target size together, and the newest ones if there are
    many.
    """
    found: list[int] = []
    group: list[int] = []
    for place, manifest in enumerate(manifests):
        if not _is_small(manifest, rules):
            group = []  # files stay in the order of their commits
            continue
        group.append(place)
        if len(group) > 1 and sum(manifests[p].file_size for p in group) >= rules.target_bytes:
            found += group
            group = []
    return found + _many(manifests, group, rules.count_min)


def _many(manifests: Sequence[ManifestFileMeta], group: Sequence[int], count_min: int) -> list[int]:
    """The newest manifests of a group, when there are `count_min` of one size class.

    Classes grow by the factor `count_min`. A merge takes the newest manifests that are smaller than
    the limit of their class, and may fill the next class in turn. So an entry is rewritten only a
    logarithmic number of times, and the list of manifests stays short.
    """
    sizes = [manifests[p].num_added_files + manifests[p].num_deleted_files for p in group]
    start, limit = len(group), count_min
    while start > 0:
        newer = start
        while start > 0 and sizes[start - 1] < limit:
            start -= 1
        if newer - start >= count_min:
            return list(group[start:])
        limit *= count_min
    return []


def _is_small(manifest: ManifestFileMeta, rules: MergeRules) -> bool:
    return manifest.file_size < rules.target_bytes


# -- merges manifests of a snapshot into fewer ones. Entries are copied ----------------------------


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
