"""The directory of a partition: one ``name=value`` level per partition column.

The directory is only a location. A partition is identified by its binary row in the manifest: NULL,
an empty string and a blank string share one directory and are still three partitions. A reader
never takes a value from a path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from keytide.errors import InvalidError
from keytide.types import AtomicType, DataType, Field

DEFAULT_PARTITION_NAME = "__DEFAULT_PARTITION__"
"""The directory name for NULL and blanks, unless ``partition.default-name`` is set."""

MILLIS_PER_DAY = 86_400_000


def partition_path(
    values: Sequence[Any],
    fields: Sequence[Field],
    *,
    legacy: bool = True,
    default_name: str = DEFAULT_PARTITION_NAME,
) -> str:
    """The directory of one partition, given its Python values in partition order.

    Empty for an unpartitioned table. No slash at either end. ``legacy`` is the option
    ``partition.legacy-name``. Raises InvalidError for a value that does not fit its column.
    """
    columns = [_one_value(value, each) for value, each in zip(values, fields, strict=True)]
    if not columns:
        return ""
    return partition_paths(columns, fields, legacy=legacy, default_name=default_name)[0]


def partition_paths(
    columns: Sequence[pa.Array],
    fields: Sequence[Field],
    *,
    legacy: bool = True,
    default_name: str = DEFAULT_PARTITION_NAME,
) -> list[str]:
    """The directories of many partitions, given one Arrow column per partition column.

    Raises InvalidError for a column of a nested type.
    """
    levels = []
    for column, each in zip(columns, fields, strict=True):
        # Both names and values are escaped, because both may contain the separators.
        name = escape_path_name(each.name)
        texts = _texts(column, each, legacy=legacy, default_name=default_name)
        levels.append([f"{name}={escape_path_name(text)}" for text in texts])
    return ["/".join(parts) for parts in zip(*levels, strict=True)]


def partition_values(
    columns: Sequence[pa.Array],
    fields: Sequence[Field],
    *,
    legacy: bool = True,
    default_name: str = DEFAULT_PARTITION_NAME,
) -> list[dict[str, str]]:
    """The unescaped values in the directories of many partitions, by column."""
    texts = [
        _texts(column, each, legacy=legacy, default_name=default_name)
        for column, each in zip(columns, fields, strict=True)
    ]
    names = [each.name for each in fields]
    return [dict(zip(names, row, strict=True)) for row in zip(*texts, strict=True)]


def escape_path_name(text: str) -> str:
    """The string with every character that is not allowed in a path as ``%`` and two hex digits."""
    return text.translate(_ESCAPES)


def unescape_path_name(text: str) -> str:
    """The string that :func:`escape_path_name` was given. A stray ``%`` is not changed."""
    return re.sub("%([0-9a-fA-F]{2})", lambda found: chr(int(found[1], 16)), text)


_ESCAPES = {code: f"%{code:02X}" for code in [*range(0x20), 0x7F, *map(ord, "\"#%'*/:=?\\{}[]^")]}

# Python treats these as white space, Java does not.
_NOT_BLANK = frozenset("\x85\xa0\u2007\u202f")


def _one_value(value: Any, column: Field) -> pa.Array:
    try:
        return pa.array([value], column.type.to_arrow())
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidError(
            f"Value {value!r} does not fit partition column {column.name!r} "
            f"of type {column.type.sql()}: {error}"
        ) from error


def _texts(column: pa.Array, field: Field, *, legacy: bool, default_name: str) -> list[str]:
    text_of = _text_function(field.type, legacy=legacy)
    target = field.type.to_arrow()
    plain = column.cast(target)
    if pa.types.is_temporal(target):  # as the integers that Arrow stores
        plain = plain.cast(pa.int32() if target.bit_width == 32 else pa.int64())
    texts = (None if value is None else text_of(value) for value in plain.to_pylist())
    return [
        default_name
        if (not text or all(char.isspace() and char not in _NOT_BLANK for char in text))
        else text or ""
        for text in texts
    ]


def _text_function(type_: DataType, *, legacy: bool) -> Callable[[Any], str]:
    if type_.is_nested or not isinstance(type_, AtomicType):
        raise InvalidError(f"A partition column cannot be of type {type_.sql()}")
    digits = type_.precision or 0
    if type_.root == "DATE":
        return str if legacy else lambda days: str(np.datetime64(days, "D"))
    if type_.root == "TIME":
        return str if legacy else lambda millis: _time_text(millis, digits)
    if type_.root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        per_second = {"ms": 10**3, "us": 10**6, "ns": 10**9}[type_.to_arrow().unit]
        return lambda units: _timestamp_text(units, per_second, digits, legacy=legacy)
    return _TEXT_OF.get(type_.root, str)


_TEXT_OF: Mapping[str, Callable[[Any], str]] = {
    "BOOLEAN": lambda value: "true" if value else "false",
    "DECIMAL": lambda value: format(value, "f"),
    "BINARY": lambda value: value.decode(errors="replace"),
    "VARBINARY": lambda value: value.decode(errors="replace"),
    "FLOAT": lambda value: _java_text(np.float32(value)),
    "DOUBLE": lambda value: _java_text(np.float64(value)),
}


def _java_text(value: np.floating[Any]) -> str:
    """Java's string for a float: plain between 0.001 and ten million, otherwise with an
    exponent.
    """
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return np.format_float_positional(value, unique=True, trim="0")
    # If one digit is sufficient, Java uses the nearest number with two: 4.9E-324, not 5.0E-324.
    text = np.format_float_scientific(value, unique=True, trim="0", min_digits=1)
    mantissa, exponent = text.split("e")
    return f"{mantissa}E{int(exponent)}"


def _time_text(millis: int, precision: int) -> str:
    seconds, rest = divmod(millis % MILLIS_PER_DAY, 1_000)
    minutes, second = divmod(seconds, 60)
    clock = f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"
    fraction = f"{rest:03}"[:precision].rstrip("0") or "0"
    return f"{clock}.{fraction}" if precision else clock


def _timestamp_text(units: int, per_second: int, precision: int, *, legacy: bool) -> str:
    seconds, rest = divmod(units, per_second)
    text, fraction = str(np.datetime64(seconds, "s")), f"{rest * (10**9 // per_second):09}"
    if legacy:
        # Seconds only if they are not zero, and the fraction in groups of three digits.
        if rest == 0 and seconds % 60 == 0:
            return text.removesuffix(":00")
        while fraction.endswith("000"):
            fraction = fraction[:-3]
    else:
        # All parts down to the declared precision, and further digits that are not zero.
        text = text.replace("T", " ")
        fraction = fraction[:precision] + fraction[precision:].rstrip("0")
    return f"{text}.{fraction}" if fraction else text
