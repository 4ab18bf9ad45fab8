"""The interface of merge engines, and the checks of their options.

Merging all versions together, run by run, or after any partial compaction gives the same row.
Everything else that depends on a table's engine is a member of the engine, so no code checks an
engine's name or class. An engine is one file, and one line in `keytide.merge.engines`.

A sequence group is some columns of a table, with sequence fields of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import polars as pl

from keytide.base.dataclass import dataclass
from keytide.base.row_kind import RowKind
from keytide.errors import InvalidError
from keytide.merge.functions.inputs import AggregatedColumn
from keytide.merge.functions.registry import function_of, registered_functions
from keytide.merge.functions.user import MergeFunction
from keytide.merge.order import MergeOrder
from keytide.merge.refusal import WITHOUT_KEY, Refusal
from keytide.merge.windows import Marks
from keytide.options import TableOptions, keys
from keytide.types import Field

# -- sequence groups -------------------------------------------------------------------------------


@dataclass(frozen=True)
class SequenceGroup:
    """Sequence fields, and the columns whose versions they order."""

    sequence: tuple[str, ...]
    protected: tuple[str, ...]
    decides_about_row: bool = False
    padded: frozenset[str] = frozenset()
    """Sequence fields that are CHAR and are compared without trailing blanks."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the group."""
        return (*self.sequence, *self.protected)


def sequence_groups_of(fields: Iterable[Field], options: TableOptions) -> tuple[SequenceGroup, ...]:
    """The groups that a table's options define."""
    chars = {f.name for f in fields if f.type.root == "CHAR"}
    deciding = set(options.remove_record_on_sequence_group)
    groups = []
    for sequence, protected in options.by_columns(keys.SEQUENCE_GROUP).items():
        names = tuple(name.strip() for name in sequence.split(","))
        groups.append(
            SequenceGroup(
                sequence=names,
                protected=tuple(name.strip() for name in protected.split(",")),
                decides_about_row=not deciding.isdisjoint(names),
                padded=frozenset(chars & set(names)),
            )
        )
    return tuple(groups)


# -- the interface ---------------------------------------------------------------------------------


class PartitionChangePolicy(Enum):
    """What happens to a row whose key is in another partition, if keys can be in any partition."""

    MOVES = "the key moves to another partition"
    STAYS = "the row joins its key in the partition where the key is"
    IS_DROPPED = "the row is dropped"


class NeededVersions(NamedTuple):
    """Versions that are stored separately, in merge order.

    `few` are versions of keys that keep at most one version per column, `whole` those of all other
    keys.
    """

    few: pl.DataFrame
    whole: pl.DataFrame


class MergeEngine(ABC):
    """Merges the versions of each key into one row.

    Class attributes are the same for every table with the engine. Instance members depend on the
    columns and options of the table.
    """

    # -- class attributes -----------------------------------------------------------------------

    meaning: ClassVar[str]
    """A description of the merged row, for people."""
    options: ClassVar[tuple[str, ...]] = ()
    """The options that only apply to this engine."""
    picks_a_version: ClassVar[bool] = False
    """Whether the merged row is always one of the versions, and not composed of several.

    Then a file in which no version matches a condition cannot produce a matching row, and storing a
    version several times does not count it twice.
    """
    follows_sequence: ClassVar[bool] = True
    """Whether sequence fields order the versions. If not, arrival decides alone."""
    on_partition_change: ClassVar[PartitionChangePolicy] = PartitionChangePolicy.STAYS
    """What happens to a row whose key is in another partition."""
    fills_gaps: ClassVar[bool] = False
    """Whether NULL means "no new value", so that rows can omit columns."""
    keeps_rows: ClassVar[bool] = False
    """Whether an existing row never changes, so that a compaction by lookup leaves it in place
    and emits nothing more about it."""
    compacts_by_lookup: ClassVar[bool] = False
    """Whether a compaction always merges the values of higher levels into a version."""

    @classmethod
    @abstractmethod
    def of(
        cls,
        order: MergeOrder,
        fields: tuple[Field, ...],
        options: TableOptions,
        functions: Mapping[str, MergeFunction],
    ) -> MergeEngine:
        """The engine for a table. `functions` are user-defined functions.

        `fields` are the columns without partition columns, which are equal in all versions of a
        key. Raises `InvalidError` for options that do not fit.
        """

    @classmethod  # noqa: B027  # an engine may take whatever the options say
    def check(
        cls, columns: Mapping[str, Field], primary_keys: Sequence[str], options: TableOptions
    ) -> None:
        """Raise `InvalidError` for invalid options of a new or altered table."""

    # -- merging --------------------------------------------------------------------------------

    order: MergeOrder
    compared: tuple[str, ...] = ()
    """Columns that affect the merge, in addition to those of the order and of `groups`."""

    @property
    def newest_decides(self) -> bool:
        """Whether the row of a key is always its latest arrival."""
        return False

    def columns(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Table columns to read in order to merge the `wanted` ones.

        Key columns are always read.
        """
        return tuple(dict.fromkeys((*self.order.columns, *wanted, *self.compared)))

    @abstractmethod
    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """One row per key of `versions`, with the columns of `versions`.

        Rows are in key order, unless `in_key_order` is false and another order is cheaper. A single
        version of a key is its row unchanged, so keys that occur once need not be merged. A key
        whose versions are all ignored has no row.

        REQUIRES: `versions` is sorted by the table's `MergeOrder` and has `_VALUE_KIND`. A key that
        is deleted keeps a row of kind -D or -U, so that the result can replace its versions in a
        later merge. Readers drop such rows. For the same reason a row has the `_SEQUENCE_NUMBER`,
        if present, of the version that it replaces: the last one of its key, or the first one in an
        engine that keeps the first.
        """

    def layer_starts(self, versions: pl.DataFrame) -> Marks | None:
        """The versions that must not be merged with preceding versions of their key, None if all
        can.

        A version is marked if a merged row would not have the same effect on older versions, which
        are not available, as the individual versions. The first version of a key is never marked.
        Marks after the first one of a key are preliminary: they are valid for a merge that begins
        with the key's first version. REQUIRES what `merge` requires.
        """
        return None

    # -- replacing versions ----------------------------------------------------------------------

    @property
    def why_kept_apart(self) -> str | None:
        """Why stored versions must be kept separately, None if a merged one can replace them.

        A merged version has one place in the order, that of its latest version. Versions must be
        kept separately if a later write can add versions between them, and the result depends on
        that.
        """
        return None

    @property
    def why_all_stay(self) -> str | None:
        """Why no separately kept version can be dropped, None if `thinned` finds some."""
        return None

    def thinned(self, versions: pl.DataFrame) -> NeededVersions:
        """The versions that are needed for the current row, or for the row after any later write.

        By default all. Engines that keep versions separately can override it. REQUIRES what `merge`
        requires, and all older versions of each key.
        """
        return NeededVersions(versions.clear(), versions)

    @property
    def needs_oldest(self) -> bool:
        """Whether versions can be replaced only together with all older ones of their key.

        If false, `layer_starts` decides for the given versions.
        """
        return False

    @property
    def tombstones(self) -> frozenset[RowKind]:
        """The kinds of merged versions that only say that their key has no row."""
        return frozenset()

    @property
    def has_late_versions(self) -> bool:
        """Whether a later write can add versions that precede a tombstone."""
        return True

    # -- refusals -------------------------------------------------------------------------------

    def refusals(self, rows: pl.DataFrame) -> Iterator[Refusal]:
        """New rows that could not be merged with another version of their key.

        Rows that are not refused can be merged with all others that were not refused, unless a
        result becomes too large for its column. REQUIRES: `rows` have all columns of the table and
        `_VALUE_KIND`.
        """
        yield from ()

    @property
    def way_out(self) -> str:
        """What users can do although stored versions of a key cannot be merged."""
        return WITHOUT_KEY

    @property
    def refuses_update(self) -> str | None:
        """Why a written row would not become the row of its key, and what to do instead.

        None if it would, so that rows can be updated.
        """
        return "it would merge the new values with the old ones; insert the values to merge instead"

    @property
    def refuses_delete(self) -> str | None:
        """What to do so that a -D removes the row of its key, None if it does."""
        return "use deduplicate"

    # -- why a row is what it is ----------------------------------------------------------------

    folds: Mapping[str, AggregatedColumn] = MappingProxyType({})
    """The functions of columns that have one."""
    groups: tuple[SequenceGroup, ...] = ()
    """Column groups with their own sequence fields."""

    @property
    def gaps(self) -> frozenset[str]:
        """The columns without a function in which NULL means "no value"."""
        return frozenset()

    @property
    def removes_rows(self) -> bool:
        """Whether a -D removes everything before it permanently, and a later add starts again."""
        return False

    def tracing(
        self, folds: Mapping[str, AggregatedColumn], groups: tuple[SequenceGroup, ...]
    ) -> MergeEngine:
        """The engine with other functions and groups, and with all columns nullable."""
        return self

    def skips(self, kind: RowKind) -> str | None:
        """Why versions of a kind are ignored, None if they count."""
        return None

    def loses(self, winner: int, reason: str) -> str:
        """The explanation for a version that was not picked.

        `reason` is why the order puts it lower.
        """
        return f"replaced by version {winner}: {reason}"


# -- shared option checks --------------------------------------------------------------------------


def check_functions(
    columns: Mapping[str, Field], names: Mapping[str, str], options: TableOptions
) -> None:
    """Raise `InvalidError` for a function in `names` that is unknown or does not fit its column."""
    for name, value in options.by_columns(keys.IGNORE_RETRACT).items():
        if value.lower() not in ("true", "false"):
            key = keys.key_of(keys.IGNORE_RETRACT, name)
            raise InvalidError(
                f"option {key!r} has the value {value!r}; expected 'true' or 'false'"
            )
    for name, function in names.items():
        function_of(function, columns[name], options, registered_functions(options))


def conflicting(one: str, other: str) -> InvalidError:
    """The error for two options that exclude each other."""
    return InvalidError(
        f"{one} and {other} conflict: each defines what a delete does. Remove one of them"
    )
