"""Procedures and functions of other engines that Keytide lacks, each with the alternative."""

from __future__ import annotations

from collections.abc import Mapping

from keytide.options import keys

__all__ = ["ELSEWHERE", "FUNCTIONS_ELSEWHERE"]

_ROW_IDS = (
    "it is about row ids, which no table here has; DELETE, UPDATE and MERGE find rows by values"
)
_VIEWS = "views and functions belong to the engine that runs them: make them in DuckDB or Spark"
_HIVE = (
    "it changes tables of Hive in place; CALL sys.adopt_parquet makes a table of the rows of a "
    "folder of files"
)

_CHANGES = (
    f"changes are read from t$audit_log /*+ OPTIONS('{keys.INCREMENTAL_BETWEEN}' = '1,3', "
    f"'{keys.INCREMENTAL_BETWEEN_SCAN_MODE}' = 'diff') */, which are those after snapshot 1 up to "
    f"3, or by Table.changes(1, 3)"
)
_AUDIT = (
    "write to a branch (ALTER TABLE t CREATE BRANCH b, INSERT INTO t$branch_b), look at it, and "
    "publish it by CALL sys.fast_forward"
)
_STATISTICS = "every file has its statistics from the start"

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
    "compact_chain_table": "it joins branches of a chain table; CALL sys.compact, and MERGE INTO "
    "from one branch to the other",
    "compute_partition_stats": _STATISTICS,
    "compute_table_stats": _STATISTICS,
    "copy": "read the files, and INSERT their rows",
    "create_changelog_view": _CHANGES,
    "create_function": _VIEWS,
    "create_global_index": f"{_ROW_IDS}. Bloom filters ('{keys.FILE_INDEX_BLOOM_FILTER_COLUMNS}') "
    "find single values",
    "drop_function": _VIEWS,
    "drop_global_index": _ROW_IDS,
    "mark_partition_done": "nothing here waits for a mark; CALL sys.create_tag names what is whole",
    "materialize_deletion_vectors": "CALL sys.compact writes files without the rows that are "
    "marked as dead",
    "merge_branch": "INSERT INTO the one branch SELECT from the other, or CALL sys.fast_forward",
    "migrate": _HIVE,
    "migrate_database": _HIVE,
    "migrate_file": _HIVE,
    "migrate_table": _HIVE,
    "publish_changes": _AUDIT,
    "query_service": "Table.get and Table.get_many look up keys, without a service",
    "reassign_row_id": _ROW_IDS,
    "register_table": "there is no metastore: a table is wherever its folder is",
    "remove_unexisting_files": "it would drop rows silently; Table.verify names the files that are "
    "missing: put them back, or restore an older snapshot by CALL sys.restore",
    "repair": "there is no metastore: a table is wherever its folder is",
    "repair_earliest_snapshot": "what is earliest is found by looking, and a wrong hint corrects "
    "itself",
    "rewrite_table_path": "files name each other without their folder: copy the table's",
    "snapshot": "CALL sys.adopt_iceberg makes a table of the rows of an Iceberg table",
}
"""The alternative to a procedure, by its name."""
