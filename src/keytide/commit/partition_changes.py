"""What a commit changes in each partition, for catalogs that maintain counts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import polars as pl

from keytide.format.binary_row import decode_rows
from keytide.format.entry_columns import Entries
from keytide.format.manifest import FileKind, ManifestEntry
from keytide.format.partition import partition_values
from keytide.snapshot.commits import PartitionChange
from keytide.snapshot.view import TableView

__all__ = ["partition_changes"]


def partition_changes(view: TableView, entries: Sequence[ManifestEntry]) -> list[PartitionChange]:
    """The changes of manifest entries. For a table without partitions, there is one."""
    counted = _counted(Entries.of(entries))
    values = _values(view, counted["_PARTITION"].to_list())
    return [
        PartitionChange(
            each,
            row["rows"],
            row["files"],
            row["file_bytes"],
            _epoch_ms(row["newest"]),
            row["_TOTAL_BUCKETS"],
        )
        for each, row in zip(values, counted.iter_rows(named=True), strict=True)
    ]


def _counted(entries: Entries) -> pl.DataFrame:
    names = "_KIND", "_PARTITION", "_TOTAL_BUCKETS", "_ROW_COUNT", "_FILE_SIZE", "_CREATION_TIME"
    sign = pl.when(pl.col("_KIND") == FileKind.ADD.value).then(1).otherwise(-1)
    return (
        entries.columns(*names)
        .group_by("_PARTITION", maintain_order=True)
        .agg(
            pl.col("_TOTAL_BUCKETS").last(),
            rows=(sign * pl.col("_ROW_COUNT")).sum(),
            files=sign.sum(),
            file_bytes=(sign * pl.col("_FILE_SIZE")).sum(),
            newest=pl.col("_CREATION_TIME").max(),
        )
    )


def _values(view: TableView, partitions: Sequence[bytes]) -> list[dict[str, str]]:
    fields = view.schema.partition_fields()
    if not fields or not partitions:
        return [{} for _ in partitions]
    columns = decode_rows(partitions, [field.type for field in fields])
    options = view.options
    return partition_values(
        columns,
        fields,
        legacy=options.partition_legacy_name,
        default_name=options.partition_default_name,
    )


def _epoch_ms(wall_clock_ms: int | None) -> int:
    """Convert a wall-clock time, as the format stores it for a file, to epoch milliseconds. 0 if
    there is none.
    """
    if wall_clock_ms is None:
        return 0
    told = datetime(1970, 1, 1) + timedelta(milliseconds=wall_clock_ms)
    return round(told.timestamp() * 1000)
