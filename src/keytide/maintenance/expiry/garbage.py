"""Finds the files that become unreachable when snapshots expire, from the changes of commits.

The snapshots of a table form a line, on which each file is live from one commit to another. So if
an expired snapshot has a file and the oldest kept snapshot does not, no later snapshot has it. Tags
and branches may still have it.

Deletes documents that reference files, and then the files that nothing references any more.

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
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from keytide.changes.stored_rows import told_list
from keytide.errors import DataError, NotFoundError
from keytide.format import paths
from keytide.format.json_document import INTEGER, TEXTS, member, read_document, write_document
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.format.snapshot import Snapshot
from keytide.gate.gate import refuse_cleaners
from keytide.maintenance.expiry.references import (
    Naming,
    changelogs,
    held_lines,
    metadata_files,
    name_of,
)
from keytide.publish.published import names_of_published
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.retries import again, is_gone
from keytide.snapshot.state import TableView

# -- finds the files that become unreachable when snapshots expire ---------------------------------


def garbage_of(
    metadata: TableMetadata, view: TableView, expired: Sequence[Snapshot], kept: Snapshot
) -> dict[str, int]:
    """The files of expired snapshots that `kept`, the oldest kept snapshot, does not reference.

    Their paths and sizes in bytes, 0 if unknown. A file that references others comes after them.
    Files outside the table are left out, as in all code that changes files. Raises `DataError` for
    a file that is missing or damaged.
    """
    told = [entry for each in expired for entry in _changelog(metadata, each)]
    dropped = _dropped(metadata, (*expired[1:], kept))
    files: dict[str, int] = {}
    for entry in (*dropped, *told):
        if entry.file.external_path is None:
            file, *beside = view.stored_paths(entry)
            files |= {file: entry.file.file_size} | dict.fromkeys(beside, 0)
    for each in expired:
        files |= metadata_files(metadata, each, view)
    named = metadata_files(metadata, kept, view)
    return {path: size for path, size in files.items() if path not in named}


def _dropped(metadata: TableMetadata, snapshots: Iterable[Snapshot]) -> Iterable[ManifestEntry]:
    """The files that these consecutive commits removed permanently."""
    dropped: dict[str, ManifestEntry] = {}
    for snapshot in snapshots:
        changes = metadata.entries(metadata.delta_manifests(snapshot))
        dropped |= {e.file.file_name: e for e in changes if e.kind is FileKind.DELETE}
        # A file that moves to another level is deleted and added under the same name.
        for entry in changes:
            if entry.kind is FileKind.ADD:
                dropped.pop(entry.file.file_name, None)
    return dropped.values()


def _changelog(metadata: TableMetadata, snapshot: Snapshot) -> Iterable[ManifestEntry]:
    return metadata.entries(metadata.changelog_manifests(snapshot))


def told_garbage_of(
    metadata: TableMetadata, view: TableView, changelogs: Iterable[Snapshot], kept: Snapshot | None
) -> dict[str, int]:
    """The files of expired changelogs that `kept`, the oldest kept one, does not reference.

    Otherwise like `garbage_of`.
    """
    files: dict[str, int] = {}
    for changelog in changelogs:
        told = told_list(changelog, view.options.changelog_producer)
        if told is None:
            continue
        manifests = metadata.manifest_list(*told)
        for entry in metadata.entries(manifests):
            if entry.kind is FileKind.ADD and entry.file.external_path is None:
                file, *beside = view.stored_paths(entry)
                files |= {file: entry.file.file_size} | dict.fromkeys(beside, 0)
        files |= {paths.manifest_path(meta.file_name): meta.file_size for meta in manifests}
        files[paths.manifest_path(told[0])] = told[1] or 0
    line = [] if kept is None else [kept]
    named = Naming(metadata, view, frozenset(map(name_of, files))).of([line])
    return {path: size for path, size in files.items() if name_of(path) not in named}


# -- deletes documents that reference files --------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """What to delete: snapshots, or changelogs, from one id to another, and possibly their files.

    `left` are the snapshots that stay. Each of the `files` is deleted unless something else
    references it. If the existing snapshots are not `left`, their references count too.
    """

    metadata: TableMetadata
    view: TableView
    first: int
    last: int
    files: Mapping[str, int]
    left: frozenset[int]

    def run(self, delete_documents: Callable[[], None]) -> list[str]:
        """Delete documents with the given function, then files. Returns the deleted files.

        Raises the errors of the function, with no file deleted, and `DataError` if the store fails.
        """
        store, note = self.metadata.store, paths.expiring_path(paths.new_uuid())
        # The record is needed only if this process dies, so it need not survive a crash of the
        # machine.
        store.hint(note, _Note(self.first, self.last, tuple(self.files)).to_json())
        delete_documents()
        free = again(lambda: free_files(self.metadata, self.view, self.files, self.left))
        store.delete(free)
        store.delete([note])
        return free


def free_files(
    metadata: TableMetadata,
    view: TableView,
    files: Iterable[str],
    left: Collection[int] | None,
    *,
    told: Sequence[Snapshot] = (),
    gone: Sequence[Snapshot] = (),
) -> list[str]:
    """Those files that nothing references, given that the snapshots `left` do not.

    If `left` is None, or if the existing snapshots are not `left` plus newer ones, snapshots are
    searched too. `told` are changelogs that will be created, and `gone` those that will be deleted.
    """
    known = list(files)
    refuse_cleaners(view.schema, view.options, view.name)
    naming = Naming(metadata, view, frozenset(map(name_of, known)))
    # Tags and branches first: if one of them becomes a snapshot, it is a snapshot of the table by
    # then.
    held = naming.of(held_lines(metadata.store))
    ids = metadata.snapshot_ids()
    if left is None or {number for number in ids if number <= max(left, default=0)} != {*left}:
        # A listing that lags still shows some that have expired.
        held |= naming.of([metadata.each_there(ids)])
    # Changelogs last: an expiring snapshot becomes one.
    outliving = [each for each in changelogs(metadata.store) if each not in gone]
    held |= naming.of_changelogs([*outliving, *told])
    held |= names_of_published(metadata.store, view)
    return [path for path in known if name_of(path) not in held]


def finish_sweeps(metadata: TableMetadata, view: TableView, names: Iterable[str]) -> None:
    """Finish the recorded work of processes that died, or that are still running.

    `names` is an earlier listing of the snapshot folder.
    """
    for name in names:
        if paths.parse_expiring_name(name) is not None:
            try:
                _finish(metadata, view, paths.join(paths.snapshot_dir(), name))
            except (DataError, NotFoundError) as error:
                if not is_gone(error):
                    raise


def _finish(metadata: TableMetadata, view: TableView, path: str) -> None:
    store = metadata.store
    data = store.read(path)
    try:
        note = _Note.from_json(data, store.uri_of(path))
    except DataError:
        note = _Note(0, 0, ())  # damaged because the machine crashed: it cannot be used
    store.delete(free_files(metadata, view, note.files, None))
    if not any(note.first <= number <= note.last for number in metadata.snapshot_ids()):
        store.delete([path])


@dataclass(frozen=True)
class _Note:
    """What is about to be deleted: snapshots, and files that may be referenced only by them.

    Persisted.
    """

    first: int
    last: int
    files: tuple[str, ...]

    @classmethod
    def from_json(cls, data: bytes, path: str) -> _Note:
        """Parse a record. Raises `DataError` if it is damaged."""
        document = read_document(data, path)
        first, last = (member(document, name, INTEGER, path) for name in ("first", "last"))
        return cls(first, last, tuple(member(document, "files", TEXTS, path)))

    def to_json(self) -> bytes:
        """The bytes of the file."""
        return write_document(
            self, lambda note: {"first": note.first, "last": note.last, "files": note.files},
            _Note.from_json,
        )  # fmt: skip
