"""Moments in epoch milliseconds, as people read them: in UTC.

>>> moment_text(1769860800123)
'2026-01-31 12:00:00.123Z'
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

__all__ = ["is_moment", "moment_text", "utc"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
_FIRST_MS, _END_MS = (
    (datetime(year, 1, 1, tzinfo=timezone.utc) - _EPOCH) // _MILLISECOND for year in (1000, 9000)
)


def is_moment(epoch_ms: int) -> bool:
    """Whether it lies in the years 1000 to 8999.

    A datetime holds a thousand years more on either side, so that all durations may be added to a
    moment, and taken from it, in any time zone.
    """
    return _FIRST_MS <= epoch_ms < _END_MS


def utc(epoch_ms: int) -> datetime:
    """The moment with the zone UTC. REQUIRES: `is_moment`."""
    return _EPOCH + epoch_ms * _MILLISECOND


def moment_text(epoch_ms: int) -> str:
    """The moment for people, in a form that every argument of a time takes."""
    if not is_moment(epoch_ms):
        return str(epoch_ms)
    return f"{utc(epoch_ms).replace(tzinfo=None).isoformat(' ', 'milliseconds')}Z"
