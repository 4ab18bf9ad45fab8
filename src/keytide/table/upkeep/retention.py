"""How long snapshots are kept: values only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keytide.errors import InvalidError
from keytide.options import TableOptions

__all__ = ["Retention"]


@dataclass(frozen=True)
class Retention:
    """Which snapshots expire.

    The newest `keep_min` never do. Those beyond the newest `keep_max` do, whatever their age, and
    of the others those made before `before_ms`; at most `expire_max` at a time, oldest first.
    """

    keep_min: int
    keep_max: int | None
    before_ms: int
    expire_max: int | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidError` for numbers that contradict each other."""
        for name, value in (("retain_min", self.keep_min), ("retain_max", self.keep_max)):
            if value is not None and value < 1:
                raise InvalidError(f"{name} is {value}; should be at least 1: the newest stays")
        if self.keep_max is not None and self.keep_min > self.keep_max:
            raise InvalidError(
                f"retain_min is {self.keep_min}, which should not be larger than retain_max, which "
                f"is {self.keep_max}; give both, or only one of them"
            )
        if self.expire_max is not None and self.expire_max < 0:
            raise InvalidError(f"max_deletes is {self.expire_max}; give 0 or more")

    @classmethod
    def of(
        cls,
        options: TableOptions,
        now_ms: int,
        *,
        retain_max: int | None = None,
        retain_min: int | None = None,
        older_than_ms: int | None = None,
        max_deletes: int | None = None,
    ) -> Retention:
        """What somebody asks for; what they leave out is as the options of the table say.

        Where only one of the two numbers is given, the other one gives way to it. Raises
        `InvalidError` as the constructor.
        """
        least, most = options.snapshots_retained_min, options.snapshots_retained_max
        if retain_max is not None:
            least = min(least, max(1, retain_max))
        if retain_min is not None and most is not None:
            most = max(most, retain_min)
        before_ms = now_ms - options.snapshot_time_retained_ms
        return cls(
            least if retain_min is None else retain_min,
            most if retain_max is None else retain_max,
            before_ms if older_than_ms is None else older_than_ms,
            max_deletes,
        )

    def is_due(self, newest_id: int, oldest_id: int, oldest_ms: int, slack_ms: int = 0) -> bool:
        """Whether the oldest snapshot expires, unless somebody holds on to it.

        One is not due for its age until it is too old by `slack_ms`.
        """
        count = newest_id - oldest_id + 1
        is_old = oldest_ms < self.before_ms - slack_ms
        return count > self.keep_min and (is_old or self._is_beyond(count))

    def expired(
        self, ids: Sequence[int], held_from: int | None, made_ms: Callable[[int], int]
    ) -> list[int]:
        """Those of all snapshots, in ascending order, that expire: always the oldest ones.

        `held_from` is the oldest one that a consumer still has to read. `made_ms` tells when a
        snapshot was made; it is asked for as few as can be.
        """
        if not ids:
            return []
        newest = ids[-1]
        expired: list[int] = []
        for number in ids:
            count = newest - number + 1
            is_enough = self.expire_max is not None and len(expired) >= self.expire_max
            if count <= self.keep_min or is_enough:
                break
            if held_from is not None and number >= held_from:
                break
            if not self._is_beyond(count) and made_ms(number) >= self.before_ms:
                break
            expired.append(number)
        return expired

    def _is_beyond(self, count: int) -> bool:
        return self.keep_max is not None and count > self.keep_max
