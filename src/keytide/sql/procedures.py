"""Procedures of the database `sys`, which CALL runs, with the names of Keytide and of Iceberg.

There are procedures that remove history and files, and that adopt tables of other formats. Those of
other engines that Keytide lacks are listed with an alternative, as are functions.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import pyarrow as pa

from keytide.base.arguments import checked, shown
from keytide.base.text import Moment
from keytide.catalogs.catalog import Catalog
from keytide.catalogs.local_writes import truncate
from keytide.compaction.compact import CompactionResult
from keytide.definition.kind import is_external
from keytide.dml.attachments import entry_of, table_of
from keytide.errors import InvalidError, NotFoundError, UnsupportedError
from keytide.maintenance import actions, restore
from keytide.maintenance.actions import compact, expire_partitions, purge_files
from keytide.maintenance.expiry import ExpiryResult, expire_changelogs, expire_snapshots
from keytide.maintenance.history import clear_consumers, expire_consumers, reset_consumer
from keytide.maintenance.orphans import remove_orphan_files
from keytide.maintenance.repair import IndexingResult, compact_manifest, index_files, mend_snapshots
from keytide.maintenance.rescale import convert, rescale
from keytide.maintenance.rollback import RollbackResult
from keytide.options import keys
from keytide.publish.publish import publish
from keytide.read.requests import why_row
from keytide.snapshot.stored_table import StoredTable
from keytide.sources.external_definitions import (
    NewAdoption,
    adopt,
    refresh_external,
    with_upsert_keys,
)
from keytide.sources.scan import why_external
from keytide.sources.source_state import pin_external
from keytide.sql.engine_text import refuse_location
from keytide.sql.history_procedures import (
    HISTORY,
    Procedure,
    comma_separated,
    places,
    procedure,
    selected_partitions,
    success_result,
    texts,
)
from keytide.sql.statements import Call

# -- missing procedures and functions, with alternatives -------------------------------------------


_ROW_IDS = (
    "it is about row ids, which Keytide tables do not have; DELETE, UPDATE and MERGE find rows "
    "by values"
)
_VIEWS = "create views and functions in the engine that runs them, DuckDB or Spark"
_HIVE = (
    "it changes Hive tables in place; CALL sys.adopt_parquet creates a table from a folder of files"
)

_CHANGES = (
    "to read the changes after snapshot 1 up to 3, query t$audit_log /*+ "
    f"OPTIONS('{keys.INCREMENTAL_BETWEEN}' = '1,3', '{keys.INCREMENTAL_BETWEEN_SCAN_MODE}' = "
    "'diff') */, or use Table.changes(1, 3)"
)
_AUDIT = (
    "write to a branch (ALTER TABLE t CREATE BRANCH b, INSERT INTO t$branch_b), check it, and "
    "publish it with CALL sys.fast_forward"
)
_STATISTICS = "every file has statistics from the start"

FUNCTIONS_ELSEWHERE: Mapping[str, str] = {
    "table_changes": _CHANGES,
    "table_changes_by_path": _CHANGES,
}
"""The alternative to a function in FROM, by its name."""

ELSEWHERE: Mapping[str, str] = {
    "add_files": _HIVE,
    "alter_function": _VIEWS,
    "alter_view_dialect": _VIEWS,
    "ancestors_of": "SELECT snapshot_id FROM t$snapshots; each is the parent of the next one",
    "cherrypick_snapshot": _AUDIT,
    "compact_chain_table": "it merges branches of a chain table; use CALL sys.compact, and MERGE "
    "INTO from one branch to the other",
    "compute_partition_stats": _STATISTICS,
    "compute_table_stats": _STATISTICS,
    "copy": "read the files, and INSERT their rows",
    "create_changelog_view": _CHANGES,
    "create_function": _VIEWS,
    "create_global_index": f"{_ROW_IDS}. Bloom filters "
    f"('{keys.FILE_INDEX_BLOOM_FILTER_COLUMNS}') speed up searches for single values",
    "drop_function": _VIEWS,
    "drop_global_index": _ROW_IDS,
    "mark_partition_done": "nothing in Keytide waits for such a mark; use CALL sys.create_tag to "
    "mark complete data",
    "materialize_deletion_vectors": "CALL sys.compact writes files without the deleted rows",
    "merge_branch": "INSERT INTO the one branch SELECT from the other, or CALL sys.fast_forward",
    "migrate": _HIVE,
    "migrate_database": _HIVE,
    "migrate_file": _HIVE,
    "migrate_table": _HIVE,
    "publish_changes": _AUDIT,
    "query_service": "Table.get and Table.get_many look up keys, without a service",
    "reassign_row_id": _ROW_IDS,
    "register_table": "there is no metastore; a table is where its folder is",
    "remove_unexisting_files": "it would drop rows silently; Table.verify lists missing files: "
    "put them back, or restore an older snapshot with CALL sys.restore",
    "repair": "there is no metastore; a table is where its folder is",
    "repair_earliest_snapshot": "the earliest snapshot is found by listing, and a wrong hint "
    "corrects itself",
    "rewrite_table_path": "files refer to each other without their folder: copy the folder of "
    "the table",
    "snapshot": "CALL sys.adopt_iceberg creates a table from the rows of an Iceberg table",
}
"""The alternative to a procedure, by its name."""


# -- procedures of Iceberg -------------------------------------------------------------------------


def rollback_to_snapshot(table: StoredTable, snapshot: int) -> RollbackResult:
    """Roll back to a snapshot. Later snapshots are removed."""
    return actions.rollback_to(table, snapshot)


def set_current_snapshot(
    table: StoredTable, snapshot: int | None = None, ref: str | None = None
) -> restore.RestoreResult:
    """Restore the table to a snapshot or a tag in a new commit. No snapshot is removed."""
    if (snapshot is None) == (ref is None):
        raise InvalidError(
            "sys.set_current_snapshot: give a snapshot id, or a tag as ref => 'name'"
        )
    return restore.restore(table, ref if snapshot is None else snapshot)


def rewrite_data_files(
    table: StoredTable,
    strategy: Literal["binpack", "sort"] = "binpack",
    sort_order: str | None = None,
    where: str | None = None,
) -> CompactionResult:
    """Compact all files of the table, or of the partitions that match a condition."""
    partitions = selected_partitions("rewrite_data_files", table, None, where)
    if (strategy == "sort") != (sort_order is not None):
        raise InvalidError(
            "sys.rewrite_data_files: strategy => 'sort' and sort_order require each other; rows "
            "of a table with a primary key are always sorted by the key"
        )
    if sort_order is None:
        return compact(table, full=True, partitions=partitions)
    curve = re.fullmatch(r"\s*zorder\s*\((.*)\)\s*", sort_order, re.IGNORECASE)
    columns = [name.strip() for name in (curve[1] if curve else sort_order).split(",")]
    way = "zorder" if curve else "order"
    return compact(table, full=True, order_by=columns, order_strategy=way, partitions=partitions)


def rewrite_position_delete_files(table: StoredTable) -> CompactionResult:
    """Rewrite files without the rows that are marked as deleted."""
    return compact(table, full=True)


ICEBERG: Mapping[str, Procedure] = {
    "rewrite_data_files": procedure(rewrite_data_files),
    "rewrite_manifests": procedure(compact_manifest),
    "rewrite_position_delete_files": procedure(rewrite_position_delete_files),
    "rollback_to_snapshot": procedure(rollback_to_snapshot),
    "set_current_snapshot": procedure(set_current_snapshot),
}
"""The procedures by name."""


# -- procedures that remove history and files ------------------------------------------------------


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
        database = table.removesuffix(_EVERY)
        names = [name for name in catalog.tables() if name.partition(".")[0] == database]
        if not names:
            raise NotFoundError(f"there is no table in the database {database!r}")
        gone = [_remove_orphan_files(catalog, name, older_than, dry_run) for name in names]
        return pa.concat_tables(gone).add_column(0, "table", pa.array(names, pa.string()))
    return remove_orphan_files(table_of(catalog, table), older_than, dry_run=dry_run).to_arrow()


_EVERY = ".*"


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
        reset_consumer, success_result, consumer_id="name", next_snapshot_id="next_snapshot"
    ),
}  # fmt: skip
"""The procedures by name."""


# -- procedures that adopt tables ------------------------------------------------------------------


def _adopting(format_: str) -> Procedure:
    """The procedure that adopts tables of a format."""

    def procedure(
        catalog: Catalog, table: str, location: str, primary_key: str,
        watermark_key: str | None = None, tombstone_key: str | None = None,
        tombstone_string_key_value: str | None = None, partitioned_by: str | None = None,
        options: str | None = None, comment: str | None = None,
    ) -> pa.Table:  # fmt: skip
        given = with_upsert_keys(
            table,
            _options(f"sys.adopt_{format_}", options),
            _columns(watermark_key),
            tombstone_key,
            tombstone_string_key_value,
        )
        refuse_location(catalog, table, format_, location, given)
        key, partitions = _columns(primary_key), _columns(partitioned_by)
        wanted = NewAdoption(format_, location, key, partitions, given, comment)
        return adopt(catalog, table, wanted).to_arrow()

    procedure.__name__ = procedure.__qualname__ = f"adopt_{format_}"
    return checked(procedure)


def _columns(text: str | None) -> list[str]:
    return [name for name in comma_separated(text or "") if name]


def _options(procedure: str, text: str | None) -> Mapping[str, str]:
    """Options written as `key=value,key=value`. A part without `=` belongs to the value before it.

    Raises `InvalidError` for a string that does not begin with a key, and for a duplicate key.
    """
    found: dict[str, str] = {}
    key = ""
    for part in (text or "").split(",") if (text or "").strip() else []:
        name, sign, value = (each.strip() for each in part.partition("="))
        if not sign and key:
            found[key] += f",{name}"
            continue
        if not sign or not name or name in found:
            raise InvalidError(
                f"{procedure}: options are {shown(text)}; expected each key once, as in "
                f"'{keys.BUCKET}=4,{keys.READ_MEMORY}=2 gb'"
            )
        key, found[name] = name, value
    return found


ADOPTING: dict[str, Procedure] = {
    f"adopt_{format_}": _adopting(format_) for format_ in ("delta", "iceberg", "parquet")
}


# -- the procedures of the database `sys` ----------------------------------------------------------


def call(catalog: Catalog, statement: Call) -> pa.Table:
    """Run a procedure.

    Raises `NotFoundError`, listing the procedures, for an unknown one, and `InvalidError` for
    arguments that it does not accept.
    """
    name = re.sub(r"^([^.]+\.)?(sys|system)\.", "", statement.procedure.lower())
    procedure = PROCEDURES.get(name)
    if procedure is None and name in ELSEWHERE:
        raise UnsupportedError(f"sys.{name} is not supported for Keytide tables: {ELSEWHERE[name]}")
    if procedure is None:
        known = ", ".join(f"sys.{known}" for known in sorted(PROCEDURES))
        raise NotFoundError(f"unknown procedure {statement.procedure!r}; procedures: {known}")
    signature = inspect.signature(procedure)
    named = _by_parameter(name, statement.named, [*signature.parameters][1:])
    try:
        bound = signature.bind(catalog, *statement.arguments, **named)
    except TypeError as error:
        parameters = list(signature.parameters.values())[1:]
        names = (str(parameter.replace(annotation=parameter.empty)) for parameter in parameters)
        raise InvalidError(
            f"the arguments of sys.{name} are wrong, expected ({', '.join(names)}): {error}"
        ) from None
    return procedure(*bound.args, **bound.kwargs)


_ALIASES = {"snapshot_id": "snapshot", "retain_last": "retain_min"}
"""Argument names in Flink and Iceberg, with those in Paimon on Spark and Keytide."""


def _by_parameter(
    procedure: str, named: Mapping[str, object], parameters: Sequence[str]
) -> dict[str, object]:
    """Named arguments under the procedure's own names. Case-insensitive."""
    known = {parameter.lower(): parameter for parameter in parameters}
    known |= {alias: known[name] for alias, name in _ALIASES.items() if name in known}
    found: dict[str, object] = {}
    for name, value in named.items():
        if name.lower() not in known and name.lower() == "options":
            raise UnsupportedError(
                f"sys.{procedure} uses the options of the table; use ALTER TABLE ... SET instead "
                "of passing options"
            )
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), [*known], n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            takes = ", ".join(parameters)
            raise InvalidError(
                f"sys.{procedure} has no argument {name!r}{hint}; arguments: {takes}"
            )
        parameter = known[name.lower()]
        if parameter in found:
            raise InvalidError(
                f"sys.{procedure}: {parameter} is given twice, in two spellings; give it once"
            )
        found[parameter] = value
    return found


@checked
def _why(catalog: Catalog, table: str, *key: Any) -> pa.Table:
    entry = entry_of(catalog, table)
    if is_external(entry.schema):
        return why_external(pin_external(entry), key).to_arrow()
    return why_row(catalog.managed(entry), key).to_arrow()


@checked
def _refresh(catalog: Catalog, table: str) -> pa.Table:
    """Update the columns of an external table, and report whether they changed."""
    entry = entry_of(catalog, table)
    if not is_external(entry.schema):
        raise UnsupportedError(
            f"sys.refresh: table {entry.name} is a table of the lake, which is always current; "
            "only external tables can be refreshed"
        )
    return pa.table({"changed": [refresh_external(entry)]})


_Strategy = Literal["full", "minor"]


def _compact(
    table: StoredTable, partitions: str | None = None,
    compact_strategy: _Strategy = "full", order_strategy: str | None = None,
    order_by: str | None = None, where: str | None = None,
) -> CompactionResult:  # fmt: skip
    wanted = selected_partitions("compact", table, partitions, where)
    if order_strategy == "none":
        order_strategy = None
    if order_by is not None:
        order_strategy = order_strategy or "order"
    is_full = compact_strategy == "full"
    if order_strategy is not None and not is_full:
        raise InvalidError(
            "sys.compact: sorting requires all files, so compact_strategy cannot be 'minor'; "
            "remove it, or remove order_strategy and order_by"
        )
    columns = [name.strip() for name in (order_by or "").split(",") if name.strip()]
    return compact(
        table, full=is_full, order_by=columns, order_strategy=order_strategy, partitions=wanted
    )


@checked
def _drop_partition(catalog: Catalog, table: str, *partitions: str) -> pa.Table:
    named = [place for each in partitions for place in places(each)]
    if not named:
        raise InvalidError(
            "sys.drop_partition: no partition is given; to drop all rows, use TRUNCATE"
        )
    truncate(table_of(catalog, table), named)
    return success_result()


@checked
def _compact_database(
    catalog: Catalog, including_databases: str = ".*", including_tables: str = ".*",
    excluding_tables: str | None = None, compact_strategy: _Strategy = "full",
) -> pa.Table:  # fmt: skip
    """Compact all tables whose names match, one by one.

    Tables that cannot be compacted are skipped.
    """
    rows = []
    for name in catalog.tables():
        database = name.partition(".")[0]
        is_meant = _matches(including_databases, database) and _matches(including_tables, name)
        if not is_meant or (excluding_tables is not None and _matches(excluding_tables, name)):
            continue
        try:
            compacted = _compact(table_of(catalog, name), None, compact_strategy)
        except UnsupportedError as error:
            rows.append({"table": name, "left_because": str(error)})
        else:
            rows.append({"table": name, **asdict(compacted)})
    return pa.Table.from_pylist(rows, schema=_TABLES_ROW)


_TABLES_ROW = pa.schema(
    [("table", pa.string()), *CompactionResult.columns(), ("left_because", pa.string())]
)


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error as error:
        raise InvalidError(f"{pattern!r} is not a valid regular expression: {error}") from None


@checked
def _rescale(
    catalog: Catalog, table: str, bucket_num: int | None = None, partitions: str | None = None,
    where: str | None = None,
) -> pa.Table:  # fmt: skip
    stored = table_of(catalog, table)
    buckets = stored.schema.options.get(keys.BUCKET)
    if bucket_num is not None and str(bucket_num) != buckets:
        raise InvalidError(
            f"sys.rescale: bucket_num is {bucket_num}, but '{keys.BUCKET}' of table "
            f"{stored.name} is {buckets}; run ALTER TABLE {table} SET ('{keys.BUCKET}' = "
            f"'{bucket_num}') first"
        )
    return rescale(stored, selected_partitions("rescale", stored, partitions, where)).to_arrow()


def _rewrite_file_index(table: StoredTable, where: str | None = None) -> IndexingResult:
    return index_files(table, selected_partitions("rewrite_file_index", table, None, where))


PROCEDURES: dict[str, Procedure] = {
    "compact": procedure(_compact),
    "compact_database": _compact_database,
    "compact_manifest": procedure(compact_manifest),
    "convert": procedure(convert),
    "drop_partition": _drop_partition,
    "publish": procedure(publish),
    "refresh": _refresh,
    "rescale": _rescale,
    "rewrite_file_index": procedure(_rewrite_file_index),
    "why": _why,
    **ADOPTING,
    **HISTORY,
    **ICEBERG,
    **EXPIRING,
}
