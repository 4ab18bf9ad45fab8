"""Scans of changes: from one snapshot up to another, and the first rows of them for a page."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property, refuse_forked_child
from keytide.base.row_kind import ROW_KIND
from keytide.base.text import counted
from keytide.changes.diff import DiffTask, IndexedDiffTask, plan_diff
from keytide.changes.stored_rows import (
    Commit,
    FilesTask,
    changelogs,
    deltas,
    plan_written,
    snapshot_or_changelog,
)
from keytide.errors import InvalidError, NotFoundError
from keytide.format.manifest_entry import FileKind
from keytide.format.schema import TableSchema
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.gate import refuse_readers
from keytide.read.key_index_rebuild import settled_state
from keytide.read.scan import RowSource
from keytide.show.elements import columns_of, notebook, paragraph, rows_of
from keytide.show.explanations import ChangedRow, ChangedRows
from keytide.snapshot.live_files import files_of
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import TableState, TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.types import Field, parse_sql_type

# -- scans of changes ------------------------------------------------------------------------------


MODES = ("diff", "delta", "changelog")
"""How changes are found: by comparing snapshots, as rows were written, or from stored
changelogs.
"""

ChangesTask: TypeAlias = "DiffTask | FilesTask | IndexedDiffTask"

_KIND_FIELD = Field(-1, ROW_KIND, parse_sql_type("STRING NOT NULL"))


@dataclass(frozen=True)
class ChangesExplanation:
    """How changes will be found, computed without reading data."""

    table: str
    mode: str
    start_id: int
    end_id: int
    tasks: int
    files: int
    rows: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"changes of {self.table} after snapshot {self.start_id} up to {self.end_id}, mode "
            f"{self.mode}: {counted(self.tasks, 'task')} reading at most "
            f"{counted(self.files, 'file')} with {counted(self.rows, 'row')}, "
            f"{counted(self.bytes, 'byte')}"
        )

    def _repr_html_(self) -> str:
        return notebook(paragraph(str(self)))


@dataclass(frozen=True)
class SnapshotComparison:
    """Two states of a table. Rows are compared by the given columns. None: by all columns."""

    before: TableState
    after: TableState
    columns: frozenset[str] | None = None

    @property
    def view(self) -> TableView:
        """The table as the rows are shown."""
        return self.after.view

    def plan(self) -> Sequence[ChangesTask]:
        """The work."""
        return plan_diff(self.before, self.after, self.columns)


@dataclass(frozen=True)
class CommitChanges:
    """Commits whose rows are emitted one after the other."""

    view: TableView
    commits: tuple[Commit, ...]

    def plan(self) -> Sequence[ChangesTask]:
        """The work."""
        return plan_written(self.view, self.commits)


@dataclass(frozen=True)
class Changes(RowSource):
    """The changes after snapshot `start_id` up to `end_id`, as rows with their `_row_kind`.

    Lazy: nothing is read until it is needed. Stays pinned to its snapshots.
    """

    source: SnapshotComparison | CommitChanges
    mode: str
    start_id: int
    end_id: int
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)

    def __repr__(self) -> str:
        span = f"snapshots {self.start_id} to {self.end_id}"
        return f"Changes({self.view.name}; {span}; mode {self.mode})"

    @property
    def view(self) -> TableView:
        """The table as the rows are shown, with the schema of the end."""
        return self.source.view

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """See `RowSource`."""
        return tuple(number for number in (self.start_id, self.end_id) if number)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns of the result: `_row_kind` and those of the table."""
        columns = self.view.schema.fields
        if self.mode != "diff":  # a delete may lack values
            columns = tuple(replace(f, type=f.type.with_nullable(True)) for f in columns)
        return (_KIND_FIELD, *columns)

    @cached_property
    def plan(self) -> Sequence[ChangesTask]:
        """What will be read, from metadata alone.

        Raises `DataError` for damaged metadata, and `UnsupportedError` for a table that this
        release cannot read.
        """
        refuse_forked_child()
        refuse_readers(self.view.schema, self.view.options, self.view.name)
        return self.source.plan()

    def tasks(self) -> Sequence[ChangesTask]:
        """The work as picklable tasks, in the order of their rows.

        Tasks of different lanes have no key in common, so each lane can run separately. Raises like
        `plan`.
        """
        return self.plan

    def count(self) -> int:
        """The number of rows. Raises like `to_batches`."""
        return sum(frame.height for frame in self._frames())

    def explain(self) -> ChangesExplanation:
        """How the changes will be found. Reads no data. Raises like `plan`."""
        files = [file.meta for task in self.plan for file in task.files]
        return ChangesExplanation(
            table=self.view.name,
            mode=self.mode,
            start_id=self.start_id,
            end_id=self.end_id,
            tasks=len(self.plan),
            files=len(files),
            rows=sum(meta.row_count for meta in files),
            bytes=sum(meta.file_size for meta in files),
        )


def changes_of(
    table: StoredTable,
    start: int | str,
    end: int | str | None = None,
    mode: str = "diff",
    schema: TableSchema | None = None,
    columns: Collection[str] | None = None,
) -> Changes:
    """The changes after `start` up to `end`, as described in `Table.changes`.

    Rows have the columns of `schema`, one of the table's schemas, instead of those of the end. If
    only some `columns` will be shown, a difference leaves out changes that affect only other
    columns.
    """
    check_mode(table, mode)
    if end is None:  # a given end is a snapshot, which is found without checking the latest
        table = table.pinned()
    last, own = _end(table, end, must_exist=mode == "diff")
    schema = own if schema is None else schema

    # The snapshot after which changes are emitted, and its id. None if changes start with the first
    # write.
    must_exist = mode == "diff"
    if must_exist or isinstance(start, str) or start <= 0:
        found = _snapshot(table, start, "start")
        first, start_id = found, 0 if found is None else found.id
    else:
        first, start_id = None, start
    end_id = 0 if last is None else last.id
    if start_id > end_id:
        if first is None:
            table.metadata.snapshot(start_id)  # if it does not exist, this error is more useful
        raise InvalidError(
            f"table {table.name}: changes after snapshot {start_id} up to {end_id}: the start is "
            "later than the end; swap them"
        )
    if mode == "diff":
        shown = None if columns is None else frozenset(columns)
        comparison = _comparison(table, first, last, schema, shown)
        return Changes(comparison, mode, start_id, end_id)
    metadata, view = table.metadata, table.view(schema)
    snapshots = [
        snapshot_or_changelog(metadata, number, mode, view.options.changelog_producer)
        for number in range(start_id + 1, end_id + 1)
    ]
    commits = (
        deltas(metadata, snapshots) if mode == "delta" else changelogs(metadata, snapshots, view)
    )
    return Changes(CommitChanges(view, tuple(commits)), mode, start_id, end_id)


def full_rows(
    table: StoredTable,
    snapshot_id: int,
    mode: str,
    schema: TableSchema | None = None,
    columns: Collection[str] | None = None,
) -> Changes:
    """The rows of a snapshot, as the changes that a reader of a mode starts with.

    If a mode emits rows when they are written, the first rows include those that no compaction has
    shown to other readers yet. Otherwise nobody would emit them. If a mode emits rows when they are
    compacted, these rows are not included. `schema` and `columns` as in `changes_of`.
    """
    found = changes_of(table, 0, snapshot_id, schema=schema, columns=columns)
    if mode == "diff":
        return found
    assert isinstance(found.source, SnapshotComparison)
    before, after = found.source.before, found.source.after
    options, snapshot = after.view.options, after.snapshot
    if mode == "changelog" and options.compactions_tell:
        if snapshot is None:
            return found
        # Only those files whose rows the changelog has emitted until now. Changelogs that writes
        # store do not correspond to a set of files.
        is_emitted = pl.col("_LEVEL") > 0
        if options.changelog_producer == "full-compaction":
            highest = pl.col("_LEVEL").max().over("_PARTITION", "_BUCKET")
            is_emitted &= pl.col("_LEVEL") == highest
        files = after.live.files
        emitted = files.columns("_PARTITION", "_BUCKET", "_LEVEL").select(is_emitted).to_series()
        after = replace(after, live=files_of(snapshot, files.filter(emitted)))
        return replace(found, source=replace(found.source, after=after))
    return replace(found, source=replace(found.source, before=before.merging, after=after.merging))


def check_mode(table: StoredTable, mode: str) -> None:
    """Raise `InvalidError` for an unknown mode."""
    if mode not in MODES:
        raise InvalidError(
            f"table {table.name}: mode is {mode!r}; expected one of {', '.join(map(repr, MODES))}"
        )


def _end(
    table: StoredTable, end: int | str | None, *, must_exist: bool
) -> tuple[Snapshot | None, TableSchema]:
    """The snapshot up to which changes are emitted, and the schema of the rows."""
    if end is None:
        return table.metadata.latest_snapshot(), table.schema
    if must_exist or isinstance(end, str) or end <= 0:
        found = _snapshot(table, end, "end")
    else:
        found = table.metadata.snapshot_or_changelog(end)  # its changelog may outlive it
    return found, table.schema if found is None else table.metadata.schema(found.schema_id)


def _snapshot(table: StoredTable, place: int | str, argument: str) -> Snapshot | None:
    if isinstance(place, str):
        return table.metadata.tag(place)
    if place < 0:
        raise InvalidError(
            f"table {table.name}: {argument} is {place}; give a snapshot id, 0 for the "
            "beginning, or a tag name"
        )
    return None if place == 0 else table.metadata.snapshot(place)


def _comparison(
    table: StoredTable, first: Snapshot | None, last: Snapshot | None, schema: TableSchema,
    columns: frozenset[str] | None,
) -> SnapshotComparison:  # fmt: skip
    """The start with its own schema (the state before the first snapshot: with that of the end),
    and the end.
    """
    if first is not None and last is not None and table.view(schema).options.merges_on_read:
        first, last = _without_compactions(table.metadata, first, last)
    known = table.in_kind_at(schema, last)
    own = known if first is None else table.metadata.schema(first.schema_id)
    # First, because the files of the end are derived from it.
    before = settled_state(table.state(own, first))
    after = settled_state(table.state(schema, last))
    made = after.snapshot
    is_other_kind = before.view.kind is not after.view.kind
    if is_other_kind and made is not None and made.commit_kind is CommitKind.COMPACT:
        # If one state is the result of converting the other, it shows the same rows.
        changed = table.metadata.entries(table.metadata.delta_manifests(made))
        taken = {entry.identity for entry in changed if entry.kind is FileKind.DELETE}
        if taken == before.live.by_identity.keys():
            before = after
    return SnapshotComparison(before, after, columns)


def _without_compactions(
    metadata: TableMetadata, first: Snapshot, last: Snapshot
) -> tuple[Snapshot, Snapshot]:
    """Two snapshots that show the same rows and have more files in common.

    Compactions change files but no rows, for readers of all files. Without this step, everything
    that compactions wrote immediately after the first snapshot, and as the last snapshots, would be
    compared.
    """
    given = first, last
    while first.id < last.id:
        # The snapshot with that id, if it is a compaction under the same schema.
        snapshot_id = first.id + 1
        found = last if snapshot_id == last.id else _snapshot_if_there(metadata, snapshot_id)
        if found is None or found.schema_id != first.schema_id:
            following = None
        else:
            following = found if found.commit_kind is CommitKind.COMPACT else None
        if following is None:
            break
        first = following
    while first.id < last.id and last.commit_kind is CommitKind.COMPACT:
        before = first if last.id - 1 == first.id else _snapshot_if_there(metadata, last.id - 1)
        if before is None or before.schema_id != last.schema_id:
            break
        last = before
    # This process may know a snapshot that has expired, whose files are gone.
    stay = all(now == start or metadata.has_snapshot(now.id)
               for now, start in zip((first, last), given, strict=True))  # fmt: skip
    return (first, last) if stay else given


def _snapshot_if_there(metadata: TableMetadata, snapshot_id: int) -> Snapshot | None:
    """A snapshot, unless it has expired, as one between two tags may have."""
    try:
        return metadata.cached_snapshot(snapshot_id)
    except NotFoundError:
        return None


# -- the first rows for a page ---------------------------------------------------------------------


ROWS_MAX = 200
"""The maximum number of changes on a page."""


def changed_rows(changes: Changes, start: int | str, most: int = ROWS_MAX) -> ChangedRows:
    """At most `most` changes, from the first on. `start` is the start as the user named it.

    Reads no further. Raises like `Changes.to_batches`.
    """
    plan = changes.explain()
    return first_changes(changes, str(start), str(plan.end_id), changes.mode, str(plan), most)


def first_changes(
    changes: RowSource, start: str, end: str, mode: str, found_by: str, most: int = ROWS_MAX
) -> ChangedRows:
    """The first of some rows with their kinds. Raises like `RowSource.to_batches`."""
    taken, left = list[pa.RecordBatch](), most + 1
    for batch in changes.to_batches():
        taken.append(batch.slice(0, left))
        left -= min(left, batch.num_rows)
        if not left:
            break
    found = pa.Table.from_batches(taken, changes.schema)
    first = found.slice(0, most)
    place = first.schema.get_field_index(ROW_KIND)
    kinds = first.column(place).to_pylist()
    values = first.remove_column(place)

    # In an after image, the cells are marked that differ from the before image.
    rows, before = list[ChangedRow](), None
    for kind, cells in zip(kinds, rows_of(values), strict=True):
        compared = before if kind == "+U" and before is not None else cells
        marks = tuple(old != new for old, new in zip(compared, cells, strict=True))
        rows.append(ChangedRow(kind, cells, marks))
        before = cells if kind == "-U" else None
    return ChangedRows(
        start, end, mode, columns_of(values.schema), tuple(rows),
        tuple(sorted(Counter(kinds).items())), found.num_rows > most, found_by,
    )  # fmt: skip
