"""Checks two laws for all visible rows: one row per key, and no deleted row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl
import pyarrow as pa

from keytide.base.plural import counted
from keytide.base.row_kind import RETRACTS
from keytide.base.scratch import scratch
from keytide.format.arrow import from_arrow
from keytide.format.data_file import VALUE_KIND
from keytide.read.runs import StoredVersions
from keytide.read.scan import Scan
from keytide.verify.finding import REWRITE, Findings

__all__ = ["check_deletes_are_marked", "check_one_row_per_key"]

_HASH, _COUNT = map(scratch, ("hash", "count"))
# About how many copies of a hash are in memory while duplicates are searched.
_COPIES = 6


def check_one_row_per_key(scan: Scan, path: str, findings: Findings) -> None:
    """Search for a key that two rows of a scan have. `path` is the file of its snapshot.

    REQUIRES: the columns of the scan are the key. Keys are compared by 8-byte hashes. If these do
    not fit in the memory for reading, the rows are read several times, each time for a part of the
    hashes.
    """
    rows = sum(entry.file.row_count for entry in scan.live.entries)
    passes = 1 + rows * 8 * _COPIES // scan.view.options.read_memory_bytes
    of_key = pl.struct(scan.columns).hash().alias(_HASH)
    with findings.reading(path):
        for part in range(passes):
            hashes = [
                frame.select(of_key).filter(pl.col(_HASH) % passes == part)
                for frame in _frames(scan)
            ]
            repeated = pl.concat(hashes).filter(pl.col(_HASH).is_duplicated()) if hashes else None
            if repeated is not None and repeated.height:
                alike = of_key.is_in(repeated[_HASH].unique().implode())
                _tell(pl.concat(frame.filter(alike) for frame in _frames(scan)), path, findings)
                return


def check_deletes_are_marked(scan: Scan, path: str, findings: Findings) -> None:
    """Search for deletes above level 0 that no deletion vector marks and no manifest counts.

    Other engines read such a file without a merge, and show the deletes as rows.
    """
    view = scan.view
    if not view.options.deletion_vectors_enabled:
        return
    with findings.reading(path):
        for bucket in scan.plan.buckets:
            stored = StoredVersions(view, bucket.partition, (VALUE_KIND,))
            for file in bucket.files:
                if file.may_retract or not file.has_kinds:
                    continue
                # Readers that merge also receive marked deletes. Here, only the marks count.
                shown = stored.of_file(replace(file, keeps_retracts=False))
                count = int(shown[VALUE_KIND].is_in(list(RETRACTS)).sum())
                if count:
                    findings.add(
                        view.shown_path(file.entry),
                        f"{counted(count, 'delete')} visible in {path}",
                        "each of them marked as deleted by a deletion vector",
                        REWRITE,
                    )


def _tell(keys: pl.DataFrame, path: str, findings: Findings) -> None:
    """Report a duplicate key, if the keys are equal and not only their hashes."""
    twice = keys.group_by(keys.columns).len(_COUNT).filter(pl.col(_COUNT) > 1)
    for row in twice.head(1).iter_rows(named=True):
        spelled = ", ".join(f"{name} = {value!r}" for name, value in row.items() if name != _COUNT)
        findings.add(
            path,
            f"{counted(row[_COUNT], 'row')} with the key {spelled}",
            "one row per key",
            REWRITE,
        )


def _frames(scan: Scan) -> Iterator[pl.DataFrame]:
    return (from_arrow(pa.Table.from_batches([batch])) for batch in scan.to_batches())
