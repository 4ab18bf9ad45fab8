"""Rows as commits wrote them, or the changelogs that commits stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from keytide.changes.files import ComingTask, FilesTask, LeavingTask
from keytide.changes.lanes import Lane, lanes
from keytide.definition.kind import kind_of
from keytide.errors import InvalidError, NotFoundError, UnsupportedError
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.format.snapshot import CommitKind, Snapshot
from keytide.options import keys
from keytide.read.sections import PlannedFile
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.view import TableView

__all__ = ["Commit", "changelogs", "deltas", "logged", "plan_written", "told_list"]

_WRITES_ROWS = (CommitKind.APPEND, CommitKind.OVERWRITE)
_WAY_OUT = "mode='diff' finds the changes of any table without a stored changelog"


@dataclass(frozen=True)
class Commit:
    """The files with the rows of a commit. Without the rows that it `replaces`.

    `has_kinds` says whether row kinds are stored with the rows.
    """

    entries: tuple[ManifestEntry, ...]
    replaces: bool
    has_kinds: bool


def told_list(snapshot: Snapshot, producer: str) -> tuple[str, int | None] | None:
    """The manifest list that describes a commit after its snapshot is gone, with its size in bytes.

    This is the list of the stored changelog or, if the table's `changelog-producer` is 'none', of
    the written rows. None for a commit without either.
    """
    if snapshot.changelog_manifest_list is not None:
        return snapshot.changelog_manifest_list, snapshot.changelog_manifest_list_size
    if producer == "none" and snapshot.commit_kind in _WRITES_ROWS:
        return snapshot.delta_manifest_list, snapshot.delta_manifest_list_size
    return None


def logged(metadata: TableMetadata, snapshot_id: int, mode: str, producer: str) -> Snapshot:
    """The commit with that id: its snapshot, or the changelog that outlives it.

    Raises `NotFoundError` like `TableMetadata.snapshot`, and if the remaining changelog does not
    contain what `mode` needs.
    """
    found = metadata.logged(snapshot_id)
    told = told_list(found, producer)
    # Of an expired snapshot, only this list is kept.
    is_enough = mode == "changelog" or told == (
        found.delta_manifest_list,
        found.delta_manifest_list_size,
    )
    writes = found.commit_kind in _WRITES_ROWS
    if writes and not is_enough and not metadata.has_snapshot(snapshot_id):
        raise NotFoundError(
            f"table {metadata.name}: snapshot {snapshot_id} has expired, and only its changelog "
            "is kept; read it with mode='changelog'"
        )
    return found


def plan_written(view: TableView, commits: Sequence[Commit]) -> list[FilesTask]:
    """The rows in the files, commit by commit, as tasks of one bucket each."""
    lane_of = lanes(
        view.schema,
        _bucket_counts(commits),
        # A key in dynamic buckets keeps its bucket until its partition is overwritten.
        keeps_places=not any(commit.replaces for commit in commits),
    )
    return [task for commit in commits for task in _tasks(view, commit, lane_of)]


def deltas(metadata: TableMetadata, snapshots: Iterable[Snapshot]) -> Iterator[Commit]:
    """What each commit wrote. Commits that only rearranged rows wrote nothing."""
    for snapshot in snapshots:
        if snapshot.commit_kind in _WRITES_ROWS:
            entries = metadata.entries(metadata.delta_manifests(snapshot))
            written = [e for e in entries if e.kind is FileKind.ADD and e.file.level == 0]
            yield _commit(snapshot, written, metadata)


def changelogs(
    metadata: TableMetadata, snapshots: Sequence[Snapshot], view: TableView
) -> Iterator[Commit]:
    """The changelog that is stored with each commit.

    Raises `InvalidError` if the table stores none, `NotFoundError`, which names the commit, if one
    lacks it, and `UnsupportedError` for files with the changelogs of several buckets.
    """
    producer = view.options.changelog_producer
    reason = _why_none(view)
    if reason is not None and all(each.changelog_manifest_list is None for each in snapshots):
        raise InvalidError(f"table {view.name} stores no changelog: {reason}. {_WAY_OUT}")
    for snapshot in snapshots:
        if producer == "input" and _lacks_changelog(snapshot):
            raise NotFoundError(
                f"table {view.name} has no changelog of snapshot {snapshot.id}: it was committed "
                f"before '{keys.CHANGELOG_PRODUCER}' was set, or by a writer that stores none. "
                f"{_WAY_OUT}; or start at snapshot {snapshot.id}"
            )
        entries = metadata.entries(metadata.changelog_manifests(snapshot))
        for entry in entries:
            _refuse_shared(entry, view)
        yield _commit(snapshot, entries, metadata)


def _why_none(view: TableView) -> str | None:
    """Why a table stores no changelog, if it does not. Another engine may have stored one."""
    producer = view.options.changelog_producer
    if producer == "none":
        return f"'{keys.CHANGELOG_PRODUCER}' is 'none'"
    if not view.options.compactions_tell or view.engine.why_kept_apart is None:
        return None
    return (
        "compactions would create it, but they merge nothing in this table: "
        f"{view.engine.why_kept_apart}"
    )


def _lacks_changelog(snapshot: Snapshot) -> bool:
    return (
        snapshot.commit_kind is CommitKind.APPEND
        and snapshot.changelog_manifest_list is None
        and snapshot.delta_record_count > 0
    )


def _refuse_shared(entry: ManifestEntry, view: TableView) -> None:
    if not entry.file.file_name.endswith((".parquet", ".orc", ".avro")):
        raise UnsupportedError(
            f"table {view.name}: changelog file {entry.file.file_name} contains changes of "
            f"several buckets, which this release cannot read. {_WAY_OUT}"
        )


def _commit(
    snapshot: Snapshot, entries: Iterable[ManifestEntry], metadata: TableMetadata
) -> Commit:
    in_buckets = tuple(entry for entry in entries if entry.bucket >= 0)
    kind = kind_of(metadata.schema(snapshot.schema_id))
    replaces = snapshot.commit_kind is CommitKind.OVERWRITE
    return Commit(in_buckets, replaces=replaces, has_kinds=kind.keeps_versions)


def _bucket_counts(commits: Iterable[Commit]) -> dict[bytes, set[int]]:
    """The numbers of buckets that each partition had when rows were written to it."""
    counts: dict[bytes, set[int]] = {}
    for commit in commits:
        for entry in commit.entries:
            counts.setdefault(entry.partition, set()).add(entry.total_buckets)
    return counts


def _tasks(
    view: TableView, commit: Commit, lane_of: Callable[[bytes, int], Lane]
) -> Iterator[FilesTask]:
    buckets: dict[BucketId, list[ManifestEntry]] = {}
    for entry in commit.entries:
        buckets.setdefault((entry.partition, entry.bucket), []).append(entry)
    moves_keys = view.schema.is_cross_partition and len(buckets) > 1
    turns = (LeavingTask, ComingTask) if moves_keys else (FilesTask,)
    for turn in turns:
        for bucket, entries in buckets.items():
            entries.sort(key=lambda entry: entry.file.min_sequence_number)
            planned = (PlannedFile(entry, has_kinds=commit.has_kinds) for entry in entries)
            yield turn(view, tuple(planned), lane_of(*bucket))
