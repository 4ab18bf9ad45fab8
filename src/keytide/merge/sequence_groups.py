"""Sequence groups: a partial update whose columns have sequence fields of their own.

The fields of a group order the versions for the columns of the group: NULL lowest, field by field,
ties to the later version. A version in which all of them are NULL does not affect the group. The
latest version provides all columns of the group together, including NULLs. A retract as the latest
version leaves NULL. Columns with an aggregate function aggregate every version that affects their
group, with a late one treated as if it had come first. Columns outside of groups have the last
value that is not NULL.

Groups listed in `partial-update.remove-record-on-sequence-group` determine whether the row exists:
a -D that is the latest version of such a group removes it, and an add that is the latest version
restores it. Anything else has no effect, so late events do not either. The -D itself is kept as the
tombstone. A restored row has the values since then. Values of other groups are lost, and values
that they send while the row is removed are not kept.

Laws: idempotent. The order of arrival matters only to columns outside of groups, to functions that
say so, to a -U of a determining group whose +U never arrives, and, when a row is restored, to other
groups. Merging can be split up anywhere, unless retracts are combined with aggregate functions or
with groups that determine the row. Then it can be split up only from the oldest version on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import polars as pl

from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.base.row_kind import RowKind
from keytide.merge.engine import MergeEngine, NeededVersions, SequenceGroup, sequence_groups_of
from keytide.merge.functions.inputs import AggregatedColumn, Inputs, leaves_null
from keytide.merge.functions.registry import (
    FUNCTION_OPTIONS,
    NO_FUNCTIONS,
    aggregated_columns,
    function_names,
)
from keytide.merge.functions.user import MergeFunction
from keytide.merge.layers import depending_on_order, one_place
from keytide.merge.order import IS_ADD, VALUE_KIND, MergeOrder
from keytide.merge.refusal import (
    AFTER_DELETE,
    IGNORED,
    WITHOUT_COLUMN,
    Refusal,
    check_not_null,
    deletes_of,
    retracts_of,
)
from keytide.merge.windows import (
    KeySlices,
    Marks,
    Positions,
    merge_repeated,
    rows_with,
    take,
    take_columns,
)
from keytide.options import TableOptions, keys
from keytide.types import Field


@dataclass(frozen=True)
class SequenceGroups(MergeEngine):
    """Merges each key's versions group by group."""

    meaning: ClassVar[str] = (
        "Each column gets its latest value that is not NULL. Columns of a sequence group follow "
        "the order of their group."
    )
    options: ClassVar[tuple[str, ...]] = (
        *FUNCTION_OPTIONS,
        keys.SEQUENCE_GROUP,
        keys.PARTIAL_UPDATE_REMOVE_RECORD_ON_DELETE,
        keys.PARTIAL_UPDATE_REMOVE_RECORD_ON_SEQUENCE_GROUP,
    )
    fills_gaps: ClassVar[bool] = True
    order: MergeOrder
    groups: tuple[SequenceGroup, ...] = field()  # no default, unlike in engines without groups
    filled: frozenset[str]
    """Columns to fill if they are in no group. Others come from the last version."""
    folds: Mapping[str, AggregatedColumn] = field(default_factory=dict)
    """Aggregate functions of columns in groups."""
    not_null: frozenset[str] = frozenset()
    ignore_delete: bool = False

    refuses_update = (
        "its sequence groups decide which values are newer, so UPDATE is not supported; "
        "insert the new values with their sequence fields instead"
    )

    @classmethod
    def of(
        cls,
        order: MergeOrder,
        fields: tuple[Field, ...],
        options: TableOptions,
        functions: Mapping[str, MergeFunction] = NO_FUNCTIONS,
    ) -> SequenceGroups:
        """The engine for a table with sequence groups. Raises as `MergeEngine.of` does."""
        groups = sequence_groups_of(fields, options)
        protected = {name for group in groups for name in group.protected}
        names = function_names(protected, options)
        return cls(
            order=order,
            groups=groups,
            folds=aggregated_columns(fields, names, options, functions),
            filled=frozenset(f.name for f in fields) - set(order.columns),
            not_null=frozenset(f.name for f in fields if not f.type.nullable) - set(order.columns),
            ignore_delete=options.ignore_delete,
        )

    @property
    def way_out(self) -> str:
        """Suggests to omit the column or the key, or a -D if that removes the row."""
        deciding = [name for g in self.groups if g.decides_about_row for name in g.sequence]
        if not deciding:
            return WITHOUT_COLUMN
        return f"{AFTER_DELETE} (the -D with the latest {', '.join(deciding)})"

    def columns(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """The sequence fields of wanted columns' groups, and of groups that determine the row."""
        names = tuple(wanted)
        needed = (
            name
            for group in self.groups
            if group.decides_about_row or not set(names).isdisjoint(group.columns)
            for name in group.sequence
        )
        return tuple(dict.fromkeys((*self.order.columns, *names, *needed)))

    def refusals(self, rows: pl.DataFrame) -> Iterator[Refusal]:
        """Retracts and values that an affected group does not support."""
        if self.ignore_delete:
            rows = rows.with_columns(pl.lit(0, dtype=pl.Int8).alias(VALUE_KIND))
        retracts = retracts_of(rows)
        deletes_row = deletes_of(rows) & self._affects_row(rows)
        for group in self.groups:
            heard = _is_heard(rows, group)
            adds, taken = ~retracts & heard, retracts & heard & ~deletes_row
            for name in group.protected:
                fold = self.folds.get(name)
                if fold is not None:
                    yield from fold.refusals(rows[name], adds, taken, is_not_null=False)
                if name not in self.not_null:
                    continue
                unheard = (
                    f"column {name!r} is NOT NULL, but a row whose {', '.join(group.sequence)} is "
                    "NULL sets no value in it; set the sequence field of the group, or make the "
                    "column nullable"
                )
                yield Refusal(~retracts & ~heard, unheard)
                # The rows that can leave NULL: they retract the value, or make it outdated.
                nulls = taken
                if fold is not None and fold.ignore_retract and fold.function.counts_late_adds:
                    nulls = np.zeros_like(taken)
                if not group.decides_about_row:
                    nulls = nulls | (heard & deletes_row)
                if fold is not None and not fold.function.retract_leaves_null:
                    nulls = np.zeros_like(taken)
                yield Refusal(nulls, leaves_null(name))

    @property
    def why_kept_apart(self) -> str | None:
        """Sequence fields of the row, in addition to those of the groups."""
        return one_place(self.order, "columns outside sequence groups keep their last value")

    @property
    def why_all_stay(self) -> str | None:
        """Groups that determine the row or have functions."""
        if self.removes_rows:
            return "a sequence group decides about the whole row"
        return f"{depending_on_order(sorted(self.folds))} of a group" if self.folds else None

    def thinned(self, versions: pl.DataFrame) -> NeededVersions:
        """The last version, the winner of each group, and the last value of each other column.

        Keys with retracts keep all versions.
        """
        if self.ignore_delete:
            versions = versions.filter(IS_ADD)
        slices = KeySlices.of(versions, self.order.key)
        if slices.count == versions.height:
            return NeededVersions(versions, versions.clear())
        is_whole = slices.any_where(~versions.select(IS_ADD).to_series().to_numpy())[slices.keys]
        if self.why_all_stay is not None:
            is_whole[:] = True
        few, whole = versions.filter(pl.Series(~is_whole)), versions.filter(pl.Series(is_whole))
        if not few.height:
            return NeededVersions(few, whole)

        slices = KeySlices.of(few, self.order.key)
        kept, columns = slices.marks(slices.lasts), []
        is_lone = (slices.lengths == 1)[slices.keys]
        for group in self.groups:
            rank = _ranks(few, group, slices)
            kept |= slices.marks(_latest_by_rank(rank, slices))
            # A single version also shows values that do not affect a group, but this one is not
            # single.
            positions = np.where(is_lone | (rank > 0), slices.rows, -1)
            columns += take_columns(few, group.protected, positions)
        for name in (name for name in few.columns if name in self.gaps):
            kept |= slices.marks(slices.last_where(few[name].is_not_null().to_numpy()))
        return NeededVersions(few.with_columns(columns).filter(pl.Series(kept)), whole)

    @property
    def needs_oldest(self) -> bool:
        """Whether a group determines the row, or late values have a place in an aggregate."""
        folds = self.folds.values()
        return self.removes_rows or not all(fold.function.stands_anywhere for fold in folds)

    @property
    def tombstones(self) -> frozenset[RowKind]:
        """A -D, if a group determines the row."""
        return frozenset({RowKind.DELETE} if self.removes_rows else ())

    @property
    def refuses_delete(self) -> str | None:
        """A -D retracts the values of groups, and removes the row if one of them determines it."""
        if self.removes_rows:
            return None
        return f"name sequence fields in '{keys.PARTIAL_UPDATE_REMOVE_RECORD_ON_SEQUENCE_GROUP}'"

    @property
    def gaps(self) -> frozenset[str]:
        """The columns outside of groups."""
        return self.filled - {name for group in self.groups for name in group.columns}

    @property
    def removes_rows(self) -> bool:
        """Whether a group determines the row."""
        return any(group.decides_about_row for group in self.groups)

    def tracing(
        self, folds: Mapping[str, AggregatedColumn], groups: tuple[SequenceGroup, ...]
    ) -> SequenceGroups:
        """The engine with other functions and groups."""
        return replace(self, groups=groups, folds=folds, not_null=frozenset())

    def skips(self, kind: RowKind) -> str | None:
        """Retracts, if the table ignores them."""
        return IGNORED if self.ignore_delete and not kind.is_add else None

    def _affects_row(self, rows: pl.DataFrame) -> Marks:
        marks = np.zeros(rows.height, dtype=bool)
        for group in self.groups:
            if group.decides_about_row:
                marks |= _is_heard(rows, group)
        return marks

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """The merged row of each key.

        Raises `InvalidError`, naming column and function, for a retract that cannot be applied and
        for a result that does not fit.
        """
        if self.ignore_delete:
            versions = versions.filter(IS_ADD)
        return merge_repeated(
            versions, self.order.key, self._merge_groups, in_key_order=in_key_order
        )

    def layer_starts(self, versions: pl.DataFrame) -> Marks | None:
        """A retract that needs older versions.

        If groups determine the row, also a -D and the version after it, and the first version that
        may restore a row, because those before it are not kept while the row is removed.
        """
        decides = self.removes_rows
        adds_fold = all(fold.function.folds_adds for fold in self.folds.values())
        is_add = versions.select(IS_ADD).to_series().to_numpy()
        if self.ignore_delete or (not decides and adds_fold and is_add.all()):
            return None
        slices = KeySlices.of(versions, self.order.key)
        # No duplicate keys: the first version of a key is never marked.
        if slices.count == versions.height:
            return None
        ranks = {group: _ranks(versions, group, slices) for group in self.groups}
        alone = np.zeros(versions.height, dtype=bool)
        for group, rank in ranks.items():
            adds, retracts = is_add & (rank > 0), ~is_add & (rank > 0)
            for name in (name for name in group.protected if name in self.folds):
                inputs = Inputs(versions[name], slices, adds, retracts)
                alone |= self.folds[name].needs_older(inputs)
        if not decides:
            return slices.around(alone)
        speaks = self._affects_row(versions)
        returning = slices.first_where(is_add & speaks)
        is_before = (returning < 0)[slices.keys] | (slices.rows < returning[slices.keys])
        alone |= speaks & (deletes_of(versions) | (~is_add & is_before))
        return slices.around(alone) | slices.marks(
            np.where(returning > slices.starts, returning, -1)
        )

    def _merge_groups(self, versions: pl.DataFrame, slices: KeySlices) -> pl.DataFrame:
        # A reader that wants no column of a group reads none (see `columns`).
        read = [g for g in self.groups if set(g.sequence) <= set(versions.columns)]
        ranks = {group: _ranks(versions, group, slices) for group in read}
        life = _Life.of(versions, slices, self.groups, ranks)
        # A retract that removed no row must not become a -D.
        kinds = np.where(life.is_removed, RowKind.DELETE, RowKind.UPDATE_BEFORE)
        kinds = np.where(life.is_retract, kinds, RowKind.INSERT)
        columns = [pl.Series(VALUE_KIND, kinds, dtype=versions.schema[VALUE_KIND])]
        for group, rank in ranks.items():
            heard = rank
            if not (group.decides_about_row or life.is_heard is None):
                heard = np.where(life.is_heard, rank, 0)
            columns += self._group_columns(versions, group, heard, life)
        grouped = {name for group in self.groups for name in group.columns}
        for name in (n for n in versions.columns if n in self.filled - grouped):
            present = versions[name].is_not_null().to_numpy()
            last = slices.last_where(life.adds & present)
            columns.append(take(versions[name], life.or_image(last)))
        rows = rows_with(versions, slices.lasts, columns)
        check_not_null(rows, self.not_null)
        return rows

    def _group_columns(
        self, versions: pl.DataFrame, group: SequenceGroup, rank: Positions, life: _Life
    ) -> list[pl.Series]:
        # Rank 0 is a version whose sequence fields are all NULL, so it does not affect the group.
        winners = _latest_by_rank(rank, life.slices)
        given = np.where((winners >= 0) & life.adds[winners], winners, -1)
        if not group.decides_about_row:
            winners = np.where(life.is_removed, life.images, winners)
        protected = [name for name in group.protected if name in versions.columns]
        folded = [name for name in protected if name in self.folds]
        plain = [name for name in protected if name not in self.folds]
        # The sequence is that of the winner even if it is a retract, because an older version that
        # arrives later must still lose.
        columns = take_columns(versions, group.sequence, winners)
        columns += take_columns(versions, plain, life.or_image(given))
        if folded:
            heard = rank > 0
            # A function also gets late versions, as if they had come first, because a sum needs
            # them all.
            is_late = ~_newest_so_far(rank, life.slices)
            # A late delete of the row retracts nothing, because its values are already gone.
            adds, retracts = life.adds & heard, life.retracts & heard & ~life.deletes_row
            images, is_removed = pl.Series(life.images), pl.Series(life.is_removed)
            for name in folded:
                values = versions[name]
                inputs = Inputs(values, life.slices, adds, retracts, is_late)
                column = self.folds[name].fold(inputs, life.is_retract)
                columns.append(values.gather(images).zip_with(is_removed, column).alias(name))
        return columns


@dataclass(frozen=True)
class _Life:
    """The versions of each key that count, and whether the key has a row in the end."""

    slices: KeySlices
    adds: Marks
    """Adds that count: all, or those since the row was restored."""
    retracts: Marks
    """Retracts that count: all, or those since the row was restored."""
    is_heard: Marks | None
    """Versions that affect groups which do not determine the row. None means all."""
    removing: Positions
    """The -D that removed the row for the last time, if the row is removed."""
    is_removed: Marks
    """By key: whether the row is still removed."""
    deletes_row: Marks
    """Versions of kind -D that affect a group which determines the row."""

    @classmethod
    def of(
        cls,
        versions: pl.DataFrame,
        slices: KeySlices,
        groups: Sequence[SequenceGroup],
        ranks: Mapping[SequenceGroup, Positions],
    ) -> _Life:
        """The state of each key according to the determining groups."""
        is_add = versions.select(IS_ADD).to_series().to_numpy()
        if not any(group.decides_about_row for group in groups):
            nobody = np.zeros(slices.count, dtype=bool)
            nothing = np.zeros(versions.height, dtype=bool)
            return cls(slices, is_add, ~is_add, None, slices.lasts, nobody, nothing)
        deletes = (versions[VALUE_KIND] == RowKind.DELETE).to_numpy()
        decides = np.zeros(versions.height, dtype=bool)
        speaks = np.zeros(versions.height, dtype=bool)
        for group in groups:
            if group.decides_about_row:
                decides |= _newest_so_far(ranks[group], slices)
                speaks |= ranks[group] > 0
        # A version counts only if it is the latest of a determining group when it arrives. A late
        # -D does not remove what came after it.
        removing = slices.last_where(deletes & decides)
        after = slices.rows > removing[slices.keys]
        returning = slices.first_where(is_add & decides & after)
        is_removed = (removing >= 0) & (returning < 0)
        # Where the versions that count begin: nowhere for a removed row, at the first one for a row
        # that was never removed, otherwise where the row was restored.
        begins = np.where(is_removed, versions.height, np.where(removing < 0, -1, returning))
        counts = slices.rows >= begins[slices.keys]
        return cls(
            slices=slices,
            adds=counts & is_add,
            retracts=counts & ~is_add,
            is_heard=counts | (slices.rows == removing[slices.keys]),
            removing=removing,
            is_removed=is_removed,
            deletes_row=deletes & speaks,
        )

    @cached_property
    def is_retract(self) -> Marks:
        """By key: whether the result is a retract because no add is left."""
        if self.adds.all():
            return np.zeros(self.slices.count, dtype=bool)
        return ~self.slices.any_where(self.adds)

    @cached_property
    def images(self) -> Positions:
        """By key: the version whose values a resulting retract gets. They are never read."""
        return np.where(self.is_removed, self.removing, self.slices.lasts)

    def or_image(self, positions: Positions) -> Positions:
        """The positions, or those of the images if the result is a retract."""
        if not self.is_retract.any():
            return positions
        return np.where(self.is_retract, self.images, positions)


def _is_heard(rows: pl.DataFrame, group: SequenceGroup) -> Marks:
    """Which rows affect a group."""
    says = pl.any_horizontal(pl.col(name).is_not_null() for name in group.sequence)
    marks: Marks = rows.select(says).to_series().to_numpy()
    return marks


def _ranks(versions: pl.DataFrame, group: SequenceGroup, slices: KeySlices) -> Positions:
    """A number per version that grows with the group's sequence, 0 if it has none."""
    terms = [
        versions[name].str.strip_chars_end(" ") if name in group.padded else versions[name]
        for name in group.sequence
    ]
    dtype = terms[0].dtype
    is_plain = (dtype.is_integer() or dtype.is_temporal()) and dtype != pl.Int128
    if len(terms) == 1 and is_plain:
        # Distances from the smallest value, if they are small enough: `_newest_so_far` puts the
        # number of the key before the rank, in 64 bits.
        values = terms[0].to_physical().cast(pl.Int64, strict=False)
        least, greatest = values.min(), values.max()
        is_lossless = values.null_count() <= terms[0].null_count()
        if least is not None and greatest is not None and is_lossless:
            distance = int(greatest) - int(least) + 2
            if distance.bit_length() + slices.count.bit_length() <= 62:
                plain: Positions = (values - least + 1).fill_null(0).to_numpy()
                return plain
    names = [f"term_{i}" for i in range(len(terms))]
    frame = pl.DataFrame(dict(zip(names, terms, strict=True))).with_row_index("row")
    frame = frame.sort(names, nulls_last=False)
    grows = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in names)
    says_nothing = pl.all_horizontal(pl.col(name).is_null() for name in names)
    rank = pl.when(says_nothing).then(0).otherwise(1 + grows.cast(pl.Int64).cum_sum())
    ranked = frame.select("row", rank=rank)
    ranks = np.empty(versions.height, dtype=np.int64)
    ranks[ranked["row"].to_numpy()] = ranked["rank"].to_numpy()
    return ranks


def _latest_by_rank(ranks: Positions, slices: KeySlices) -> Positions:
    """The last version with the highest rank for each key, none if all ranks are 0."""
    row_bits = len(ranks).bit_length()
    if int(ranks.max(initial=0)).bit_length() + row_bits > 63:
        return slices.last_where(_newest_so_far(ranks, slices))
    # Rank and row number share a word, so one pass finds both.
    greatest = slices.greatest(ranks << row_bits | slices.rows)
    return np.where(greatest >> row_bits > 0, greatest & ((1 << row_bits) - 1), -1)


def _newest_so_far(ranks: Positions, slices: KeySlices) -> Marks:
    """Which versions rank at least as high as all preceding versions of their key."""
    # With the key number first, the ranks of a key exceed those of all keys before it.
    numbers = slices.keys * (int(ranks.max(initial=0)) + 1) + ranks
    newest: Marks = (ranks > 0) & (numbers == np.maximum.accumulate(numbers))
    return newest
