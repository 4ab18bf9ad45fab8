"""Procedures of other engines of the format that mean nothing here, each with the way out."""

from __future__ import annotations

from collections.abc import Mapping

from keytide.options import keys

__all__ = ["ELSEWHERE"]

_ROW_IDS = (
    "it is about row ids, which no table here has; DELETE, UPDATE and MERGE find rows by values"
)
_VIEWS = "views and functions belong to the engine that runs them: make them in DuckDB or Spark"
_HIVE = (
    "it changes tables of Hive in place; CALL sys.adopt_parquet makes a table of the rows of a "
    "folder of files"
)

ELSEWHERE: Mapping[str, str] = {
    "alter_function": _VIEWS,
    "alter_view_dialect": _VIEWS,
    "compact_chain_table": "it joins branches of a chain table; CALL sys.compact, and MERGE INTO "
    "from one branch to the other",
    "copy": "read the files, and INSERT their rows",
    "create_function": _VIEWS,
    "create_global_index": f"{_ROW_IDS}. Bloom filters ('{keys.FILE_INDEX_BLOOM_FILTER_COLUMNS}') "
    "find single values",
    "drop_function": _VIEWS,
    "drop_global_index": _ROW_IDS,
    "mark_partition_done": "nothing here waits for a mark; CALL sys.create_tag names what is whole",
    "materialize_deletion_vectors": "CALL sys.compact writes files without the rows that are "
    "marked as dead",
    "merge_branch": "INSERT INTO the one branch SELECT from the other, or CALL sys.fast_forward",
    "migrate_database": _HIVE,
    "migrate_file": _HIVE,
    "migrate_table": _HIVE,
    "query_service": "Table.get and Table.get_many look up keys, without a service",
    "reassign_row_id": _ROW_IDS,
    "remove_unexisting_files": "it would drop rows silently; Table.verify names the files that are "
    "missing: put them back, or restore an older snapshot by CALL sys.restore",
    "repair": "there is no metastore: a table is wherever its folder is",
    "repair_earliest_snapshot": "what is earliest is found by looking, and a wrong hint corrects "
    "itself",
}
"""What to do instead, by the name of the procedure."""
