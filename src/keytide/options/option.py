"""The definition of one table option: a row of the table of options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from keytide.base.process import cached_property
from keytide.errors import InvalidError
from keytide.options.values import ValueType

__all__ = ["ACTS", "Acts", "Change", "ForOthers", "Option", "Refused", "Use"]


class Change(Enum):
    """When an option of a table can be changed. The value is for people."""

    FREE = "at any time"
    FIXED = "while the table has no rows"
    ONE_WAY = "to `true` only, if the table has rows"
    SHORTER = "to a shorter time only, if the table has rows"
    NEVER = "never"


@dataclass(frozen=True)
class Acts:
    """Keytide applies the option."""


@dataclass(frozen=True)
class ForOthers:
    """Stored for the engines that use it. `here` says what it means in Keytide.

    A user who sets the option is warned.
    """

    here: str


@dataclass(frozen=True)
class Refused:
    """Setting the option would mislead, for the given reason. `instead` is what to do instead."""

    why: str
    instead: str


Use: TypeAlias = "Acts | ForOthers | Refused"
ACTS = Acts()

_PLACE = re.compile(r"<(\w+)>")
_PLACES = {
    "columns": "(?P<columns>.+)", "column": "(?P<columns>.+)", "name": "(.+)", "class": "(.+)",
    "type": "([^.]+)", "setting": "([^.]+)",
}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One option or, with a `<place>` in its key, one option for each name there.

    `default` is a string as a user would write it. `functions` are the merge functions to which the
    option applies, all if empty. Merge engines themselves define the options that apply to them.
    `used_with` is the option without which this one has no effect. `uses` overrides `use` for
    single values.
    """

    key: str
    type: ValueType
    meaning: str
    default: str | None = None
    change: Change = Change.FREE
    use: Use = ACTS
    uses: Mapping[str, Use] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    used_with: str | None = None
    functions: tuple[str, ...] = ()

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The pattern of this option's keys, in any spelling, with a group for each place.

        Case-insensitive, and `_` matches `-`. Dots match only dots, because a column name can have
        any character. Columns are in the group `columns`.
        """
        parts = _PLACE.split(self.key)
        parts[::2] = ["[_-]".join(map(re.escape, text.split("-"))) for text in parts[::2]]
        parts[1::2] = [_PLACES[place] for place in parts[1::2]]
        return re.compile("".join(parts), re.IGNORECASE)

    def stored_key(self, match: re.Match[str]) -> str:
        """A key that matched the pattern, in the format's own spelling."""
        places = iter(match.groups())
        return _PLACE.sub(lambda _: next(places), self.key)

    @property
    def has_place(self) -> bool:
        """Whether the key names something, such as columns."""
        return _PLACE.search(self.key) is not None

    @property
    def takes_many(self) -> bool:
        """Whether the key can name several columns."""
        return "<columns>" in self.key

    @property
    def default_value(self) -> Any:
        """The typed value if the option is not set."""
        return self.type.absent if self.default is None else self.type.parse(self.default)

    def parse(self, key: str, text: str) -> Any:
        """The typed value of a string. Raises `InvalidError`, with the option and the value."""
        try:
            return self.type.parse(text)
        except ValueError as error:
            raise InvalidError(f"option {key!r} has the value {text!r}; expected {error}") from None

    def use_of(self, text: str) -> Use:
        """What is done with a value; the default asks for nothing that is not done anyway."""
        value = self.type.parse(text)
        if self.default is not None and value == self.default_value:
            return ACTS
        return self.uses.get(str(value).lower(), self.use)

    def columns_of(self, key: str, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns that a key names and those that its value lists, both with their blanks."""
        match = self.pattern.fullmatch(key)
        in_key = match["columns"].split(",") if match and "columns" in match.groupdict() else []
        return tuple(in_key), tuple(text.split(",")) if self.type.lists_columns else ()
