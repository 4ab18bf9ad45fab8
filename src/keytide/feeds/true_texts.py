"""The true value of numbers in columns of strings: what a stated schema says that they mean.

A decimal is written with all places of its scale, and a time as hours, minutes and seconds, which
can be negative and more than a day.
"""

from __future__ import annotations

import polars as pl

__all__ = ["decimal_texts", "time_texts"]

_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def decimal_texts(text: pl.Series) -> pl.Series:
    """Integers with an exponent, such as `-150e-2`, as `-1.50`. Others are unchanged."""
    parts = text.str.extract_groups(r"^(-?)(\d+)e(-?\d+)$").struct.unnest()
    sign, digits, exponent = (parts.to_series(at) for at in range(3))
    exponents = exponent.cast(pl.Int64, strict=False)
    found = text
    for places in exponents.drop_nulls().unique():
        whole = digits.str.zfill(max(1 - places, 0)) if places < 0 else digits + "0" * places
        shown = whole if places >= 0 else whole.str.head(places) + "." + whole.str.tail(-places)
        found = (sign + shown).zip_with((exponents == places).fill_null(value=False), found)
    return found


def time_texts(text: pl.Series, unit: str) -> pl.Series:
    """Counts of a unit since midnight, such as `-3600000001`, as `-01:00:00.000001`."""
    counts = text.cast(pl.Int64, strict=False)
    size = counts.abs()
    second = _NANOS["s"] // _NANOS[unit]
    seconds, places = size // second, len(str(second)) - 1
    clock = [seconds // 3600, seconds // 60 % 60, seconds % 60]
    hours, minutes, rest = (part.cast(pl.String).str.zfill(2) for part in clock)
    fraction = (size % second).cast(pl.String).str.zfill(max(places, 1)).str.strip_chars_end("0")
    point = fraction.set(fraction == "", None)
    shown = hours + ":" + minutes + ":" + rest + ("." + point).fill_null("")
    signed: pl.Series = ("-" + shown).zip_with(counts < 0, shown)
    found: pl.Series = signed.zip_with(counts.is_not_null(), text)
    return found
