"""Orphan files: files in a table that nothing in it references.

They are left by writers that died, by rollbacks and by dropped tags. A file is an orphan if it is
in a place for such files in the table, if it is old enough, and if no snapshot, tag, branch,
changelog or publication references it.

Files are listed before snapshots are read, and tags and branches before the snapshots of the table.
So everything that is referenced at the time of the listing is found. A file that is referenced
later either is young, or was written by a process that had not committed for as long as the minimum
age.
"""

from __future__ import annotations

import pyarrow as pa

from keytide.base import record
from keytide.base.dataclass import dataclass
from keytide.base.record import Record
from keytide.base.text import Moment, epoch_ms
from keytide.commit.snapshot_files import wall_clock_ms
from keytide.errors import InvalidError
from keytide.format import paths
from keytide.format.delta_log import LOG_DIR, VECTOR_DIR
from keytide.format.iceberg_metadata import METADATA_DIR
from keytide.format.partition import escape_path_name
from keytide.format.paths import main_store
from keytide.gate import refuse_cleaners
from keytide.maintenance.background import BACKGROUND
from keytide.maintenance.references import free_files
from keytide.publish.publish import left_over, may_be_left_over
from keytide.snapshot.live_files import retried
from keytide.snapshot.stored_table import StoredTable
from keytide.store import ObjectInfo

# -- orphan files ----------------------------------------------------------------------------------


AGE_MIN_MS = 24 * 60 * 60 * 1000
"""The default minimum age of an orphan: no write should take longer."""


@dataclass(frozen=True)
class OrphanFiles(Record):
    """Files that nothing refers to, and their total `bytes`.

    `deleted` says whether they were deleted. `paths` are relative to the table.
    """

    files: int
    bytes: int
    deleted: bool
    paths: tuple[str, ...]

    @classmethod
    def columns(cls) -> pa.Schema:
        """The columns of the row, which does not include the paths."""
        found = super().columns()
        return found.remove(found.get_field_index("paths"))

    def _repr_html_(self) -> str:
        return super()._repr_html_() + record.bullets(self.paths)


def remove_orphan_files(
    table: StoredTable, older_than: Moment | None = None, *, dry_run: bool = True
) -> OrphanFiles:
    """Delete files that nothing in the table references. `dry_run`, the default, only reports them.

    They are left by writers and publishers that died, by rollbacks, and by dropped tags and
    branches. What a snapshot, tag, branch, changelog or publication references stays, and so does
    any file in a place that is not part of the table. Only files last changed before `older_than`
    are deleted, by default a day ago. A file that a writer has not committed yet looks like an
    orphan. So do not use a time at which a writer was active whose files are not committed yet.
    Running background compactions of this process are waited for. Needs a listing of the whole
    table.

    Raises `InvalidError` for a future time, and `DataError`, with nothing deleted, if the store
    fails or a document that references files is damaged.
    """
    now_ms = wall_clock_ms()
    before_ms = now_ms - AGE_MIN_MS
    if older_than is not None:
        before_ms = epoch_ms(older_than, table.name, "older_than")
    if before_ms > now_ms:
        raise InvalidError(
            f"table {table.name}: older_than is {(before_ms - now_ms) / 1000:,.3f} s in the "
            "future, so files of running writers would be deleted. Give a time before all "
            "running writers started; the default is one day ago"
        )
    BACKGROUND.wait_for_running(main_store(table.store).uri_of(""))
    found = orphan_files(table, before_ms)
    if not dry_run:
        table.store.delete(info.path for info in found)
    size = sum(info.size for info in found)
    return OrphanFiles(len(found), size, not dry_run, tuple(sorted(info.path for info in found)))


def orphan_files(table: StoredTable, before_ms: int) -> list[ObjectInfo]:
    """The orphans that were last changed before a time.

    Raises `DataError` if the store fails or a document that references files is damaged.
    """
    table = table.uncached
    view = table.view(table.schema)
    refuse_cleaners(view.schema, view.options, view.name)
    begins = tuple(f"{escape_path_name(name)}=" for name in view.schema.partition_keys)
    place = _Places(paths.join(view.options.path_directory or ""), begins)
    old = [info for info in table.store.list() if info.modified_ms < before_ms]
    found = [info.path for info in old if place.may_be_orphan(info.path)]
    published = [info.path for info in old if may_be_left_over(info.path)]
    free = {*retried(lambda: free_files(table.metadata, view, found, None))}
    free |= {*retried(lambda: left_over(table.store, view, published))}
    return [info for info in old if info.path in free]


@dataclass(frozen=True)
class _Places:
    """Where the files of a table are that are found by names in its metadata."""

    data_root: str
    partition_folders: tuple[str, ...]
    """The name prefixes of the folders between this one and those of buckets."""

    def may_be_orphan(self, path: str) -> bool:
        """Whether a file is in a place for referenced files, and is not kept for another reason."""
        parts = path.split("/")
        if parts[:1] == [paths.branches_dir()] and len(parts) > 2:
            parts = parts[2:]
            return len(parts) == 2 and self._is_left_over(*parts)
        if len(parts) == 2 and parts[0] in _NAMED_BY_METADATA:
            return True
        if len(parts) == 2 and self._is_left_over(*parts):
            return True

        root = f"{self.data_root}/" if self.data_root else ""
        *folders, bucket, _ = ["", *path.removeprefix(root).split("/")]
        return (
            path.startswith(root)
            and len(folders) - 1 == len(self.partition_folders)
            and all(map(str.startswith, folders[1:], self.partition_folders))
            and paths.is_bucket_name(bucket)
        )

    def _is_left_over(self, folder: str, name: str) -> bool:
        """Whether a file in a folder of documents was left behind by a process that died."""
        if folder not in _DOCUMENTS:
            return False
        is_note = folder == paths.snapshot_dir() and paths.parse_expiring_name(name) is not None
        return is_note or paths.is_temporary(name)


_NAMED_BY_METADATA = (paths.MANIFEST_DIR, paths.INDEX_DIR, paths.STATISTICS_DIR)
_DOCUMENTS = (
    paths.schema_dir(), paths.snapshot_dir(), paths.tag_dir(), paths.consumer_dir(),
    paths.changelog_dir(), METADATA_DIR, LOG_DIR, VECTOR_DIR,
)  # fmt: skip
