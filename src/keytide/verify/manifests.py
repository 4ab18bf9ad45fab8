"""Verifies manifest lists and manifests against each other. Each is read once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import polars as pl

from keytide.base.value_text import held_by_python
from keytide.format import paths
from keytide.format.manifest import (
    FileKind,
    ManifestEntry,
    ManifestFileMeta,
    decode_manifest,
    decode_manifest_list,
    summarize,
)
from keytide.format.stats import SimpleStats
from keytide.read.statistics import decoded
from keytide.store import Store
from keytide.types import Field
from keytide.verify.finding import Findings

__all__ = ["Manifests"]

# An entry takes about a kilobyte. Evicted entries are read again when needed.
_ENTRIES_MAX = 200_000


class Manifests:
    """Reads the manifests of a table without any cache: what counts is what is stored now.

    `partition` are the partition columns, which never change.
    """

    def __init__(self, store: Store, partition: Sequence[Field], findings: Findings) -> None:
        self._store = store
        self._partition = list(partition)
        self._findings = findings
        self._entries: OrderedDict[str, list[ManifestEntry]] = OrderedDict()
        self._held = 0
        self._described: dict[str, ManifestFileMeta] = {}

    def listed(self, name: str, size: int | None) -> list[ManifestFileMeta] | None:
        """The manifests of a list. None if it cannot be read. `size` is the recorded size."""
        path = paths.manifest_path(name)
        with self._findings.reading(path):
            return decode_manifest_list(self._store.read(path), path, size)
        return None

    def entries(self, manifests: Iterable[ManifestFileMeta] | None) -> list[ManifestEntry] | None:
        """The entries of manifests. None if one of these, or their list, cannot be read."""
        found: list[ManifestEntry] = []
        is_whole = manifests is not None
        for meta in manifests or ():
            entries = self._of(meta)
            is_whole = is_whole and entries is not None
            found += entries or ()
        return found if is_whole else None

    def added(self, manifests: Iterable[ManifestFileMeta] | None) -> list[ManifestEntry]:
        """The files that manifests add, as far as these can be read."""
        found = (entry for meta in manifests or () for entry in self._of(meta) or ())
        return [entry for entry in found if entry.kind is FileKind.ADD]

    def _of(self, meta: ManifestFileMeta) -> list[ManifestEntry] | None:
        name = meta.file_name
        if name not in self._entries:
            path = paths.manifest_path(name)
            with self._findings.reading(path):
                entries = decode_manifest(self._store.read(path), path, meta.file_size)
                self._hold(name, list(entries))
        found = self._entries.get(name)
        if found is not None and self._described.get(name) != meta:
            self._described[name] = meta
            self._check_size(meta)
            self._check(meta, found)
        return found

    def _check_size(self, meta: ManifestFileMeta) -> None:
        """Check the size of a manifest.

        It is read once, but another list may record another size.
        """
        path = paths.manifest_path(meta.file_name)
        with self._findings.reading(path):
            size = self._store.size(path)
            if size != meta.file_size:
                self._findings.add(
                    path, f"{size} bytes", f"{meta.file_size}, as its manifest list says"
                )

    def _hold(self, name: str, entries: list[ManifestEntry]) -> None:
        self._entries[name] = entries
        self._held += len(entries)
        while self._held > _ENTRIES_MAX and len(self._entries) > 1:
            _, dropped = self._entries.popitem(last=False)
            self._held -= len(dropped)

    def _check(self, meta: ManifestFileMeta, entries: Sequence[ManifestEntry]) -> None:
        """Check what a list says about a manifest: counts are exact, and bounds are true for every
        entry.
        """
        path = paths.manifest_path(meta.file_name)
        true = summarize(entries, meta.file_name, meta.file_size, meta.schema_id, ())
        for what, said, counted in (
            ("added files", meta.num_added_files, true.num_added_files),
            ("deleted files", meta.num_deleted_files, true.num_deleted_files),
        ):
            if said != counted:
                self._findings.add(path, f"{counted} {what}", f"{said}, as its manifest list says")
        for what, low, high, least, most in (
            ("buckets", meta.min_bucket, meta.max_bucket, true.min_bucket, true.max_bucket),
            ("levels", meta.min_level, meta.max_level, true.min_level, true.max_level),
        ):
            if least is None or most is None:
                continue
            if (low is not None and least < low) or (high is not None and most > high):
                self._findings.add(
                    path, f"{what} {least} to {most}", f"{low} to {high}, as its manifest list says"
                )
        self._check_partitions(path, meta.partition_stats, entries)

    def _check_partitions(
        self, path: str, stats: SimpleStats, entries: Sequence[ManifestEntry]
    ) -> None:
        if not self._partition or not entries:
            return
        with self._findings.reading(path, "partitions within the bounds of its manifest list"):
            values = decoded(list({entry.partition for entry in entries}), self._partition)
            bounds = decoded([stats.min_values, stats.max_values], self._partition)
            for f in self._partition:
                ends, column = bounds.select(f.name), pl.col(f.name)
                if ends[f.name].null_count():
                    continue
                low, high = (pl.lit(ends[f.name][place : place + 1]).first() for place in (0, 1))
                outside = values.select(f.name).filter((column < low) | (column > high))
                if outside.height:
                    found, *said = held_by_python(pl.concat([outside.head(1), ends]))[f.name]
                    self._findings.add(
                        path,
                        f"partition column {f.name!r} is {found!r}",
                        f"{said[0]!r} to {said[1]!r}, as its manifest list says",
                    )
