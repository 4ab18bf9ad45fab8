"""Methods of `Table` that are generated from verbs.

A verb is a function on a `StoredTable`. The generated method has its signature and docstring, and
checks its arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from keytide.base.arguments import checked
from keytide.snapshot.pinned import StoredTable

__all__ = ["member", "member_giving"]

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


def member_giving(
    verb: Callable[Concatenate[StoredTable, P], T], shown: Callable[[H, T], Shown]
) -> Callable[Concatenate[H, P], Shown]:
    """Turn a verb into a method whose result is converted by `shown`."""

    @_as_declared(verb, return_annotation=inspect.signature(shown).return_annotation)
    def method(holder: H, /, *arguments: P.args, **named: P.kwargs) -> Shown:
        return shown(holder, verb(holder.stored, *arguments, **named))

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
