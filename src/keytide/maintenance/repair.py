"""Repairs of metadata: snapshots that engines cannot read, many small manifests, missing filters.

Snapshots that some engines cannot read are rewritten. An operation that another engine does not
know does not affect the rows of a snapshot, but that engine refuses the snapshot. The latest
snapshot gets a successor, by a commit that changes no file, because a following commit may be in
progress. Earlier snapshots, changelogs and tags are rewritten in place. In the meantime, a tag
protects the files of each such snapshot. If the snapshot expires in between, the rewritten file
references files that still exist, and it is deleted by the next expiry.

Manifests are merged on request, not only as part of other commits.

Missing bloom filters are created for stored files, according to the table's present options. No
data file is rewritten. The manifest entry of a file is replaced in one commit, which fits next to
appends. It conflicts if a file was replaced in the meantime. Existing filters stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from keytide.base.dataclass import dataclass, replace
from keytide.base.record import Record
from keytide.commit.change import Conflict
from keytide.commit.snapshot_files import MergeRules, pick_all
from keytide.commit.transaction import Transaction
from keytide.compaction.compact import local_runner
from keytide.errors import ConflictError, DataError, InvalidError, NotFoundError
from keytide.format import paths
from keytide.format.arrow import to_arrow
from keytide.format.data_file import FileFilters, FileReader
from keytide.format.file_index import BLOOM_FILTER, has_hash
from keytide.format.manifest_entry import FileKind, ManifestEntry
from keytide.format.paths import branch_of, index_name, index_name_among, later_index_name
from keytide.format.snapshot import Snapshot, Tag
from keytide.maintenance.background import BACKGROUND, TableChange, run_follow_ups
from keytide.maintenance.tags import create_tag, delete_tag
from keytide.options import keys
from keytide.read.pruning import stored_indexes
from keytide.snapshot.branch_tables import branch_names, open_branch
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.tasks import TaskRunner
from keytide.types import arrow_schema
from keytide.write.bucket_writer import file_filters
from keytide.write.partition_spec import Place, fitting
from keytide.write.refusals import writable_view
from keytide.write.task import TaskResult

# -- merging of manifests --------------------------------------------------------------------------


@dataclass(frozen=True)
class MergedManifests(Record):
    """The number of manifests of a table, before and after they were merged.

    `snapshot_id` is None if there was nothing to merge, and no commit.
    """

    snapshot_id: int | None
    manifests_before: int
    manifests_after: int


def compact_manifest(table: StoredTable) -> MergedManifests:
    """Merge the manifests that are small or delete files, in a commit that changes no file.

    Other commits can be made at the same time. Older snapshots keep their manifests. Raises
    `ConflictError` if too many races were lost, and `DataError` if the store fails. Nothing is
    changed then.
    """
    view = writable_view(table)
    transaction = Transaction.begin(table, view)
    snapshot, metadata = transaction.state.snapshot, table.metadata
    before = [] if snapshot is None else metadata.manifests(snapshot)
    if not pick_all(before, MergeRules.of(view.options)).places:
        return MergedManifests(None, len(before), len(before))
    committed = _committed(transaction)
    after = metadata.manifests(committed)
    run_follow_ups(TableChange(table, view, committed.id, "the manifests are merged"))
    return MergedManifests(committed.id, len(before), len(after))


def commit_unchanged(table: StoredTable, done: str) -> Snapshot:
    """The same in any case: a new snapshot that shows the same as the latest one.

    `done` says what this did.
    """
    view = writable_view(table)
    committed = _committed(Transaction.begin(table, view))
    run_follow_ups(TableChange(table, view, committed.id, done))
    return committed


def _committed(transaction: Transaction) -> Snapshot:
    outcome = transaction.merge_manifests()
    if outcome is None or isinstance(outcome, Conflict):
        reason = "nothing was changed" if outcome is None else outcome.reason
        raise ConflictError(f"table {transaction.view.name}: {reason}")
    return outcome.snapshot


# -- rewriting of snapshots ------------------------------------------------------------------------


# If this process dies, its tags expire by themselves.
_HELD = "1 d"


@dataclass(frozen=True)
class MendResult(Record):
    """The number of files of each kind that were rewritten or, in a dry run, would be.

    The latest snapshot of a branch is counted when a new snapshot was committed after it.
    """

    snapshots: int
    changelogs: int
    tags: int


@dataclass(frozen=True)
class _UnreadableDocuments:
    """What some engines cannot read in one branch: numbers and names, in order."""

    snapshots: list[int]
    changelogs: list[int]
    tags: list[str]

    @classmethod
    def of(cls, table: StoredTable) -> _UnreadableDocuments:
        """Raises `DataError` for a damaged document."""
        metadata = table.metadata
        changelogs = {number: metadata.changelog(number) for number in metadata.changelog_ids()}
        # Snapshots as they are stored, not those in the cache of this process.
        calls = (partial(_stored, metadata, number) for number in metadata.snapshot_ids())
        snapshots = (each for each in metadata.store.each(calls) if each is not None)
        return cls(
            [each.id for each in snapshots if not each.has_known_operation],
            [number for number, each in changelogs.items() if not each.has_known_operation],
            [n for n, tag in metadata.tags().items() if not tag.snapshot.has_known_operation],
        )


def _stored(metadata: TableMetadata, number: int) -> Snapshot | None:
    """A stored snapshot. None if it expired in the meantime."""
    with suppress(NotFoundError):
        return metadata.snapshot(number)
    return None


def unreadable_documents(table: StoredTable) -> MendResult:
    """How much of a table and its branches some engines cannot read.

    Raises `DataError` for a damaged document.
    """
    found = [_UnreadableDocuments.of(each) for each in _lines(table)]
    return MendResult(
        sum(len(each.snapshots) for each in found),
        sum(len(each.changelogs) for each in found),
        sum(len(each.tags) for each in found),
    )


def mend_snapshots(table: StoredTable, *, dry_run: bool = False) -> MendResult:
    """Rewrite snapshots, changelogs and tags that some engines cannot read.

    They contain an operation that these engines do not know. Without it, they show the same rows.
    For a table, all branches are included. For a branch, only that one. The latest snapshot gets a
    successor that shows the same rows, and the others are replaced one by one. After an
    interruption, a repeated call continues. Other processes can write, compact and expire at the
    same time. Nobody must roll the table back or fast-forward it: a commit under the number of a
    deleted snapshot could be replaced. `dry_run` only counts.

    Raises `DataError` for a damaged document and if the store fails, and `UnsupportedError` and
    `ConflictError` like `write`.
    """
    found = unreadable_documents(table)
    for line in [] if dry_run else list(_lines(table)):
        unreadable = _UnreadableDocuments.of(line)
        newest = line.metadata.latest_snapshot()
        if newest is not None and newest.id in unreadable.snapshots:
            commit_unchanged(line, "the snapshots are rewritten")
        for name in unreadable.tags:
            _write_again(line, paths.tag_path(name), Tag.from_json)
        for number in unreadable.changelogs:
            _write_again(line, paths.changelog_path(number), Snapshot.from_json)
        for number in unreadable.snapshots:
            name = f"mending-{number}-{paths.new_uuid()}"
            try:
                create_tag(line, name, number, _HELD)
            except (NotFoundError, ConflictError):
                continue  # it has expired
            try:
                _write_again(line, paths.snapshot_path(number), Snapshot.from_json)
            finally:
                delete_tag(line, name)
    return found


def _lines(table: StoredTable) -> Iterator[StoredTable]:
    """A table with all of its branches. For a branch, only that one."""
    yield table
    if branch_of(table.store) == paths.MAIN_BRANCH:
        yield from (open_branch(table, name) for name in branch_names(table.store))


def _write_again(
    table: StoredTable, path: str, parse: Callable[[bytes, str], Snapshot | Tag]
) -> None:
    """Replace a file with one that has the same meaning, unless it is gone."""
    try:
        data = table.store.read(path)
    except DataError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return
        raise
    table.store.put(path, parse(data, table.store.uri_of(path)).to_json())


# -- missing bloom filters -------------------------------------------------------------------------


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
    BACKGROUND.cancel(table.uri)
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
            (runner or local_runner()).each(tasks, transaction.collect)
        outcome = transaction.compact()
    entries = [entry for made in transaction.results for entry in made.entries]
    if isinstance(outcome, Conflict):
        # The index files that were written: those that only the new entry of a file names.
        named = {FileKind.ADD: set[str](), FileKind.DELETE: set[str]()}
        for entry in entries:
            named[entry.kind] |= {*view.stored_paths(entry)}
        view.store.discard(sorted(named[FileKind.ADD] - named[FileKind.DELETE]))
        raise ConflictError(
            f"table {table.name}: files were replaced while they were indexed, so nothing was "
            "changed; try again"
        )
    if outcome is None:
        return IndexingResult(None, len(files), 0)
    run_follow_ups(TableChange(table, view, outcome.snapshot.id, "the files are indexed"))
    return IndexingResult(outcome.snapshot.id, len(files), len(entries) // 2)


@dataclass(frozen=True)
class IndexTask:
    """Creates the missing filters of one file. Picklable."""

    view: TableView
    entry: ManifestEntry
    filters: FileFilters

    def __call__(self) -> TaskResult:
        """Write the index. Does nothing if no filter is missing. Raises `DataError`."""
        view, file, filters = self.view, self.entry.file, self.filters
        path, stored = view.file_path(self.entry), stored_indexes(view, self.entry)

        # The filters that a file may have, by the names of its columns.
        old = view.schemas[file.schema_id]
        by_id = {field.id: field for field in old.fields}
        wanted = {}
        for name, settings in filters.columns.items():
            field = view.schema.by_name.get(name)
            there = None if field is None else by_id.get(field.id)
            # A value of another type has another hash, so readers do not use such a filter.
            if field is None or there is None or not has_hash(there.type):
                continue
            if there.type.with_nullable(True) == field.type.with_nullable(True):
                wanted[there.name] = settings
        lacking = {name: settings for name, settings in wanted.items()
                   if BLOOM_FILTER not in stored.get(name, {})}  # fmt: skip
        if not lacking:
            return TaskResult(())

        columns = tuple(old.field(name) for name in lacking)
        reader = FileReader(view.store, path, old, columns, size=file.file_size)
        rows = to_arrow(reader.read(), arrow_schema(columns))
        made = replace(filters, columns=lacking).indexes(rows, old)
        merged = {name: {**stored.get(name, {}), **made.get(name, {})} for name in (*stored, *made)}
        before, index_path = index_name_among(file.extra_files), index_name(path)
        if before is not None:
            folder = path.removesuffix(file.file_name)
            index_path = f"{folder}{later_index_name(file.file_name, before)}"
        placed = replace(filters, columns=wanted).placed(merged, index_path)
        view.store.put_all(placed.files)
        kept = tuple(name for name in file.extra_files if name != index_name_among([name]))
        new = {**placed.members, "extra_files": (*kept, *placed.members["extra_files"])}
        return TaskResult((
            replace(self.entry, kind=FileKind.DELETE),
            replace(self.entry, file=replace(file, **new)),
        ))  # fmt: skip
