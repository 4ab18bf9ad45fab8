"""Changes without a column for the row kind: only new rows, or an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.row_kind import ROW_KIND
from keytide.errors import UnsupportedError
from keytide.spark.read import BinTask

__all__ = ["NewRowsTask"]


@dataclass(frozen=True)
class NewRowsTask:
    """Reads a bin of changes, checks their kinds, and returns the rows without the kind."""

    changes: BinTask

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows. Runs on executors.

        Raises as `changes`, and `UnsupportedError` for a change that is not a new row.
        """
        for batch in self.changes.batches():
            kinds = batch.column(ROW_KIND)
            other = pc.filter(kinds, pc.not_equal(kinds, "+I"))
            if len(other):
                raise UnsupportedError(
                    f"table {self.changes.table}: a row was changed or deleted ({other[0]}), but "
                    f"the stream has no column {ROW_KIND!r} and can emit only new rows. Start "
                    "another stream with it, with option('readChangeFeed', 'true')"
                )
            yield batch.drop_columns([ROW_KIND])
