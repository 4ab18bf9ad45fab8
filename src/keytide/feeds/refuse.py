"""Adapts decoded changes to a table: keys in stored form, and rejection of unmergeable messages."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from keytide.base.row_kind import ROW_KIND
from keytide.feeds.feed import ORDINAL_COLUMN, REJECTED_SCHEMA, Decoded
from keytide.feeds.omitted import OMITTED
from keytide.feeds.places import check_places
from keytide.snapshot.state import TableView
from keytide.write.input_rows import typed_rows
from keytide.write.refusals import why_refused

__all__ = ["as_table_takes"]


def as_table_takes(
    decoded: Decoded, messages: pa.Array | pa.ChunkedArray, view: TableView
) -> Decoded:
    """The batch with its keys in stored form, without messages that the engine could not merge.

    Rows are assigned to buckets, and find their stored versions, by the bytes of their keys, so
    different forms of the same CHAR must be unified first. A message is rejected as a whole.
    `messages` are those that were decoded. Raises `DataError` for changes without a place, as
    `check_places` does.
    """
    check_places(decoded)
    columns = [n for n in decoded.rows.column_names if n in (*view.schema.names, ROW_KIND)]
    given_rows = decoded.rows.select(columns)
    if OMITTED in view.schema.by_name:  # the decoder does not know it
        type_ = view.schema.field(OMITTED).type.to_arrow()
        given_rows = given_rows.append_column(OMITTED, pa.nulls(given_rows.num_rows, type_))
    given = typed_rows(given_rows, view.schema, view.options, view.name)
    rows = decoded.rows
    for name in view.schema.primary_keys:
        rows = rows.set_column(rows.column_names.index(name), name, given.table[name])
    why = why_refused(given.frame, view, given.refusals)
    if why.null_count() == len(why):
        return decoded._replace(rows=rows)
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
