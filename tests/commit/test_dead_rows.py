"""Deletion vectors through a commit: they take the place of those that the work began with, or the
commit conflicts; no row that was marked dead comes back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

import keytide as kt
from keytide.commit.change import Author, Change, Conflict
from keytide.commit.committer import Committer
from keytide.format.index_files import IndexFile
from keytide.format.snapshot import CommitKind
from keytide.snapshot.live_files import (
    BucketId,
    DeadRows,
    by_index_key,
    load_dead_rows,
    vector_files_by_bucket,
)
from keytide.write.bucket_writer import restamp
from keytide.write.task import TaskResult
from new_tables import empty_table
from publishing import publish

POSITIONS = st.sets(st.integers(0, 99))


def new_table() -> kt.Table:
    columns = {"p": "INT NOT NULL", "k": "INT NOT NULL"}
    table = empty_table(columns, ["p", "k"], ["p"], options={"write-only": "true"})
    table.write([{"p": p, "k": k} for p in range(2) for k in range(9)])
    return table


def buckets(table: kt.Table) -> list[BucketId]:
    """The bucket of each partition."""
    entries = table.scan(columns=["p"]).live.entries
    return sorted((entry.partition, entry.bucket) for entry in entries)


def vector_files(table: kt.Table) -> dict[BucketId, tuple[IndexFile, ...]]:
    snapshot = table.metadata.latest_snapshot()
    assert snapshot is not None
    return vector_files_by_bucket(table.metadata.index_files(snapshot))


def known(table: kt.Table, bucket: BucketId) -> DeadRows:
    return load_dead_rows(table.metadata.store, vector_files(table).get(bucket, ()), table.name)


def change_of(bucket: BucketId, dead: DeadRows) -> Change:
    made = TaskResult((), indexes=by_index_key({bucket: dead}))
    return Change(made, Author.fresh(), CommitKind.COMPACT)


def mark(table: kt.Table, bucket: BucketId, *positions: int, wide: bool = False) -> None:
    dead = known(table, bucket).marking({"a": np.array(positions)}, wide=wide)
    commit(table, bucket, dead)


def commit(table: kt.Table, bucket: BucketId, dead: DeadRows) -> None:
    scan = table.scan()
    publish(table, scan.view, change_of(bucket, dead), scan.live)


def test_vectors_of_a_bucket_take_the_place_of_those_before() -> None:
    table = new_table()
    one, other = buckets(table)
    mark(table, one, 1, 5)
    mark(table, other, 2)
    mark(table, one, 3)
    assert known(table, one).of("a").tolist() == [1, 3, 5]
    assert known(table, other).of("a").tolist() == [2]
    assert known(table, other).of("b").tolist() == []


def test_vectors_are_carried_on_by_commits_that_mark_nothing() -> None:
    table = new_table()
    one, _ = buckets(table)
    mark(table, one, 1)
    before = vector_files(table)
    table.write([{"p": 0, "k": 5}])
    commit(table, one, known(table, one))  # nothing has changed
    assert vector_files(table) == before


def test_bucket_without_dead_rows_has_no_vectors() -> None:
    table = new_table()
    one, other = buckets(table)
    mark(table, one, 1)
    mark(table, other, 1)
    commit(table, one, known(table, one).without(["a"]))
    assert set(vector_files(table)) == {other}


def test_vectors_of_an_overwritten_partition_are_gone() -> None:
    table = new_table()
    one, other = buckets(table)
    mark(table, one, 1)
    mark(table, other, 1)
    table.overwrite([{"p": 0, "k": 5}], partition={"p": 0})
    assert len(vector_files(table)) == 1


@pytest.mark.parametrize("has_changed", [True, False], ids=["marks too", "goes by them"])
def test_commit_that_went_by_older_vectors_conflicts(has_changed: bool) -> None:
    table = new_table()
    one, other = buckets(table)
    scan, dead = table.scan(), known(table, one)
    mark(table, one, 1)
    paths = set(table.metadata.store.list(""))
    mine = replace(dead.marking({"b": np.array([2])}, wide=False), has_changed=has_changed)
    committer = Committer(table.metadata, scan.view, restamp)
    outcome = committer.publish(change_of(one, mine), scan.live)
    assert isinstance(outcome, Conflict)
    assert "deletion vector that this commit also" in outcome.reason
    assert set(table.metadata.store.list("")) == paths
    assert known(table, one).of("a").tolist() == [1]
    committed = committer.publish(change_of(other, known(table, other)), scan.live)
    assert not isinstance(committed, Conflict)


@given(steps=st.lists(st.tuples(st.sampled_from("ab"), POSITIONS), max_size=5), wide=st.booleans())
def test_marks_add_up(steps: list[tuple[str, set[int]]], wide: bool) -> None:
    expected: dict[str, set[int]] = {"a": set(), "b": set()}
    dead = DeadRows()
    for name, positions in steps:
        expected[name] |= positions
        dead = dead.marking({name: np.array(sorted(positions), np.int64)}, wide=wide)
    assert {name: set(dead.of(name).tolist()) for name in "ab"} == expected
    assert dead.has_changed == any(expected.values())
    assert all(isinstance(v, BitMap64 if wide else BitMap) for v in dead.vectors.values())


@pytest.mark.parametrize("wide", [False, True])
def test_all_vectors_have_one_form(wide: bool) -> None:
    dead = DeadRows().marking({"a": np.array([1])}, wide=not wide)
    both = dead.marking({"b": np.array([2])}, wide=wide)
    assert {type(vector) for vector in both.vectors.values()} == {BitMap64 if wide else BitMap}
    assert both.of("a").tolist() == [1]


# -- work that is about some files of a bucket -----------------------------------------------------


@given(
    theirs=st.dictionaries(st.sampled_from("ab"), POSITIONS.filter(bool)),
    mine=st.dictionaries(st.sampled_from("bc"), POSITIONS.filter(bool), min_size=1),
)
def test_what_happens_to_other_files_is_no_matter(
    theirs: dict[str, set[int]], mine: dict[str, set[int]]
) -> None:
    table = new_table()
    one, _ = buckets(table)
    found = known(table, one)
    places = {name: np.array(sorted(some)) for name, some in mine.items()}
    change = change_of(one, found.about(mine).marking(places, wide=False))
    for name, some in theirs.items():
        more = known(table, one).marking({name: np.array(sorted(some))}, wide=False)
        commit(table, one, more)
    scan = table.scan()
    outcome = Committer(table.metadata, scan.view, restamp).publish(change, scan.live)
    assert isinstance(outcome, Conflict) == bool(theirs.keys() & mine.keys())
    merged = theirs if isinstance(outcome, Conflict) else {**theirs, **mine}
    assert {n: set(known(table, one).of(n).tolist()) for n in merged} == merged


def test_vectors_in_several_files_become_one() -> None:
    """Other engines may keep the vectors of an append table so."""
    table = new_table()
    one, _ = buckets(table)
    mark(table, one, 1)
    first = known(table, one)
    commit(table, one, first.without(["a"]).marking({"b": np.array([2])}, wide=False))
    both = load_dead_rows(
        table.metadata.store, (*first.stored, *vector_files(table)[one]), table.name
    )
    assert {name: both.of(name).tolist() for name in "ab"} == {"a": [1], "b": [2]}
