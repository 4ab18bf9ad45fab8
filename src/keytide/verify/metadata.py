"""Verification of metadata: the documents of a branch that are found by name, and its manifests.

The documents are schemas, snapshots, tags and so on. Manifest lists and manifests are verified
against each other, and each is read once.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import polars as pl

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.text import held_by_python
from keytide.errors import InvalidError
from keytide.format import paths
from keytide.format.manifest import (
    ManifestFileMeta,
    decode_manifest,
    decode_manifest_list,
    summarize,
)
from keytide.format.manifest_entry import FileKind, ManifestEntry
from keytide.format.paths import BranchStore
from keytide.format.schema import TableSchema, all_fields, highest_field_id, validate_schema
from keytide.format.snapshot import Consumer, Snapshot, Tag
from keytide.format.stats import SimpleStats
from keytide.options import TableOptions
from keytide.read.sections import decoded
from keytide.snapshot.authority import Commits
from keytide.snapshot.branch_tables import torn_branches
from keytide.snapshot.state import TableView
from keytide.store import Store
from keytide.types import Field
from keytide.verify.finding import Findings

# -- documents of a branch -------------------------------------------------------------------------


K = TypeVar("K")
V = TypeVar("V")

_WITHDRAWAL_S = 0.5


@dataclass(frozen=True)
class Branch:
    """One branch, as far as it can be read. `folder` is where its files are in the table."""

    store: Store
    table: str
    folder: str
    schemas: dict[int, TableSchema]
    snapshots: dict[int, Snapshot]
    tags: dict[str, Tag]
    changelogs: dict[int, Snapshot]
    listed: tuple[str, ...]
    """The paths of the listed snapshots and tags, whether or not they could be read."""
    _views: dict[int, TableView] = field(default_factory=dict)

    @property
    def newest(self) -> Snapshot | None:
        """The latest snapshot that can be read."""
        return self.snapshots[max(self.snapshots)] if self.snapshots else None

    def path(self, path: str) -> str:
        """The path of a branch's file in the table."""
        return paths.join(self.folder, path)

    def view(self, schema_id: int) -> TableView | None:
        """The table at the schema that a file was written with. None if the schema is damaged."""
        if schema_id not in self._views and schema_id in self.schemas:
            schema = self.schemas[schema_id]
            options = TableOptions.parse(schema.options)
            self._views[schema_id] = TableView(
                self.store, self.table, schema, self.schemas, options
            )
        return self._views.get(schema_id)


@dataclass(frozen=True)
class Branches:
    """The names of the branches without the main one, sorted.

    `torn` are incomplete: a process is creating or deleting them, or died while doing so.
    """

    whole: tuple[str, ...]
    torn: tuple[str, ...]

    @classmethod
    def of(cls, store: Store) -> Branches:
        """The branches of the table that a store is rooted at."""
        # The names first: branches that are created later are not checked.
        names = [paths.parse_branch_name(n) for n in store.list_names(paths.branches_dir())]
        torn = tuple(torn_branches(store))
        return cls(tuple(sorted(n for n in names if n is not None and n not in torn)), torn)


def read_branches(
    store: Store, table: str, branches: Branches, commits: Commits, findings: Findings
) -> list[Branch]:
    """Read the main branch and all others of the table that a store is rooted at."""
    for name in branches.torn:
        findings.skip(paths.branch_dir(name), "its creation or deletion was interrupted")
    own = {"": store} | {paths.branch_dir(n): BranchStore(store, n) for n in branches.whole}
    documents = (_Documents(store, each, commits, own[each], findings) for each in own)
    return [of_branch.branch(table) for of_branch in documents]


@dataclass(frozen=True)
class _Documents:
    """Reads the files of one branch that are found by name."""

    store: Store
    folder: str
    commits: Commits
    own: Store
    """The branch as its place of commits sees it."""
    findings: Findings
    _listed: dict[str, list[str]] = field(default_factory=dict)

    def branch(self, table: str) -> Branch:
        # Others may be writing, and they must not make references look broken. So a document that
        # references another is read before the other: hints and tags before snapshots, and schemas,
        # which everything references, last. Consumers only move forward, so they are read after
        # snapshots.
        hints = self._hints()
        tags = self._all(paths.tag_dir(), paths.parse_tag_name, Tag.from_json)
        snapshots = self._snapshots(paths.snapshot_dir(), paths.parse_snapshot_name)
        changelogs = self._snapshots(paths.changelog_dir(), paths.parse_changelog_name)
        schemas = self._schemas()
        listed = tuple(
            paths.join(self.folder, directory, name)
            for directory in (paths.snapshot_dir(), paths.tag_dir())
            for name in self._names(directory)
            if paths.parse_snapshot_name(name) is not None or paths.parse_tag_name(name) is not None
        )
        branch = Branch(
            self.store, table, self.folder, schemas, snapshots, tags, changelogs, listed
        )

        for directory, number, path_of in (
            (paths.schema_dir(), paths.parse_schema_name, paths.schema_path),
            (paths.snapshot_dir(), paths.parse_snapshot_name, paths.snapshot_path),
        ):
            pairs = itertools.pairwise(self._numbers(directory, number))
            gaps = [(before, after) for before, after in pairs if after != before + 1]
            if gaps and directory == paths.snapshot_dir():
                # A writer that was overtaken by a rollback is about to withdraw its commit.
                time.sleep(_WITHDRAWAL_S)
            for before, after in gaps:
                path = paths.join(self.folder, path_of(before + 1))
                wanted = f"a file for each number from {before} to {after}"
                self.findings.add(path, "missing", wanted)
        if self._numbers(paths.schema_dir(), paths.parse_schema_name)[:1] != [0]:
            self.findings.add(
                paths.join(self.folder, paths.schema_path(0)), "missing", "the first schema"
            )
        self._check_hints(hints)
        self._check_tags(branch)
        self._check_consumers()
        return branch

    def _all(
        self, directory: str, number: Callable[[str], K | None], parse: Callable[[bytes, str], V]
    ) -> dict[K, V]:
        found: dict[K, V] = {}
        for name in self._names(directory):
            key = number(name)
            path = paths.join(self.folder, directory, name)
            if key is not None:
                with self.findings.reading(path):
                    found[key] = parse(self.store.read(path), path)
        return found

    # -- schemas --------------------------------------------------------------------------------

    def _schemas(self) -> dict[int, TableSchema]:
        found = self._all(paths.schema_dir(), paths.parse_schema_name, TableSchema.from_json)
        sound = {}
        for number, schema in sorted(found.items()):
            path = paths.join(self.folder, paths.schema_path(number))
            with self.findings.reading(path, "a valid table definition"):
                # Raise InvalidError for an impossible schema.
                if schema.id != number:
                    raise InvalidError(
                        f"member 'id' is {schema.id}, but the file name says {number}"
                    )
                validate_schema(schema)
                ids = [each.id for each in all_fields(schema.fields)]
                if len(set(ids)) < len(ids) or min(ids) < 0:
                    raise InvalidError(
                        f"the ids of columns and nested fields are {ids}, which are not unique"
                    )
                if highest_field_id(schema.fields) > schema.highest_field_id:
                    raise InvalidError(
                        f"highestFieldId is {schema.highest_field_id}, but a column has the id "
                        f"{highest_field_id(schema.fields)}"
                    )
                options = TableOptions.parse(schema.options)
                for name in (*options.bucket_key, *options.sequence_field):
                    schema.field(name)
                sound[number] = schema
        for before, after in itertools.pairwise(sound.values()):
            if after.highest_field_id < before.highest_field_id:
                self.findings.add(
                    paths.join(self.folder, paths.schema_path(after.id)),
                    f"highestFieldId is {after.highest_field_id}",
                    f"{before.highest_field_id}, as in schema {before.id}, or more",
                )
        return sound

    # -- snapshots ------------------------------------------------------------------------------

    def _snapshots(
        self, directory: str, number: Callable[[str], int | None]
    ) -> dict[int, Snapshot]:
        found = self._all(directory, number, Snapshot.from_json)
        for name, snapshot in found.items():
            if snapshot.id != name:
                path = paths.join(self.folder, directory, f"{directory}-{name}")
                self.findings.add(
                    path, f"member 'id' is {snapshot.id}", f"{name}, as the file name says"
                )
        return dict(sorted(found.items()))

    def _numbers(self, directory: str, number: Callable[[str], int | None]) -> list[int]:
        names = self._names(directory)
        return sorted(found for name in names if (found := number(name)) is not None)

    def _names(self, directory: str) -> list[str]:
        """The names in a directory, which is listed once."""
        if directory not in self._listed:
            names = self.store.list_names(paths.join(self.folder, directory))
            if directory == paths.snapshot_dir():
                # The names without those of snapshots that the place of commits did not accept.
                # Requested after the listing: what is created or expires in between is out of its
                # range.
                newest = max(self.commits.ids(self.own), default=0)
                numbers = ((name, paths.parse_snapshot_name(name)) for name in names)
                names = [name for name, number in numbers if number is None or number <= newest]
            self._listed[directory] = [*names, *self._unlisted(directory, names)]
        return self._listed[directory]

    def _unlisted(self, directory: str, names: Sequence[str]) -> Iterator[str]:
        """The names of numbered files that exist but are missing from a listing, which may lag."""
        path_of: Callable[[int], str]
        if directory == paths.schema_dir():
            numbers, path_of = map(paths.parse_schema_name, names), paths.schema_path
        elif directory == paths.snapshot_dir():
            numbers, path_of = map(paths.parse_snapshot_name, names), paths.snapshot_path
        else:
            return
        known = sorted(number for number in numbers if number is not None)
        if directory == paths.schema_dir():  # they begin with 0, and others may follow
            known = [-1, *known, sys.maxsize]
        for before, after in itertools.pairwise(known):
            for number in range(before + 1, after):
                if not self.store.exists(paths.join(self.folder, path_of(number))):
                    break
                yield path_of(number).rpartition("/")[2]

    def _hints(self) -> dict[paths.Hint, bytes]:
        found = {}
        for hint in paths.Hint:
            path = paths.join(self.folder, paths.snapshot_hint_path(hint))
            with self.findings.reading(path):
                if self.store.exists(path):
                    found[hint] = self.store.read(path)
        return found

    def _check_hints(self, hints: Mapping[paths.Hint, bytes]) -> None:
        numbers = self._numbers(paths.snapshot_dir(), paths.parse_snapshot_name)
        newest = max(numbers, default=0)
        for hint, data in hints.items():
            path = paths.join(self.folder, paths.snapshot_hint_path(hint))
            with self.findings.reading(path):
                hinted = paths.decode_hint(data)
                if hinted is None:
                    self.findings.add(path, "it names no snapshot", "a number", _HINT_WAY_OUT)
                    continue
                if hint is not paths.Hint.LATEST or hinted <= newest:
                    continue
                # The listing may lag behind.
                if not self.store.exists(paths.join(self.folder, paths.snapshot_path(hinted))):
                    self.findings.add(
                        path,
                        f"it names snapshot {hinted}, which does not exist",
                        f"an existing snapshot, or at most {newest}",
                        f"Restore {paths.snapshot_path(hinted)} from a backup; if it never "
                        f"existed, {_HINT_WAY_OUT[0].lower()}{_HINT_WAY_OUT[1:]}",
                    )

    # -- tags and consumers ---------------------------------------------------------------------

    def _check_tags(self, branch: Branch) -> None:
        for name, tag in branch.tags.items():
            of_same_id = branch.snapshots.get(tag.snapshot.id)
            # After a rollback, another commit may have the same number.
            if of_same_id is None or of_same_id.uuid != tag.snapshot.uuid:
                continue

            # The snapshot without members that the copying engine did not know, and that rows do
            # not need.
            lost: dict[str, Any] = {
                name: None for name in _DISPENSABLE if getattr(tag.snapshot, name) is None
            }
            if replace(of_same_id, **lost) != tag.snapshot:
                self.findings.add(
                    branch.path(paths.tag_path(name)),
                    f"it differs from snapshot {tag.snapshot.id}, which it keeps",
                    "the same members as in the snapshot's own file",
                )

    def _check_consumers(self) -> None:
        consumers = self._all(paths.consumer_dir(), paths.parse_consumer_name, Consumer.from_json)
        there = self._numbers(paths.snapshot_dir(), paths.parse_snapshot_name)
        there += self._numbers(paths.changelog_dir(), paths.parse_changelog_name)
        first = min(there, default=0)
        for name, consumer in consumers.items():
            # A consumer beyond the latest snapshot waits: a rollback does not move consumers.
            if consumer.next_snapshot < first:
                self.findings.add(
                    paths.join(self.folder, paths.consumer_dir(), f"consumer-{name}"),
                    f"its next snapshot is {consumer.next_snapshot}",
                    f"snapshot {first}, the oldest existing one, or a later one",
                    "Restart this consumer, or restore the snapshots from a backup",
                )


_DISPENSABLE = ("writer_version", "properties", "next_row_id")

_HINT_WAY_OUT = "Delete the hint: readers then list the snapshots"


# -- manifests -------------------------------------------------------------------------------------


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
        name, path = meta.file_name, paths.manifest_path(meta.file_name)
        if name not in self._entries:
            with self._findings.reading(path):
                entries = list(decode_manifest(self._store.read(path), path, meta.file_size))
                self._entries[name] = entries
                self._held += len(entries)
                while self._held > _ENTRIES_MAX and len(self._entries) > 1:
                    _, dropped = self._entries.popitem(last=False)
                    self._held -= len(dropped)
        found = self._entries.get(name)
        if found is not None and self._described.get(name) != meta:
            self._described[name] = meta
            with self._findings.reading(path):
                # A manifest is read once, but another list may record another size.
                size = self._store.size(path)
                if size != meta.file_size:
                    expected = f"{meta.file_size}, as its manifest list says"
                    self._findings.add(path, f"{size} bytes", expected)
            self._check(meta, found)
        return found

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
