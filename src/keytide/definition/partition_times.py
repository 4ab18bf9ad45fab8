"""Reads times from the values of partition columns, as the options `partition.timestamp-pattern`
and `partition.timestamp-formatter` describe.

The pattern combines the values into a string, such as `$dt $hour:00:00`. By default it is the first
value. The formatter, with Java's pattern letters, describes the string, such as `yyyyMMdd`. By
default it is `2026-01-31`, with an optional time of day.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from keytide.base.lazily import cached_property
from keytide.errors import InvalidError
from keytide.options import TableOptions, keys
from keytide.types import Field

__all__ = ["PartitionTimes"]

# For each letter: the part of a time, and the number of digits that a single letter may match.
_LETTERS = {
    "y": ("year", 4), "u": ("year", 4), "M": ("month", 2), "d": ("day", 2), "H": ("hour", 2),
    "m": ("minute", 2), "s": ("second", 2), "S": ("fraction", 9),
}  # fmt: skip
_PIECES = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>([a-zA-Z])\3*)|(?P<other>.)", re.S)
_DEFAULT = re.compile(
    r"(?P<year>[0-9]{1,4})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})"
    r"(?: (?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2}):(?P<second>[0-9]{1,2})"
    r"(?:\.(?P<fraction>[0-9]{1,9}))?)?"
)


@dataclass(frozen=True)
class PartitionTimes:
    """Reads the times of partitions with these columns."""

    fields: tuple[Field, ...]
    pattern: str | None = None
    formatter: str | None = None

    @classmethod
    def of(
        cls,
        fields: Sequence[Field],
        options: TableOptions,
        pattern: str | None = None,
        formatter: str | None = None,
    ) -> PartitionTimes:
        """Missing arguments come from the options of a table.

        Raises `InvalidError` for a pattern that names no partition column, and for formatter
        letters that are ambiguous or incomplete.
        """
        found = cls(
            tuple(fields),
            pattern or options.partition_timestamp_pattern,
            formatter or options.partition_timestamp_formatter,
        )
        found.check()
        return found

    def check(self) -> None:
        """Raise `InvalidError` for a pattern or formatter that cannot be used."""
        names = [field.name for field in self.fields]
        for name in re.findall(r"\$([A-Za-z_]\w*)", self.pattern or ""):
            # Names may be followed by other characters: `$yearx` may be `$year` and an x.
            if not any(name.startswith(known) for known in names):
                raise InvalidError(
                    f"'{keys.PARTITION_TIMESTAMP_PATTERN}' = {self.pattern!r} names ${name}; the "
                    f"partition columns are {', '.join(names)}"
                )
        self._read  # noqa: B018  # checks the formatter

    def time(self, values: Sequence[Any]) -> datetime | None:
        """The time in the values of a partition. None if they do not contain one."""
        texts = [_text(value) for value in values]
        if self.pattern is None:
            return None if texts[0] is None else self._parsed(texts[0])
        by_name = dict(zip((field.name for field in self.fields), texts, strict=True))
        used = [name for name in by_name if f"${name}" in self.pattern]
        if any(by_name[name] is None for name in used):
            return None
        longest_first = sorted(used, key=len, reverse=True)
        names = "|".join(map(re.escape, longest_first)) or "(?!)"
        return self._parsed(re.sub(rf"\$({names})", lambda m: by_name[m[1]] or "", self.pattern))

    def _parsed(self, text: str) -> datetime | None:
        match = self._read.fullmatch(text)
        if match is None:
            return None
        parts = match.groupdict()
        fraction = parts.pop("fraction", None)
        numbers = {part: int(digits) for part, digits in parts.items() if digits is not None}
        if len(parts["year"]) == 2:
            numbers["year"] += 2000
        try:
            time = datetime(**numbers)  # type: ignore[arg-type]
        except ValueError:
            return None
        return time + timedelta(microseconds=int(f"{fraction or 0:<06}"[:6]))

    @cached_property
    def _read(self) -> re.Pattern[str]:
        return _DEFAULT if self.formatter is None else _pattern_of(self.formatter)


def _text(value: Any) -> str | None:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    return None if value is None else value.isoformat() if isinstance(value, date) else str(value)


def _pattern_of(formatter: str) -> re.Pattern[str]:
    """The regular expression for Java's letters.

    Raises `InvalidError` for letters that are not part of a time.
    """
    found, parts = "", set[str]()
    for piece in _PIECES.finditer(formatter):
        letters = piece["letters"]
        if letters is None:
            quoted = piece["quoted"]
            text = piece["other"] if quoted is None else quoted.replace("''", "'") or "'"
            found += re.escape(text)
            continue
        part, digits_max = _LETTERS.get(letters[0], ("", 0))
        if not part or part in parts:
            raise _misread(formatter, f"{letters!r} is not supported, or is used twice")
        parts.add(part)
        many = f"{{1,{digits_max}}}" if len(letters) == 1 else f"{{{len(letters)}}}"
        found += f"(?P<{part}>[0-9]{many})"
    if not {"year", "month", "day"} <= parts:
        raise _misread(formatter, "year, month and day are required")
    return re.compile(found)


def _misread(formatter: str, reason: str) -> InvalidError:
    return InvalidError(
        f"'{keys.PARTITION_TIMESTAMP_FORMATTER}' = {formatter!r}; expected a date pattern such "
        f"as 'yyyyMMdd' or 'yyyy-MM-dd HH:mm:ss', with each part once: {reason}"
    )
