"""Explanations of a merged row: its origin, and what happened to each version, as sentences.

The origin is found by running the engine's merge over version numbers. Every value is replaced by
the number of its version, in a list. A column that the engine copies then contains the number of
the version that it was copied from. Aggregate functions are replaced by one that collects the
numbers of its inputs. So no decision of an engine is implemented twice. Only columns that order
versions keep their values.

For copied values the result is exact. An aggregate comes from every version with a non-NULL input
or, for functions that pick an extreme, from those that have it. Details within a function (a member
of a set that already exists, a nested row that is replaced) are not considered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import polars as pl

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.base.row_kind import RowKind
from keytide.merge.engine import MergeEngine, SequenceGroup
from keytide.merge.functions.collections import Collect
from keytide.merge.functions.inputs import AggregateFunction, Inputs
from keytide.merge.functions.scalars import (
    FirstNonNullValue,
    FirstValue,
    LastNonNullValue,
    LastValue,
    Max,
    Min,
    Sum,
)
from keytide.merge.order import IS_ADD, SEQUENCE_NUMBER, VALUE_KIND, MergeOrder
from keytide.merge.windows import Marks
from keytide.options import keys

# -- the origin ------------------------------------------------------------------------------------


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
    versions if none gave a value. `latest_by_group` has the latest version of each sequence group,
    by the fields of the group.
    """

    merged: pl.DataFrame
    base: int | None = None
    taken: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    latest_by_group: Mapping[tuple[str, ...], int | None] = field(default_factory=dict)
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

    # The engine with functions that collect numbers, and groups that record their latest version.
    # An increasing number as the last field of each group breaks ties as the group does anyway.
    groups = tuple(
        replace(group, sequence=(*group.sequence, _winner(i)))
        for i, group in enumerate(engine.groups)
    )
    tracing = {
        name: fold
        if isinstance(fold.function, PICKS)
        else replace(fold, function=_Origins(name, fold.function, versions.select(VERSION, name)))
        for name, fold in engine.folds.items()
    }
    traced, numbers = engine.tracing(tracing, groups), _numbered(versions, order, engine)
    origin = traced.merge(numbers).row(0, named=True)
    winners = {group.sequence: origin[_winner(i)] for i, group in enumerate(engine.groups)}
    base = origin[VERSION]
    taken = dict.fromkeys((*order.columns, *engine.compared), () if base is None else (base,))
    taken |= {name: tuple(origin[name] or ()) for name in _merged_columns(versions, order, engine)}
    for names, winner in winners.items():
        taken |= dict.fromkeys(names, () if winner is None else (winner,))
    return Provenance(merged, base, taken, winners, _removal(engine, traced, numbers))


# -- version numbers -------------------------------------------------------------------------------


def _numbered(versions: pl.DataFrame, order: MergeOrder, engine: MergeEngine) -> pl.DataFrame:
    """The versions with numbers as values. NULL stays where the engine checks for it."""
    # The columns in which NULL means "no value".
    folds = engine.folds.items()
    gaps = engine.gaps | {name for name, f in folds if not isinstance(f.function, _NULL_COUNTS)}
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


def _winner(group: int) -> str:
    return f"{VERSION}_{group}"


# -- the engine over numbers -----------------------------------------------------------------------


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
            # Which inputs equal the result.
            # Inputs are version numbers here, so the extreme is searched in the versions' values.
            places = self.values[VERSION].search_sorted(inputs.values.list.first())
            values = self.values[self.column].gather(places)
            result = self.function.fold(replace(inputs, values=values))
            reaches: Marks = values.eq_missing(result.gather(inputs.slices.keys)).to_numpy()
            counts &= reaches
        all_adds = replace(inputs, adds=counts, retracts=np.zeros_like(counts))
        return Collect(self.column).fold(all_adds)


# -- removed rows ----------------------------------------------------------------------------------


def _removal(engine: MergeEngine, traced: MergeEngine, numbers: pl.DataFrame) -> Removal | None:
    """When the row was removed for the last time, found by merging increasing prefixes."""
    # Engines do not report when a row was removed, so the merge is repeated for each version. A key
    # has few versions, and only `why` needs this.
    if not engine.removes_rows or numbers.select(IS_ADD.all()).item():
        return None
    removed = []
    for count in range(1, numbers.height + 1):
        # A single version would be unchanged, so the first one is duplicated.
        merged = traced.merge(pl.concat([numbers.head(1), numbers.head(count)]))
        removed.append(merged.height == 1 and merged[VALUE_KIND][0] == RowKind.DELETE)
    if not any(removed):
        return None
    until = max(place for place, is_removed in enumerate(removed) if is_removed)
    by = until
    while by and removed[by - 1]:
        by -= 1
    return Removal(by=numbers[VERSION][by], until=numbers[VERSION][until])


# -- sentences about versions ----------------------------------------------------------------------


_TEXT_MAX = 100

_Clause = tuple[str, str]
"""The text before and after the column names."""


def outcomes(
    versions: pl.DataFrame,
    provenance: Provenance,
    order: MergeOrder,
    engine: MergeEngine,
    columns: Sequence[str],
) -> list[str]:
    """A sentence for each version from which `provenance` was computed.

    `columns` are those to mention, without key columns.
    """
    teller = _Teller(versions, provenance, order, engine, tuple(columns))
    return [teller.outcome(number) for number in versions[VERSION]]


def shown(value: Any) -> str:
    """A value as text without control characters, shortened if it is long."""
    if value is None:
        return "NULL"
    text = repr(value) if isinstance(value, str | bytes | list | dict) else str(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."


@dataclass(frozen=True)
class _Teller:
    versions: pl.DataFrame
    provenance: Provenance
    order: MergeOrder
    engine: MergeEngine
    columns: tuple[str, ...]

    def outcome(self, version: int) -> str:
        """The explanation for a version."""
        kind, base = self._kind(version), self.provenance.base
        skipped = self.engine.skips(kind)
        if skipped is not None:
            return f"ignored: {skipped}"
        if base is not None and self.engine.picks_a_version:
            if version != base:
                return self.engine.loses(base, self._reason(version, base, self.order.sequence))
            said = {RowKind.DELETE: "deletes the row", RowKind.UPDATE_BEFORE: "retracts the row"}
            return said.get(kind, "is the row")
        removed = self._removed(version)
        if removed is not None:
            return removed
        if not self.provenance.row.height:
            return "is stored as a retract: there is no row yet from which to retract"
        if self._used == {version}:
            return "is the row"

        clauses: dict[_Clause, list[str]] = {}
        taken = self.provenance.taken
        for name in sorted(self.columns, key=lambda name: version not in taken[name]):
            clause = self._clause(version, name)
            if clause is not None:
                clauses.setdefault(clause, []).append(name)
        if not clauses:
            return "ignored: all its columns are NULL" if kind.is_add else "retracts nothing"
        return "; ".join(f"{before}{', '.join(n)}{after}" for (before, after), n in clauses.items())

    # -- facts about the versions --------------------------------------------------------------

    @cached_property
    def _facts(self) -> dict[int, dict[str, Any]]:
        """The values that order the versions, by version number."""
        fields = (name for group in self.engine.groups for name in group.sequence)
        names = (VERSION, *self.order.sequence, *fields, SEQUENCE_NUMBER, VALUE_KIND)
        rows = self.versions.select(dict.fromkeys(names).keys()).rows(named=True)
        return {row[VERSION]: row for row in rows}

    @cached_property
    def _present(self) -> dict[int, set[str]]:
        """The non-NULL columns of each version."""
        marks = self.versions.select(VERSION, pl.col(self.columns).is_not_null())
        return {
            number: {n for n, is_present in zip(self.columns, row, strict=True) if is_present}
            for number, *row in marks.rows()
        }

    @cached_property
    def _used(self) -> set[int]:
        """The versions that the row has values from."""
        return {version for name in self.columns for version in self.provenance.taken[name]}

    def _kind(self, version: int) -> RowKind:
        return RowKind(self._facts[version][VALUE_KIND])

    def _is_retract(self, version: int) -> bool:
        return not self._kind(version).is_add

    # -- explanations of whole versions ----------------------------------------------------------

    def _removed(self, version: int) -> str | None:
        removal = self.provenance.removal
        if removal is None or version > removal.until:
            return None
        if version == removal.by:
            later = [number for number in self._facts if number > removal.until]
            if not self.provenance.row.height or not later:
                return "deletes the row"
            return f"deleted the row, and version {later[0]} created it again"
        if self.provenance.row.height and version in self._used:
            return None
        if version < removal.by:
            return f"removed by version {removal.by}"
        return f"ignored: version {removal.by} had already deleted the row"

    # -- explanations by column ----------------------------------------------------------------

    def _clause(self, version: int, column: str) -> _Clause | None:
        fold, taken = self.engine.folds.get(column), self.provenance.taken[column]
        is_retract = self._is_retract(version)
        if version in taken:
            function = fold.function if fold is not None else None
            if function is None or isinstance(function, PICKS):
                return "sets ", ""
            if isinstance(function, EXTREMES):
                return f"sets the {function.name} of ", ""
            if isinstance(function, Sum):
                row = self.versions.filter(pl.col(VERSION) == version)
                value = shown(row[column][0])
                return (f"subtracts {value} from ", "") if is_retract else (f"adds {value} to ", "")
            verb = "is retracted from " if is_retract else "is aggregated into "
            return verb, f" ({function.name})"
        is_null = column not in self._present[version]
        group = next((group for group in self.engine.groups if column in group.columns), None)
        if group and all(self._facts[version][name] is None for name in group.sequence):
            names = ", ".join(group.sequence)
            silent = f" ignored: all columns of its sequence group ({names}) are NULL"
            return None if is_null else ("", silent)
        if not is_retract:
            return None if is_null else self._lost(version, column, group)

        # The effect of a retract on a column to which it gives no value.
        if fold is None:
            if group is None or column in group.sequence:
                return None
            winner = self._winner(group)
            if winner is None or winner == version:
                return "retracts ", ""
            reason = self._reason(version, winner, group.sequence)
            return "does not retract ", f": version {winner} is newer, {reason}"
        if is_null and not isinstance(fold.function, LastValue):
            return None
        if fold.ignore_retract:
            return "leaves ", f" unchanged ('{keys.word_of(keys.IGNORE_RETRACT)}')"
        if taken and taken[-1] > version:
            return "", f" replaced by version {taken[-1]}"
        return "retracts ", ""

    def _lost(self, version: int, column: str, group: SequenceGroup | None) -> _Clause:
        """Why a non-NULL value is not in the row."""
        fold, taken = self.engine.folds.get(column), self.provenance.taken[column]
        if fold is not None and isinstance(fold.function, EXTREMES):
            return f"is not the {fold.function.name} of ", ""
        if fold is not None and isinstance(fold.function, FirstValue | FirstNonNullValue):
            return "", f" ignored: version {taken[0]} comes first"
        winner = taken[-1] if taken else self._winner(group) if fold is None else None
        if winner is None:
            return "", " retracted later"
        verb = "retracted" if self._is_retract(winner) and not taken else "replaced"
        fields = group.sequence if group else self.order.sequence
        return "", f" {verb} by version {winner}: {self._reason(version, winner, fields)}"

    def _winner(self, group: SequenceGroup | None) -> int | None:
        return None if group is None else self.provenance.latest_by_group[group.sequence]

    # -- why one version precedes another --------------------------------------------------------

    def _reason(self, loser: int, winner: int, fields: Iterable[str]) -> str:
        lost, won = self._facts[loser], self._facts[winner]
        ties = []
        for name in fields:
            low, high = (self._comparable(name, facts[name]) for facts in (lost, won))
            if low != high:
                # The sequence does not decide, so the position did: late adds of a group only fill
                # gaps.
                is_descending = self.order.descending and name in self.order.sequence
                if low > high and not is_descending:
                    return f"both were late for {name}, and it arrived first"
                sign = "<" if low < high else ">"
                return f"sequence field {name} {shown(lost[name])} {sign} {shown(won[name])}"
            ties.append(name)
        tie = f"{', '.join(ties)} {'ties' if len(ties) == 1 else 'tie'}, and " if ties else ""
        before, after = lost[SEQUENCE_NUMBER], won[SEQUENCE_NUMBER]
        settled = self.order.settles_ties
        if settled is not None and before >= after:
            return f"{tie}{settled}"
        if before < after:
            return f"{tie}it arrived later ({SEQUENCE_NUMBER} {before} < {after})"
        if self._is_retract(loser) and not self._is_retract(winner):
            return f"{tie}a retract comes before an add of the same {SEQUENCE_NUMBER}"
        return f"{tie}of rows with the same {SEQUENCE_NUMBER}, the later one wins"

    def _comparable(self, name: str, value: Any) -> tuple[int, Any]:
        """A value in comparable form: NULL lowest, NaN highest, CHAR without trailing blanks."""
        if value is None:
            return 0, 0
        # NaN is the only value that does not equal itself.
        if value != value:
            return 2, 0
        padded = self.order.padded.union(*(group.padded for group in self.engine.groups))
        return 1, value.rstrip(" ") if name in padded else value
