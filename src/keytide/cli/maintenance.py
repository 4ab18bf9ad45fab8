"""Commands for maintenance of tables, for checks of files and health, and for size estimates."""

from __future__ import annotations

import warnings
from typing import Annotated

import pyarrow as pa
import typer

from keytide.base.record import rows_of
from keytide.base.text import counted
from keytide.cli.common_options import (
    FormatOption,
    Limit,
    SparkMaster,
    TableArgument,
    Warehouse,
    command,
    names,
    open_named_table,
    refuse_cache,
    task_runner,
)
from keytide.cli.output import Format, note, progress_bar, write_rows, write_table
from keytide.errors import KeytideWarning
from keytide.key_index.indexed_keys import Size, sizes_of
from keytide.maintenance import actions, rescale
from keytide.maintenance.actions import PurgeResult
from keytide.maintenance.doctor import Sign
from keytide.maintenance.expiry import ExpiryResult, expire_snapshots
from keytide.maintenance.partition_expiry import ExpiredPartitions
from keytide.maintenance.repair import index_files
from keytide.maintenance.rescale import ConversionResult
from keytide.maintenance.restore import restore as restored
from keytide.publish import publish as publishing
from keytide.publish.publish import Publications
from keytide.verify.finding import Finding
from keytide.verify.verify import verify_table

# -- maintenance -----------------------------------------------------------------------------------


Full = Annotated[
    bool,
    typer.Option(
        "--full", help="Merge every bucket into one sorted run, even if no compaction is due."
    ),
]
OrderBy = Annotated[
    str | None,
    typer.Option(
        "--order-by",
        metavar="COLUMNS",
        help="Sort the rows of a table without a primary key by these comma-separated columns.",
        show_default=False,
    ),
]
OrderStrategy = Annotated[
    str | None,
    typer.Option(
        "--order-strategy",
        help="How to sort. order (default): by one column after the other. zorder or hilbert: by "
        "all columns equally.",
        show_default=False,
    ),
]
OnlyPartition = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        help="Only this partition: dt=2026-01-31,hour=7. Can be repeated.",
        show_default=False,
    ),
]
CompactDryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be compacted, without doing it.")
]


def compact(
    table: TableArgument,
    warehouse: Warehouse = None,
    full: Full = False,
    order_by: OrderBy = None,
    order_strategy: OrderStrategy = None,
    partition: OnlyPartition = None,
    dry_run: CompactDryRunOption = False,
    spark: SparkMaster = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Merge the files of a table into fewer, larger ones.

    The rows stay the same. Writes compact automatically unless the table is write-only. Readers and
    writers can continue in the meantime.

    Example: keytide compact -w /data/lake shop.orders --full
    """
    stored = open_named_table(table, warehouse).stored
    with task_runner(spark, "buckets") as runner:
        done = actions.compact(
            stored, full=full, order_by=names(order_by), order_strategy=order_strategy or None,
            partitions=partition or (), dry_run=dry_run, runner=runner,
        )  # fmt: skip
    write_table(done.to_arrow(), format)
    if done.overtaken:
        note("another compaction ran first; no work was duplicated")
    elif not done.files_before:
        note("nothing to compact")


def rollback(
    table: TableArgument,
    warehouse: Warehouse = None,
    snapshot_id: Annotated[
        int | None,
        typer.Option("--snapshot-id", help="Roll back to this snapshot.", show_default=False),
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option("--tag", help="Roll back to the snapshot of this tag.", show_default=False),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            help="Roll back to the latest snapshot at this ISO time (UTC, unless it has an "
            "offset).",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be deleted, without doing it.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Roll a table back to a snapshot, a tag or a time.

    Deletes all later snapshots, changelogs and tags. Columns and options keep their current
    definition.

    Example: keytide rollback -w /data/lake shop.orders --snapshot-id 7 --dry-run
    """
    if (snapshot_id is None) + (tag is None) + (as_of is None) != 2:
        raise typer.BadParameter("use exactly one of --snapshot-id, --tag and --as-of")
    to = snapshot_id if tag is None else tag
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KeytideWarning)  # reported below
        done = open_named_table(table, warehouse).rollback_to(to, as_of=as_of, dry_run=dry_run)
    write_table(done.to_arrow(), format)
    if done.consumers:
        note(f"consumers that read deleted snapshots and must restart: {', '.join(done.consumers)}")


@command(
    expire_snapshots,
    retain_max=typer.Option(min=1, help="Maximum number of snapshots to keep.", show_default=False),
    retain_min=typer.Option(min=1, help="Minimum number of snapshots to keep.", show_default=False),
    older_than=typer.Option(
        help="Expire snapshots created before this ISO time: 2026-01-31T12:00 (UTC, unless it "
        "has an offset)",
        show_default=False,
    ),
    max_deletes=typer.Option(
        min=0, help="Maximum number of snapshots to expire.", show_default=False
    ),
)
def expire(done: ExpiryResult, format: Format) -> None:
    """Expire old snapshots and delete unused files.

    Deletes the files that only expired snapshots use. Options that you do not set are taken from
    the table, as automatic expiry after commits does. Tags and branches keep their snapshots, and
    consumers keep those they have not read yet.

    Example: keytide expire -w /data/lake shop.orders --older-than 2026-01-31 --dry-run
    """
    write_table(done.to_arrow(), format)
    if not done.snapshots:
        note("nothing to expire")


def orphans(
    table: TableArgument,
    warehouse: Warehouse = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            help="Only files last modified before this ISO time (UTC, unless it has an offset); "
            "default: one day ago. No running writer may still need such files.",
            show_default=False,
        ),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the files instead of listing them.")
    ] = False,
    limit: Limit = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List the orphan files of a table, or delete them.

    Orphan files are files that nothing in the table refers to. Failed writers leave them, and so do
    rollbacks and deleted tags and branches.

    Example: keytide orphans -w /data/lake shop.orders --older-than 2026-01-31
    """
    found = open_named_table(table, warehouse).remove_orphan_files(older_than, dry_run=not delete)
    rows = pa.table({"path": pa.array(found.paths, pa.string())})
    if found.files or format is Format.CSV:
        write_rows(rows.to_batches(), rows.schema, format, limit)
    what = f"{counted(found.files, 'file')}, {counted(found.bytes, 'byte')}"
    note(f"deleted {what}" if delete else f"{what}; use --delete to delete them")


def restore(
    table: TableArgument,
    warehouse: Warehouse = None,
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", help="Only this partition: dt=2026-01-31,hour=7. Can be "
                     "repeated.", show_default=False),
    ] = None,
    snapshot_id: Annotated[
        int | None,
        typer.Option("--snapshot-id", help="Restore the state of this snapshot.",
                     show_default=False),
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", help="Restore the state of this tag.", show_default=False)
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", help="Restore the state at this ISO time (UTC, unless it has an "
                     "offset).",
                     show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be restored, without doing it.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:  # fmt: skip
    """Restore an earlier state in a new commit.

    Restores single partitions or the whole table. Writes no data files. Nothing is lost: the
    replaced rows remain readable in earlier snapshots.

    Example: keytide restore -w /data/lake shop.orders --partition dt=2026-01-31 --snapshot-id 7
    """
    if (snapshot_id is None) + (tag is None) + (as_of is None) != 2:
        raise typer.BadParameter("use exactly one of --snapshot-id, --tag and --as-of")
    found = open_named_table(table, warehouse)
    to = snapshot_id if tag is None else tag
    done = restored(found.stored, to, partition or (), as_of=as_of, dry_run=dry_run)
    write_table(done.to_arrow(), format)
    if not done.partitions:
        note("nothing to restore")


@command(
    actions.expire_partitions,
    expiration_time=typer.Option(
        help="Age at which partitions expire: '30 d'.", show_default=False
    ),
    strategy=typer.Option(
        help="How the age is measured. values-time: from the partition's values. update-time: "
        "from its last write.",
        show_default=False,
    ),
    timestamp_pattern=typer.Option(
        help="How the time is built from the values: '$dt $hour:00:00'.", show_default=False
    ),
    timestamp_formatter=typer.Option(
        help="Date pattern of the time: 'yyyyMMdd'.", show_default=False
    ),
    max_expires=typer.Option(
        min=1, help="Maximum number of partitions to drop.", show_default=False
    ),
)
def expire_partitions(done: ExpiredPartitions, format: Format) -> None:
    """Drop the expired partitions of a table.

    Options that you do not set are taken from the table, as automatic expiry after commits does.

    Example: keytide expire-partitions -w /data/lake shop.orders --expiration-time '30 d' --dry-run
    """
    write_table(done.to_arrow(), format)


@command(
    rescale.convert,
    upsert_mode=typer.Option(
        help="full: the table gets a key index. none: the table merges on read.", show_default=False
    ),
    dry_run=typer.Option("--dry-run", help="Show what would be done, without doing it."),
)
def convert(done: ConversionResult, format: Format) -> None:
    """Convert a table between merge on read and a key index.

    Rewrites all files. The rows stay the same.

    Example: keytide convert -w /data/lake shop.orders --upsert-mode full
    """
    write_table(done.to_arrow(), format)
    if done.dropped:
        note(f"options removed because they no longer apply: {', '.join(done.dropped)}")


@command(actions.purge_files)
def purge_files(done: PurgeResult, format: Format) -> None:
    """Delete all rows and the history of a table.

    Keeps the definition. Deletes branches, tags, consumers, changelogs and snapshots. This cannot
    be undone.

    Example: keytide purge-files -w /data/lake shop.orders --dry-run
    """
    write_table(done.to_arrow(), format)


@command(publishing.publish)
def publish(done: Publications, format: Format) -> None:
    """Publish a table as Delta Lake or Apache Iceberg.

    Publishes the latest snapshot in the formats that the option 'publish' names. Every commit
    publishes automatically. Snapshots with rows that must still be merged cannot be published; run
    keytide compact --full first.

    Example: keytide publish -w /data/lake shop.orders
    """
    write_table(done.to_arrow(), format)


def rewrite_file_index(
    table: TableArgument,
    warehouse: Warehouse = None,
    partition: OnlyPartition = None,
    spark: SparkMaster = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Create missing bloom filters of a table's files.

    Use it after you changed 'file-index.bloom-filter.columns'. Writes no data files.

    Example: keytide rewrite-file-index -w /data/lake shop.orders
    """
    stored = open_named_table(table, warehouse).stored
    with task_runner(spark, "files") as runner:
        done = index_files(stored, partition or (), runner=runner)
    write_table(done.to_arrow(), format)
    if not done.indexed:
        note("no file lacks a bloom filter")


# -- checks of files, and of a table's health ------------------------------------------------------


def verify(
    table: TableArgument,
    warehouse: Warehouse = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Check only metadata and that each file exists; read no data."
        ),
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Check everything that is stored for a table.

    Each finding names a file, the problem, what was expected and how to fix it. Changes nothing.
    The exit code is 1 if there are findings.

    Example: keytide verify -w /data/lake shop.orders
    """
    found = open_named_table(table, warehouse)
    with progress_bar("data files") as progress:
        result = verify_table(found.stored, quick=quick, progress=progress)
    if result.findings or format is Format.CSV:
        write_table(rows_of(Finding, result.findings), format)
    for each in result.unchecked:
        note(f"not checked: {each}")
    note(result.summary)
    if not result.is_healthy:
        raise typer.Exit(1)


def doctor(
    table: TableArgument, warehouse: Warehouse = None, format: FormatOption = Format.TABLE
) -> None:
    """Check the health of a table and recommend maintenance.

    Checks for small files, sorted runs, skewed buckets, tombstones, snapshots, consumers, orphan
    files, branches and manifests. Reads no data. To check that the stored files are valid, use
    keytide verify.

    Example: keytide doctor -w /data/lake shop.orders
    """
    diagnosis = open_named_table(table, warehouse).doctor()
    write_table(rows_of(Sign, diagnosis.signs), format)
    ill = sum(sign.action is not None for sign in diagnosis.signs)
    note(
        f"table {diagnosis.table}: {counted(ill, 'recommendation')}" if ill else "no problems found"
    )


# -- the size estimate of a key index --------------------------------------------------------------


def upsert_estimate(
    keys: Annotated[int, typer.Argument(help="Number of keys in the table.")],
    buckets: Annotated[int, typer.Option(help="Number of buckets over all partitions.")] = 1,
    files: Annotated[int, typer.Option(help="Number of data files per bucket.")] = 256,
    comparison_bytes: Annotated[
        int,
        typer.Option(
            help="Number of bytes in which the values of the sequence field differ: 0 without a "
            "sequence field, 4 for seconds, 8 for milliseconds over more than 49 days."
        ),
    ] = 8,
    key_bytes: Annotated[
        int | None,
        typer.Option(
            help="Total size of the key columns in bytes, to compare with the heap that Pinot "
            "would need.",
            show_default=False,
        ),
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Estimate the size of a key index.

    Tables with 'upsert.mode' have a key index. The index is stored next to the data files and
    memory-mapped. A write or a lookup reads only the parts that it needs. The index contains hashes
    of keys, so the size of the keys does not matter.

    Example: keytide upsert-estimate 100000000 --buckets 8 --key-bytes 16
    """
    refuse_cache("upsert-estimate")
    write_table(rows_of(Size, sizes_of(keys, buckets, files, comparison_bytes, key_bytes)), format)
