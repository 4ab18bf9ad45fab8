"""A store that fails on demand, through which tests inject faults.

::

    store = FaultyStore(inner, [Fault("create", "*/snapshot-2", action="lost-response")])

A run without faults fills `log`. Its length is the number of places where a crash is possible.
"""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from fnmatch import fnmatchcase
from functools import partial
from threading import Lock
from typing import BinaryIO, Literal, TypeVar, get_args

import pyarrow as pa

from keytide.base.dataclass import dataclass, field
from keytide.errors import DataError, InvalidError
from keytide.store.interface import ObjectInfo, Store, buffered, storage_error

Operation = Literal[
    "create", "put", "output", "hint", "delete", "read", "input", "exists", "size", "list", "write"
]
Action = Literal["fail", "lost-response", "torn", "disk-full", "interrupt", "crash"]
T = TypeVar("T")


class Crash(BaseException):
    """A simulated death of the process. `except Exception` does not catch it."""


@dataclass(frozen=True)
class Fault:
    """A fault to inject.

    It affects the `nth` operation (counted from 1) whose path matches the glob `match` ('*' also
    matches '/'), and the `times - 1` operations after it. The operation `write` means all
    operations that change the store: create, put, output, hint, delete.

    - `fail`: nothing is done, then `DataError`.
    - `lost-response`: the operation is done, then `DataError`.
    - `torn`: half of the data is written, then `DataError`. A torn create leaves its half under a
      temporary name, because no store shows a partial create.
    - `disk-full`: `DataError` caused by `OSError(ENOSPC)`. For an output, its `write` raises it.
    - `interrupt`: nothing is done, then `KeyboardInterrupt`, as after Ctrl-C.
    - `crash`: `Crash`, now and at every later operation, because a dead process does not clean up.
      An output leaves half of its data behind.

    A hint ignores all of them except `interrupt` and `crash`.
    """

    operation: Operation
    match: str = "*"
    nth: int = field(default=1, kw_only=True)
    action: Action = field(default="fail", kw_only=True)
    times: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if self.operation not in get_args(Operation) or self.action not in get_args(Action):
            raise InvalidError(
                f"Unknown fault {self.operation!r}, {self.action!r}: operations are "
                f"{get_args(Operation)}, actions are {get_args(Action)}"
            )

    def matches(self, operation: str, path: str) -> bool:
        """Whether the fault applies to this operation."""
        operations = _WRITES if self.operation == "write" else (self.operation,)
        return operation in operations and fnmatchcase(path, self.match)


class FaultyStore(Store):
    """Passes all operations on to `inner`, and injects faults.

    Stores created by `sub` share faults, counters and log, and their paths in them stay relative to
    the first root. There are no local paths, so that nothing bypasses the faults. Cannot be
    pickled, so it stays in its process.
    """

    def __init__(self, inner: Store, faults: Sequence[Fault] = ()) -> None:
        self.inner = inner
        self._script = _Script(tuple(faults))
        self._prefix = ""

    @property
    def log(self) -> builtins.list[tuple[str, str]]:
        """All operations so far as (operation, path), including failed ones."""
        return self._script.log

    @property
    def uri(self) -> str:
        """The address of the inner store."""
        return self.inner.uri

    def read(self, path: str) -> bytes:
        """The whole file."""
        return self._perform("read", path, lambda: self.inner.read(path))

    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable file. Faults are injected when it is opened."""
        return self._perform("input", path, lambda: self.inner.open_input(path))

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """A new file. Torn outputs and crashes leave half of it behind."""
        action = self._script.next_action("output", self._prefix + path)
        if action is None:
            with self.inner.open_output(path) as file:
                yield file
            return
        if action == "fail":
            raise self._failure(action, "output", path)
        data = bytearray()

        def refuse(piece: memoryview) -> None:
            raise self._failure("disk-full", "output", path)

        with buffered(refuse if action == "disk-full" else data.extend) as file:
            yield file
        self.inner.put(
            path, bytes(data) if action == "lost-response" else bytes(data)[: len(bytes(data)) // 2]
        )
        raise self._failure(action, "output", path)

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file."""
        tear = self._tearing(path, data)
        self._perform("put", path, lambda: self.inner.put(path, data), tear)

    def copy(self, path: str, to: str) -> None:
        """Give a file a second name. Counts as a `put` of that name."""
        self._perform("put", to, lambda: self.inner.copy(path, to))

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file if the name is free."""
        directory, name = os.path.split(path)
        tear = self._tearing(os.path.join(directory, f".{name}.torn.tmp"), data)
        return self._perform("create", path, lambda: self.inner.create(path, data), tear)

    def hint(self, path: str, data: bytes) -> None:
        """Replace a file that readers do not depend on."""
        tear = self._tearing(path, data)
        with suppress(DataError):
            self._perform("hint", path, lambda: self.inner.hint(path, data), tear)

    def exists(self, path: str) -> bool:
        """Whether a file has this name."""
        return self._perform("exists", path, lambda: self.inner.exists(path))

    def size(self, path: str) -> int:
        """Length of the file in bytes."""
        return self._perform("size", path, lambda: self.inner.size(path))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All files below `prefix`. Faults are injected before the first one."""
        return self._perform("list", prefix, lambda: self.inner.list(prefix))

    def list_names(self, directory: str = "") -> builtins.list[str]:
        """Sorted names directly below `directory`."""
        return self._perform("list", directory, lambda: self.inner.list_names(directory))

    def delete(self, paths: Iterable[str]) -> None:
        """Remove files one by one. Each of them is one operation."""
        for path in paths:
            self._perform("delete", path, partial(self.inner.delete, [path]))

    def delete_tree(self, directory: str) -> None:
        """Remove a directory and everything below it. Each file is one operation.

        Stores remove them in any order. Here it is by path.
        """
        self.delete(sorted(info.path for info in self.inner.list(directory)))
        self.inner.delete_tree(directory)

    def delete_empty(self, directory: str) -> None:
        """Remove a directory without files. This is not an operation of the store."""
        self.inner.delete_empty(directory)

    def rename_tree(self, directory: str, to: str) -> bool:
        """Rename a directory, if the inner store can. Counts as a `create` of the new name."""
        return self._perform("create", to, lambda: self.inner.rename_tree(directory, to))

    def local_path(self, path: str) -> None:
        """None, so that no read bypasses the faults."""

    def uncached(self) -> FaultyStore:
        """The same faults and log, on the inner store without its cache."""
        inner = self.inner.uncached()
        if inner is self.inner:
            return self
        other = copy(self)
        other.inner = inner
        return other

    def forget(self, paths: Iterable[str]) -> None:
        """Remove local copies. This is not an operation of the store."""
        self.inner.forget(paths)

    def sub(self, prefix: str) -> FaultyStore:
        """The same store, faults and log, rooted at `prefix`."""
        deeper = copy(self)
        deeper.inner = self.inner.sub(prefix)
        deeper._prefix = f"{self._prefix}{prefix}/"
        return deeper

    def _perform(
        self,
        operation: str,
        path: str,
        do: Callable[[], T],
        tear: Callable[[], object] | None = None,
    ) -> T:
        action = self._script.next_action(operation, self._prefix + path)
        if action is None:
            return do()
        if action == "lost-response":
            do()
        if action == "torn" and tear is not None:
            tear()
        raise self._failure(action, operation, path)

    def _tearing(self, path: str, data: bytes) -> Callable[[], None]:
        return lambda: self.inner.put(path, data[: len(data) // 2])

    def _failure(self, action: Action, operation: str, path: str) -> BaseException:
        uri = self.uri_of(path)
        if action == "crash":
            return Crash(f"{operation} {uri}")
        if action == "interrupt":
            return KeyboardInterrupt(f"{operation} {uri}")
        if action == "disk-full":
            cause = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), uri)
            error = storage_error(operation, uri, cause)
            error.__cause__ = cause
            return error
        return DataError(f"Cannot {operation} {uri}: injected fault, {action}")


class _Script:
    """The faults and counters that a store shares with its `sub` stores."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self.log: list[tuple[str, str]] = []
        self._faults = faults
        self._seen = [0] * len(faults)
        self._crashed = False
        self._lock = Lock()

    def next_action(self, operation: str, path: str) -> Action | None:
        with self._lock:
            if self._crashed:
                raise Crash(f"{operation} {path} after the crash")
            self.log.append((operation, path))
            actions = []
            for number, fault in enumerate(self._faults):
                if fault.matches(operation, path):
                    # Counted for all stores that share this object.
                    self._seen[number] += 1
                    if fault.nth <= self._seen[number] < fault.nth + fault.times:
                        actions.append(fault.action)
            self._crashed = "crash" in actions
            return "crash" if self._crashed else next(iter(actions), None)


_WRITES = ("create", "put", "output", "hint", "delete")
