"""How long earlier publications are kept for readers that are using them."""

from __future__ import annotations

from keytide.options import TableOptions
from keytide.snapshot.looks import Looks
from keytide.store import Store

__all__ = ["is_time_to_drop", "kept_since_ms"]

_LEAST_MS = 60 * 60 * 1000
# Finding what is old needs a listing, and longer intervals find more at a time.
_SECONDS_BETWEEN = 60

_LOOKS = Looks()


def kept_since_ms(options: TableOptions, now_ms: int) -> int:
    """The earliest start of readers that may still be reading: as long as snapshots are kept."""
    return now_ms - max(options.snapshot_time_retained_ms, _LEAST_MS)


def is_time_to_drop(store: Store, form: str) -> bool:
    """Whether it is time for this process to delete old publications.

    If so, the time is recorded.
    """
    return _LOOKS.is_time(f"{store.uri} {form}", _SECONDS_BETWEEN)
