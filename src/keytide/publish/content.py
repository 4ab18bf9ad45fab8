"""What there is to publish of a snapshot: plain files, and the dead rows of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from keytide.base.process import cached_property
from keytide.format.manifest import ManifestEntry
from keytide.format.schema import TableSchema
from keytide.format.snapshot import Snapshot
from keytide.gate.gate import why_not_plain
from keytide.read.plan import plan_files
from keytide.read.sections import BucketPlan
from keytide.read.settled import unsettled_buckets
from keytide.snapshot.pinned import StoredTable
from keytide.snapshot.state import TableState, TableView

__all__ = ["Content", "content_of"]


@dataclass(frozen=True)
class Content:
    """A snapshot as plain files. Readers see all of their rows except the dead ones.

    `files` are identified by their names, which are unique.
    """

    state: TableState
    snapshot: Snapshot
    files: Mapping[str, ManifestEntry]

    @property
    def view(self) -> TableView:
        """The table at the schema of the snapshot."""
        return self.state.view

    @cached_property
    def dead(self) -> frozenset[str]:
        """The names of files with dead rows."""
        marked = (place for file in self.state.vector_files for place in file.ranges or ())
        return frozenset(place.data_file_name for place in marked if place.cardinality != 0)

    @property
    def marked(self) -> dict[str, ManifestEntry]:
        """The files with dead rows."""
        return {name: entry for name, entry in self.files.items() if name in self.dead}

    def path(self, name: str) -> str:
        """The path of a file in the table."""
        return self.view.file_path(self.files[name])

    @property
    def older_schemas(self) -> Mapping[int, TableSchema]:
        """The other schemas that files were written with."""
        ids = {entry.file.schema_id for entry in self.files.values()} - {self.view.schema.id}
        return {number: self.view.schemas[number] for number in sorted(ids)}


def content_of(table: StoredTable, snapshot: Snapshot) -> Content | str:
    """What there is to publish of a snapshot, or the reason why nothing can be published.

    Its columns are those of its time, as in time travel. Raises `DataError` like other reads.
    """
    state = table.state(table.metadata.schema(snapshot.schema_id), snapshot)
    for (_, bucket), _, _ in unsettled_buckets(state):
        return (
            f"another engine added files to bucket {bucket}, and no write has settled yet which of "
            "their rows replace others; the next write into the bucket does"
        )
    unlike = why_not_plain(state.view.schema)
    if unlike is not None:
        return unlike
    files = _files(state)
    if isinstance(files, str):
        return files
    reason = next((why for entry in files if (why := _why_not_plain(entry, state.view))), None)
    return reason or Content(state, snapshot, {entry.file.file_name: entry for entry in files})


def _files(state: TableState) -> list[ManifestEntry] | str:
    """The files, if a read of the whole snapshot reads each one separately.

    Otherwise the reason why not. In tables that store no versions, these are all files. Planning a
    read would cost in proportion to the table, but a publication must cost in proportion to the
    commit.
    """
    if not state.view.kind.keeps_versions:
        return [entry for entry in state.live.files if entry.bucket >= 0]
    plan = plan_files(state.view, state.live.files, None, state.vector_files)
    reason = _why_merged(plan.buckets, state.view)
    return reason or [file.entry for bucket in plan.buckets for file in bucket.files]


def _why_merged(buckets: Iterable[BucketPlan], view: TableView) -> str | None:
    """Why a reader must do more than leave out dead rows. None if it need not."""
    for bucket in buckets:
        for section in bucket.sections:
            if section.needs_merge:
                where = view.bucket_directory(bucket.partition, bucket.bucket)
                return f"files of {where} contain versions of the same key that must be merged"
            for file in section.files:
                if file.may_retract:
                    return (
                        f"{view.shown_path(file.entry)} can contain deletes and update-before rows"
                    )
    return None


def _why_not_plain(entry: ManifestEntry, view: TableView) -> str | None:
    file = entry.file
    if file.external_path is not None:
        return f"{file.external_path} is outside the table"
    if not file.file_name.endswith(".parquet"):
        return f"{view.shown_path(entry)} is not a Parquet file"
    return None
