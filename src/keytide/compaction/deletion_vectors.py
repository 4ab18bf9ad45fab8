"""Compaction with deletion vectors: level 0 is applied, which gives each key's state and dead rows.

In a table with deletion vectors, every key has at most one version above level 0 that is not marked
dead. So the versions on level 0 are merged with that one, wherever it is. The result is written, or
it is a version that stays in place, and the others are marked. In files that are not rewritten,
rows die, and nothing else changes.

A delete that must be remembered is a version like any other, except for its mark: it is dead from
the beginning, so that readers, which do not merge, never show it. If a key has no other version
above level 0, the latest of its dead deletes is merged with the new versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from keytide.base.dataclass import dataclass, field
from keytide.base.process import cached_property, scratch
from keytide.base.row_kind import RETRACTS
from keytide.compaction.changelog import ChangelogWriter, Lookup
from keytide.format.arrow import polars_schema
from keytide.format.data_file import IS_DEAD, POSITION
from keytide.merge.layers import merge_runs, without_contained, without_outlived
from keytide.merge.order import IS_ADD
from keytide.read.runs import PLACE_COLUMNS, SYSTEM_COLUMNS, table_columns
from keytide.read.sections import PlannedFile
from keytide.snapshot.state import TableView

# -- level 0 on top of a table with deletion vectors -----------------------------------------------


_FILE = scratch("file")

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Marks:
    """Rows that are newly dead, by file."""

    positions: dict[str, list[Positions]] = field(default_factory=dict)

    def add(self, file_name: str, positions: Positions) -> None:
        """Add rows of a file."""
        if len(positions):
            self.positions.setdefault(file_name, []).append(positions)

    @property
    def by_file(self) -> dict[str, Positions]:
        """All of them."""
        return {name: np.concatenate(positions) for name, positions in self.positions.items()}


def retracts_of(kinds: pl.Series) -> Positions:
    """The positions of the retractions among the rows."""
    return np.flatnonzero(np.isin(kinds.to_numpy(), [*RETRACTS]))


@dataclass(frozen=True)
class Marker:
    """Merges the versions of one section of a bucket, and marks the versions that die.

    The changes of keys go to the changelog. REQUIRES: the versions are looked up with
    `PLACE_COLUMNS`. Unless the engine picks a version, no file of level 0 stays that has a key in
    common with another file.
    """

    lookup: Lookup
    marks: Marks
    changelog: ChangelogWriter

    def windows(self) -> Iterator[list[pl.DataFrame]]:
        """What must be written, as windows of versions with all columns, in key order.

        While windows are consumed, rows that die in files that stay are added to the marks. Raises
        like `MergedVersions.of`.
        """
        columns = None
        # Rows that stay are not written, so their other columns are read only for the changelog.
        if self._finds_winners and self.changelog.is_silent:
            columns = (*self._view.engine.columns(()), *SYSTEM_COLUMNS, *PLACE_COLUMNS)
        for window in self.lookup.windows(columns, self._shaped):
            yield self._folded(window)

    @property
    def _view(self) -> TableView:
        return self.lookup.view

    # -- reading --------------------------------------------------------------------------------

    def _shaped(self, file: PlannedFile, rows: pl.DataFrame) -> pl.DataFrame:
        """The versions of a file with all columns, and the number of the file."""
        number = pl.lit(self._numbers[file.meta.file_name], pl.Int32).alias(_FILE)
        missing = [
            pl.lit(None, dtype).alias(name)
            for name, dtype in self._types.items()
            if name not in rows.columns
        ]
        return rows.with_columns(number, *missing).select(*self.lookup.columns, _FILE)

    @cached_property
    def _types(self) -> dict[str, pl.DataType]:
        fields = self._view.schema.select(table_columns(self.lookup.columns))
        return dict(polars_schema(fields))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {file.meta.file_name: n for n, file in enumerate(self.lookup.section.files)}

    # -- merging --------------------------------------------------------------------------------

    @property
    def _finds_winners(self) -> bool:
        """Whether the result for a key is one of its versions, wherever that is."""
        return self._view.engine.picks_a_version or not self.lookup.section.needs_merge

    def _folded(self, window: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """The part of a window that must be written. Rows that die are marked."""
        # The versions that count, of keys that are new or in files that are rewritten.
        section, key = self.lookup.section, self._view.order.key
        filled = [place for place in section.upper if window[place].width]
        counted = without_outlived(window, filled, key, IS_DEAD)
        counted = without_contained(counted, section.containing, key)
        frames = [frame for frame in counted if frame.height]
        if not frames:
            return []
        staying = [self._of(frame, stays=True) for frame in frames]
        if not self._finds_winners:
            frames = [frame.drop(_FILE, *PLACE_COLUMNS) for frame in frames]
        with self._view.reading():
            merged = merge_runs(frames, self._view.order, self._view.engine)

        # Emit the changes of keys that are new.
        if not self.changelog.is_silent:
            upper = section.upper
            shown = [counted[p].filter(~pl.col(IS_DEAD)) for p in upper if counted[p].height]
            new = [rows for place, rows in enumerate(counted) if place not in upper]
            self.changelog.emit_versions(new, shown, merged)
        if not self._finds_winners:
            self._mark(staying, [])
            return merged
        self._mark(staying, [self._of(piece, stays=True).filter(IS_ADD) for piece in merged])
        return [self._of(piece, stays=False) for piece in merged]

    def _of(self, rows: pl.DataFrame, *, stays: bool) -> pl.DataFrame:
        """The rows in files that stay in place, or in the others."""
        staying = self.lookup.staying_files
        numbers = [n for name, n in self._numbers.items() if (name in staying) == stays]
        return rows.filter(pl.col(_FILE).is_in(numbers))

    def _mark(self, staying: Sequence[pl.DataFrame], shown: Sequence[pl.DataFrame]) -> None:
        """Mark rows of files that stay, except for those that are shown from now on."""
        place = [_FILE, POSITION]
        dead = pl.concat([rows.filter(~pl.col(IS_DEAD)).select(place) for rows in staying])
        if shown:
            left = pl.concat([rows.select(place) for rows in shown])
            dead = dead.join(left, on=place, how="anti")
        names = list(self._numbers)
        for (number,), rows in dead.group_by(_FILE):
            self.marks.add(names[int(str(number))], rows[POSITION].to_numpy())
