"""Tables of metadata only: their manifests describe files that do not exist.

Neither a plan nor a commit opens data files, and a read does not open files whose key range does
not match.
"""

from __future__ import annotations

from collections.abc import Sequence

import keytide as kt
from keytide.commit.change import Author, Change
from keytide.commit.committer import Committed, Committer
from keytide.format.manifest_entry import ManifestEntry
from keytide.write.bucket_writer import restamp
from keytide.write.refusals import writable_view
from keytide.write.task import TaskResult

__all__ = ["list_files"]

FILES_PER_COMMIT = 1_000


def list_files(table: kt.Table, entries: Sequence[ManifestEntry]) -> None:
    """Commit entries for files to a table. The files need not exist."""
    live = table.stored.newest_files()
    committer = Committer(table.metadata, writable_view(table.stored), restamp)
    for start in range(0, len(entries), FILES_PER_COMMIT):
        made = TaskResult(tuple(entries[start : start + FILES_PER_COMMIT]))
        committed = committer.publish(Change(made, Author.fresh(), renumbers=False), live)
        assert isinstance(committed, Committed)
        live = committed.live
