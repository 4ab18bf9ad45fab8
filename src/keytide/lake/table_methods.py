"""Methods of `Table` that are generated from verbs, and the builder for `Table.merge`.

A verb is a function on a `StoredTable`. The generated method has its signature and docstring, and
checks its arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from keytide.base.arguments import checked
from keytide.base.dataclass import dataclass, replace
from keytide.dml.engine import Changed
from keytide.snapshot.stored_table import StoredTable

# -- methods from verbs ----------------------------------------------------------------------------


P = ParamSpec("P")
T = TypeVar("T")
Shown = TypeVar("Shown")
H = TypeVar("H", bound="_Holder")


class _Holder(Protocol):
    """An object that holds a stored table."""

    @property
    def stored(self) -> StoredTable: ...


def member(verb: Callable[Concatenate[StoredTable, P], T]) -> Callable[Concatenate[_Holder, P], T]:
    """Turn a verb into a method of `Table`."""

    @_as_declared(verb)
    def method(holder: _Holder, /, *arguments: P.args, **named: P.kwargs) -> T:
        return verb(holder.stored, *arguments, **named)

    return method


def member_with_result(
    verb: Callable[Concatenate[StoredTable, P], T], convert: Callable[[H, T], Shown]
) -> Callable[Concatenate[H, P], Shown]:
    """Turn a verb into a method whose result is converted by `convert`."""

    @_as_declared(verb, return_annotation=inspect.signature(convert).return_annotation)
    def method(holder: H, /, *arguments: P.args, **named: P.kwargs) -> Shown:
        return convert(holder, verb(holder.stored, *arguments, **named))

    return method


def _as_declared(
    verb: Callable[..., Any], **signature: Any
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that gives a method the name, signature and docstring of a verb."""
    declared = inspect.signature(verb)
    table, *others = declared.parameters.values()
    self = table.replace(name="self", annotation=table.empty)
    shown = declared.replace(parameters=[self, *others], **signature)

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        wraps(verb)(method)
        method.__qualname__ = f"Table.{verb.__name__}"
        setattr(method, "__signature__", shown)  # noqa: B010  # no member that mypy knows
        return checked(method)

    return decorate


# -- the builder for `Table.merge` -----------------------------------------------------------------


if TYPE_CHECKING:
    from keytide.sql.python_calls import WhenCall


@dataclass(frozen=True)
class MergeBuilder:
    """A merge of rows into a table. Each call returns a builder with one more WHEN clause.

    `Table.merge` creates the builder, and `execute` runs it. For each pair of rows, the first WHEN
    clause that applies is used. Conditions are SQL, in which the table is `target` and the rows to
    merge are `source`. Values are given by column: a string is an SQL expression, and anything else
    is a literal value. Invalid arguments raise `InvalidError` immediately. SQL that does not parse
    raises it in `execute`.
    """

    carry_out: Callable[[Sequence[WhenCall]], Changed]
    whens: tuple[WhenCall, ...] = ()

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
        from keytide.sql.python_calls import WhenCall

        when = WhenCall(call, kind, action, values, condition)
        return replace(self, whens=(*self.whens, when))
