"""Branches: the folder of a table as a branch sees it.

A branch has its own schemas, snapshots, tags, changelogs and consumers, in a folder inside the
table. Data files, manifests and indexes are stored with those of the table, because each of their
names is unique. So a branch is read and written like any table, through a store that finds its
documents in its folder.

>>> split_branch("shop.orders$branch_trial")
('shop.orders', 'trial')
>>> split_branch("shop.orders")
('shop.orders', None)
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeVar

import pyarrow as pa

from keytide.format import paths
from keytide.store import ObjectInfo, Store

__all__ = ["BRANCH_MARK", "BranchStore", "branch_of", "branched_name", "main_store", "split_branch"]

T = TypeVar("T")

BRANCH_MARK = "$branch_"
"""The separator between the names of a table and of its branch."""

_OWN = frozenset(
    {
        paths.schema_dir(),
        paths.snapshot_dir(),
        paths.tag_dir(),
        paths.changelog_dir(),
        paths.consumer_dir(),
    }
)


def split_branch(name: str) -> tuple[str, str | None]:
    """The table and the branch in a table name. None if it names no branch."""
    table, mark, branch = name.partition(BRANCH_MARK)
    return (table, branch) if mark else (name, None)


def branched_name(table: str, branch: str) -> str:
    """The name of a branch of a table."""
    return table if branch == paths.MAIN_BRANCH else f"{table}{BRANCH_MARK}{branch}"


def main_store(store: Store) -> Store:
    """The store of the whole table, given a store of the table or of a branch."""
    return store.main if isinstance(store, BranchStore) else store


def branch_of(store: Store) -> str:
    """The branch that a store of a table shows."""
    return store.branch if isinstance(store, BranchStore) else paths.MAIN_BRANCH


@dataclass(frozen=True)
class BranchStore(Store):
    """The store `main` of a table, with the documents of a branch instead of its own."""

    main: Store
    branch: str

    @property
    def uri(self) -> str:
        """That of the table, with the branch as in table names."""
        return branched_name(self.main.uri.rstrip("/"), self.branch)

    @property
    def identity(self) -> Hashable:
        """That of the table, and the branch."""
        return self.main.identity, self.branch

    def uri_of(self, path: str) -> str:
        """The full name of a file."""
        return self.main.uri_of(self._path(path)) if path else f"{self.uri}/"

    def read(self, path: str) -> bytes:
        """The whole file."""
        return self.main.read(self._path(path))

    def together(self, calls: Sequence[Callable[[], T]]) -> builtins.list[T]:
        """The results of several calls."""
        return self.main.together(calls)

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """A call that may run in the background."""
        return self.main.begin(call)

    def uploading(self) -> tuple[Store, Callable[[], None]]:
        """The store as one whose new files may be uploaded in the background, and a function that
        waits for them.
        """
        main, settle = self.main.uploading()
        return replace(self, main=main), settle

    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable file."""
        return self.main.open_input(self._path(path))

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        """Bytes of a file."""
        return self.main.read_ranges(self._path(path), ranges)

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A new file."""
        return self.main.open_output(self._path(path))

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file."""
        self.main.put(self._path(path), data)

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Write several whole files."""
        self.main.put_all({self._path(path): data for path, data in files.items()})

    def copy(self, path: str, to: str) -> None:
        """Give a file an additional name."""
        self.main.copy(self._path(path), self._path(to))

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file if the name is free."""
        return self.main.create(self._path(path), data)

    def hint(self, path: str, data: bytes) -> None:
        """Replace a file that readers do not depend on."""
        self.main.hint(self._path(path), data)

    def exists(self, path: str) -> bool:
        """Whether a file has this name."""
        return self.main.exists(self._path(path))

    def size(self, path: str) -> int:
        """Length of the file in bytes."""
        return self.main.size(self._path(path))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All files below `prefix`, without those of the main branch and of other branches."""
        folder = f"{paths.branch_dir(self.branch)}/"
        for info in self.main.list(self._path(prefix)):
            first = info.path.partition("/")[0]
            if info.path.startswith(folder):
                yield replace(info, path=info.path.removeprefix(folder))
            elif first not in _OWN and first != paths.branches_dir():
                yield info

    def list_names(self, directory: str = "") -> builtins.list[str]:
        """Sorted names directly below `directory`."""
        return self.main.list_names(self._path(directory))

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files."""
        self.main.delete(self._path(path) for path in paths)

    def discard(self, paths: Iterable[str]) -> None:
        """Remove files that nothing references, as far as possible."""
        self.main.discard([self._path(path) for path in paths])

    def delete_tree(self, directory: str) -> None:
        """Remove a directory with all its content."""
        self.main.delete_tree(self._path(directory))

    def local_path(self, path: str) -> Path | None:
        """The file on local disk, or None."""
        return self.main.local_path(self._path(path))

    def polars_options(self) -> Mapping[str, str] | None:
        """Storage options with which Polars can read the `uri_of` a file itself."""
        return self.main.polars_options()

    def uncached(self) -> BranchStore:
        """The branch without the local cache."""
        main = self.main.uncached()
        return self if main is self.main else replace(self, main=main)

    def forget(self, paths: Iterable[str]) -> None:
        """Remove cached copies."""
        self.main.forget(self._path(path) for path in paths)

    def sub(self, prefix: str) -> Store:
        """The same store, rooted at the directory `prefix`."""
        return self.main.sub(self._path(prefix))

    def _path(self, path: str) -> str:
        """The path of a file in the table."""
        is_own = path.partition("/")[0] in _OWN
        return paths.join(paths.branch_dir(self.branch), path) if is_own else path
