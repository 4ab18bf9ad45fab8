"""Procedures about a table's history, under the names and with the arguments that other engines of
the format give them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from keytide.arguments import checked
from keytide.errors import InvalidError
from keytide.sql.names import table_of
from keytide.table.catalog import Catalog
from keytide.table.state.metadata import TableMetadata
from keytide.table.upkeep import tags

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
    *,
    snapshot_id: int | None = None,
) -> pa.Table:
    """Spark calls the snapshot `snapshot`, Flink `snapshot_id`."""
    wanted = _one_of("create_tag", snapshot=snapshot, snapshot_id=snapshot_id)
    tags.create_tag(_metadata(catalog, table), tag, wanted, time_retained)
    return _DONE


@checked
def replace_tag(
    catalog: Catalog,
    table: str,
    tag: str,
    snapshot: int | None = None,
    time_retained: str | None = None,
    *,
    snapshot_id: int | None = None,
) -> pa.Table:
    """As `create_tag`, of a tag that is there."""
    wanted = _one_of("replace_tag", snapshot=snapshot, snapshot_id=snapshot_id)
    tags.replace_tag(_metadata(catalog, table), tag, wanted, time_retained)
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
    catalog: Catalog, table: str, tag: str, timestamp: int, time_retained: str | None = None
) -> pa.Table:
    """The first snapshot at or after a time in epoch milliseconds."""
    metadata = _metadata(catalog, table)
    found = tags.snapshot_at_or_after(metadata, timestamp)
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
    names = [tag] if metadata.has_tag(tag) else [name.strip() for name in tag.split(",")]
    for name in names:
        metadata.stored_tag(name)
    for name in names:
        tags.delete_tag(metadata, name)
    return _DONE


def _one_of(procedure: str, **given: int | None) -> int | None:
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) > 1:
        raise InvalidError(f"sys.{procedure}: {' and '.join(found)} say the same; give one of them")
    return next(iter(found.values()), None)


HISTORY: Mapping[str, Callable[..., pa.Table]] = {
    call.__name__: call
    for call in (create_tag, create_tag_from_timestamp, delete_tag, rename_tag, replace_tag)
}
"""The procedures by name."""
