"""What an index of keys is about: the data files that it covers, and the runs it is made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from keytide.errors import DataError, UnsupportedError
from keytide.index.comparison import NOTHING, Numbers
from keytide.index.entries import Entries
from keytide.lazily import cached_property

__all__ = ["Head", "IndexedFile", "StoredRun"]

_VERSION = 1


@dataclass(frozen=True)
class IndexedFile:
    """A data file by the number that entries have for it.

    Of its `rows` so many are `dead`, and so many the `current` ones of their keys, those that
    delete among them.
    """

    number: int
    name: str
    rows: int
    dead: int
    current: int

    @property
    def stale(self) -> int:
        """How many of its rows say nothing of their keys any more."""
        return self.rows - self.current


@dataclass(frozen=True)
class StoredRun:
    """A run by the name of its file."""

    name: str
    entries: int
    size: int


@dataclass(frozen=True)
class Head:
    """What one index of keys says of itself; its runs come oldest first.

    `function` is the hash function of keys, `compared` what the comparisons of entries count;
    `mark` is the greatest of all that came, and `next_number` is for another file: numbers are not
    used again, so that an entry of a file that is gone is none.
    """

    function: str
    files: tuple[IndexedFile, ...] = ()
    runs: tuple[StoredRun, ...] = ()
    compared: str = ""
    mark: int = NOTHING
    next_number: int = 0

    @cached_property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The numbers of its files."""
        return np.array([file.number for file in self.files], np.int64)

    def about(
        self, files: Sequence[IndexedFile], entries: Entries, before: Entries, seen: Numbers
    ) -> Head:
        """With these files, after `entries` took the place of those `before`.

        `seen` are the comparisons of all rows that came.
        """
        more, fewer = (_counts(each.files) for each in (entries, before))
        counted = tuple(
            replace(f, current=f.current + more.get(f.number, 0) - fewer.get(f.number, 0))
            for f in files
        )
        return replace(
            self,
            files=counted,
            mark=int(np.max(seen, initial=self.mark)),
            next_number=max(self.next_number, *(file.number + 1 for file in files), 0),
        )

    def encode(self) -> bytes:
        """The bytes of its file."""
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Head:
        """What a file says.

        Raises `DataError` for a torn file, and `UnsupportedError` for one of a newer release.
        """
        try:
            said = json.loads(data)
            version = int(said.pop("version"))
            if version > _VERSION:
                raise UnsupportedError(
                    f"{path}: an index of keys of version {version}, and this release knows "
                    f"version {_VERSION}; use a newer release"
                )
            return _head(said)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{path}: the index of keys is torn or damaged ({error})") from error


def _counts(numbers: Numbers) -> dict[int, int]:
    found, counts = np.unique(numbers, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _head(said: Mapping[str, Any]) -> Head:
    return Head(
        said["function"],
        tuple(IndexedFile(**file) for file in said["files"]),
        tuple(StoredRun(**run) for run in said["runs"]),
        said["compared"],
        said["mark"],
        said["next_number"],
    )
