"""The list of merge engines, the engine of a table, and the engines that pick one version.

Laws: idempotent, associative and, if sequence fields distinguish versions, commutative. A retract
as the last version hides the key. NULL in the last version means NULL (rules R4, R5 and R14 of
docs/semantics.md).

The laws of `deduplicate`, in which the last version of a key is the row: idempotent, associative
and, if sequence fields distinguish versions, commutative. A retract as the last version hides the
key. NULL in the last version means NULL (rules R4, R5 and R14 of docs/semantics.md).

The laws of `first-row`, in which the first version of a key is the row: idempotent and associative.
Arrival alone decides, so it cannot be made commutative by a sequence field. NULL in the first
version means NULL. Retractions are impossible: a retract that meets another version of its key is
an error or, with `ignore-delete`, is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import polars as pl

from keytide.base.dataclass import dataclass, replace
from keytide.base.row_kind import RETRACTS, RowKind
from keytide.errors import InvalidError, UnsupportedError
from keytide.merge.aggregation import Aggregation
from keytide.merge.engine import MergeEngine, PartitionChangePolicy
from keytide.merge.functions.registry import NO_FUNCTIONS
from keytide.merge.functions.user import MergeFunction
from keytide.merge.order import IS_ADD, MergeOrder
from keytide.merge.partial_update import PartialUpdate
from keytide.merge.refusal import IGNORED, Refusal, retracts_of
from keytide.merge.windows import KeySlices, merge_repeated
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
