"""What the pages of docs/reference say of names that do not say it themselves in a reader's words."""

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
        "compact": "Merge files into fewer and larger ones. `full` takes all files, `minor` those that are due. `order_strategy` "
        "(`order`, `zorder`, `hilbert`) and `order_by` put the rows of a table without a primary key in order. `partitions` or "
        "`where`, a condition on partition columns, choose partitions.",
        "compact_database": "Compact all tables whose names match regular expressions, each in its own commit. A row for each, "
        "which says why where one cannot be compacted.",
        "compact_manifest": "Merge manifests that are small or delete files, in a commit of its own.",
        "rescale": "Rewrite partitions that have another number of buckets than the table, all of them when none is chosen. "
        "Other writers must wait meanwhile.",
        "rewrite_file_index": "Give stored files the bloom filters that `file-index.bloom-filter.columns` asks for and that they "
        "lack.",
        "rewrite_data_files": "Iceberg's name for a full compaction; `sort_order` is for tables without a primary key.",
        "rewrite_manifests": "Iceberg's name for `compact_manifest`.",
        "rewrite_position_delete_files": "Iceberg's name for a full compaction, which writes files without rows that deletion "
        "vectors mark.",
        "convert": "Give a table an index of its keys (`'full'`), or make it one that merges on reading (`'none'`), [in one "
        "commit](../semantics.md#from-one-kind-of-table-to-the-other).",
        "drop_partition": "Delete the rows of partitions in one commit, whatever the merge engine. Values for some of the "
        "partition columns mean all partitions that have them.",
    },
    "Tags": {
        "create_tag": "Name a snapshot, the newest unless `snapshot` says otherwise, which keeps it from expiring for "
        "`time_retained` (`'7 d'`).",
        "create_tag_from_timestamp": "Name the first snapshot at or after a time.",
        "create_tag_from_watermark": "Name the first snapshot whose watermark is this one or a later one.",
        "replace_tag": "Let a tag name another snapshot, or stay for another time.",
        "rename_tag": "Give a tag another name.",
        "delete_tag": "Delete a tag, or several with commas between them.",
        "expire_tags": "Delete tags whose time is over, or that were made before `older_than`.",
        "trigger_tag_automatic_creation": "Make the tags that the options of the table say are due.",
    },
    "Branches": {
        "create_branch": "Make a branch of a tag, or one without rows where no tag is named.",
        "delete_branch": "Delete a branch, or several with commas between them.",
        "rename_branch": "Give a branch another name.",
        "fast_forward": "Make the table what its branch is. In Iceberg's form `branch` is `'main'` and `to` the branch.",
    },
    "Rollback and restore": {
        "rollback": "Back to a snapshot or a tag: the snapshots after it go. `version` is either.",
        "rollback_to": "Flink's form of the same.",
        "rollback_to_snapshot": "Iceberg's form of the same.",
        "rollback_to_timestamp": "Back to the newest snapshot at or before a time.",
        "rollback_to_watermark": "Back to the newest snapshot whose watermark is this one or an earlier one.",
        "rollback_to_as_latest": "The whole table becomes what it was at a snapshot or a tag, in one more commit: no snapshot "
        "goes.",
        "set_current_snapshot": "Iceberg's name for the same; `ref` is a tag.",
        "restore": "Partitions, or the whole table, become what they were at a snapshot, a tag or a time, in one more commit. "
        "`dry_run` tells what would be done.",
    },
    "Expiry and cleaning": {
        "expire_snapshots": "Delete old snapshots with the files that only they have. What is left out is as the options of the "
        "table say.",
        "expire_changelogs": "The same for changelogs that have outlived their snapshots; `delete_all` deletes all of them.",
        "expire_partitions": "Delete partitions that are too old, a row for each.",
        "remove_orphan_files": "Delete files that nothing in the table names and that are older than a day, or than "
        "`older_than`. `'database.*'` means all tables of a database.",
        "purge_files": "Delete all rows and all history; the definition stays.",
        "mend_snapshots": "Rewrite snapshots [that other engines refuse](../history.md#what-other-engines-refuse).",
    },
    "Consumers": {
        "reset_consumer": "Let a named reader go on at a snapshot, or forget it where none is given.",
        "clear_consumers": "Forget the named readers whose names match a regular expression.",
        "expire_consumers": "Forget the named readers that have not moved since a time.",
    },
    "Tables of others": {
        "adopt_delta": "Make a table of the rows of a Delta table: read once, sorted and compacted, one row per key. Lists of "
        "columns have commas between names; `options` is `'bucket=4,...'`. See [adopting tables](../adopting.md).",
        "adopt_iceberg": "The same of an Iceberg table.",
        "adopt_parquet": "The same of a folder of Parquet files.",
        "refresh": "Take the columns of an [external table](../external-tables.md) anew.",
        "publish": "Publish the newest snapshot for [readers of Delta Lake and Iceberg](../publishing.md), a row for each form.",
    },
    "Looking": {
        "why": "The stored versions of a key in merge order, and what became of each.",
    },
}  # fmt: skip
"""Procedures by subject, and what each does."""

_PARTITION = "the partition, as `{2026-01-31}`"
_STATISTICS = "by column, as `{a=1, b=null}`"
_TOTALS = {
    "record_count": "stored versions",
    "file_size_in_bytes": "bytes of data files",
    "file_count": "data files",
    "last_update_time": "when the newest of the files was made",
}
SYSTEM_TABLE_ROWS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "audit_log": (
        "The last version of every key, deletes included for as long as they are stored: a column `rowkind` (`+I`, `+U`, `-U`, "
        "`-D`), then the columns of the table. With `/*+ OPTIONS('incremental-between' = '1,3') */` it gives the changes "
        "between two snapshots or tags, as [`Table.changes`](../semantics.md#changes) does.",
        {},
    ),
    "branches": (
        "One row per branch beside the main one.",
        {"branch_name": "its name", "create_time": "when it was made"},
    ),
    "buckets": (
        "One row per partition and bucket.",
        {"partition": _PARTITION, "bucket": "the bucket", **_TOTALS},
    ),
    "consumers": (
        "One row per named reader that follows the table.",
        {"consumer_id": "its name", "next_snapshot_id": "the snapshot that it reads next"},
    ),
    "files": (
        "One row per live data file.",
        {
            "partition": _PARTITION,
            "bucket": "the bucket",
            "file_path": "where it lies",
            "file_format": "`parquet`, `orc` or `avro`",
            "schema_id": "the schema that it was written with",
            "level": "its level: 0 for writes, the highest for full compactions",
            "record_count": "stored versions",
            "file_size_in_bytes": "bytes",
            "min_key": "the least key in it",
            "max_key": "the greatest key in it",
            "null_value_counts": f"counts of NULL {_STATISTICS}",
            "min_value_stats": f"least values {_STATISTICS}",
            "max_value_stats": f"greatest values {_STATISTICS}",
            "min_sequence_number": "the least sequence number",
            "max_sequence_number": "the greatest sequence number",
            "creation_time": "when it was made, local time of the writer",
            "deleteRowCount": "deletes among its rows",
            "file_source": "`APPEND` or `COMPACT`",
            "first_row_id": "for tables whose rows have ids",
            "write_cols": "the columns that were written, where not all were",
        },
    ),
    "manifests": (
        "One row per manifest of the snapshot.",
        {
            "file_name": "its name",
            "file_size": "bytes",
            "num_added_files": "files that it adds",
            "num_deleted_files": "files that it takes away",
            "schema_id": "the newest schema of its files",
            "min_partition_stats": "least values of the partition columns",
            "max_partition_stats": "greatest values of the partition columns",
            "min_row_id": "for tables whose rows have ids",
            "max_row_id": "likewise",
        },
    ),
    "options": (
        "One row per option that the table sets.",
        {"key": "the [option](../options.md)", "value": "its value"},
    ),
    "partitions": (
        "One row per partition.",
        {
            "partition": "the partition, as `dt=2026-01-31/country=NO`",
            **_TOTALS,
            "created_at": "NULL; only a catalog service could tell",
            "created_by": "likewise",
            "updated_by": "likewise",
            "options": "likewise",
            "total_buckets": "its number of buckets",
            "done": "always false",
        },
    ),
    "publications": (
        "One row per form in which the table is [published](../publishing.md).",
        {
            "form": "`delta` or `iceberg`",
            "version": "the newest version that is published",
            "snapshot_id": "the snapshot that it shows",
            "newest_snapshot_id": "the newest snapshot of the table",
            "reason": "why it is behind, where it is",
            "is_stopped": "whether the option names the form no more",
        },
    ),
    "ro": (
        "The rows of fully compacted files alone, with the columns of the table: nothing is merged, but what was written since the "
        "last full compaction is missing.",
        {},
    ),
    "schemas": (
        "One row per version of the definition.",
        {
            "schema_id": "its number, from 0",
            "fields": "the columns, as JSON",
            "partition_keys": "the partition columns, as JSON",
            "primary_keys": "the primary key, as JSON",
            "options": "the options, as JSON",
            "comment": "the comment of the table",
            "update_time": "when it was made",
        },
    ),
    "snapshots": (
        "One row per snapshot that is there, oldest first.",
        {
            "snapshot_id": "its number, from 1",
            "schema_id": "the schema that it is read with",
            "commit_user": "who made it: a name that writers choose, or a random one",
            "commit_identifier": "the number of the write, by its writer",
            "commit_kind": "`APPEND`, `COMPACT`, `OVERWRITE` or `ANALYZE`",
            "commit_time": "when",
            "base_manifest_list": "the file that lists the manifests from before",
            "delta_manifest_list": "the file that lists those of this commit",
            "changelog_manifest_list": "the file that lists those of its stored changelog",
            "total_record_count": "stored versions after it",
            "delta_record_count": "stored versions that it added, less those that it took away",
            "changelog_record_count": "rows of its stored changelog",
            "watermark": "the watermark that its writer gave",
            "next_row_id": "for tables whose rows have ids",
        },
    ),
    "tags": (
        "One row per tag.",
        {
            "tag_name": "its name",
            "snapshot_id": "the snapshot that it names",
            "schema_id": "the schema of that",
            "commit_time": "when that was made",
            "record_count": "stored versions in it",
            "create_time": "when the tag was made, local time of the maker",
            "time_retained": "how long it stays, as ISO 8601 (`PT168H`); NULL: until it is deleted",
        },
    ),
}  # fmt: skip
"""What a row of each system table is, and what its columns hold."""

ERRORS: Mapping[str, tuple[str, str]] = {
    "KeytideError": (
        "catch it to catch everything",
        "The root; nothing raises it itself.",
    ),
    "InvalidError": (
        "correct the argument, option, schema or row",
        "Way out: the message names what was given and what was expected. Nothing was written, so correct it and call again. Of "
        "rows from a feed that you cannot correct, keep a dead-letter table: [messages that cannot be "
        "applied](../semantics.md#messages-that-cannot-be-applied).",
    ),
    "OverflowingError": (
        "give the column a larger type",
        "Way out: widen the column (`ALTER TABLE t ALTER COLUMN c TYPE BIGINT`, a larger DECIMAL), or correct the values. Nothing "
        "is rounded or wrapped silently.",
    ),
    "NotFoundError": (
        "name something that exists",
        "Way out: the message lists the names that are near, or all there are. A snapshot may have expired: tag what you "
        "want to keep, or set `snapshot.time-retained`.",
    ),
    "AlreadyExistsError": (
        "choose another name",
        "Way out: another name, `CREATE ... IF NOT EXISTS`, or `if name not in lake.tables()`.",
    ),
    "ConflictError": (
        "do the work again on the newest snapshot",
        "Way out: run the same call again; nothing was committed. Writes repeat by themselves as often as `commit.max-retries` "
        "says. If statements that read and write the same rows conflict often, run fewer of them at once or partition the table.",
    ),
    "DataError": (
        "look at the store",
        "Way out: for a full disk, rights or a store that does not answer, remove the cause and call again. For a file that is "
        "missing or torn, `table.verify()` names every such file; restore it from a copy, or roll back to a snapshot "
        "that does not need it. A reader whose snapshot expired meanwhile starts again.",
    ),
    "UnsupportedError": (
        "take another way, which the message names",
        "Way out: the message says which feature of the table or which call is meant, and what to do instead. Reading such a "
        "table with another engine is safe; Keytide has not touched it.",
    ),
    "ConnectorError": (
        "correct the connector",
        "Way out: [test the connector](../write-a-connector.md) with `keytide.testing`; the message names the rule that it broke.",
    ),
    "SetupError": (
        "install what is missing",
        "Way out: install the extra or the Java runtime that the message names: [installation](installation.md). For a store "
        "without conditional writes, use another one: [object stores](../stores.md#other-services-that-speak-the-protocol-of-s3).",
    ),
    "KeytideWarning": (
        "read it; what was done is sound",
        "Not an error but a warning, through Python's `warnings`. Way out: the message says what may not mean what you meant; "
        "`warnings.simplefilter('error', kt.KeytideWarning)` makes errors of them in tests.",
    ),
}  # fmt: skip
"""What to do about each class, in short and in whole."""

CLI_HEAD = """\
# Command line

{note}
`keytide` is installed with the package; `python -m keytide` is the same where scripts are not on the path.

A table is named by its path or address (`lake/shop.db/orders`, `s3://bucket/lake/shop.db/orders`), or by its name in a
warehouse: `-w lake shop.orders`, or `shop.orders` where `KEYTIDE_WAREHOUSE` is set.

- **Output** goes to standard output, and everything else (progress, warnings, errors) to standard error. `--format json` and
  `--format csv` keep every value exactly; on a terminal the formats for people cut long texts, in a pipe they do not.
- **Exit codes**: 0, all went well; 1, a problem (an error, a row that is not there); 2, wrong usage; 130, Ctrl-C.
- **Completion** of commands and options for the shell that runs it: `keytide --install-completion`, once, then open a new
  shell. `keytide --show-completion` prints the script, to be put elsewhere. bash, zsh, fish and PowerShell are known.

Options in front of a command:

{options}"""

PROCEDURES_HEAD = """\
# Procedures

{note}
`CALL sys.name(...)` in `lake.sql` and `keytide sql`. Arguments come by place or by name, whose letter case does not count:
`CALL sys.compact(table => 'shop.orders', compact_strategy => 'minor')`. `table` is `'database.table'`.

- A **time** is a text in ISO 8601, `DATE '2026-01-31'`, `TIMESTAMP '2026-01-31 12:00:00'`, or epoch milliseconds; UTC unless it
  says otherwise.
- A **snapshot** may be called `snapshot` or `snapshot_id`; `system.` stands for `sys.`, and the name of a catalog in front does
  not count.
- `partitions` are texts such as `dt=2026-01-31`, with semicolons between several.
- The answer is a row, or a row for each table or partition, that says what was done.

Most procedures are methods of [`Table`](../api/table.md) and [commands](cli.md) too. Statements that are no procedures:
[SQL](../sql.md)."""

SYSTEM_HEAD = """\
# System tables

{note}
`SELECT * FROM shop.orders$snapshots` in SQL; `shop.orders.snapshots`, as in Iceberg, is the same. They tell what is stored of a
table. All but `audit_log` and `ro` are read from metadata alone. With `VERSION AS OF` or `TIMESTAMP AS OF`, those that tell of
one snapshot (`audit_log`, `buckets`, `files`, `manifests`, `options`, `partitions`, `ro`) tell of that one.

Counts of rows are physical: older versions of keys and deletes are among them. Times are UTC, except creation times of files,
which writers store in their local time."""

ERRORS_HEAD = """\
# Errors

{note}
Every call raises `KeytideError`s alone, whose class says what you can do about it. The message names the table, column, option
or file, the value that was found, what was expected, and the way out. Messages are for people and may change; classes are
for programs and stay. Each class is also the builtin exception that you would catch anyway.

On the command line an error is one line on standard error and exit code 1; `--debug` shows where it comes from."""
