"""Frozen dataclasses whose classes are created quickly.

`dataclasses.dataclass` compiles seven functions for a frozen class, which takes half a millisecond.
A process that opens a table creates hundreds of classes, and so does each worker of a cluster. Here
only the constructor is compiled, and the other functions are closures. The classes behave like
those of the standard library, and its functions work with them.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import (
    MISSING,
    Field,
    FrozenInstanceError,
    asdict,
    dataclass,
    field,
    fields,
    replace,
)
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any

__all__ = ["Field", "asdict", "dataclass", "field", "fields", "replace"]


def _dataclass(
    made: type | None = None, /, *, frozen: bool = False, slots: bool = False, **options: Any
) -> Any:
    """`dataclasses.dataclass`. A `frozen` class without rarer options takes a third of the time."""
    if not frozen or slots or not options.keys() <= {"eq", "repr", "kw_only"}:
        return dataclasses.dataclass(made, frozen=frozen, slots=slots, **options)
    return partial(_frozen, **options) if made is None else _frozen(made, **options)


# Type checkers, and tools that read the source, see the decorator of the standard library.
globals()["dataclass"] = _dataclass


_REGISTERING = threading.local()


@dataclasses.dataclass
class _Params:
    """The parameters of a frozen class, as the standard library looks at them."""

    eq: bool
    repr: bool
    init: bool = True
    order: bool = False
    unsafe_hash: bool = False

    @property
    def frozen(self) -> bool:
        """Whether derived classes must be frozen: not while their fields are registered here."""
        return not getattr(_REGISTERING, "fields", False)


def _frozen(made: type, *, eq: bool = True, repr: bool = True, kw_only: bool = False) -> type:
    parameters = [vars(base).get("__dataclass_params__") for base in made.__mro__[1:]]
    if any(each.frozen for each in parameters if not isinstance(each, _Params | None)):
        # Derived from a frozen class of the standard library.
        plain = dataclasses.dataclass(frozen=True, eq=eq, repr=repr, kw_only=kw_only)
        return plain(made)
    own = dict(vars(made))
    # Registers the fields, and creates no functions.
    _REGISTERING.fields = True
    try:
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(made)
    finally:
        _REGISTERING.fields = False
    setattr(made, "__dataclass_params__", _Params(eq, repr))  # noqa: B010  # mypy knows no such name
    every = dataclasses.fields(made)
    functions: dict[str, Callable[..., Any]] = {
        "__init__": _constructor(made, every),
        **_refusals(made, every),
    }
    if repr:
        functions["__repr__"] = _text(every)
    if eq:
        hashed = _members([f.name for f in every if (f.compare if f.hash is None else f.hash)])
        functions |= {"__eq__": _equality(every), "__hash__": lambda self: hash(hashed(self))}
    for name in ("__setattr__", "__delattr__"):
        if name in own:
            raise TypeError(f"Cannot overwrite attribute {name} in class {made.__name__}")
    for name, function in functions.items():
        # As in the standard library: a class that defines equality alone has `__hash__` None.
        is_own = own.get(name) is not None if name == "__hash__" else name in own
        if not is_own:
            function.__name__ = name
            function.__qualname__ = f"{made.__qualname__}.{name}"
            setattr(made, name, function)
    return made


class _Omitted:
    """The default of a parameter whose value a factory makes, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


_OMITTED = _Omitted()


def _constructor(made: type, every: Sequence[Field[Any]]) -> Callable[..., None]:
    positional, named, lines, given = list[str](), list[str](), list[str](), dict[str, Any]()
    for f in every:
        parameter = value = f.name
        if f.default_factory is not MISSING:
            given[f"_make_{f.name}"] = f.default_factory
            parameter = f"{f.name}=_OMITTED"
            made_now = f"_make_{f.name}()"
            value = f"{made_now} if {f.name} is _OMITTED else {f.name}" if f.init else made_now
        elif f.default is not MISSING:
            given[f"_default_{f.name}"] = f.default
            parameter = f"{f.name}=_default_{f.name}"
        if f.init:
            (named if f.kw_only else positional).append(parameter)
        if f.init or f.default_factory is not MISSING:
            lines.append(f"  _members[{f.name!r}] = {value}")
    if hasattr(made, "__post_init__"):
        lines.append("  self.__post_init__()")

    parameters = ", ".join(["self", *positional, *(["*", *named] if named else ())])
    body = "\n".join(["  _members = self.__dict__", *lines])
    outer = ", ".join(["_OMITTED", *given])
    text = f"def create({outer}):\n def __init__({parameters}):\n{body}\n return __init__"
    found: dict[str, Any] = {}
    try:
        exec(text, vars(sys.modules[made.__module__]), found)
    except SyntaxError as error:
        raise TypeError(f"class {made.__name__}: {error}") from error
    constructor: Callable[..., None] = found["create"](_OMITTED, **given)
    constructor.__annotations__ = {f.name: f.type for f in every if f.init} | {"return": None}
    return constructor


def _text(every: Sequence[Field[Any]]) -> Callable[[Any], str]:
    shown = [f.name for f in every if f.repr]

    @recursive_repr()
    def text(self: Any) -> str:
        members = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({members})"

    return text


def _equality(every: Sequence[Field[Any]]) -> Callable[[Any, Any], bool]:
    members = _members([f.name for f in every if f.compare])

    def equals(self: Any, other: Any) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented  # type: ignore[no-any-return]
        return bool(members(self) == members(other))

    return equals


def _members(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Members of an object as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _refusals(made: Any, every: Sequence[Field[Any]]) -> dict[str, Callable[..., None]]:
    names = frozenset(f.name for f in every)

    def set_member(self: Any, name: str, value: Any) -> None:
        if type(self) is made or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def delete_member(self: Any, name: str) -> None:
        if type(self) is made or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    return {"__setattr__": set_member, "__delattr__": delete_member}
