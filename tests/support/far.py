"""A far object store: every request to the store's client takes a while, and is counted.

`waits` is the longest chain of requests of which each began after the one before had ended, so
requests that are under way side by side count once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import obstore
import pytest

from keytide.store import LocalStore, object_store


class FarFolder(LocalStore):
    """A folder that passes for an object store, which several processes see."""

    def local_path(self, path: str) -> None:
        """Nothing of it is on the local disk."""


class BucketFolder(FarFolder):
    """A folder that passes for a place in a bucket of S3."""

    @property
    def uri(self) -> str:
        """The folder's path is the key in the bucket."""
        return f"s3://bucket{self.root}"

    def sub(self, prefix: str) -> BucketFolder:
        """The same bucket."""
        return BucketFolder(self._full(prefix))


S3A = {
    "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
    "fs.s3a.impl.disable.cache": "true",
    "fs.viewfs.mounttable.bucket.linkFallback": "file:///",
}
"""Settings of a Spark session with which it finds the bucket of `BucketFolder` as `s3a://`."""


_REQUESTS = (
    "get", "get_range", "get_ranges", "put", "head", "list_with_delimiter", "delete", "copy",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One request, from when to when it was under way."""

    what: str
    path: str
    began: float
    ended: float


@dataclass
class Requests:
    """The requests that a block has made."""

    made: list[Request] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.made)

    @property
    def waits(self) -> int:
        """The longest chain of requests that waited for each other."""
        chains: list[tuple[float, int]] = []
        for request in sorted(self.made, key=lambda request: request.began):
            before = (length for ended, length in chains if ended <= request.began)
            chains.append((request.ended, 1 + max(before, default=0)))
        return max((length for _, length in chains), default=0)

    def __str__(self) -> str:
        start = min((request.began for request in self.made), default=0)
        return "\n".join(
            f"{(r.began - start) * 1000:6.0f} {(r.ended - start) * 1000:6.0f} {r.what} {r.path}"
            for r in sorted(self.made, key=lambda r: r.began)
        )


class FarClient:
    """Stands for the module `obstore`."""

    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s
        self._requests = Requests()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        given = getattr(obstore, name)
        if name in _REQUESTS:
            return self._late(name, given)
        if name == "open_writer":
            return self._late_writer(given)
        return self._late_listing(given) if name == "list" else given

    @contextmanager
    def counted(self) -> Iterator[Requests]:
        """What the block requests."""
        self._requests = counted = Requests()
        yield counted

    def _late(self, name: str, given: Callable[..., Any]) -> Callable[..., Any]:
        def late(handle: Any, path: Any = "", *args: Any, **options: Any) -> Any:
            with self._under_way(name, str(path)):
                return given(handle, path, *args, **options)

        return late

    def _late_writer(self, given: Callable[..., Any]) -> Callable[..., Any]:
        def late(handle: Any, path: str, **options: Any) -> Any:
            return _LateWriter(
                given(handle, path, **options), partial(self._under_way, "put", path)
            )

        return late

    def _late_listing(self, given: Callable[..., Any]) -> Callable[..., Any]:
        def late(handle: Any, prefix: Any = None, **options: Any) -> Iterator[Any]:
            pages = given(handle, prefix, **options)
            while True:
                with self._under_way("list", str(prefix)):
                    page = next(pages, None)
                if page is None:
                    return
                yield page

        return late

    @contextmanager
    def _under_way(self, name: str, path: str) -> Iterator[None]:
        requests, began = self._requests, time.monotonic()
        time.sleep(self.latency_s)
        try:
            yield
        finally:
            with self._lock:
                requests.made.append(Request(name, path, began, time.monotonic()))


@dataclass(frozen=True)
class _LateWriter:
    """A writer whose object is sent when it is closed."""

    writer: Any
    under_way: Callable[[], AbstractContextManager[None]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writer, name)

    def __exit__(self, *raised: Any) -> None:
        self.writer.__exit__(*raised)

    def close(self) -> None:
        with self.under_way():
            self.writer.close()


@contextmanager
def far_away(latency_s: float = 0.05) -> Iterator[FarClient]:
    """A block in which object stores, those in memory too, answer late."""
    client = FarClient(latency_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_store, "obstore", client)
        yield client
