"""A store with a cache: what never changes is asked of the store once."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from keytide.errors import DataError
from keytide.format.paths import BranchStore, never_changes
from keytide.store import CachedStore, CacheFolder, Store, open_store, store_of_file
from keytide.store.cached import BLOCK_BYTES, WHOLE_BYTES_MAX
from keytide.store.faults import Fault, FaultyStore
from keytide.store.object_store import ObjectStore

UUID = "6f0b1c9e-0d5f-4f43-9c55-0b6f4f1a2c3d"
DATA = f"shop.db/t/bucket-0/data-{UUID}-0.parquet"
MANIFEST = f"shop.db/t/manifest/manifest-{UUID}-0"
SNAPSHOT = "shop.db/t/snapshot/snapshot-1"


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(str(tmp_path / "cache"), 1 << 30)


@pytest.fixture
def far(memory_store: Store) -> FaultyStore:
    return FaultyStore(memory_store)


@pytest.fixture
def near(far: FaultyStore, folder: CacheFolder) -> CachedStore:
    return CachedStore(far, folder, never_changes)


def requests(far: FaultyStore) -> str:
    """What was asked of the store since somebody asked for this last."""
    log = " ".join(f"{operation} {path.rpartition('/')[2]}" for operation, path in far.log)
    far.log.clear()
    return log


def opened(store: Store, path: str) -> bytes:
    with store.open_input(path) as file:
        data: bytes = file.read()
    return data


# -- what is asked of the store -------------------------------------------------------------------


def test_second_read_of_a_file_that_never_changes_makes_no_request(
    near: CachedStore, far: FaultyStore
) -> None:
    far.inner.put(DATA, b"rows")
    assert near.local_path(DATA) is None
    assert near.read(DATA) == b"rows"
    assert requests(far) == f"read data-{UUID}-0.parquet"
    assert (near.read(DATA), opened(near, DATA)) == (b"rows", b"rows")
    local = near.local_path(DATA)
    assert local is not None
    assert local.read_bytes() == b"rows"
    assert requests(far) == ""


@pytest.mark.parametrize("size", [0, 5, 9 << 20])
def test_second_opening_makes_no_request(near: CachedStore, far: FaultyStore, size: int) -> None:
    data = Random(1).randbytes(size)
    far.inner.put(DATA, data)
    assert opened(near, DATA) == data
    assert requests(far) == f"input data-{UUID}-0.parquet"
    assert (opened(near, DATA), near.read(DATA)) == (data, data)
    assert near.local_path(DATA) is not None
    assert requests(far) == ""


def test_what_may_change_is_read_of_the_store_each_time(
    near: CachedStore, far: FaultyStore
) -> None:
    for data in (b"one", b"two"):
        far.inner.put(SNAPSHOT, data)
        assert (near.read(SNAPSHOT), opened(near, SNAPSHOT)) == (data, data)
        assert near.local_path(SNAPSHOT) is None
    assert requests(far) == " ".join(["read snapshot-1", "input snapshot-1"] * 2)


def test_of_many_files_only_those_that_lack_are_fetched(
    near: CachedStore, far: FaultyStore
) -> None:
    names = [f"t/manifest/manifest-{UUID}-{n}" for n in range(4)]
    paths = [*names, "t/schema/schema-0"]
    far.inner.put_all({path: path.encode() for path in paths})
    near.read_all([names[3], names[1]])
    requests(far)
    assert near.read_all(paths) == [path.encode() for path in paths]
    assert requests(far) == f"read manifest-{UUID}-0 read manifest-{UUID}-2 read schema-0"


def test_writes_leave_the_cache_empty(near: CachedStore, folder: CacheFolder) -> None:
    near.put(MANIFEST, b"one")
    near.put_all({MANIFEST + "1": b"two"})
    with near.open_output(DATA) as file:
        file.write(b"three")
    near.copy(DATA, f"{DATA}.index")
    assert not Path(folder.root).exists()


def test_copy_goes_with_the_file_that_is_deleted_or_replaced_here(
    near: CachedStore, far: FaultyStore
) -> None:
    for change in (
        lambda: near.put(DATA, b"new"),
        lambda: near.put_all({DATA: b"new"}),
        lambda: near.copy(MANIFEST, DATA),
    ):
        far.inner.put(DATA, b"old")
        far.inner.put(MANIFEST, b"new")
        assert near.read(DATA) == b"old"
        change()
        assert near.read(DATA) == b"new"
        near.delete([DATA])
        with pytest.raises(DataError, match="does not exist"):
            near.read(DATA)


def test_what_is_stored_is_told_by_the_store(near: CachedStore, far: FaultyStore) -> None:
    far.inner.put(DATA, b"rows")
    assert near.read(DATA) == b"rows"
    far.inner.delete([DATA])
    assert near.read(DATA) == b"rows"
    assert not near.exists(DATA)
    assert [*near.list()] == []
    assert near.uncached() is far
    assert BranchStore(near.sub("shop.db/t"), "b").uncached().exists(SNAPSHOT) is False
    with pytest.raises(DataError, match="does not exist"):
        near.uncached().read(DATA)
    near.forget([DATA])
    with pytest.raises(DataError, match="does not exist"):
        near.read(DATA)


def test_store_below_and_store_elsewhere_find_the_same_copies(
    memory_store: Store, folder: CacheFolder
) -> None:
    assert isinstance(memory_store, ObjectStore)
    near = CachedStore(memory_store, folder, never_changes)
    near.put(DATA, b"rows")
    assert near.sub("shop.db").sub("t").read(DATA.removeprefix("shop.db/t/")) == b"rows"
    memory_store.delete([DATA])
    assert near.read(DATA) == b"rows"
    beside, name = store_of_file(near.uri_of(DATA), near)
    assert (beside.read(name), name) == (b"rows", DATA.rpartition("/")[2])
    assert isinstance(beside.uncached(), ObjectStore)
    local, _ = store_of_file("file:/elsewhere/x", near)
    assert not isinstance(local, CachedStore)


def test_threads_that_open_a_file_fetch_it_once(near: CachedStore, far: FaultyStore) -> None:
    far.inner.put(DATA, bytes(9 << 20))
    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(lambda _: len(opened(near, DATA)), range(16))} == {9 << 20}
    assert requests(far) == f"input data-{UUID}-0.parquet"


def test_failing_store_is_told_and_nothing_is_kept(near: CachedStore, far: FaultyStore) -> None:
    far.inner.put(DATA, b"rows")
    failing = FaultyStore(far.inner, [Fault("read"), Fault("input")])
    again = CachedStore(failing, near.cache, never_changes)
    with pytest.raises(DataError, match="injected"):
        again.read(DATA)
    with pytest.raises(DataError, match="injected"):
        again.open_input(DATA)
    assert again.local_path(DATA) is None
    assert (again.read(DATA), opened(again, DATA)) == (b"rows", b"rows")


# -- large files -----------------------------------------------------------------------------------


class Counted(FaultyStore):
    """Notes where files are read that have been opened, and how much."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.reads: list[tuple[int, int]] = []

    def open_input(self, path: str) -> pa.NativeFile:
        file, reads = super().open_input(path), self.reads

        class Noting(io.RawIOBase):
            def readable(self) -> bool:
                return True

            def seekable(self) -> bool:
                return True

            def seek(self, offset: int, whence: int = 0, /) -> int:
                return int(file.seek(offset, whence))

            def tell(self) -> int:
                return int(file.tell())

            def read(self, size: int | None = -1, /) -> bytes:
                reads.append((file.tell(), -1 if size is None else size))
                return bytes(file.read(size))

        return pa.PythonFile(Noting(), mode="r")


SIZE = WHOLE_BYTES_MAX + 5 * BLOCK_BYTES // 2


def test_of_a_large_file_the_blocks_that_are_read_are_kept(
    memory_store: Store, folder: CacheFolder
) -> None:
    data = Random(2).randbytes(SIZE)
    memory_store.put(DATA, data)
    far = Counted(memory_store)
    near = CachedStore(far, folder, never_changes)
    spans = [(SIZE - 8, 8), (SIZE - 70_000, 69_992), (0, 4), (10 * BLOCK_BYTES - 3, 7)]
    for first_time in (True, False):
        with near.open_input(DATA) as file:
            assert file.size() == SIZE
            for start, length in spans:
                file.seek(start)
                assert file.read(length) == data[start : start + length]
        fetched = [(start // BLOCK_BYTES, size) for start, size in far.reads]
        half = BLOCK_BYTES // 2
        first = [(66, half), (0, BLOCK_BYTES), (9, 2 * BLOCK_BYTES)]
        assert fetched == (first if first_time else [])
        assert len(far.log) == (1 if first_time else 0)
        far.reads.clear()
        far.log.clear()
    assert near.local_path(DATA) is None
    assert opened(near, DATA) == data
    assert [size // BLOCK_BYTES for _, size in far.reads] == [8, 55]
    far.reads.clear()
    assert opened(near, DATA) == data
    assert far.reads == []


def test_damaged_block_is_fetched_again(memory_store: Store, folder: CacheFolder) -> None:
    data = Random(3).randbytes(SIZE)
    memory_store.put(DATA, data)
    near = CachedStore(memory_store, folder, never_changes)
    assert opened(near, DATA) == data
    for path in Path(folder.root).rglob("*"):
        if path.is_file() and path.stat().st_size == BLOCK_BYTES:
            path.write_bytes(bytes(BLOCK_BYTES))
    assert opened(near, DATA) == data


def test_forgotten_large_file_is_read_anew(memory_store: Store, folder: CacheFolder) -> None:
    near = CachedStore(memory_store, folder, never_changes)
    memory_store.put(DATA, bytes(SIZE))
    assert opened(near, DATA) == bytes(SIZE)
    memory_store.put(DATA, b"\1" * (SIZE + 1))
    near.forget([DATA])
    assert opened(near, DATA) == b"\1" * (SIZE + 1)


@pytest.mark.parametrize("size", [5, 9 << 20, SIZE], ids=["small", "middle", "large"])
def test_file_is_read_as_ever_where_there_can_be_no_cache(memory_store: Store, size: int) -> None:
    data = Random(4).randbytes(size)
    memory_store.put(DATA, data)
    far = FaultyStore(memory_store)
    near = CachedStore(far, CacheFolder(f"/proc/{uuid4().hex}", 1 << 30), never_changes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert (opened(near, DATA), near.read(DATA)) == (data, data)
            assert near.local_path(DATA) is None
    assert len(caught) == 1
    assert [operation for operation, _ in far.log] == ["input", "read"] * 2


# -- a value that travels --------------------------------------------------------------------------


def read_elsewhere(store: Store, path: str) -> bytes:
    return store.read(path)


def test_store_travels_to_other_processes_which_share_the_copies(folder: CacheFolder) -> None:
    # An in-memory store of another process is empty: what it reads comes from the folder.
    near = CachedStore(open_store(f"memory://{uuid4().hex}/w"), folder, never_changes)
    near.put(DATA, b"rows")
    assert near.read(DATA) == b"rows"
    assert pickle.loads(pickle.dumps(near)) == near
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(read_elsewhere, (near, DATA)) == b"rows"
        with pytest.raises(DataError, match="does not exist"):
            pool.apply(read_elsewhere, (near, MANIFEST))


def test_no_secret_is_in_the_folder_or_in_a_text(
    s3_store: Store, s3_options: dict[str, str], folder: CacheFolder
) -> None:
    near = CachedStore(s3_store, folder, never_changes)
    near.put_all({DATA: b"rows", MANIFEST: b"names"})
    assert (near.read(DATA), near.read(MANIFEST)) == (b"rows", b"names")
    texts: list[Any] = [repr(near), near.uri]
    for path in Path(folder.root).rglob("*"):
        texts += [str(path), path.read_bytes().decode() if path.is_file() else ""]
    assert len(texts) > 10
    for secret in (s3_options["secret_access_key"], s3_options["access_key_id"]):
        assert not [text for text in texts if secret in text]
