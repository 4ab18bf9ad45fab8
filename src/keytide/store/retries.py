"""How often, and for how long, a failed request to an object store is repeated."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

__all__ = ["MAX_RETRIES", "RETRY_OPTIONS", "RETRY_TIMEOUT", "Retries"]

MAX_RETRIES = "max_retries"
RETRY_TIMEOUT = "retry_timeout"
RETRY_OPTIONS = frozenset({MAX_RETRIES, RETRY_TIMEOUT})

_WAIT_S_MIN = 0.1
_WAIT_S_MAX = 15.0
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
# Retries must end some day, even if the option means "forever".
_RETRIES_MAX = 1000
_TIMEOUT_S_MAX = 24 * 3600


@dataclass(frozen=True)
class Retries:
    """Limits on the number of retries, and on the time after which no retry starts."""

    count: int = 5
    within: timedelta = timedelta(seconds=60)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Retries:
        """The limits that the options of a store set.

        Raises `ValueError` for an invalid number or time.
        """
        given = {key.lower(): value for key, value in options.items()}
        count = given.get(MAX_RETRIES, str(cls.count)).strip()
        if not count.isdecimal() or int(count) > _RETRIES_MAX:
            raise ValueError(
                f"{MAX_RETRIES} is {count!r}, expected an integer from 0 to {_RETRIES_MAX}"
            )
        timeout = given.get(RETRY_TIMEOUT)
        return cls(int(count), cls.within if timeout is None else _time(timeout))

    def pauses(self) -> Iterator[float]:
        """Waiting times in seconds.

        They double up to a limit, with jitter to separate racing writers.
        """
        left, longest = self.within.total_seconds(), 2 * _WAIT_S_MIN
        for _ in range(self.count):
            pause = random.uniform(longest / 2, longest)
            left -= pause
            if left < 0:
                return
            yield pause
            longest = min(longest * 2, _WAIT_S_MAX)


def _time(text: str) -> timedelta:
    found = re.fullmatch(r"\s*([0-9]{1,9})\s*(ms|s|m|h)\s*", text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0 < seconds <= _TIMEOUT_S_MAX:
        raise ValueError(
            f"{RETRY_TIMEOUT} is {text!r}, expected a duration such as 60s or 2m, at most 24h"
        )
    return timedelta(seconds=seconds)
