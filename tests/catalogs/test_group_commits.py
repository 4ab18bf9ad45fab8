"""Writes of several threads share a commit: each has the outcome that it would have alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.catalogs import local_writes
from keytide.catalogs.local_writes import GroupCommits, Outcome
from new_tables import empty_table
from table_rows import by_key, lines

SECONDS = 20


def result(rows: int) -> kt.WriteResult:
    return kt.WriteResult(7, rows, rows, 1)


class Held:
    """Commits of numbers, of which the first one waits until it is let go."""

    def __init__(self) -> None:
        self.groups = GroupCommits()
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.commits: list[list[int]] = []

    def commit(self, given: Sequence[int]) -> Sequence[Outcome]:
        self.commits.append([*given])
        if len(self.commits) == 1:
            self.begun.set()
            assert self.may_end.wait(SECONDS)
        return [kt.InvalidError(f"{each}") if each < 0 else result(each) for each in given]

    def write(self, number: int, commit: Callable[..., Any] | None = None) -> kt.WriteResult:
        return self.groups.write(("t",), number, commit or self.commit)

    def waiting(self, count: int) -> None:
        """Wait until so many writes wait."""
        while len(self.groups._waiting["t",]) < count:
            pass


@pytest.fixture
def held() -> Held:
    return Held()


def begun(held: Held, threads: ThreadPoolExecutor, *numbers: int) -> list[Future[kt.WriteResult]]:
    """Writes that came one after the other while the first was being written."""
    first = threads.submit(held.write, numbers[0])
    assert held.begun.wait(SECONDS)
    others = []
    for count, number in enumerate(numbers[1:], start=1):
        others.append(threads.submit(held.write, number))
        held.waiting(count)
    return [first, *others]


def test_write_that_is_alone_waits_for_nobody(held: Held) -> None:
    held.may_end.set()
    assert [held.write(n).rows for n in (1, 2)] == [1, 2]
    assert held.commits == [[1], [2]]
    assert held.groups._waiting == {}


def test_those_that_wait_are_written_together_in_the_order_in_which_they_came(held: Held) -> None:
    with ThreadPoolExecutor(8) as threads:
        writes = begun(held, threads, 1, 2, 3, 4)
        held.may_end.set()
        assert [each.result(SECONDS).rows for each in writes] == [1, 2, 3, 4]
    assert held.commits == [[1], [2, 3, 4]]
    assert held.groups._waiting == {}


def test_thread_whose_write_has_just_ended_writes_with_those_that_waited(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_writes, "_MOMENT_S", SECONDS)
    with ThreadPoolExecutor(8) as threads:
        one, two = begun(held, threads, 1, 2)
        held.may_end.set()
        assert one.result(SECONDS).rows == 1
        assert threads.submit(held.write, 3).result(SECONDS).rows == 3
        assert two.result(SECONDS).rows == 2
    assert held.commits == [[1], [2, 3]]


def test_threads_that_do_not_come_again_are_waited_for_only_a_moment(held: Held) -> None:
    with ThreadPoolExecutor(8) as threads:
        writes = begun(held, threads, 1, 2, 3)
        held.may_end.set()
        assert [each.result(SECONDS).rows for each in writes] == [1, 2, 3]
        assert threads.submit(held.write, 4).result(SECONDS).rows == 4
    assert held.commits == [[1], [2, 3], [4]]


def test_error_of_one_is_not_that_of_the_others(held: Held) -> None:
    with ThreadPoolExecutor(8) as threads:
        one, two, wrong, four = begun(held, threads, 1, 2, -3, 4)
        held.may_end.set()
        assert [each.result(SECONDS).rows for each in (one, two, four)] == [1, 2, 4]
        with pytest.raises(kt.InvalidError, match="-3"):
            wrong.result(SECONDS)


class StoppedError(BaseException):
    """As Ctrl-C in the thread that writes."""


@pytest.mark.parametrize("raised", [kt.DataError("the disk is full"), StoppedError()])
def test_those_that_come_later_are_written_after_a_commit_failed(
    held: Held, raised: BaseException
) -> None:
    def fail(_: Sequence[int]) -> Sequence[Outcome]:
        held.begun.set()
        assert held.may_end.wait(SECONDS)
        raise raised

    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(held.write, 1, fail)
        assert held.begun.wait(SECONDS)
        second = threads.submit(held.write, 2, fail)
        held.waiting(1)
        third = threads.submit(held.write, 3)  # in the group that fails too
        held.waiting(2)
        held.may_end.set()
        with pytest.raises(type(raised)):
            first.result(SECONDS)
        with pytest.raises(type(raised)):
            second.result(SECONDS)
        with pytest.raises(kt.DataError, match=r"disk is full|^t: .* it is unknown"):
            third.result(SECONDS)
        assert threads.submit(held.write, 4).result(SECONDS).rows == 4


def test_write_that_is_given_up_holds_up_nobody(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops = threading.Event()

    class Stopped(threading.Event):
        """The wait of one thread, which Ctrl-C ends when it has to write for others."""

        def wait(self, timeout: float | None = None) -> bool:
            super().wait(timeout)
            if not stops.is_set():
                stops.set()
                raise StoppedError
            return True

    monkeypatch.setattr("keytide.catalogs.local_writes.Event", Stopped)
    with ThreadPoolExecutor(8) as threads:
        _, stopped, third, fourth = begun(held, threads, 1, 2, 3, 4)
        held.may_end.set()
        with pytest.raises(StoppedError):
            stopped.result(SECONDS)
        assert [each.result(SECONDS).rows for each in (third, fourth)] == [3, 4]
    assert held.commits == [[1], [3, 4]]
    assert held.groups._waiting == {}


def test_write_within_a_write_to_the_same_table_waits_for_nobody(held: Held) -> None:
    def within(given: Sequence[int]) -> Sequence[Outcome]:
        return [held.write(each + 1) for each in given]

    held.may_end.set()
    assert held.write(1, within).rows == 2


# -- tables ----------------------------------------------------------------------------------------

COLUMNS = "k INT NOT NULL, v INT"
Batch = list[tuple[int, int]]
batches = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=6),
    min_size=2,
    max_size=5,
)


def dicts(batch: Batch) -> list[dict[str, int]]:
    return [{"k": k, "v": v} for k, v in batch]


@given(given_batches=batches)
def test_writes_that_share_a_commit_have_the_outcome_of_one_after_the_other(
    given_batches: list[Batch],
) -> None:
    together, apart = (empty_table(COLUMNS, ["k"]) for _ in range(2))
    every = [dicts(batch) for batch in given_batches]
    outcomes = local_writes._append_each(together.stored, every)
    alone = [apart.write(batch) for batch in every]
    assert lines(together) == lines(apart)
    assert len([*together.snapshots()]) == 1
    told = [(each.rows, each.rows_stored, each.is_new) for each in outcomes]  # type: ignore[union-attr]
    assert told == [(each.rows, each.rows_stored, each.is_new) for each in alone]


WRONG = [{"k": 1, "v": "x"}]


def test_rows_that_do_not_fit_are_refused_alone() -> None:
    table = empty_table(COLUMNS, ["k"])
    good = [dicts([(1, 1)]), dicts([(2, 2)])]
    first, wrong, last = local_writes._append_each(table.stored, [good[0], WRONG, good[1]])
    assert isinstance(wrong, kt.InvalidError)
    assert isinstance(first, kt.WriteResult)
    assert isinstance(last, kt.WriteResult)
    assert lines(table) == ["1 1", "2 2"]


APART: dict[str, dict[str, str]] = {
    "sums": {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"},
    "skipped rows are counted": {"upsert.mode": "full", "upsert.row-errors": "count"},
    "late rows are counted": {"write.count-out-of-order": "true", "sequence.field": "v"},
    "a key index": {"upsert.mode": "full"},
}


@pytest.mark.parametrize("which", APART)
def test_results_that_cannot_be_told_apart_come_from_commits_of_their_own(which: str) -> None:
    table = empty_table(COLUMNS, ["k"], options={"bucket": "1", **APART[which]})
    outcomes = local_writes._append_each(table.stored, [dicts([(1, 1)]), dicts([(1, 2), (2, 3)])])
    assert [each.rows for each in outcomes] == [1, 2]  # type: ignore[union-attr]
    assert len({each.snapshot_id for each in outcomes}) == 2  # type: ignore[union-attr]


def test_deletes_do_not_share_a_commit() -> None:
    table = empty_table(COLUMNS, ["k"])
    delete = [{"k": 1, "v": None, "_row_kind": "-D"}]
    outcomes = local_writes._append_each(table.stored, [dicts([(1, 1)]), delete])
    assert len({each.snapshot_id for each in outcomes}) == 2  # type: ignore[union-attr]
    assert lines(table) == []


def test_threads_write_with_few_commits_and_none_is_lost(tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table("t", empty_table(COLUMNS, ["k"]).schema, ["k"])

    def write(number: int) -> list[kt.WriteResult]:
        return [table.write(dicts([(number * 100 + i, i)])) for i in range(20)]

    with ThreadPoolExecutor(8) as threads:
        every = [each for results in threads.map(write, range(8)) for each in results]
    assert by_key(table) == {n * 100 + i: i for n in range(8) for i in range(20)}
    ids = [each.snapshot_id for each in every]
    assert len(set(ids)) < len(ids)
    for number in range(8):  # a thread that saw the end of its write comes later
        own = ids[number * 20 : number * 20 + 20]
        assert own == sorted(set(own))
