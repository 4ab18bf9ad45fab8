"""How long what was published before stays for readers who began with it."""

from __future__ import annotations

from keytide.options import TableOptions
from keytide.store import Store
from keytide.table.state.looks import Looks

__all__ = ["is_time_to_drop", "kept_since_ms"]

_LEAST_MS = 60 * 60 * 1000
# What is old takes a listing to find, and there is more of it the longer it is kept.
_SECONDS_BETWEEN = 60

_LOOKS = Looks()


def kept_since_ms(options: TableOptions, now_ms: int) -> int:
    """From when on readers may have begun who still read: as long as snapshots are kept."""
    return now_ms - max(options.snapshot_time_retained_ms, _LEAST_MS)


def is_time_to_drop(store: Store, form: str) -> bool:
    """Whether this process has not dropped what is old of a form for a while; then it counts."""
    return _LOOKS.is_time(f"{store.uri} {form}", _SECONDS_BETWEEN)
