"""The merge engines: those that pick one version, partial updates, and the engine of a table.

The laws of `deduplicate`, in which the last version of a key is the row: idempotent, associative
and, if sequence fields distinguish versions, commutative. A retract as the last version hides the
key. NULL in the last version means NULL (rules R4, R5 and R14 of docs/semantics.md).

The laws of `first-row`, in which the first version of a key is the row: idempotent and associative.
Arrival alone decides, so it cannot be made commutative by a sequence field. NULL in the first
version means NULL. Retractions are impossible: a retract that meets another version of its key is
an error or, with `ignore-delete`, is ignored.

With `partial-update`, the versions of a key fill each other's gaps. Without sequence groups, a
column of the row is the last value that is not NULL. Sequence fields are taken together from the
last version. Retracts are refused, unless they are ignored or -D is configured to remove the row.
Its laws: idempotent. Merging can be split up, for adds anywhere, and with a -D that removes rows
only from the oldest version on. A -D permanently removes everything before it: nothing of it is in
the row that a later add starts. With a sequence field the order of arrival does not matter. Then
versions are stored separately, because a merged row only remembers the place of the latest one, and
those that still give a column its value are kept. Sequence groups remember a place for each group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import ClassVar

import numpy as np
import polars as pl

from keytide.base.dataclass import dataclass, replace
from keytide.base.row_kind import RETRACTS, RowKind
from keytide.errors import InvalidError, UnsupportedError
from keytide.merge.aggregation import Aggregation
from keytide.merge.engine import (
    MergeEngine,
    NeededVersions,
    PartitionChangePolicy,
    check_functions,
    conflicting,
    sequence_groups_of,
)
from keytide.merge.functions.registry import (
    DEFAULT_FUNCTION,
    NO_FUNCTIONS,
    function_names,
)
from keytide.merge.functions.user import MergeFunction
from keytide.merge.layers import one_place
from keytide.merge.order import IS_ADD, VALUE_KIND, MergeOrder
from keytide.merge.refusal import IGNORED, Refusal, retracts_of
from keytide.merge.sequence_groups import SequenceGroups
from keytide.merge.windows import KeySlices, Marks, merge_repeated, rows_with, take
from keytide.options import TableOptions, keys
from keytide.types import Field

# -- the `deduplicate` engine ----------------------------------------------------------------------


@dataclass(frozen=True)
class _OneVersion(MergeEngine):
    """Keeps one version of each key."""

    picks_a_version: ClassVar[bool] = True
    order: MergeOrder
    ignore_delete: bool = False
    """Retracts that were stored before the option was set are skipped too."""

    @classmethod
    def of(
        cls,
        order: MergeOrder,
        fields: tuple[Field, ...],
        options: TableOptions,
        functions: Mapping[str, MergeFunction] = NO_FUNCTIONS,
    ) -> MergeEngine:
        """The engine for a table."""
        return cls(order, options.ignore_delete)

    def skips(self, kind: RowKind) -> str | None:
        """Retracts, if the table ignores them."""
        return IGNORED if self.ignore_delete and not kind.is_add else None


@dataclass(frozen=True)
class Deduplicate(_OneVersion):
    """Keeps the last version of each key, including its kind."""

    meaning: ClassVar[str] = "The latest version wins."
    on_partition_change: ClassVar[PartitionChangePolicy] = PartitionChangePolicy.MOVES

    tombstones = RETRACTS
    refuses_update = None  # the row that is written last is the row
    refuses_delete = None  # a -D that comes last hides the key

    @property
    def newest_decides(self) -> bool:
        """True unless an older version can win by sequence fields or skipped retracts."""
        return not self.order.sequence and not self.ignore_delete

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """The last row of each key."""
        if self.ignore_delete:
            versions = versions.filter(IS_ADD)
        # Versions are sorted, so comparing each row with the next one replaces a group-by.
        return versions.filter(self.order.last_of_key())

    @property
    def has_late_versions(self) -> bool:
        """Whether sequence fields order versions and retracts are not ignored."""
        return bool(self.order.sequence) and not self.ignore_delete


# -- the `first-row` engine ------------------------------------------------------------------------


@dataclass(frozen=True)
class FirstRow(_OneVersion):
    """Keeps the first version of each key."""

    meaning: ClassVar[str] = "The first version wins."
    on_partition_change: ClassVar[PartitionChangePolicy] = PartitionChangePolicy.IS_DROPPED
    follows_sequence: ClassVar[bool] = False
    keeps_rows: ClassVar[bool] = True
    compacts_by_lookup: ClassVar[bool] = True

    @classmethod
    def check(
        cls, columns: Mapping[str, Field], primary_keys: Sequence[str], options: TableOptions
    ) -> None:
        """Refuse options about changes, because a first row never changes."""
        if options.changelog_producer not in ("none", "lookup"):
            raise InvalidError(
                f"the merge engine first-row supports '{keys.CHANGELOG_PRODUCER}' = 'none' and "
                f"'lookup'; found '{options.changelog_producer}'"
            )
        if options.deletion_vectors_enabled and not options.value(keys.PK_CLUSTERING_OVERRIDE):
            raise InvalidError(
                "the merge engine first-row needs no deletion vectors, because it never replaces a "
                "stored row; remove "
                f"'{keys.DELETION_VECTORS_ENABLED}'"
            )

    def refusals(self, rows: pl.DataFrame) -> Iterator[Refusal]:
        """All retracts, unless they are skipped."""
        if not self.ignore_delete:
            yield Refusal(retracts_of(rows), _REFUSED)

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """The first row of each key.

        Raises `InvalidError` for a key with a retract and another version.
        """
        if self.ignore_delete:
            versions = versions.filter(IS_ADD)
        return merge_repeated(versions, self.order.key, _first, in_key_order=in_key_order)

    def loses(self, winner: int, reason: str) -> str:
        """It arrived later, whatever its place."""
        return f"ignored: version {winner} was first"


def _first(versions: pl.DataFrame, slices: KeySlices) -> pl.DataFrame:
    if not versions.select(IS_ADD.all()).item():
        raise InvalidError(_REFUSED)
    return versions[pl.Series(slices.starts)]


_REFUSED = (
    "the merge engine first-row does not accept -D and -U rows (DELETE, UPDATE_BEFORE). "
    f"Set '{keys.IGNORE_DELETE}' = 'true' to skip them, or '{keys.IGNORE_UPDATE_BEFORE}' = 'true' "
    "for a feed whose only retracts are -U"
)


# -- the `partial-update` engine -------------------------------------------------------------------


class OnRetract(Enum):
    """What a table without sequence groups does with retracts."""

    REFUSE = "refuse"
    IGNORE = keys.IGNORE_DELETE
    REMOVE_ROW = keys.PARTIAL_UPDATE_REMOVE_RECORD_ON_DELETE
    """-D removes the row, and -U is ignored."""


@dataclass(frozen=True)
class PartialUpdate(MergeEngine):
    """Fills the gaps of each key's versions."""

    meaning: ClassVar[str] = SequenceGroups.meaning
    options: ClassVar[tuple[str, ...]] = SequenceGroups.options
    fills_gaps: ClassVar[bool] = SequenceGroups.fills_gaps
    order: MergeOrder
    filled: frozenset[str]
    """Columns to fill. Others come from the last version."""
    on_retract: OnRetract = OnRetract.REFUSE

    refuses_update = None  # the row's values become the values of the key

    @classmethod
    def of(
        cls,
        order: MergeOrder,
        fields: tuple[Field, ...],
        options: TableOptions,
        functions: Mapping[str, MergeFunction] = NO_FUNCTIONS,
    ) -> PartialUpdate | SequenceGroups:
        """The engine for a table, with or without sequence groups."""
        if sequence_groups_of(fields, options):
            return SequenceGroups.of(order, fields, options, functions)
        filled = frozenset(f.name for f in fields) - set(order.columns)
        if options.ignore_delete:
            return cls(order, filled, OnRetract.IGNORE)
        removes_rows = options.remove_record_on_delete
        return cls(order, filled, OnRetract.REMOVE_ROW if removes_rows else OnRetract.REFUSE)

    @classmethod
    def check(
        cls, columns: Mapping[str, Field], primary_keys: Sequence[str], options: TableOptions
    ) -> None:
        """Refuse functions of columns outside of groups, and conflicting options for retracts."""
        groups = sequence_groups_of(columns.values(), options)
        sequences = {name for group in groups for name in group.sequence}
        on_delete = keys.PARTIAL_UPDATE_REMOVE_RECORD_ON_DELETE
        on_group = keys.PARTIAL_UPDATE_REMOVE_RECORD_ON_SEQUENCE_GROUP
        removing = options.remove_record_on_sequence_group
        if options.ignore_delete and options.remove_record_on_delete:
            raise conflicting(keys.IGNORE_DELETE, on_delete)
        if options.ignore_delete and removing:
            raise conflicting(keys.IGNORE_DELETE, on_group)
        if groups and options.remove_record_on_delete:
            raise conflicting(keys.word_of(keys.SEQUENCE_GROUP), on_delete)
        for name in removing:
            if name not in sequences:
                raise InvalidError(
                    f"'{on_group}' names the field '{name}', which is not a field of a sequence "
                    f"group; the sequence fields are {', '.join(sorted(sequences)) or 'none'}"
                )

        protected = {name for group in groups for name in group.protected}
        unordered = {*primary_keys, *options.sequence_field, *sequences}
        names = function_names([name for name in columns if name not in unordered], options)
        for name, function in names.items():
            if name not in protected and function != DEFAULT_FUNCTION:
                raise InvalidError(
                    f"the field {name!r} has the aggregate function {function!r} but is in no "
                    f"sequence group; name it in a '{keys.SEQUENCE_GROUP}'"
                )
        check_functions(columns, names, options)

    def refusals(self, rows: pl.DataFrame) -> Iterator[Refusal]:
        """All retracts, unless an option allows them."""
        if self.on_retract is OnRetract.REFUSE:
            yield Refusal(retracts_of(rows), _RETRACTS_REFUSED)

    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """The filled row of each key. Raises `InvalidError` if a retract is refused."""
        heard = self._without_ignored(versions)
        return merge_repeated(heard, self.order.key, self._fill, in_key_order=in_key_order)

    def thinned(self, versions: pl.DataFrame) -> NeededVersions:
        """The last version, the last ones that give each column a value, and the last -D.

        A late version may belong between any of them, and has the same effect as with all versions.
        """
        heard = self._without_ignored(versions)
        slices = KeySlices.of(heard, self.order.key)
        if slices.count == heard.height:
            return NeededVersions(heard, heard.clear())
        last_delete = slices.last_where(~heard.select(IS_ADD).to_series().to_numpy())
        counts = slices.rows > last_delete[slices.keys]
        kept = slices.marks(slices.lasts) | slices.marks(last_delete)
        for name in (name for name in heard.columns if name in self.filled):
            kept |= slices.marks(slices.last_where(heard[name].is_not_null().to_numpy() & counts))
        return NeededVersions(heard.filter(pl.Series(kept)), heard.clear())

    def layer_starts(self, versions: pl.DataFrame) -> Marks | None:
        """Versions that start a removed row again."""
        if self.on_retract is not OnRetract.REMOVE_ROW or versions.select(IS_ADD.all()).item():
            return None
        slices = KeySlices.of(versions, self.order.key)
        is_add = versions.select(IS_ADD).to_series().to_numpy()
        last_delete = slices.last_where((versions[VALUE_KIND] == RowKind.DELETE).to_numpy())
        first_add = slices.first_where(is_add & (slices.rows > last_delete[slices.keys]))
        return slices.marks(np.where(last_delete < 0, -1, first_add))

    @property
    def why_kept_apart(self) -> str | None:
        """Sequence fields: a filled row does not remember the place of each of its values."""
        return one_place(self.order, "columns of a partial update keep their last value")

    @property
    def tombstones(self) -> frozenset[RowKind]:
        """All retracts, unless they are refused."""
        return frozenset() if self.on_retract is OnRetract.REFUSE else RETRACTS

    @property
    def has_late_versions(self) -> bool:
        """False, because without sequence fields nothing is late."""
        return bool(self.order.sequence)

    @property
    def refuses_delete(self) -> str | None:
        """Retracts are refused, unless the table lets a -D remove the row."""
        if self.removes_rows:
            return None
        return f"set '{keys.PARTIAL_UPDATE_REMOVE_RECORD_ON_DELETE}' = 'true'"

    @property
    def gaps(self) -> frozenset[str]:
        """All columns except those of the order."""
        return self.filled

    @property
    def removes_rows(self) -> bool:
        """Whether the table lets a -D remove the row."""
        return self.on_retract is OnRetract.REMOVE_ROW

    def skips(self, kind: RowKind) -> str | None:
        """Retracts if the table ignores them, and a -U in any case."""
        if self.on_retract is OnRetract.IGNORE and not kind.is_add:
            return IGNORED
        return "only a -D deletes rows of this table" if kind is RowKind.UPDATE_BEFORE else None

    def _without_ignored(self, versions: pl.DataFrame) -> pl.DataFrame:
        """The versions without ignored retracts."""
        if self.on_retract is OnRetract.IGNORE:
            return versions.filter(IS_ADD)
        if self.on_retract is OnRetract.REMOVE_ROW:
            return versions.filter(pl.col(VALUE_KIND) != RowKind.UPDATE_BEFORE)
        return versions

    def _fill(self, versions: pl.DataFrame, slices: KeySlices) -> pl.DataFrame:
        deletes = ~versions.select(IS_ADD).to_series().to_numpy()
        if self.on_retract is OnRetract.REFUSE and deletes.any():
            raise InvalidError(_RETRACTS_REFUSED)
        last_delete = slices.last_where(deletes)
        # Values that a -D removed must not fill the gaps of a later row.
        counts = slices.rows > last_delete[slices.keys]
        is_removed = last_delete == slices.lasts
        # The -D is kept as the row of its key, because it must also remove older versions in files
        # that are not read here.
        kinds = np.where(is_removed, RowKind.DELETE, RowKind.INSERT)
        columns = [pl.Series(VALUE_KIND, kinds, dtype=versions.schema[VALUE_KIND])]
        for name in (name for name in versions.columns if name in self.filled):
            # NULL means "no value" in this engine, so it never replaces a value.
            last = slices.last_where(versions[name].is_not_null().to_numpy() & counts)
            columns.append(take(versions[name], np.where(is_removed, slices.lasts, last)))
        return rows_with(versions, slices.lasts, columns)


_RETRACTS_REFUSED = (
    "the merge engine partial-update does not accept deletes by default. Define what a delete "
    f"does: '{keys.IGNORE_DELETE}' = 'true' skips -U and -D. "
    f"'{keys.PARTIAL_UPDATE_REMOVE_RECORD_ON_DELETE}' = 'true' removes the row on -D. "
    f"'{keys.SEQUENCE_GROUP}' retracts the columns of a group"
)


# -- the list of engines ---------------------------------------------------------------------------


ENGINES: dict[str, type[MergeEngine]] = {
    "deduplicate": Deduplicate,
    "partial-update": PartialUpdate,
    "aggregation": Aggregation,
    "first-row": FirstRow,
}
"""The engines by their option value."""


def engine_class(options: TableOptions) -> type[MergeEngine]:
    """The engine that a table's options select.

    Raises `UnsupportedError`, naming the engine, if this release does not support it.
    """
    found = ENGINES.get(options.merge_engine)
    if found is None:
        raise UnsupportedError(
            f"merge engine {options.merge_engine!r} is not supported by this release; supported "
            f"engines: {', '.join(sorted(ENGINES))}"
        )
    return found


def engines_with(option: str) -> tuple[str, ...]:
    """The names of the engines to which an option, given by its key, applies.

    None if it applies to all.
    """
    return tuple(name for name, engine in ENGINES.items() if option in engine.options)


def engine_of(
    order: MergeOrder,
    fields: tuple[Field, ...],
    options: TableOptions,
    *,
    partition_keys: tuple[str, ...] = (),
    functions: Mapping[str, MergeFunction] = NO_FUNCTIONS,
) -> MergeEngine:
    """The engine of a table. `functions` are user-defined functions.

    Raises `UnsupportedError` as `engine_class` does.
    """
    merged = tuple(f for f in fields if f.name not in partition_keys)
    return engine_class(options).of(order, merged, options, functions)


def compacts_by_lookup(options: TableOptions) -> bool:
    """Whether a compaction merges the values of higher levels into each version of a key.

    The higher levels keep their values, which must not be counted twice.
    """
    return (
        options.changelog_producer == "lookup"
        or options.force_lookup
        or options.deletion_vectors_enabled
        or engine_class(options).compacts_by_lookup
    )


def column_merger(
    order: MergeOrder,
    fields: tuple[Field, ...],
    options: TableOptions,
    functions: Mapping[str, MergeFunction] = NO_FUNCTIONS,
) -> MergeEngine:
    """A merge column by column as options say, in which a delete removes everything before it.

    It is not the engine of any table, and needs no 'merge-engine'.
    """
    engine = Aggregation.of(order, fields, options, functions)
    return replace(engine, remove_record_on_delete=True)
