"""Expiry of rows: the maximum age of a row, according to a time column.

A row that is too old is not shown, whether or not a compaction has already removed it. This is
decided for merged rows, never for the versions that they consist of. Which versions have been
merged depends on compactions, and what a row shows must not depend on them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from keytide.base.lazily import cached_property
from keytide.base.row_kind import RowKind
from keytide.predicate.matching import row_filter
from keytide.predicate.predicate import (
    Comparison,
    IsNull,
    Predicate,
    conjunction,
    disjunction,
)
from keytide.snapshot.view import TableView
from keytide.types import Field

__all__ = ["Lifetime", "drops_expired"]

# From this number on, a BIGINT counts milliseconds. In seconds, it would be 31,688 years.
_MILLIS_FROM = 10**12


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Lifetime:
    """Rows whose `field` is before `oldest_s`, in epoch seconds, have expired.

    NULL never expires. A TIMESTAMP without a time zone is in UTC.
    """

    field: Field
    oldest_s: int

    @classmethod
    def of(cls, view: TableView, now_ms: int | None = None) -> Lifetime | None:
        """The current maximum age of a table's rows. None for no limit."""
        options = view.options
        lifetime_ms, name = options.row_lifetime_ms, options.row_time_field
        if lifetime_ms is None or name is None or not view.kind.keeps_versions:
            return None
        now_s = (_clock_ms() if now_ms is None else now_ms) // 1000
        return cls(view.schema.field(name), now_s - lifetime_ms // 1000)

    @cached_property
    def shown(self) -> Predicate:
        """Matches the rows that have not expired."""
        name, type_ = self.field.name, self.field.type.to_arrow()
        if pa.types.is_timestamp(type_):
            ticks = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[type_.unit]
            young = Comparison(name, ">=", max(-(2**63), self.oldest_s * ticks))
            return disjunction([IsNull(name), young])
        oldest = max(-(2**31), self.oldest_s)
        young = Comparison(name, ">=", oldest)
        if self.field.type.root == "INT":
            return disjunction([IsNull(name), young])
        in_seconds = conjunction([young, Comparison(name, "<", _MILLIS_FROM)])
        assert in_seconds is not None
        in_millis = Comparison(name, ">=", max(_MILLIS_FROM, oldest * 1000))
        return disjunction([IsNull(name), in_seconds, in_millis])

    @cached_property
    def has_expired(self) -> pl.Expr:
        """An expression over rows with the column: whether each row has expired."""
        return ~row_filter(self.shown, [self.field])


def drops_expired(view: TableView) -> bool:
    """Whether a compaction can replace an expired row with a delete.

    It can if the row of a key is always one of its versions unchanged, because later versions then
    do not depend on it. If a row is composed of several versions, a later version would show
    columns or sums of the expired ones again. Such rows are kept but not shown.
    """
    engine = view.engine
    is_deleted_by = RowKind.DELETE in engine.tombstones and engine.skips(RowKind.DELETE) is None
    return engine.picks_a_version and is_deleted_by
