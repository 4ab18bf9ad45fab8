"""The places of changes at their source: in which table, and where in the order.

What has no place among the other changes of a feed is refused: a change of another table, and one
from a log that is in none of the known epochs.
"""

from __future__ import annotations

import re

import polars as pl
import pyarrow.compute as pc

from keytide.base.text import counted
from keytide.errors import DataError, InvalidError
from keytide.feeds.epochs import (
    EPOCH,
    NUMBER,
    PLACE_PATHS,
    POSITION,
    TIME,
    epoch_numbers,
    why_without_epoch,
)
from keytide.feeds.feed import Decoded, Envelope, FeedSpec, at_path
from keytide.feeds.order import epochs_of

__all__ = ["ORIGIN", "check_places", "placed", "single_origin", "with_origin", "with_places"]

ORIGIN = "origin"
"""The column with the name of a change's table at its source, NULL if its message has none."""

_ORDER, _SOURCE_TABLE = "order: ", "source table: "


def placed(events: pl.DataFrame, spec: FeedSpec, envelope: Envelope) -> pl.DataFrame:
    """Events with the number of their epoch, and with a `problem` if they have no place."""
    events = with_origin(events, envelope)
    problems = [_other_table(events, spec)]
    if epochs_of(spec.sequence):
        events = with_places(events)
        events = events.with_columns(epoch_numbers(events, epochs_of(spec.sequence)))
        problems.append(
            pl.when(pl.col(EPOCH).is_null()).then(why_without_epoch(epochs_of(spec.sequence)))
        )
    else:
        events = events.with_columns(pl.lit(1).alias(EPOCH))
    is_read = pl.col("before").is_not_null() | pl.col("after").is_not_null()
    problem = pl.coalesce("problem", pl.when(is_read).then(pl.coalesce(problems)))
    number = pl.col(EPOCH).cast(pl.String).alias(at_path(EPOCH))
    return events.with_columns(problem.alias("problem"), number)


def with_places(events: pl.DataFrame) -> pl.DataFrame:
    """Events with the columns of `PLACE_PATHS` that were read. NULL where a text is unusable."""
    read = [path for path in PLACE_PATHS if at_path(path) in events.columns]
    whole = (TIME, NUMBER, POSITION)
    return events.with_columns(
        pl.col(at_path(path))
        .cast(pl.Int64 if path in whole else pl.String, strict=False)
        .alias(path)
        for path in read
    )


def with_origin(events: pl.DataFrame, envelope: Envelope) -> pl.DataFrame:
    """Events with the column `ORIGIN`."""
    parts = [pl.col(at_path(path)).str.strip_chars('"') for path in envelope.origin]
    name = pl.concat_str(parts, separator=".", ignore_nulls=True) if parts else pl.lit(None)
    return events.with_columns(name.cast(pl.String).replace("", None).alias(ORIGIN))


def single_origin(events: pl.DataFrame) -> str | None:
    """The only table of the changes, with `ORIGIN`. None if they name none.

    Raises `InvalidError` if there are several.
    """
    changes = events.filter(pl.col("before").is_not_null() | pl.col("after").is_not_null())
    names = changes[ORIGIN].drop_nulls().unique(maintain_order=True).to_list()
    if len(names) > 1:
        raise InvalidError(
            f"source table: the feed has changes of {counted(len(names), 'table')} "
            f"({', '.join(names[:5])}), but one table can have only those of one; divide the feed, "
            "or give source_table, in which * matches any part of a name"
        )
    return names[0] if names else None


def check_places(decoded: Decoded) -> None:
    """Raises `DataError` if some changes have no place, because all later ones would be missing."""
    reasons = decoded.rejected["reason"]
    outside = pc.or_(pc.starts_with(reasons, _ORDER), pc.starts_with(reasons, _SOURCE_TABLE))
    found = reasons.filter(outside)
    if len(found):
        raise DataError(f"{found[0].as_py()}. Nothing of this batch was written")


def _other_table(events: pl.DataFrame, spec: FeedSpec) -> pl.Expr:
    """The reason to refuse a change of another table than the feed's."""
    wanted = spec.source_table
    if wanted is None:
        changes = events.filter(pl.col("before").is_not_null() | pl.col("after").is_not_null())
        wanted = next(iter(changes[ORIGIN].drop_nulls()), None)
    if wanted is None:
        return pl.lit(None, dtype=pl.String)
    fits = pl.col(ORIGIN).str.contains(f"^{re.escape(wanted).replace(chr(92) + '*', '.*')}$")
    reason = pl.format(
        f"{_SOURCE_TABLE}found a change of {{}}, expected {wanted}; divide the feed, or give "
        "source_table, in which * matches any part of a name",
        ORIGIN,
    )
    return pl.when(~fits).then(reason)
