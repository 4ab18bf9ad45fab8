"""What a process remembers of files: bounded, read once, and never another file's."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

import keytide as kt
from keytide.format.cache import METADATA, Share, forget_files
from keytide.format.index_files import (
    VectorPlace,
    dead_positions,
    stored_vectors,
    write_vectors,
)
from keytide.store import LocalStore
from keytide.store.faults import FaultyStore
from new_tables import empty_store

SIZES = st.integers(0, 12)


@given(st.lists(st.tuples(st.integers(0, 5), SIZES, st.none() | SIZES)))
def test_share_holds_what_was_kept_first_and_no_more_than_its_bound(
    keeps: list[tuple[int, int, int | None]],
) -> None:
    share = Share(10)
    first: dict[int, int] = {}
    for number, (key, size, bytes_max) in enumerate(keeps):
        was_kept = share.find(key)
        share.keep(key, number, size, bytes_max)
        bound = 10 if bytes_max is None else min(bytes_max, 10)
        expected = was_kept if was_kept is not None else number if size <= bound else None
        assert share.find(key) == expected
        if expected == number:
            first[key] = size
        there = [known for known in first if share.find(known) is not None]
        assert sum(first[known] for known in there) <= 10


def test_value_used_last_outlives_the_others() -> None:
    share = Share(2)
    share.keep("a", 1, 1)
    share.keep("b", 2, 1)
    share.find("a")
    share.keep("c", 3, 1)
    assert [share.find(key) for key in "abc"] == [1, None, 3]


def test_value_is_loaded_once_and_again_when_it_failed() -> None:
    share, calls = Share(10), []

    def load() -> tuple[str, int]:
        calls.append(len(calls))
        if len(calls) == 1:
            raise OSError("gone")
        return "value", 1

    with pytest.raises(OSError, match="gone"):
        share.load("key", load)
    assert [share.load("key", load) for _ in range(3)] == ["value"] * 3
    assert calls == [0, 1]


def test_deletion_vectors_of_a_far_table_are_read_once() -> None:
    far = FaultyStore(empty_store())
    schema = pa.schema([("k", pa.int64())])
    options = {"deletion-vectors.enabled": "true"}
    table = kt.connect("", store=far).create_table("t", schema, [], options=options)
    table.write([{"k": k} for k in range(100)])
    table.delete("k < 10")
    forget_files()
    for is_first in (True, False):
        far.log.clear()
        assert table.scan(where="k < 20").count() == 10
        asked = [path for operation, path in far.log if operation in ("read", "input")]
        assert any("/index/" in f"/{path}" for path in asked) == is_first


def test_vector_file_in_the_place_of_another_is_read_anew(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    for dead in ([1, 2], [3], [4, 5, 6]):
        data, ranges = write_vectors({"data-1": BitMap(dead)})
        (tmp_path / "index").unlink(missing_ok=True)
        store.put("index", data)
        for _ in range(2):
            assert dead_positions(store, VectorPlace("index", ranges[0])).tolist() == dead
            vectors = stored_vectors(store, "index", ranges)
            assert vectors["data-1"] == BitMap(dead)
            vectors["data-1"].add(99)  # belongs to the caller


def test_what_is_forgotten_is_loaded_again() -> None:
    key = uuid4()
    for number in range(2):
        assert METADATA.load(key, lambda number=number: (number, 1)) == number  # type: ignore[misc]
        forget_files()
