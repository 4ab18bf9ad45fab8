"""Flows of change events into a table: the request, the rows of events, and the target table.

The names are those of AUTO CDC in Spark's and Databricks' pipelines. The target is created for a
flow, or checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass, field
from keytide.base.process import cached_property
from keytide.base.row_kind import ROW_KIND, RowKind
from keytide.catalogs.catalog import Catalog, NewTable
from keytide.catalogs.schema_changes import alter_table
from keytide.definition.schema_evolution import SetOption
from keytide.errors import InvalidError, NotFoundError, UnsupportedError
from keytide.feeds.omitted_values import OmittedValues
from keytide.feeds.scd import DELETED_AT, IGNORED_NULLS, SEQUENCES, History, LatestRow
from keytide.format.arrow import from_arrow
from keytide.format.schema import TableSchema
from keytide.merge.order import order_of
from keytide.options import TableOptions, keys, stored_names
from keytide.predicate.condition import predicate_of
from keytide.predicate.predicate import Predicate, columns_of, row_filter
from keytide.snapshot.state import TableView
from keytide.snapshot.stored_table import StoredTable
from keytide.types import STRING, ArrayType, Field, RowType, type_from_arrow
from keytide.write.input_rows import parsed_kinds

# -- the request -----------------------------------------------------------------------------------


START, END = "__START_AT", "__END_AT"


def names_of(given: Any, argument: str) -> tuple[str, ...]:
    """The columns of an argument: a string, a Spark column, or several of them.

    `struct(a, b)` is two columns. Raises `InvalidError` for anything else.
    """
    if isinstance(given, str):
        found = _STRUCT.fullmatch(given.strip())
        return tuple(n.strip().strip("`") for n in found[1].split(",")) if found else (given,)
    if type(given).__module__.partition(".")[0] == "pyspark":
        found = _COLUMN.fullmatch(str(given))
        if found is not None:
            return names_of(found[1], argument)
    if isinstance(given, Sequence) and not isinstance(given, bytes) and len(given):
        return tuple(name for each in given for name in names_of(each, argument))
    raise InvalidError(
        f"Lake.auto_cdc: {argument} is {shown(given)}; expected column names: a string, a Spark "
        "column without an expression, or a list of them"
    )


_STRUCT = re.compile(r"struct\((.+)\)", re.IGNORECASE)
_COLUMN = re.compile(r"Column<'(.+)'>")


@dataclass(frozen=True)
class FlowRequest:
    """The arguments of `Lake.auto_cdc`.

    Raises `InvalidError` for contradictions, and `UnsupportedError` for combinations that are not
    supported yet.
    """

    target: str
    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    deletes: Any = None
    truncates: Any = None
    columns: tuple[str, ...] | None = None
    except_columns: tuple[str, ...] | None = None
    ignores_nulls: bool = False
    scd_type: int = 1
    tracked: tuple[str, ...] | None = None
    except_tracked: tuple[str, ...] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    merge_schema: bool = False

    def __post_init__(self) -> None:
        if self.scd_type not in (1, 2):
            raise _wrong(f"stored_as_scd_type is {shown(self.scd_type)}; expected 1 or 2")
        if self.columns is not None and self.except_columns is not None:
            raise _wrong(
                "column_list and except_column_list cannot be combined; give only one of them"
            )
        if self.tracked is not None and self.except_tracked is not None:
            raise _wrong(
                "track_history_column_list and track_history_except_column_list cannot be "
                "combined; give only one of them"
            )
        tracks = self.tracked is not None or self.except_tracked is not None
        if tracks and self.scd_type == 1:
            raise _wrong("track_history_* require SCD type 2, because SCD type 1 keeps no history")
        if self.truncates is not None and self.scd_type == 2:
            raise _wrong(
                "apply_as_truncates requires SCD type 1, because a history cannot be truncated"
            )
        latest_only = self.ignores_nulls and self.scd_type == 1
        if latest_only and len(self.sequence_by) > 1:
            raise UnsupportedError(
                "Lake.auto_cdc: ignore_null_updates with SCD type 1 requires one column in "
                f"sequence_by, found {len(self.sequence_by)}; compute a single column with the "
                "same order, or use stored_as_scd_type=2"
            )
        if latest_only and self.merge_schema:
            raise UnsupportedError(
                "Lake.auto_cdc: ignore_null_updates with SCD type 1 does not support "
                "merge_schema; create another target, or use stored_as_scd_type=2"
            )
        both = set(self.keys) & set(self.sequence_by)
        if both:
            raise _wrong(
                f"column {min(both)!r} is in keys and in sequence_by; the column that orders the "
                "events of a key cannot be part of the key"
            )

    @property
    def marks(self) -> str:
        """The string that a table stores to recognize the flow."""
        kept = {
            "keys": self.keys, "sequence_by": self.sequence_by, "scd_type": self.scd_type,
            "ignore_null_updates": self.ignores_nulls, "track_history": self.tracked,
            "track_history_except": self.except_tracked,
        }  # fmt: skip
        return json.dumps({name: value for name, value in kept.items() if value})


@dataclass(frozen=True)
class Flow:
    """A flow with a known source schema. Raises as `of` does. Can be pickled."""

    request: FlowRequest
    source: pa.Schema
    names: tuple[str, ...]
    """The columns that source and target share, without the keys."""

    @classmethod
    def of(cls, request: FlowRequest, source: pa.Schema) -> Flow:
        """The flow for a source. Raises `NotFoundError` for columns that it lacks."""
        known = [name for name in source.names if name != ROW_KIND]
        asked = {
            "keys": request.keys, "sequence_by": request.sequence_by,
            "column_list": request.columns, "except_column_list": request.except_columns,
            "track_history_column_list": request.tracked,
            "track_history_except_column_list": request.except_tracked,
        }  # fmt: skip
        for argument, named in asked.items():
            for name in named or ():
                if name not in known:
                    raise NotFoundError(
                        f"Lake.auto_cdc: {argument} names {name!r}, which is not a column of the "
                        f"source; columns: {', '.join(known)}"
                    )

        for name in known:
            if known.count(name) > 1:
                raise _wrong(f"the source has two columns named {name!r}; rename or drop one")
            if name in (START, END, IGNORED_NULLS, SEQUENCES):
                raise _wrong(
                    f"the source has a column {name!r}, which is reserved in the target; rename it"
                )
        left_out = set(request.except_columns or ())
        chosen = known if request.columns is None else request.columns
        fixed = (*request.keys, *left_out)
        names = [name for name in chosen if name not in fixed]
        if request.scd_type == 1:  # otherwise a late event could not be recognized
            names += [name for name in request.sequence_by if name not in names]
        return cls(request, source, tuple(names))

    @property
    def keeps_history(self) -> bool:
        """Whether the target has one row for each interval."""
        return self.request.scd_type == 2

    @property
    def reads_first(self) -> bool:
        """Whether the rows to write depend on stored rows."""
        return self.keeps_history or self.request.ignores_nulls

    @cached_property
    def starts(self) -> tuple[str, ...]:
        """The columns for the start of an interval, one for each ordering column."""
        return self._at(START)

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """The columns for the end of an interval."""
        return self._at(END)

    def _at(self, name: str) -> tuple[str, ...]:
        by = self.request.sequence_by
        return (name,) if len(by) == 1 else tuple(f"{name}_{column}" for column in by)

    def kernel(self, view: TableView) -> History | LatestRow | OmittedValues:
        """What computes rows from events and stored rows, for a target."""
        request, columns = self.request, view.schema.names
        if not self.reads_first:
            return OmittedValues(view.order, tuple(columns))
        order = order_of(request.keys, view.schema.fields, view.options)
        if not self.keeps_history:
            others = {*request.keys, *order.sequence, SEQUENCES}
            return LatestRow(order, tuple(name for name in columns if name not in others))
        own = {*request.keys, *self.starts, *self.ends, IGNORED_NULLS}
        values = tuple(name for name in columns if name not in own)
        default = set(values) - set(request.sequence_by) - set(request.except_tracked or ())
        tracked = default if request.tracked is None else set(request.tracked) & set(values)
        return History(order, self.ends, values, frozenset(tracked), request.ignores_nulls)

    @property
    def fields(self) -> list[Field]:
        """The columns of a target that is created for the flow."""
        rows = [self._field(name) for name in (*self.request.keys, *self.names)]
        at = [self._field(name).type.with_nullable(True) for name in self.request.sequence_by]
        if self.keeps_history:
            rows += [Field(-1, name, type_) for name, type_ in zip(self.starts, at, strict=True)]
            rows += [Field(-1, name, type_) for name, type_ in zip(self.ends, at, strict=True)]
            if self.request.ignores_nulls:
                rows.append(Field(-1, IGNORED_NULLS, ArrayType(STRING)))
        elif self.request.ignores_nulls:
            values = (*(n for n in self.names if n not in self.request.sequence_by), DELETED_AT)
            places = RowType(tuple(Field(-1, name, at[0]) for name in values))
            rows.append(Field(-1, SEQUENCES, places))
        return rows

    def _field(self, name: str) -> Field:
        try:
            return Field(-1, name, type_from_arrow(self.source.field(name).type))
        except InvalidError as error:
            raise _wrong(f"column {name!r} of the source: {error}") from error


def refuse_stream_settings(name: Any, checkpoint: Any, trigger: Any) -> None:
    """Refuse settings of a streaming query if there is no stream."""
    given = {"name": name, "checkpoint": checkpoint, "trigger": trigger}
    found = [argument for argument, value in given.items() if value is not None]
    if found:
        raise _wrong(
            f"{', '.join(found)} {'is' if len(found) == 1 else 'are'} only for streaming "
            f"DataFrames, and the source is not one; remove {'it' if len(found) == 1 else 'them'}"
        )


def _wrong(what: str) -> InvalidError:
    return InvalidError(f"Lake.auto_cdc: {what}")


# -- rows of events --------------------------------------------------------------------------------


def split_truncates(events: pa.Table, flow: Flow) -> tuple[pa.Table, pa.Table]:
    """The row events, and the places in the order of the events that truncate the target.

    Raises `InvalidError` if a truncating event has no place, and as `rows_of_events`.
    """
    order = list(flow.request.sequence_by)
    if flow.request.truncates is None:
        return events, events.select(order).slice(0, 0)
    truncates = _matching_rows(events, flow.request.truncates, flow)
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

    if request.deletes is not None:
        matches = _matching_rows(events, request.deletes, flow)
        columns[ROW_KIND] = pc.if_else(matches, "-D", "+I")
    elif ROW_KIND in events.column_names:
        columns[ROW_KIND] = events[ROW_KIND]
    else:
        columns[ROW_KIND] = pa.repeat(pa.scalar("+I"), events.num_rows)
    return pa.table(columns)


def _matching_rows(events: pa.Table, condition: Any, flow: Flow) -> pa.Array:
    """Which events match a condition. NULL is no match."""
    predicate, fields = source_condition(condition, flow)
    columns = {f.name: events.column(f.name).cast(f.type.to_arrow()) for f in fields}
    frame = from_arrow(pa.table(columns) if columns else events.select([]))
    return frame.select(row_filter(predicate, fields).fill_null(False)).to_series().to_arrow()


def source_condition(condition: Any, flow: Flow) -> tuple[Predicate, list[Field]]:
    """A condition for deletes or truncates, and the columns of the source that it uses."""
    known = []
    for column in flow.source:
        try:
            known.append(Field(-1, column.name, type_from_arrow(column.type)))
        except InvalidError:  # noqa: PERF203  # only a condition about it needs a type
            continue
    predicate = predicate_of(condition, known, flow.request.target)
    asked = columns_of(predicate)
    return predicate, [field for field in known if field.name in asked]


# -- the target table ------------------------------------------------------------------------------


MARKS = "user.auto-cdc"
"""The option in which a table stores the flow that fills it."""


def flow_target(catalog: Catalog, flow: Flow) -> StoredTable:
    """Open the target of a flow, or create it such that the order of events does not matter.

    Raises `InvalidError` for a table that the flow cannot fill, and for one that another flow
    fills, because the rows of both would be mixed.
    """
    name = flow.request.target
    if catalog.find(name) is None:
        options = {keys.SEQUENCE_FIELD: ",".join(_sequence(flow)), MARKS: flow.request.marks}
        if flow.keeps_history:
            options[keys.BUCKET_KEY] = ",".join(flow.request.keys)
        options |= stored_names(flow.request.options)
        wanted = NewTable(flow.fields, _primary_key(flow), options=options)
        catalog.create_table(name, wanted, exists_ok=True)
    table = catalog.table(name)
    problem = next(_problems(table.schema, flow), None)
    if problem is not None:
        raise InvalidError(
            f"table {table.name} cannot be the target of the flow: {problem}. Choose a new name, "
            "and the flow creates the target, or name a suitable table"
        )
    if flow.reads_first and MARKS not in table.schema.options:
        alter_table(table.metadata, [SetOption(MARKS, flow.request.marks)])
    return table


def _primary_key(flow: Flow) -> tuple[str, ...]:
    return (*flow.request.keys, *flow.starts) if flow.keeps_history else flow.request.keys


def _sequence(flow: Flow) -> tuple[str, ...]:
    # All versions of an interval have the same start, so the later commit wins. Also, a table with
    # a sequence field keeps deleted rows.
    return flow.starts if flow.keeps_history else flow.request.sequence_by


def _problems(schema: TableSchema, flow: Flow) -> Iterator[str]:
    options = TableOptions.parse(schema.options)
    key, sequence = _primary_key(flow), _sequence(flow)
    if set(schema.primary_keys) != set(key):
        found = ", ".join(schema.primary_keys) or "not set"
        yield f"its primary key is {found}, expected {', '.join(key)}"
    if options.sequence_field != sequence:
        found = ", ".join(options.sequence_field) or "not set"
        yield f"its '{keys.SEQUENCE_FIELD}' is {found}, expected {', '.join(sequence)}"
    if options.sequence_sort_order == "descending":
        yield f"the version with the smallest sequence wins ('{keys.SEQUENCE_FIELD_SORT_ORDER}')"
    # The default merge engine keeps the latest row of each key.
    if options.merge_engine != TableOptions.parse({}).merge_engine or options.ignore_delete:
        yield "it does not keep the latest row of each key and its deletes"
    if schema.is_indexed:
        yield f"it has a key index ('{keys.UPSERT_MODE}')"
    known = schema.options.get(MARKS, flow.request.marks)
    if known != flow.request.marks:
        yield f"it is the target of the flow {known}, but this flow is {flow.request.marks}"
    if flow.keeps_history:
        notes = (IGNORED_NULLS,) if flow.request.ignores_nulls else ()
        lacking = {*flow.starts, *flow.ends, *notes} - set(schema.names)
        if lacking:
            yield f"it has no column {min(lacking)}"
        apart = {*schema.partition_keys, *(options.bucket_key or schema.trimmed_primary_keys)}
        has_one_place = options.bucket == 1 and not schema.partition_keys
        if not has_one_place and not apart <= set(flow.request.keys):
            yield (
                "the rows of a key can be in several buckets or partitions; its partition columns "
                f"and '{keys.BUCKET_KEY}' must be among {', '.join(flow.request.keys)}"
            )
    elif flow.reads_first and SEQUENCES not in schema.by_name:
        yield f"it has no column {SEQUENCES}, which stores the sequence of each value"
    elif flow.reads_first and not set(schema.partition_keys) <= set(flow.request.keys):
        yield "a key can be in several partitions; the partition columns must be among the keys"
