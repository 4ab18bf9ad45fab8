"""The latest row of each key when NULLs are ignored: each column has its own order.

A pure computation over frames. An additional column of a row stores when each of its values arrived
and when its key was last deleted, also in deleted rows. So a late event changes exactly what it
would have changed on time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from keytide.base.process import scratch
from keytide.base.row_kind import RowKind
from keytide.feeds.history import DELETES
from keytide.merge.order import IS_ADD, SEQUENCE_NUMBER, VALUE_KIND, MergeOrder

__all__ = ["DELETED_AT", "SEQUENCES", "Latest"]

SEQUENCES, DELETED_AT = "__SEQUENCES", "__DELETED_AT"
"""The column that stores the places of values, and its field for the last delete."""

_UPDATED, _STORED, _STEP = map(scratch, ("updated", "stored", "step"))


@dataclass(frozen=True)
class Latest:
    """The configuration: the order of a key's events, and the other columns. Can be pickled.

    `order` has one sequence column, which is not in `values`.
    """

    order: MergeOrder
    values: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify the row of an event."""
        return self.order.key

    @property
    def sequence(self) -> str:
        """The column that orders the events of a key."""
        (sequence,) = self.order.sequence
        return sequence

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
        steps = self._steps(images)
        newest = self._ranked(images, steps).group_by(self.keys, maintain_order=True).max()
        return self._without_same(self._as_rows(newest, images, steps), stored)

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

    # -- images: what a stored row or an event says, with the place of each statement -----------

    def _of_rows(self, stored: pl.DataFrame) -> pl.DataFrame:
        """A deleted row says only when its key was deleted."""
        came = pl.col(SEQUENCES).struct
        return stored.select(
            *self.keys, *(pl.when(IS_ADD).then(n).alias(n) for n in self.values),
            *(came.field(n).alias(_of(n)) for n in self.values),
            pl.when(IS_ADD).then(came.field(DELETED_AT)).otherwise(self.sequence).alias(DELETED_AT),
            (~IS_ADD | came.field(DELETED_AT).is_not_null()).alias(DELETES),
            pl.col(self.sequence).alias(_of(_UPDATED)), IS_ADD.alias(_UPDATED),
        )  # fmt: skip

    def _of_events(self, events: pl.DataFrame) -> pl.DataFrame:
        at = pl.col(self.sequence)
        return events.select(
            *self.keys, *(pl.when(~pl.col(DELETES)).then(n).alias(n) for n in self.values),
            *(at.alias(_of(n)) for n in self.values),
            at.alias(DELETED_AT), DELETES,
            at.alias(_of(_UPDATED)), (~pl.col(DELETES)).alias(_UPDATED),
        )  # fmt: skip

    def _steps(self, images: pl.DataFrame) -> pl.DataFrame:
        """Everything that images say, one row each, in the order of events.

        `_STEP` is the place of a statement among all columns of all images.
        """
        said = [
            (pl.col(DELETED_AT), pl.col(DELETES), RowKind.DELETE),
            (pl.col(_of(_UPDATED)), pl.col(_UPDATED), RowKind.INSERT),
            *((pl.col(_of(n)), pl.col(n).is_not_null(), RowKind.INSERT) for n in self.values),
        ]
        row = pl.int_range(pl.len())
        steps = [
            images.select(
                at.alias(self.sequence),
                row.alias(SEQUENCE_NUMBER),
                pl.lit(int(kind), pl.Int8).alias(VALUE_KIND),
                (row + number * images.height).alias(_STEP),
                is_said.alias(_STORED),
            ).filter(_STORED)
            for number, (at, is_said, kind) in enumerate(said)
        ]
        return replace(self.order, key=()).sort(pl.concat(steps))

    def _ranked(self, images: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
        """For each image, the ranks of what it says in the order of events. NULL: nothing."""
        names = (DELETED_AT, _UPDATED, *self.values)
        ranks = np.full(len(names) * images.height, -1)
        ranks[steps[_STEP].to_numpy()] = np.arange(steps.height)
        columns = zip(names, np.split(ranks, len(names)), strict=True)
        found = images.select(self.keys).with_columns(pl.Series(n, own) for n, own in columns)
        return found.with_columns(pl.when(pl.col(n) >= 0).then(n) for n in names)

    def _as_rows(
        self, newest: pl.DataFrame, images: pl.DataFrame, steps: pl.DataFrame
    ) -> pl.DataFrame:
        """The rows of keys, from the ranks of the newest statements about them."""
        deleted = pl.col(DELETED_AT).fill_null(-1)
        left = newest.with_columns(pl.when(pl.col(n) > deleted).then(n) for n in self.values)
        row_of, place_of = steps[SEQUENCE_NUMBER], steps[self.sequence]
        at = {n: place_of.gather(left[n]).alias(n) for n in (*self.values, DELETED_AT)}
        last = left.select(pl.max_horizontal(DELETED_AT, _UPDATED)).to_series()
        kind = pl.when(pl.col(_UPDATED) > deleted).then(int(RowKind.INSERT))
        return left.select(
            *self.keys, place_of.gather(last).alias(self.sequence),
            *(images[n].gather(row_of.gather(left[n])).alias(n) for n in self.values),
            pl.struct(*at.values()).alias(SEQUENCES),
            kind.otherwise(int(RowKind.DELETE)).cast(pl.Int8).alias(VALUE_KIND),
        )  # fmt: skip

    def _without_same(self, wanted: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
        others = [self.sequence, *self.values, SEQUENCES, VALUE_KIND]
        kept = stored.select(*self.keys, *(pl.col(n).alias(_of(n)) for n in others))
        kept = kept.with_columns(pl.lit(True).alias(_STORED))
        both = wanted.join(kept, on=self.keys, how="left", nulls_equal=True, maintain_order="left")
        differs = pl.any_horizontal(
            pl.col(_STORED).is_null(), *(pl.col(n).ne_missing(pl.col(_of(n))) for n in others)
        )
        return both.filter(differs).select(*self.columns, VALUE_KIND)


def _of(name: str) -> str:
    return scratch(f"of-{name}")
