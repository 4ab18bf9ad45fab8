"""CALL of procedures that drop history and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pyarrow as pa

from keytide.arguments import checked
from keytide.sql.names import table_of
from keytide.table.catalog import Catalog
from keytide.table.scans import epoch_ms
from keytide.table.upkeep.expiry import EXPIRY_ROW, expire_snapshots
from keytide.table.upkeep.orphans import ORPHANS_ROW, remove_orphan_files

__all__ = ["EXPIRING"]


@checked
def _expire_snapshots(
    catalog: Catalog, table: str, retain_max: int | None = None, retain_min: int | None = None,
    older_than: str | int | None = None, max_deletes: int | None = None, dry_run: bool = False,
) -> pa.Table:  # fmt: skip
    stored = table_of(catalog, table)
    moment = None if older_than is None else epoch_ms(older_than, stored.name, "older_than")
    done = expire_snapshots(
        stored, retain_max=retain_max, retain_min=retain_min, older_than_ms=moment,
        max_deletes=max_deletes, dry_run=dry_run,
    )  # fmt: skip
    return pa.Table.from_pylist([asdict(done)], schema=EXPIRY_ROW)


@checked
def _remove_orphan_files(
    catalog: Catalog, table: str, older_than: str | int | None = None, dry_run: bool = False
) -> pa.Table:
    stored = table_of(catalog, table)
    moment = None if older_than is None else epoch_ms(older_than, stored.name, "older_than")
    done = remove_orphan_files(stored, moment, dry_run=dry_run)
    row = {name: getattr(done, name) for name in ORPHANS_ROW.names}
    return pa.Table.from_pylist([row], schema=ORPHANS_ROW)


EXPIRING: dict[str, Callable[..., pa.Table]] = {
    "expire_snapshots": _expire_snapshots,
    "remove_orphan_files": _remove_orphan_files,
}
"""The procedures by their names."""
