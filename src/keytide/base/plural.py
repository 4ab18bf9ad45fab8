"""Counts of things in messages."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, noun: str) -> str:
    """A count with its noun, whose plural ends in s.

    >>> counted(1, "row"), counted(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
