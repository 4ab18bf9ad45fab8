"""SQL that reads plain files with DuckDB's own Parquet reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from keytide.base.row_kind import RowKind
from keytide.format.data_file import VALUE_KIND
from keytide.format.deletion_vector import dead_positions
from keytide.read.plain_files import (
    PlainShape,
    PlainSplit,
    has_floats,
    local_file,
    split_plain,
    stored_fields,
)
from keytide.read.scan import Scan
from keytide.read.sections import PlannedFile
from keytide.snapshot.view import TableView
from keytide.types import AtomicType, Field

__all__ = ["DEAD_ROWS", "dead_rows", "name", "plain_query", "split_for_duckdb", "text"]

DEAD_ROWS = pa.schema({"file": pa.uint64(), "row": pa.int64()})
"""The columns that identify a deleted row: the number of the file, and the position in it."""

_PLACES = ("file_index", "file_row_number")
_PATTERNS = frozenset("*?[]\\")


def split_for_duckdb(scan: Scan) -> PlainSplit:
    """The files of a scan for DuckDB's own reader, and all others. Raises as `Scan.tasks`."""
    view = scan.view

    def takes(file: PlannedFile) -> bool:
        path = local_file(view, file)
        names = {name.lower() for name in view.schemas[file.meta.schema_id].names}
        hides_places = file.dead_rows is not None and bool(names & {*_PLACES})
        return path is not None and not hides_places and not _PATTERNS & {*str(path)}

    return split_plain(scan, _reads, takes)


def _reads(type_: AtomicType) -> bool:
    """Whether DuckDB's own reader reads a stored type as Keytide does."""
    # Nanoseconds are stored as INT96, which DuckDB reads as microseconds.
    return not (type_.root in ("TIMESTAMP", "TIMESTAMP_LTZ") and (type_.precision or 0) > 6)


def plain_query(
    view: TableView,
    shape: PlainShape,
    files: Sequence[PlannedFile],
    columns: Sequence[tuple[Field, str]],
    dead: str,
) -> str:
    """A query of some columns, each with its DuckDB type, in files of one shape.

    `dead` is the name of the relation with the deleted rows, see `DEAD_ROWS`.
    """
    stored = stored_fields(view, shape, [field for field, _ in columns])
    shown = [
        f"CAST({_value(old)} AS {type_}) AS {name(field.name)}"
        for old, (field, type_) in zip(stored, columns, strict=True)
    ]
    paths = ", ".join(text(str(local_file(view, file))) for file in files)
    query = (
        f"SELECT {', '.join(shown)} FROM read_parquet([{paths}], hive_partitioning = false, "
        f"union_by_name = false) AS stored"
    )
    if shape.has_dead_rows:
        places = zip(_PLACES, DEAD_ROWS.names, strict=True)
        same = " AND ".join(f"stored.{place} = dead.{other}" for place, other in places)
        query += f" ANTI JOIN {dead} AS dead ON {same}"
    if shape.has_retracts:
        kinds = f"{RowKind.INSERT:d}, {RowKind.UPDATE_AFTER:d}"
        query += f" WHERE stored.{name(VALUE_KIND)} IN ({kinds})"
    return query


def dead_rows(view: TableView, files: Sequence[PlannedFile]) -> Iterator[pa.RecordBatch]:
    """The deleted rows of files, in batches with the columns of `DEAD_ROWS`. Raises `DataError`."""
    for number, file in enumerate(files):
        if file.dead_rows is not None:
            rows = dead_positions(view.store, file.dead_rows)
            numbers = np.full(len(rows), number, np.uint64)
            yield pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(rows)], schema=DEAD_ROWS)


def _value(old: Field | None) -> str:
    """The expression for a stored column in a query."""
    if old is None:
        return "NULL"
    column = f"stored.{name(old.name)}"
    if not has_floats(old.type):
        return column
    # DuckDB also evaluates conditions on row-group bounds. NaN is not included in Parquet's bounds,
    # but DuckDB treats it as the largest number, so it would skip row groups that contain NaN. It
    # infers no bounds for a CASE.
    return f"CASE WHEN {column} IS NULL THEN NULL ELSE {column} END"


def name(value: str) -> str:
    """A name in DuckDB's SQL."""
    return '"' + value.replace('"', '""') + '"'


def text(value: str) -> str:
    """A string in SQL."""
    return "'" + value.replace("'", "''") + "'"
