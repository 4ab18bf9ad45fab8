"""Conversion of values as a source writes them to typed columns.

:func:`convert` never fails: a value that its column cannot hold without loss becomes NULL, which
the caller sees by comparing with the input. Nothing is rounded, truncated or wrapped: DECIMAL(4, 2)
accepts ``1.250`` but not ``1.255``, VARCHAR(3) never accepts four characters, INT accepts ``5.0``
but not ``5.5``, and TIMESTAMP(3) accepts no microseconds.

The way in which a source writes a value is its :class:`Encoding`. JSON alone does not say whether
19000 is a day or a millisecond, or whether ``"1234"`` is a number or four base64 digits. So nothing
is guessed from a value: the unit of a number follows from the column's type and the encoding alone.

In columns of strings, a stated schema says what numbers mean. A decimal is written with all places
of its scale, and a time as hours, minutes and seconds, which can be negative and more than a day.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from keytide.base.arguments import checked_members
from keytide.base.dataclass import dataclass
from keytide.errors import InvalidError
from keytide.feeds.json_columns import (
    JsonValues,
    from_json_text,
    pointer,
    query,
    read_elements,
    read_entries,
    read_members,
    without_marks,
)
from keytide.types import LENGTH_MAX, ArrayType, AtomicType, DataType, MapType, RowType

# -- conversion to typed columns -------------------------------------------------------------------


BY_PRECISION = "precision"
"""The unit of times that follows from the precision of their column."""

BINARY_CODINGS = ("base64", "base64-url-safe", "hex", "latin-1")


@checked_members
@dataclass(frozen=True)
class Encoding:
    """How a source writes values that have no JSON type.

    - ``decimal_scale``: None if decimals are numbers or strings. Otherwise they are base64 of the
      big-endian unscaled integer with this scale, and ``"column"`` means the column's own scale.
    - ``binary``: one of :data:`BINARY_CODINGS`.
    - ``meaning``: ``decimal`` or ``time`` if a message's schema says so, because then a column of
      strings gets the true value. None otherwise.
    - ``date_unit``, ``time_unit``, ``timestamp_unit``: the unit of a JSON number, one of ``d``,
      ``s``, ``ms``, ``us``, ``ns``, counted from 1970-01-01 or from midnight. ``precision`` means
      the unit for the column's precision p: up to 3 ``ms``, up to 6 ``us``, up to 9 ``ns``. None
      means that the unit is unknown, and numbers do not fit.

    Raises InvalidError for other values.
    """

    decimal_scale: int | str | None = None
    binary: str = "base64"
    date_unit: str = "d"
    time_unit: str | None = None
    timestamp_unit: str | None = None
    meaning: str | None = None

    def __post_init__(self) -> None:
        known: Mapping[str, tuple[object, Sequence[str]]] = {
            "binary": (self.binary, BINARY_CODINGS),
            "meaning": (self.meaning or "time", ("decimal", "time")),
            "date_unit": (self.date_unit, tuple(_NANOS_OF)),
            "time_unit": (self.time_unit or BY_PRECISION, (*_NANOS_OF, BY_PRECISION)),
            "timestamp_unit": (self.timestamp_unit or BY_PRECISION, (*_NANOS_OF, BY_PRECISION)),
        }
        for name, (found, expected) in known.items():
            if found not in expected:
                raise InvalidError(
                    f"encoding.{name}: found {found!r}, expected one of {', '.join(expected)}"
                )
        scale = self.decimal_scale
        if isinstance(scale, str) and scale != "column":
            raise InvalidError(
                f"encoding.decimal_scale: found {scale!r}, expected 'column' or a number"
            )


def convert(values: JsonValues, type: DataType, encoding: Encoding) -> pa.Array:
    """The values as a column of Arrow type ``type.to_arrow()``.

    NULL stays NULL, and a value that does not fit becomes NULL.
    """
    if isinstance(type, AtomicType):
        return _CONVERTERS[type.root](values, type, encoding)
    if isinstance(type, ArrayType):
        lengths, elements = read_elements(values)
        items, unfit = _parts(elements, type.element, encoding)
        offsets, missing, kept = _fold(lengths, unfit)
        return pa.ListArray.from_arrays(offsets, items.filter(kept), type.to_arrow(), mask=missing)
    if isinstance(type, MapType):
        lengths, keys, items = read_entries(values)
        key_array, unfit_keys = _parts(keys, type.key.with_nullable(False), encoding)
        item_array, unfit_items = _parts(items, type.value, encoding)
        offsets, missing, kept = _fold(lengths, unfit_keys | unfit_items)
        return pa.MapArray.from_arrays(
            offsets, key_array.filter(kept), item_array.filter(kept), type.to_arrow(), mask=missing
        )
    fields = cast(RowType, type).fields
    documents = from_json_text(values, "OBJECT")
    unfit = ~np.asarray(documents.is_valid())
    columns = []
    members = read_members(documents, [pointer(field.name) for field in fields])
    for field, member in zip(fields, members, strict=True):
        column, is_unfit = _parts(member, field.type, encoding)
        columns.append(column)
        unfit |= is_unfit
    return pa.StructArray.from_arrays(columns, fields=list(type.to_arrow()), mask=pa.array(unfit))


def is_supported(type: DataType) -> bool:
    """Whether :func:`convert` supports a type and every type inside it."""
    if isinstance(type, AtomicType):
        return type.root in _CONVERTERS
    if isinstance(type, ArrayType):
        return is_supported(type.element)
    if isinstance(type, MapType):
        return is_supported(type.key) and is_supported(type.value)
    return isinstance(type, RowType) and all(is_supported(f.type) for f in type.fields)


_Converter = Callable[[JsonValues, AtomicType, Encoding], pa.Array]


# Booleans, numbers


def _booleans(values: JsonValues, type: AtomicType, encoding: Encoding) -> pa.Array:
    words = values.text.replace_strict(
        ["true", "t", "1", "false", "f", "0"],
        [True, True, True, False, False, False],
        default=None,
        return_dtype=pl.Boolean,
    )
    return _to_arrow(words, type)


def _integers(values: JsonValues, type: AtomicType, encoding: Encoding) -> pa.Array:
    return _to_arrow(_whole_numbers(values.text).cast(_POLARS_INT[type.root], strict=False), type)


def _whole_numbers(text: pl.Series) -> pl.Series:
    """Strings as int64. None for a fraction other than zero, and for what is not a number."""
    numbers: pl.Series = text.cast(pl.Int64, strict=False)
    rest = _keep(text, numbers.is_null())
    if rest.null_count() == len(rest):
        return numbers
    # Numbers such as `5.0` and `5e3`.
    cut: pl.Series = rest.str.replace(r"^([-+]?\d+)\.0*$", "$1")
    has_exponent = rest.str.contains("[eE]").fill_null(value=False)
    if has_exponent.any():
        is_whole = places_of(rest) <= 0
        wide = _keep(rest, is_whole).cast(pl.Decimal(38, 0), strict=False).cast(pl.String)
        cut = wide.zip_with(has_exponent, cut)
    return numbers.fill_null(cut.cast(pl.Int64, strict=False))


def _floats(values: JsonValues, type: AtomicType, encoding: Encoding) -> pa.Array:
    dtype = pl.Float32 if type.root == "FLOAT" else pl.Float64
    doubles = values.text.cast(pl.Float64, strict=False)
    numbers = doubles.cast(dtype)
    is_kept = ~(numbers.is_infinite() & ~values.text.str.contains("(?i)inf"))
    if values.is_number.any():
        # Numbers are doubles as a program writes them, so that no digit is lost, if they have up to
        # 15 digits, or if they identify a double, with up to 17.
        digits = _digits(values.text)
        is_exact = (digits.str.len_chars() <= _DOUBLE_DIGITS).fill_null(value=True)
        if not is_exact.all():
            spelled = query(
                "SELECT printf('%.17g', number), number::VARCHAR FROM numbers",
                numbers=pa.table({"number": _keep(doubles, ~is_exact).to_arrow()}),
            )
            for column in spelled.columns:
                same = _digits(pl.Series(values=column, dtype=pl.String)) == digits
                is_exact |= same.fill_null(value=False)
        is_kept &= is_exact
    return _to_arrow(_keep(numbers, is_kept), type)


_DOUBLE_DIGITS = 15


def _digits(text: pl.Series) -> pl.Series:
    """The digits of numbers, without zeros at both ends."""
    mantissa = text.str.extract(r"^[-+]?([0-9.]*)").str.replace(".", "", literal=True)
    return mantissa.str.strip_chars("0")


def _decimals(values: JsonValues, type: AtomicType, encoding: Encoding) -> pa.Array:
    text = _decimal_texts(values, type, encoding)
    scale = type.scale or 0
    parsed = text.cast(pl.Decimal(type.precision or 38, scale), strict=False)
    return _to_arrow(_keep(parsed, places_of(text) <= scale), type)


def _decimal_texts(values: JsonValues, type: AtomicType, encoding: Encoding) -> pl.Series:
    """Every form of a decimal as a string, including ``125e-2``."""
    text = values.text
    if encoding.decimal_scale is not None:
        scale = type.scale if encoding.decimal_scale == "column" else encoding.decimal_scale
        # A JSON number or a string with a point is never base64.
        is_coded = (values.type == "VARCHAR") & ~text.str.contains(".", literal=True)
        decoded = _unscaled_texts(_keep(text, is_coded)) + f"e{-int(scale or 0)}"
        text = decoded.zip_with(is_coded.fill_null(False), text)
    is_struct = values.type == "OBJECT"
    if is_struct.any():  # with `scale` and base64 `value`, each with its own scale
        scales, coded = read_members(from_json_text(values, "OBJECT"), ["/scale", "/value"])
        exponents = (-_whole_numbers(scales.text)).cast(pl.String)
        structs = _unscaled_texts(coded.text) + "e" + exponents
        text = structs.zip_with(is_struct, text)
    return text


def places_of(text: pl.Series) -> pl.Series:
    """The number of digits after the point, without trailing zeros."""
    digits = text.str.extract(r"\.(\d*?)0*$").fill_null("")
    places: pl.Series = digits.str.len_bytes().cast(pl.Int64)
    has_exponent = text.str.contains("[eE]").fill_null(False)
    if not has_exponent.any():
        return places
    # 1.250e1 has as many places as its digits without trailing zeros, minus the exponent.
    mantissa = text.str.extract(r"^([^eE]*)")
    exponent = text.str.extract(r"[eE](.*)$").cast(pl.Int64, strict=False)
    fraction = mantissa.str.extract(r"\.(\d*)$").str.len_bytes().fill_null(0).cast(pl.Int64)
    zeros = mantissa.str.replace(".", "", literal=True).str.extract("(0*)$").str.len_bytes()
    needed = fraction - zeros.cast(pl.Int64) - exponent
    is_zero = ~mantissa.str.contains("[1-9]")
    return pl.select(
        pl.when(~has_exponent).then(places).when(is_zero).then(0).otherwise(needed)
    ).to_series()


def _unscaled_texts(coded: pl.Series) -> pl.Series:
    """Base64 of big-endian two's complement integers, as decimal strings.

    None for a string that is not base64, and for integers of more than 32 bytes.
    """
    raw = coded.str.decode("base64", strict=False)
    raw = _keep(raw, (raw.bin.size() > 0) & (raw.bin.size() <= _INTEGER_BYTES))
    array = raw.fill_null(b"").to_arrow().cast(pa.large_binary())
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset :][: len(array) + 1]
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)[: offsets[-1]][offsets[0] :]
    sizes = np.diff(offsets)
    row = np.repeat(np.arange(len(array)), sizes)
    # Little-endian: the last byte of each string comes first.
    place = np.repeat(offsets[1:], sizes) - offsets[0] - 1 - np.arange(len(data))
    wide = np.zeros((len(array), _INTEGER_BYTES), np.uint8)
    wide[row, place] = data

    # For an empty string any byte works, because its size excludes it.
    first = np.minimum(offsets[:-1] - offsets[0], max(len(data) - 1, 0))
    negative = (data[first] >= 0x80) & (sizes > 0) if len(data) else np.zeros(len(array), bool)
    padding = np.arange(_INTEGER_BYTES) >= sizes[:, None]
    wide[padding & negative[:, None]] = 0xFF
    buffers = [raw.is_not_null().to_arrow().buffers()[1], pa.py_buffer(wide)]
    integers = pa.Array.from_buffers(pa.decimal256(76, 0), len(array), buffers)
    return pl.Series(values=integers.cast(pa.string()), dtype=pl.String)


_INTEGER_BYTES = 32


# Text and bytes


def _strings(values: JsonValues, type: AtomicType, encoding: Encoding) -> pa.Array:
    # The values as strings, as they were written or as their source means them.
    text = values.text
    if encoding.meaning == "decimal":
        # Integers with an exponent, such as `-150e-2`, as `-1.50`. Others are unchanged.
        text = _decimal_texts(values, type, encoding)
        parts = text.str.extract_groups(r"^(-?)(\d+)e(-?\d+)$").struct.unnest()
        sign, digits, exponent = (parts.to_series(at) for at in range(3))
        exponents = exponent.cast(pl.Int64, strict=False)
        for places in exponents.drop_nulls().unique():
            whole = digits.str.zfill(max(1 - places, 0)) if places < 0 else digits + "0" * places
            if places < 0:
                whole = whole.str.head(places) + "." + whole.str.tail(-places)
            is_of_it = (exponents == places).fill_null(value=False)
            text = (sign + whole).zip_with(is_of_it, text)
    elif encoding.meaning == "time" and encoding.time_unit in _NANOS_OF:
        # Counts of a unit since midnight, such as `-3600000001`, as `-01:00:00.000001`.
        counts = text.cast(pl.Int64, strict=False)
        second = _NANOS_OF["s"] // _NANOS_OF[encoding.time_unit or "ms"]
        seconds, places = counts.abs() // second, len(str(second)) - 1
        clock = [seconds // 3600, seconds // 60 % 60, seconds % 60]
        hours, minutes, rest = (part.cast(pl.String).str.zfill(2) for part in clock)
        fraction = (counts.abs() % second).cast(pl.String).str.zfill(max(places, 1))
        fraction = fraction.str.strip_chars_end("0")
        point = ("." + fraction.set(fraction == "", None)).fill_null("")
        shown = hours + ":" + minutes + ":" + rest + point
        signed = ("-" + shown).zip_with(counts < 0, shown)
        text = signed.zip_with(counts.is_not_null(), text)
    else:
        is_nested = values.type.is_in(["OBJECT", "ARRAY"]).fill_null(value=False)
        if is_nested.any():
            text = without_marks(text).zip_with(is_nested, text)
    if type.length != LENGTH_MAX:
        text = _keep(text, text.str.len_chars() <= type.length)
    return _to_arrow(text, type)


def _bytes(values: JsonValues, type: AtomicType, encoding: Encoding) -> pa.Array:
    raw = _BINARY_DECODERS[encoding.binary](values.text)
    if type.length is not None and type.length != LENGTH_MAX:
        raw = _keep(raw, raw.bin.size() <= type.length)
    return _to_arrow(raw, type)


def _latin_1_bytes(text: pl.Series) -> pl.Series:
    """Strings whose characters are bytes, encoded through one string for the whole column."""
    text = _keep(text, ~text.str.contains(r"[^\x{00}-\x{FF}]"))
    joined = text.str.join("").item() or ""
    sizes = text.str.len_chars().fill_null(0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    buffers = [pa.py_buffer(offsets), pa.py_buffer(joined.encode("latin-1"))]
    valid = text.to_arrow().is_valid().buffers()[1]
    raw = pa.Array.from_buffers(pa.large_binary(), len(text), [valid, *buffers])
    return pl.Series(values=raw, dtype=pl.Binary)


_BINARY_DECODERS: Mapping[str, Callable[[pl.Series], pl.Series]] = {
    "base64": lambda text: text.str.decode("base64", strict=False),
    "base64-url-safe": lambda text: text.str.replace_many(["-", "_"], ["+", "/"]).str.decode(
        "base64", strict=False
    ),
    "hex": lambda text: text.str.decode("hex", strict=False),
    "latin-1": _latin_1_bytes,
}


# Days and times

_NANOS_OF = {"d": 86_400_000_000_000, "s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
OFFSET = r":\d\d.*(Z|z|[+-]\d\d(:?\d\d)?)$"
"""The pattern of timestamps that end in a zone offset or ``Z``."""
_TIMESTAMP_FORMATS = (
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
)


def _dates(values: JsonValues, type: AtomicType, encoding: Encoding) -> pa.Array:
    text = _keep(values.text, ~values.is_number)
    days = text.str.to_date("%Y-%m-%d", strict=False).cast(pl.Int64)
    days = _fill(days, text, lambda rest: _rescale(_instants(rest, "ms"), "ms", "d"))
    numbers = _whole_numbers(_keep(values.text, values.is_number))
    numbers = _rescale(numbers, encoding.date_unit, "d")
    return _to_arrow(days.fill_null(numbers).cast(pl.Int32, strict=False), type)


def _times(values: JsonValues, type: AtomicType, encoding: Encoding) -> pa.Array:
    precision = min(type.precision or 0, 3)
    text = _keep(values.text, ~values.is_number & _has_places(values.text, precision))
    # A time with a zone is normalized to UTC. Any other offset would be lost.
    clock = text.str.replace(r"\s*(Z|z|[+-]00(:?00)?)$", "")
    times = clock.str.to_time("%H:%M:%S%.f", strict=False).cast(pl.Int64) // _NANOS_OF["ms"]
    numbers = _numbers_in(values, encoding.time_unit, type, "ms")
    numbers = _in_precision(numbers, "ms", precision)
    numbers = _keep(numbers, (numbers >= 0) & (numbers < _NANOS_OF["d"] // _NANOS_OF["ms"]))
    return _to_arrow(times.fill_null(numbers).cast(pl.Int32, strict=False), type)


def _timestamps(values: JsonValues, type: AtomicType, encoding: Encoding) -> pa.Array:
    """A string without an offset, and a column without a time zone, both mean UTC."""
    precision = type.precision or 0
    unit = _unit_of(precision)
    text = _keep(values.text, ~values.is_number & _has_places(values.text, precision))
    numbers = _numbers_in(values, encoding.timestamp_unit, type, unit)
    instants = _instants(text, unit).fill_null(_in_precision(numbers, unit, precision))
    return _to_arrow(instants, type)


def _instants(text: pl.Series, unit: str) -> pl.Series:
    """ISO and SQL timestamps as units since 1970 in UTC. Finer digits are dropped."""
    is_zoned = text.str.contains(OFFSET)
    zoned, local = _keep(text, is_zoned), _keep(text, ~is_zoned)
    instants = pl.repeat(None, len(text), dtype=pl.Int64, eager=True)
    for format in _TIMESTAMP_FORMATS:
        parse_zoned = functools.partial(_parsed, format=f"{format}%#z", unit=unit)
        parse_local = functools.partial(_parsed, format=format, unit=unit)
        instants = _fill(_fill(instants, zoned, parse_zoned), local, parse_local)
    return instants


def _parsed(text: pl.Series, format: str, unit: str) -> pl.Series:
    micros = text.str.to_datetime(format, time_unit="us", strict=False).cast(pl.Int64)
    if unit != "ns":
        factor = _NANOS_OF[unit] // _NANOS_OF["us"]
        return cast(pl.Series, micros // factor)
    # Nanoseconds cover 1677 to 2262, and Polars overflows silently outside.
    finer = text.str.extract(r"\.\d{6}(\d{1,3})").str.pad_end(3, "0").cast(pl.Int64).fill_null(0)
    wide = pl.lit(micros).cast(pl.Int128) * 1_000 + pl.lit(finer)
    return pl.select(wide.cast(pl.Int64, strict=False)).to_series()


def _numbers_in(values: JsonValues, unit: str | None, type: AtomicType, target: str) -> pl.Series:
    """JSON numbers of a unit in another one. None if the unit is unknown."""
    numbers = _whole_numbers(_keep(values.text, values.is_number))
    if unit is None:
        return numbers.clear(len(numbers))
    unit = _unit_of(type.precision or 0) if unit == BY_PRECISION else unit
    return _rescale(numbers, unit, target)


def _rescale(counts: pl.Series, unit: str, target: str) -> pl.Series:
    """Counts of one unit in another. None if that overflows int64 or loses a remainder."""
    if _NANOS_OF[unit] >= _NANOS_OF[target]:
        factor = _NANOS_OF[unit] // _NANOS_OF[target]
        bound = sys.maxsize // factor
        return _keep(counts, (counts >= -bound) & (counts <= bound)) * factor
    divisor = _NANOS_OF[target] // _NANOS_OF[unit]
    return _keep(counts, counts % divisor == 0) // divisor


def _in_precision(counts: pl.Series, unit: str, precision: int) -> pl.Series:
    """None if a count needs more digits of a second than the precision allows."""
    step = max(10 ** (9 - precision) // _NANOS_OF[unit], 1)
    return _keep(counts, counts % step == 0)


def _has_places(text: pl.Series, precision: int) -> pl.Series:
    """Whether a time's digits after the point, without trailing zeros, fit the precision."""
    return ~text.str.contains(rf"\.\d{{{precision}}}\d*[1-9]")


def _unit_of(precision: int) -> str:
    return "ms" if precision <= 3 else "us" if precision <= 6 else "ns"


# Nested values: flattened, converted by the same rules, folded again


def _parts(
    values: JsonValues, type: DataType, encoding: Encoding
) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Converted parts, and whether a part prevents its whole value from fitting."""
    array = convert(values, type, encoding)
    is_null = np.asarray(array.is_null())
    unfit = is_null & values.text.is_not_null().to_numpy() if type.nullable else is_null
    return array, unfit


def _fold(lengths: pa.Array, unfit: npt.NDArray[np.bool_]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Offsets of the rows that fit, which rows are NULL, and which parts remain."""
    sizes = lengths.fill_null(0).to_numpy(zero_copy_only=False)
    parent = np.repeat(np.arange(len(sizes)), sizes)
    missing = np.array(lengths.is_null())
    missing[parent[unfit]] = True
    offsets = np.concatenate([[0], np.cumsum(np.where(missing, 0, sizes))]).astype(np.int32)
    return pa.array(offsets), pa.array(missing), pa.array(~missing[parent])


def _keep(series: pl.Series, condition: pl.Series) -> pl.Series:
    """The series with None where the condition is false or None."""
    return pl.select(pl.when(condition).then(series)).to_series()


def _fill(
    done: pl.Series, text: pl.Series, convert_rest: Callable[[pl.Series], pl.Series]
) -> pl.Series:
    """Complete ``done`` by a slower conversion of the strings that have no value yet."""
    rest = _keep(text, done.is_null())
    if rest.null_count() == len(rest):
        return done
    return done.fill_null(convert_rest(rest))


def _to_arrow(series: pl.Series, type: AtomicType) -> pa.Array:
    return series.to_arrow().cast(type.to_arrow())


_POLARS_INT: Mapping[str, type[pl.DataType]] = {
    "TINYINT": pl.Int8,
    "SMALLINT": pl.Int16,
    "INT": pl.Int32,
    "BIGINT": pl.Int64,
}

_CONVERTERS: Mapping[str, _Converter] = {
    "BOOLEAN": _booleans,
    "TINYINT": _integers,
    "SMALLINT": _integers,
    "INT": _integers,
    "BIGINT": _integers,
    "FLOAT": _floats,
    "DOUBLE": _floats,
    "DECIMAL": _decimals,
    "CHAR": _strings,
    "VARCHAR": _strings,
    "BINARY": _bytes,
    "VARBINARY": _bytes,
    "BLOB": _bytes,
    "DATE": _dates,
    "TIME": _times,
    "TIMESTAMP": _timestamps,
    "TIMESTAMP_LTZ": _timestamps,
}
