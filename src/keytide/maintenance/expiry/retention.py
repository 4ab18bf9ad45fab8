"""How long snapshots and changelogs are kept: values only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keytide.errors import InvalidError
from keytide.options import TableOptions

__all__ = ["Asked", "Retention"]


@dataclass(frozen=True)
class Asked:
    """The settings in a request, under the names that users know. None if not given."""

    retain_max: int | None = None
    retain_min: int | None = None
    older_than_ms: int | None = None
    max_deletes: int | None = None


@dataclass(frozen=True)
class Retention:
    """Which snapshots expire, or which changelogs that have outlived their snapshots.

    The newest `keep_min` never expire. Those beyond the newest `keep_max` do, whatever their age.
    Of the others, those created before `before_ms` do. At most `expire_max` expire at a time,
    oldest first.
    """

    keep_min: int
    keep_max: int | None
    before_ms: int
    expire_max: int | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidError` for numbers that contradict each other."""
        for name, value in (("retain_min", self.keep_min), ("retain_max", self.keep_max)):
            if value is not None and value < 1:
                raise InvalidError(
                    f"{name} is {value}; should be at least 1: the latest snapshot is always kept"
                )
        if self.keep_max is not None and self.keep_min > self.keep_max:
            raise InvalidError(
                f"retain_min is {self.keep_min}, which should not be larger than retain_max, "
                f"which is {self.keep_max}; correct one of them"
            )
        if self.expire_max is not None and self.expire_max < 0:
            raise InvalidError(f"max_deletes is {self.expire_max}; expected 0 or more")

    @classmethod
    def of_snapshots(cls, options: TableOptions, now_ms: int) -> Retention:
        """The table's options for its snapshots."""
        before_ms = now_ms - options.snapshot_time_retained_ms
        return cls(options.snapshots_retained_min, options.snapshots_retained_max, before_ms)

    @classmethod
    def of_changelogs(cls, options: TableOptions, now_ms: int) -> Retention:
        """The table's options for changelogs. Default: the same as for snapshots."""
        least, most = options.least_changelogs, options.most_changelogs
        return cls(least, most, now_ms - options.changelog_lifetime_ms)

    def asked(self, asked: Asked) -> Retention:
        """The same with the settings of a request.

        If only one of the two numbers is given, the other one is adapted to it. Raises
        `InvalidError` like the constructor.
        """
        least, most = self.keep_min, self.keep_max
        if asked.retain_max is not None:
            least, most = min(least, max(1, asked.retain_max)), asked.retain_max
        if asked.retain_min is not None:
            least = asked.retain_min
            if asked.retain_max is None and most is not None:
                most = max(most, least)
        before_ms = self.before_ms if asked.older_than_ms is None else asked.older_than_ms
        return Retention(least, most, before_ms, asked.max_deletes)

    def is_due(self, newest_id: int, oldest_id: int, oldest_ms: int, slack_ms: int = 0) -> bool:
        """Whether the oldest snapshot expires, unless something keeps it.

        It is due because of its age only when it is too old by `slack_ms`.
        """
        count = newest_id - oldest_id + 1
        is_old = oldest_ms < self.before_ms - slack_ms
        return count > self.keep_min and (is_old or self._is_beyond(count))

    def expired(
        self,
        ids: Sequence[int],
        newest: int,
        held_from: int | None,
        made_ms: Callable[[int], int],
    ) -> list[int]:
        """Those of the ids, in ascending order, that expire: always the lowest ones.

        They are counted back from `newest`. `held_from` is the lowest one that a consumer still has
        to read. `made_ms` returns a creation time and is called as rarely as possible.
        """
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
