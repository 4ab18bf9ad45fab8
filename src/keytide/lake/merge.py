"""A merge of rows into a table, put together call by call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from keytide.arguments import checked
from keytide.dml.execution import Changed

if TYPE_CHECKING:
    from keytide.sql.forms import WhenForm

__all__ = ["MergeBuilder"]


@dataclass(frozen=True)
class MergeBuilder:
    """What `Table.merge` begins. Each call gives a builder with one more WHEN; `execute` runs it.

    For each pair of rows the first WHEN that applies counts. Conditions are SQL, in which the table
    is `target` and the rows to merge `source`. Values are by column: a text is a SQL expression,
    anything else stands for itself. Wrong arguments raise `InvalidError` at once, texts that do not
    parse when the merge is executed.
    """

    carry_out: Callable[[Sequence[WhenForm]], Changed]
    whens: tuple[WhenForm, ...] = ()

    @checked
    def when_matched_update(
        self, set: Mapping[str, Any], condition: str | None = None
    ) -> MergeBuilder:
        """Change these columns of rows that have a match. Raises `InvalidError`."""
        return self._with("when_matched_update", "MATCHED", "UPDATE", set, condition)

    @checked
    def when_matched_update_all(self, condition: str | None = None) -> MergeBuilder:
        """Give all columns of rows that have a match the values of those of the same names.

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
        """Insert rows of the source that have no match, with these values. Raises `InvalidError`.

        Columns that are left out are NULL, or their DEFAULT.
        """
        return self._with("when_not_matched_insert", "NOT MATCHED", "INSERT", values, condition)

    @checked
    def when_not_matched_insert_all(self, condition: str | None = None) -> MergeBuilder:
        """Insert rows of the source that have no match as they are. Raises `InvalidError`."""
        return self._with("when_not_matched_insert_all", "NOT MATCHED", "INSERT", None, condition)

    @checked
    def when_not_matched_by_source_update(
        self, set: Mapping[str, Any], condition: str | None = None
    ) -> MergeBuilder:
        """Change these columns of rows that nothing in the source matches.

        Raises `InvalidError`.
        """
        call, kind = "when_not_matched_by_source_update", "NOT MATCHED BY SOURCE"
        return self._with(call, kind, "UPDATE", set, condition)

    @checked
    def when_not_matched_by_source_delete(self, condition: str | None = None) -> MergeBuilder:
        """Delete rows that nothing in the source matches. Raises `InvalidError`."""
        call, kind = "when_not_matched_by_source_delete", "NOT MATCHED BY SOURCE"
        return self._with(call, kind, "DELETE", None, condition)

    def execute(self) -> Changed:
        """Carry the merge out, in one atomic commit; tells how many rows it changed.

        Raises `InvalidError` for texts that do not parse, values that do not fit, two rows of the
        source that apply to one of the table, and where there is no WHEN; `UnsupportedError` for a
        table that would not store the change, `ConflictError` when too many races with other
        writers were lost, `DataError` when the store fails; nothing is changed then.
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
