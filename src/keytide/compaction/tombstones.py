"""The age of a bucket's tombstones, as compactions record it in the files that they write.

A row has a sequence number and no time. So a compaction records in its files which numbers existed
when it ran. A tombstone is at least as old as the first compaction that saw its number. It may be
older, and is then kept longer than necessary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keytide.format.data_file import read_note
from keytide.store import Store

__all__ = ["Ages"]

_KEY = "keytide.ages"
# How many times are distinguished within a retention. More would be more precise.
_STEPS = 16


@dataclass(frozen=True)
class Ages:
    """Marks, each a sequence number and a time in epoch milliseconds.

    Versions with this or a lower number existed at that time.
    """

    marks: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def read(cls, store: Store, path: str) -> Ages:
        """The record of a data file. Raises `DataError` if it cannot be read."""
        note = read_note(store, path, _KEY) or ""
        pairs = (mark.split("@") for mark in note.split())
        return cls(frozenset((int(number), int(time_ms)) for number, time_ms in pairs))

    @classmethod
    def together(cls, several: Iterable[Ages]) -> Ages:
        """The combined records of several files."""
        return cls(frozenset(mark for ages in several for mark in ages.marks))

    def horizon(self, now_ms: int, retention_ms: int | None) -> int | None:
        """The highest number that is known to be older than the retention. None if there is none.

        A retention of None means forever, so nothing is older.
        """
        if retention_ms is None:
            return None
        old = (number for number, time_ms in self.marks if time_ms <= now_ms - retention_ms)
        return max(old, default=None)

    def seen(self, highest: int, now_ms: int, retention_ms: int) -> Ages:
        """The marks for a file with numbers up to `highest` that is written now.

        No mark exceeds the numbers of its file, because higher numbers may be reused once their
        versions are gone. Of the marks within one time step, only the last is kept. This can make
        versions seem younger than they are, never older.
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
