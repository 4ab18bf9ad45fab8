"""The `deduplicate` engine: the last version of a key is the row.

Laws: idempotent, associative and, if sequence fields distinguish versions, commutative. A retract
as the last version hides the key. NULL in the last version means NULL (rules R4, R5 and R14 of
docs/semantics.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from keytide.base.row_kind import RETRACTS, RowKind
from keytide.merge.engine import Elsewhere, MergeEngine
from keytide.merge.functions.registry import NO_FUNCTIONS
from keytide.merge.functions.user import MergeFunction
from keytide.merge.order import IS_ADD, MergeOrder
from keytide.merge.refusal import IGNORED
from keytide.options import TableOptions
from keytide.types import Field

__all__ = ["Deduplicate"]


@dataclass(frozen=True)
class Deduplicate(MergeEngine):
    """Keeps the last version of each key, including its kind."""

    meaning: ClassVar[str] = "The latest version wins."
    picks_a_version: ClassVar[bool] = True
    elsewhere: ClassVar[Elsewhere] = Elsewhere.MOVES
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
    ) -> Deduplicate:
        """The engine for a table."""
        return cls(order, options.ignore_delete)

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
    def tombstones(self) -> frozenset[RowKind]:
        """All retracts."""
        return RETRACTS

    @property
    def has_late_versions(self) -> bool:
        """Whether sequence fields order versions and retracts are not ignored."""
        return bool(self.order.sequence) and not self.ignore_delete

    @property
    def refuses_update(self) -> str | None:
        """None: the row that is written last is the row."""
        return None

    @property
    def refuses_delete(self) -> str | None:
        """None: a -D that comes last hides the key."""
        return None

    def skips(self, kind: RowKind) -> str | None:
        """Retracts, if the table ignores them."""
        return IGNORED if self.ignore_delete and not kind.is_add else None
