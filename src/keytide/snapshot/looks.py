"""When tables were last checked, so that not every commit checks for time-based work."""

from __future__ import annotations

import time
from collections import OrderedDict
from threading import Lock

__all__ = ["Looks"]

_TABLES_MAX = 1000


class Looks:
    """When this process last checked each table."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, float] = OrderedDict()
        self._lock = Lock()

    def is_time(self, uri: str, seconds_between: float) -> bool:
        """Whether it is time to check again. If so, the table counts as checked now."""
        now = time.monotonic()
        with self._lock:
            if now - self._times.get(uri, float("-inf")) < seconds_between:
                return False
            self._times[uri] = now
            self._times.move_to_end(uri)
            while len(self._times) > _TABLES_MAX:
                self._times.popitem(last=False)
            return True
