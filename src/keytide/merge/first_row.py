"""The `first-row` engine: the first version of a key is the row.

Laws: idempotent and associative. Arrival alone decides, so it cannot be made commutative by a
sequence field. NULL in the first version means NULL. Retractions are impossible: a retract that
meets another version of its key is an error or, with `ignore-delete`, is ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from keytide.base.row_kind import RowKind
from keytide.errors import InvalidError
from keytide.merge.engine import Elsewhere, MergeEngine
from keytide.merge.functions.registry import NO_FUNCTIONS
from keytide.merge.functions.user import MergeFunction
from keytide.merge.order import IS_ADD, MergeOrder
from keytide.merge.refusal import IGNORED, Refusal, retracts_of
from keytide.merge.slices import KeySlices, merge_repeated
from keytide.options import TableOptions, keys
from keytide.types import Field

__all__ = ["FirstRow"]


@dataclass(frozen=True)
class FirstRow(MergeEngine):
    """Keeps the first version of each key."""

    meaning: ClassVar[str] = "The first version wins."
    picks_a_version: ClassVar[bool] = True
    elsewhere: ClassVar[Elsewhere] = Elsewhere.IS_DROPPED
    follows_sequence: ClassVar[bool] = False
    keeps_rows: ClassVar[bool] = True
    compacts_by_lookup: ClassVar[bool] = True
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
    ) -> FirstRow:
        """The engine for a table."""
        return cls(order, options.ignore_delete)

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

    def skips(self, kind: RowKind) -> str | None:
        """Retracts, if the table ignores them."""
        return IGNORED if self.ignore_delete and not kind.is_add else None

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
