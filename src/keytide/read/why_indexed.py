"""Explains a key's row in a table with a key index, where nothing is merged.

The rows of a key are judged in the order in which they arrived, as writes judge them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from keytide.base.row_kind import RowKind
from keytide.format.arrow import to_arrow
from keytide.format.data_file import POSITION
from keytide.format.manifest import ManifestEntry
from keytide.key_index.keys import NOTHING
from keytide.merge.order import SEQUENCE_NUMBER, VALUE_KIND
from keytide.read.runs import StoredVersions
from keytide.read.scan import Scan
from keytide.read.sections import PlannedFile
from keytide.types import arrow_schema

__all__ = ["THE_ROW", "JudgedRow", "judged_rows"]

THE_ROW = "the row"
DELETE = "a delete, kept to detect late rows"

JudgedRow = tuple[ManifestEntry, pl.DataFrame, str]
"""The file of a row, the row with its number and kind, and what happened to it."""


def judged_rows(scan: Scan, key: Mapping[str, Any]) -> list[JudgedRow]:
    """Every stored row of a key in the order of arrival. `scan` must select exactly this key."""
    rows = sorted(_stored(scan), key=lambda each: (each[0].file.min_sequence_number, each[1]))
    outcomes, last = list[str](), -1
    late = _late(scan, [row for *_, row in rows])
    for place, ((_, _, lives, _), is_late) in enumerate(zip(rows, late, strict=True)):
        if is_late:
            outcomes.append("skipped: it arrived after a newer row")
            continue
        if last >= 0:
            outcomes[last] = "replaced by a later row"
        last = place
        outcomes.append(THE_ROW if lives else DELETE)
    return [
        (entry, row.with_columns(_kind_of(told)), told)
        for (entry, _, _, row), told in zip(rows, outcomes, strict=True)
    ]


def _late(scan: Scan, rows: list[pl.DataFrame]) -> list[bool]:
    """Whether each row is behind an earlier one."""
    comparison = scan.view.comparison
    if not rows or not comparison.fields:
        return [False] * len(rows)
    names = list(comparison.names)
    numbers = comparison.numbers(
        to_arrow(pl.concat([row.select(names) for row in rows]), arrow_schema(comparison.fields))
    )
    before = np.full_like(numbers, NOTHING)
    before[:, 1:] = np.maximum.accumulate(numbers, axis=1)[:, :-1]
    late = np.any((numbers < before) & comparison.says(numbers), axis=0)
    return [bool(each) for each in late]


def _kind_of(outcome: str) -> pl.Expr:
    # No kind is stored, so for a row followed by others, the kind is unknown.
    kind = RowKind.DELETE if outcome == DELETE else RowKind.INSERT
    return pl.lit(int(kind), pl.Int8).alias(VALUE_KIND)


def _stored(scan: Scan) -> Iterator[tuple[ManifestEntry, int, bool, pl.DataFrame]]:
    """The rows of the key: file, position, whether the row is live, and the row itself."""
    view = scan.view
    columns = (*view.schema.names, POSITION)
    for bucket in scan.plan.buckets:
        stored = StoredVersions(view, bucket.partition, columns, scan.predicate)
        for file in bucket.files:
            living = {*stored.of_file(file)[POSITION].to_list()}
            for row in stored.of_file(PlannedFile(file.entry, has_kinds=False)).iter_slices(1):
                position = int(row[POSITION].item())
                number = file.meta.min_sequence_number + position
                lives = position in living
                number_of_row = pl.lit(number, pl.Int64).alias(SEQUENCE_NUMBER)
                yield file.entry, position, lives, row.drop(POSITION).with_columns(number_of_row)
