"""References of snapshots to files, and the deletion of files that nothing references any more.

A file is identified by its name alone: every name contains an id that no other file of the table
has. A file that moves to another level keeps its name, so some snapshot still references it.

Files that become unreachable when snapshots expire are found from the changes of commits. The
snapshots of a table form a line, on which each file is live from one commit to another. So if an
expired snapshot has a file and the oldest kept snapshot does not, no later snapshot has it. Tags
and branches may still have it.

These rules protect data:

- A reader of a snapshot, tag, branch or changelog finds all of its files. So these documents are
  deleted first, and their files afterwards.
- Tags and branches are read after the expired documents are deleted. The creator of a tag checks,
  after creating it, whether the snapshot still exists. One of the two sees the other.
- What will be deleted is recorded in a file first. If the process dies, the next one finds this
  record. It does not trust the record: it deletes only what nothing references at that time.
- Publications are read at the same point. A publisher checks, after publishing, whether the
  snapshot still exists.
- If the remaining snapshots are not those that were planned, because the table was rolled back in
  the meantime, everything that they reference stays.

Several processes can sweep at the same time. What one finds gone was deleted by another.

A tag protects what a restore has brought back. The snapshots of a table form a line, and expiry
assumes that a file that one of them dropped is in no later one. A restore breaks this rule, because
dropped files come back. So the snapshot that they come from has a tag, which protects them, until
every snapshot from before the restore has expired. After that, the rule holds for the rest again.
Other engines respect tags too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

from keytide.base.dataclass import dataclass, field
from keytide.changes.stored_rows import changelog_list
from keytide.errors import DataError, InvalidError, NotFoundError
from keytide.format import paths
from keytide.format.index_files import IndexFile
from keytide.format.json_document import INTEGER, TEXTS, member, read_document, write_document
from keytide.format.manifest import ManifestFileMeta
from keytide.format.manifest_entry import Entries, FileKind, ManifestEntry, is_live
from keytide.format.paths import BranchStore, branch_of, main_store
from keytide.format.snapshot import Consumer, Snapshot, Tag
from keytide.gate import refuse_cleaners
from keytide.options import keys
from keytide.publish.publish import names_of_published
from keytide.snapshot.live_files import is_gone, retried
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import TableView
from keytide.store import Store

# -- names of files --------------------------------------------------------------------------------


K = TypeVar("K")
V = TypeVar("V")


def name_of(path: str) -> str:
    """The name that identifies a file."""
    return path.rsplit("/", 1)[-1]


# -- holders of snapshots --------------------------------------------------------------------------


Line: TypeAlias = "Iterable[Snapshot]"
"""Consecutive snapshots, oldest first: each is based on the one before it."""


def protected_lines(store: Store) -> Iterator[Line]:
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


# -- references of a snapshot ----------------------------------------------------------------------


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
              for name, size in f.run_files.items()}  # fmt: skip
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
class ReferenceSearch:
    """Finds which of the `candidates`, names of files, snapshots reference.

    Reads each manifest once, however many snapshots have it.
    """

    metadata: TableMetadata
    view: TableView
    candidates: Collection[str]
    _entries: dict[str, Entries] = field(default_factory=dict)

    def of(self, lines: Iterable[Line]) -> set[str]:
        """The wanted files that snapshots of the lines reference.

        Raises `DataError` like other reads.
        """
        named: set[str] = set()
        for line in lines if self.candidates else ():
            before = None
            for snapshot in line:
                files = map(name_of, metadata_files(self.metadata, snapshot, self.view))
                named.update(name for name in files if name in self.candidates)
                # The next one in line: only what the previous one did not reference.
                is_next = before is not None and snapshot.id == before.id + 1
                read = self.metadata.delta_manifests if is_next else self.metadata.manifests
                named |= self._data_files(read(snapshot))
                named |= self._data_files(self.metadata.changelog_manifests(snapshot))
                before = snapshot
        return named

    def of_changelogs(self, changelogs: Iterable[Snapshot]) -> set[str]:
        """The same for changelogs that have outlived their snapshots."""
        named: set[str] = set()
        for changelog in changelogs if self.candidates else ():
            manifest_list = changelog_list(changelog, self.view.options.changelog_producer)
            # Without its list, nothing is left of it, or another process is about to delete it.
            if manifest_list is None or not self.metadata.store.exists(
                paths.manifest_path(manifest_list[0])
            ):
                continue
            manifests = self.metadata.manifest_list(*manifest_list)
            files = (manifest_list[0], *(meta.file_name for meta in manifests))
            named.update(name for name in files if name in self.candidates)
            entries = Entries.together([self._of_manifest(meta) for meta in manifests])
            named |= _names(entries.filter(entries.column("_KIND") == FileKind.ADD))
        return named

    def _data_files(self, manifests: Iterable[ManifestFileMeta]) -> set[str]:
        """The live data files in manifests, with their extra files."""
        found = Entries.together([self._of_manifest(meta) for meta in manifests])
        live = found.filter(is_live(found)) if len(found) else found
        return _names(live)

    def _of_manifest(self, meta: ManifestFileMeta) -> Entries:
        if meta.file_name not in self._entries:
            entries = self.metadata.manifest(meta)
            is_wanted = entries.column("_FILE_NAME").is_in(self.candidates)
            self._entries[meta.file_name] = entries.filter(is_wanted)
        return self._entries[meta.file_name]


# -- unreachable files -----------------------------------------------------------------------------


def garbage_of(
    metadata: TableMetadata, view: TableView, expired: Sequence[Snapshot], kept: Snapshot
) -> dict[str, int]:
    """The files of expired snapshots that `kept`, the oldest kept snapshot, does not reference.

    Their paths and sizes in bytes, 0 if unknown. A file that references others comes after them.
    Files outside the table are left out, as in all code that changes files. Raises `DataError` for
    a file that is missing or damaged.
    """
    unused = [
        entry for each in expired for entry in metadata.entries(metadata.changelog_manifests(each))
    ]
    # The files that these consecutive commits removed permanently.
    dropped: dict[str, ManifestEntry] = {}
    for snapshot in (*expired[1:], kept):
        changes = metadata.entries(metadata.delta_manifests(snapshot))
        dropped |= {e.file.file_name: e for e in changes if e.kind is FileKind.DELETE}
        # A file that moves to another level is deleted and added under the same name.
        for entry in changes:
            if entry.kind is FileKind.ADD:
                dropped.pop(entry.file.file_name, None)
    files: dict[str, int] = {}
    for entry in (*dropped.values(), *unused):
        if entry.file.external_path is None:
            file, *beside = view.stored_paths(entry)
            files |= {file: entry.file.file_size} | dict.fromkeys(beside, 0)
    for each in expired:
        files |= metadata_files(metadata, each, view)
    named = metadata_files(metadata, kept, view)
    return {path: size for path, size in files.items() if path not in named}


def changelog_garbage_of(
    metadata: TableMetadata, view: TableView, changelogs: Iterable[Snapshot], kept: Snapshot | None
) -> dict[str, int]:
    """The files of expired changelogs that `kept`, the oldest kept one, does not reference.

    Otherwise like `garbage_of`.
    """
    files: dict[str, int] = {}
    for changelog in changelogs:
        manifest_list = changelog_list(changelog, view.options.changelog_producer)
        if manifest_list is None:
            continue
        manifests = metadata.manifest_list(*manifest_list)
        for entry in metadata.entries(manifests):
            if entry.kind is FileKind.ADD and entry.file.external_path is None:
                file, *beside = view.stored_paths(entry)
                files |= {file: entry.file.file_size} | dict.fromkeys(beside, 0)
        files |= {paths.manifest_path(meta.file_name): meta.file_size for meta in manifests}
        files[paths.manifest_path(manifest_list[0])] = manifest_list[1] or 0
    line = [] if kept is None else [kept]
    named = ReferenceSearch(metadata, view, frozenset(map(name_of, files))).of([line])
    return {path: size for path, size in files.items() if name_of(path) not in named}


# -- deletion of documents and their files ---------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """What to delete: snapshots, or changelogs, from one id to another, and possibly their files.

    `remaining_ids` are the snapshots that stay. Each of the `files` is deleted unless something
    else references it. If the existing snapshots are not `remaining_ids`, their references count
    too.
    """

    metadata: TableMetadata
    view: TableView
    first: int
    last: int
    files: Mapping[str, int]
    remaining_ids: frozenset[int]

    def run(self, delete_documents: Callable[[], None]) -> list[str]:
        """Delete documents with the given function, then files. Returns the deleted files.

        Raises the errors of the function, with no file deleted, and `DataError` if the store fails.
        """
        store, note = self.metadata.store, paths.expiring_path(paths.new_uuid())
        # The record is needed only if this process dies, so it need not survive a crash of the
        # machine.
        store.hint(note, _SweepRecord(self.first, self.last, tuple(self.files)).to_json())
        delete_documents()
        free = retried(lambda: free_files(self.metadata, self.view, self.files, self.remaining_ids))
        store.delete(free)
        store.delete([note])
        return free


def free_files(
    metadata: TableMetadata,
    view: TableView,
    files: Iterable[str],
    remaining_ids: Collection[int] | None,
    *,
    expired_changelogs: Sequence[Snapshot] = (),
    expired_snapshots: Sequence[Snapshot] = (),
) -> list[str]:
    """Those files that nothing references, given that the snapshots `remaining_ids` do not.

    If `remaining_ids` is None, or if the existing snapshots are not `remaining_ids` plus newer
    ones, snapshots are searched too. `expired_changelogs` are changelogs that will be created, and
    `expired_snapshots` those that will be deleted.
    """
    known = list(files)
    refuse_cleaners(view.schema, view.options, view.name)
    naming = ReferenceSearch(metadata, view, frozenset(map(name_of, known)))
    # Tags and branches first: if one of them becomes a snapshot, it is a snapshot of the table by
    # then.
    held = naming.of(protected_lines(metadata.store))
    ids = metadata.stored_snapshot_ids()
    if remaining_ids is None or {
        number for number in ids if number <= max(remaining_ids, default=0)
    } != {*remaining_ids}:
        # A listing that lags still shows some that have expired.
        held |= naming.of([metadata.each_there(ids)])
    # Changelogs last: an expiring snapshot becomes one.
    outliving = [each for each in changelogs(metadata.store) if each not in expired_snapshots]
    held |= naming.of_changelogs([*outliving, *expired_changelogs])
    held |= names_of_published(metadata.store, view)
    return [path for path in known if name_of(path) not in held]


def finish_sweeps(metadata: TableMetadata, view: TableView, names: Iterable[str]) -> None:
    """Finish the recorded work of processes that died, or that are still running.

    `names` is an earlier listing of the snapshot folder.
    """
    store = metadata.store
    for name in names:
        if paths.parse_expiring_name(name) is None:
            continue
        path = paths.join(paths.snapshot_dir(), name)
        try:
            data = store.read(path)
            try:
                note = _SweepRecord.from_json(data, store.uri_of(path))
            except DataError:  # damaged because the machine crashed: it cannot be used
                note = _SweepRecord(0, 0, ())
            store.delete(free_files(metadata, view, note.files, None))
            if not any(
                note.first <= number <= note.last for number in metadata.stored_snapshot_ids()
            ):
                store.delete([path])
        except (DataError, NotFoundError) as error:
            if not is_gone(error):
                raise


@dataclass(frozen=True)
class _SweepRecord:
    """What is about to be deleted: snapshots, and files that may be referenced only by them.

    Persisted.
    """

    first: int
    last: int
    files: tuple[str, ...]

    @classmethod
    def from_json(cls, data: bytes, path: str) -> _SweepRecord:
        """Parse a record. Raises `DataError` if it is damaged."""
        document = read_document(data, path)
        first, last = (member(document, name, INTEGER, path) for name in ("first", "last"))
        return cls(first, last, tuple(member(document, "files", TEXTS, path)))

    def to_json(self) -> bytes:
        """The bytes of the file."""
        return write_document(
            self, lambda note: {"first": note.first, "last": note.last, "files": note.files},
            _SweepRecord.from_json,
        )  # fmt: skip


# -- tags of restored files ------------------------------------------------------------------------


_BEFORE = re.compile(r"restoring-\d+-([0-9a-f]+)")
_AFTER = re.compile(r"restored-\d+-by-(\d+)")


def guard_of(snapshot: Snapshot, mark: str) -> str:
    """The name of the tag during a restore, whose author is `restorer(mark)`."""
    return f"restoring-{snapshot.id}-{mark}"


def settled_guard(snapshot: Snapshot, restored_by: int) -> str:
    """Its name when the restore is a snapshot."""
    return f"restored-{snapshot.id}-by-{restored_by}"


def restorer(mark: str) -> str:
    """The commit user of a restore."""
    return f"restore-{mark}"


def is_guard(name: str) -> bool:
    """Whether the name is that of a protecting tag."""
    return bool(_BEFORE.fullmatch(name) or _AFTER.fullmatch(name))


def is_over(metadata: TableMetadata, name: str) -> bool:
    """Whether the tag is no longer needed. Never true for a restore that may be running."""
    return _AFTER.fullmatch(name) is not None and not _is_needed(metadata, name)


def refuse_needed(metadata: TableMetadata, name: str) -> None:
    """Raise `InvalidError` for a tag that is still needed."""
    if is_guard(name) and _is_needed(metadata, name):
        raise InvalidError(
            f"table {metadata.name}: tag {name!r} protects restored files until the snapshots "
            "before the restore have expired, and is then deleted automatically. To delete it "
            "now, expire these snapshots: expire_snapshots(retain_max=1, retain_min=1)"
        )


def _is_needed(metadata: TableMetadata, name: str) -> bool:
    """Whether there are snapshots from before the restore, and the restore is part of the table."""
    ids = metadata.stored_snapshot_ids()
    settled, before = _AFTER.fullmatch(name), _BEFORE.fullmatch(name)
    if settled is not None:
        number = int(settled[1])
        return number in ids and ids[0] < number
    assert before is not None
    user = restorer(before[1])
    return any(metadata.snapshot(number).commit_user == user for number in ids[1:])
