"""Values as strings, column by column: lossless JSON, and plain cells for people.

JSON keeps every digit and every byte. Integers and floats are JSON numbers. Decimals are strings
with their full scale. NaN and infinities are the strings "NaN", "Infinity" and "-Infinity". Bytes
are base64. Dates, times and timestamps are ISO 8601, with an offset if the type has a time zone. An
ARRAY or VECTOR is an array, a ROW is an object, and a MAP or MULTISET is an object keyed by the
string form of the key.
"""

from __future__ import annotations

import json

import polars as pl
import pyarrow as pa

__all__ = ["cell_text", "json_text", "visible"]


def json_text(value: pl.Expr, type: pa.DataType) -> pl.Expr:
    """The column as JSON. A NULL row stays NULL, and a NULL inside of a value becomes `null`.

    REQUIRES: `value` has the Polars type for `type`.
    """
    if pa.types.is_map(type):
        key, item = pl.element().struct.field("key"), pl.element().struct.field("value")
        entry = pl.concat_str(
            _json_key(key, type.key_type), pl.lit(":"), _json_or_null(item, type.item_type)
        )
        entries = value.cast(_entries_type(type)).list.eval(entry)
        return _wrapped("{", entries.list.join(","), "}")
    if pa.types.is_fixed_size_list(type):
        return json_text(value.arr.to_list(), pa.list_(type.value_type))
    if pa.types.is_list(type):
        element = _json_or_null(pl.element(), type.value_type)
        return _wrapped("[", value.list.eval(element).list.join(","), "]")
    if pa.types.is_struct(type):
        return pl.when(value.is_not_null()).then(_json_object(value, type))
    if pa.types.is_boolean(type) or pa.types.is_integer(type):
        return value.cast(pl.String)
    if pa.types.is_floating(type):
        return pl.when(value.is_finite()).then(value.cast(pl.String)).otherwise(_non_finite(value))
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
        return value.dt.to_string("iso")
    in_utc = value.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return pl.concat_str(in_utc.dt.to_string("iso"), pl.lit("Z"))


def visible(text: str) -> str:
    """The text with non-printable characters escaped.

    A value or a name must not send control sequences to the terminal.
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _entries_type(type: pa.MapType) -> pl.List:
    # Polars evaluates expressions over list elements, but not over map entries.
    key, item = (pl.Series(pa.array([], each)).dtype for each in (type.key_type, type.item_type))
    return pl.List(pl.Struct({"key": key, "value": item}))


def _json_or_null(value: pl.Expr, type: pa.DataType) -> pl.Expr:
    return json_text(value, type).fill_null("null")


def _json_object(value: pl.Expr, type: pa.StructType) -> pl.Expr:
    parts = []
    for index, field in enumerate(type):
        name = ("," if index else "{") + json.dumps(field.name, ensure_ascii=False) + ":"
        parts += [pl.lit(name), _json_or_null(value.struct.field(field.name), field.type)]
    return pl.concat_str(*parts, pl.lit("}")) if parts else pl.lit("{}")


def _json_key(value: pl.Expr, type: pa.DataType) -> pl.Expr:
    return _json_string(
        json_text(value, type) if pa.types.is_nested(type) else _plain_text(value, type)
    )


def _json_string(value: pl.Expr) -> pl.Expr:
    # Polars escapes a string only as a field of an object.
    encoded = pl.struct(value.alias("v")).struct.json_encode()
    return pl.when(value.is_not_null()).then(
        encoded.str.strip_prefix('{"v":').str.strip_suffix("}")
    )


def _non_finite(value: pl.Expr) -> pl.Expr:
    return (
        pl.when(value.is_nan())
        .then(pl.lit('"NaN"'))
        .when(value > 0)
        .then(pl.lit('"Infinity"'))
        .when(value < 0)
        .then(pl.lit('"-Infinity"'))
    )


def _plain_text(value: pl.Expr, type: pa.DataType) -> pl.Expr:
    if pa.types.is_binary(type):
        return value.bin.encode("base64")
    if pa.types.is_temporal(type):
        return value.dt.to_string("iso:strict")
    return value.cast(pl.String)


def _wrapped(before: str, value: pl.Expr, after: str) -> pl.Expr:
    return pl.concat_str(pl.lit(before), value, pl.lit(after))


def _visible(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
