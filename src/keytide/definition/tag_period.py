"""The periods of automatic tags, and how tag names identify them. Pure functions.

A tag is named after the beginning of its period, and created from the first snapshot after the end
of the period. So it shows what had arrived by then. Times are wall-clock times without a time zone.

>>> from keytide.options import TableOptions
>>> daily = TagPeriod.of(TableOptions.parse({}))
>>> daily.name_of(daily.last_ended(datetime(2026, 2, 1, 0, 5)))
'2026-01-31'
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from keytide.errors import InvalidError
from keytide.options import TableOptions, keys

__all__ = ["TagPeriod"]

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
        period = cls._named(options)
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

    @classmethod
    def _named(cls, options: TableOptions) -> TagPeriod:
        length_ms, formatter = options.tag_creation_period_ms, options.tag_period_formatter
        if length_ms is not None:
            return cls(timedelta(milliseconds=length_ms), "%Y%m%d%H%M")
        if options.tag_creation_period == "daily":
            return cls(timedelta(days=1), _DAILY[formatter])
        if options.tag_creation_period == "hourly":
            return cls(timedelta(hours=1), _HOURLY[formatter])
        return cls(timedelta(hours=2), _HOURLY["with_dashes"])

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
