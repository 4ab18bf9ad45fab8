"""Parsing of data source options: lookup by name, typed values, and checks for each use."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from keytide.errors import InvalidError
from keytide.spark.option_table import SECTIONS, Says, SourceOption, Use
from keytide.store import takes_options

__all__ = ["Given", "GivenOptions"]

_ROWS = [option for options in SECTIONS.values() for option in options]
_BY_NAME = {name.lower(): option for option in _ROWS for name in option.names}
_SPELLINGS = {name.lower(): name for option in _ROWS for name in option.names}
_LIKE = {name: option.key for option in _ROWS for name in option.like}

_OF_SPARK = ("path", "checkpointlocation", "queryname", "outputmode")


@dataclass(frozen=True)
class Given:
    """One option with its typed value. `name` is the spelling that the user gave."""

    option: SourceOption
    name: str
    value: Any


@dataclass(frozen=True)
class GivenOptions:
    """The options of one use of the data source, by their keys."""

    by_key: dict[str, Given]

    @classmethod
    def parse(cls, path: str, options: Mapping[str, str]) -> tuple[GivenOptions, dict[str, str]]:
        """Separate Keytide's options from those for the store of the path.

        Raises `InvalidError` for an unknown name, a value that does not parse, and two spellings of
        the same option with different values.
        """
        found: dict[str, Given] = {}
        rest: dict[str, str] = {}
        for key, text in options.items():
            option = _BY_NAME.get(key.lower())
            if option is not None:
                _add(Given(option, _SPELLINGS[key.lower()], _value(option, key, text)), found)
            elif key.lower() not in _OF_SPARK:
                rest[key.lower()] = text
        _check_unknown(rest, path)
        return cls(found), rest

    def __contains__(self, key: str) -> bool:
        return key in self.by_key

    def value(self, key: str) -> Any:
        """The value of an option by its key, None if it is not given."""
        given = self.by_key.get(key)
        return None if given is None else given.value

    def check(self, table: str, *uses: Use) -> None:
        """Raise `InvalidError` for options that fit none of the uses, and for contradictions.

        The message refers to the first use.
        """
        fitting = reduce(or_, uses)
        wrong = [repr(each.name) for each in self.by_key.values() if not each.option.uses & fitting]
        if wrong:
            raise InvalidError(
                f"table {table}: this {uses[0].told}, which does not support "
                f"{' and '.join(wrong)}; remove that"
            )
        for what in (Says.SNAPSHOT, Says.START, Says.END, Says.REPLACED):
            self._check_once(table, what, uses)

    def _check_once(self, table: str, what: Says, uses: tuple[Use, ...]) -> None:
        if what is Says.START and Use.SCAN in uses:
            return  # for a scan, the options of a stream select the snapshot
        names = [repr(each.name) for each in self.by_key.values() if what in each.option.says]
        if len(names) > 1:
            raise InvalidError(
                f"table {table}: {' and '.join(names)} each say {what.told}; give only one of them"
            )


def _add(given: Given, found: dict[str, Given]) -> None:
    known = found.setdefault(given.option.key, given)
    if known.value != given.value:
        raise InvalidError(
            f"options {known.name!r} and {given.name!r} are the same option with different "
            f"values, {known.value!r} and {given.value!r}; give only one of them"
        )


def _value(option: SourceOption, name: str, text: str) -> Any:
    try:
        return option.type.parse(text)
    except ValueError as error:
        raise InvalidError(f"option {name!r} is {text!r}; expected {error}") from None


def _check_unknown(rest: Mapping[str, str], path: str) -> None:
    goes_to_store = takes_options(path)
    for name in rest:
        meant = _near(name, 0.8 if goes_to_store else 0.6)
        if goes_to_store and not meant:
            continue
        way = f"did you mean {' or '.join(map(repr, meant))}?" if meant else f"options: {_KNOWN}."
        raise InvalidError(
            f"format 'keytide' has no option {name!r}; {way} Storage options are only for tables "
            "in an object store"
        )


def _near(name: str, cutoff: float) -> list[str]:
    """Known options with a similar spelling or a similar name in other formats."""
    if name in _LIKE:
        return [_LIKE[name]]
    near = difflib.get_close_matches(name.replace("_", "-"), _SPELLINGS, cutoff=cutoff)
    return [_SPELLINGS[each] for each in near]


_KNOWN = ", ".join(repr(option.key) for option in _ROWS)
