"""Names of options: other spellings, the row of a key, and hints for unknown names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from keytide.errors import InvalidError
from keytide.options.option import Option
from keytide.options.table import SECTIONS

__all__ = ["option_of", "stored_name", "stored_names"]

_ROWS = tuple(option for options in SECTIONS.values() for option in options)
_WITH_PLACES = tuple(option for option in _ROWS if option.has_place)
_BY_KEY = {
    key: option for option in _ROWS if not option.has_place for key in (option.key, *option.aliases)
}


def option_of(key: str) -> Option | None:
    """The row of a key in its stored spelling. None for an unknown key."""
    found = _BY_KEY.get(key)
    if found is not None:
        return found
    return next((option for option in _WITH_PLACES if option.pattern.fullmatch(key)), None)


def stored_name(key: str) -> str:
    """The format's own spelling of an option's name.

    Names are case-insensitive, and `_` or `-` can replace `-` or `.`. Column names in a key
    do not change. Raises `InvalidError` with similar names for an unknown option.
    """
    if key in _BY_KEY:
        return _BY_KEY[key].key
    found = _BY_SPELLING.get(_plain(key))
    if found is not None and _has_dots_of(found, key.strip()):
        return _BY_KEY[found].key
    for option in _WITH_PLACES:
        match = option.pattern.fullmatch(key)
        if match is not None:
            return option.stored_key(match)
    near = difflib.get_close_matches(_plain(key), _BY_SPELLING, n=3, cutoff=0.6)
    known = " or ".join(dict.fromkeys(repr(_BY_SPELLING[name]) for name in near))
    hint = f"did you mean {known}? " if known else ""
    raise InvalidError(
        f"unknown option {key!r}; {hint}Names of your own properties start with 'user.'"
    )


def stored_names(given: Mapping[str, str]) -> dict[str, str]:
    """Options as a user gives them, under their stored names.

    Raises `InvalidError` for an unknown option, a value that does not parse, and two spellings of
    one option with different values.
    """
    stored: dict[str, str] = {}
    for key, value in given.items():
        name = stored_name(key)
        _check(name, key, value)
        if stored.setdefault(name, value) != value:
            raise InvalidError(
                f"option {name!r} is given twice: as {stored[name]!r} and, spelled {key!r}, as "
                f"{value!r}; give it once"
            )
    return stored


def _check(name: str, key: str, value: str) -> None:
    option = option_of(name)
    assert option is not None
    option.parse(key, value)


def _has_dots_of(name: str, spelt: str) -> bool:
    """Whether dots stand only where the name has some: a dot is not taken for a hyphen."""
    return all(own == "." for own, given in zip(name, spelt, strict=True) if given == ".")


def _plain(key: str) -> str:
    return re.sub(r"[._-]", "-", key.strip().lower())


_BY_SPELLING = {_plain(key): key for key in _BY_KEY}
