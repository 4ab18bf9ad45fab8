"""Converts events of a source to rows for the target of a flow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.errors import InvalidError
from keytide.feeds.flow import Flow
from keytide.format.arrow import from_arrow
from keytide.predicate.condition import predicate_of
from keytide.predicate.matching import row_filter
from keytide.predicate.predicate import Predicate, columns_of
from keytide.types import Field, type_from_arrow
from keytide.write.input_rows import parsed_kinds

__all__ = [
    "delete_predicate",
    "fields_to_judge",
    "rows_of_events",
    "split_truncates",
    "truncate_predicate",
    "without_place",
]


def split_truncates(events: pa.Table, flow: Flow) -> tuple[pa.Table, pa.Table]:
    """The row events, and the places in the order of the events that truncate the target.

    Raises `InvalidError` if a truncating event has no place, and as `rows_of_events`.
    """
    order = list(flow.request.sequence_by)
    predicate = truncate_predicate(flow)
    if predicate is None:
        return events, events.select(order).slice(0, 0)
    truncates = _meeting(events, predicate, flow)
    places = events.filter(truncates).select(order)
    if any(column.null_count for column in places.columns):
        raise without_place(flow)
    return events.filter(pc.invert(truncates)), places


def without_place(flow: Flow) -> InvalidError:
    """The error for a truncating event without a place, as nobody can say what precedes it."""
    return InvalidError(
        f"Lake.auto_cdc: an event that truncates {flow.request.target} has NULL in "
        f"{' or '.join(flow.request.sequence_by)}, so its order is unknown; set a value"
    )


def rows_of_events(events: pa.Table, flow: Flow) -> pa.Table:
    """Convert row events to rows of the flow's target, with `_row_kind` and unconverted values.

    Raises `InvalidError` for NULL or another string as a row kind, and `InvalidError` or
    `NotFoundError` for a condition that does not match the source.
    """
    request = flow.request
    if ROW_KIND in events.column_names:
        kinds = parsed_kinds(events[ROW_KIND], ROW_KIND, request.target)
        # Before images contain no additional information.
        events = events.filter(pc.not_equal(kinds, int(RowKind.UPDATE_BEFORE)))
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
    return pc.if_else(_meeting(events, predicate, flow), "-D", "+I")


def _meeting(events: pa.Table, predicate: Predicate, flow: Flow) -> pa.Array:
    """Which events match a condition. NULL is no match."""
    fields = fields_to_judge(flow, predicate)
    frame = from_arrow(_as_judged(events, fields))
    return frame.select(row_filter(predicate, fields).fill_null(False)).to_series().to_arrow()


def delete_predicate(flow: Flow) -> Predicate | None:
    """The condition for deletes, in the types of the source. None if there is none."""
    return _predicate(flow.request.deletes, flow)


def truncate_predicate(flow: Flow) -> Predicate | None:
    """The condition for truncates, in the types of the source. None if there is none."""
    return _predicate(flow.request.truncates, flow)


def _predicate(condition: Any, flow: Flow) -> Predicate | None:
    if condition is None:
        return None
    return predicate_of(condition, _known_fields(flow), flow.request.target)


def fields_to_judge(flow: Flow, predicate: Predicate) -> list[Field]:
    """The columns of the source that a condition uses."""
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
