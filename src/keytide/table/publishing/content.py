"""What there is to publish of a snapshot: plain files, and the rows of each that are dead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from keytide.format.manifest import ManifestEntry
from keytide.format.schema import TableSchema
from keytide.format.snapshot import Snapshot
from keytide.table.read.plan import ScanPlan, plan_files
from keytide.table.state.state import TableState
from keytide.table.state.stored import StoredTable
from keytide.table.state.view import TableView

__all__ = ["Content", "PublishedFile", "content_of", "why_not_plain"]


@dataclass(frozen=True)
class PublishedFile:
    """A data file and where it lies in the table; `has_dead_rows` where a vector marks some."""

    path: str
    entry: ManifestEntry
    has_dead_rows: bool


@dataclass(frozen=True)
class Content:
    """A snapshot as plain files, whose rows but the dead ones are what readers are shown."""

    state: TableState
    snapshot: Snapshot
    files: tuple[PublishedFile, ...]

    @property
    def view(self) -> TableView:
        """The table at the schema that the snapshot has."""
        return self.state.view

    @property
    def older_schemas(self) -> Mapping[int, TableSchema]:
        """The other schemas that files were written with."""
        ids = {each.entry.file.schema_id for each in self.files} - {self.view.schema.id}
        return {number: self.view.schemas[number] for number in sorted(ids)}


def content_of(table: StoredTable, snapshot: Snapshot) -> Content | str:
    """What there is to publish of a snapshot, or the reason why nothing is.

    Its columns are those of its time, as for readers who travel to it. Raises `DataError` as reads
    do.
    """
    state = table.state(table.metadata.schema(snapshot.schema_id), snapshot)
    plan = plan_files(state.view, state.live.files, None, state.vector_files)
    reason = why_not_plain(plan, state.view)
    return reason or Content(state, snapshot, tuple(_files(plan, state.view)))


def why_not_plain(plan: ScanPlan, view: TableView) -> str | None:
    """Why a reader would have more to do than to leave out dead rows; None where not."""
    for bucket in plan.buckets:
        where = view.bucket_directory(bucket.partition, bucket.bucket)
        for section in bucket.sections:
            if section.needs_merge:
                return f"files of {where} have versions of one key to merge"
            for file in section.files:
                name = file.meta.file_name
                if file.may_retract:
                    return f"{name} in {where} may hold rows that take others back"
                if file.entry.file.external_path is not None:
                    return f"{name} lies outside of the table"
                if not name.endswith(".parquet"):
                    return f"{name} in {where} is no Parquet file"
    return None


def _files(plan: ScanPlan, view: TableView) -> Iterator[PublishedFile]:
    for bucket in plan.buckets:
        for file in bucket.files:
            yield PublishedFile(view.file_path(file.entry), file.entry, file.dead_rows is not None)
