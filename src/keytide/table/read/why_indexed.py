"""Why a key's row is what it is in a table with an index of keys: nothing is merged there.

The rows of a key are judged in the order in which they came, as writes judge them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from keytide.format.data_file import POSITION
from keytide.format.manifest import ManifestEntry
from keytide.index.comparison import comparison_numbers
from keytide.merge.order import SEQUENCE_NUMBER, VALUE_KIND
from keytide.row_kind import RowKind
from keytide.table.read.runs import StoredVersions
from keytide.table.read.scan import Scan
from keytide.table.read.sections import PlannedFile

__all__ = ["THE_ROW", "JudgedRow", "judged_rows"]

THE_ROW = "the row"
DELETE = "a delete, by which rows that come late are judged"

JudgedRow = tuple[ManifestEntry, pl.DataFrame, str]
"""The file of a row, the row with its number and kind, and what became of it."""


def judged_rows(scan: Scan, key: Mapping[str, Any]) -> list[JudgedRow]:
    """Every stored row of a key, which is all that `scan` asks for, in the order of arrival."""
    rows = sorted(_stored(scan), key=lambda each: (each[0].file.min_sequence_number, each[1]))
    freshest, last = None, -1
    outcomes: list[str] = []
    for place, (_, _, lives, comparison, _) in enumerate(rows):
        if freshest is not None and comparison < freshest:
            outcomes.append("left out: it came after a fresher one")
            continue
        if last >= 0:
            outcomes[last] = "replaced by a later one"
        freshest, last = comparison, place
        outcomes.append(THE_ROW if lives else DELETE)
    return [
        (entry, row.with_columns(_kind_of(told)), told)
        for (entry, _, _, _, row), told in zip(rows, outcomes, strict=True)
    ]


def _kind_of(outcome: str) -> pl.Expr:
    # No kind is stored: of a row that others came after it cannot be told.
    kind = RowKind.DELETE if outcome == DELETE else RowKind.INSERT
    return pl.lit(int(kind), pl.Int8).alias(VALUE_KIND)


def _stored(scan: Scan) -> Iterator[tuple[ManifestEntry, int, bool, int, pl.DataFrame]]:
    """The rows of the key: file, position, whether it lives, what it is compared by, and itself."""
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
                numbered = row.drop(POSITION).with_columns(number_of_row)
                yield file.entry, position, lives, _comparison(row, scan), numbered


def _comparison(row: pl.DataFrame, scan: Scan) -> int:
    options = scan.view.options
    if not options.sequence_field:
        return 0
    values = row.to_arrow(compat_level=pl.CompatLevel.oldest()).column(options.sequence_field[0])
    is_descending = options.sequence_sort_order == "descending"
    return int(np.asarray(comparison_numbers(values, descending=is_descending))[0])
