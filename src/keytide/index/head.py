"""What an index of keys is about: the data files that it covers, and the runs it is made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from keytide.errors import DataError, UnsupportedError

__all__ = ["Head", "IndexedFile", "StoredRun"]

_VERSION = 1


@dataclass(frozen=True)
class IndexedFile:
    """A data file by the number that entries have for it, with its rows, and how many are dead."""

    number: int
    name: str
    rows: int
    dead: int


@dataclass(frozen=True)
class StoredRun:
    """A run by the name of its file."""

    name: str
    entries: int
    size: int


@dataclass(frozen=True)
class Head:
    """What one index of keys says of itself; its runs come oldest first.

    `function` is the hash function of keys, `compared` what the comparisons of entries count.
    """

    function: str
    files: tuple[IndexedFile, ...] = ()
    runs: tuple[StoredRun, ...] = ()
    compared: str = ""

    @property
    def next_number(self) -> int:
        """The number for another file."""
        return max((file.number for file in self.files), default=-1) + 1

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


def _head(said: Mapping[str, Any]) -> Head:
    return Head(
        said["function"],
        tuple(IndexedFile(**file) for file in said["files"]),
        tuple(StoredRun(**run) for run in said["runs"]),
        said["compared"],
    )
