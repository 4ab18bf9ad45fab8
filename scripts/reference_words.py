"""Descriptions for the pages of docs/reference that the source does not contain."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "CLI_HEAD",
    "ERRORS",
    "ERRORS_HEAD",
    "PROCEDURES_HEAD",
    "PROCEDURE_GROUPS",
    "SYSTEM_HEAD",
    "SYSTEM_TABLE_ROWS",
]

PROCEDURE_GROUPS: Mapping[str, Mapping[str, str]] = {
    "Compaction and layout": {
        "compact": "Merge files into fewer, larger ones. `full` compacts all files, `minor` only those that are due. "
        "`order_strategy` (`order`, `zorder`, `hilbert`) and `order_by` sort the rows of a table without a primary key. Select "
        "partitions with `partitions`, or with `where`, a condition on partition columns.",
        "compact_database": "Compact all tables whose names match regular expressions, each in its own commit. Returns one row per "
        "table; if a table cannot be compacted, its row contains the reason.",
        "compact_manifest": "Merge manifests that are small or delete files, in a separate commit.",
        "rescale": "Rewrite partitions whose number of buckets differs from the table's. Without `partition`, all such partitions "
        "are rewritten. Stop other writers until it is done.",
        "rewrite_file_index": "Create missing bloom filters for existing files, as `file-index.bloom-filter.columns` requires.",
        "rewrite_data_files": "Iceberg's name for a full compaction. `sort_order` is only for tables without a primary key.",
        "rewrite_manifests": "Iceberg's name for `compact_manifest`.",
        "rewrite_position_delete_files": "Iceberg's name for a full compaction. It rewrites files without the rows that deletion "
        "vectors mark as deleted.",
        "convert": "Convert a table to one with a key index (`'full'`), or to one that merges on read (`'none'`), [in one "
        "commit](../semantics.md#from-one-kind-of-table-to-the-other).",
        "drop_partition": "Delete the rows of partitions in one commit, with any merge engine. If you give values for only some "
        "partition columns, all partitions with these values are deleted.",
    },
    "Tags": {
        "create_tag": "Create a tag for a snapshot (default: the latest). The tag keeps it from expiring for `time_retained`, such "
        "as `'7 d'`.",
        "create_tag_from_timestamp": "Create a tag for the first snapshot at or after a time.",
        "create_tag_from_watermark": "Create a tag for the first snapshot with this watermark or a later one.",
        "replace_tag": "Move a tag to another snapshot, or change how long it is kept.",
        "rename_tag": "Rename a tag.",
        "delete_tag": "Delete a tag, or several comma-separated tags.",
        "expire_tags": "Delete tags that have expired, or that were created before `older_than`.",
        "trigger_tag_automatic_creation": "Create the automatic tags that are due according to the table's options.",
    },
    "Branches": {
        "create_branch": "Create a branch from a tag. Without a tag, the branch has no rows.",
        "delete_branch": "Delete a branch, or several comma-separated branches.",
        "rename_branch": "Rename a branch.",
        "fast_forward": "Fast-forward the main branch to a branch. In Iceberg's form, `branch` is `'main'` and `to` is the branch.",
    },
    "Rollback and restore": {
        "rollback": "Roll back to a snapshot or tag and delete all later snapshots. `version` is either of them.",
        "rollback_to": "Flink's form of `rollback`.",
        "rollback_to_snapshot": "Iceberg's form of `rollback`.",
        "rollback_to_timestamp": "Roll back to the latest snapshot at or before a time.",
        "rollback_to_watermark": "Roll back to the latest snapshot with this watermark or an earlier one.",
        "rollback_to_as_latest": "Restore the whole table to a snapshot or tag in a new commit. No snapshot is deleted.",
        "set_current_snapshot": "Iceberg's name for `rollback_to_as_latest`. `ref` is a tag.",
        "restore": "Restore partitions, or the whole table, to a snapshot, tag or time in a new commit. `dry_run` only shows what "
        "would be restored.",
    },
    "Expiry and cleaning": {
        "expire_snapshots": "Delete old snapshots and the files that only they use. The table's options apply to all arguments that "
        "you do not set.",
        "expire_changelogs": "Delete old changelogs that were kept longer than their snapshots. `delete_all` deletes all of them.",
        "expire_partitions": "Delete expired partitions. Returns one row per partition.",
        "remove_orphan_files": "Delete files that nothing in the table refers to and that are older than `older_than` (default: one "
        "day). `'database.*'` means all tables of a database.",
        "purge_files": "Delete all rows and the whole history of a table. The definition is kept.",
        "mend_snapshots": "Rewrite snapshots [that other engines refuse](../history.md#what-other-engines-refuse).",
    },
    "Consumers": {
        "reset_consumer": "Set the next snapshot of a consumer. Without a snapshot, the consumer is deleted.",
        "clear_consumers": "Delete consumers whose names match a regular expression.",
        "expire_consumers": "Delete consumers that have not advanced since a time.",
    },
    "External tables": {
        "adopt_delta": "Create a table from the rows of a Delta table: they are read once, sorted and compacted, with one row per "
        "key. Separate column names by commas; `options` looks like `'bucket=4,...'`. See [adopting tables](../adopting.md).",
        "adopt_iceberg": "Like `adopt_delta`, for an Iceberg table.",
        "adopt_parquet": "Like `adopt_delta`, for a folder of Parquet files.",
        "refresh": "Update the columns of an [external table](../external-tables.md) from its source.",
        "publish": "Publish the latest snapshot for [readers of Delta Lake and Iceberg](../publishing.md). Returns one row per "
        "format.",
    },
    "Inspection": {
        "why": "List the stored versions of a key in merge order, and the effect of each on the row.",
    },
}  # fmt: skip
"""Procedures by subject, and what each does."""

_PARTITION = "partition, such as `{2026-01-31}`"
_STATISTICS = "by column, such as `{a=1, b=null}`"
_TOTALS = {
    "record_count": "number of stored rows",
    "file_size_in_bytes": "total size of the data files in bytes",
    "file_count": "number of data files",
    "last_update_time": "creation time of the latest file",
}
_CATALOG_ONLY = "always NULL; only a catalog service knows it"
SYSTEM_TABLE_ROWS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "audit_log": (
        "The last version of every key, with the column `rowkind` (`+I`, `+U`, `-U`, `-D`) in front of the table's columns. Deletes "
        "are included as long as they are stored. With `/*+ OPTIONS('incremental-between' = '1,3') */` it returns the changes "
        "between two snapshots or tags, like [`Table.changes`](../semantics.md#changes).",
        {},
    ),
    "branches": (
        "One row per branch, except the main branch.",
        {"branch_name": "name of the branch", "create_time": "creation time"},
    ),
    "buckets": (
        "One row per partition and bucket.",
        {"partition": _PARTITION, "bucket": "number of the bucket", **_TOTALS},
    ),
    "consumers": (
        "One row per consumer, a named reader that follows the table.",
        {"consumer_id": "name of the consumer", "next_snapshot_id": "the snapshot it reads next"},
    ),
    "files": (
        "One row per live data file.",
        {
            "partition": _PARTITION,
            "bucket": "number of the bucket",
            "file_path": "path of the file",
            "file_format": "`parquet`, `orc` or `avro`",
            "schema_id": "the schema it was written with",
            "level": "its level: 0 for writes, the highest for full compactions",
            "record_count": "number of stored rows",
            "file_size_in_bytes": "size in bytes",
            "min_key": "smallest key in the file",
            "max_key": "largest key in the file",
            "null_value_counts": f"number of NULLs {_STATISTICS}",
            "min_value_stats": f"smallest value {_STATISTICS}",
            "max_value_stats": f"largest value {_STATISTICS}",
            "min_sequence_number": "smallest sequence number",
            "max_sequence_number": "largest sequence number",
            "creation_time": "creation time, in the writer's local time",
            "deleteRowCount": "number of deletes among its rows",
            "file_source": "`APPEND` or `COMPACT`",
            "first_row_id": "only for tables whose rows have ids",
            "write_cols": "the written columns, if only some were written",
        },
    ),
    "manifests": (
        "One row per manifest of the snapshot.",
        {
            "file_name": "name of the manifest",
            "file_size": "size in bytes",
            "num_added_files": "number of files it adds",
            "num_deleted_files": "number of files it deletes",
            "schema_id": "latest schema of its files",
            "min_partition_stats": "smallest values of the partition columns",
            "max_partition_stats": "largest values of the partition columns",
            "min_row_id": "only for tables whose rows have ids",
            "max_row_id": "only for tables whose rows have ids",
        },
    ),
    "options": (
        "One row per option that is set on the table.",
        {"key": "name of the [option](../options.md)", "value": "its value"},
    ),
    "partitions": (
        "One row per partition.",
        {
            "partition": "partition, such as `dt=2026-01-31/country=NO`",
            **_TOTALS,
            "created_at": _CATALOG_ONLY,
            "created_by": _CATALOG_ONLY,
            "updated_by": _CATALOG_ONLY,
            "options": _CATALOG_ONLY,
            "total_buckets": "number of buckets",
            "done": "always false",
        },
    ),
    "publications": (
        "One row per format in which the table is [published](../publishing.md).",
        {
            "form": "`delta` or `iceberg`",
            "version": "latest published version",
            "snapshot_id": "the snapshot that this version shows",
            "newest_snapshot_id": "latest snapshot of the table",
            "reason": "why the publication is behind, if it is",
            "is_stopped": "whether the format was removed from the option",
        },
    ),
    "ro": (
        "The rows of fully compacted files only, with the table's columns. Nothing has to be merged, but rows written since the "
        "last full compaction are missing.",
        {},
    ),
    "schemas": (
        "One row per version of the table's definition.",
        {
            "schema_id": "number of the schema, starting with 0",
            "fields": "the columns, as JSON",
            "partition_keys": "the partition columns, as JSON",
            "primary_keys": "the primary key, as JSON",
            "options": "the options, as JSON",
            "comment": "comment of the table",
            "update_time": "creation time",
        },
    ),
    "snapshots": (
        "One row per existing snapshot, oldest first.",
        {
            "snapshot_id": "number of the snapshot, starting with 1",
            "schema_id": "the schema it is read with",
            "commit_user": "user of the commit: a name set by the writer, or a random one",
            "commit_identifier": "number of the write, set by its writer",
            "commit_kind": "`APPEND`, `COMPACT`, `OVERWRITE` or `ANALYZE`",
            "commit_time": "time of the commit",
            "base_manifest_list": "file that lists the manifests of earlier commits",
            "delta_manifest_list": "file that lists the manifests of this commit",
            "changelog_manifest_list": "file that lists the manifests of its stored changelog",
            "total_record_count": "number of stored rows after the commit",
            "delta_record_count": "number of stored rows that the commit added, minus those it removed",
            "changelog_record_count": "number of rows in its stored changelog",
            "watermark": "watermark set by the writer",
            "next_row_id": "only for tables whose rows have ids",
        },
    ),
    "tags": (
        "One row per tag.",
        {
            "tag_name": "name of the tag",
            "snapshot_id": "the snapshot it names",
            "schema_id": "schema of this snapshot",
            "commit_time": "commit time of this snapshot",
            "record_count": "number of stored rows in it",
            "create_time": "creation time of the tag, in its creator's local time",
            "time_retained": "how long the tag is kept, as ISO 8601 (`PT168H`); NULL: until it is deleted",
        },
    ),
}  # fmt: skip
"""What a row of each system table is, and what its columns hold."""

ERRORS: Mapping[str, tuple[str, str]] = {
    "KeytideError": (
        "catch it to catch all errors",
        "Keytide raises only its subclasses.",
    ),
    "InvalidError": (
        "correct the argument, option, schema or row",
        "**How to fix it**: the message contains the value and what was expected. Nothing was written, so correct the input and "
        "call again. If the rows come from a feed that you cannot correct, use a dead-letter table: see [messages that cannot be "
        "applied](../semantics.md#messages-that-cannot-be-applied).",
    ),
    "OverflowingError": (
        "use a larger column type",
        "**How to fix it**: widen the column (`ALTER TABLE t ALTER COLUMN c TYPE BIGINT`, or a larger DECIMAL), or correct the "
        "values. Keytide never rounds or wraps values silently.",
    ),
    "NotFoundError": (
        "use a name that exists",
        "**How to fix it**: the message lists similar names, or all existing names. A missing snapshot can have expired: tag the "
        "snapshots that you want to keep, or increase `snapshot.time-retained`.",
    ),
    "AlreadyExistsError": (
        "choose another name",
        "**How to fix it**: use another name, `CREATE ... IF NOT EXISTS`, or `if name not in lake.tables()`.",
    ),
    "ConflictError": (
        "run the same call again",
        "**How to fix it**: nothing was committed, so run the same call again. Writes already retry automatically, up to "
        "`commit.max-retries` times. If statements that read and write the same rows conflict often, run fewer of them in parallel "
        "or partition the table.",
    ),
    "DataError": (
        "check the storage",
        "**How to fix it**: if the disk is full, permissions are missing or the store does not respond, remove the cause and call "
        "again. If a file is missing or damaged, `table.verify()` lists every such file; restore it from a backup, or roll back to "
        "a snapshot that does not need it. If a snapshot expired while you were reading it, start the read again.",
    ),
    "UnsupportedError": (
        "use the alternative in the message",
        "**How to fix it**: the message names the unsupported feature or call, and an alternative. Keytide has not changed the "
        "table, and other engines can still read it.",
    ),
    "ConnectorError": (
        "correct the connector",
        "**How to fix it**: the message names the rule that the connector violates. [Test the connector](../write-a-connector.md) "
        "with `keytide.testing`.",
    ),
    "SetupError": (
        "install what is missing",
        "**How to fix it**: install the extra or the Java runtime that the message names: see [installation](installation.md). If "
        "the object store has no conditional writes, use another one: see [object "
        "stores](../stores.md#other-services-that-speak-the-protocol-of-s3).",
    ),
    "KeytideWarning": (
        "read it; the operation succeeded",
        "This is not an error but a warning from Python's `warnings` module. The message says what may differ from what you "
        "intended. To turn such warnings into errors in tests, use `warnings.simplefilter('error', kt.KeytideWarning)`.",
    ),
}  # fmt: skip
"""What to do about each class: in short, and in full."""

CLI_HEAD = """\
# Command line

{note}
The command `keytide` is installed with the package. If scripts are not on your path, use `python -m keytide`.

You can name a table in two ways:

- by its path or URI: `lake/shop.db/orders`, `s3://bucket/lake/shop.db/orders`
- by its name in a warehouse: `-w lake shop.orders`, or `shop.orders` if `KEYTIDE_WAREHOUSE` is set

All commands behave the same way:

- **Output** goes to standard output. Progress, warnings and errors go to standard error. `--format json` and `--format csv`
  keep every value exactly. The other formats truncate long values on a terminal, but not in a pipe.
- **Exit codes**: 0: success; 1: a problem, such as an error or a missing row; 2: wrong usage; 130: Ctrl-C.
- **Completion** of commands and options: run `keytide --install-completion` once and open a new shell. To install the script
  elsewhere, print it with `keytide --show-completion`. bash, zsh, fish and PowerShell are supported.

These options come before the command:

{options}"""

PROCEDURES_HEAD = """\
# Procedures

{note}
Call procedures with `CALL sys.name(...)` in `lake.sql` and `keytide sql`. You can pass arguments by position or by name; names
are case-insensitive: `CALL sys.compact(table => 'shop.orders', compact_strategy => 'minor')`. `table` is `'database.table'`.

- A **time** is a string in ISO 8601, `DATE '2026-01-31'`, `TIMESTAMP '2026-01-31 12:00:00'`, or epoch milliseconds. It is in UTC
  unless it contains an offset.
- A **snapshot** argument can be called `snapshot` or `snapshot_id`. You can write `system.` instead of `sys.`, and a catalog name
  in front of it is ignored.
- `partitions` are strings such as `dt=2026-01-31`; separate several by semicolons.
- A procedure returns one row that describes what it did, or one row per table or partition.

Most procedures are also methods of [`Table`](../api/table.md) and [commands](cli.md). For statements, see [SQL](../sql.md)."""

SYSTEM_HEAD = """\
# System tables

{note}
System tables describe what is stored for a table. Query them in SQL with `SELECT * FROM shop.orders$snapshots`, or in Iceberg's
form `shop.orders.snapshots`. All except `audit_log` and `ro` read only metadata. Tables about one snapshot (`audit_log`,
`buckets`, `files`, `manifests`, `options`, `partitions`, `ro`) accept `VERSION AS OF` and `TIMESTAMP AS OF`.

Row counts are physical: they include older versions of keys and deletes. Times are in UTC, except creation times of files, which
are in the writer's local time."""

ERRORS_HEAD = """\
# Errors

{note}
Every call raises only subclasses of `KeytideError`, and the class says what you can do. The message names the table, column,
option or file, the value that was found, what was expected, and how to fix it. Messages can change between releases, so use the
class in programs. Each class is also a subclass of a builtin exception.

On the command line, an error is one line on standard error with exit code 1. Use `--debug` to see the traceback."""
