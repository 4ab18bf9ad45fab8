"""Procedures about a table's history, under the names and with the arguments that other engines of
the format give them.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from keytide.arguments import checked
from keytide.errors import InvalidError
from keytide.format.snapshot import Snapshot
from keytide.moments import Moment, epoch_ms
from keytide.options import TableOptions
from keytide.sql.names import table_of
from keytide.sql.procedure import Procedure, done, named_by_commas, places, procedure, texts
from keytide.table.catalog import Catalog
from keytide.table.history import automatic_tags, branch_renaming, branches, tags
from keytide.table.history.rollback import RollbackResult
from keytide.table.state.branches import has_branch
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.stored import StoredTable
from keytide.table.upkeep import going_back, restore

__all__ = ["HISTORY"]

# -- tags ------------------------------------------------------------------------------------------


_TAG_ROW = pa.schema(
    [
        ("tagName", pa.string()),
        ("snapshot", pa.int64()),
        ("commit_time", pa.int64()),
        ("watermark", pa.string()),
    ]
)


@checked
def create_tag_from_timestamp(
    catalog: Catalog, table: str, tag: str, timestamp: Moment, time_retained: str | None = None
) -> pa.Table:
    """The first snapshot at or after a time."""
    found = table_of(catalog, table)
    moment = epoch_ms(timestamp, found.name, "timestamp")
    first = tags.snapshot_at_or_after(found.metadata, moment)
    return _tag_row(found, tag, first, time_retained)


@checked
def create_tag_from_watermark(
    catalog: Catalog, table: str, tag: str, watermark: int, time_retained: str | None = None
) -> pa.Table:
    """The first snapshot whose watermark is this one or a later one."""
    found = table_of(catalog, table)
    first = tags.snapshot_at_or_after_watermark(found.metadata, watermark)
    return _tag_row(found, tag, first, time_retained)


def _tag_row(table: StoredTable, tag: str, first: Snapshot, time_retained: str | None) -> pa.Table:
    made = tags.create_tag(table, tag, first.id, time_retained).snapshot
    row = {
        "tagName": tag,
        "snapshot": made.id,
        "commit_time": made.time_millis,
        "watermark": None if made.watermark is None else str(made.watermark),
    }
    return pa.Table.from_pylist([row], schema=_TAG_ROW)


@checked
def delete_tag(catalog: Catalog, table: str, tag: str) -> pa.Table:
    """One tag, or several with commas between them."""
    found = table_of(catalog, table)
    metadata = found.metadata
    names = [tag] if metadata.has_tag(tag) else named_by_commas(tag)
    for name in names:
        metadata.stored_tag(name)
    for name in names:
        tags.delete_tag(found, name)
    return done()


def _tag_names(gone: tags.Tags) -> pa.Table:
    return texts("expired_tags")(tag.name for tag in gone)


@checked
def trigger_tag_automatic_creation(catalog: Catalog, table: str) -> pa.Table:
    """The tags that the table's options say are due."""
    stored = table_of(catalog, table)
    options = TableOptions.parse(stored.schema.options)
    automatic_tags.tags_after_commit(stored.metadata, options, is_batch=True)
    return done()


# -- rollback --------------------------------------------------------------------------------------


@checked
def rollback(
    catalog: Catalog,
    table: str,
    version: str | int | None = None,
    snapshot: int | None = None,
    tag: str | None = None,
) -> pa.Table:
    """As Spark knows it: to an id or a tag, the `version`, or to one of them by its name."""
    found = table_of(catalog, table)
    to = _place(found.metadata, "rollback", version=version, snapshot=snapshot, tag=tag)
    return _rollback_row(going_back.rollback_to(found, to))


@checked
def rollback_to(
    catalog: Catalog, table: str, tag: str | None = None, snapshot: int | None = None
) -> pa.Table:
    """As Flink knows it: to a tag, or to a snapshot."""
    to = _one_place("rollback_to", tag=tag, snapshot=snapshot)
    return _rollback_row(going_back.rollback_to(table_of(catalog, table), to))


@checked
def rollback_to_timestamp(catalog: Catalog, table: str, timestamp: Moment) -> pa.Table:
    """To the newest snapshot at or before a time."""
    found = table_of(catalog, table)
    moment = epoch_ms(timestamp, found.name, "timestamp")
    return _rollback_row(going_back.rollback_to(found, as_of=moment))


@checked
def rollback_to_watermark(catalog: Catalog, table: str, watermark: int) -> pa.Table:
    """To the newest snapshot whose watermark is this one or an earlier one."""
    return _rollback_row(going_back.rollback_to(table_of(catalog, table), watermark=watermark))


_AS_LATEST = pa.schema(
    [
        (name, pa.int64())
        for name in ("previous_snapshot_id", "rolled_back_snapshot_id", "current_snapshot_id")
    ]
)


@checked
def rollback_to_as_latest(
    catalog: Catalog, table: str, tag: str | None = None, snapshot: int | None = None
) -> pa.Table:
    """The whole table becomes what it was, in one more commit."""
    found = table_of(catalog, table)
    to = _one_place("rollback_to_as_latest", tag=tag, snapshot=snapshot)
    previous = found.metadata.latest_snapshot_id()
    made = restore.restore(found, to)
    row = (previous, made.restored_snapshot_id, made.snapshot_id or previous)
    return pa.Table.from_pylist([dict(zip(_AS_LATEST.names, row, strict=True))], schema=_AS_LATEST)


@checked
def restore_partitions(
    catalog: Catalog,
    table: str,
    partitions: str | None = None,
    version: str | int | None = None,
    snapshot: int | None = None,
    tag: str | None = None,
    timestamp: Moment | None = None,
    dry_run: bool = False,
) -> pa.Table:
    """Some partitions, with semicolons between them, or all: `dt=2026-01-31;dt=2026-02-01`."""
    found = table_of(catalog, table)
    given = {"version": version, "snapshot": snapshot, "tag": tag}
    to = None if timestamp is not None else _place(found.metadata, "restore", **given)
    moment = None if timestamp is None else epoch_ms(timestamp, found.name, "timestamp")
    return restore.restore(found, to, places(partitions), as_of=moment, dry_run=dry_run).to_arrow()


def _place(metadata: TableMetadata, procedure: str, **given: str | int | None) -> str | int:
    """The one place that is given; a version is an id or a tag."""
    place = _one_place(procedure, **given)
    if given.get("version") is None or not isinstance(place, str) or metadata.has_tag(place):
        return place
    return int(place) if place.isdecimal() else place


def _one_place(procedure: str, **given: str | int | None) -> str | int:
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) != 1:
        raise InvalidError(
            f"sys.{procedure}: {' and '.join(found) or 'nothing'} given; say where to go back to "
            f"by one of {', '.join(given)}"
        )
    (place,) = found.values()
    return place


def _rollback_row(made: RollbackResult) -> pa.Table:
    return made.to_arrow().select(["previous_snapshot_id", "current_snapshot_id"])


# -- branches --------------------------------------------------------------------------------------


@checked
def create_branch(
    catalog: Catalog,
    table: str,
    branch: str,
    tag: str | None = None,
    ignoreIfExists: bool | str = False,  # noqa: N803  # the format's name
) -> pa.Table:
    """Of a tag, or without rows: so the format has it."""
    found = table_of(catalog, table)
    is_ignored = str(ignoreIfExists).lower() == "true"
    if not (is_ignored and has_branch(found.store, branch)):
        branches.create_branch(found, branch, tag=tag, empty=tag is None)
    return done()


@checked
def delete_branch(catalog: Catalog, table: str, branch: str) -> pa.Table:
    """One branch, or several with commas between them."""
    found = table_of(catalog, table)
    names = named_by_commas(branch)
    for name in names:
        branches.refuse_deletion(found, name)
    for name in names:
        branches.delete_branch(found, name)
    return done()


_TAG = {"tag": "name", "snapshot": "snapshot_id", "time_retained": "time_retained"}

HISTORY: Mapping[str, Procedure] = {
    "create_branch": create_branch,
    "create_tag": procedure(tags.create_tag, done, **_TAG),
    "create_tag_from_timestamp": create_tag_from_timestamp,
    "create_tag_from_watermark": create_tag_from_watermark,
    "delete_branch": delete_branch,
    "delete_tag": delete_tag,
    "expire_tags": procedure(automatic_tags.expire_tags, _tag_names, older_than="older_than"),
    "fast_forward": procedure(going_back.fast_forward, done, branch="name"),
    "rename_branch": procedure(
        branch_renaming.rename_branch, done, from_branch="name", to_branch="new_name"
    ),
    "rename_tag": procedure(tags.rename_tag, done, tag="name", target_tag="new_name"),
    "replace_tag": procedure(tags.replace_tag, done, **_TAG),
    "restore": restore_partitions,
    "rollback": rollback,
    "rollback_to": rollback_to,
    "rollback_to_as_latest": rollback_to_as_latest,
    "rollback_to_timestamp": rollback_to_timestamp,
    "rollback_to_watermark": rollback_to_watermark,
    "trigger_tag_automatic_creation": trigger_tag_automatic_creation,
}
"""The procedures by name."""
