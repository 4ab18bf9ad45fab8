"""The latest row of each key when NULLs are ignored: each column has its own order.

A pure computation over frames. An additional column of a row stores when each of its values arrived
and when its key was last deleted, also in deleted rows. So a late event changes exactly what it
would have changed on time.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from keytide.cdc.history import DELETES
from keytide.format.data_file import VALUE_KIND
from keytide.row_kind import RowKind
from keytide.scratch import scratch

__all__ = ["DELETED_AT", "SEQUENCES", "Latest"]

SEQUENCES, DELETED_AT = "__SEQUENCES", "__DELETED_AT"
"""The column that stores the places of values, and its field for the last delete."""

_UPDATED, _STORED, _DEAD = map(scratch, ("updated", "stored", "dead"))


@dataclass(frozen=True)
class Latest:
    """The configuration: columns by their role. Can be pickled.

    `sequence` orders the events of a key, and is not in `values`.
    """

    keys: tuple[str, ...]
    sequence: str
    values: tuple[str, ...]

    @property
    def given(self) -> tuple[str, ...]:
        """The columns of events."""
        return (*self.keys, self.sequence, *self.values)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of stored rows, in any order."""
        return (*self.given, SEQUENCES)

    def changed(self, stored: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
        """The rows to write to apply events. The frames are as in `History.changed`."""
        images = pl.concat([self._of_rows(stored), self._of_events(events)])
        at = (pl.col(DELETED_AT).max(), pl.col(_UPDATED).max())
        newest = images.group_by(self.keys, maintain_order=True).agg(*at)
        outlived = images.drop(DELETED_AT, _UPDATED).join(newest, on=self.keys)
        outlived = outlived.with_columns(
            pl.when((pl.col(_of(n)) > pl.col(DELETED_AT)).fill_null(True)).then(_of(n))
            for n in self.values
        )
        last = outlived.group_by(self.keys, maintain_order=True).agg(
            pl.col(DELETED_AT, _UPDATED).first(),
            *(pl.col(_of(n)).max() for n in self.values),
            *(_newest(n).alias(n) for n in self.values),
        )
        return self._without_same(self._as_rows(last), stored)

    def outlived(self, rows: pl.DataFrame, place: pl.Series) -> pl.DataFrame:
        """Stored rows, without values that precede a place."""
        came = {n: pl.col(SEQUENCES).struct.field(n) for n in self.values}
        stays = {
            n: pl.when((at >= pl.lit(place).first()).fill_null(False)) for n, at in came.items()
        }
        return rows.with_columns(
            *(stays[n].then(n).alias(n) for n in self.values),
            pl.struct(
                *(stays[n].then(at).alias(n) for n, at in came.items()),
                pl.col(SEQUENCES).struct.field(DELETED_AT),
            ).alias(SEQUENCES),
        )

    def _of_rows(self, stored: pl.DataFrame) -> pl.DataFrame:
        is_row = pl.col(VALUE_KIND).is_in([int(RowKind.INSERT), int(RowKind.UPDATE_AFTER)])
        came = pl.col(SEQUENCES).struct
        return stored.select(
            *self.keys, *self.values, *(came.field(n).alias(_of(n)) for n in self.values),
            came.field(DELETED_AT), pl.when(is_row).then(self.sequence).alias(_UPDATED),
        )  # fmt: skip

    def _of_events(self, events: pl.DataFrame) -> pl.DataFrame:
        brought = (
            pl.when(~pl.col(DELETES) & pl.col(n).is_not_null()).then(self.sequence).alias(_of(n))
            for n in self.values
        )
        return events.select(
            *self.keys, *self.values, *brought,
            pl.when(DELETES).then(self.sequence).alias(DELETED_AT),
            pl.when(~pl.col(DELETES)).then(self.sequence).alias(_UPDATED),
        )  # fmt: skip

    def _as_rows(self, last: pl.DataFrame) -> pl.DataFrame:
        dead = (pl.col(DELETED_AT) >= pl.col(_UPDATED)).fill_null(pl.col(_UPDATED).is_null())
        came = [pl.col(_of(n)).alias(n) for n in self.values]
        return last.select(
            *self.keys, pl.max_horizontal(DELETED_AT, _UPDATED).alias(self.sequence), *self.values,
            pl.struct(*came, DELETED_AT).alias(SEQUENCES),
            pl.when(dead).then(int(RowKind.DELETE)).otherwise(int(RowKind.INSERT))
            .cast(pl.Int8).alias(VALUE_KIND),
        )  # fmt: skip

    def _without_same(self, wanted: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
        others = [self.sequence, *self.values, SEQUENCES, VALUE_KIND]
        kept = stored.select(*self.keys, *(pl.col(n).alias(_of(n)) for n in others))
        kept = kept.with_columns(pl.lit(True).alias(_STORED))
        both = wanted.join(kept, on=self.keys, how="left", maintain_order="left")
        differs = pl.any_horizontal(
            pl.col(_STORED).is_null(), *(pl.col(n).ne_missing(pl.col(_of(n))) for n in others)
        )
        return both.filter(differs).select(*self.columns, VALUE_KIND)


def _newest(name: str) -> pl.Expr:
    """The latest value, the later one of equal places. NULL if there is none."""
    came = pl.col(_of(name))
    return pl.when(came.is_not_null()).then(name).sort_by(came, maintain_order=True).last()


def _of(name: str) -> str:
    return scratch(f"of-{name}")
