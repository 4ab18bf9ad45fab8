"""Indexes of buckets: a commit stores whatever kind of index tasks hand over.

A third kind, beside hashes of keys and vectors of dead rows, says where the row of each key lies.
So rows need no merge: one that comes again marks the row before as dead, and a delete does no more.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar
from unittest import mock

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.definition.test_kinds_of_tables import KeyedRows

import keytide as kt
from keytide.commit.transaction import Transaction
from keytide.definition import kind
from keytide.format import paths
from keytide.format.index_files import IndexFile
from keytide.format.manifest_entry import ManifestEntry
from keytide.read.runs import StoredVersions
from keytide.read.sections import PlannedFile
from keytide.snapshot.live_files import (
    BucketId,
    DeadRows,
    EncodedIndex,
    by_index_key,
    load_dead_rows,
    vector_files_by_bucket,
)
from keytide.snapshot.state import TableView
from keytide.store import Store
from keytide.write.refusals import writable_view
from keytide.write.task import TaskResult, WriteTask
from new_tables import empty_table
from table_rows import by_key

PLACES = {"k": pl.Int64, "file": pl.String, "row": pl.Int64}
ADDS = ("+I", "+U")


# -- the index -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyIndex:
    """Where the row of each key lies; a key that is nowhere any more has no file."""

    index_type: ClassVar[str] = "KEYS"
    has_changed: ClassVar[bool] = True
    based_on: ClassVar[None] = None

    places: pl.DataFrame

    def joined(self, later: Sequence[KeyIndex]) -> KeyIndex:
        return KeyIndex(newest(each.places for each in (self, *later)))

    def encoded(self, store: Store, before: Sequence[IndexFile], table: str) -> EncodedIndex | None:
        known = newest([*(load_places(store, file) for file in before), self.places])
        left = known.drop_nulls("file").sort("k")
        left.write_ipc(data := io.BytesIO())
        return EncodedIndex(data.getvalue(), left.height) if left.height else None


def newest(places: Iterable[pl.DataFrame]) -> pl.DataFrame:
    every: pl.DataFrame = pl.concat([pl.DataFrame(schema=PLACES), *places])
    return every.unique("k", keep="last", maintain_order=True)


def load_places(store: Store, file: IndexFile) -> pl.DataFrame:
    return pl.read_ipc(store.read(paths.index_path(file.file_name)))


# -- a kind of tables that goes by it --------------------------------------------------------------


class IndexedRows(KeyedRows):
    """Tables whose rows have a key and need no merge, and which take deletes all the same."""

    takes_deletes = True


@dataclass(frozen=True)
class IndexedWrite:
    """Writes the last row of each key, and says what becomes of those that were there."""

    task: WriteTask
    known: Mapping[BucketId, pl.DataFrame]
    vectors: Mapping[BucketId, tuple[IndexFile, ...]] = field(default_factory=dict)

    def feed(self, rows: pl.DataFrame) -> TaskResult:
        last = rows.unique("k", keep="last").sort("k")
        adds = last.filter(pl.col("op").is_in(ADDS))
        written = self.task.feed([adds.to_arrow()] if adds.height else [], 0)
        came = {(e.partition, e.bucket): self._places(e) for e in written.entries}
        old = {bucket: known.join(last, on="k", how="semi") for bucket, known in self.known.items()}
        nowhere = {
            b: places.with_columns(file=pl.lit(None, pl.String)) for b, places in old.items()
        }
        indexes = {
            bucket: KeyIndex(newest([each[bucket] for each in (nowhere, came) if bucket in each]))
            for bucket in nowhere.keys() | came.keys()
        }
        dead = {bucket: self._dead(bucket, places) for bucket, places in old.items()}
        return TaskResult(written.entries, indexes={**by_index_key(indexes), **by_index_key(dead)})

    def _places(self, entry: ManifestEntry) -> pl.DataFrame:
        stored = StoredVersions(self.task.view, entry.partition, ("k",))
        keys = stored.of_file(PlannedFile(entry, has_kinds=False)).with_row_index("row")
        name = pl.lit(entry.file.file_name)
        return keys.select("k", file=name, row=pl.col("row").cast(pl.Int64))

    def _dead(self, bucket: BucketId, places: pl.DataFrame) -> DeadRows:
        view = self.task.view
        before = load_dead_rows(view.store, self.vectors.get(bucket, ()), view.name)
        by_file = places.sort("row").partition_by("file", as_dict=True)
        dead = {str(name): some["row"].to_numpy() for (name,), some in by_file.items()}
        return before.marking(dead, wide=False)


@pytest.fixture(autouse=True)
def indexed() -> Iterator[None]:
    with mock.patch.object(kind, "_KEYED", IndexedRows()):
        yield


def new_table() -> kt.Table:
    types = {"op": "STRING", "p": "INT NOT NULL", "k": "BIGINT NOT NULL", "v": "INT"}
    options = {"bucket": "2", "rowkind.field": "op", "deletion-vectors.enabled": "true"}
    return empty_table(types, ["p", "k"], ["p"], options=options)


def index_files(table: kt.Table) -> dict[BucketId, IndexFile]:
    snapshot = table.metadata.latest_snapshot()
    files = [] if snapshot is None else table.metadata.index_files(snapshot)
    found = [file for file in files if file.index_type == KeyIndex.index_type]
    by_bucket = {(file.partition, file.bucket): file for file in found}
    assert len(by_bucket) == len(found), "one of a bucket"
    return by_bucket


def index_of(table: kt.Table) -> dict[BucketId, pl.DataFrame]:
    store = table.metadata.store
    return {bucket: load_places(store, file) for bucket, file in index_files(table).items()}


def begin(table: kt.Table) -> tuple[Transaction, IndexedWrite]:
    transaction = Transaction.begin(table.stored, writable_view(table.stored))
    vectors = vector_files_by_bucket(transaction.state.vector_files)
    return transaction, IndexedWrite(transaction.task(), index_of(table), vectors)


def rows_of(*changes: tuple[str, int, int]) -> pl.DataFrame:
    types = {"op": pl.String, "k": pl.Int64, "v": pl.Int32}
    rows = pl.DataFrame(list(changes), schema=types, orient="row")
    return rows.select("op", pl.lit(0, pl.Int32).alias("p"), "k", "v")


def write(table: kt.Table, *changes: tuple[str, int, int]) -> None:
    transaction, task = begin(table)
    with transaction:
        made = task.feed(rows_of(*changes))
        transaction.collect(made)
        marked = {name for dead in made.dead.values() for name in dead.vectors}
        entries = transaction.state.live.entries
        transaction.change_rows([e for e in entries if e.file.file_name in marked])


def indexed_rows(table: kt.Table) -> dict[int, int]:
    """What lies where the index says."""
    view, found = table.scan().view, {}
    by_name = {e.file.file_name: e for e in table.scan().live.entries}
    for places in index_of(table).values():
        for key, name, row in places.iter_rows():
            stored = version_at(view, by_name[name], row)
            assert stored["k"] == key
            found[key] = stored["v"]
    return found


def version_at(view: TableView, entry: ManifestEntry, row: int) -> dict[str, int]:
    stored = StoredVersions(view, entry.partition, ("k", "v"))
    return stored.of_file(PlannedFile(entry, has_kinds=False)).row(row, named=True)


# -- what commits make of it -----------------------------------------------------------------------

CHANGES = st.tuples(st.sampled_from(["+I", "+U", "-D"]), st.integers(0, 9), st.integers(0, 99))


@given(commits=st.lists(st.lists(CHANGES, min_size=1, max_size=6), max_size=4))
def test_index_and_rows_are_what_was_written_last(
    commits: list[list[tuple[str, int, int]]],
) -> None:
    table, expected = new_table(), dict[int, int]()
    for changes in commits:
        write(table, *changes)
        for op, key, value in changes:
            expected.pop(key, None)
            if op in ADDS:
                expected[key] = value
    assert by_key(table) == indexed_rows(table) == expected
    assert table.verify().is_healthy


def test_indexes_of_two_writers_who_began_together_become_one() -> None:
    table = new_table()
    write(table, *(("+I", key, 0) for key in range(4)))
    both = [begin(table), begin(table)]
    for (transaction, task), keys in zip(both, (range(4, 8), range(8, 12)), strict=True):
        with transaction:
            made = task.feed(rows_of(*(("+I", key, 1) for key in keys)))
            transaction.collect(made)
            transaction.commit()
    assert indexed_rows(table) == by_key(table) == {k: int(k >= 4) for k in range(12)}


def test_tasks_of_one_write_add_to_one_index() -> None:
    one, other, third = (
        KeyIndex(pl.DataFrame([[k], [name], [0]], schema=PLACES))
        for k, name in [(1, "a"), (2, "b"), (1, "c")]
    )
    parts = [TaskResult((), indexes=by_index_key({(b"", 0): each})) for each in (one, other, third)]
    ((key, joined),) = TaskResult.together(parts).indexes.items()
    assert key == ("KEYS", b"", 0)
    assert isinstance(joined, KeyIndex)
    assert joined.places.sort("k").rows() == [(1, "c", 0), (2, "b", 0)]


def test_index_is_carried_on_by_commits_that_know_nothing_of_it() -> None:
    table = new_table()
    write(table, *(("+I", key, 0) for key in range(9)))
    before = index_files(table)
    assert len(before) == 2
    table.write([{"op": "+I", "p": 1, "k": 50, "v": 5}])
    table.update({"v": "7"}, "k = 3")
    assert index_files(table) == before
    table.expire_snapshots(1)
    table.remove_orphan_files(time.time_ns() // 1_000_000, dry_run=False)
    assert sum(places.height for places in index_of(table).values()) == 9


def test_index_of_an_overwritten_partition_is_gone() -> None:
    table = new_table()
    write(table, ("+I", 1, 1))
    table.overwrite([{"op": "+I", "p": 0, "k": 2, "v": 2}], partition={"p": 0})
    assert index_files(table) == {}


def test_index_of_a_bucket_without_rows_ends() -> None:
    table = new_table()
    write(table, ("+I", 1, 1), ("+I", 2, 2))
    write(table, ("-D", 1, 0), ("-D", 2, 0))
    assert index_files(table) == {}
    assert by_key(table) == {}


# -- deletes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["-U", "+U", "-D"])
def test_kind_of_tables_says_whether_it_takes_deletes(op: str) -> None:
    row = {"op": op, "p": 0, "k": 1, "v": 1}
    new_table().write([row])
    with (
        mock.patch.object(kind, "_KEYED", KeyedRows()),
        pytest.raises(kt.InvalidError, match=rf"cannot be stored.*\{op} changes a row"),
    ):
        new_table().write([row])
