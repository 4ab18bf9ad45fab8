"""The files of a table for which only the catalog writes some files."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeVar

import pyarrow as pa

from keytide.errors import UnsupportedError
from keytide.format import paths
from keytide.store import ObjectInfo, Store, open_store

__all__ = ["KeptStore", "UnmadeStore"]

T = TypeVar("T")


@dataclass(frozen=True)
class KeptStore(Store):
    """The store `beneath` of a table in which only the catalog writes schemas, tags and branches.

    Writing or deleting these raises `UnsupportedError`, before anything is changed. Changes for
    which there are requests go through the table's `Keeper`.
    """

    beneath: Store
    table: str

    @property
    def uri(self) -> str:
        """The address of the store beneath."""
        return self.beneath.uri

    @property
    def identity(self) -> Hashable:
        """The identity of the store beneath, which has the same files."""
        return self.beneath.identity

    def uri_of(self, path: str) -> str:
        """The full name of a file."""
        return self.beneath.uri_of(path)

    def read(self, path: str) -> bytes:
        """The whole file."""
        return self.beneath.read(path)

    def read_all(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """The whole files."""
        return self.beneath.read_all(paths)

    def read_present(self, paths: Sequence[str]) -> builtins.list[bytes | None]:
        """The whole files, None for missing ones."""
        return self.beneath.read_present(paths)

    def together(self, calls: Sequence[Callable[[], T]]) -> builtins.list[T]:
        """Run several calls."""
        return self.beneath.together(calls)

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Run a call, which can still be running on return."""
        return self.beneath.begin(call)

    def uploading(self) -> tuple[Store, Callable[[], None]]:
        """A view that uploads in the background, and a function that waits for the uploads."""
        beneath, settle = self.beneath.uploading()
        return replace(self, beneath=beneath), settle

    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable file."""
        return self.beneath.open_input(path)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        """Bytes of a file."""
        return self.beneath.read_ranges(path, ranges)

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A new file."""
        return self.beneath.open_output(self._own(path))

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file."""
        self.beneath.put(self._own(path), data)

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Write several whole files."""
        self.beneath.put_all({self._own(path): data for path, data in files.items()})

    def copy(self, path: str, to: str) -> None:
        """Give a file a second name."""
        self.beneath.copy(path, self._own(to))

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file if the name is free."""
        return self.beneath.create(self._own(path), data)

    def hint(self, path: str, data: bytes) -> None:
        """Replace a file that readers do not depend on."""
        self.beneath.hint(path, data)

    def exists(self, path: str) -> bool:
        """Whether a file has this name."""
        return self.beneath.exists(path)

    def size(self, path: str) -> int:
        """Length of the file in bytes."""
        return self.beneath.size(path)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All files below `prefix`."""
        return self.beneath.list(prefix)

    def list_names(self, directory: str = "") -> builtins.list[str]:
        """Sorted names directly below `directory`."""
        return self.beneath.list_names(directory)

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files."""
        self.beneath.delete([self._own(path) for path in paths])

    def discard(self, paths: Iterable[str]) -> None:
        """Remove files that nothing refers to, on a best-effort basis."""
        self.beneath.discard([self._own(path) for path in paths])

    def delete_tree(self, directory: str) -> None:
        """Remove a directory and everything below it."""
        self.beneath.delete_tree(self._own(directory))

    def delete_empty(self, directory: str) -> None:
        """Remove a directory, except directories that contain files."""
        self.beneath.delete_empty(self._own(directory))

    def local_path(self, path: str) -> Path | None:
        """The file on local disk, otherwise None."""
        return self.beneath.local_path(path)

    def polars_options(self) -> Mapping[str, str] | None:
        """Storage options with which Polars reads `uri_of` a file directly."""
        return self.beneath.polars_options()

    def uncached(self) -> Store:
        """The same without local copies."""
        return replace(self, beneath=self.beneath.uncached())

    def forget(self, paths: Iterable[str]) -> None:
        """Remove local copies."""
        self.beneath.forget(paths)

    def sub(self, prefix: str) -> Store:
        """The folder below."""
        return self.beneath.sub(prefix)

    def _own(self, path: str) -> str:
        """A path that not only the catalog can write."""
        kind = _OF_CATALOG.get(path.partition("/")[0])
        if kind is not None:
            raise UnsupportedError(
                f"table {self.table}: {kind} of tables in a REST catalog can be changed only by "
                "the catalog, which does not support this; use a copy of the table in a folder "
                "warehouse"
            )
        return path


@dataclass(frozen=True)
class UnmadeStore(KeptStore):
    """The store of a table that does not exist yet, and whose location is unknown: no files."""

    @classmethod
    def of(cls, table: str) -> UnmadeStore:
        """The store of a table that is not in the catalog."""
        return cls(open_store("memory://unmade"), table)

    def _own(self, path: str) -> str:
        """Raises `UnsupportedError`, because the table must exist first."""
        raise UnsupportedError(
            f"table {self.table} does not exist, and a REST catalog assigns its location on "
            "creation; create it with CREATE TABLE or Lake.create_table, then write its rows"
        )


_OF_CATALOG = {
    paths.schema_dir(): "schemas",
    paths.tag_dir(): "tags",
    paths.branches_dir(): "branches",
}
