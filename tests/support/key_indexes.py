"""The index of keys of a table, beside the one that its rows alone give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keytide as kt
from keytide.key_index.indexed_keys import Entries
from keytide.read.key_index_rebuild import settled_bucket
from keytide.snapshot.bucket_key_index import KeyIndex, key_files_by_bucket, load_key_index
from keytide.snapshot.live_files import BucketId, load_dead_rows, vector_files_by_bucket
from keytide.write.refusals import writable_view

__all__ = ["assert_index_is_that_of_the_rows"]


def indexes_of(table: kt.Table) -> Iterator[tuple[KeyIndex, KeyIndex, dict[str, set[int]]]]:
    """The index of each bucket, that which its rows give, and its dead rows."""
    state = table.stored.state_to_write(writable_view(table.stored))
    heads, vectors = (
        key_files_by_bucket(state.key_files),
        vector_files_by_bucket(state.vector_files),
    )
    buckets: dict[BucketId, list[Any]] = {}
    for entry in state.live.entries:
        buckets.setdefault((entry.partition, entry.bucket), []).append(entry)
    assert heads.keys() == buckets.keys()
    for bucket, entries in buckets.items():
        dead = load_dead_rows(state.view.store, vectors.get(bucket, ()), state.view.name)
        index = load_key_index(state.view.store, heads[bucket], 0)
        places = {e.file.file_name: {*dead.of(e.file.file_name).tolist()} for e in entries}
        yield index, settled_bucket(state.view, entries, dead).index, places


def _told(index: KeyIndex, dead: dict[str, set[int]]) -> dict[Any, Any]:
    """Of each key what it is compared by, and where its row lies if it lives."""
    names, every = index.names(), Entries.together([*index.pieces()])
    columns = (
        every.hashes.heads, every.hashes.checks, every.files, every.positions, every.comparisons,
    )  # fmt: skip
    found = {}
    for head, check, file, position, comparison in zip(*(c.tolist() for c in columns), strict=True):
        if file == index.head.rowless:
            continue
        place = (names[file], position)
        lives = position not in dead[place[0]]
        found[head, check] = (comparison, place if lives else None)
    return found


def _files(index: KeyIndex) -> dict[str, tuple[int, int]]:
    """The rows of each file, and how many of them are the current ones of their keys."""
    return {file.name: (file.rows, file.current) for file in index.head.files}


def assert_index_is_that_of_the_rows(table: kt.Table) -> None:
    """Of each key: what it is compared by, and where its row lies if it lives.

    Of a key without any row, only an index knows that was there before another engine's compaction.
    """
    for index, anew, dead in indexes_of(table):
        assert _told(index, dead) == _told(anew, dead)
        assert _files(index) == _files(anew)
        if index.head.rowless is None:
            assert index.head.mark == anew.head.mark
        else:
            assert index.head.mark >= anew.head.mark
            every = Entries.together([*index.pieces()])
            gone = every.hashes.take(every.files == index.head.rowless)
            assert not anew.find(gone)[0].any()
