"""Object stores: their files, repeated requests, and writes in the background.

The stores are S3, Google Cloud Storage and Azure, or in memory for tests. obstore sends the
requests. An object becomes visible as a whole when its upload ends, so every write is atomic, and
`create` is a conditional put. Options and environment variables are those of obstore: `endpoint`,
`region`, `access_key_id`, `account_name` and so on. They can include client options such as
`timeout` and `allow_http`, and `max_retries` and `retry_timeout`.
"""

from __future__ import annotations

import builtins
import itertools
import os
import random
import re
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar
from urllib.parse import quote, urlsplit
from uuid import uuid4

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError
from obstore.store import MemoryStore, from_url

from keytide.base.dataclass import dataclass, field
from keytide.base.process import begin, refuse_forked_child, side_by_side
from keytide.errors import DataError, InvalidError, KeytideError, SetupError
from keytide.store.interface import (
    ObjectInfo,
    SeekableReader,
    Store,
    Uploads,
    buffered,
    check_path,
    claim,
    honours_claims,
    storage_error,
)

# -- repeated requests -----------------------------------------------------------------------------


MAX_RETRIES = "max_retries"
RETRY_TIMEOUT = "retry_timeout"
RETRY_OPTIONS = frozenset({MAX_RETRIES, RETRY_TIMEOUT})

_WAIT_S_MIN = 0.1
_WAIT_S_MAX = 15.0
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
# Retries must end some day, even if the option means "forever".
_RETRIES_MAX = 1000
_TIMEOUT_S_MAX = 24 * 3600


@dataclass(frozen=True)
class Retries:
    """Limits on the number of retries, and on the time after which no retry starts."""

    count: int = 5
    within: timedelta = timedelta(seconds=60)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Retries:
        """The limits that the options of a store set.

        Raises `ValueError` for an invalid number or time.
        """
        given = {key.lower(): value for key, value in options.items()}
        count = given.get(MAX_RETRIES, str(cls.count)).strip()
        if not count.isdecimal() or int(count) > _RETRIES_MAX:
            raise ValueError(
                f"{MAX_RETRIES} is {count!r}, expected an integer from 0 to {_RETRIES_MAX}"
            )
        timeout = given.get(RETRY_TIMEOUT)
        if timeout is None:
            return cls(int(count))
        found = re.fullmatch(r"\s*([0-9]{1,9})\s*(ms|s|m|h)\s*", timeout)
        seconds = int(found[1]) * _SECONDS[found[2]] if found else 0.0
        if not 0 < seconds <= _TIMEOUT_S_MAX:
            raise ValueError(
                f"{RETRY_TIMEOUT} is {timeout!r}, expected a duration such as 60s or 2m, at most "
                "24h"
            )
        return cls(int(count), timedelta(seconds=seconds))

    def pauses(self) -> Iterator[float]:
        """Waiting times in seconds.

        They double up to a limit, with jitter to separate racing writers.
        """
        left, longest = self.within.total_seconds(), 2 * _WAIT_S_MIN
        for _ in range(self.count):
            pause = random.uniform(longest / 2, longest)
            left -= pause
            if left < 0:
                return
            yield pause
            longest = min(longest * 2, _WAIT_S_MAX)


# -- files of an object store ----------------------------------------------------------------------


if TYPE_CHECKING:
    from obstore.store import ObjectStore as Handle
    from obstore.store import S3Credential


T = TypeVar("T")


class Lender(Protocol):
    """A provider of temporary S3 credentials. Hashable, and can be pickled."""

    def __call__(self) -> S3Credential:
        """The current credentials and when they expire. Called again a few minutes before that."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class ObjectStore(Store):
    """The objects below `prefix` in `bucket`, a URL such as `s3://sales`.

    The options, including credentials, are pickled with the store and never appear in messages.
    Objects in `memory://name` exist as long as the process, and all stores of that name share them.
    For S3, a `lender` can provide the credentials instead.
    """

    bucket: str
    prefix: str = ""
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    lender: Lender | None = field(default=None, repr=False)

    @property
    def uri(self) -> str:
        """Bucket and prefix."""
        return f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket

    @property
    def identity(self) -> Hashable:
        """Bucket, prefix and options.

        The options matter because another endpoint can have the same bucket name.
        """
        return self.bucket, self.prefix, self.options, self.lender

    def read(self, path: str) -> bytes:
        """The whole object."""
        with self._errors("read", path):
            return self._whole(path)

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Run a call in a thread of its own."""
        return begin(call)

    def together(self, calls: Sequence[Callable[[], T]]) -> builtins.list[T]:
        """Run several calls in parallel."""
        return side_by_side(calls, _PARALLEL_REQUESTS)

    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable file: in memory if small, otherwise one ranged request for each read."""
        with self._errors("read", path):
            size_bytes, whole = self._persistently(partial(self._small, path))
            if whole is not None:
                return pa.BufferReader(pa.py_buffer(whole))
        return pa.PythonFile(_RangeReader(self, path, size_bytes), mode="r")

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer at the end of the object."""
        with self._errors("read", path):
            key = self._key(path)
            get = partial(obstore.get_range, self._handle, key, start=start, length=length)
            return bytes(self._persistently(get))

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> builtins.list[bytes]:
        """Byte ranges of an object, fetched in parallel. Nearby ranges are fetched together."""
        if not ranges:
            return []
        with self._errors("read", path):
            starts, ends = zip(*ranges, strict=True)
            key = self._key(path)
            get = partial(obstore.get_ranges, self._handle, key, starts=starts, ends=ends)
            return [bytes(piece) for piece in self._persistently(get)]

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """A new object, visible and durable after a clean exit.

        Large ones are uploaded in parts.
        """
        with self._errors("write", path):
            writer = obstore.open_writer(self._handle, self._key(path), buffer_size=_PART_BYTES)

        def write(piece: memoryview) -> None:
            with self._errors("write", path):
                writer.write(bytes(piece))

        try:
            with buffered(write) as file:
                yield file
        except BaseException as error:
            with suppress(BaseError, OSError):
                writer.__exit__(type(error), error, error.__traceback__)  # aborts the upload
            raise
        self._close(writer, path)

    def put(self, path: str, data: bytes) -> None:
        """Write a whole object, durable on return."""
        with self._errors("write", path):
            obstore.put(self._handle, self._key(path), data)

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Write several whole objects in parallel, durable on return."""
        self.together([partial(self.put, *item) for item in files.items()])

    def uploading(self) -> tuple[Store, Callable[[], None]]:
        """The same objects, written in the background."""
        uploads = Uploads()
        store = _UploadingStore(self.bucket, self.prefix, self.options, self.lender, uploads)
        return store, uploads.settle

    def copy(self, path: str, to: str) -> None:
        """Copy an object inside the object store."""
        with self._errors("copy", path):
            obstore.copy(self._handle, self._key(path), self._key(to))

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole object if the name is free, by a conditional put.

        If the response to an attempt is lost, the next attempt compares the content to find out
        whose object it is. So if several racing writers write the same content, each of them can
        get True. Raises `SetupError` for a service with the S3 protocol that ignores the condition.
        """
        self._check_conditions(path)
        retries = Retries.of(dict(self.options))
        with self._errors("create", path):
            # One attempt only, because only `claim` can interpret the response to a second one.
            once = _handle(self.bucket, self.options, 0, self.lender)
            put = partial(obstore.put, once, self._key(path), data, mode="create")
            return claim(put, partial(self._found, path), data, retries.pauses(), time.sleep)

    def _found(self, path: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return self._whole(path)
        return None

    def _check_conditions(self, path: str) -> None:
        """Refuse a service that would let two writers create the same object.

        Checked once per process, unless the service is known to be correct: a test object next to
        `path` is created twice, and deleted.
        """
        known = (self.bucket, self.options)
        if known in _CHECKED or not _is_compatible(self.bucket, dict(self.options)):
            return
        folder = path.rpartition("/")[0]
        probe = self._key(f"{folder}/.{uuid4().hex}.tmp".lstrip("/"))
        with self._errors("create", path):
            try:
                put = partial(obstore.put, self._handle, probe, b"", mode="create")
                is_sound = honours_claims(put)
            finally:
                with suppress(BaseError, OSError):
                    obstore.delete(self._handle, probe)
        if not is_sound:
            raise SetupError(
                f"{self.bucket} at {_endpoint(dict(self.options))} does not support conditional "
                "writes (the header If-None-Match: * of a PUT), so a commit could be lost "
                "silently if two writers commit at the same time. Use a release of the service "
                "that supports them, or another store"
            )
        _CHECKED.add(known)

    def hint(self, path: str, data: bytes) -> None:
        """Replace an object. Errors of the storage are ignored."""
        with suppress(DataError):
            self.put(path, data)

    def exists(self, path: str) -> bool:
        """Whether an object has this name."""
        with self._errors("read", path):
            try:
                obstore.head(self._handle, self._key(path))
            except FileNotFoundError:
                return False
        return True

    def size(self, path: str) -> int:
        """Length of the object in bytes."""
        with self._errors("read", path):
            return obstore.head(self._handle, self._key(path))["size"]

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects below `prefix`."""
        with self._errors("list", prefix):
            directory, last = self._directory(prefix), None
            pauses = Retries.of(dict(self.options)).pauses()
            while True:
                try:
                    # Only objects whose keys come after the last one that was returned.
                    listed = obstore.list(self._handle, directory, offset=last, chunk_size=1000)
                    for meta in itertools.chain.from_iterable(listed):
                        modified_ms = round(meta["last_modified"].timestamp() * 1000)
                        last = meta["path"]
                        path = last[len(self.prefix) + 1 :] if self.prefix else last
                        yield ObjectInfo(path, meta["size"], modified_ms)
                    return
                except BaseError as error:
                    pause = _pause_after(error, pauses)
                time.sleep(pause)

    def list_names(self, directory: str = "") -> builtins.list[str]:
        """Sorted names of the objects and directories directly below `directory`."""
        with self._errors("list", directory):
            below = self._directory(directory)
            found = self._persistently(lambda: obstore.list_with_delimiter(self._handle, below))
            keys = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]
            return sorted(key.rpartition("/")[2] for key in keys)

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects. An object that does not exist is no error."""
        keys = [self._key(path) for path in paths]
        if not keys:
            return
        with self._errors("delete", ""):
            try:
                obstore.delete(self._handle, keys)
            except FileNotFoundError:
                # Some services refuse the whole request if one object does not exist.
                for key in keys:
                    with suppress(FileNotFoundError):
                        obstore.delete(self._handle, key)

    def delete_tree(self, directory: str) -> None:
        """Remove all objects below `directory`."""
        self.delete([info.path for info in self.list(check_path(directory))])

    def local_path(self, path: str) -> None:
        """None, because objects are not local files."""

    def polars_options(self) -> Mapping[str, str] | None:
        """The options of the service, which Polars names in the same way.

        None for objects in memory.
        """
        if self.bucket.startswith(_MEMORY):
            return None
        return {k: v for k, v in self.options if k.lower() not in RETRY_OPTIONS}

    def sub(self, prefix: str) -> ObjectStore:
        """The same bucket with `prefix` as its root."""
        return ObjectStore(self.bucket, self._key(prefix), self.options, self.lender)

    @property
    def _handle(self) -> Handle:
        return _handle(self.bucket, self.options, lender=self.lender)

    def _whole(self, path: str) -> bytes:
        key = self._key(path)
        return self._persistently(lambda: bytes(obstore.get(self._handle, key).bytes()))

    def _small(self, path: str) -> tuple[int, bytes | None]:
        """The size of an object, and its content if one request for all of it is best."""
        found = obstore.get(self._handle, self._key(path))
        size_bytes: int = found.meta["size"]
        return size_bytes, bytes(found.bytes()) if size_bytes <= _WHOLE_READ_BYTES else None

    def _persistently(self, call: Callable[[], T]) -> T:
        """Run a call that reads, and repeat it if its response is cut off."""
        pauses = Retries.of(dict(self.options)).pauses()
        while True:
            try:
                return call()
            except BaseError as error:
                pause = _pause_after(error, pauses)
            time.sleep(pause)

    def _key(self, path: str) -> str:
        check_path(path)
        return f"{self.prefix}/{path}" if self.prefix else path

    def _directory(self, path: str) -> str | None:
        path = path.strip("/")
        return self._key(path) if path else self.prefix or None

    @contextmanager
    def _errors(self, action: str, path: str) -> Iterator[None]:
        """Turn what obstore raises in the body into the `DataError` for `action` on `path`."""
        uri = self.uri_of(path) if path else self.uri
        try:
            yield
        except KeytideError:
            raise
        except FileNotFoundError as error:
            if action in _MAKING:
                raise DataError(
                    f"Cannot {action} {uri}: bucket or container {self.bucket} does not exist. "
                    "Create it, or check its name and the endpoint "
                    f"({_reason(error, self.options)})"
                ) from _without_secrets(OSError(str(error)), self.options)
            raise storage_error(action, uri, error) from error
        except ValueError as error:
            raise InvalidError(
                f"{uri} is not a valid object name; choose another name ({_reason(error, ())})"
            ) from error
        except (BaseError, OSError) as error:
            cause = _without_secrets(error, self.options)
            raise DataError(
                f"Cannot {action} {uri}: {_reason(error, self.options)}. "
                "Check the endpoint, the network and the credentials, then try again"
            ) from cause

    def _close(self, writer: obstore.WritableFile, path: str) -> None:
        with self._errors("write", path):
            writer.close()


@dataclass(frozen=True)
class _UploadingStore(ObjectStore):
    """The same objects. Its writes can be in progress until `uploads` are settled."""

    uploads: Uploads = field(default_factory=Uploads, repr=False, compare=False)

    def put_all(self, files: Mapping[str, bytes]) -> None:
        """Start writing several whole objects."""
        for path, data in files.items():
            self.uploads.begin(partial(self.put, path, data))

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects, once no write is in progress."""
        self.uploads.wait()
        super().delete(paths)

    def _close(self, writer: obstore.WritableFile, path: str) -> None:
        self.uploads.begin(partial(super()._close, writer, path))


def open_object_store(bucket: str, prefix: str, options: Mapping[str, str]) -> ObjectStore:
    """The objects below `prefix`. Raises `InvalidError` for options that do not fit `bucket`."""
    store = ObjectStore(bucket, prefix, tuple(sorted(options.items())))
    try:
        _handle(bucket, store.options)
    except (BaseError, OSError, ValueError, TypeError) as error:
        raise InvalidError(
            f"Cannot open {store.uri} with the options {sorted(options)}: "
            f"{_reason(error, store.options)}. Valid options are those of obstore, such as "
            "endpoint, region, access_key_id, account_name, client options such as timeout, and "
            "max_retries and retry_timeout"
        ) from _without_secrets(error, store.options)
    return store


class _RangeReader(SeekableReader):
    """A seekable view of a large object.

    Each read outside the last response is one request. Short reads fetch more than they need,
    because readers of footers continue with adjacent bytes.

    obstore's own reader fetches one buffer after the other, however much a read needs, so a column
    chunk would take many sequential requests. Also, its errors do not name the object.
    """

    def __init__(self, store: ObjectStore, path: str, size: int) -> None:
        super().__init__(size)
        self._store = store
        self._path = path
        self._piece_start = 0
        self._piece = b""

    def bytes_at(self, position: int, length: int) -> bytes:
        start = position - self._piece_start
        if not 0 <= start <= len(self._piece) - length:
            ahead = max(length, min(self.size - position, _READ_AHEAD_BYTES))
            self._piece = self._store.read_range(self._path, position, ahead)
            self._piece_start, start = position, 0
        return self._piece[start : start + length]


def _handle(
    bucket: str,
    options: tuple[tuple[str, str], ...],
    retries: int | None = None,
    lender: Lender | None = None,
) -> Handle:
    """The client of a bucket. The options give the number of retries, unless `retries` does."""
    refuse_forked_child()
    # Two concurrent first callers must not create two in-memory stores.
    with _CONNECTING:
        if bucket.startswith(_MEMORY):
            return _memory(bucket)
        return _connect(bucket, options, retries, lender)


@cache
def _memory(bucket: str) -> Handle:
    return MemoryStore()


@cache
def _connect(
    bucket: str, options: tuple[tuple[str, str], ...], retries: int | None, lender: Lender | None
) -> Handle:
    client: dict[str, Any] = {k: v for k, v in options if k.lower() in _CLIENT_OPTIONS}
    ours = _CLIENT_OPTIONS | RETRY_OPTIONS
    config: dict[str, Any] = {k: v for k, v in options if k.lower() not in ours}
    wanted = Retries.of(dict(options))
    if _endpoint(config).startswith("http://"):
        client.setdefault("allow_http", "true")
    retry_config: Any = {
        "max_retries": wanted.count if retries is None else retries,
        "retry_timeout": wanted.within,
    }
    connect: Any = from_url if lender is None else partial(from_url, credential_provider=lender)
    try:
        handle: Handle = connect(
            bucket, config=config, client_options=client or None, retry_config=retry_config
        )
    except BaseException as error:
        # Some values in the environment make obstore panic, which is not an Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(
            "an option or an environment variable, such as AWS_ALLOW_HTTP, has an invalid value"
        ) from None
    return handle


def _pause_after(error: BaseError, pauses: Iterator[float]) -> float:
    """How long to wait before repeating a request whose response was cut off. Raises other errors.

    obstore repeats a request without a response, but not one whose response ends early.
    """
    pause = next(pauses, None) if _CUT_OFF in str(error) else None
    if pause is None:
        raise error
    return pause


def _endpoint(config: Mapping[str, str]) -> str:
    given = (value for key, value in config.items() if "endpoint" in key.lower())
    inherited = (os.environ.get(name, "") for name in _ENDPOINT_VARIABLES)
    return next((value for value in (*given, *inherited) if value), "")


def _is_compatible(bucket: str, config: Mapping[str, str]) -> bool:
    """Whether a service with the S3 protocol is not Amazon's."""
    if not bucket.startswith("s3"):
        return False
    host = urlsplit(_endpoint(config)).hostname or ""
    return bool(host) and not host.endswith(_AMAZON)


def _reason(error: Exception, options: tuple[tuple[str, str], ...]) -> str:
    """The cause of an error on one line, without secrets."""
    text = _scrubbed(str(error).partition("\n\nDebug source")[0], options)
    return " ".join(text.split())[:400].rstrip(".")


def _without_secrets(error: Exception, options: tuple[tuple[str, str], ...]) -> Exception:
    """The error itself or, if its message contains a secret, one without it."""
    text = _scrubbed(str(error), options)
    return error if text == str(error) else OSError(text)


def _scrubbed(text: str, options: tuple[tuple[str, str], ...]) -> str:
    inherited = (item for item in os.environ.items() if item[0].startswith(_CREDENTIALS_OF))
    for key, value in (*options, *inherited):
        if len(value) >= _SECRET_LENGTH_MIN and _SECRET_OPTION.search(key):
            for shown in (value, quote(value), quote(value, safe="")):
                text = text.replace(shown, "***")
    return text


_MEMORY = "memory://"
# In S3, every part of an upload except the last one must have at least 5 MiB.
_PART_BYTES = 8 << 20
# A request takes about as long as transferring this many bytes, so smaller objects are read whole.
_WHOLE_READ_BYTES = 8 << 20
# Enough for a footer with the metadata of many column chunks.
_READ_AHEAD_BYTES = 1 << 18
_PARALLEL_REQUESTS = 32
_CONNECTING = Lock()
_CHECKED: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
"""Buckets, with options, for which this process has verified that conditions are enforced."""
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_MAKING = ("write", "create")
_CUT_OFF = "response body error"
_CREDENTIALS_OF = ("AWS_", "AZURE_", "GOOGLE_")
# Shorter strings are no real secrets, and occur in other words.
_SECRET_LENGTH_MIN = 6
_SECRET_OPTION = re.compile("key|secret|token|sas|password|credential", re.IGNORECASE)
_ENDPOINT_VARIABLES = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_ENDPOINT",
)

# obstore keeps these separate from the options of a service.
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
