"""What every store promises."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keytide.errors import DataError, InvalidError
from keytide.store import ObjectStore, Store, open_store

LARGE = bytes(range(256)) * (80 << 10)  # 20 MiB: several parts, several ranged requests
ODD_NAMES = ["dt=2024-01-01/p=a%2Fb/x", "p=ü ö#1/x", "p=a+b&c/x", "p=%23%25/~x", "p='q'/x,y;z"]


def tree(store: Store, prefix: str = "") -> str:
    return "\n".join(sorted(f"{info.path} {info.size}" for info in store.list(prefix)))


def test_put_then_read_gives_the_bytes(any_store: Store) -> None:
    any_store.put("a/b/c", b"one")
    any_store.put("empty", b"")
    assert any_store.read("a/b/c") == b"one"
    assert any_store.read("empty") == b""
    assert (any_store.size("a/b/c"), any_store.size("empty")) == (3, 0)


def test_put_replaces_the_whole_file(any_store: Store) -> None:
    any_store.put("a", b"a long content")
    any_store.put("a", b"short")
    assert any_store.read("a") == b"short"


def test_put_of_a_large_file_reads_back(any_store: Store) -> None:
    any_store.put("a", LARGE)
    assert any_store.read("a") == LARGE


def test_put_all_and_read_all_keep_names_and_order(any_store: Store) -> None:
    files = {f"manifest/m-{i}": b"%d" % i for i in range(40)}
    any_store.put_all(files)
    any_store.put_all({})
    paths = sorted(files, reverse=True)
    assert any_store.read_all(paths) == [files[path] for path in paths]
    assert any_store.read_all([]) == []


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", ["a/b", *ODD_NAMES])
def test_copy_has_the_content_and_a_life_of_its_own(any_store: Store, name: str) -> None:
    any_store.put(name, LARGE)
    folder = name.rpartition("/")[0]
    any_store.copy(name, f"{folder}/copy")
    any_store.put(name, b"other")
    assert any_store.read(f"{folder}/copy") == LARGE
    any_store.delete([name])
    assert tree(any_store) == f"{folder}/copy {len(LARGE)}"


def test_copy_of_a_missing_file_is_an_error(any_store: Store) -> None:
    with pytest.raises(DataError, match=r"a/missing.*does not exist"):
        any_store.copy("a/missing", "a/b")


def test_create_wins_once_and_keeps_the_first_content(any_store: Store) -> None:
    assert any_store.create("snapshot/snapshot-1", b"first") is True
    assert any_store.create("snapshot/snapshot-1", b"second") is False
    assert any_store.read("snapshot/snapshot-1") == b"first"
    assert any_store.list_names("snapshot") == ["snapshot-1"]


def test_create_does_not_replace_a_file_that_was_put(any_store: Store) -> None:
    any_store.put("a", b"put")
    assert any_store.create("a", b"created") is False
    assert any_store.read("a") == b"put"


@pytest.mark.one_in(14)
def test_create_raced_by_eight_threads_has_one_winner(any_store: Store) -> None:
    rounds, racers = 20, 8
    barrier = Barrier(racers)

    def race(racer: int) -> list[bool]:
        won = []
        for number in range(rounds):
            barrier.wait()
            won.append(any_store.create(f"snapshot/snapshot-{number}", b"racer %d" % racer))
        return won

    with ThreadPoolExecutor(racers) as pool:
        results = list(pool.map(race, range(racers)))
    for number in range(rounds):
        (winner,) = [racer for racer in range(racers) if results[racer][number]]
        assert any_store.read(f"snapshot/snapshot-{number}") == b"racer %d" % winner
    assert len(any_store.list_names("snapshot")) == rounds


def test_hint_is_replaced(any_store: Store) -> None:
    any_store.put("schema/schema-0", b"what the hint is about")
    any_store.hint("snapshot/LATEST", b"10")
    any_store.hint("snapshot/LATEST", b"9")
    assert any_store.read("snapshot/LATEST") == b"9"


@pytest.mark.parametrize("data", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_output_holds_what_was_written_after_a_clean_exit(any_store: Store, data: bytes) -> None:
    with any_store.open_output("bucket-0/data") as file:
        for start in range(0, len(data), 3_000_001):
            file.write(data[start : start + 3_000_001])
    assert any_store.read("bucket-0/data") == data


def write_and_fail(store: Store, path: str, data: bytes) -> None:
    with store.open_output(path) as file:
        file.write(data)
        raise ZeroDivisionError


@pytest.mark.parametrize("data", [b"", b"small", LARGE], ids=["empty", "small", "large"])
def test_output_is_gone_after_an_exception(any_store: Store, data: bytes) -> None:
    with pytest.raises(ZeroDivisionError):
        write_and_fail(any_store, "bucket-0/data", data)
    assert tree(any_store) == ""
    assert not any_store.exists("bucket-0/data")


def test_errors_of_the_body_pass_through_an_output_unchanged(any_store: Store) -> None:
    with (
        pytest.raises(FileNotFoundError, match="elsewhere") as caught,
        any_store.open_output("a"),
    ):
        raise FileNotFoundError("elsewhere")
    assert not isinstance(caught.value, DataError)


def write_with_pyarrow(store: Store, path: str, table: pa.Table) -> None:
    with (
        store.open_output(path) as file,
        pq.ParquetWriter(file, table.schema) as writer,
    ):
        writer.write_table(table)


def write_with_polars(store: Store, path: str, table: pa.Table) -> None:
    with store.open_output(path) as file:
        pl.DataFrame(table).write_parquet(file)


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize("write", [write_with_pyarrow, write_with_polars])
@pytest.mark.parametrize("rows", [10, 3_000_000])
def test_parquet_writers_and_readers_work_on_every_store(
    any_store: Store, write: Callable[[Store, str, pa.Table], None], rows: int
) -> None:
    values = pa.array(range(rows), pa.int64())
    write(any_store, "t/data.parquet", pa.table({"k": values, "v": values}))
    with any_store.open_input("t/data.parquet") as file:
        assert pq.read_table(file, columns=["v"])["v"].combine_chunks() == values
    with any_store.open_input("t/data.parquet") as file:
        assert pl.read_parquet(file, columns=["k"])["k"].to_arrow() == values


def test_input_is_seekable(any_store: Store) -> None:
    any_store.put("a", LARGE)
    with any_store.open_input("a") as file:
        assert file.size() == len(LARGE)
        file.seek(-4, 2)
        assert file.read() == LARGE[-4:]
        assert file.read() == b""
        file.seek(1_000)
        assert file.read(5) == LARGE[1_000:1_005]
        assert file.tell() == 1_005
        assert file.read_at(10, 12_000_000) == LARGE[12_000_000:12_000_010]
        file.seek(5)
        assert file.read() == LARGE[5:]


@pytest.mark.parametrize("method", ["read", "size", "open_input", "read_all"])
def test_missing_file_is_a_data_error_that_names_it(any_store: Store, method: str) -> None:
    any_store.put("a/there", b"")
    argument = ["a/there", "a/gone"] if method == "read_all" else "a/gone"
    with pytest.raises(DataError) as caught:
        getattr(any_store, method)(argument)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert any_store.uri_of("a/gone") in str(caught.value)
    assert "does not exist" in str(caught.value)


def test_exists_is_about_files_only(any_store: Store) -> None:
    any_store.put("a/b", b"")
    assert any_store.exists("a/b")
    assert not any_store.exists("a")
    assert not any_store.exists("a/c")
    assert not any_store.exists("a/b/c")


def test_listing_shows_the_tree_below_a_directory(any_store: Store) -> None:
    any_store.put_all({"t/snapshot/snapshot-1": b"1", "t/b/x": b"22", "t2/x": b"", "top": b"333"})
    assert tree(any_store) == "t/b/x 2\nt/snapshot/snapshot-1 1\nt2/x 0\ntop 3"
    assert tree(any_store, "t") == tree(any_store, "t/") == "t/b/x 2\nt/snapshot/snapshot-1 1"
    assert any_store.list_names() == ["t", "t2", "top"]
    assert any_store.list_names("t") == any_store.list_names("t/") == ["b", "snapshot"]


def test_listing_of_what_is_no_directory_is_empty(any_store: Store) -> None:
    any_store.put("a/file", b"1")
    for directory in ("gone", "a/gone", "a/fi", "a/file"):
        assert any_store.list_names(directory) == []
        assert tree(any_store, directory) == ""


def test_listing_tells_the_time_of_change_in_milliseconds(any_store: Store) -> None:
    any_store.put("a", b"")
    (info,) = any_store.list()
    assert 1_700_000_000_000 < info.modified_ms < 10_000_000_000_000


@pytest.mark.parametrize("path", ODD_NAMES)
def test_odd_names_are_kept_as_they_are(any_store: Store, path: str) -> None:
    any_store.put(path, b"1")
    assert any_store.read(path) == b"1"
    assert tree(any_store) == f"{path} 1"
    assert any_store.list_names() == [path.split("/")[0]]
    any_store.delete([path])
    assert tree(any_store) == ""


def test_delete_removes_files_and_ignores_missing_ones(any_store: Store) -> None:
    any_store.put_all({"a/1": b"", "a/2": b"", "a/3": b""})
    any_store.delete(["a/1", "a/gone", "b/gone", "a/3", "a/2/below-a-file"])
    any_store.delete([])
    assert tree(any_store) == "a/2 0"


def test_delete_tree_leaves_nothing_of_a_directory(any_store: Store) -> None:
    any_store.put_all({"t/a/b": b"", "t/c": b"", "t2/x": b""})
    any_store.delete_tree("t")
    any_store.delete_tree("t")
    assert any_store.list_names() == ["t2"]


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", "."])
def test_paths_that_leave_the_root_are_invalid(any_store: Store, path: str) -> None:
    for call in (
        lambda: any_store.read(path),
        lambda: any_store.put(path, b""),
        lambda: any_store.create(path, b""),
        lambda: any_store.exists(path),
        lambda: any_store.delete([path]),
        lambda: any_store.delete_tree(path),
        lambda: any_store.sub(path),
    ):
        with pytest.raises(InvalidError, match="not a valid path inside a store"):
            call()


def test_sub_is_the_same_store_rooted_deeper(any_store: Store) -> None:
    table = any_store.sub("db").sub("t")
    table.put("snapshot/snapshot-1", b"1")
    assert any_store.read("db/t/snapshot/snapshot-1") == b"1"
    assert tree(table) == "snapshot/snapshot-1 1"
    assert table.uri_of("x") == any_store.uri_of("db/t/x")


def test_pickled_copy_is_equal_and_reads_the_same_files(store: Store) -> None:
    store.put("a", b"1")
    twin = pickle.loads(pickle.dumps(store))
    assert (twin, hash(twin), twin.uri) == (store, hash(store), store.uri)
    assert twin.read("a") == b"1"


def test_uri_opens_the_same_store_again(store: Store) -> None:
    options = dict(store.options) if isinstance(store, ObjectStore) else None
    assert open_store(store.uri, options) == store


def test_local_path_is_given_for_local_files_only(store: Store) -> None:
    store.put("a", b"1")
    path = store.local_path("a")
    assert (path is None) == isinstance(store, ObjectStore)
    assert path is None or path.read_bytes() == b"1"
