"""Durations that callers give: one range for strings, timedeltas and numbers of seconds.

A duration is between 0 and 2^63 nanoseconds, about 292 years. This is the range of other engines,
and the longest time that a thread can wait. So now plus or minus a duration is always a valid time.

>>> from datetime import timedelta
>>> duration_ms("2 h", "expiration_time") == duration_ms(timedelta(hours=2), "expiration_time")
True
>>> duration_ms(timedelta(days=-2), "expiration_time")  # doctest: +ELLIPSIS
Traceback (most recent call last):
keytide.errors.InvalidError: expiration_time is '-2 days, 0:00:00'; expected a duration such as...
"""

from __future__ import annotations

from datetime import timedelta

from keytide.base.arguments import shown
from keytide.errors import InvalidError
from keytide.options.value_types import DURATION, DURATION_OR_FOREVER, ValueType

__all__ = ["check_seconds", "duration_ms", "lifetime_ms"]

_LONGEST = timedelta(microseconds=(2**63 - 1) // 1000)


def duration_ms(given: str | timedelta, argument: str) -> int:
    """Whole milliseconds of a string such as '7 d', or of a timedelta.

    Raises `InvalidError`, naming the argument, for what is no duration, and for one that is
    negative or longer than 292 years.
    """
    found = _parsed(given, argument, DURATION)
    assert found is not None
    return found


def lifetime_ms(given: str | timedelta, argument: str) -> int | None:
    """The same, but 'forever' is None, and less than a millisecond is an error."""
    return _parsed(given, argument, DURATION_OR_FOREVER, least_ms=1)


def check_seconds(given: float, argument: str, *, is_zero_allowed: bool) -> None:
    """Raise `InvalidError`, naming the argument, for no number of seconds or one out of range."""
    # Not converted before the comparison: an integer may be too large for a float.
    is_long_enough = given >= 0 if is_zero_allowed else given > 0
    if not (is_long_enough and given <= _LONGEST.total_seconds()):
        least = (
            "a number of seconds, 0 or more" if is_zero_allowed else "a number of seconds above 0"
        )
        raise InvalidError(f"{argument} is {shown(given)}; expected {least}, and at most 292 years")


def _parsed(
    given: str | timedelta, argument: str, kind: ValueType, least_ms: int = 0
) -> int | None:
    try:
        found = _timedelta_ms(given, kind) if isinstance(given, timedelta) else kind.parse(given)
        if found is not None and found < least_ms:
            raise ValueError("a duration above 0, such as '7 d'")
    except ValueError as error:
        value = str(given) if isinstance(given, timedelta) else given
        raise InvalidError(f"{argument} is {shown(value)}; expected {error}") from None
    return None if found is None else int(found)


def _timedelta_ms(given: timedelta, kind: ValueType) -> int:
    if not timedelta(0) <= given <= _LONGEST:
        raise ValueError("a duration such as '7 d', from 0 to 292 years")
    return given // timedelta(milliseconds=1)
