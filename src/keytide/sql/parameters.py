"""Parameters of an SQL text, in the places of `?` and `:name`, as in Spark.

>>> with_parameters("SELECT * FROM t WHERE k = ? AND v = ?", [1, "it's"])
"SELECT * FROM t WHERE k = 1 AND v = 'it''s'"
>>> with_parameters("DELETE FROM t WHERE k = :key", {"key": 7})
'DELETE FROM t WHERE k = 7'
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from decimal import Decimal
from itertools import zip_longest
from numbers import Integral, Real
from typing import Any, TypeAlias

from sqlglot import Token, TokenType

from keytide.base.arguments import shown
from keytide.base.plural import counted
from keytide.errors import InvalidError
from keytide.sql.dialect import error_at, tokenize

__all__ = ["Parameters", "with_parameters"]

Parameters: TypeAlias = "Sequence[Any] | Mapping[str, Any]"
"""Values for each `?`, from left to right, or by name for each `:name`."""


def with_parameters(text: str, parameters: Parameters) -> str:
    """The text with an SQL literal in the place of each parameter.

    A value always becomes exactly one literal. Numbers, strings, booleans, bytes, dates, times and
    None are supported. Raises `InvalidError` for a place without a value, a value without a place,
    and a value of another type.
    """
    places = [*_places(text)]
    named = isinstance(parameters, Mapping)
    for place in places:
        if (place.name is not None) != named:
            kinds = ("a dict", ":name") if named else ("a list", "?")
            raise error_at(
                text,
                place.start,
                f"the parameters are {kinds[0]}, but the placeholders are {kinds[1]}",
            )
    values = _by_name(text, places, parameters) if isinstance(parameters, Mapping) else parameters
    _check_count(places, values, parameters)
    parts, end = [], 0
    for place, value in zip(places, values, strict=True):
        parts += [text[end : place.start], _literal(value, place.told)]
        end = place.end
    return "".join([*parts, text[end:]])


@dataclass(frozen=True)
class _Place:
    start: int
    end: int
    name: str | None
    number: int

    @property
    def told(self) -> str:
        return f"{self.number}" if self.name is None else f":{self.name}"


def _places(text: str) -> Iterator[_Place]:
    tokens = tokenize(text)
    number = 0
    for token, following in zip_longest(tokens, tokens[1:]):
        start = int(token.start)
        if token.token_type == TokenType.PLACEHOLDER:
            number += 1
            yield _Place(start, start + 1, None, number)
        elif token.token_type == TokenType.COLON and _is_name(following, start + 1, text):
            number += 1
            assert following is not None
            end = int(following.end) + 1
            yield _Place(start, end, text[start + 1 : end], number)


def _is_name(token: Token | None, start: int, text: str) -> bool:
    """Whether a word begins at this position, as in `:name`."""
    return token is not None and int(token.start) == start and text[start].isidentifier()


def _by_name(text: str, places: Sequence[_Place], named: Mapping[str, Any]) -> list[Any]:
    names = [place.name or "" for place in places]
    for place, name in zip(places, names, strict=True):
        if name not in named:
            raise error_at(text, place.start, f"there is no parameter {name!r}; give it a value")
    unused = [name for name in named if name not in names]
    if unused:
        raise InvalidError(
            f"the parameter {unused[0]!r} is not used; write :{unused[0]} where its value "
            "belongs, or remove it"
        )
    return [named[name] for name in names]


def _check_count(places: Sequence[_Place], values: Sequence[Any], given: Parameters) -> None:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence | Mapping):
        raise InvalidError(f"the parameters are {shown(given)}; give a list, or a dict by name")
    if len(places) != len(values):
        raise InvalidError(
            f"the SQL text has {counted(len(places), 'placeholder')}, but "
            f"{counted(len(values), 'value')} were given; give one for each ?"
        )


def _literal(value: Any, place: str) -> str:
    """A value as an SQL literal."""
    value = value.item() if hasattr(value, "item") and not isinstance(value, str) else value
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bytes | bytearray):
        return f"X'{value.hex()}'"
    if isinstance(value, Integral | Decimal | Real):
        return _number(value)
    if isinstance(value, datetime):
        return _timestamp(value)
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, time):
        return f"CAST('{value.isoformat()}' AS TIME)"
    raise InvalidError(
        f"parameter {place} is {shown(value)} of type {type(value).__name__}; expected a number, "
        "string, boolean, bytes, date, time or None; use a separate placeholder for each value "
        "of a list"
    )


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _number(value: Integral | Decimal | Real) -> str:
    if isinstance(value, Integral):
        shown_as = str(int(value))
    elif isinstance(value, Decimal):
        shown_as = f"{value:f}" if value.is_finite() else ""
        digits = len(shown_as.lstrip("-").replace(".", "").lstrip("0")) or 1
        scale = len(shown_as.partition(".")[2])
        if not shown_as or max(digits, scale) > _DIGITS_MAX:
            raise InvalidError(f"the decimal {value} has more than 38 digits, the maximum of SQL")
        shown_as = f"CAST('{shown_as}' AS DECIMAL({max(digits, scale)}, {scale}))"
    elif math.isfinite(value):
        shown_as = f"CAST('{float(value)!r}' AS DOUBLE)"
    else:
        name = "NaN" if math.isnan(value) else "Infinity" if float(value) > 0 else "-Infinity"
        shown_as = f"CAST('{name}' AS DOUBLE)"
    # After another minus sign it would start a comment.
    return f"({shown_as})" if shown_as.startswith("-") else shown_as


_DIGITS_MAX = 38


def _timestamp(value: datetime) -> str:
    if value.tzinfo is None:
        return f"TIMESTAMP '{value.isoformat(' ')}'"
    moment = value.astimezone(timezone.utc).replace(tzinfo=None)
    return f"CAST('{moment.isoformat(' ')}+00:00' AS TIMESTAMP_LTZ)"
