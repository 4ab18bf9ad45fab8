"""How old the tombstones of a bucket are, as compactions note it down in the files that they write.

A row has a sequence number and no time. So a compaction writes into its files which numbers were
there when it ran. A tombstone is at least as old as the first compaction that saw its number; it
may be older, and is then kept for longer than it has to be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keytide.format.data_file import read_note
from keytide.store import Store

__all__ = ["Ages"]

_KEY = "keytide.ages"
# How many times are told apart within a retention; more would be more exact.
_STEPS = 16


@dataclass(frozen=True)
class Ages:
    """Marks, each a sequence number and a time in epoch milliseconds.

    Versions with that number or a lower one were there by then.
    """

    marks: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def read(cls, store: Store, path: str) -> Ages:
        """What a data file notes. Raises `DataError` for one that cannot be read."""
        note = read_note(store, path, _KEY) or ""
        pairs = (mark.split("@") for mark in note.split())
        return cls(frozenset((int(number), int(time_ms)) for number, time_ms in pairs))

    @classmethod
    def together(cls, several: Iterable[Ages]) -> Ages:
        """What several files note."""
        return cls(frozenset(mark for ages in several for mark in ages.marks))

    def horizon(self, now_ms: int, retention_ms: int | None) -> int | None:
        """The highest number that is known to be older than the retention; None for none.

        Nothing is older than forever, which is None.
        """
        if retention_ms is None:
            return None
        old = (number for number, time_ms in self.marks if time_ms <= now_ms - retention_ms)
        return max(old, default=None)

    def seen(self, highest: int, now_ms: int, retention_ms: int) -> Ages:
        """The marks for a file with numbers up to `highest` that is made now.

        No mark goes beyond the numbers of its file, for higher ones may be given out again once
        their versions are gone. Of the marks of a step of time only the last one is kept, which
        makes versions younger than they are, never older.
        """
        step_ms = max(1, retention_ms // _STEPS)
        kept: dict[int, tuple[int, int]] = {}
        for number, time_ms in sorted((*self.marks, (highest, now_ms)), key=lambda mark: mark[1]):
            is_old = time_ms <= now_ms - retention_ms
            step = -1 if is_old else time_ms // step_ms
            before = kept.get(step, (number, time_ms))
            kept[step] = (min(highest, max(number, before[0])), time_ms)
        return Ages(frozenset(kept.values()))

    @property
    def notes(self) -> dict[str, str]:
        """The marks as a file's own metadata."""
        return {_KEY: " ".join(f"{number}@{time_ms}" for number, time_ms in sorted(self.marks))}
