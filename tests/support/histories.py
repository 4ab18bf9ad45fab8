"""Tables with tags, branches and consumers as the format lays them out, and what nobody names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keytide as kt
from keytide.format import paths
from keytide.format.manifest_entry import FileKind
from keytide.format.snapshot import CommitKind, Consumer, Snapshot, Tag
from keytide.maintenance.references import metadata_files
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import StoredTable
from keytide.store import Store
from table_rows import rows

ROOTS = ("schema/", "snapshot/snapshot-", "tag/", "branch/", "consumer/", "changelog/")
HINTS = ("snapshot/LATEST", "snapshot/EARLIEST")


def put_tag(table: kt.Table, name: str, snapshot_id: int) -> None:
    snapshot = table.metadata.snapshot(snapshot_id)
    table.stored.store.put(paths.tag_path(name), Tag(snapshot=snapshot).to_json())


def put_branch(table: kt.Table, name: str, snapshot_id: int) -> None:
    """A branch of one snapshot, without the tag that it may have been made of."""
    store, folder = table.stored.store, paths.branch_dir(name)
    snapshot = table.metadata.snapshot(snapshot_id)
    store.put(paths.join(folder, paths.snapshot_path(snapshot_id)), snapshot.to_json())
    for number in range(snapshot.schema_id + 1):
        path = paths.schema_path(number)
        store.put(paths.join(folder, path), store.read(path))


def put_consumer(table: kt.Table, name: str, next_snapshot: int) -> None:
    table.stored.store.put(paths.consumer_path(name), Consumer(next_snapshot).to_json())


def rows_at(table: kt.Table, snapshot: Snapshot | None) -> list[tuple[Any, ...]]:
    """The rows of a snapshot, wherever it is named, as one sees it who has seen nothing before."""
    stored = StoredTable(table.stored.store, table.name)
    schema = stored.schema if snapshot is None else stored.metadata.schema(snapshot.schema_id)
    scan = kt.Scan(stored.state(schema, snapshot), schema.names, threads=1)
    return rows(scan)


def every_snapshot(store: Store) -> Iterator[tuple[str, Snapshot]]:
    """The snapshots, tags and those of branches, by the path of their files."""
    for info in store.list():
        folder, name = info.path.rpartition("/")[::2]
        if folder.endswith("snapshot") and paths.parse_snapshot_name(name) is not None:
            yield info.path, Snapshot.from_json(store.read(info.path), info.path)
        elif folder.endswith("tag") and paths.parse_tag_name(name) is not None:
            yield info.path, Tag.from_json(store.read(info.path), info.path).snapshot


def stray_files(store: Store) -> set[str]:
    """The files that nothing names: no snapshot, no tag, no branch."""
    named = {*HINTS}.union(*named_files(store).values())
    return {f.path for f in store.list() if f.path not in named and not f.path.startswith(ROOTS)}


def torn_snapshots(store: Store) -> set[str]:
    """Snapshots, tags and those of branches that name a file which is gone."""
    there = {info.path for info in store.list()}
    return {path for path, named in named_files(store).items() if not named <= there}


def named_files(store: Store) -> dict[str, set[str]]:
    """The files that each snapshot, tag and snapshot of a branch names, by its path."""
    stored = StoredTable(store, "t")
    view, metadata, named = stored.view(stored.schema), TableMetadata(store, "t"), {}
    for path, snapshot in every_snapshot(store):
        told = metadata.entries(metadata.changelog_manifests(snapshot))
        entries = (*stored.live_files(snapshot).entries, *told)
        named[path] = {file for entry in entries for file in view.stored_paths(entry)}
        named[path] |= metadata_files(metadata, snapshot, view).keys()
    for number in metadata.changelog_ids():
        changelog = metadata.changelog(number)
        name = changelog.changelog_manifest_list
        if name is None and view.options.changelog_producer == "none":
            name = changelog.delta_manifest_list
        if name is not None and (name != changelog.delta_manifest_list or is_told(changelog)):
            manifests = metadata.manifest_list(name)
            entries = [e for e in metadata.entries(manifests) if e.kind is FileKind.ADD]
            files = {file for entry in entries for file in view.stored_paths(entry)}
            files |= {paths.manifest_path(meta.file_name) for meta in manifests}
            named[paths.changelog_path(number)] = files | {paths.manifest_path(name)}
    return named


def is_told(snapshot: Snapshot) -> bool:
    return snapshot.commit_kind in (CommitKind.APPEND, CommitKind.OVERWRITE)
