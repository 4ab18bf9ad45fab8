"""Finds the files that become unreachable when snapshots expire, from the changes of commits.

The snapshots of a table form a line, on which each file is live from one commit to another. So if
an expired snapshot has a file and the oldest kept snapshot does not, no later snapshot has it. Tags
and branches may still have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keytide.changes.written import told_list
from keytide.format import paths
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.format.snapshot import Snapshot
from keytide.maintenance.expiry.references import Naming, metadata_files, name_of
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.view import TableView

__all__ = ["garbage_of", "told_garbage_of"]


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
