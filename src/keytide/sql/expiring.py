"""CALL of procedures that drop history and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from keytide.arguments import checked
from keytide.errors import NotFoundError
from keytide.sql.names import table_of
from keytide.table.catalog import Catalog
from keytide.table.expiry.orphans import ORPHANS_ROW, remove_orphan_files
from keytide.table.expiry.partition_expiry import (
    PARTITIONS_ROW,
    PartitionAge,
)
from keytide.table.expiry.retention import Asked
from keytide.table.expiry.snapshot_expiry import (
    EXPIRY_ROW,
    ExpiryResult,
    expire_changelogs,
    expire_snapshots,
)
from keytide.table.history.consumers import clear_consumers, expire_consumers, reset_consumer
from keytide.table.scans import Moment, epoch_ms
from keytide.table.state.stored import StoredTable
from keytide.table.upkeep.mending import MENDING_ROW, mend_snapshots
from keytide.table.upkeep.old_partitions import expire_partitions
from keytide.table.upkeep.purging import PURGE_ROW, purge

__all__ = ["EXPIRING"]


@checked
def _expire_snapshots(
    catalog: Catalog, table: str, retain_max: int | None = None, retain_min: int | None = None,
    older_than: Moment | None = None, max_deletes: int | None = None, dry_run: bool = False,
) -> pa.Table:  # fmt: skip
    stored = table_of(catalog, table)
    asked = Asked(retain_max, retain_min, _moment(older_than, stored), max_deletes)
    return _row(expire_snapshots(stored, asked, dry_run=dry_run))


@checked
def _expire_changelogs(
    catalog: Catalog, table: str, retain_max: int | None = None, retain_min: int | None = None,
    older_than: Moment | None = None, max_deletes: int | None = None,
    delete_all: bool = False, dry_run: bool = False,
) -> pa.Table:  # fmt: skip
    stored = table_of(catalog, table)
    if delete_all:
        # Each of them counts back from the newest snapshot, which is always there.
        retain_max, retain_min = 1, 1
    asked = Asked(retain_max, retain_min, _moment(older_than, stored), max_deletes)
    return _row(expire_changelogs(stored, asked, dry_run=dry_run))


@checked
def _expire_partitions(
    catalog: Catalog, table: str, expiration_time: str | None = None,
    timestamp_formatter: str | None = None, timestamp_pattern: str | None = None,
    expire_strategy: str | None = None, max_expires: int | None = None, dry_run: bool = False,
) -> pa.Table:  # fmt: skip
    age = PartitionAge(
        expiration_time, expire_strategy, timestamp_pattern, timestamp_formatter, max_expires
    )
    done = expire_partitions(table_of(catalog, table), age, dry_run=dry_run)
    return pa.table([pa.array(done.partitions, pa.string())], schema=PARTITIONS_ROW)


@checked
def _reset_consumer(
    catalog: Catalog, table: str, consumer_id: str, next_snapshot_id: int | None = None
) -> pa.Table:
    reset_consumer(table_of(catalog, table).metadata, consumer_id, next_snapshot_id)
    return pa.table({"result": [True]})


@checked
def _clear_consumers(
    catalog: Catalog, table: str, including_consumers: str | None = None,
    excluding_consumers: str | None = None,
) -> pa.Table:  # fmt: skip
    metadata = table_of(catalog, table).metadata
    return _names(clear_consumers(metadata, including_consumers, excluding_consumers))


@checked
def _expire_consumers(catalog: Catalog, table: str, older_than: Moment) -> pa.Table:
    stored = table_of(catalog, table)
    moment = epoch_ms(older_than, stored.name, "older_than")
    return _names(expire_consumers(stored.metadata, moment))


def _names(names: list[str]) -> pa.Table:
    return pa.table({"consumer_id": pa.array(names, pa.string())})


def _moment(older_than: Moment | None, table: StoredTable) -> int | None:
    return None if older_than is None else epoch_ms(older_than, table.name, "older_than")


def _row(done: ExpiryResult) -> pa.Table:
    return pa.Table.from_pylist([asdict(done)], schema=EXPIRY_ROW)


@checked
def _remove_orphan_files(
    catalog: Catalog, table: str, older_than: Moment | None = None, dry_run: bool = False
) -> pa.Table:
    """Of a table, or of each table of a database: `shop.*`."""
    if table.endswith(_EVERY):
        return _orphans_of_all(catalog, table.removesuffix(_EVERY), older_than, dry_run)
    return pa.Table.from_pylist([_orphans(catalog, table, older_than, dry_run)], schema=ORPHANS_ROW)


_EVERY = ".*"
_DATABASE_ROW = pa.schema([("table", pa.string()), *ORPHANS_ROW])


def _orphans_of_all(
    catalog: Catalog, database: str, older_than: Moment | None, dry_run: bool
) -> pa.Table:
    names = [name for name in catalog.tables() if name.partition(".")[0] == database]
    if not names:
        raise NotFoundError(f"there is no table in the database {database!r}")
    rows = [{"table": name, **_orphans(catalog, name, older_than, dry_run)} for name in names]
    return pa.Table.from_pylist(rows, schema=_DATABASE_ROW)


def _orphans(
    catalog: Catalog, table: str, older_than: Moment | None, dry_run: bool
) -> dict[str, Any]:
    stored = table_of(catalog, table)
    done = remove_orphan_files(stored, _moment(older_than, stored), dry_run=dry_run)
    return {name: getattr(done, name) for name in ORPHANS_ROW.names}


@checked
def _purge_files(catalog: Catalog, table: str, dry_run: bool = False) -> pa.Table:
    done = purge(table_of(catalog, table), dry_run=dry_run)
    return pa.Table.from_pylist([asdict(done)], schema=PURGE_ROW)


@checked
def _mend_snapshots(catalog: Catalog, table: str, dry_run: bool = False) -> pa.Table:
    done = mend_snapshots(table_of(catalog, table), dry_run=dry_run)
    return pa.Table.from_pylist([asdict(done)], schema=MENDING_ROW)


EXPIRING: dict[str, Callable[..., pa.Table]] = {
    "clear_consumers": _clear_consumers,
    "expire_changelogs": _expire_changelogs,
    "expire_consumers": _expire_consumers,
    "expire_partitions": _expire_partitions,
    "expire_snapshots": _expire_snapshots,
    "mend_snapshots": _mend_snapshots,
    "purge_files": _purge_files,
    "remove_orphan_files": _remove_orphan_files,
    "reset_consumer": _reset_consumer,
}
"""The procedures by their names."""
