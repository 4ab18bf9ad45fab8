"""Literals: values from users, as columns compare them and as a write would store them.

A literal that is compared with a column is a value of the column's own type. Here are the terms
that compare a column with such values, too. Some writers do not normalize equal values, so they may
be stored in several forms.

Rows of dicts, lookup keys, partitions and defaults all use this code, so a value means the same in
each of them: exactly what is stored, or an error.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass
from keytide.errors import InvalidError
from keytide.format.arrow import polars_schema
from keytide.predicate.predicate import (
    And,
    Comparison,
    In,
    IsNull,
    Predicate,
    conjunction,
    negation,
    plain,
)
from keytide.predicate.value_columns import key_column, stored_column
from keytide.types import LENGTH_MAX, AtomicType, DataType, Field

# -- values as a write stores them -----------------------------------------------------------------


def array_of(values: Sequence[Any], field: Field, table: str) -> pa.Array:
    """Python values as an array of the column's Arrow type, each unchanged.

    Raises `InvalidError`, which names the column, for a value that Arrow would refuse, or truncate
    to fit, such as 1.5 to an integer.
    """
    try:
        return _unchanged(values, field.type.to_arrow())
    except Exception as error:  # a caller's value may raise anything
        raise InvalidError(
            f"table {table}: column {field.name!r} is {field.type.sql()}, found a value that does "
            f"not fit: {error}"
        ) from error


def key_value(value: Any, field: Field, table: str) -> pa.Scalar:
    """One value of a primary key column as it is stored: a Python value, or an Arrow scalar.

    Raises `InvalidError` like a write of the value. NULL is accepted.
    """
    return key_values([value], field, table)[0]


def plain_key(value: Any, field: Field, table: str) -> Any:
    """One value of a primary key column as predicates store it. Raises like `key_value`."""
    assert isinstance(field.type, AtomicType)
    root, kind = field.type.root, type(value)
    # Values that are stored as they are, without a call of Arrow, which first imports pandas.
    if kind is int and root in _BITS and -(1 << _BITS[root]) <= value < 1 << _BITS[root]:
        return value
    if kind is str and root == "VARCHAR" and field.type.length == LENGTH_MAX and value.isascii():
        return value
    return plain(key_value(value, field, table))


def key_values(values: Sequence[Any], field: Field, table: str) -> pa.ChunkedArray:
    """Values of one kind of a primary key column, converted like `key_value`."""
    scalar = next((value for value in values if isinstance(value, pa.Scalar)), None)
    try:
        given = (
            _unchanged(values, field.type.to_arrow())
            if scalar is None
            else pa.array(values, type=scalar.type)
        )
    except Exception as error:  # a caller's value may raise anything
        found = values[0] if len(values) == 1 else values
        kind = "" if len(values) > 1 else f" of type {type(found).__name__}"
        raise InvalidError(
            f"table {table}: key column {field.name!r} is {field.type.sql()}, found "
            f"{shown(found)}{kind}; give {'a value' if kind else 'values'} of the column's type: "
            f"{error}"
        ) from error
    return key_column(pa.chunked_array([given]), field, table)


def scalar_of_text(text: str, field: Field, table: str) -> pa.Scalar:
    """A value written as a string, of any type except binary types.

    Times without a time zone are in UTC. Raises `InvalidError` for a string that is not a value of
    the column, or that does not fit it.
    """
    try:
        column = pa.chunked_array([array_of_texts([text], field.type.to_arrow())])
    except _NO_VALUE as error:
        raise InvalidError(
            f"table {table}: column {field.name!r} is {field.type.sql()}, found {text!r}, which "
            f"is not a value of this type: {error}"
        ) from error
    return stored_column(column, field, table)[0]


def key_of_texts(texts: Sequence[str], fields: Sequence[Field], table: str) -> dict[str, Any]:
    """The values of key columns, each written as a string. Bytes are written as base64.

    Raises `InvalidError` for a string that is not a value of its column.
    """
    key: dict[str, Any] = {}
    for field, text in zip(fields, texts, strict=True):
        if not pa.types.is_binary(field.type.to_arrow()):
            key[field.name] = scalar_of_text(text, field, table)
            continue
        try:
            key[field.name] = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise InvalidError(
                f"table {table}: key column {field.name!r} is {field.type.sql()}, found {text!r}; "
                f"write its bytes as base64: {error}"
            ) from error
    return key


def array_of_texts(texts: Sequence[str], target: pa.DataType) -> pa.Array:
    """Convert strings to values. Times without a time zone are in UTC.

    Raises an Arrow error or a `ValueError` for a string that is not a value.
    """
    if pa.types.is_time(target):
        # Arrow has no cast for these. They are read as times of the first day.
        days = pa.array(
            [f"1970-01-01 {_without_spare_digits(text)}" for text in texts], pa.string()
        )
        return days.cast(pa.timestamp(target.unit)).cast(target)
    if pa.types.is_timestamp(target):
        # Arrow refuses digits beyond the unit even if they are zeros.
        texts = [_without_spare_digits(text) for text in texts]
        if target.tz is not None:
            texts = [
                text
                if _ZONE.search(text)
                else ((text if ":" in text else f"{text.strip()} 00:00:00") + "Z")
                for text in texts
            ]
    return pa.array(texts, pa.string()).cast(target)


_ZONE = re.compile(r":.*([Zz]|[+-]\d\d(:?\d\d)?)$")
_SPARE_DIGITS = re.compile(r"(\.\d*?)0+(?!\d)")


def _without_spare_digits(text: str) -> str:
    return _SPARE_DIGITS.sub(lambda m: "" if m[1] == "." else m[1], text)


_NO_VALUE = (pa.ArrowException, AttributeError, TypeError, ValueError, OverflowError)


def _unchanged(given: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """An array of the values. Raises one of `_NO_VALUE` for a value that would change."""
    made = pa.array(given, type=type_)
    kept = made.to_pylist()
    # The common case, checked by one comparison of lists.
    if kept == given:
        return made
    for before, after in zip(given, kept, strict=True):
        if not _is_same(before, after):
            raise ValueError(f"{before!r} would become {after!r}")
    return made


def _is_same(given: Any, kept: Any) -> bool:
    if given is None or kept is None:
        return given is kept
    if isinstance(kept, list | tuple):
        items = list(given.items() if isinstance(given, Mapping) else given)
        return len(items) == len(kept) and all(map(_is_same, items, kept))
    if isinstance(kept, dict):
        return given.keys() == kept.keys() and all(_is_same(given[n], kept[n]) for n in kept)
    if isinstance(kept, float):
        nearest = math.isfinite(kept) and kept == np.float32(given)
        return bool(given == kept or nearest or (given != given and kept != kept))
    return bool(given == kept)


# -- stored forms of equal values ------------------------------------------------------------------


POINTS_MAX = 1 << 20
"""With more values, hashing every combination takes longer than reading files without them."""


# The bits of integers, without the sign.
_BITS = {"TINYINT": 7, "SMALLINT": 15, "INT": 31, "BIGINT": 63}


def has_one_spelling(type_: DataType) -> bool:
    """Whether values of a type are equal, for every engine, only if they are identical."""
    return isinstance(type_, AtomicType) and type_.root in (*_BITS, "VARCHAR")


def spellings(values: Sequence[Any] | None, field: Field) -> pa.Array | None:
    """All forms of the values. None if there are too many.

    Some writers keep -0.0, NaNs of all kinds, and trailing blanks of a CHAR.
    """
    if values is None:
        return None
    assert isinstance(field.type, AtomicType)
    if field.type.root in ("FLOAT", "DOUBLE"):
        # NaN, the only value that differs from itself, has as many forms as a float has spare bits.
        if any(value != value for value in values):
            return None
        values = [*values, *(-0.0 for value in values if value == 0)]
    elif field.type.root == "CHAR":
        length = field.type.length or 0
        if len(values) * length > POINTS_MAX:
            return None
        values = [
            value and value.rstrip(" ").ljust(size)
            for value in values
            for size in range(length if value is None else len(value.rstrip(" ")), length + 1)
        ]
    if has_one_spelling(field.type):
        return pa.array(values, field.type.to_arrow())
    frame = pl.DataFrame({field.name: values}, schema=polars_schema([field]))
    array = frame.to_arrow(compat_level=pl.CompatLevel.oldest()).column(0).combine_chunks()
    return array.cast(field.type.to_arrow())


# -- literals in conditions ------------------------------------------------------------------------


NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
"""The syntax of a number, without its sign."""


class Literal(NamedTuple):
    """A literal as it is written: its form, and its text without quotes.

    The forms are NUMBER, TEXT, BYTES (in hexadecimal digits), BOOLEAN and NULL. For `DATE '...'`
    and similar literals, the form is the word in front. OTHER is a value without a literal.
    """

    form: str
    text: str

    def __str__(self) -> str:
        """The literal as SQL."""
        if self.form in ("NUMBER", "BOOLEAN", "NULL", "OTHER"):
            return self.text
        quoted = "'" + self.text.replace("'", "''") + "'"
        return {"TEXT": "", "BYTES": "X"}.get(self.form, self.form + " ") + quoted


def values_of(literals: Sequence[Literal], field: Field) -> list[Any]:
    """Literals as values of a column, see `plain` in `keytide.predicate.predicate`.

    Decimals keep their own scale.

    Raises `ValueError`, with the literal as its text, for a literal that is not a value of that
    type.
    """
    if not isinstance(field.type, AtomicType) or field.type.root not in _CONVERT:
        raise _wrong(literals[0] if literals else _NOTHING)  # there are no literals for this type
    return _CONVERT[field.type.root](literals, field.type)


def known_values(literals: Sequence[Literal], field: Field, table: str, said: str) -> list[Any]:
    """The values of `values_of`. Raises `InvalidError`, which quotes the condition `said`."""
    if any(literal.form == "NULL" for literal in literals):
        raise InvalidError(
            f"table {table}: {said} compares column {field.name} with NULL, which is never true; "
            "write IS NULL"
        )
    try:
        return values_of(literals, field)
    except ValueError as error:
        raise InvalidError(
            f"table {table}: {said} compares column {field.name} of type {field.type.sql()} with "
            f"{error}, which is not a value of this type"
        ) from error


def literal_of(value: Any, field: Field) -> Literal:
    """The literal of a column's value, given as in predicates, in Python or in Arrow.

    `values_of` converts it back to the value.
    """
    try:
        root = field.type.root
        if root in _TICKING and isinstance(value, int) and not isinstance(value, bool):
            return _instant(value, field.type.to_arrow().unit, root)
        if isinstance(value, datetime | np.datetime64):
            value = pa.scalar(value)
        if isinstance(value, pa.TimestampScalar) and value.is_valid:
            form = "TIMESTAMP" if value.type.tz is None else "TIMESTAMP_LTZ"
            return _instant(value.value, value.type.unit, form)
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, pa.Scalar):
            value = value.as_py()
        if value is None:
            return Literal("NULL", "NULL")
        if isinstance(value, float) and not math.isfinite(value):
            return Literal("TEXT" if root in ("FLOAT", "DOUBLE") else "NUMBER", str(value))
        return next(
            Literal(form, text(value)) for kind, form, text in _WRITTEN if isinstance(value, kind)
        )
    except Exception:  # a caller's value may raise anything
        return Literal("OTHER", shown(value))


def comparison(field: Field, operator: str, value: Any) -> Predicate:
    """`field operator value`. Decimals of any scale and size are compared exactly."""
    if not isinstance(value, Decimal):
        return Comparison(field.name, operator, value)
    assert isinstance(field.type, AtomicType)
    fits = _Fit.of(value, field.type)
    if fits.low == fits.high:
        return Comparison(field.name, operator, fits.low)
    never = In(field.name, ())
    if operator in ("=", "!="):
        return never if operator == "=" else negation(never)
    # The value is between two values of the column, or beyond all: the adjacent value has the same
    # effect.
    bound, kept = (fits.low, "<=") if operator in ("<", "<=") else (fits.high, ">=")
    if bound is not None:
        return Comparison(field.name, kept, bound)
    return never


def equalities(field: Field, values: Sequence[Any]) -> Predicate:
    """`field IN (values)`."""
    if values and isinstance(values[0], Decimal):
        assert isinstance(field.type, AtomicType)
        fits = [_Fit.of(value, field.type) for value in values]
        values = [fit.low for fit in fits if fit.low == fit.high]
    distinct = tuple(dict.fromkeys(values))
    if len(distinct) == 1:
        return Comparison(field.name, "=", distinct[0])
    return In(field.name, distinct)


def between(field: Field, low: Any, high: Any) -> Predicate:
    """`field BETWEEN low AND high`."""
    both = conjunction([comparison(field, ">=", low), comparison(field, "<=", high)])
    assert both is not None
    return both


def flag(field: Field, value: bool) -> Predicate:
    """`field IS TRUE` or `field IS FALSE`, which are never unknown."""
    return And((negation(IsNull(field.name)), Comparison(field.name, "=", value)))


@dataclass(frozen=True)
class _Fit:
    """The nearest values of a DECIMAL type below and above a number. None if there is none."""

    low: Decimal | None
    high: Decimal | None

    @classmethod
    def of(cls, value: Decimal, type_: AtomicType) -> _Fit:
        precision, scale = type_.precision or 0, type_.scale or 0
        largest = Decimal((0, (9,) * precision, -scale))
        smallest = largest.copy_negate()
        if value > largest:
            return cls(largest, None)
        if value < smallest:
            return cls(None, smallest)
        step = Decimal((0, (1,), -scale))
        # Python's default context would round to 28 digits.
        exact = Context(prec=precision + 1)
        return cls(
            value.quantize(step, ROUND_FLOOR, exact), value.quantize(step, ROUND_CEILING, exact)
        )


_Values = Callable[[Sequence[Literal], AtomicType], list[Any]]
_NUMBER = re.compile(rf"\s*[+-]?{NUMBER}\s*", re.ASCII)
_NO_NUMBERS = re.compile(r"\s*([+-]?(inf|infinity)|nan)\s*", re.IGNORECASE)
_WHOLE = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)


def _wrong(literal: Literal) -> ValueError:
    return ValueError(str(literal))


def _instant(ticks: int, unit: str, form: str) -> Literal:
    text = pa.scalar(ticks, pa.timestamp(unit)).cast(pa.string()).as_py()
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return Literal(form, text + "+00:00" if form == "TIMESTAMP_LTZ" else text)


def _unicode(text: str) -> str:
    text.encode()  # half of a surrogate pair is not a valid string
    return str(text)


_NOTHING = Literal("OTHER", "nothing")
_DIGITS_SHOWN = 100
_WRITTEN: tuple[tuple[type, str, Callable[[Any], str]], ...] = (
    (bool, "BOOLEAN", lambda value: str(value).upper()),
    (int, "NUMBER", str),
    (float, "NUMBER", repr),
    # Digits are easier to read than an exponent, unless there are too many.
    (Decimal, "NUMBER", lambda n: f"{n:f}" if abs(n.adjusted()) < _DIGITS_SHOWN else str(n)),
    (str, "TEXT", _unicode),
    (bytes, "BYTES", bytes.hex),
    (date, "DATE", date.isoformat),
    (time, "TIME", time.isoformat),
)
"""How to write the literal of each type of value. bool comes first, because it is an int too."""


def _texts(literals: Sequence[Literal], *forms: str) -> list[str]:
    for literal in literals:
        if literal.form not in forms:
            raise _wrong(literal)
    return [literal.text for literal in literals]


def _decimals(literals: Sequence[Literal], type_: AtomicType) -> list[Any]:
    _texts(literals, "NUMBER", "TEXT")
    for literal in literals:
        if not _NUMBER.fullmatch(literal.text):
            raise _wrong(literal)
    return [Decimal(literal.text) for literal in literals]


def _whole_numbers(literals: Sequence[Literal], type_: AtomicType) -> list[Any]:
    texts = _texts(literals, "NUMBER", "TEXT")
    bits = type_.to_arrow().bit_width
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    found = []
    for literal, text in zip(literals, texts, strict=True):
        if not _WHOLE.fullmatch(text):
            (number,) = _decimals([literal], type_)
            in_range = low <= number <= high
            if not in_range or number != number.to_integral_value():
                raise _wrong(literal)
            found.append(int(number))
            continue
        # Longer strings may exceed Python's limit for conversions.
        number = int(text) if len(text) < 64 else high + 1
        if not low <= number <= high:
            raise _wrong(literal)
        found.append(number)
    return found


def _floats(literals: Sequence[Literal], type_: AtomicType) -> list[Any]:
    width = np.float32 if type_.root == "FLOAT" else np.float64
    found = []
    for literal in literals:
        (text,) = _texts([literal], "NUMBER", "TEXT")
        is_named = literal.form == "TEXT" and _NO_NUMBERS.fullmatch(text)
        if not is_named and not _NUMBER.fullmatch(text):
            raise _wrong(literal)
        with np.errstate(over="ignore"):
            value = float(width(float(text)))
        if math.isinf(value) and not is_named:
            raise _wrong(literal)
        # -0.0 equals 0.0. One NaN object for all makes equal predicates equal.
        found.append(math.nan if math.isnan(value) else value + 0.0)
    return found


def _booleans(literals: Sequence[Literal], type_: AtomicType) -> list[Any]:
    for literal in literals:
        if literal.form not in ("BOOLEAN", "TEXT") or literal.text.lower() not in _TRUTH:
            raise _wrong(literal)
    return [_TRUTH[literal.text.lower()] for literal in literals]


def _bytes(literals: Sequence[Literal], type_: AtomicType) -> list[Any]:
    texts = _texts(literals, "TEXT", "BYTES")
    return [
        text.encode() if literal.form == "TEXT" else bytes.fromhex(text)
        for literal, text in zip(literals, texts, strict=True)
    ]


def _moments(literals: Sequence[Literal], type_: AtomicType) -> list[Any]:
    texts = _texts(literals, "TEXT", *_MOMENTS[type_.root])
    for literal in literals:
        if literal.form == "DATE" and not _DATE.fullmatch(literal.text):
            raise _wrong(literal)
        if literal.text.startswith("0000"):  # the format supports the years 1 to 9999
            raise _wrong(literal)
    try:
        return [plain(value) for value in array_of_texts(texts, type_.to_arrow())]
    except (pa.ArrowInvalid, ValueError) as error:
        if len(literals) == 1:
            raise _wrong(literals[0]) from error
        for literal in literals:
            # Converted together, the error does not name the wrong one. Converted alone, it does.
            _moments([literal], type_)
        raise


_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TICKING = ("TIMESTAMP", "TIMESTAMP_LTZ")
_TRUTH = {"true": True, "false": False}
_MOMENTS = {
    "DATE": ("DATE",),
    "TIME": ("TIME",),
    "TIMESTAMP": ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"),
    "TIMESTAMP_LTZ": ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ"),
}
_CONVERT: dict[str, _Values] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), _whole_numbers),
    **dict.fromkeys(("FLOAT", "DOUBLE"), _floats),
    **dict.fromkeys(("CHAR", "VARCHAR"), lambda literals, _: _texts(literals, "TEXT")),
    **dict.fromkeys(("BINARY", "VARBINARY"), _bytes),
    **dict.fromkeys(_MOMENTS, _moments),
    "DECIMAL": _decimals,
    "BOOLEAN": _booleans,
}
