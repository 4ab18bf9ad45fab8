"""Values of options: their types, durations that callers give, and the definition of an option.

A type says how a string is parsed, with valid and invalid samples. An option is a row of the table
of options.

A duration is between 0 and 2^63 nanoseconds, about 292 years. This is the range of other engines,
and the longest time that a thread can wait. So now plus or minus a duration is always a valid time.

>>> from datetime import timedelta
>>> duration_ms("2 h", "expiration_time") == duration_ms(timedelta(hours=2), "expiration_time")
True
>>> duration_ms(timedelta(days=-2), "expiration_time")  # doctest: +ELLIPSIS
Traceback (most recent call last):
keytide.errors.InvalidError: expiration_time is '-2 days, 0:00:00'; expected a duration such as...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from typing import Any, TypeAlias

from keytide.base.arguments import shown
from keytide.base.dataclass import dataclass, field, replace
from keytide.base.process import cached_property
from keytide.errors import InvalidError

# -- types of values -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ValueType:
    """What the values of an option look like.

    `parse` returns the typed value of a string, or raises `ValueError` with the expected value.
    `samples` are valid values. `wrong` is an invalid one, None if every string is valid.
    `absent` is the typed value of an option that is not set and has no default.
    """

    name: str
    parse: Callable[[str], Any]
    samples: tuple[str, ...]
    wrong: str | None = None
    absent: Any = None
    lists_columns: bool = False


# Other engines parse the same strings as long and int of Java.
_LONG_MAX = 2**63 - 1
_INT_MAX = 2**31 - 1

_MEMORY_UNITS = {
    "": 1, "b": 1, "bytes": 1,
    "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "kibibytes": 1 << 10,
    "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20, "mebibytes": 1 << 20,
    "g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30, "gibibytes": 1 << 30,
    "t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40, "tebibytes": 1 << 40,
}  # fmt: skip
_DURATION_UNITS_NS = {
    "ns": 1, "nano": 1, "nanos": 1, "nanosecond": 1, "nanoseconds": 1,
    "us": 10**3, "µs": 10**3, "micro": 10**3, "micros": 10**3, "microsecond": 10**3,
    "microseconds": 10**3,
    "": 10**6, "ms": 10**6, "milli": 10**6, "millis": 10**6, "millisecond": 10**6,
    "milliseconds": 10**6,
    "s": 10**9, "sec": 10**9, "secs": 10**9, "second": 10**9, "seconds": 10**9,
    "min": 60 * 10**9, "m": 60 * 10**9, "minute": 60 * 10**9, "minutes": 60 * 10**9,
    "h": 3600 * 10**9, "hour": 3600 * 10**9, "hours": 3600 * 10**9,
    "d": 86400 * 10**9, "day": 86400 * 10**9, "days": 86400 * 10**9,
}  # fmt: skip


def parse_memory_size(text: str) -> int:
    """Bytes of a size such as `128 mb`, `1g` or `4096` (units are powers of 1024).

    Raises `ValueError` with the expected value.
    """
    return _quantity(text, _MEMORY_UNITS, "a size such as '128 mb'")


def _duration_ms(text: str) -> int:
    return _quantity(text, _DURATION_UNITS_NS, "a duration such as '10 s'") // 10**6


@dataclass(frozen=True)
class Age:
    """How far a value of a column lies behind another: milliseconds of times, or a number."""

    amount: int
    is_time: bool

    def is_at_most(self, other: Age | None) -> bool:
        """Whether it is no longer than another one, or than for ever."""
        return other is None or (self.is_time == other.is_time and self.amount <= other.amount)

    def __str__(self) -> str:
        return f"{self.amount} ms" if self.is_time else str(self.amount)


def _age(text: str) -> Age:
    expected = "a duration such as '7 d' for times, or an integer such as '1000' for numbers"
    is_time = not text.strip().isdecimal()
    try:
        amount = _duration_ms(text) if is_time else _whole(1, _LONG_MAX)(text)
    except ValueError:
        raise ValueError(expected) from None
    if amount < 1:
        raise ValueError(f"{expected}, at least 1 ms")
    return Age(amount, is_time)


def _duration_or_forever(text: str) -> int | None:
    if text.strip().lower() == "forever":
        return None
    try:
        return _duration_ms(text)
    except ValueError as error:
        raise ValueError(f"'forever' or {error}") from None


def _quantity(text: str, units: Mapping[str, int], expected: str) -> int:
    # Not `\d`, which takes the digits of every script. 2^63 has 19 digits.
    match = re.fullmatch(r"\s*([0-9]{1,19})\s*([a-zµ]*)\s*", text.lower())
    if match is None or match.group(2) not in units:
        raise ValueError(expected)
    value = int(match.group(1)) * units[match.group(2)]
    if value > _LONG_MAX:
        raise ValueError(f"{expected}, below 2^63 in the smallest unit")
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("'true' or 'false'")
    return text.lower() == "true"


def _whole(low: int, high: int) -> Callable[[str], int]:
    expected = f"an integer from {low} to {high}"

    def parse(text: str) -> int:
        # int() takes more than a number: blanks, underscores, digits of any script, any length.
        if re.fullmatch(r"[+-]?[0-9]{1,19}", text.strip()) is None:
            raise ValueError(expected)
        value = int(text)
        if not low <= value <= high:
            raise ValueError(expected)
        return value

    return parse


def _buckets(text: str) -> int:
    if text.strip() in ("-1", "-2"):  # dynamic and postponed buckets
        return int(text)
    try:
        return _whole(1, _INT_MAX)(text)
    except ValueError as error:
        raise ValueError(
            f"{error}; a table has at least 1 bucket, so use a number greater than 0"
        ) from None


def _buckets_max(text: str) -> int:
    if text.strip() == "-1":
        return -1
    try:
        return _whole(1, 1 << 15)(text)
    except ValueError as error:
        raise ValueError(f"{error}, or -1 for no limit") from None


def _one_of(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError("one of " + ", ".join(allowed))
        return text.lower()

    return parse


def _share(text: str) -> float:
    # float() takes infinities, underscores and digits of any script too.
    if re.fullmatch(r"[0-9]{0,3}\.?[0-9]{1,20}([eE]-?[0-9]{1,2})?", text.strip()) is not None:
        value = float(text)
        if 0 < value < 1:
            return value
    raise ValueError("a number between 0 and 1, such as '0.05'")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _stats_mode(text: str) -> str:
    mode = text.lower().replace(" ", "")
    if mode in ("none", "counts", "full") or re.fullmatch(r"truncate\([1-9][0-9]{0,8}\)", mode):
        return mode
    raise ValueError("none, counts, full or truncate(n)")


_PADDINGS = ("row-kind-flag", "second-to-micro", "millis-to-micro")


def _paddings(text: str) -> tuple[str, ...]:
    names = _names(text.lower())
    if any(name not in _PADDINGS for name in names):
        raise ValueError("a comma-separated list of " + ", ".join(_PADDINGS))
    return names


_FORMS = ("delta", "iceberg")


def _forms(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(_names(text.lower())))
    if not names or any(name not in _FORMS for name in names):
        raise ValueError("a comma-separated list of " + ", ".join(_FORMS))
    return names


def _levels(text: str) -> tuple[tuple[int, str], ...]:
    found: dict[int, str] = {}
    for part in _names(text):
        level, _, word = part.partition(":")
        if re.fullmatch(r"[0-9]{1,9}", level.strip()) is None or not word.strip():
            raise ValueError("levels with a value for each, such as '0:avro,5:parquet'")
        found[int(level)] = word.strip()
    return tuple(found.items())


def _engine(text: str) -> str:
    name = text.lower()
    if re.fullmatch(r"[a-z][a-z0-9-]*", name) is None:
        raise ValueError("the name of a merge engine, such as 'deduplicate'")
    return name


def _column(text: str) -> str:
    if not text.strip():
        raise ValueError("a column name")
    return text


def _file_name(text: str) -> str:
    if "/" in text or "\0" in text:
        raise ValueError("a file name prefix without '/' and NUL")
    return text


def _folder(text: str) -> str:
    folder = text.strip("/")
    if folder and ("\0" in folder or {"", ".", ".."}.intersection(folder.split("/"))):
        raise ValueError(
            "a folder below the table, such as 'a/b', without '.', '..' and empty names"
        )
    return folder


def choice(*allowed: str) -> ValueType:
    """One of some words, case-insensitively."""
    return ValueType(", ".join(f"`{word}`" for word in allowed), _one_of(allowed), allowed, "?")


def integer(low: int = 0, high: int = _INT_MAX) -> ValueType:
    """An integer, `low` or more."""
    samples = (str(low + 3), str(low + 4))
    name = "integer" if low < 0 else f"integer, {low} or more"
    return ValueType(name, _whole(low, high), samples, "1.5")


def size(least: int = 0) -> ValueType:
    """A size of at least so many bytes."""

    def parse(text: str) -> int:
        value = parse_memory_size(text)
        if value < least:
            raise ValueError(f"a size of at least {least} bytes, such as '128 mb'")
        return value

    return ValueType("size such as `128 mb`", parse, ("64 mb", "32 mb"), "64 miles")


AGE = ValueType("duration such as `7 d`, or integer", _age, ("7 d", "1000"), "a while")
BOOLEAN = ValueType("`true` or `false`", _boolean, ("true", "false"), "maybe")
BUCKETS = ValueType("integer, 1 or more, or -1 or -2", _buckets, ("4", "7"), "0", absent=-1)
BUCKETS_MAX = ValueType("integer, 1 or more, or -1", _buckets_max, ("4", "7"), "0")
COLUMN = ValueType("column name", _column, ("a",), " ", lists_columns=True)
COLUMNS = ValueType(
    "comma-separated column names", _names, ("a", "b"), absent=(), lists_columns=True
)
ENGINE = ValueType("merge engine", _engine, ("partial-update", "deduplicate"), "?")
EXACT_COLUMNS = replace(COLUMNS, parse=lambda text: tuple(text.split(",")))  # not trimmed
DURATION = ValueType("duration such as `10 min`", _duration_ms, ("7 s", "9 s"), "a while")
DURATION_OR_FOREVER = ValueType(
    "duration such as `7 d`, or `forever`", _duration_or_forever, ("7 d", "9 d"), "a while"
)
NAMES = ValueType("comma-separated names", _names, ("a", "b"), absent=())
PADDINGS = ValueType(
    ", ".join(f"`{name}`" for name in _PADDINGS), _paddings, ("row-kind-flag",), "?", absent=()
)
FORMS = ValueType(
    ", ".join(f"`{name}`" for name in _FORMS), _forms, ("delta", "delta,iceberg"), "?", absent=()
)
FILE_NAME = ValueType("string without `/`", _file_name, ("abc", "xyz"), "a/b")
FOLDER = ValueType("relative path", _folder, ("abc", "x/yz"), "../abc")
ICEBERG_VERSION = ValueType(
    "`2`, `3`", lambda text: int(_one_of(("2", "3"))(text)), ("2", "3"), "1"
)
LEVELS = ValueType(
    "levels with values, such as `0:avro,5:parquet`", _levels, ("0:counts", "1:none,5:full"), "some"
)
SHARE = ValueType("number between 0 and 1", _share, ("0.02", "0.2"), "1.0")
SIZE = size()
STATS_MODE = ValueType("`none`, `counts`, `full`, `truncate(n)`", _stats_mode, ("counts",), "some")
TEXT = ValueType("string", str, ("abc", "xyz"))


# -- durations -------------------------------------------------------------------------------------


_LONGEST = timedelta(microseconds=(2**63 - 1) // 1000)


def duration_ms(given: str | timedelta, argument: str) -> int:
    """Whole milliseconds of a string such as '7 d', or of a timedelta.

    Raises `InvalidError`, naming the argument, for what is no duration, and for one that is
    negative or longer than 292 years.
    """
    found = _parsed(given, argument, DURATION)
    assert found is not None
    return found


def lifetime_ms(given: str | timedelta, argument: str) -> int | None:
    """The same, but 'forever' is None, and less than a millisecond is an error."""
    return _parsed(given, argument, DURATION_OR_FOREVER, least_ms=1)


def check_seconds(given: float, argument: str, *, is_zero_allowed: bool) -> None:
    """Raise `InvalidError`, naming the argument, for no number of seconds or one out of range."""
    # Not converted before the comparison: an integer may be too large for a float.
    is_long_enough = given >= 0 if is_zero_allowed else given > 0
    if not (is_long_enough and given <= _LONGEST.total_seconds()):
        least = (
            "a number of seconds, 0 or more" if is_zero_allowed else "a number of seconds above 0"
        )
        raise InvalidError(f"{argument} is {shown(given)}; expected {least}, and at most 292 years")


def _parsed(
    given: str | timedelta, argument: str, kind: ValueType, least_ms: int = 0
) -> int | None:
    try:
        if not isinstance(given, timedelta):
            found = kind.parse(given)
        elif timedelta(0) <= given <= _LONGEST:
            found = given // timedelta(milliseconds=1)
        else:
            raise ValueError("a duration such as '7 d', from 0 to 292 years")
        if found is not None and found < least_ms:
            raise ValueError("a duration above 0, such as '7 d'")
    except ValueError as error:
        value = str(given) if isinstance(given, timedelta) else given
        raise InvalidError(f"{argument} is {shown(value)}; expected {error}") from None
    return None if found is None else int(found)


# -- the definition of an option -------------------------------------------------------------------


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
