"""CALL procedures that remove history and files."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from keytide.base.arguments import checked
from keytide.base.moments import Moment
from keytide.catalogs.catalog import Catalog
from keytide.errors import NotFoundError
from keytide.maintenance.expiry.snapshot_expiry import (
    ExpiryResult,
    expire_changelogs,
    expire_snapshots,
)
from keytide.maintenance.history.consumers import clear_consumers, expire_consumers, reset_consumer
from keytide.maintenance.upkeep.mending import mend_snapshots
from keytide.maintenance.upkeep.old_partitions import expire_partitions
from keytide.maintenance.upkeep.orphans import remove_orphan_files
from keytide.maintenance.upkeep.purging import purge_files
from keytide.snapshot.stored import StoredTable
from keytide.sql.names import table_of
from keytide.sql.procedure import Procedure, done, procedure, texts

__all__ = ["EXPIRING"]


def _expire_changelogs(
    table: StoredTable, retain_max: int | None = None, retain_min: int | None = None,
    older_than: Moment | None = None, max_deletes: int | None = None,
    delete_all: bool = False, dry_run: bool = False,
) -> ExpiryResult:  # fmt: skip
    if delete_all:
        # Both count back from the latest snapshot, which always exists.
        retain_max, retain_min = 1, 1
    asked = (retain_max, retain_min, older_than, max_deletes)
    return expire_changelogs(table, *asked, dry_run=dry_run)


@checked
def _remove_orphan_files(
    catalog: Catalog, table: str, older_than: Moment | None = None, dry_run: bool = False
) -> pa.Table:
    """For a table, or for each table of a database: `shop.*`."""
    if table.endswith(_EVERY):
        return _orphans_of_all(catalog, table.removesuffix(_EVERY), older_than, dry_run)
    return remove_orphan_files(table_of(catalog, table), older_than, dry_run=dry_run).to_arrow()


_EVERY = ".*"


def _orphans_of_all(
    catalog: Catalog, database: str, older_than: Moment | None, dry_run: bool
) -> pa.Table:
    names = [name for name in catalog.tables() if name.partition(".")[0] == database]
    if not names:
        raise NotFoundError(f"there is no table in the database {database!r}")
    gone = [_remove_orphan_files(catalog, name, older_than, dry_run) for name in names]
    return pa.concat_tables(gone).add_column(0, "table", pa.array(names, pa.string()))


_CONSUMERS = texts("consumer_id")

EXPIRING: Mapping[str, Procedure] = {
    "clear_consumers": procedure(
        clear_consumers, _CONSUMERS,
        including_consumers="including", excluding_consumers="excluding",
    ),
    "expire_changelogs": procedure(_expire_changelogs),
    "expire_consumers": procedure(expire_consumers, _CONSUMERS),
    "expire_partitions": procedure(
        expire_partitions, expiration_time="expiration_time",
        timestamp_formatter="timestamp_formatter", timestamp_pattern="timestamp_pattern",
        expire_strategy="strategy", max_expires="max_expires", dry_run="dry_run",
    ),
    "expire_snapshots": procedure(expire_snapshots),
    "mend_snapshots": procedure(mend_snapshots),
    "purge_files": procedure(purge_files),
    "remove_orphan_files": _remove_orphan_files,
    "reset_consumer": procedure(
        reset_consumer, done, consumer_id="name", next_snapshot_id="next_snapshot"
    ),
}  # fmt: skip
"""The procedures by name."""
