"""The builder for `Table.merge`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from keytide.base.arguments import checked
from keytide.dml.engine import Changed

if TYPE_CHECKING:
    from keytide.sql.forms import WhenForm

__all__ = ["MergeBuilder"]


@dataclass(frozen=True)
class MergeBuilder:
    """A merge of rows into a table. Each call returns a builder with one more WHEN clause.

    `Table.merge` creates the builder, and `execute` runs it. For each pair of rows, the first WHEN
    clause that applies is used. Conditions are SQL, in which the table is `target` and the rows to
    merge are `source`. Values are given by column: a string is an SQL expression, and anything else
    is a literal value. Invalid arguments raise `InvalidError` immediately. SQL that does not parse
    raises it in `execute`.
    """

    carry_out: Callable[[Sequence[WhenForm]], Changed]
    whens: tuple[WhenForm, ...] = ()

    @checked
    def when_matched_update(
        self, set: Mapping[str, Any], condition: str | None = None
    ) -> MergeBuilder:
        """Update these columns of rows that have a match. Raises `InvalidError`."""
        return self._with("when_matched_update", "MATCHED", "UPDATE", set, condition)

    @checked
    def when_matched_update_all(self, condition: str | None = None) -> MergeBuilder:
        """Update all columns of matching rows with the source columns of the same names.

        Raises `InvalidError`.
        """
        return self._with("when_matched_update_all", "MATCHED", "UPDATE", None, condition)

    @checked
    def when_matched_delete(self, condition: str | None = None) -> MergeBuilder:
        """Delete rows that have a match. Raises `InvalidError`."""
        return self._with("when_matched_delete", "MATCHED", "DELETE", None, condition)

    @checked
    def when_not_matched_insert(
        self, values: Mapping[str, Any], condition: str | None = None
    ) -> MergeBuilder:
        """Insert source rows that have no match, with these values. Raises `InvalidError`.

        Omitted columns get their DEFAULT, or NULL.
        """
        return self._with("when_not_matched_insert", "NOT MATCHED", "INSERT", values, condition)

    @checked
    def when_not_matched_insert_all(self, condition: str | None = None) -> MergeBuilder:
        """Insert source rows that have no match, unchanged. Raises `InvalidError`."""
        return self._with("when_not_matched_insert_all", "NOT MATCHED", "INSERT", None, condition)

    @checked
    def when_not_matched_by_source_update(
        self, set: Mapping[str, Any], condition: str | None = None
    ) -> MergeBuilder:
        """Update these columns of rows that match no source row.

        Raises `InvalidError`.
        """
        call, kind = "when_not_matched_by_source_update", "NOT MATCHED BY SOURCE"
        return self._with(call, kind, "UPDATE", set, condition)

    @checked
    def when_not_matched_by_source_delete(self, condition: str | None = None) -> MergeBuilder:
        """Delete rows that match no source row. Raises `InvalidError`."""
        call, kind = "when_not_matched_by_source_delete", "NOT MATCHED BY SOURCE"
        return self._with(call, kind, "DELETE", None, condition)

    def execute(self) -> Changed:
        """Run the merge in one atomic commit, and return the number of changed rows.

        Raises the following, with nothing changed:

        - `InvalidError` for SQL that does not parse, values that do not fit, two source rows that
          apply to the same target row, and a merge without a WHEN clause.
        - `UnsupportedError` for a table that would not store the change.
        - `ConflictError` when too many races with other writers were lost.
        - `DataError` when the store fails.
        """
        return self.carry_out(self.whens)

    def _with(
        self,
        call: str,
        kind: str,
        action: str,
        values: Mapping[str, Any] | None,
        condition: str | None,
    ) -> MergeBuilder:
        from keytide.sql.forms import WhenForm

        when = WhenForm(call, kind, action, values, condition)
        return replace(self, whens=(*self.whens, when))
