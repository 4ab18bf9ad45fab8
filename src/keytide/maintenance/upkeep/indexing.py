"""Creates missing bloom filters for stored files, according to the table's present options.

No data file is rewritten. The manifest entry of a file is replaced in one commit, which fits next
to appends. It conflicts if a file was replaced in the meantime. Existing filters stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from keytide.base.record import Record
from keytide.commit.change import Conflict
from keytide.commit.transaction import Transaction
from keytide.compaction.compact import local_runner
from keytide.errors import ConflictError, InvalidError
from keytide.format.arrow import to_arrow
from keytide.format.data_file import FileFilters, FileReader
from keytide.format.file_index import (
    BLOOM_FILTER,
    has_hash,
    index_name,
    index_name_among,
    later_index_name,
)
from keytide.format.manifest import DataFileMeta, FileKind, ManifestEntry
from keytide.maintenance.upkeep.afterwards import Made, follow
from keytide.maintenance.upkeep.behind import BEHIND
from keytide.options import keys
from keytide.read.indexes import stored_indexes
from keytide.snapshot.pinned import StoredTable
from keytide.snapshot.state import TableView
from keytide.tasks.runner import TaskRunner
from keytide.types import arrow_schema
from keytide.write.bucket_writer import file_filters
from keytide.write.partition_spec import Place, fitting
from keytide.write.refusals import writable_view
from keytide.write.task import Written

__all__ = ["IndexingResult", "index_files"]


@dataclass(frozen=True)
class IndexingResult(Record):
    """The number of `files` checked, and how many of them received missing filters (`indexed`).

    `snapshot_id` is None when nothing was changed.
    """

    snapshot_id: int | None
    files: int
    indexed: int


def index_files(
    table: StoredTable, partitions: Sequence[Place] = (), *, runner: TaskRunner | None = None
) -> IndexingResult:
    """Create the missing filters of files, see `Table.rewrite_file_index`."""
    BEHIND.settle(table.uri)
    view = writable_view(table)
    filters = file_filters(view.options)
    if not filters.columns:
        raise InvalidError(
            f"table {table.name} has no bloom filters configured; name columns in "
            f"'{keys.FILE_INDEX_BLOOM_FILTER_COLUMNS}' first"
        )
    fits = fitting(partitions, view.schema, view.name, view.options.partition_default_name)
    with Transaction.begin(table, view) as transaction:
        files = [e for e in transaction.state.live.entries if e.bucket >= 0 and fits(e.partition)]
        tasks = [IndexTask(view, entry, filters) for entry in files]
        if tasks:
            (runner or local_runner()).each(tasks, transaction.take)
        outcome = transaction.compact()
    entries = [entry for made in transaction.taken for entry in made.entries]
    if isinstance(outcome, Conflict):
        view.store.discard(_new_files(view, entries))
        raise ConflictError(
            f"table {table.name}: files were replaced while they were indexed, so nothing was "
            "changed; try again"
        )
    if outcome is None:
        return IndexingResult(None, len(files), 0)
    follow(Made(table, view, outcome.snapshot.id, "the files are indexed"))
    return IndexingResult(outcome.snapshot.id, len(files), len(entries) // 2)


def _new_files(view: TableView, entries: Sequence[ManifestEntry]) -> list[str]:
    """The index files that were written: those that only the new entry of a file names."""
    named = {FileKind.ADD: set[str](), FileKind.DELETE: set[str]()}
    for entry in entries:
        named[entry.kind] |= {*view.stored_paths(entry)}
    return sorted(named[FileKind.ADD] - named[FileKind.DELETE])


@dataclass(frozen=True)
class IndexTask:
    """Creates the missing filters of one file. Picklable."""

    view: TableView
    entry: ManifestEntry
    filters: FileFilters

    def __call__(self) -> Written:
        """Write the index. Does nothing if no filter is missing. Raises `DataError`."""
        path, stored = self.view.file_path(self.entry), stored_indexes(self.view, self.entry)
        wanted = self._wanted()
        lacking = {
            name: settings
            for name, settings in wanted.columns.items()
            if BLOOM_FILTER not in stored.get(name, {})
        }
        if not lacking:
            return Written(())
        made = self._made(replace(wanted, columns=lacking), path)
        merged = {name: {**stored.get(name, {}), **made.get(name, {})} for name in (*stored, *made)}
        placed = wanted.placed(merged, self._index_path(path))
        self.view.store.put_all(placed.files)
        file = self.entry.file
        kept = tuple(name for name in file.extra_files if name != index_name_among([name]))
        new = {**placed.members, "extra_files": (*kept, *placed.members["extra_files"])}
        return Written((
            replace(self.entry, kind=FileKind.DELETE),
            replace(self.entry, file=replace(file, **new)),
        ))  # fmt: skip

    def _wanted(self) -> FileFilters:
        """The filters that a file may have, by the names of its columns."""
        schema, old = self.view.schema, self.view.schemas[self.entry.file.schema_id]
        by_id = {field.id: field for field in old.fields}
        columns = {}
        for name, settings in self.filters.columns.items():
            field = schema.by_name.get(name)
            there = None if field is None else by_id.get(field.id)
            # A value of another type has another hash, so readers do not use such a filter.
            if field is None or there is None or not has_hash(there.type):
                continue
            if there.type.with_nullable(True) == field.type.with_nullable(True):
                columns[there.name] = settings
        return replace(self.filters, columns=columns)

    def _made(self, filters: FileFilters, path: str) -> dict[str, dict[str, bytes]]:
        old = self.view.schemas[self.entry.file.schema_id]
        columns = tuple(old.field(name) for name in filters.columns)
        reader = FileReader(self.view.store, path, old, columns, size=self.entry.file.file_size)
        return filters.indexes(to_arrow(reader.read(), arrow_schema(columns)), old)

    def _index_path(self, path: str) -> str:
        file: DataFileMeta = self.entry.file
        before = index_name_among(file.extra_files)
        if before is None:
            return index_name(path)
        folder = path.removesuffix(file.file_name)
        return f"{folder}{later_index_name(file.file_name, before)}"
