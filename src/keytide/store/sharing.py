"""Folders that several processes use, and whether these see the same folder.

A directory that was pickled knows where it was seen. Another process that does not find it, or does
not find a file in another directory of the same name, reports that the folder is not shared. It
would otherwise report lost data, or write files that the first process never sees.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from keytide.base.process import this_host
from keytide.errors import SetupError

__all__ = ["HOW_TO_SHARE", "Origin", "seen_here"]

HOW_TO_SHARE = (
    "All hosts must see the same folder: put the warehouse on a file system that each of them "
    "mounts at the same path, or in an object store."
)


@dataclass(frozen=True)
class Origin:
    """Where a directory was seen: the host, and the numbers of the directory and those above it.

    A number consists of a device, which means something on one host only, and of an inode.
    """

    root: str
    host: str
    numbers: tuple[tuple[int, int], ...]

    def check(self) -> None:
        """Raise `SetupError` if the directory does not exist here, unless it was deleted there."""
        if os.path.isdir(self.root):
            return
        seen = zip(_upwards(self.root), self.numbers, strict=True)
        above, number = next((path, number) for path, number in seen if os.path.isdir(path))
        if self.host == this_host() and number == _number(above):
            return
        raise SetupError(
            f"{self.root} exists for the driver on {self.host}, but not for a task on "
            f"{this_host()}, unless it was deleted in the meantime. {HOW_TO_SHARE}"
        )

    def check_file(self, path: str) -> None:
        """Raise `SetupError` if a missing file should be in another directory of this name."""
        there, here = self.numbers[0], _number(self.root)
        if there[1] == here[1] and (there[0] == here[0] or self.host != this_host()):
            return
        raise SetupError(
            f"{path} does not exist for a task on {this_host()}, and {self.root} seems to be "
            f"another folder than for the driver on {self.host}. {HOW_TO_SHARE}"
        )


def seen_here(root: str) -> Origin | None:
    """The origin of a directory of this host, None if it does not exist."""
    if not os.path.isdir(root):
        return None
    return Origin(root, this_host(), tuple(map(_number, _upwards(root))))


def _upwards(path: str) -> Iterator[str]:
    """A directory, and those above it."""
    yield path
    while (above := os.path.dirname(path)) != path:
        yield above
        path = above


def _number(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
