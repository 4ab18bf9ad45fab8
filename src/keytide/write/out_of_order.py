"""Counts rows that arrive out of order.

Merging handles them without help, but users who monitor a feed want to know the number (Apache
Pinot's upsert tables count them as well). The count requires a lookup of the written keys, so it is
enabled by the option 'write.count-out-of-order'.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl
import pyarrow.compute as pc

from keytide.base.row_kind import RowKind
from keytide.format.arrow import from_arrow
from keytide.format.manifest import ManifestEntry
from keytide.merge.lateness import is_late, with_ranks
from keytide.read.lookup import key_range, newest_versions
from keytide.read.plan import plan_files
from keytide.read.task import ReadTask
from keytide.snapshot.live_files import BucketId
from keytide.snapshot.state import TableState
from keytide.write.input_rows import Rows
from keytide.write.layout import Placing

__all__ = ["count_out_of_order"]


def count_out_of_order(
    rows: Rows, stored: TableState, written: Iterable[ManifestEntry], placing: Placing
) -> int:
    """The number of rows that are older than a version of their key that arrived before them.

    This can be a stored version, including files of `written`, or an earlier row. Rows of kind -U
    are not counted, because they announce nothing. Without sequence fields, no row is counted.
    Reads the stored versions of the keys. Runs in the driver or on an executor.
    """
    view = stored.view
    if not view.order.sequence:
        return 0
    rows = rows.filter(pc.not_equal(rows.kinds, int(RowKind.UPDATE_BEFORE)))
    files = _by_bucket((*stored.live.entries, *written))
    count = 0
    frame = from_arrow(rows.table)
    frame, cut = placing.cut(frame, rows.table, view)
    for bucket, part in cut.parts(frame):
        before = _versions(stored, files.get(bucket, []), part)
        ranked = with_ranks(part.select(view.order.columns), before, view.order)
        count += int(ranked.select(is_late(view.order).sum()).item())
    return count


def _by_bucket(entries: Iterable[ManifestEntry]) -> dict[BucketId, list[ManifestEntry]]:
    files: dict[BucketId, list[ManifestEntry]] = {}
    for entry in entries:
        files.setdefault((entry.partition, entry.bucket), []).append(entry)
    return files


def _versions(
    stored: TableState, files: Sequence[ManifestEntry], rows: pl.DataFrame
) -> pl.DataFrame:
    """The versions of the keys of `rows` in the files of one bucket."""
    view, columns = stored.view, stored.view.order.columns
    keys = rows.select(view.order.key).unique()
    # Without any file, the result is an empty frame with the right types.
    found = [rows.select(columns).clear()]
    for bucket in plan_files(view, files, key_range(keys), stored.vector_files).buckets:
        task = ReadTask(view, bucket, columns)
        found += [f.select(columns) for f in newest_versions(task, keys, columns)]
    return pl.concat(found)
