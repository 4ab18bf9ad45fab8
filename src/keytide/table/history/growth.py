"""How a table came to be as large as it is: what each commit added, took away and wrote again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from keytide.format.manifest import FileKind
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.table.commit.change import made_files
from keytide.table.state.stored import StoredTable

__all__ = ["Step", "growth_of"]


@dataclass(frozen=True)
class Step:
    """A snapshot: the files that it has, with their bytes, and the bytes that its commit wrote.

    `bytes_appended` are those of rows that came in, `bytes_written` also those of rows that were
    written again by compactions and overwrites.
    """

    snapshot: Snapshot
    files: int
    bytes: int
    bytes_written: int
    bytes_appended: int


def growth_of(table: StoredTable) -> Iterator[Step]:
    """The snapshots that are there, oldest first. Raises `DataError` for torn metadata."""
    metadata, files, size = table.metadata, 0, 0
    for snapshot in metadata.snapshots():
        changes = metadata.entries(metadata.delta_manifests(snapshot))
        if not files:
            # Of the oldest one only the sum is known; what it wrote is what it says.
            live = table.live_files(snapshot).entries
            files, size = len(live), sum(entry.file.file_size for entry in live)
        else:
            for entry in changes:
                sign = 1 if entry.kind is FileKind.ADD else -1
                files, size = files + sign, size + sign * entry.file.file_size
        written = sum(entry.file.file_size for entry in made_files(changes))
        appended = written if snapshot.commit_kind is CommitKind.APPEND else 0
        yield Step(snapshot, files, size, written, appended)
