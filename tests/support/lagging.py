"""A folder that passes for an object store whose listings lag behind what is done to it.

What was created a moment ago may be missing from a listing, and what was deleted a moment ago may
still be in it; reads, `create` and `exists` tell what is there now. The old S3 was like this, and
so are listings that a gateway or a proxy keeps.
"""

from __future__ import annotations

import builtins
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from far import FarFolder
from keytide.errors import DataError
from keytide.store import LocalStore, Store
from keytide.store.interface import ObjectInfo

__all__ = ["LaggingFolder"]

_LAGS_MS = (0, 40, 400)
_gone: dict[str, tuple[int, ObjectInfo]] = {}


class LaggingFolder(FarFolder):
    """Of one process those listings lag that it makes itself; what it deletes is not forgotten."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The files of a moment ago."""
        now = _now()
        seen = now - random.choice(_LAGS_MS)
        below = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        there = {info.path: info for info in super().list(prefix) if info.modified_ms <= seen}
        for full, (moment, info) in builtins.list(_gone.items()):
            path = full.removeprefix(f"{self.root}/")
            if moment > seen and path != full and path.startswith(below):
                there.setdefault(path, ObjectInfo(path, info.size, info.modified_ms))
        return iter(there.values())

    def list_names(self, directory: str = "") -> builtins.list[str]:
        """Names of a moment ago; a directory is there as long as a file is seen in it."""
        start = len(directory.strip("/")) + 1 if directory.strip("/") else 0
        return sorted({info.path[start:].split("/")[0] for info in self.list(directory)})

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files."""
        paths = [*paths]
        for path in paths:
            with suppress(DataError):
                self._note(ObjectInfo(path, self.size(path), 0))
        super().delete(paths)

    def delete_tree(self, directory: str) -> None:
        """Remove a directory, file by file."""
        for info in LocalStore(self.root).list(directory):
            self._note(info)
        super().delete_tree(directory)

    def uploading(self) -> tuple[Store, Callable[[], None]]:
        """Nothing is under way."""
        return self, lambda: None

    def sub(self, prefix: str) -> LaggingFolder:
        """The same, rooted at a directory."""
        return LaggingFolder(self._full(prefix))

    def _note(self, info: ObjectInfo) -> None:
        _gone[f"{self.root}/{info.path}"] = (_now(), info)


def _now() -> int:
    return time.time_ns() // 1_000_000
