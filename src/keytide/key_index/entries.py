"""Entries of an index of keys, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from keytide.key_index.hashes import KeyHashes, between, found_among

__all__ = ["Entries", "Numbers", "newest_of_each"]

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Entries:
    """The location of the current row of each key, and its comparison number.

    `files` are the numbers of the data files in the index, and `positions` the positions of the
    rows in them.
    """

    hashes: KeyHashes
    files: Numbers
    positions: Numbers
    comparisons: Numbers

    def __len__(self) -> int:
        return len(self.hashes)

    def take(self, places: Numbers | slice) -> Entries:
        """The entries at some positions."""
        return Entries(
            self.hashes.take(places),
            self.files[places],
            self.positions[places],
            self.comparisons[places],
        )

    def find(self, probes: KeyHashes) -> tuple[Numbers, Entries]:
        """The indexes of the probes that have an entry here, and these entries.

        REQUIRES: the entries are in hash order.
        """
        places, at = found_among(self.hashes, probes)
        return places, self.take(at)

    def cuts(self, stretch: int) -> list[int]:
        """See `Run`. REQUIRES: as `find`."""
        return [int(head) for head in self.hashes.heads[::stretch].tolist()]

    def between(self, low: int, high: int | None) -> Entries:
        """See `Run`. REQUIRES: as `find`."""
        return self.take(between(self.hashes.heads, low, high))

    @classmethod
    def together(cls, parts: Sequence[Entries]) -> Entries:
        """Concatenated entries."""
        given = [part for part in parts if len(part)] or [cls.none()]
        if len(given) == 1:
            return given[0]
        return cls(
            KeyHashes(
                np.concatenate([part.hashes.heads for part in given]),
                np.concatenate([part.hashes.checks for part in given]),
            ),
            np.concatenate([part.files for part in given]),
            np.concatenate([part.positions for part in given]),
            np.concatenate([part.comparisons for part in given]),
        )

    @classmethod
    def none(cls) -> Entries:
        """No entries."""
        nothing = np.empty(0, np.int64)
        return cls(KeyHashes.none(), nothing, nothing, nothing)


def newest_of_each(entries: Entries) -> Entries:
    """The last entry of each key, in hash order."""
    heads, checks = entries.hashes.heads, entries.hashes.checks
    if bool(np.all(heads[1:] > heads[:-1])):
        return entries
    order = np.argsort(heads, kind="stable")
    heads, checks = heads[order], checks[order]
    if not _is_sorted_by_check(heads, checks):
        order = np.lexsort((np.arange(len(entries)), entries.hashes.checks, entries.hashes.heads))
        heads, checks = entries.hashes.heads[order], entries.hashes.checks[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (heads[1:] != heads[:-1]) | (checks[1:] != checks[:-1])
    return entries.take(order[is_last])


def _is_sorted_by_check(heads: npt.NDArray[np.uint64], checks: npt.NDArray[np.uint32]) -> bool:
    """Whether keys with equal heads, which are very rare, are in order."""
    return bool(np.all((heads[1:] != heads[:-1]) | (checks[1:] >= checks[:-1])))
