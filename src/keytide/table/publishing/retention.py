"""How long what was published before stays for readers who began with it."""

from __future__ import annotations

from keytide.options import TableOptions

__all__ = ["kept_since_ms"]

_LEAST_MS = 60 * 60 * 1000


def kept_since_ms(options: TableOptions, now_ms: int) -> int:
    """From when on readers may have begun who still read: as long as snapshots are kept."""
    return now_ms - max(options.snapshot_time_retained_ms, _LEAST_MS)
