"""Events of a source as rows for the target of a flow."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from keytide.cdc.flow import Flow
from keytide.errors import InvalidError
from keytide.format.arrow import from_arrow
from keytide.row_kind import ROW_KIND
from keytide.table.conditions.condition import predicate_of
from keytide.table.conditions.matching import row_filter
from keytide.table.conditions.predicate import Predicate, columns_of
from keytide.types import Field, type_from_arrow

__all__ = ["delete_predicate", "fields_to_judge", "rows_of_events"]


def rows_of_events(events: pa.Table, flow: Flow) -> pa.Table:
    """The events as rows of the flow's target, with `_row_kind`; values as they came.

    Raises `InvalidError` or `NotFoundError` for a condition that does not fit the source.
    """
    request = flow.request
    if ROW_KIND in events.column_names:  # an image of before says nothing that another does not
        events = events.filter(pc.not_equal(events[ROW_KIND], "-U"))
    columns = {name: events.column(name) for name in (*request.keys, *flow.names)}
    if flow.keeps_history:
        by = zip(flow.starts, request.sequence_by, strict=True)
        columns |= {start: events.column(name) for start, name in by}
    columns[ROW_KIND] = _kinds(events, flow)
    return pa.table(columns)


def _kinds(events: pa.Table, flow: Flow) -> pa.Array | pa.ChunkedArray:
    predicate = delete_predicate(flow)
    if predicate is None:
        if ROW_KIND in events.column_names:
            return events[ROW_KIND]
        return pa.repeat(pa.scalar("+I"), events.num_rows)
    fields = fields_to_judge(flow, predicate)
    frame = from_arrow(_as_judged(events, fields))
    deletes = frame.select(row_filter(predicate, fields).fill_null(False)).to_series().to_arrow()
    return pc.if_else(deletes, "-D", "+I")


def delete_predicate(flow: Flow) -> Predicate | None:
    """The condition that tells deletes, in the types of the source; None where there is none."""
    if flow.request.deletes is None:
        return None
    return predicate_of(flow.request.deletes, _known_fields(flow), flow.request.target)


def fields_to_judge(flow: Flow, predicate: Predicate) -> list[Field]:
    """The columns of the source that a condition is about."""
    asked = columns_of(predicate)
    return [field for field in _known_fields(flow) if field.name in asked]


def _known_fields(flow: Flow) -> list[Field]:
    found = []
    for column in flow.source:
        try:
            found.append(Field(-1, column.name, type_from_arrow(column.type)))
        except InvalidError:  # noqa: PERF203  # only a condition about it needs a type
            continue
    return found


def _as_judged(events: pa.Table, fields: list[Field]) -> pa.Table:
    columns = {f.name: events.column(f.name).cast(f.type.to_arrow()) for f in fields}
    return pa.table(columns) if columns else events.select([])
