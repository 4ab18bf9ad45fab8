"""How a table grew: what each commit added, removed and rewrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from keytide.commit.change import made_files
from keytide.format.manifest import FileKind
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.snapshot.stored import StoredTable

__all__ = ["Step", "growth_of"]


@dataclass(frozen=True)
class Step:
    """A snapshot: its files with their size in bytes, and the bytes that its commit wrote.

    `bytes_appended` are those of new rows. `bytes_written` also include rows that compactions and
    overwrites wrote again.
    """

    snapshot: Snapshot
    files: int
    bytes: int
    bytes_written: int
    bytes_appended: int


def growth_of(table: StoredTable) -> Iterator[Step]:
    """The existing snapshots, oldest first. Raises `DataError` for damaged metadata."""
    metadata, files, size = table.metadata, 0, 0
    for snapshot in metadata.snapshots():
        changes = metadata.entries(metadata.delta_manifests(snapshot))
        if not files:
            # For the oldest one, only the total is known. What it wrote is what its manifests say.
            live = table.live_files(snapshot).entries
            files, size = len(live), sum(entry.file.file_size for entry in live)
        else:
            for entry in changes:
                sign = 1 if entry.kind is FileKind.ADD else -1
                files, size = files + sign, size + sign * entry.file.file_size
        written = sum(entry.file.file_size for entry in made_files(changes))
        appended = written if snapshot.commit_kind is CommitKind.APPEND else 0
        yield Step(snapshot, files, size, written, appended)
