"""Explanations of what happened to each version of a key, as sentences for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from keytide.base.lazily import cached_property
from keytide.base.row_kind import RowKind
from keytide.merge.engine import MergeEngine
from keytide.merge.functions.first_last import FirstNonNullValue, FirstValue, LastValue
from keytide.merge.functions.numeric import Sum
from keytide.merge.order import SEQUENCE_NUMBER, VALUE_KIND, MergeOrder
from keytide.merge.provenance import EXTREMES, PICKS, VERSION, Provenance
from keytide.merge.sequence_group import SequenceGroup
from keytide.options import keys

__all__ = ["outcomes", "shown"]

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
        return (
            self._skipped(version)
            or self._as_a_whole(version)
            or self._removed(version)
            or self._column_by_column(version)
        )

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

    @cached_property
    def _has_row(self) -> bool:
        return self.provenance.row.height > 0

    def _kind(self, version: int) -> RowKind:
        return RowKind(self._facts[version][VALUE_KIND])

    def _is_retract(self, version: int) -> bool:
        return not self._kind(version).is_add

    def _group_of(self, column: str) -> SequenceGroup | None:
        return next((group for group in self.engine.groups if column in group.columns), None)

    # -- explanations of whole versions ----------------------------------------------------------

    def _skipped(self, version: int) -> str | None:
        reason = self.engine.skips(self._kind(version))
        return None if reason is None else f"ignored: {reason}"

    def _as_a_whole(self, version: int) -> str | None:
        base = self.provenance.base
        if base is None or not self.engine.picks_a_version:
            return None
        if version == base:
            said = {RowKind.DELETE: "deletes the row", RowKind.UPDATE_BEFORE: "retracts the row"}
            return said.get(self._kind(version), "is the row")
        return self.engine.loses(base, self._reason(version, base, self.order.sequence))

    def _removed(self, version: int) -> str | None:
        removal = self.provenance.removal
        if removal is None or version > removal.until:
            return None
        if version == removal.by:
            later = [number for number in self._facts if number > removal.until]
            if not self._has_row or not later:
                return "deletes the row"
            return f"deleted the row, and version {later[0]} created it again"
        if self._has_row and version in self._used:
            return None
        if version < removal.by:
            return f"removed by version {removal.by}"
        return f"ignored: version {removal.by} had already deleted the row"

    # -- explanations by column ----------------------------------------------------------------

    def _column_by_column(self, version: int) -> str:
        if not self._has_row:
            return "is stored as a retract: there is no row yet from which to retract"
        if self._used == {version}:
            return "is the row"
        said: dict[_Clause, list[str]] = {}
        taken = self.provenance.taken
        for name in sorted(self.columns, key=lambda name: version not in taken[name]):
            clause = self._clause(version, name)
            if clause is not None:
                said.setdefault(clause, []).append(name)
        if not said:
            retract = self._is_retract(version)
            return "retracts nothing" if retract else "ignored: all its columns are NULL"
        return "; ".join(f"{before}{', '.join(n)}{after}" for (before, after), n in said.items())

    def _clause(self, version: int, column: str) -> _Clause | None:
        if version in self.provenance.taken[column]:
            return self._given(version, column)
        is_null = column not in self._present[version]
        group = self._group_of(column)
        if group is not None and self._says_nothing(version, group):
            names = ", ".join(group.sequence)
            silent = f" ignored: all columns of its sequence group ({names}) are NULL"
            return None if is_null else ("", silent)
        if self._is_retract(version):
            return self._taken_back(version, column, group)
        return None if is_null else self._lost(version, column, group)

    def _given(self, version: int, column: str) -> _Clause:
        fold, is_retract = self.engine.folds.get(column), self._is_retract(version)
        if fold is None or isinstance(fold.function, PICKS):
            return "sets ", ""
        function = fold.function
        if isinstance(function, EXTREMES):
            return f"sets the {function.name} of ", ""
        if isinstance(function, Sum):
            row = self.versions.filter(pl.col(VERSION) == version)
            value = shown(row[column][0])
            return (f"subtracts {value} from ", "") if is_retract else (f"adds {value} to ", "")
        return "is retracted from " if is_retract else "is aggregated into ", f" ({function.name})"

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

    def _taken_back(self, version: int, column: str, group: SequenceGroup | None) -> _Clause | None:
        """The effect of a retract on a column to which it gives no value."""
        fold, taken = self.engine.folds.get(column), self.provenance.taken[column]
        is_null = column not in self._present[version]
        if fold is None:
            return self._taken_back_from_group(version, column, group)
        if is_null and not isinstance(fold.function, LastValue):
            return None
        if fold.ignore_retract:
            return "leaves ", f" unchanged ('{keys.word_of(keys.IGNORE_RETRACT)}')"
        if taken and taken[-1] > version:
            return "", f" replaced by version {taken[-1]}"
        return "retracts ", ""

    def _taken_back_from_group(
        self, version: int, column: str, group: SequenceGroup | None
    ) -> _Clause | None:
        if group is None or column in group.sequence:
            return None
        winner = self._winner(group)
        if winner is None or winner == version:
            return "retracts ", ""
        reason = self._reason(version, winner, group.sequence)
        return "does not retract ", f": version {winner} is newer, {reason}"

    def _says_nothing(self, version: int, group: SequenceGroup) -> bool:
        return all(self._facts[version][name] is None for name in group.sequence)

    def _winner(self, group: SequenceGroup | None) -> int | None:
        return None if group is None else self.provenance.winners[group.sequence]

    # -- why one version precedes another --------------------------------------------------------

    def _reason(self, loser: int, winner: int, fields: Iterable[str]) -> str:
        lost, won = self._facts[loser], self._facts[winner]
        ties = []
        for name in fields:
            low, high = (self._comparable(name, facts[name]) for facts in (lost, won))
            if low != high:
                return self._ordered(name, lost[name], won[name], low < high)
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

    def _ordered(self, name: str, lost: Any, won: Any, is_less: bool) -> str:
        # The sequence does not decide, so the position did: late adds of a group only fill gaps.
        if not is_less and not (self.order.descending and name in self.order.sequence):
            return f"both were late for {name}, and it arrived first"
        return f"sequence field {name} {shown(lost)} {'<' if is_less else '>'} {shown(won)}"

    def _comparable(self, name: str, value: Any) -> tuple[int, Any]:
        """A value in comparable form: NULL lowest, NaN highest, CHAR without trailing blanks."""
        if value is None:
            return 0, 0
        # NaN is the only value that does not equal itself.
        if value != value:
            return 2, 0
        padded = self.order.padded.union(*(group.padded for group in self.engine.groups))
        return 1, value.rstrip(" ") if name in padded else value
