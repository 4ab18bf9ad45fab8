"""The rows of flows that keep history (SCD type 2) or ignore NULLs, from events in any order.

Both are pure computations over frames.

With SCD type 2, the rows of a key are intervals with equal values. The stored rows of a key
represent its events, so that a late event finds its place, and the result does not depend on the
order of arrival:

- An *opening* event begins an interval. Its row is visible to readers.
- A *hidden* event changes no column with a tracked history. Its row is a deleted row, which readers
  do not see, and ends where it begins.
- A *delete* is a deleted row without an end.

An interval shows the latest values of its events. So that no value is lost, the row that opens it
has the values of its last event, and the last event's row has those of the first. See design note
0025 in docs/design.

When NULLs are ignored, each column of the latest row of a key has its own order. An additional
column of a row stores when each of its values arrived and when its key was last deleted, also in
deleted rows. So a late event changes exactly what it would have changed on time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.base.dataclass import dataclass, replace
from keytide.base.process import scratch
from keytide.base.row_kind import RowKind
from keytide.format.data_file import VALUE_KIND
from keytide.merge.order import IS_ADD, SEQUENCE_NUMBER, MergeOrder

# -- SCD type 2 ------------------------------------------------------------------------------------


Places = npt.NDArray[np.int64]


IGNORED_NULLS = "__IGNORED_NULLS"
"""Lists the columns without a value in the last event, in a table that ignores NULLs."""

_DELETES, _OPENS, _HIDDEN, _BEGINS, _STORED, _GOES_ON = map(
    scratch, ("deletes", "opens", "hidden", "begins", "stored", "goes-on")
)
_DEAD = [int(RowKind.DELETE), int(RowKind.UPDATE_BEFORE)]


@dataclass(frozen=True)
class History:
    """The configuration: the order of a key's events, and columns by their role. Can be pickled.

    The sequence columns of `order` are the starts of intervals. `ends` has as many columns. A
    change of a `tracked` column opens an interval. With `ignores_nulls`, a NULL in an event leaves
    a value unchanged.
    """

    order: MergeOrder
    ends: tuple[str, ...]
    values: tuple[str, ...]
    tracked: frozenset[str]
    ignores_nulls: bool = False

    @property
    def starts(self) -> tuple[str, ...]:
        """The columns that order the events of a key."""
        return self.order.sequence

    def stored_columns(self, events: pl.DataFrame) -> tuple[str, ...]:
        """All columns of stored rows, in any order."""
        notes = (IGNORED_NULLS,) if self.ignores_nulls else ()
        return (*self.order.key, *self.starts, *self.values, *self.ends, *notes)

    def changed(self, stored: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
        """The rows to write to add events to the history of their keys.

        `events` has the key, `starts` and `values`. Of events with the same key and start, the last
        one wins. Stored rows that need no change are left out.
        """
        known, marked = self._events_of(stored), events.with_columns((~IS_ADD).alias(_DELETES))
        wanted = self._rows_of(pl.concat([known, marked.select(known.columns)]))
        return _differing_rows(wanted, stored, (*self.order.key, *self.starts))

    # -- from rows to events --------------------------------------------------------------------

    def _events_of(self, stored: pl.DataFrame) -> pl.DataFrame:
        """The events from which rows were created, with their original values."""
        is_dead = pl.col(VALUE_KIND).is_in(_DEAD)
        ends_at_once = pl.all_horizontal(
            pl.col(end).eq_missing(pl.col(start))
            for start, end in zip(self.starts, self.ends, strict=True)
        )
        deletes = is_dead & pl.col(self.ends[0]).is_null()
        marks = [
            ~is_dead.alias(_OPENS),
            deletes.alias(_DELETES),
            (is_dead & ends_at_once).alias(_HIDDEN),
        ]
        rows = self.order.sort(stored.with_columns(marks), arrival_decides=True)
        # A row that was deleted in another way is no longer an event, nor are its hidden events.
        before = pl.when(~pl.col(_HIDDEN) | self._is_new_key).then(_OPENS).forward_fill()
        rows = rows.filter(_OPENS | pl.col(_DELETES) | (pl.col(_HIDDEN) & before))
        events = self._with_own_values(rows)
        events = events.select(*self.order.key, *self.starts, *self.values, _DELETES)

        # Deletes that are no longer stored, but that closed stored intervals.
        ends = rows.filter(pl.col(_OPENS) & pl.col(self.ends[0]).is_not_null())
        place = [*self.order.key, *self.starts]
        renamed = dict(zip(self.ends, self.starts, strict=True))
        closed = ends.select(*self.order.key, *self.ends).rename(renamed)
        lost = closed.join(rows.select(place), on=place, how="anti", nulls_equal=True)
        nothing = [pl.lit(None, rows.schema[name]).alias(name) for name in self.values]
        return pl.concat([events, lost.select(*place, *nothing, pl.lit(True).alias(_DELETES))])

    def _with_own_values(self, stored: pl.DataFrame) -> pl.DataFrame:
        rows = stored
        if self.ignores_nulls:
            brought_none = pl.col(IGNORED_NULLS).list
            rows = rows.with_columns(
                pl.when(~brought_none.contains(name).fill_null(False)).then(name)
                for name in self.values
            )
        first, last = self._ends_of_intervals(rows.with_columns(_OPENS | self._is_new_key))
        # The rows of the first and the last event of an interval have each other's values.
        places = np.arange(rows.height)
        places[first], places[last] = last, first
        own = rows.with_columns(rows.select(self.values)[pl.Series(places)])
        return self._with_outlived(own, stored, first, last) if self.ignores_nulls else own

    def _with_outlived(
        self, own: pl.DataFrame, stored: pl.DataFrame, first: Places, last: Places
    ) -> pl.DataFrame:
        """Events and values that outlived the event that brought them.

        Retention removes hidden rows. If an interval shows a value that no stored event of its life
        explains, the last event of the interval brings it: so it stays what readers see, until a
        later event brings another one.
        """
        opening = stored[first]
        goes_on = pl.all_horizontal(
            pl.col(end).shift(1).eq_missing(pl.col(start))
            for start, end in zip(self.starts, self.ends, strict=True)
        )
        opening = opening.with_columns((goes_on & ~self._is_new_key).alias(_GOES_ON))
        life = np.zeros(own.height, np.int64)
        life[first] = ~opening[_GOES_ON].to_numpy()
        lives = pl.Series(life.cumsum())
        explained = own.select(pl.col(name).forward_fill().over(lives) for name in self.values)
        columns = []
        for name in self.values:
            shown = opening[name]
            before = opening.select(pl.when(_GOES_ON).then(pl.col(name).shift(1))).to_series()
            is_lost = (
                shown.is_not_null()
                & shown.ne_missing(explained[name].gather(last))
                & shown.ne_missing(before)
            ).to_numpy()
            places = np.arange(own.height)
            places[last[is_lost]] = own.height + np.flatnonzero(is_lost)
            columns.append(pl.concat([own[name], shown]).gather(places))
        return own.with_columns(columns)

    @property
    def _is_new_key(self) -> pl.Expr:
        differs = (pl.col(key).ne_missing(pl.col(key).shift(1)) for key in self.order.key)
        return pl.any_horizontal(pl.int_range(pl.len()) == 0, *differs)

    @staticmethod
    def _ends_of_intervals(events: pl.DataFrame) -> tuple[Places, Places]:
        """The positions of the first and of the last event of each interval, in the same order."""
        intervals = events[_OPENS].cum_sum().to_numpy()
        updates = np.flatnonzero(~events[_DELETES].to_numpy())
        changes = np.diff(intervals[updates]) != 0
        is_first, is_last = np.r_[True, changes], np.r_[changes, True]
        return updates[is_first[: len(updates)]], updates[is_last[: len(updates)]]

    # -- from events to rows --------------------------------------------------------------------

    def _rows_of(self, events: pl.DataFrame) -> pl.DataFrame:
        """The rows of all events of some keys."""
        place = [*self.order.key, *self.starts]
        events = self.order.sort(events, arrival_decides=True)
        events = events.unique(place, keep="last", maintain_order=True)
        nothing = (pl.when(~pl.col(_DELETES)).then(name) for name in self.values)
        events = self._marked(events.with_columns(nothing))
        first, last = self._ends_of_intervals(events)
        live, dead = (pl.lit(int(kind), pl.Int8) for kind in (RowKind.INSERT, RowKind.DELETE))

        # The row that opens an interval has the values of its last event.
        shown = [pl.col(_of(name)).alias(name) for name in self.values]
        if self.ignores_nulls:
            names = [pl.when(pl.col(name).is_null()).then(pl.lit(name)) for name in self.values]
            lacking = pl.concat_list(names).list.drop_nulls()
            shown.append(pl.when(lacking.list.len() > 0).then(lacking).alias(IGNORED_NULLS))
        left = events[last].select(*shown, *self.ends, live.alias(VALUE_KIND))
        intervals = pl.concat([events[first].select(place), left], how="horizontal")

        # The row of the last event has the values of the first one.
        events = events.with_columns(dead.alias(VALUE_KIND))
        if self.ignores_nulls:
            events = events.with_columns(pl.lit(None, pl.List(pl.String)).alias(IGNORED_NULLS))
        places = np.arange(events.height)
        places[last] = first
        own = events.with_columns(events.select(self.values)[pl.Series(places)])
        at_once = (pl.col(s).alias(e) for s, e in zip(self.starts, self.ends, strict=True))
        hidden = own.filter(~pl.col(_DELETES) & ~pl.col(_OPENS)).with_columns(at_once)
        endless = (pl.lit(None, events.schema[end]).alias(end) for end in self.ends)
        deletes = events.filter(_DELETES).with_columns(endless)
        frames = (intervals, hidden, deletes)
        columns = self.stored_columns(events)
        return pl.concat([frame.select(*columns, VALUE_KIND) for frame in frames])

    def _marked(self, events: pl.DataFrame) -> pl.DataFrame:
        """Events in order, with what they open or close, and the start of the next event."""
        begins = self._is_new_key | pl.col(_DELETES).shift(1).fill_null(True)
        events = events.with_columns(begins.alias(_BEGINS))
        left = (pl.col(name) for name in self.values)
        if self.ignores_nulls:
            life = pl.col(_BEGINS).cum_sum()
            left = (column.forward_fill().over(life) for column in left)
        events = events.with_columns(
            c.alias(_of(n)) for c, n in zip(left, self.values, strict=True)
        )
        before = (pl.col(_of(n)).ne_missing(pl.col(_of(n)).shift(1)) for n in self.tracked)
        opens = ~pl.col(_DELETES) & pl.any_horizontal(_BEGINS, *before)
        goes_on = ~self._is_new_key.shift(-1, fill_value=True)
        ends = (
            pl.when(goes_on).then(pl.col(start).shift(-1)).alias(end)
            for start, end in zip(self.starts, self.ends, strict=True)
        )
        return events.with_columns(opens.alias(_OPENS), *ends)


# -- the latest row of each key, with NULLs ignored ------------------------------------------------


SEQUENCES, DELETED_AT = "__SEQUENCES", "__DELETED_AT"
"""The column that stores the places of values, and its field for the last delete."""

_UPDATED, _IS_SAID, _STEP = map(scratch, ("updated", "said", "step"))


@dataclass(frozen=True)
class LatestRow:
    """The configuration: the order of a key's events, and the other columns. Can be pickled.

    `order` has one sequence column, which is not in `values`.
    """

    order: MergeOrder
    values: tuple[str, ...]

    @property
    def sequence(self) -> str:
        """The column that orders the events of a key."""
        (sequence,) = self.order.sequence
        return sequence

    def stored_columns(self, events: pl.DataFrame) -> tuple[str, ...]:
        """All columns of stored rows, in any order."""
        return (*self.order.key, self.sequence, *self.values, SEQUENCES)

    def changed(self, stored: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
        """See `Kernel`. Stored rows that need no change are left out."""
        images = self._images(stored, events)
        steps = self._steps(images)

        # For each image, the ranks of what it says in the order of events. NULL: nothing.
        names = (DELETED_AT, _UPDATED, *self.values)
        ranks = np.full(len(names) * images.height, -1)
        ranks[steps[_STEP].to_numpy()] = np.arange(steps.height)
        columns = zip(names, np.split(ranks, len(names)), strict=True)
        found = images.select(self.order.key).with_columns(pl.Series(n, own) for n, own in columns)
        ranked = found.with_columns(pl.when(pl.col(n) >= 0).then(n) for n in names)
        newest = ranked.group_by(self.order.key, maintain_order=True).max()
        wanted = self._as_rows(newest, images, steps)
        return _differing_rows(wanted, stored, self.order.key)

    def remaining_rows(self, rows: pl.DataFrame, place: pl.Series) -> pl.DataFrame:
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

    def _images(self, stored: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
        """Images of stored rows and events, with the place of each statement."""
        came, at = pl.col(SEQUENCES).struct, pl.col(self.sequence)
        # A deleted row says only when its key was deleted.
        of_rows = stored.select(
            *self.order.key, *(pl.when(IS_ADD).then(n).alias(n) for n in self.values),
            *(came.field(n).alias(_of(n)) for n in self.values),
            pl.when(IS_ADD).then(came.field(DELETED_AT)).otherwise(at).alias(DELETED_AT),
            (~IS_ADD | came.field(DELETED_AT).is_not_null()).alias(_DELETES),
            at.alias(_of(_UPDATED)), IS_ADD.alias(_UPDATED),
        )  # fmt: skip
        of_events = events.select(
            *self.order.key, *(pl.when(IS_ADD).then(n).alias(n) for n in self.values),
            *(at.alias(_of(n)) for n in self.values),
            at.alias(DELETED_AT), (~IS_ADD).alias(_DELETES),
            at.alias(_of(_UPDATED)), IS_ADD.alias(_UPDATED),
        )  # fmt: skip
        return pl.concat([of_rows, of_events])

    def _steps(self, images: pl.DataFrame) -> pl.DataFrame:
        """Everything that images say, one row each, in the order of events.

        `_STEP` is the place of a statement among all columns of all images.
        """
        said = [
            (pl.col(DELETED_AT), pl.col(_DELETES), RowKind.DELETE),
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
                is_said.alias(_IS_SAID),
            ).filter(_IS_SAID)
            for number, (at, is_said, kind) in enumerate(said)
        ]
        return replace(self.order, key=()).sort(pl.concat(steps))

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
            *self.order.key, place_of.gather(last).alias(self.sequence),
            *(images[n].gather(row_of.gather(left[n])).alias(n) for n in self.values),
            pl.struct(*at.values()).alias(SEQUENCES),
            kind.otherwise(int(RowKind.DELETE)).cast(pl.Int8).alias(VALUE_KIND),
        )  # fmt: skip


def _of(name: str) -> str:
    return scratch(f"of-{name}")


def _differing_rows(
    wanted: pl.DataFrame, stored: pl.DataFrame, place: Sequence[str]
) -> pl.DataFrame:
    """The rows without those that are stored in the same way at their place."""
    others = [name for name in wanted.columns if name not in place]
    kept = stored.select(
        *place, *(pl.col(name).alias(_of(name)) for name in others), pl.lit(True).alias(_STORED)
    )
    both = wanted.join(kept, on=place, how="left", nulls_equal=True, maintain_order="left")
    differs = pl.any_horizontal(
        pl.col(_STORED).is_null(), *(pl.col(name).ne_missing(pl.col(_of(name))) for name in others)
    )
    return both.filter(differs).select(wanted.columns)
