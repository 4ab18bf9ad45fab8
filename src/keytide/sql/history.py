"""Procedures about a table's history, under the names and with the arguments that other engines of
the format give them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

import pyarrow as pa

from keytide.arguments import checked
from keytide.errors import InvalidError
from keytide.format.snapshot import Snapshot
from keytide.options import TableOptions
from keytide.sql.names import table_of
from keytide.table.catalog import Catalog
from keytide.table.history import automatic_tags, branches, tags
from keytide.table.history import branch_renaming as renaming
from keytide.table.history.rollback import RollbackResult
from keytide.table.scans import Moment, epoch_ms
from keytide.table.state.branches import has_branch
from keytide.table.state.metadata import TableMetadata
from keytide.table.upkeep import going_back, restore
from keytide.table.upkeep.going_back import roll_back

__all__ = ["HISTORY"]

_DONE = pa.table({"result": [True]})


def _metadata(catalog: Catalog, table: str) -> TableMetadata:
    return table_of(catalog, table).metadata


# -- tags ------------------------------------------------------------------------------------------


@checked
def create_tag(
    catalog: Catalog,
    table: str,
    tag: str,
    snapshot: int | None = None,
    time_retained: str | None = None,
) -> pa.Table:
    """A tag of a snapshot, or of the newest one."""
    tags.create_tag(_metadata(catalog, table), tag, snapshot, time_retained)
    return _DONE


@checked
def replace_tag(
    catalog: Catalog,
    table: str,
    tag: str,
    snapshot: int | None = None,
    time_retained: str | None = None,
) -> pa.Table:
    """As `create_tag`, of a tag that is there."""
    tags.replace_tag(_metadata(catalog, table), tag, snapshot, time_retained)
    return _DONE


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
    metadata = _metadata(catalog, table)
    moment = epoch_ms(timestamp, metadata.name, "timestamp")
    found = tags.snapshot_at_or_after(metadata, moment)
    return _tag_row(metadata, tag, found, time_retained)


@checked
def create_tag_from_watermark(
    catalog: Catalog, table: str, tag: str, watermark: int, time_retained: str | None = None
) -> pa.Table:
    """The first snapshot whose watermark is this one or a later one."""
    metadata = _metadata(catalog, table)
    found = tags.snapshot_at_or_after_watermark(metadata, watermark)
    return _tag_row(metadata, tag, found, time_retained)


def _tag_row(
    metadata: TableMetadata, tag: str, found: Snapshot, time_retained: str | None
) -> pa.Table:
    made = tags.create_tag(metadata, tag, found.id, time_retained).snapshot
    row = {
        "tagName": tag,
        "snapshot": made.id,
        "commit_time": made.time_millis,
        "watermark": None if made.watermark is None else str(made.watermark),
    }
    return pa.Table.from_pylist([row], schema=_TAG_ROW)


@checked
def rename_tag(catalog: Catalog, table: str, tag: str, target_tag: str) -> pa.Table:
    """The tag, and what it is to be called."""
    tags.rename_tag(_metadata(catalog, table), tag, target_tag)
    return _DONE


@checked
def delete_tag(catalog: Catalog, table: str, tag: str) -> pa.Table:
    """One tag, or several with commas between them."""
    metadata = _metadata(catalog, table)
    names = [tag] if metadata.has_tag(tag) else _names(tag)
    for name in names:
        metadata.stored_tag(name)
    for name in names:
        tags.delete_tag(metadata, name)
    return _DONE


def _names(text: str) -> list[str]:
    """Names with commas between them, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


_EXPIRED = pa.schema([("expired_tags", pa.string())])


@checked
def expire_tags(catalog: Catalog, table: str, older_than: Moment | None = None) -> pa.Table:
    """Tags whose time is over, and those made before a time."""
    stored = table_of(catalog, table)
    moment = None if older_than is None else epoch_ms(older_than, stored.name, "older_than")
    gone = [
        {"expired_tags": tag.name} for tag in automatic_tags.expire_tags(stored.metadata, moment)
    ]
    return pa.Table.from_pylist(gone, schema=_EXPIRED)


@checked
def trigger_tag_automatic_creation(catalog: Catalog, table: str) -> pa.Table:
    """The tags that the table's options say are due."""
    stored = table_of(catalog, table)
    options = TableOptions.parse(stored.schema.options)
    automatic_tags.tags_after_commit(stored.metadata, options, is_batch=True)
    return _DONE


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
    return _rollback_row(roll_back(found, to))


@checked
def rollback_to(
    catalog: Catalog, table: str, tag: str | None = None, snapshot: int | None = None
) -> pa.Table:
    """As Flink knows it: to a tag, or to a snapshot."""
    to = _one_place("rollback_to", tag=tag, snapshot=snapshot)
    return _rollback_row(roll_back(table_of(catalog, table), to))


@checked
def rollback_to_timestamp(catalog: Catalog, table: str, timestamp: Moment) -> pa.Table:
    """To the newest snapshot at or before a time."""
    found = table_of(catalog, table)
    moment = epoch_ms(timestamp, found.name, "timestamp")
    return _rollback_row(roll_back(found, as_of_ms=moment))


@checked
def rollback_to_watermark(catalog: Catalog, table: str, watermark: int) -> pa.Table:
    """To the newest snapshot whose watermark is this one or an earlier one."""
    return _rollback_row(roll_back(table_of(catalog, table), watermark=watermark))


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
    done = restore.restore(found, to)
    row = (previous, done.restored_snapshot_id, done.snapshot_id or previous)
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
    places = [] if partitions is None else [text for text in partitions.split(";") if text.strip()]
    given = {"version": version, "snapshot": snapshot, "tag": tag}
    to = None if timestamp is not None else _place(found.metadata, "restore", **given)
    moment = None if timestamp is None else epoch_ms(timestamp, found.name, "timestamp")
    done = restore.restore(found, to, places, as_of_ms=moment, dry_run=dry_run)
    return pa.Table.from_pylist([asdict(done)], schema=restore.RESTORE_ROW)


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


def _rollback_row(done: RollbackResult) -> pa.Table:
    return done.to_arrow().select(["previous_snapshot_id", "current_snapshot_id"])


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
    return _DONE


@checked
def delete_branch(catalog: Catalog, table: str, branch: str) -> pa.Table:
    """One branch, or several with commas between them."""
    found = table_of(catalog, table)
    names = _names(branch)
    for name in names:
        branches.refuse_deletion(found, name)
    for name in names:
        branches.delete_branch(found, name)
    return _DONE


@checked
def rename_branch(catalog: Catalog, table: str, from_branch: str, to_branch: str) -> pa.Table:
    """The branch, and what it is to be called."""
    renaming.rename_branch(table_of(catalog, table), from_branch, to_branch)
    return _DONE


@checked
def fast_forward(catalog: Catalog, table: str, branch: str) -> pa.Table:
    """The table becomes what the branch is."""
    going_back.fast_forward(table_of(catalog, table), branch)
    return _DONE


HISTORY: Mapping[str, Callable[..., pa.Table]] = {"restore": restore_partitions} | {
    call.__name__: call
    for call in (
        create_branch,
        create_tag,
        create_tag_from_timestamp,
        create_tag_from_watermark,
        delete_branch,
        delete_tag,
        expire_tags,
        fast_forward,
        rename_branch,
        rename_tag,
        replace_tag,
        rollback,
        rollback_to,
        rollback_to_as_latest,
        rollback_to_timestamp,
        rollback_to_watermark,
        trigger_tag_automatic_creation,
    )
}
"""The procedures by name."""
