"""Times in a definition: partition times, tag periods, and limits for late rows and deletes.

Partition times are read from the values of partition columns, as the options
`partition.timestamp-pattern` and `partition.timestamp-formatter` describe. The pattern combines the
values into a string, such as `$dt $hour:00:00`. By default it is the first value. The formatter,
with Java's pattern letters, describes the string, such as `yyyyMMdd`. By default it is
`2026-01-31`, with an optional time of day.

An automatic tag is named after the beginning of its period, and created from the first snapshot
after the end of the period. So it shows what had arrived by then. Times are wall-clock times
without a time zone.

>>> from keytide.options import TableOptions
>>> daily = TagPeriod.of(TableOptions.parse({}))
>>> daily.name_of(daily.last_ended(datetime(2026, 2, 1, 0, 5)))
'2026-01-31'

Limits for late rows and for the retention of deletes are measured in the comparison values, not in
wall-clock time: how far a row is behind the latest row. So they do not depend on when a row was
written or a compaction ran.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

from keytide.base.dataclass import dataclass
from keytide.base.process import cached_property
from keytide.errors import InvalidError
from keytide.format.schema import TableSchema
from keytide.key_index.indexed_keys import Comparison
from keytide.options import Age, TableOptions, keys
from keytide.types import Field

# -- partition times -------------------------------------------------------------------------------


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
        """The regular expression for Java's letters.

        Raises `InvalidError` for letters that are not part of a time.
        """
        if self.formatter is None:
            return _DEFAULT
        found, parts = "", set[str]()
        for piece in _PIECES.finditer(self.formatter):
            letters = piece["letters"]
            if letters is None:
                quoted = piece["quoted"]
                text = piece["other"] if quoted is None else quoted.replace("''", "'") or "'"
                found += re.escape(text)
                continue
            part, digits_max = _LETTERS.get(letters[0], ("", 0))
            if not part or part in parts:
                reason = f"{letters!r} is not supported, or is used twice"
                raise _misread(self.formatter, reason)
            parts.add(part)
            many = f"{{1,{digits_max}}}" if len(letters) == 1 else f"{{{len(letters)}}}"
            found += f"(?P<{part}>[0-9]{many})"
        if not {"year", "month", "day"} <= parts:
            raise _misread(self.formatter, "year, month and day are required")
        return re.compile(found)


def _text(value: Any) -> str | None:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    return None if value is None else value.isoformat() if isinstance(value, date) else str(value)


def _misread(formatter: str, reason: str) -> InvalidError:
    return InvalidError(
        f"'{keys.PARTITION_TIMESTAMP_FORMATTER}' = {formatter!r}; expected a date pattern such "
        f"as 'yyyyMMdd' or 'yyyy-MM-dd HH:mm:ss', with each part once: {reason}"
    )


# -- the periods of automatic tags -----------------------------------------------------------------


_EPOCH = datetime(1970, 1, 1)
_MINUTE = timedelta(minutes=1)
_DAILY = {"with_dashes": "%Y-%m-%d", "without_dashes": "%Y%m%d",
          "without_dashes_and_spaces": "%Y%m%d"}  # fmt: skip
_HOURLY = {"with_dashes": "%Y-%m-%d %H", "without_dashes": "%Y%m%d %H",
           "without_dashes_and_spaces": "%Y%m%d%H"}  # fmt: skip


@dataclass(frozen=True)
class TagPeriod:
    """Periods of one length, and the pattern of their names."""

    length: timedelta
    pattern: str

    @classmethod
    def of(cls, options: TableOptions) -> TagPeriod:
        """The periods that a table's options define.

        Raises `InvalidError` for a length whose names would not be unique, and for a delay that is
        longer than a period.
        """
        length_ms, formatter = options.tag_creation_period_ms, options.tag_period_formatter
        if length_ms is not None:
            period = cls(timedelta(milliseconds=length_ms), "%Y%m%d%H%M")
        elif options.tag_creation_period == "daily":
            period = cls(timedelta(days=1), _DAILY[formatter])
        elif options.tag_creation_period == "hourly":
            period = cls(timedelta(hours=1), _HOURLY[formatter])
        else:
            period = cls(timedelta(hours=2), _HOURLY["with_dashes"])
        if period.length < _MINUTE or period.length % _MINUTE:
            raise InvalidError(
                f"'{keys.TAG_CREATION_PERIOD_DURATION}' is {period.length}; names of tags "
                "contain minutes, so use whole minutes"
            )
        if timedelta(milliseconds=options.tag_creation_delay_ms) >= period.length:
            raise InvalidError(
                f"'{keys.TAG_CREATION_DELAY}' is {options.tag_creation_delay_ms:,} ms, but must "
                f"be less than a period ({period.length})"
            )
        return period

    def name_of(self, begin: datetime) -> str:
        """The name of the period that begins at a time."""
        return begin.strftime(self.pattern)

    def begin_of(self, name: str) -> datetime | None:
        """The beginning of the period with that name. None if no automatic tag has that name."""
        try:
            begin = datetime.strptime(name, self.pattern)
        except ValueError:
            return None
        # The parser accepts more than the names here: blanks, and months with one digit.
        return begin if self.name_of(begin) == name else None

    def last_ended(self, moment: datetime) -> datetime:
        """The beginning of the period before the one that contains a moment."""
        return _EPOCH + (moment - _EPOCH) // self.length * self.length - self.length


# -- limits for late rows and for the retention of deletes -----------------------------------------


_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_TIMES = ("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ")


def ticks_of(age: Age, comparison: Comparison) -> int:
    """The difference of the comparison numbers of two values with this distance."""
    return comparison.ticks(age.amount) if age.is_time else age.amount


def check_times_to_live(schema: TableSchema, options: TableOptions) -> None:
    """Raise `InvalidError` for a time to live that cannot be measured in the comparison values."""
    given = {
        keys.UPSERT_METADATA_TTL: options.metadata_ttl,
        keys.UPSERT_DELETED_KEYS_TTL: options.deleted_keys_ttl,
    }
    compared = options.sequence_field
    for key, age in given.items():
        if age is None:
            continue
        role, fields = f"'{key}' = '{options.raw[key]}'", schema.select(compared)
        if len(fields) != 1:
            found = ", ".join(compared) or "nothing"
            raise InvalidError(
                f"{role} is measured in the sequence field, which must be one column; "
                f"'{keys.SEQUENCE_FIELD}' names {found}; name one column, or remove the option"
            )
        root, type_ = fields[0].type.root, fields[0].type.sql()
        if root not in (*_NUMBERS, *_TIMES):
            raise InvalidError(
                f"{role} is measured in the sequence field, which must be a time or an integer, "
                f"and {compared[0]!r} is {type_}; use another sequence field, or remove the option"
            )
        if age.is_time != (root in _TIMES):
            expected = "a duration such as '7 d'" if root in _TIMES else "an integer such as '1000'"
            raise InvalidError(
                f"{role} is measured in {compared[0]!r}, which is {type_}; expected {expected}"
            )
