"""The watermark that a statement stores in the versions that it appends (rule R21).

A version copies the watermark of the row that it replaces. With `statement-time` it gets the time
at which its statement began, if that is later. If the statement sets the column, that value is
stored. With `explicit`, a statement must set it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from keytide.dml.own_tables import ChangedByKey
from keytide.errors import InvalidError, UnsupportedError
from keytide.options import keys
from keytide.types import AtomicType


def refuse_delete(table: ChangedByKey) -> None:
    """Raise `UnsupportedError` if a delete would have to set the watermark."""
    if table.view.options.dml_watermark == "explicit":
        raise UnsupportedError(
            f"{table}: '{keys.UPSERT_DML_WATERMARK}' is 'explicit', but a DELETE cannot set "
            f"{', '.join(map(repr, table.view.options.watermark_key))}; write rows of kind -D, or "
            "UPDATE a tombstone column"
        )


def refuse_unset(table: ChangedByKey, updated: Sequence[str]) -> None:
    """Raise `InvalidError` if an UPDATE does not set a watermark column that it must set."""
    columns = table.view.options.watermark_key
    if table.view.options.dml_watermark == "explicit" and not set(columns) <= set(updated):
        raise InvalidError(
            f"{table}: '{keys.UPSERT_DML_WATERMARK}' is 'explicit', so an UPDATE must set "
            f"{', '.join(map(repr, columns))}"
        )


def watermarks(
    table: ChangedByKey, old: pa.RecordBatch, updated: Sequence[str] = ()
) -> Mapping[str, pa.Array]:
    """The watermark columns of versions that replace `old`. Empty if they are copied or set."""
    columns = table.view.options.watermark_key
    if table.view.options.dml_watermark != "statement-time" or set(columns) & set(updated):
        return {}
    assert table.began_ns is not None
    (name,) = columns
    type_ = table.view.schema.field(name).type
    assert isinstance(type_, AtomicType)
    # The column's precision.
    step = 10 ** (9 - (type_.precision or 0))
    began = pa.scalar(table.began_ns // step * step, pa.timestamp("ns"))
    ticks = began.cast(pa.timestamp(type_.to_arrow().unit)).cast(pa.int64())
    stored = old.column(name)
    least = pc.add(stored.view(pa.int64()), table.fresher_by)
    return {name: pc.max_element_wise(least, ticks).view(stored.type)}
