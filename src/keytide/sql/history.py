"""Procedures for a table's history, with the names and arguments of the format's other engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from keytide.base.record import Record
from keytide.base.text import Moment, epoch_ms
from keytide.errors import InvalidError
from keytide.format.snapshot import Snapshot
from keytide.maintenance.history import branches, tags
from keytide.maintenance.history.rollback import RollbackResult
from keytide.maintenance.upkeep import branches as ended_branches
from keytide.maintenance.upkeep import going_back, restore
from keytide.options import TableOptions
from keytide.snapshot.branches import has_branch
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.pinned import StoredTable
from keytide.sql.procedure import Procedure, done, named_by_commas, places, procedure, texts

__all__ = ["HISTORY", "place_of_version"]

# -- tags ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _MadeTag(Record):
    tagName: str  # noqa: N815  # the format's name
    snapshot: int
    commit_time: int
    watermark: str | None


def create_tag_from_timestamp(
    table: StoredTable, tag: str, timestamp: Moment, time_retained: str | None = None
) -> _MadeTag:
    """Tag the first snapshot at or after a time."""
    moment = epoch_ms(timestamp, table.name, "timestamp")
    first = tags.snapshot_at_or_after(table.metadata, moment)
    return _made_tag(table, tag, first, time_retained)


def create_tag_from_watermark(
    table: StoredTable, tag: str, watermark: int, time_retained: str | None = None
) -> _MadeTag:
    """Tag the first snapshot with at least this watermark."""
    first = tags.snapshot_at_or_after_watermark(table.metadata, watermark)
    return _made_tag(table, tag, first, time_retained)


def _made_tag(table: StoredTable, tag: str, first: Snapshot, time_retained: str | None) -> _MadeTag:
    made = tags.create_tag(table, tag, first.id, time_retained).snapshot
    watermark = None if made.watermark is None else str(made.watermark)
    return _MadeTag(tag, made.id, made.time_millis, watermark)


def delete_tag(table: StoredTable, tag: str) -> None:
    """Delete one tag, or several separated by commas."""
    metadata = table.metadata
    names = [tag] if metadata.has_tag(tag) else named_by_commas(tag)
    for name in names:
        metadata.stored_tag(name)
    for name in names:
        tags.delete_tag(table, name)


def _tag_names(gone: tags.Tags) -> pa.Table:
    return texts("expired_tags")(tag.name for tag in gone)


def trigger_tag_automatic_creation(table: StoredTable) -> None:
    """Create the tags that are due according to the table's options."""
    options = TableOptions.parse(table.schema.options)
    tags.tags_after_commit(table.metadata, options, is_batch=True)


# -- rollback --------------------------------------------------------------------------------------


def rollback(
    table: StoredTable,
    version: str | int | None = None,
    snapshot: int | None = None,
    tag: str | None = None,
) -> RollbackResult:
    """As in Spark: to an id or a tag, given as `version` or by its own argument."""
    to = _place(table.metadata, "rollback", version=version, snapshot=snapshot, tag=tag)
    return going_back.rollback_to(table, to)


def rollback_to(
    table: StoredTable, tag: str | None = None, snapshot: int | None = None
) -> RollbackResult:
    """As in Flink: to a tag, or to a snapshot."""
    to = _one_place("rollback_to", tag=tag, snapshot=snapshot)
    return going_back.rollback_to(table, to)


def rollback_to_timestamp(table: StoredTable, timestamp: Moment) -> RollbackResult:
    """To the latest snapshot at or before a time."""
    moment = epoch_ms(timestamp, table.name, "timestamp")
    return going_back.rollback_to(table, as_of=moment)


def rollback_to_watermark(table: StoredTable, watermark: int) -> RollbackResult:
    """To the latest snapshot with at most this watermark."""
    return going_back.rollback_to(table, watermark=watermark)


@dataclass(frozen=True)
class _AsLatest(Record):
    previous_snapshot_id: int | None
    rolled_back_snapshot_id: int
    current_snapshot_id: int | None


def rollback_to_as_latest(
    table: StoredTable, tag: str | None = None, snapshot: int | None = None
) -> _AsLatest:
    """Restore the whole table, in a new commit."""
    to = _one_place("rollback_to_as_latest", tag=tag, snapshot=snapshot)
    previous = table.metadata.latest_snapshot_id()
    made = restore.restore(table, to)
    return _AsLatest(previous, made.restored_snapshot_id, made.snapshot_id or previous)


def restore_partitions(
    table: StoredTable,
    partitions: str | None = None,
    version: str | int | None = None,
    snapshot: int | None = None,
    tag: str | None = None,
    timestamp: Moment | None = None,
    dry_run: bool = False,
) -> restore.RestoreResult:
    """Restore some partitions, separated by semicolons, or all: `dt=2026-01-31;dt=2026-02-01`."""
    given = {"version": version, "snapshot": snapshot, "tag": tag}
    to = None if timestamp is not None else _place(table.metadata, "restore", **given)
    moment = None if timestamp is None else epoch_ms(timestamp, table.name, "timestamp")
    return restore.restore(table, to, places(partitions), as_of=moment, dry_run=dry_run)


def _place(metadata: TableMetadata, procedure: str, **given: str | int | None) -> str | int:
    """The one given place. A version is an id or a tag."""
    place = _one_place(procedure, **given)
    if given.get("version") is None or not isinstance(place, str):
        return place
    return place_of_version(metadata, place)


def place_of_version(metadata: TableMetadata, version: str) -> str | int:
    """A tag of that name, otherwise the snapshot id if the version is a number."""
    is_id = version.isdecimal() and not metadata.has_tag(version)
    return int(version) if is_id else version


def _one_place(procedure: str, **given: str | int | None) -> str | int:
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) != 1:
        raise InvalidError(
            f"sys.{procedure}: {' and '.join(found) or 'nothing'} given; expected exactly one of "
            f"{', '.join(given)}"
        )
    (place,) = found.values()
    return place


def _rollback_row(made: RollbackResult) -> pa.Table:
    return made.to_arrow().select(["previous_snapshot_id", "current_snapshot_id"])


# -- branches --------------------------------------------------------------------------------------


def create_branch(
    table: StoredTable,
    branch: str,
    tag: str | None = None,
    ignoreIfExists: bool | str = False,  # noqa: N803  # the format's name
) -> None:
    """From a tag, or without rows, as the format defines it."""
    is_ignored = str(ignoreIfExists).lower() == "true"
    if not (is_ignored and has_branch(table.store, branch)):
        branches.create_branch(table, branch, tag=tag, empty=tag is None)


def fast_forward(
    table: StoredTable, branch: str, to: str | None = None, discard: bool = False
) -> None:
    """Make the table equal to its branch. As in Iceberg, `'main'` can be given, with `to`."""
    if to is not None and branch != "main":
        raise InvalidError(
            f"sys.fast_forward: branch is {branch!r}, but only 'main' can be fast-forwarded to "
            "another branch; open the branch and restore it instead"
        )
    going_back.fast_forward(table, branch if to is None else to, discard=discard)


def delete_branch(table: StoredTable, branch: str) -> None:
    """Delete one branch, or several separated by commas."""
    names = named_by_commas(branch)
    for name in names:
        branches.refuse_deletion(table, name)
    for name in names:
        ended_branches.delete_branch(table, name)


_TAG = {"tag": "name", "snapshot": "snapshot_id", "time_retained": "time_retained"}

HISTORY: Mapping[str, Procedure] = {
    "create_branch": procedure(create_branch),
    "create_tag": procedure(tags.create_tag, done, **_TAG),
    "create_tag_from_timestamp": procedure(create_tag_from_timestamp),
    "create_tag_from_watermark": procedure(create_tag_from_watermark),
    "delete_branch": procedure(delete_branch),
    "delete_tag": procedure(delete_tag),
    "expire_tags": procedure(tags.expire_tags, _tag_names, older_than="older_than"),
    "fast_forward": procedure(fast_forward, done),
    "rename_branch": procedure(
        ended_branches.rename_branch, done, from_branch="name", to_branch="new_name"
    ),
    "rename_tag": procedure(tags.rename_tag, done, tag="name", target_tag="new_name"),
    "replace_tag": procedure(tags.replace_tag, done, **_TAG),
    "restore": procedure(restore_partitions),
    "rollback": procedure(rollback, _rollback_row),
    "rollback_to": procedure(rollback_to, _rollback_row),
    "rollback_to_as_latest": procedure(rollback_to_as_latest),
    "rollback_to_timestamp": procedure(rollback_to_timestamp, _rollback_row),
    "rollback_to_watermark": procedure(rollback_to_watermark, _rollback_row),
    "trigger_tag_automatic_creation": procedure(trigger_tag_automatic_creation),
}
"""The procedures by name."""
