"""The head of an index of keys: the data files that it covers, and its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from keytide.base.lazily import cached_property
from keytide.errors import DataError, UnsupportedError
from keytide.key_index.comparison import NOTHING, Numbers
from keytide.key_index.entries import Entries

__all__ = ["Head", "IndexedFile", "StoredRun"]

_VERSION = 1


@dataclass(frozen=True)
class IndexedFile:
    """A data file, by its number in entries.

    `dead` of its `rows` are deleted, and `current` are the latest rows of their keys, including
    deletes.
    """

    number: int
    name: str
    rows: int
    dead: int
    current: int

    @property
    def stale(self) -> int:
        """The number of rows that are no longer relevant for their keys."""
        return self.rows - self.current


@dataclass(frozen=True)
class StoredRun:
    """A run by its file name."""

    name: str
    entries: int
    size: int


@dataclass(frozen=True)
class Head:
    """The description of one index of keys. Its runs are ordered from oldest to newest.

    `function` is the hash function of keys, and `compared` the unit of the comparison numbers.
    `mark` is the largest number so far. `next_number` is for the next file: numbers are not reused,
    so an entry of a removed file is recognized.
    """

    function: str
    files: tuple[IndexedFile, ...] = ()
    runs: tuple[StoredRun, ...] = ()
    compared: str = ""
    mark: int = NOTHING
    next_number: int = 0

    @cached_property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The numbers of the files."""
        return np.array([file.number for file in self.files], np.int64)

    def about(
        self, files: Sequence[IndexedFile], entries: Entries, before: Entries, seen: Numbers
    ) -> Head:
        """The head with these files, after `entries` replaced those in `before`.

        `seen` are the comparison numbers of all new rows.
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
        """The head as bytes."""
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Head:
        """The head from the bytes of a file.

        Raises `DataError` for a corrupt file, and `UnsupportedError` for one of a newer release.
        """
        try:
            said = json.loads(data)
            version = int(said.pop("version"))
            if version > _VERSION:
                raise UnsupportedError(
                    f"{path}: a key index of version {version}, but this release supports "
                    f"version {_VERSION}; use a newer release"
                )
            return _head(said)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{path}: the key index is damaged ({error})") from error


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
