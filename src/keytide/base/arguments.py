"""Checks of the arguments of public calls, and warnings that point at the caller's line.

Valid arguments are passed on in plain form: a numpy integer as an int, a subclass of str as a str.
An invalid one raises an `InvalidError` with the argument, the value found and the expected type.
Libraries that check types accept a string as a sequence of strings, and True as a number. Here
these are exactly the mistakes to find.

>>> @checked
... def scan(columns: Sequence[str]) -> None: ...
>>> scan(columns="k")  # doctest: +ELLIPSIS
Traceback (most recent call last):
keytide.errors.InvalidError: scan: columns is 'k' of type str; expected a list of strings...

A warning points at the line that called Keytide, however deep the call stack.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import reprlib
import sys
import traceback
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import date, datetime, time
from decimal import Decimal
from numbers import Integral
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from keytide.errors import InvalidError, KeytideWarning

# -- checks of the arguments of public calls against their annotations -----------------------------


_P = ParamSpec("_P")
_T = TypeVar("_T")


def checked(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Wrap a function or method so that its arguments are checked. The wrapper raises
    `InvalidError`.

    Arguments annotated with `Any` are checked by the function itself.
    """
    parameters = inspect.signature(call).parameters.values()
    places = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    others = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
    name = call.__qualname__.removesuffix(".__init__").lstrip("_")

    @functools.wraps(call)
    def guarded(*arguments: _P.args, **named: _P.kwargs) -> _T:
        annotations = _annotations(call)

        def one(parameter: str, value: Any) -> Any:
            if parameter not in annotations:
                return value

            wanted = annotations[parameter]
            try:
                return _converted(value, wanted, parameter)
            except _MisfitError as misfit:
                raise InvalidError(f"{name}: {misfit}") from misfit.__cause__

        # Python reports too many, too few and unknown arguments best.
        placed = [one(*each) for each in zip(places, arguments, strict=False)]
        rest = arguments[len(places) :]
        rest = one(others, rest) if rest and others else rest
        others_named = {key: one(key, value) for key, value in named.items()}
        try:
            return call(*placed, *rest, **others_named)
        except RecursionError as error:
            raise InvalidError(
                f"{name}: an argument is nested too deeply; give one with fewer levels"
            ) from error

    return guarded


def checked_members(made: type[_T]) -> type[_T]:
    """Wrap a class so that its constructor's arguments are checked. For dataclasses."""
    setattr(made, "__init__", checked(made.__init__))  # noqa: B010  # mypy knows no other way
    return made


def check_spark_session(spark: Any, call: str) -> None:
    """Raise `InvalidError` for anything but a Spark session, classic or Connect.

    This does not import pyspark.
    """
    kinds = type(spark).__mro__
    if not any(k.__name__ == "SparkSession" and k.__module__[:7] == "pyspark" for k in kinds):
        raise InvalidError(
            f"{call}: spark is {shown(spark)} of type {type(spark).__name__}; expected a Spark "
            "session, such as kt.spark.session()"
        )


def shown(value: Any) -> str:
    """A short one-line string for any value, whatever its own `repr` does."""
    return " ".join(_SHORT.repr(value).split())


class _MisfitError(Exception):
    """States the value found and the expected type."""


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


@functools.cache
def _annotations(call: Callable[..., Any]) -> dict[str, Any]:
    """The annotation of each parameter that must be checked."""
    scope = inspect.unwrap(call).__globals__
    found = {}
    for name, parameter in inspect.signature(call).parameters.items():
        annotation = parameter.annotation
        # Repeated, because a quoted name is a string within the stored annotation string.
        while isinstance(annotation, str):
            annotation = eval(annotation, scope)
        wanted = annotation
        if wanted is not Any and wanted is not parameter.empty:
            is_many = parameter.kind is parameter.VAR_POSITIONAL
            found[name] = types.GenericAlias(tuple, (wanted, ...)) if is_many else wanted
    return found


def _converted(value: Any, wanted: Any, name: str) -> Any:
    """The value in plain form. Raises `_MisfitError`."""
    # The most common case. Strings are also checked for lone surrogates, and
    # integers for their size.
    if type(value) is wanted and wanted is not str and wanted is not int:
        return value
    origin = typing.get_origin(wanted)
    if wanted is Any or wanted is object:
        return value
    if origin in (typing.Union, types.UnionType):
        return _converted_by_one(value, typing.get_args(wanted), name)
    if origin is typing.Literal:
        if not any(type(value) is type(each) and value == each for each in typing.get_args(wanted)):
            raise _misfit(value, wanted, name)
        return value
    try:
        if _is_one_of_many(origin):
            if not _holds_many(value, wanted):
                raise _misfit(value, wanted, name)
            member = typing.get_args(wanted)
            if issubclass(origin, Mapping):
                return {
                    _converted(key, member[0], f"a key of {name}"): _converted_entry(
                        v, member[1], key, name
                    )
                    for key, v in value.items()
                }
            is_union = typing.get_origin(member[0]) in (typing.Union, types.UnionType)
            takes_anything = member[0] is Any or (is_union and Any in typing.get_args(member[0]))
            if takes_anything and _PLAIN.issuperset(map(type, value)):
                members = [*value]  # there may be a hundred thousand keys
            else:
                members = [_converted(v, member[0], f"a member of {name}") for v in value]
            if issubclass(origin, Set):
                return frozenset(members)
            return members if isinstance(value, list) and origin is not tuple else tuple(members)
    except (_MisfitError, RecursionError):
        raise
    except Exception as error:  # a method of the caller's own object
        raise _misfit(value, wanted, name) from error
    return _converted_plain(value, origin or wanted, name)


def _converted_by_one(value: Any, choices: Sequence[Any], name: str) -> Any:
    if value is None and type(None) in choices:  # most often an omitted argument
        return None
    for wanted in choices:
        # An error about a list element, a string or a number is more useful than one about its
        # type.
        is_own = wanted in (str, int) and isinstance(value, wanted) and type(value) is not bool
        if is_own or _holds_many(value, wanted):
            return _converted(value, wanted, name)
        with contextlib.suppress(_MisfitError):
            return _converted(value, wanted, name)
    raise _misfit(value, typing.Union[tuple(choices)], name)  # noqa: UP007  # made of values


def _is_one_of_many(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping | Sequence | Set)


def _holds_many(value: Any, wanted: Any) -> bool:
    origin = typing.get_origin(wanted)
    if not _is_one_of_many(origin) or isinstance(value, str | bytes | bytearray | memoryview):
        return False
    # Any sequence is accepted for a tuple. `_converted` creates the tuple.
    if issubclass(origin, tuple):
        origin = Sequence
    return isinstance(value, Set if issubclass(origin, Set) else origin)


_PLAIN = frozenset((int, float, str, bytes, bool, type(None), Decimal, date, datetime, time))


def _converted_entry(value: Any, wanted: Any, key: Any, name: str) -> Any:
    if wanted is str and not isinstance(value, str):
        raise _MisfitError(
            f"{name.removesuffix('s')} {shown(key)} has the value {shown(value)} of type "
            f"{type(value).__name__}; expected a string, for example {shown(shown(value))}"
        )
    return _converted(value, wanted, f"{name}[{shown(key)}]")


def _converted_plain(value: Any, wanted: Any, name: str) -> Any:
    if wanted is None or wanted is type(None):
        fits = value is None
    elif wanted is int:
        # numpy durations are registered as Integral, but are not numbers.
        fits = isinstance(value, Integral) and hasattr(value, "__index__")
        fits = fits and not isinstance(value, bool)
        if fits and int(value).bit_length() > _BITS_MAX:
            raise _MisfitError(f"{name} is {shown(value)}; expected a 64-bit integer")
    elif wanted is Callable:
        fits = callable(value)
    else:
        fits = not isinstance(wanted, type) or isinstance(value, wanted)
    if not fits:
        raise _misfit(value, wanted, name)
    if wanted is int:
        return int(value)
    if wanted is str or wanted is Path:
        text = str.__str__(value) if wanted is str else str(value)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _MisfitError(
                f"{name} is {shown(text)}; expected Unicode text, found half of a character at "
                f"place {error.start}"
            ) from None
    return str.__str__(value) if wanted is str else value


_BITS_MAX = 63
"""Besides the sign. No number of rows, bytes, versions or milliseconds needs more."""


def _misfit(value: Any, wanted: Any, name: str) -> _MisfitError:
    way_out = ""
    choices = typing.get_args(wanted) if typing.get_origin(wanted) is typing.Union else (wanted,)
    takes_texts = any(
        typing.get_args(each) in ((str,), (str, ...)) and _is_one_of_many(typing.get_origin(each))
        for each in choices
    )
    if isinstance(value, str) and takes_texts:
        brackets = "({},)" if any(typing.get_origin(k) is tuple for k in choices) else "[{}]"
        way_out = f", such as {brackets.format(shown(value))}"
    found = f"{shown(value)} of type {type(value).__name__}"
    return _MisfitError(f"{name} is {found}; expected {_expected_text(wanted)}{way_out}")


def _expected_text(wanted: Any, *, many: bool = False) -> str:
    """A description of an annotation."""
    origin, members = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_expected_text(each, many=many) for each in members))
    if origin is typing.Literal:
        return f"one of {', '.join(map(repr, members))}"
    if _is_one_of_many(origin):
        if issubclass(origin, Mapping):
            word = ("dicts" if many else "a dict") + " of "
            key, value = (_expected_text(member, many=True) for member in members[:2])
            return f"{word}{key} to {value}"
        word = "set" if issubclass(origin, Set) else "tuple" if origin is tuple else "list"
        return (
            f"{word}s" if many else f"a {word}"
        ) + f" of {_expected_text(members[0], many=True)}"
    one, more = _WORDS.get(origin or wanted, ("", ""))
    if not one:
        return str(getattr(wanted, "__name__", wanted))
    return more if many else one


_WORDS: dict[Any, tuple[str, str]] = {
    str: ("a string", "strings"),
    int: ("an integer", "integers"),
    bool: ("True or False", "booleans"),
    type(None): ("None", "None"),
    Any: ("anything", "anything"),
    Path: ("a path", "paths"),
    Callable: ("a function", "functions"),
}


# -- warnings that point at the line that called Keytide -------------------------------------------


def warn_caller(message: str) -> None:
    """Issue a `KeytideWarning`, about something that the user can fix, for the calling line."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe()))
    packages = (str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames)
    own = itertools.takewhile(lambda package: package in ("keytide", "contextlib"), packages)
    ours = sum(1 for _ in own)
    warnings.warn(message, KeytideWarning, stacklevel=ours + 1)
