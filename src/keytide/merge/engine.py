"""What a merge engine is: a law about versions, and what the rest of Keytide may ask of it.

`merge` of all versions at once, or run by run, or after any partial compaction gives the same row.
Whatever else depends on the engine of a table is a member of it, so nobody asks an engine for its
name or class. An engine is one file, and one line in `keytide.merge.engines`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import polars as pl

from keytide.merge.functions.inputs import AggregatedColumn
from keytide.merge.functions.user import MergeFunction
from keytide.merge.order import MergeOrder
from keytide.merge.refusal import WITHOUT_KEY, Refusal
from keytide.merge.sequence_group import SequenceGroup
from keytide.merge.slices import Marks
from keytide.options import TableOptions
from keytide.row_kind import RowKind
from keytide.types import Field

__all__ = ["Elsewhere", "MergeEngine", "Thinned"]


class Elsewhere(Enum):
    """What becomes of a row whose key is in another partition, where keys may be in any."""

    MOVES = "the key leaves the partition that it was in"
    STAYS = "the row joins its key in the partition that this is in"
    IS_DROPPED = "the row is dropped"


class Thinned(NamedTuple):
    """Versions that stay apart, in merge order.

    `few` are of keys of which no more stay than there are columns, `whole` those of all other keys.
    """

    few: pl.DataFrame
    whole: pl.DataFrame


class MergeEngine(ABC):
    """Folds the versions of each key into one row.

    Members of the class hold for every table of the engine. Those of an instance, which knows
    columns and options of its table, say what holds there.
    """

    # -- of every table of the engine -----------------------------------------------------------

    meaning: ClassVar[str]
    """What the versions of a key become, for people."""
    options: ClassVar[tuple[str, ...]] = ()
    """The options that act on this engine and not on every other."""
    picks_a_version: ClassVar[bool] = False
    """Whether the row of a key is one of its versions as it stands, not put together of many.

    Then files of which no version meets a condition cannot give a row that does, and a version
    may be stored in many places without being counted twice.
    """
    follows_sequence: ClassVar[bool] = True
    """Whether sequence fields order the versions; if not, arrival alone does."""
    elsewhere: ClassVar[Elsewhere] = Elsewhere.STAYS
    """What becomes of a row whose key is in another partition."""
    fills_gaps: ClassVar[bool] = False
    """Whether NULL means that a row has no new value, so that rows may lack columns."""
    keeps_rows: ClassVar[bool] = False
    """Whether a row stays as it is once it is there, so that a compaction by lookup leaves it where
    it lies, and nothing more is told of it."""
    compacts_by_lookup: ClassVar[bool] = False
    """Whether a compaction always folds into a value what the levels above hold for its key."""

    @classmethod
    @abstractmethod
    def of(
        cls,
        order: MergeOrder,
        fields: tuple[Field, ...],
        options: TableOptions,
        functions: Mapping[str, MergeFunction],
    ) -> MergeEngine:
        """The engine for a table; `functions` are those of users.

        `fields` are without partition columns, which are the same in all versions of a key. Raises
        `InvalidError` for options that do not fit.
        """

    @classmethod  # noqa: B027  # an engine may take whatever the options say
    def check(
        cls, columns: Mapping[str, Field], primary_keys: Sequence[str], options: TableOptions
    ) -> None:
        """Raise `InvalidError` for options of a new or altered table that cannot work."""

    # -- merging --------------------------------------------------------------------------------

    order: MergeOrder
    compared: tuple[str, ...] = ()
    """Columns beyond those of the order and of `groups` whose values decide about a row."""

    @property
    def newest_decides(self) -> bool:
        """Whether the row of a key is its newest arrival, whatever came before."""
        return False

    def columns(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """Table columns to read so that the `wanted` ones can be merged (keys come anyway)."""
        return tuple(dict.fromkeys((*self.order.columns, *wanted, *self.compared)))

    @abstractmethod
    def merge(self, versions: pl.DataFrame, *, in_key_order: bool = True) -> pl.DataFrame:
        """One row per key of `versions`, with the columns of `versions`.

        Rows come in key order, unless `in_key_order` is false and another order is cheaper.
        A lone version is its key's row as it stands, so that keys which occur once need not be
        merged. A key whose versions are all ignored has no row.

        REQUIRES: `versions` is sorted by the table's `MergeOrder` and has `_VALUE_KIND`. A key
        whose outcome is a deletion keeps a row of kind -D or -U, so that the result can stand for
        its versions in a later merge; readers drop such rows. For the same reason a row has the
        `_SEQUENCE_NUMBER`, where there is one, of the version in whose place it stands: the last
        of its key, or the first for an engine that keeps the first.
        """

    def layer_starts(self, versions: pl.DataFrame) -> Marks | None:
        """The versions that must not be merged with those of their key before them, if any.

        So it is where the merged row would not do to older versions, which are not at hand, what
        the versions do one by one. The first version of a key is never marked, and marks behind
        the first one of a key are preliminary: they hold for a merge that begins with the key's
        first version. REQUIRES what `merge` requires.
        """
        return None

    # -- taking the place of versions ------------------------------------------------------------

    @property
    def why_kept_apart(self) -> str | None:
        """Why stored versions have to stay as they are; None where a merged one may replace them.

        A merged version has one place in the order, that of its newest. Versions must stay apart
        where a later write may bring some that belong between them, and it would matter.
        """
        return None

    @property
    def why_all_stay(self) -> str | None:
        """Why no version that is kept apart can be left out; None where `thinned` finds some."""
        return None

    def thinned(self, versions: pl.DataFrame) -> Thinned:
        """The versions without which a row, now or after any later write, would be another one.

        All of them, unless an engine that keeps versions apart says otherwise. REQUIRES what
        `merge` requires, and all of a key's older versions.
        """
        return Thinned(versions.clear(), versions)

    @property
    def needs_oldest(self) -> bool:
        """Whether versions may be replaced only together with all older ones of their key.

        Where false it is `layer_starts` that tells, for the versions at hand.
        """
        return False

    @property
    def tombstones(self) -> frozenset[RowKind]:
        """The kinds of merged versions that say no more than that their key has no row."""
        return frozenset()

    @property
    def has_late_versions(self) -> bool:
        """Whether a later write may bring versions that belong before a tombstone."""
        return True

    # -- what is refused ------------------------------------------------------------------------

    def refusals(self, rows: pl.DataFrame) -> Iterator[Refusal]:
        """Incoming rows that could not be merged once their key has another version.

        What is not refused can be merged with whatever was not refused before it, unless a
        result becomes too large for its column. REQUIRES: `rows` have all columns of the table
        and `_VALUE_KIND`.
        """
        yield from ()

    @property
    def way_out(self) -> str:
        """What works although stored versions of a key cannot be merged, for people."""
        return WITHOUT_KEY

    @property
    def refuses_update(self) -> str | None:
        """Why a written row would not stand as the new row of its key, and what to do instead.

        None where it would, so that rows can be updated.
        """
        return "it would merge the new values with the old. Insert what is to be merged instead"

    @property
    def refuses_delete(self) -> str | None:
        """What to do so that a -D removes the row of its key; None where it does."""
        return "make it deduplicate"

    # -- why a row is what it is ----------------------------------------------------------------

    folds: Mapping[str, AggregatedColumn] = MappingProxyType({})
    """The functions of columns that have one."""
    groups: tuple[SequenceGroup, ...] = ()
    """Columns that have sequences of their own."""

    @property
    def gaps(self) -> frozenset[str]:
        """The columns without a function in which NULL is no value."""
        return frozenset()

    @property
    def removes_rows(self) -> bool:
        """Whether a -D removes what came before it for good, and a later add begins anew."""
        return False

    def tracing(
        self, folds: Mapping[str, AggregatedColumn], groups: tuple[SequenceGroup, ...]
    ) -> MergeEngine:
        """The engine with other functions and groups, and with every column nullable."""
        return self

    def skips(self, kind: RowKind) -> str | None:
        """Why versions of a kind are as if never written; None for kinds that count."""
        return None

    def loses(self, winner: int, reason: str) -> str:
        """What became of a version that was not picked, given why the order puts it lower."""
        return f"replaced by version {winner}: {reason}"
