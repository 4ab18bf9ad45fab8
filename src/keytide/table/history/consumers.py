"""Consumers: named readers, whose place in the table keeps snapshots from expiring."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from keytide.errors import DataError, InvalidError, NotFoundError
from keytide.format import paths
from keytide.format.snapshot import Consumer
from keytide.moments import utc
from keytide.table.state.metadata import TableMetadata
from keytide.table.state.retries import is_gone

__all__ = [
    "CONSUMER_ROW",
    "NamedConsumer",
    "clear_consumers",
    "consumers_of",
    "expire_consumers",
    "reset_consumer",
]


@dataclass(frozen=True)
class NamedConsumer:
    """A named reader: the snapshot that it goes on with, and when it last kept its place."""

    name: str
    next_snapshot: int
    time: datetime


CONSUMER_ROW = pa.schema(
    [
        ("name", pa.string()),
        ("next_snapshot", pa.int64()),
        ("time", pa.timestamp("ms", "UTC")),
    ]
)
"""A consumer as a row."""


def consumers_of(metadata: TableMetadata) -> list[NamedConsumer]:
    """The consumers by name. Raises `DataError` for a torn one."""
    found = []
    for name, time_ms in sorted(_times_ms(metadata).items()):
        path = paths.consumer_path(name)
        try:
            consumer = Consumer.from_json(metadata.store.read(path), metadata.store.uri_of(path))
        except DataError as error:
            if is_gone(error):
                continue
            raise
        time = utc(time_ms)
        found.append(NamedConsumer(name, consumer.next_snapshot, time))
    return found


def reset_consumer(
    metadata: TableMetadata, name: str, next_snapshot: int | None = None
) -> NamedConsumer | None:
    """Have a consumer go on elsewhere, or forget it, as `Table.reset_consumer` says."""
    path = paths.consumer_path(name)
    if not metadata.store.exists(path):
        there = ", ".join(sorted(_times_ms(metadata))) or "none"
        raise NotFoundError(
            f"table {metadata.name} has no consumer {name!r}; it has {there}. A reader makes one: "
            f"follow(consumer={name!r})"
        )
    if next_snapshot is None:
        metadata.store.delete([path])
        return None
    newest = metadata.latest_snapshot_id() or 0
    if not 0 < next_snapshot <= newest + 1:
        raise InvalidError(
            f"table {metadata.name}: next_snapshot is {next_snapshot}; the newest snapshot is "
            f"{newest}: give it or an earlier one, or {newest + 1} for what comes next"
        )
    if next_snapshot <= newest:
        metadata.logged(next_snapshot)
    metadata.store.put(path, Consumer(next_snapshot).to_json())
    return next(found for found in consumers_of(metadata) if found.name == name)


def clear_consumers(
    metadata: TableMetadata, including: str | None = None, excluding: str | None = None
) -> list[str]:
    """Forget consumers, as `Table.clear_consumers` says."""
    wanted, unwanted = (
        _pattern(metadata, argument, text)
        for argument, text in (("including", including), ("excluding", excluding))
    )
    names = [
        name
        for name in sorted(_times_ms(metadata))
        if (wanted is None or wanted.fullmatch(name))
        and (unwanted is None or not unwanted.fullmatch(name))
    ]
    metadata.store.delete(map(paths.consumer_path, names))
    return names


def expire_consumers(metadata: TableMetadata, before_ms: int) -> list[str]:
    """Forget consumers that have not kept their place since a time. Raises `DataError`."""
    names = sorted(name for name, time_ms in _times_ms(metadata).items() if time_ms < before_ms)
    metadata.store.delete(map(paths.consumer_path, names))
    return names


def _times_ms(metadata: TableMetadata) -> dict[str, int]:
    """When each consumer last kept its place."""
    infos = metadata.store.list(paths.consumer_dir())
    times = {paths.parse_consumer_name(info.path.rpartition("/")[2]): info.modified_ms
             for info in infos}  # fmt: skip
    return {name: time_ms for name, time_ms in times.items() if name is not None}


def _pattern(metadata: TableMetadata, argument: str, text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise InvalidError(
            f"table {metadata.name}: {argument} is {text!r}, which is no regular expression: "
            f"{error}"
        ) from None
