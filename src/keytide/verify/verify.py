"""Verifies a table: everything that its snapshots, tags and branches reference."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import refuse_forked_child
from keytide.changes.stored_rows import changelog_list
from keytide.errors import DataError, InvalidError, NotFoundError
from keytide.format import paths
from keytide.format.index_files import KEY_INDEX
from keytide.format.manifest_entry import DataFileMeta, ManifestEntry
from keytide.format.paths import main_store
from keytide.format.snapshot import Snapshot
from keytide.merge.functions.registry import registered_functions
from keytide.options import TableOptions, keys
from keytide.read.key_index_rebuild import settled_state
from keytide.read.scan import Scan
from keytide.snapshot.authority import Commits
from keytide.snapshot.branch_tables import table_name
from keytide.snapshot.live_files import files_of
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import TableState, TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.store import Store
from keytide.tasks import Threads
from keytide.verify.data_files import FileCheck, Indexes
from keytide.verify.finding import Findings, Verification
from keytide.verify.metadata import Branch, Branches, Manifests, read_branches
from keytide.verify.rows import (
    SnapshotFiles,
    check_deletes_are_marked,
    check_hashes,
    check_one_row_per_key,
    history_of,
)

Progress = Callable[[int, int], None]
"""Called with the number of checked files and the total number of files."""

# Snapshots that expire and branches that are deleted disappear while they are read. Then everything
# is read again. If a branch is deleted and recreated under the same name, documents of both may
# have been read, and only another attempt shows that.
_TRIES = 3


def verify_table(
    table: StoredTable, *, quick: bool = False, progress: Progress | None = None
) -> Verification:
    """Check a table with all its branches, see `Table.verify`.

    Raises `UnsupportedError` for a table that this release cannot read.
    """
    refuse_forked_child()
    with suppress(DataError, InvalidError, NotFoundError):
        table.view(table.schema)
    store, commits = main_store(table.store).uncached(), table.metadata.commits
    for tries_left in reversed(range(_TRIES)):
        work = _read(partial(_Work, store, table_name(table), commits, quick, progress))
        found = work.run()
        if found.is_healthy or not tries_left:
            break
        # Try again if a branch, snapshot or tag has disappeared.
        if all(map(store.exists, work.listed)) and Branches.of(store) == work.branches:
            break
    return found


def _read(look: Callable[[], _Work]) -> _Work:
    """An attempt that read the metadata without findings, or the result of another attempt."""
    work = look()
    work.read()
    for _ in range(_TRIES - 1):
        before = work.findings.found
        if not before:
            break
        work = look()
        work.read()
        if work.findings.found == before:
            break
    return work


@dataclass
class _Work:
    """One attempt to verify a table."""

    store: Store
    name: str
    commits: Commits
    quick: bool
    progress: Progress | None
    files: dict[tuple[str, DataFileMeta], FileCheck] = field(default_factory=dict)
    snapshots: list[str] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    newest: list[tuple[Branch, SnapshotFiles | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.findings = Findings(self.name)
        self.branches = Branches.of(self.store)

    def read(self) -> None:
        """Read and check all metadata."""
        branches = read_branches(self.store, self.name, self.branches, self.commits, self.findings)
        self.listed += (path for branch in branches for path in branch.listed)
        self.newest += ((branch, self._read_history(branch)) for branch in branches)

    def run(self) -> Verification:
        """Check the data that the metadata, which were read before, reference."""
        checks, rows = list(self.files.values()), 0
        if self.quick:
            for number, check in enumerate(checks, start=1):
                check.presence(self.findings)
                self._tell(number)
        else:
            threads = max(1, min(os.cpu_count() or 1, len(checks)))
            budgets = (check.view.options.read_memory_bytes for check in checks)
            memory = min(budgets, default=0) // threads
            outcomes = Threads(threads).map([partial(c.contents, memory) for c in checks])
            for number, (seen_findings, count) in enumerate(outcomes, start=1):
                self.findings.take(seen_findings)
                rows += count
                self._tell(number)
        if not self.quick and not self.findings.found:
            for branch, seen in self.newest:
                if seen is not None:
                    self._check_keys(branch, seen)
        files = len({path for path, _ in self.files})
        found, unchecked = self.findings.found, self.findings.unchecked
        return Verification(self.name, len(self.snapshots), files, rows, found, unchecked)

    # -- metadata -------------------------------------------------------------------------------

    def _read_history(self, branch: Branch) -> SnapshotFiles | None:
        """Read all metadata of a branch. Returns its latest snapshot, if that can be read."""
        if not branch.schemas:
            return None
        partition = next(iter(branch.schemas.values())).partition_fields()
        manifests = Manifests(self.store, partition, self.findings)
        options = TableOptions.parse(branch.schemas[max(branch.schemas)].options)
        beside_data = options.value(keys.INDEX_FILE_IN_DATA_FILE_DIR)
        indexes, newest = Indexes(self.store, self.findings, beside_data), None
        for seen in history_of(branch, manifests, self.findings):
            self.snapshots.append(seen.path)
            self._note(branch, seen.added)
            if seen.snapshot.changelog_manifest_list is not None:
                self._note_changelog(branch, seen.snapshot, manifests)
            if seen.snapshot.statistics is not None:
                path = paths.statistics_path(seen.snapshot.statistics)
                with self.findings.reading(path):
                    if not self.store.exists(path):
                        way_out = "Run ANALYZE again with the engine that created them"
                        expected = "the statistics of the table"
                        self.findings.add(path, "missing", expected, way_out)
            indexes.check(seen)
            if seen.snapshot == branch.newest:
                newest = seen
        for outliving in branch.changelogs.values():
            self._note_changelog(branch, outliving, manifests)
        if newest is not None and not self.quick and not beside_data:
            check_hashes(
                branch, newest, indexes.listed(newest.snapshot.index_manifest), self.findings
            )
        return newest

    def _note(
        self, branch: Branch, entries: Iterable[ManifestEntry], *, is_changelog: bool = False
    ) -> None:
        """Remember files, to be checked once however many snapshots reference them."""
        for entry in entries:
            view = branch.view(entry.file.schema_id)
            if view is None:
                self.findings.add(
                    branch.path(f"{paths.schema_dir()}/schema-{entry.file.schema_id}"),
                    "missing or damaged",
                    f"the schema of data file {entry.file.file_name}",
                )
                continue
            check = FileCheck(view, entry, is_changelog)
            with self.findings.reading(entry.file.file_name):
                # A file that moves to another level does not change.
                self.files.setdefault((check.path, replace(entry.file, level=0)), check)

    def _note_changelog(self, branch: Branch, snapshot: Snapshot, manifests: Manifests) -> None:
        """The files that describe a commit, of which the snapshot may be gone."""
        options = TableOptions.parse(branch.schemas[max(branch.schemas)].options)
        named = changelog_list(snapshot, options.changelog_producer)
        if named is not None:
            self._note(branch, manifests.added(manifests.listed(*named)), is_changelog=True)

    def _tell(self, number: int) -> None:
        if self.progress is not None:
            self.progress(number, len(self.files))

    def _check_keys(self, branch: Branch, seen: SnapshotFiles) -> None:
        view = branch.view(seen.snapshot.schema_id)
        if view is None or not view.kind.has_key:
            return
        with self.findings.reading(seen.path):
            functions = registered_functions(view.options)
            view = TableView(
                view.store, view.name, view.schema, view.schemas, view.options, functions
            )
            metadata = TableMetadata(self.store, self.name)
            vectors = tuple(metadata.vector_files(seen.snapshot, view.options))
            indexes = metadata.index_files(seen.snapshot) if view.kind.has_key_index else ()
            heads = tuple(file for file in indexes if file.index_type == KEY_INDEX)
            live = files_of(seen.snapshot, seen.live.values())
            state = settled_state(TableState(view, live, vectors, key_files=heads))
            scan = Scan(state, view.schema.primary_keys)
            check_one_row_per_key(scan, seen.path, self.findings)
            if view.kind.keeps_versions:
                check_deletes_are_marked(scan, seen.path, self.findings)
