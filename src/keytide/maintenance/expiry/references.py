"""Which files snapshots reference, and what keeps snapshots that are no longer in line.

A file is identified by its name alone: every name contains an id that no other file of the table
has. A file that moves to another level keeps its name, so some snapshot still references it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from keytide.changes.stored_rows import told_list
from keytide.format import paths
from keytide.format.branch import BranchStore, branch_of, main_store
from keytide.format.entry_columns import Entries, is_live
from keytide.format.index_files import IndexFile
from keytide.format.manifest import FileKind, ManifestEntry, ManifestFileMeta
from keytide.format.snapshot import Consumer, Snapshot, Tag
from keytide.options import keys
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import TableView
from keytide.store import Store

__all__ = [
    "Line",
    "Naming",
    "changelogs",
    "consumers",
    "held_lines",
    "index_file_path",
    "metadata_files",
    "name_of",
]

K = TypeVar("K")
V = TypeVar("V")


def name_of(path: str) -> str:
    """The name that identifies a file."""
    return path.rsplit("/", 1)[-1]


# -- what keeps snapshots --------------------------------------------------------------------------


Line: TypeAlias = "Iterable[Snapshot]"
"""Consecutive snapshots, oldest first: each is based on the one before it."""


def held_lines(store: Store) -> Iterator[Line]:
    """The snapshots of tags, each a separate line, and the lines of the other branches.

    For a table, these are its branches. For a branch, these are the main branch and all others.
    Raises `DataError` for a damaged snapshot, because what it references is unknown.
    """
    yield from _tagged(store)
    for other in _other_branches(store):
        # Tags first: a rollback of a branch to a tag turns the tag into a snapshot.
        yield from _tagged(other)
        parse = Snapshot.from_json
        found = _documents(other, paths.snapshot_dir(), paths.parse_snapshot_name, parse)
        yield [found[number] for number in sorted(found)]


def changelogs(store: Store) -> list[Snapshot]:
    """The changelogs that have outlived their snapshots, of the table and all of its branches."""
    parse = Snapshot.from_json
    found = (
        _documents(each, paths.changelog_dir(), paths.parse_changelog_name, parse)
        for each in (store, *_other_branches(store))
    )
    return [changelog for documents in found for changelog in documents.values()]


def _other_branches(store: Store) -> Iterator[Store]:
    """The stores of all other branches, including incomplete ones."""
    main, own = main_store(store), branch_of(store)
    if own != paths.MAIN_BRANCH:
        yield main
    for branch in map(paths.parse_branch_name, main.list_names(paths.branches_dir())):
        if branch is not None and branch != own:
            yield BranchStore(main, branch)


def consumers(store: Store) -> dict[str, Consumer]:
    """The positions of named consumers. Raises `DataError` for a damaged one."""
    return _documents(store, paths.consumer_dir(), paths.parse_consumer_name, Consumer.from_json)


def _tagged(store: Store) -> Iterator[Line]:
    for tag in _documents(store, paths.tag_dir(), paths.parse_tag_name, Tag.from_json).values():
        yield [tag.snapshot]


def _documents(
    store: Store, directory: str, parse_name: Callable[[str], K | None],
    parse: Callable[[bytes, str], V],
) -> dict[K, V]:  # fmt: skip
    """The documents of a folder by the value in their names.

    A document that is renamed in the meantime is found under one of its names, because the folder
    is listed again.
    """
    listed = store.list_names(directory)
    while True:
        found = {}
        for name in listed:
            key = parse_name(name)
            if key is None:
                continue
            path = paths.join(directory, name)
            (data,) = store.read_present([path])
            if data is not None:
                found[key] = parse(data, store.uri_of(path))
        before, listed = listed, store.list_names(directory)
        if listed == before:
            return found


# -- what a snapshot references --------------------------------------------------------------------


def metadata_files(metadata: TableMetadata, snapshot: Snapshot, view: TableView) -> dict[str, int]:
    """All files except data files that a snapshot references: paths and sizes, 0 if unknown.

    A list comes after what it names. Raises `DataError` for a list that is missing or damaged.
    """
    lists = [
        (snapshot.base_manifest_list, snapshot.base_manifest_list_size),
        (snapshot.delta_manifest_list, snapshot.delta_manifest_list_size),
    ]
    if snapshot.changelog_manifest_list is not None:
        lists.append((snapshot.changelog_manifest_list, snapshot.changelog_manifest_list_size))
    manifests = [meta for each in lists for meta in metadata.manifest_list(*each)]
    found = {index_file_path(view, f): f.file_size for f in metadata.index_files(snapshot)
             if f.external_path is None}  # fmt: skip
    found |= {paths.index_path(name): size for f in metadata.index_files(snapshot)
              for name, size in f.beside.items()}  # fmt: skip
    found |= {paths.manifest_path(meta.file_name): meta.file_size for meta in manifests}
    if snapshot.statistics is not None:
        found[paths.statistics_path(snapshot.statistics)] = 0
    if snapshot.index_manifest is not None:
        found[paths.manifest_path(snapshot.index_manifest)] = 0
    return found | {paths.manifest_path(name): size or 0 for name, size in lists}


def index_file_path(view: TableView, file: IndexFile) -> str:
    """The path of an index file."""
    if view.options.value(keys.INDEX_FILE_IN_DATA_FILE_DIR):
        return paths.join(view.bucket_directory(file.partition, file.bucket), file.file_name)
    return paths.index_path(file.file_name)


def _names(entries: Iterable[ManifestEntry]) -> set[str]:
    """The names of data files and of their extra files."""
    return {
        _SHARED.sub(r"\1\2", name)
        for entry in entries
        for name in (entry.file.file_name, *entry.file.extra_files)
    }


# A changelog file that several buckets share has the position of each part in the name of the part.
_SHARED = re.compile(r"^(.*\$\d+-\d+)-\d+-\d+(\..*)$")


@dataclass
class Naming:
    """Finds which of the `wanted` files snapshots reference.

    Reads each manifest once, however many snapshots have it.
    """

    metadata: TableMetadata
    view: TableView
    wanted: Collection[str]
    _entries: dict[str, Entries] = field(default_factory=dict)

    def of(self, lines: Iterable[Line]) -> set[str]:
        """The wanted files that snapshots of the lines reference.

        Raises `DataError` like other reads.
        """
        named: set[str] = set()
        for line in lines if self.wanted else ():
            before = None
            for snapshot in line:
                is_next = before is not None and snapshot.id == before.id + 1
                named |= self._of(snapshot, is_next=is_next)
                before = snapshot
        return named

    def of_changelogs(self, changelogs: Iterable[Snapshot]) -> set[str]:
        """The same for changelogs that have outlived their snapshots."""
        named: set[str] = set()
        for changelog in changelogs if self.wanted else ():
            told = told_list(changelog, self.view.options.changelog_producer)
            # Without its list, nothing is left of it, or another process is about to delete it.
            if told is None or not self.metadata.store.exists(paths.manifest_path(told[0])):
                continue
            manifests = self.metadata.manifest_list(*told)
            files = (told[0], *(meta.file_name for meta in manifests))
            named.update(name for name in files if name in self.wanted)
            entries = Entries.together([self._of_manifest(meta) for meta in manifests])
            named |= _names(entries.filter(entries.column("_KIND") == FileKind.ADD))
        return named

    def _of(self, snapshot: Snapshot, *, is_next: bool) -> set[str]:
        """What a snapshot references. If it is the next one, only what the previous one did not."""
        files = map(name_of, metadata_files(self.metadata, snapshot, self.view))
        named = {name for name in files if name in self.wanted}
        read = self.metadata.delta_manifests if is_next else self.metadata.manifests
        named |= self._data_files(read(snapshot))
        return named | self._data_files(self.metadata.changelog_manifests(snapshot))

    def _data_files(self, manifests: Iterable[ManifestFileMeta]) -> set[str]:
        """The live data files in manifests, with their extra files."""
        found = Entries.together([self._of_manifest(meta) for meta in manifests])
        live = found.filter(is_live(found)) if len(found) else found
        return _names(live)

    def _of_manifest(self, meta: ManifestFileMeta) -> Entries:
        if meta.file_name not in self._entries:
            entries = self.metadata.manifest(meta)
            is_wanted = entries.column("_FILE_NAME").is_in(self.wanted)
            self._entries[meta.file_name] = entries.filter(is_wanted)
        return self._entries[meta.file_name]
