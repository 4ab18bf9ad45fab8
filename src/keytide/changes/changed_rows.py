"""The first changes between two snapshots, row by row, for a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa

from keytide.base.row_kind import ROW_KIND
from keytide.changes.change_scan import Changes
from keytide.read.scan import RowSource
from keytide.show.cells import Cell, columns_of, rows_of
from keytide.show.story import ChangedRow, ChangedRows

__all__ = ["ROWS_MAX", "changed_rows", "first_changes"]

ROWS_MAX = 200
"""The maximum number of changes on a page."""


def changed_rows(changes: Changes, start: int | str, most: int = ROWS_MAX) -> ChangedRows:
    """At most `most` changes, from the first on. `start` is the start as the user named it.

    Reads no further. Raises like `Changes.to_batches`.
    """
    told = changes.explain()
    return first_changes(changes, str(start), str(told.end_id), changes.mode, str(told), most)


def first_changes(
    changes: RowSource, start: str, end: str, mode: str, found_by: str, most: int = ROWS_MAX
) -> ChangedRows:
    """The first of some rows with their kinds. Raises like `RowSource.to_batches`."""
    first, has_more = _first(changes.to_batches(), changes.schema, most)
    place = first.schema.get_field_index(ROW_KIND)
    kinds = first.column(place).to_pylist()
    values = first.remove_column(place)
    rows = tuple(_rows(kinds, rows_of(values)))
    return ChangedRows(
        start, end, mode, columns_of(values.schema), rows,
        tuple(sorted(Counter(kinds).items())), has_more, found_by,
    )  # fmt: skip


def _first(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, most: int
) -> tuple[pa.Table, bool]:
    taken, left = list[pa.RecordBatch](), most + 1
    for batch in batches:
        taken.append(batch.slice(0, left))
        left -= min(left, batch.num_rows)
        if not left:
            break
    rows = pa.Table.from_batches(taken, schema)
    return rows.slice(0, most), rows.num_rows > most


def _rows(kinds: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> Iterator[ChangedRow]:
    """The rows. In an after image, the cells are marked that differ from the before image."""
    before: tuple[Cell, ...] | None = None
    for kind, cells in zip(kinds, rows, strict=True):
        compared = before if kind == "+U" and before is not None else cells
        marks = tuple(old != new for old, new in zip(compared, cells, strict=True))
        yield ChangedRow(kind, cells, marks)
        before = cells if kind == "-U" else None
