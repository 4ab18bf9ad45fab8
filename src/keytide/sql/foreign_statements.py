"""Procedures and functions of other engines that Keytide lacks, each with the alternative."""

from __future__ import annotations

from collections.abc import Mapping

from keytide.options import keys

__all__ = ["ELSEWHERE", "FUNCTIONS_ELSEWHERE"]

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
