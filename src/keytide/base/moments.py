"""Times in epoch milliseconds, and as strings in UTC.

>>> moment_text(1769860800123)
'2026-01-31 12:00:00.123Z'
"""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import TypeAlias

from keytide.base.arguments import shown
from keytide.errors import InvalidError

__all__ = ["Moment", "epoch_ms", "is_moment", "moment_text", "utc"]

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
