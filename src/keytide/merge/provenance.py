"""The origin of a merged row, found by running the engine's merge over version numbers.

Every value is replaced by the number of its version, in a list. A column that the engine copies
then contains the number of the version that it was copied from. Aggregate functions are replaced by
one that collects the numbers of its inputs. So no decision of an engine is implemented twice. Only
columns that order versions keep their values.

For copied values the result is exact. An aggregate comes from every version with a non-NULL input
or, for functions that pick an extreme, from those that have it. Details within a function (a member
of a set that already exists, a nested row that is replaced) are not considered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import polars as pl

from keytide.base.row_kind import RowKind
from keytide.merge.engine import MergeEngine
from keytide.merge.functions.collect import Collect
from keytide.merge.functions.first_last import (
    FirstNonNullValue,
    FirstValue,
    LastNonNullValue,
    LastValue,
)
from keytide.merge.functions.inputs import AggregatedColumn, AggregateFunction, Inputs
from keytide.merge.functions.numeric import Max, Min
from keytide.merge.order import IS_ADD, SEQUENCE_NUMBER, VALUE_KIND, MergeOrder
from keytide.merge.slices import Marks

__all__ = ["EXTREMES", "PICKS", "VERSION", "Provenance", "Removal", "provenance_of"]

VERSION = "_KEY_VERSION"
"""The column of version numbers. No table column can have this name."""

PICKS = (LastValue, LastNonNullValue, FirstValue, FirstNonNullValue)
"""Functions that copy one of their inputs."""

EXTREMES = (Max, Min)
"""Functions whose result equals some of their inputs."""

_NULL_COUNTS = (LastValue, FirstValue)


@dataclass(frozen=True)
class Removal:
    """The version that last removed a row, and the last version for which it stayed so."""

    by: int
    until: int


@dataclass(frozen=True)
class Provenance:
    """The result of merging the versions of one key, and the versions that each column comes from.

    `merged` has one row or none, whose kind can be that of a retract. `base` is the version that
    provides what the engine does not merge column by column. `taken` has every column, without
    versions if none gave a value. `winners` has the latest version of each sequence group, by the
    fields of the group.
    """

    merged: pl.DataFrame
    base: int | None = None
    taken: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    winners: Mapping[tuple[str, ...], int | None] = field(default_factory=dict)
    removal: Removal | None = None

    @property
    def row(self) -> pl.DataFrame:
        """The row that a reader sees, or none."""
        return self.merged.filter(IS_ADD)


def provenance_of(versions: pl.DataFrame, order: MergeOrder, engine: MergeEngine) -> Provenance:
    """Merge the versions of one key, and find the origin of the result.

    REQUIRES: what `engine.merge` requires. All rows have the same key and, as `VERSION`, an
    increasing number. Raises what the merge raises.
    """
    merged = engine.merge(versions)
    if not merged.height:
        return Provenance(merged)
    # A second merge, with numbers instead of values. What it copies shows the origin.
    traced, numbers = _traced(engine, versions), _numbered(versions, order, engine)
    origin = traced.merge(numbers).row(0, named=True)
    winners = {group.sequence: origin[_winner(i)] for i, group in enumerate(engine.groups)}
    base = origin[VERSION]
    taken = dict.fromkeys((*order.columns, *engine.compared), _one(base))
    taken |= {name: tuple(origin[name] or ()) for name in _merged_columns(versions, order, engine)}
    taken |= {name: _one(winner) for names, winner in winners.items() for name in names}
    return Provenance(merged, base, taken, winners, _removal(engine, traced, numbers))


# -- version numbers ---------------------------------------------------------------------------


def _numbered(versions: pl.DataFrame, order: MergeOrder, engine: MergeEngine) -> pl.DataFrame:
    """The versions with numbers as values. NULL stays where the engine checks for it."""
    gaps = _gaps(engine)
    number = pl.concat_list(pl.col(VERSION))
    columns = [
        (pl.when(pl.col(name).is_not_null()).then(number) if name in gaps else number).alias(name)
        for name in _merged_columns(versions, order, engine)
    ]
    says_something = (
        pl.any_horizontal(pl.col(name).is_not_null() for name in group.sequence)
        for group in engine.groups
    )
    winners = (
        pl.when(says).then(pl.col(VERSION)).alias(_winner(i))
        for i, says in enumerate(says_something)
    )
    return versions.with_columns(*columns, *winners)


def _merged_columns(versions: pl.DataFrame, order: MergeOrder, engine: MergeEngine) -> list[str]:
    """The columns whose values do not affect the engine's decisions."""
    ordering = {*order.columns, *(name for group in engine.groups for name in group.sequence)}
    kept = {*ordering, *engine.compared, VERSION, SEQUENCE_NUMBER, VALUE_KIND}
    return [name for name in versions.columns if name not in kept]


def _gaps(engine: MergeEngine) -> frozenset[str]:
    """The columns in which NULL means "no value"."""
    folds = engine.folds.items()
    return engine.gaps | {name for name, f in folds if not isinstance(f.function, _NULL_COUNTS)}


def _winner(group: int) -> str:
    return f"{VERSION}_{group}"


def _one(version: int | None) -> tuple[int, ...]:
    return () if version is None else (version,)


# -- the engine over numbers -------------------------------------------------------------------


def _traced(engine: MergeEngine, versions: pl.DataFrame) -> MergeEngine:
    """The engine with functions that collect numbers, and groups that record their latest version.

    An increasing number as the last field of each group breaks ties as the group does anyway.
    """
    groups = tuple(
        replace(group, sequence=(*group.sequence, _winner(i)))
        for i, group in enumerate(engine.groups)
    )
    return engine.tracing(_tracing(engine.folds, versions), groups)


def _tracing(
    folds: Mapping[str, AggregatedColumn], versions: pl.DataFrame
) -> dict[str, AggregatedColumn]:
    return {
        name: fold
        if isinstance(fold.function, PICKS)
        else replace(fold, function=_Origins(name, fold.function, versions.select(VERSION, name)))
        for name, fold in folds.items()
    }


@dataclass(frozen=True)
class _Origins(AggregateFunction):
    """Collects the numbers of the versions that a function aggregates."""

    name: ClassVar[str] = "origins"
    can_retract: ClassVar[bool] = True

    function: AggregateFunction
    values: pl.DataFrame

    def fold(self, inputs: Inputs) -> pl.Series:
        """The numbers, in merge order."""
        counts = inputs.adds | inputs.retracts
        if isinstance(self.function, EXTREMES):
            counts &= self._reaches(inputs)
        all_adds = replace(inputs, adds=counts, retracts=np.zeros_like(counts))
        return Collect(self.column).fold(all_adds)

    def _reaches(self, inputs: Inputs) -> Marks:
        """Which inputs equal the result."""
        # Inputs are version numbers here, so the extreme is searched in the versions' values.
        places = self.values[VERSION].search_sorted(inputs.values.list.first())
        values = self.values[self.column].gather(places)
        result = self.function.fold(replace(inputs, values=values))
        reaches: Marks = values.eq_missing(result.gather(inputs.slices.keys)).to_numpy()
        return reaches


# -- removed rows --------------------------------------------------------------------------------


def _removal(engine: MergeEngine, traced: MergeEngine, numbers: pl.DataFrame) -> Removal | None:
    """When the row was removed for the last time, found by merging increasing prefixes."""
    # Engines do not report when a row was removed, so the merge is repeated for each version. A key
    # has few versions, and only `why` needs this.
    if not engine.removes_rows or numbers.select(IS_ADD.all()).item():
        return None
    removed = [_is_removed(numbers.head(count), traced) for count in range(1, numbers.height + 1)]
    if not any(removed):
        return None
    until = max(place for place, is_removed in enumerate(removed) if is_removed)
    by = until
    while by and removed[by - 1]:
        by -= 1
    return Removal(by=numbers[VERSION][by], until=numbers[VERSION][until])


def _is_removed(numbers: pl.DataFrame, traced: MergeEngine) -> bool:
    # A single version would be unchanged, so the first one is duplicated.
    merged = traced.merge(pl.concat([numbers.head(1), numbers]))
    return merged.height == 1 and merged[VALUE_KIND][0] == RowKind.DELETE
