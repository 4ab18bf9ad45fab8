"""Values, rows, times and counts as text.

JSON keeps every digit and every byte. Integers and floats are JSON numbers. Decimals are strings
with their full scale. NaN and infinities are the strings "NaN", "Infinity" and "-Infinity". Bytes
are base64. Dates, times and timestamps are ISO 8601, with an offset if the type has a time zone.
Years have four digits, or more outside of 0 to 9999, and years before 0 have a minus sign. An
ARRAY or VECTOR is an array, a ROW is an object, and a MAP or MULTISET is an object keyed by the
string form of the key.

Times are strings in UTC.

>>> moment_text(1769860800123)
'2026-01-31 12:00:00.123Z'

CSV quotes every string, so an empty string (`""`) and NULL (nothing) are different. Nested values
are JSON inside of CSV.
"""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from typing import Literal, TypeAlias

import polars as pl
import pyarrow as pa
from pyarrow import csv

from keytide.base.arguments import shown
from keytide.errors import InvalidError, UnsupportedError

# -- values as strings, column by column -----------------------------------------------------------


def json_text(value: pl.Expr, type: pa.DataType) -> pl.Expr:
    """The column as JSON. A NULL row stays NULL, and a NULL inside of a value becomes `null`.

    REQUIRES: `value` has the Polars type for `type`.
    """
    if pa.types.is_map(type):
        key, item = pl.element().struct.field("key"), pl.element().struct.field("value")
        text = json_text if pa.types.is_nested(type.key_type) else _plain_text
        entry = pl.concat_str(
            _json_string(text(key, type.key_type)),
            pl.lit(":"),
            json_text(item, type.item_type).fill_null("null"),
        )
        # Polars evaluates expressions over list elements, but not over map entries.
        sides = {"key": type.key_type, "value": type.item_type}
        dtypes = {name: pl.Series(pa.array([], each)).dtype for name, each in sides.items()}
        entries = value.cast(pl.List(pl.Struct(dtypes))).list.eval(entry)
        return _wrapped("{", entries.list.join(","), "}")
    if pa.types.is_fixed_size_list(type):
        return json_text(value.arr.to_list(), pa.list_(type.value_type))
    if pa.types.is_list(type):
        element = json_text(pl.element(), type.value_type).fill_null("null")
        return _wrapped("[", value.list.eval(element).list.join(","), "]")
    if pa.types.is_struct(type):
        parts = []
        for index, field in enumerate(type):
            name = ("," if index else "{") + json.dumps(field.name, ensure_ascii=False) + ":"
            parts += [
                pl.lit(name),
                json_text(value.struct.field(field.name), field.type).fill_null("null"),
            ]
        json_object = pl.concat_str(*parts, pl.lit("}")) if parts else pl.lit("{}")
        return pl.when(value.is_not_null()).then(json_object)
    if pa.types.is_boolean(type) or pa.types.is_integer(type):
        return value.cast(pl.String)
    if pa.types.is_floating(type):
        non_finite = (
            pl.when(value.is_nan())
            .then(pl.lit('"NaN"'))
            .when(value > 0)
            .then(pl.lit('"Infinity"'))
            .when(value < 0)
            .then(pl.lit('"-Infinity"'))
        )
        return pl.when(value.is_finite()).then(value.cast(pl.String)).otherwise(non_finite)
    if pa.types.is_string(type):
        return _json_string(value)
    return _wrapped('"', _plain_text(value, type), '"')


def cell_text(value: pl.Expr, type: pa.DataType) -> pl.Expr:
    """The column in readable form: JSON for nested values, plain text for others.

    Date and time are separated by a space. Timestamps with time zone are in UTC and end in Z.
    """
    if pa.types.is_nested(type):
        return json_text(value, type)
    if not pa.types.is_timestamp(type):
        return _plain_text(value, type)
    if type.tz is None:
        return _moment_text(value, type, "iso")
    in_utc = value.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return pl.concat_str(_moment_text(in_utc, pa.timestamp(type.unit), "iso"), pl.lit("Z"))


def held_by_python(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame, in which columns with a time that Python's own types cannot hold are strings.

    These are times outside the years 1 to 9999. Values inside of nested ones are not looked at.
    """
    strange = {
        name: type_
        for name, dtype in frame.schema.items()
        if (type_ := _moment_type(dtype)) is not None
        and not frame.select(_is_usual(pl.col(name), type_).all()).item()
    }
    return frame.with_columns(cell_text(pl.col(n), type_) for n, type_ in strange.items())


def visible(text: str) -> str:
    """The text with non-printable characters escaped.

    A value or a name must not send control sequences to the terminal.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _json_string(value: pl.Expr) -> pl.Expr:
    # Polars escapes a string only as a field of an object.
    encoded = pl.struct(value.alias("v")).struct.json_encode()
    return pl.when(value.is_not_null()).then(
        encoded.str.strip_prefix('{"v":').str.strip_suffix("}")
    )


def _plain_text(value: pl.Expr, type: pa.DataType) -> pl.Expr:
    if pa.types.is_binary(type):
        return value.bin.encode("base64")
    if pa.types.is_date(type) or pa.types.is_timestamp(type):
        return _moment_text(value, type, "iso:strict")
    if pa.types.is_temporal(type):
        return value.dt.to_string("iso:strict")
    return value.cast(pl.String)


_DAY_S = 24 * 60 * 60
_TICKS_OF_DAY = {"s": _DAY_S * 10**3, "ms": _DAY_S * 10**3, "us": _DAY_S * 10**6,
                 "ns": _DAY_S * 10**9}  # fmt: skip
_FIRST_DAY, _DAYS_MAX = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, in days from 1970-01-01
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""After so many years, the calendar repeats itself."""


def _moment_text(value: pl.Expr, type: pa.DataType, form: str) -> pl.Expr:
    """Dates or timestamps as ISO 8601.

    Polars formats no years that it does not have in its calendar. So other years are moved by
    cycles of the calendar, and get their own number afterwards.
    """
    if pa.types.is_timestamp(type) and type.unit == "ns":
        return value.dt.to_string(form)  # all of its years have four digits
    at, is_usual = value.to_physical().cast(pl.Int64), _is_usual(value, type)
    cycle = _CYCLE_DAYS * _ticks_of_day(type)
    moved = pl.when(is_usual).then(at).otherwise(at % cycle)
    if pa.types.is_date(type):
        text = moved.cast(pl.Int32).cast(pl.Date).dt.to_string(form)
    else:
        unit = _POLARS_UNIT[type.unit]
        text = moved.cast(pl.Datetime(unit, type.tz)).dt.to_string(form)
    of_cycle = text.str.slice(0, 4).cast(pl.Int64, strict=False)
    year = of_cycle + at // cycle * _CYCLE_YEARS
    digits = year.abs().cast(pl.String).str.zfill(4)
    sign = pl.when(year < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    return pl.when(is_usual).then(text).otherwise(pl.concat_str(sign, digits, text.str.slice(4)))


def _is_usual(value: pl.Expr, type: pa.DataType) -> pl.Expr:
    """Whether dates or timestamps are in the years 1 to 9999."""
    ticks = _ticks_of_day(type)
    return (
        value.to_physical()
        .cast(pl.Int64)
        .is_between(_FIRST_DAY * ticks, (_DAYS_MAX + 1) * ticks - 1)
    )


def _ticks_of_day(type: pa.DataType) -> int:
    return 1 if pa.types.is_date(type) else _TICKS_OF_DAY[type.unit]


def _moment_type(dtype: pl.DataType) -> pa.DataType | None:
    """The Arrow type of dates, and of timestamps that can be outside the years 1 to 9999."""
    if isinstance(dtype, pl.Date):
        return pa.date32()
    if isinstance(dtype, pl.Datetime) and dtype.time_unit != "ns":
        return pa.timestamp(dtype.time_unit, dtype.time_zone)
    return None


_POLARS_UNIT: dict[str, Literal["ms", "us", "ns"]] = {
    "s": "ms", "ms": "ms", "us": "us", "ns": "ns"
}  # fmt: skip


def _wrapped(before: str, value: pl.Expr, after: str) -> pl.Expr:
    return pl.concat_str(pl.lit(before), value, pl.lit(after))


# -- times in UTC ----------------------------------------------------------------------------------


Moment: TypeAlias = datetime | date | str | int
"""A time as callers pass it. Without a time zone it is in UTC. Strings are in ISO 8601 format."""

# Epoch milliseconds are stored in 64 bits.
_MOMENTS = 2**63

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
_FIRST_MS, _END_MS = (
    (datetime(year, 1, 1, tzinfo=timezone.utc) - _EPOCH) // _MILLISECOND for year in (1000, 9000)
)


def is_moment(epoch_ms: int) -> bool:
    """Whether the time is in the years 1000 to 8999.

    A datetime supports a thousand more years on either side, so any duration can be added or
    subtracted, in any time zone.
    """
    return _FIRST_MS <= epoch_ms < _END_MS


def utc(epoch_ms: int) -> datetime:
    """The time as a datetime in UTC. REQUIRES: `is_moment`."""
    return _EPOCH + epoch_ms * _MILLISECOND


def moment_text(epoch_ms: int) -> str:
    """The time as a readable string, which every time argument accepts."""
    if not is_moment(epoch_ms):
        return str(epoch_ms)
    return f"{utc(epoch_ms).replace(tzinfo=None).isoformat(' ', 'milliseconds')}Z"


def epoch_ms(moment: Moment, table: str, what: str = "as_of") -> int:
    """A time in epoch milliseconds. Without a time zone it is in UTC.

    Raises `InvalidError`, naming the argument `what`, for a string that is not an ISO time, and for
    a number that a snapshot cannot store.
    """
    if isinstance(moment, int):
        if not -_MOMENTS <= moment < _MOMENTS:
            raise InvalidError(
                f"table {table}: {what} is {shown(moment)}, which is not a time; give epoch "
                "milliseconds, a 64-bit integer"
            )
        return moment
    if isinstance(moment, str):
        try:
            text = moment[:-1] + "+00:00" if moment.endswith("Z") else moment
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidError(
                f"table {table}: {what} is {moment!r}, which is not an ISO time; write it as "
                "'2026-01-31T12:00:00'"
            ) from None
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    try:
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError) as error:  # for example pandas' NaT, which is a datetime too
        raise InvalidError(
            f"table {table}: {what} is {shown(moment)}, which is not a time: {error}"
        ) from error


# -- rows as lines: JSON lines and CSV -------------------------------------------------------------


def check_spelled(schema: pa.Schema) -> None:
    """Raise `UnsupportedError` for a column of intervals or unions, which have no text format."""
    for field in schema:
        is_interval = pa.types.is_interval(field.type)
        if is_interval or has_union(field.type):
            unwritten = "intervals" if is_interval else "values of a UNION"
            raise UnsupportedError(
                f"column {field.name!r} contains {unwritten}, which cannot be written; CAST them "
                "AS STRING"
            )


def has_union(type_: pa.DataType) -> bool:
    """Whether a type is a UNION, or contains one."""
    parts = (type_.field(place).type for place in range(type_.num_fields))
    return pa.types.is_union(type_) or any(map(has_union, parts))


def json_lines(batch: pa.RecordBatch) -> bytes:
    """Rows as JSON objects, one per line."""
    parts = []
    for index, field in enumerate(batch.schema):
        name = ("," if index else "{") + json.dumps(field.name, ensure_ascii=False) + ":"
        parts += [pl.lit(name), json_text(pl.nth(index), field.type).fill_null("null")]
    lines = frame_of(batch).select(pl.concat_str(*parts, pl.lit("}\n")).str.join(""))
    return str(lines.item()).encode()


def csv_header(schema: pa.Schema) -> bytes:
    """The header line with the column names."""
    return _csv(
        pa.schema([(name, pa.string()) for name in schema.names]).empty_table(), header=True
    )


def csv_lines(batch: pa.RecordBatch) -> bytes:
    """Rows as lines without a header."""
    columns = []
    for column, field in zip(batch.columns, batch.schema, strict=True):
        # Arrow can write all types except nested ones and bytes.
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
            frame = frame_of(pa.table([column], names=["value"]))
            column = frame.select(value=cell_text(pl.nth(0), field.type)).to_arrow()["value"]
        columns.append(column)
    return _csv(pa.table(columns, names=batch.schema.names), header=False)


def frame_of(rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """Rows as a frame. Its columns have their places as names, because two may have one name."""
    frame = pl.from_arrow(rows.rename_columns([str(place) for place in range(rows.num_columns)]))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _csv(table: pa.Table, *, header: bool) -> bytes:
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=header))
    return bytes(sink.getvalue())


# -- counts in messages ----------------------------------------------------------------------------


def counted(count: int, noun: str) -> str:
    """A count with its noun, whose plural ends in s.

    >>> counted(1, "row"), counted(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
