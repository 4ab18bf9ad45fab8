"""Commands that keep a table in shape."""

from __future__ import annotations

import warnings
from typing import Annotated

import pyarrow as pa
import typer

from keytide.cli.address import open_named_table
from keytide.cli.cluster import SparkMaster, tasks_run
from keytide.cli.output import Format, note, write_rows, write_table
from keytide.cli.parameters import FormatOption, Limit, TableArgument, Warehouse, names
from keytide.cli.verb import command
from keytide.errors import KeytideWarning
from keytide.plural import counted
from keytide.table.expiry.partition_expiry import ExpiredPartitions
from keytide.table.expiry.snapshot_expiry import ExpiryResult, expire_snapshots
from keytide.table.publishing import publish as publishing
from keytide.table.publishing.published import Publications
from keytide.table.upkeep import compacting, conversion, old_partitions, purging
from keytide.table.upkeep.conversion import ConversionResult
from keytide.table.upkeep.indexing import index_files
from keytide.table.upkeep.purging import PurgeResult
from keytide.table.upkeep.restore import restore as restored

__all__ = [
    "compact", "convert", "expire", "expire_partitions", "orphans", "publish", "purge_files",
    "restore", "rewrite_file_index", "rollback",
]  # fmt: skip


Full = Annotated[
    bool,
    typer.Option("--full", help="Merge every bucket into one sorted run, due or not."),
]
OrderBy = Annotated[
    str | None,
    typer.Option(
        "--order-by",
        metavar="COLUMNS",
        help="Put the rows of a table without a primary key in the order of these columns, "
        "separated by commas.",
        show_default=False,
    ),
]
OrderStrategy = Annotated[
    str | None,
    typer.Option(
        "--order-strategy",
        help="order: by one column after the other (the default). zorder, hilbert: by all of "
        "them alike.",
        show_default=False,
    ),
]
OnlyPartition = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        help="This partition alone: dt=2026-01-31,hour=7. May be given several times.",
        show_default=False,
    ),
]
OnlyTellCompacted = Annotated[
    bool, typer.Option("--dry-run", help="Only tell what would be taken up.")
]


def compact(
    table: TableArgument,
    warehouse: Warehouse = None,
    full: Full = False,
    order_by: OrderBy = None,
    order_strategy: OrderStrategy = None,
    partition: OnlyPartition = None,
    dry_run: OnlyTellCompacted = False,
    spark: SparkMaster = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Merge a table's files into fewer and larger ones, with the same rows.

    Writes do so by themselves, unless the table is write-only. Readers and writers are not held up.

    Example: keytide compact -w /data/lake shop.orders --full
    """
    stored = open_named_table(table, warehouse).stored
    with tasks_run(spark, "buckets") as runner:
        done = compacting.compact(
            stored, full=full, order_by=names(order_by), order_strategy=order_strategy or None,
            partitions=partition or (), dry_run=dry_run, runner=runner,
        )  # fmt: skip
    write_table(done.to_arrow(), format)
    if done.overtaken:
        note("another compaction came first; nothing was done twice")
    elif not done.files_before:
        note("nothing to compact")


def rollback(
    table: TableArgument,
    warehouse: Warehouse = None,
    snapshot_id: Annotated[
        int | None, typer.Option("--snapshot-id", help="To this snapshot.", show_default=False)
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", help="To the snapshot of this tag.", show_default=False)
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            help="To the newest snapshot at this ISO time, UTC unless it says otherwise.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be deleted.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Make a table what it was at a snapshot, a tag or a time; what came later is gone.

    Later snapshots, changelogs and tags are deleted. Columns and options stay those of today.

    Example: keytide rollback -w /data/lake shop.orders --snapshot-id 7 --dry-run
    """
    if (snapshot_id is None) + (tag is None) + (as_of is None) != 2:
        raise typer.BadParameter("give one of --snapshot-id, --tag and --as-of")
    to = snapshot_id if tag is None else tag
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KeytideWarning)  # said below
        done = open_named_table(table, warehouse).rollback_to(to, as_of=as_of, dry_run=dry_run)
    write_table(done.to_arrow(), format)
    if done.consumers:
        note(f"told of what is gone, and to begin anew: {', '.join(done.consumers)}")


@command(
    expire_snapshots,
    retain_max=typer.Option(min=1, help="Keep at most so many snapshots.", show_default=False),
    retain_min=typer.Option(min=1, help="Keep at least so many snapshots.", show_default=False),
    older_than=typer.Option(
        help="Drop snapshots made before an ISO time, UTC unless it says otherwise: "
        "2026-01-31T12:00",
        show_default=False,
    ),
    max_deletes=typer.Option(min=0, help="Drop at most so many snapshots.", show_default=False),
)
def expire(done: ExpiryResult, format: Format) -> None:
    """Forget a table's old snapshots, and delete the files that only they have.

    What is left out is as the options of the table say, by which writes do the same. Tags and
    branches keep what they name, consumers what they have still to read.

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
            help="Files changed last before an ISO time, UTC unless it says otherwise; a day ago "
            "when left out. Nobody may be writing what is that old.",
            show_default=False,
        ),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete them; without it they are listed.")
    ] = False,
    limit: Limit = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List the files of a table that nothing in it names, or delete them.

    Writers that died leave them, and so do rollbacks and dropped tags and branches.

    Example: keytide orphans -w /data/lake shop.orders --older-than 2026-01-31
    """
    found = open_named_table(table, warehouse).remove_orphan_files(older_than, dry_run=not delete)
    rows = pa.table({"path": pa.array(found.paths, pa.string())})
    if found.files or format is Format.CSV:
        write_rows(rows.to_batches(), rows.schema, format, limit)
    what = f"{counted(found.files, 'file')}, {counted(found.bytes, 'byte')}"
    note(f"deleted {what}" if delete else f"{what}; --delete deletes them")


def restore(
    table: TableArgument,
    warehouse: Warehouse = None,
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", help="Of this partition alone: dt=2026-01-31,hour=7. May be "
                     "given several times.", show_default=False),
    ] = None,
    snapshot_id: Annotated[
        int | None, typer.Option("--snapshot-id", help="As in this snapshot.", show_default=False)
    ] = None,
    tag: Annotated[
        str | None, typer.Option("--tag", help="As in this tag.", show_default=False)
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", help="As it was at this ISO time, UTC unless it says otherwise.",
                     show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be done.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:  # fmt: skip
    """Make partitions, or a whole table, what they were, in one more commit. No data is written.

    Nothing is lost: what is replaced can be read in the snapshots before.

    Example: keytide restore -w /data/lake shop.orders --partition dt=2026-01-31 --snapshot-id 7
    """
    if (snapshot_id is None) + (tag is None) + (as_of is None) != 2:
        raise typer.BadParameter("give one of --snapshot-id, --tag and --as-of")
    found = open_named_table(table, warehouse)
    to = snapshot_id if tag is None else tag
    done = restored(found.stored, to, partition or (), as_of=as_of, dry_run=dry_run)
    write_table(done.to_arrow(), format)
    if not done.partitions:
        note("nothing to restore")


@command(
    old_partitions.expire_partitions,
    expiration_time=typer.Option(help="How old partitions may be: '30 d'.", show_default=False),
    strategy=typer.Option(
        help="values-time: their values tell how old they are; update-time: the last write does.",
        show_default=False,
    ),
    timestamp_pattern=typer.Option(
        help="How values make a time: '$dt $hour:00:00'.", show_default=False
    ),
    timestamp_formatter=typer.Option(help="How it is to be read: 'yyyyMMdd'.", show_default=False),
    max_expires=typer.Option(min=1, help="Drop at most so many.", show_default=False),
)
def expire_partitions(done: ExpiredPartitions, format: Format) -> None:
    """Drop a table's partitions that are too old.

    What is left out is as the options of the table say, by which writes do the same.

    Example: keytide expire-partitions -w /data/lake shop.orders --expiration-time '30 d' --dry-run
    """
    write_table(done.to_arrow(), format)


@command(
    conversion.convert,
    upsert_mode=typer.Option(
        help="full: the table gets an index of its keys; none: it merges when it is read.",
        show_default=False,
    ),
    dry_run=typer.Option("--dry-run", help="Only tell what would be done."),
)
def convert(done: ConversionResult, format: Format) -> None:
    """Make a table with an index of keys of one that merges when it is read, or back.

    Its rows are the same before and after, and are written anew.

    Example: keytide convert -w /data/lake shop.orders --upsert-mode full
    """
    write_table(done.to_arrow(), format)
    if done.dropped:
        note(f"options that mean nothing any more: {', '.join(done.dropped)}")


@command(purging.purge_files)
def purge_files(done: PurgeResult, format: Format) -> None:
    """Delete all rows and all history of a table: what stays is the definition.

    Branches, tags, consumers, changelogs and snapshots go, and nothing brings them back.

    Example: keytide purge-files -w /data/lake shop.orders --dry-run
    """
    write_table(done.to_arrow(), format)


@command(publishing.publish)
def publish(done: Publications, format: Format) -> None:
    """Publish the newest snapshot for readers of other formats, as the option 'publish' says.

    Each commit does so by itself. Rows that still have to be merged stand against it: compact
    --full merges them.

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
    """Give a table's files the bloom filters that its options ask for and that they lack.

    For after a change of 'file-index.bloom-filter.columns'. No data file is written.

    Example: keytide rewrite-file-index -w /data/lake shop.orders
    """
    stored = open_named_table(table, warehouse).stored
    with tasks_run(spark, "files") as runner:
        done = index_files(stored, partition or (), runner=runner)
    write_table(done.to_arrow(), format)
    if not done.indexed:
        note("no file lacks a filter")
