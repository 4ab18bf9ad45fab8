"""Procedures for a table's history, with the names and arguments of the format's other engines.

Some are generated from verbs of tables. Helpers for other procedures are here, too.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import wraps
from typing import Any, TypeAlias

import pyarrow as pa

from keytide.base.arguments import checked
from keytide.base.dataclass import dataclass
from keytide.base.record import Record
from keytide.base.text import Moment, epoch_ms
from keytide.catalogs.catalog import Catalog
from keytide.dml.attachments import table_of
from keytide.errors import InvalidError
from keytide.format.snapshot import Snapshot
from keytide.maintenance import actions, branches, restore, tags
from keytide.maintenance.rollback import RollbackResult
from keytide.options import TableOptions
from keytide.snapshot.branch_tables import has_branch
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.stored_table import StoredTable
from keytide.write.partition_spec import Place, partition_condition

# -- procedures from verbs -------------------------------------------------------------------------


Procedure: TypeAlias = Callable[..., pa.Table]


def success_result(_: object = None) -> pa.Table:
    """The result of a procedure that returns nothing."""
    return pa.table({"result": [True]})


def texts(column: str) -> Callable[[Iterable[str]], pa.Table]:
    """A result with one string per row."""
    return lambda found: pa.table({column: pa.array(found, pa.string())})


def procedure(
    verb: Callable[..., Any], answer: Callable[[Any], pa.Table] | None = None, **named: str
) -> Procedure:
    """The procedure that runs a verb. `answer` converts the verb's result, if it is no record.

    It takes the arguments of the verb, by position or by name. If `named` is given, it takes only
    these arguments, in this order and under these SQL names: `tag="name"`.
    """
    declared = inspect.signature(verb, eval_str=True).parameters
    named = named or {name: name for name in [*declared][1:]}

    @wraps(verb)
    def carry_out(catalog: Catalog, table: str, *arguments: Any, **others: Any) -> pa.Table:
        given = {**dict(zip(named, arguments, strict=False)), **others}
        found = table_of(catalog, table)
        result = verb(found, **{named[name]: value for name, value in given.items()})
        if answer is not None:
            return answer(result)
        return success_result() if result is None else result.to_arrow()

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = [inspect.Parameter(name, kind, annotation=type_)
           for name, type_ in (("catalog", Catalog), ("table", str))]  # fmt: skip
    taken = []
    for sql_name, name in named.items():
        type_ = declared[name].annotation
        if typing.get_origin(type_) in (types.UnionType, typing.Union):
            # Only what can be written as a literal, which excludes durations.
            literals = tuple(t for t in typing.get_args(type_) if t is not timedelta)
            type_ = typing.Union[literals]  # noqa: UP007  # made of values
        taken.append(declared[name].replace(name=sql_name, kind=kind, annotation=type_))
    setattr(carry_out, "__signature__", inspect.Signature([*own, *taken]))  # noqa: B010  # no member that mypy knows
    return checked(carry_out)


def comma_separated(text: str) -> list[str]:
    """Names separated by commas, without duplicates."""
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def places(partitions: str | None) -> list[str]:
    """Partitions separated by semicolons: `dt=2026-01-31;dt=2026-02-01`."""
    return [text for text in (partitions or "").split(";") if text.strip()]


def selected_partitions(
    procedure: str, table: StoredTable, partitions: str | None, where: str | None
) -> list[Place]:
    """The partitions that are listed or match a condition. An empty list means all."""
    if where is None:
        return [*places(partitions)]
    if partitions is not None:
        raise InvalidError(
            f"sys.{procedure}: partitions and where cannot be combined; give only one of them"
        )
    return [partition_condition(where, table.schema, table.name)]


# -- tags ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _CreatedTag(Record):
    tagName: str  # noqa: N815  # the format's name
    snapshot: int
    commit_time: int
    watermark: str | None


def create_tag_from_timestamp(
    table: StoredTable, tag: str, timestamp: Moment, time_retained: str | None = None
) -> _CreatedTag:
    """Tag the first snapshot at or after a time."""
    moment = epoch_ms(timestamp, table.name, "timestamp")
    first = tags.snapshot_at_or_after(table.metadata, moment)
    return _create_tag_at(table, tag, first, time_retained)


def create_tag_from_watermark(
    table: StoredTable, tag: str, watermark: int, time_retained: str | None = None
) -> _CreatedTag:
    """Tag the first snapshot with at least this watermark."""
    first = tags.snapshot_at_or_after_watermark(table.metadata, watermark)
    return _create_tag_at(table, tag, first, time_retained)


def _create_tag_at(
    table: StoredTable, tag: str, first: Snapshot, time_retained: str | None
) -> _CreatedTag:
    made = tags.create_tag(table, tag, first.id, time_retained).snapshot
    watermark = None if made.watermark is None else str(made.watermark)
    return _CreatedTag(tag, made.id, made.time_millis, watermark)


def delete_tag(table: StoredTable, tag: str) -> None:
    """Delete one tag, or several separated by commas."""
    metadata = table.metadata
    names = [tag] if metadata.has_tag(tag) else comma_separated(tag)
    for name in names:
        metadata.stored_tag(name)
    for name in names:
        tags.delete_tag(table, name)


def trigger_tag_automatic_creation(table: StoredTable) -> None:
    """Create the tags that are due according to the table's options."""
    options = TableOptions.parse(table.schema.options)
    tags.create_automatic_tags(table.metadata, options, is_batch=True)


# -- rollback --------------------------------------------------------------------------------------


def rollback(
    table: StoredTable,
    version: str | int | None = None,
    snapshot: int | None = None,
    tag: str | None = None,
) -> RollbackResult:
    """As in Spark: to an id or a tag, given as `version` or by its own argument."""
    to = _place(table.metadata, "rollback", version=version, snapshot=snapshot, tag=tag)
    return actions.rollback_to(table, to)


def rollback_to(
    table: StoredTable, tag: str | None = None, snapshot: int | None = None
) -> RollbackResult:
    """As in Flink: to a tag, or to a snapshot."""
    to = _one_place("rollback_to", tag=tag, snapshot=snapshot)
    return actions.rollback_to(table, to)


def rollback_to_timestamp(table: StoredTable, timestamp: Moment) -> RollbackResult:
    """To the latest snapshot at or before a time."""
    moment = epoch_ms(timestamp, table.name, "timestamp")
    return actions.rollback_to(table, as_of=moment)


def rollback_to_watermark(table: StoredTable, watermark: int) -> RollbackResult:
    """To the latest snapshot with at most this watermark."""
    return actions.rollback_to(table, watermark=watermark)


@dataclass(frozen=True)
class _RollbackAsLatest(Record):
    previous_snapshot_id: int | None
    rolled_back_snapshot_id: int
    current_snapshot_id: int | None


def rollback_to_as_latest(
    table: StoredTable, tag: str | None = None, snapshot: int | None = None
) -> _RollbackAsLatest:
    """Restore the whole table, in a new commit."""
    to = _one_place("rollback_to_as_latest", tag=tag, snapshot=snapshot)
    previous = table.metadata.latest_snapshot_id()
    made = restore.restore(table, to)
    return _RollbackAsLatest(previous, made.restored_snapshot_id, made.snapshot_id or previous)


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
    actions.fast_forward(table, branch if to is None else to, discard=discard)


def delete_branch(table: StoredTable, branch: str) -> None:
    """Delete one branch, or several separated by commas."""
    names = comma_separated(branch)
    for name in names:
        branches.refuse_deletion(table, name)
    for name in names:
        actions.delete_branch(table, name)


_TAG = {"tag": "name", "snapshot": "snapshot_id", "time_retained": "time_retained"}

HISTORY: Mapping[str, Procedure] = {
    "create_branch": procedure(create_branch),
    "create_tag": procedure(tags.create_tag, success_result, **_TAG),
    "create_tag_from_timestamp": procedure(create_tag_from_timestamp),
    "create_tag_from_watermark": procedure(create_tag_from_watermark),
    "delete_branch": procedure(delete_branch),
    "delete_tag": procedure(delete_tag),
    "expire_tags": procedure(
        tags.expire_tags,
        lambda gone: texts("expired_tags")(tag.name for tag in gone),
        older_than="older_than",
    ),
    "fast_forward": procedure(fast_forward, success_result),
    "rename_branch": procedure(
        actions.rename_branch, success_result, from_branch="name", to_branch="new_name"
    ),
    "rename_tag": procedure(tags.rename_tag, success_result, tag="name", target_tag="new_name"),
    "replace_tag": procedure(tags.replace_tag, success_result, **_TAG),
    "restore": procedure(restore_partitions),
    "rollback": procedure(rollback, _rollback_row),
    "rollback_to": procedure(rollback_to, _rollback_row),
    "rollback_to_as_latest": procedure(rollback_to_as_latest),
    "rollback_to_timestamp": procedure(rollback_to_timestamp, _rollback_row),
    "rollback_to_watermark": procedure(rollback_to_watermark, _rollback_row),
    "trigger_tag_automatic_creation": procedure(trigger_tag_automatic_creation),
}
"""The procedures by name."""
