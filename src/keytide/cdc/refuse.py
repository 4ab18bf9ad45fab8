"""Messages that a table could not merge, told from those that it can before anything is written."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from keytide.cdc.feed import ORDINAL_COLUMN, REJECTED_SCHEMA, Decoded
from keytide.row_kind import ROW_KIND
from keytide.table.state.view import TableView
from keytide.table.write.refusals import why_refused
from keytide.table.write.rows import typed_rows

__all__ = ["without_unmergeable"]


def without_unmergeable(
    decoded: Decoded, messages: pa.Array | pa.ChunkedArray, view: TableView
) -> Decoded:
    """The batch with messages rejected whose rows the table's engine could not merge.

    A message is rejected as a whole. `messages` are those that were decoded.
    """
    rows = decoded.rows
    columns = [n for n in rows.column_names if n in (*view.schema.names, ROW_KIND)]
    given = typed_rows(rows.select(columns), view.schema, view.options, view.name)
    why = why_refused(given.frame, view)
    if why.null_count() == len(why):
        return decoded
    ordinals = pl.Series("ordinal", values=rows[ORDINAL_COLUMN])
    refused = pl.DataFrame([ordinals, why.alias("reason")]).drop_nulls("reason")
    refused = refused.unique("ordinal", keep="first", maintain_order=True)
    places = refused["ordinal"].to_arrow()
    rejected = pa.table(
        [messages.cast(pa.binary()).take(places), refused["reason"].to_arrow(), places],
        names=REJECTED_SCHEMA.names,
    ).cast(REJECTED_SCHEMA)
    accepted = ~ordinals.is_in(refused["ordinal"].implode())
    return decoded._replace(
        rows=rows.filter(accepted.to_arrow()),
        rejected=pa.concat_tables([decoded.rejected, rejected]),
    )
