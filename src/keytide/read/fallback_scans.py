"""Reads of tables whose options name a second branch to read.

`scan.fallback-branch` names a branch that has the partitions which the table lacks, and
`scan.primary-branch` one of which the table has the partitions that it lacks
(https://paimon.apache.org/docs/master/maintenance/manage-branches/). Other tables are read by the
functions of `scans` with the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from keytide.base.text import Moment
from keytide.errors import NotFoundError, UnsupportedError
from keytide.format.arrow import in_python
from keytide.format.schema import TableSchema
from keytide.options import keys
from keytide.predicate.condition import Condition
from keytide.read import scans
from keytide.read.fallback import FallbackScan
from keytide.read.scan import Scan, check_limit
from keytide.snapshot.branches import open_branch
from keytide.snapshot.lineage import SchemasInForce
from keytide.snapshot.pinned import PinnedMetadata, PinnedTable, StoredTable, as_expected

__all__ = ["get_row", "get_rows", "reads_two_branches", "scan_table"]

_NAME_A_BRANCH = (keys.SCAN_FALLBACK_BRANCH, keys.SCAN_PRIMARY_BRANCH)


def reads_two_branches(table: StoredTable) -> bool:
    """Whether reads of the table also read another branch.

    Raises `UnsupportedError` if its options name two.
    """
    return _named(table.schema, table.name) is not None


def scan_table(
    table: StoredTable,
    columns: Sequence[str] | None = None,
    where: Condition | None = None,
    snapshot_id: int | None = None,
    tag: str | None = None,
    as_of: Moment | None = None,
    skip_upsert: bool = False,
    skip_upsert_delete: bool = False,
    limit: int | None = None,
) -> Scan | FallbackScan:
    """A scan of one snapshot, by default the latest. Raises like `Table.scan`.

    Of the other branch, the snapshot at the time of the selected one is read.
    """
    table = table.pinned()
    named = _named(table.schema, table.name)
    if named is None:
        return scans.scan_table(
            table, columns, where, snapshot_id, tag, as_of, skip_upsert, skip_upsert_delete, limit
        )
    check_limit(limit, table.name)
    option, branch = named
    scan = partial(
        scans.scan_table, columns=columns, where=where, skip_upsert=skip_upsert,
        skip_upsert_delete=skip_upsert_delete,
    )  # fmt: skip
    own = scan(_alone(table), snapshot_id=snapshot_id, tag=tag, as_of=as_of)
    if as_of is None and (snapshot_id is not None or tag is not None):
        assert own.snapshot is not None  # the one that the caller named
        as_of = own.snapshot.time_millis
    try:
        other = scan(_alone(open_branch(table, branch).pinned()), as_of=as_of)
    except NotFoundError as error:
        raise NotFoundError(
            f"{error}; the option '{option}' of {table.name} names this branch. Read the table "
            f"without it after RESET ('{option}'), or read each branch by its own name"
        ) from error
    parts = (own, other) if option == keys.SCAN_FALLBACK_BRANCH else (other, own)
    return FallbackScan.of(*parts, limit)


def get_row(table: StoredTable, key: Mapping[str, Any] | Any) -> dict[str, Any] | None:
    """The row of one key, or None. Raises like `Table.get`."""
    return as_expected(table, partial(_row, key=key))


def get_rows(table: StoredTable, keys: Sequence[Any]) -> pa.Table:
    """The rows of some keys, see `Table.get_many`."""
    return as_expected(table, partial(_rows, keys=keys))


def _row(table: PinnedTable, key: Mapping[str, Any] | Any) -> dict[str, Any] | None:
    if not reads_two_branches(table):
        return scans.get_row(table, key)
    scan = scan_table(table, where=scans.key_condition(key, table.schema, table.name))
    return next(iter(in_python(scan.to_arrow())), None)


def _rows(table: PinnedTable, keys: Sequence[Any]) -> pa.Table:
    if not reads_two_branches(table):
        return scans.get_rows(table, keys)
    wanted, condition = scans.keys_condition(keys, table.schema, table.name)
    return scans.in_order_of_keys(scan_table(table, where=condition), wanted)


def _named(schema: TableSchema, table: str) -> tuple[str, str] | None:
    """The option that names another branch to read, and the branch. None if there is none."""
    given = {key: schema.options.get(key, "").strip() for key in _NAME_A_BRANCH}
    named = [(key, branch) for key, branch in given.items() if branch]
    if len(named) > 1:
        raise UnsupportedError(
            f"table {table}: both '{keys.SCAN_FALLBACK_BRANCH}' and '{keys.SCAN_PRIMARY_BRANCH}' "
            "are set; this release reads two branches. RESET one of the options"
        )
    return named[0] if named else None


def _alone(table: PinnedTable) -> PinnedTable:
    """The same branch, as if its options named no other one."""
    seen = table.metadata
    return PinnedTable(
        table.live, _BranchAlone(seen.store, seen.name, seen.commits, seen=seen.seen)
    )


class _BranchAlone(PinnedMetadata):
    """The metadata of a branch that is read without the other one that its options name."""

    def newest_schema(self) -> TableSchema:
        return _without_names(super().newest_schema())

    def schemas_in_force(self) -> SchemasInForce:
        found = super().schemas_in_force()
        alone = _without_names(found.schema), _without_names(found.newest)
        return replace(found, schema=alone[0], newest=alone[1])

    def schema(self, schema_id: int) -> TableSchema:
        return _without_names(super().schema(schema_id))


def _without_names(schema: TableSchema) -> TableSchema:
    options = {key: text for key, text in schema.options.items() if key not in _NAME_A_BRANCH}
    return replace(schema, options=options)
