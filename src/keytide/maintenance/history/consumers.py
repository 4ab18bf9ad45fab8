"""Consumers: named readers, whose position in the table protects snapshots from expiry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from keytide.base.moments import Moment, epoch_ms, utc
from keytide.errors import DataError, InvalidError, NotFoundError
from keytide.format import paths
from keytide.format.snapshot import Consumer
from keytide.snapshot.metadata import TableMetadata
from keytide.snapshot.retries import is_gone
from keytide.snapshot.stored import StoredTable

__all__ = [
    "NamedConsumer",
    "clear_consumers",
    "consumers_of",
    "expire_consumers",
    "reset_consumer",
]


@dataclass(frozen=True)
class NamedConsumer:
    """A named consumer: the next snapshot that it will read, and when it last stored its
    position.
    """

    name: str
    next_snapshot: int
    time: datetime


def consumers_of(metadata: TableMetadata) -> list[NamedConsumer]:
    """The consumers by name. Raises `DataError` for a damaged one."""
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
    table: StoredTable, name: str, next_snapshot: int | None = None
) -> NamedConsumer | None:
    """Let a consumer continue at another snapshot, or delete the consumer (None).

    A consumer that is running stores its own position again. Raises `NotFoundError` for an unknown
    consumer or a snapshot that no longer exists, `InvalidError` for a future snapshot, and
    `DataError` if the store fails.
    """
    metadata = table.metadata
    path = paths.consumer_path(name)
    if not metadata.store.exists(path):
        there = ", ".join(sorted(_times_ms(metadata))) or "none"
        raise NotFoundError(
            f"table {metadata.name} has no consumer {name!r}; existing consumers: {there}. A "
            f"reader creates one with follow(consumer={name!r})"
        )
    if next_snapshot is None:
        metadata.store.delete([path])
        return None
    newest = metadata.latest_snapshot_id() or 0
    if not 0 < next_snapshot <= newest + 1:
        raise InvalidError(
            f"table {metadata.name}: next_snapshot is {next_snapshot}, but the latest snapshot "
            f"is {newest}: give this one, an earlier one, or {newest + 1} for new changes only"
        )
    if next_snapshot <= newest:
        metadata.logged(next_snapshot)
    metadata.store.put(path, Consumer(next_snapshot).to_json())
    return next(found for found in consumers_of(metadata) if found.name == name)


def clear_consumers(
    table: StoredTable, including: str | None = None, excluding: str | None = None
) -> list[str]:
    """Delete consumers: all of them, or those whose full names match `including` and not
    `excluding`, which are regular expressions. Returns their names.

    Raises `InvalidError` for an invalid regular expression, and `DataError` if the store fails.
    """
    metadata = table.metadata
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


def expire_consumers(table: StoredTable, older_than: Moment) -> list[str]:
    """Delete consumers that have not stored their position since a time. Returns their names.

    This also happens whenever snapshots expire, according to the option 'consumer.expiration-time'.
    Raises `InvalidError` for an invalid time, and `DataError` if the store fails.
    """
    before_ms = epoch_ms(older_than, table.name, "older_than")
    times_ms = _times_ms(table.metadata)
    names = sorted(name for name, time_ms in times_ms.items() if time_ms < before_ms)
    table.store.delete(map(paths.consumer_path, names))
    return names


def _times_ms(metadata: TableMetadata) -> dict[str, int]:
    """When each consumer last stored its position."""
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
            f"table {metadata.name}: {argument} is {text!r}, which is not a valid regular "
            f"expression: {error}"
        ) from None
