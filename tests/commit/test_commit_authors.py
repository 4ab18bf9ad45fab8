"""Commits that are named: who may be named, and one commit however two writers interleave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from decimal import Decimal
from functools import partial
from typing import Any, BinaryIO, TypeVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import keytide as kt
from keytide.snapshot.state import TableState
from keytide.spark.columns import spark_schema
from keytide.spark.data_source import SourceWrite, TableStreamWriter, TaskMessage
from keytide.spark.dataframe_writes import StreamBatch
from keytide.spark.option_rules import OptionValues
from keytide.store import Store
from keytide.store.faults import FaultyStore
from keytide.tasks import Outcome
from keytide.write.refusals import writable_view
from keytide.write.task import WriteTask
from new_tables import empty_store
from table_rows import reopened, rows

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
T = TypeVar("T")


def new_table(*rows: tuple[int, str]) -> kt.Table:
    store = empty_store()
    table = kt.connect("", store=store).create_table("t", SCHEMA, ["k"])
    if rows:
        table.write(as_dicts(rows))
    return table


def as_dicts(rows: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
    return [{"k": k, "v": v} for k, v in rows]


def files(table: kt.Table) -> set[str]:
    return {info.path for info in table.metadata.store.list()}


# -- who may be named --------------------------------------------------------------------------

ODD = st.one_of(
    st.sampled_from([None, True, "", "\ud800", b"u", 1.5, float("nan"), Decimal(1), np.int64(1)]),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, [], {}, ("a",), object()]),
    st.text(max_size=3),
    st.integers(),
)


@given(user=ODD, identifier=ODD)
@example(user=5, identifier=1)
@example(user="u", identifier="7")
@example(user="u", identifier=1.5)
@example(user="u", identifier=2**63)
@example(user=None, identifier=7)
def test_any_author_is_stored_and_found_again_or_refused_before_anything_is_written(
    user: Any, identifier: Any
) -> None:
    table = new_table((1, "old"))
    before = files(table)
    try:
        result = table.write(as_dicts([(1, "new")]), commit_user=user, commit_identifier=identifier)
    except kt.InvalidError:
        assert (rows(reopened(table)), files(table)) == ([(1, "old")], before)
        return
    assert (rows(reopened(table)), result.is_new) == ([(1, "new")], True)
    if user is not None:
        again = table.write(
            as_dicts([(1, "again")]), commit_user=user, commit_identifier=identifier
        )
        assert (rows(reopened(table)), again.is_new) == ([(1, "new")], False)


def test_user_without_a_number_is_refused_as_its_second_write_would_be_lost() -> None:
    table = new_table()
    with pytest.raises(kt.InvalidError, match="but commit_identifier is missing"):
        table.write(as_dicts([(1, "new")]), commit_user="nightly")
    assert rows(reopened(table)) == []


# -- two writers with one name -----------------------------------------------------------------


class Interrupted(FaultyStore):
    """Something else is done just before the `nth` operation, counted from 1."""

    def __init__(self, inner: Store, nth: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.before = {nth: act}

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        self._interrupt()
        return super().open_output(path)

    def _perform(self, operation: str, path: str, do: Callable[[], T], tear: Any = None) -> T:
        self._interrupt()
        return super()._perform(operation, path, do, tear)

    def _interrupt(self) -> None:
        act = self.before.pop(len(self.log) + 1, None)
        if act is not None:
            act()


def write_named(table: kt.Table, value: str, identifier: int = 5) -> kt.WriteResult:
    return table.write(as_dicts([(1, value)]), commit_user="w", commit_identifier=identifier)


def places(*before: tuple[int, str]) -> list[tuple[int, tuple[tuple[int, str], ...]]]:
    """Every operation of a named write, up to its commit, on a table with these rows."""
    store = FaultyStore(new_table(*before).metadata.store)
    write_named(kt.Table(store, "t"), "mine")
    until = [operation for operation, _ in store.log].index("hint") + 1
    return [(nth, before) for nth in range(1, until + 1)]


PLACES = [*places(), *places((1, "old"))]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("identifier", [5, 6])
@pytest.mark.parametrize(("nth", "before"), PLACES)
def test_two_writers_with_one_name_commit_once_wherever_one_overtakes_the_other(
    nth: int, before: tuple[tuple[int, str], ...], identifier: int
) -> None:
    table = new_table(*before)
    others: list[kt.WriteResult] = []
    overtake = partial(write_named, table, "other", identifier)
    store = Interrupted(table.metadata.store, nth, lambda: others.append(overtake()))
    try:
        is_mine_new = write_named(kt.Table(store, "t"), "mine").is_new
    except kt.InvalidError:
        is_mine_new = False
        assert identifier == 6, "a repetition is not refused"
    (other,) = others
    made = [s.commit_identifier for s in table.snapshots() if s.commit_user == "w"]
    assert made == [5] * is_mine_new + [identifier] * other.is_new
    assert len(made) == 1 or (made == [5, 6] and is_mine_new)
    assert rows(reopened(table)) == [(1, "other" if other.is_new else "mine")]


@given(
    runs=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 6)), max_size=12),
    compacts=st.booleans(),
)
def test_a_run_is_written_once_or_refused_and_never_dropped(
    runs: list[tuple[str, int]], compacts: bool
) -> None:
    table = new_table((1, "old"))
    written: dict[str, list[int]] = {"a": [], "b": []}
    for turn, (user, number) in enumerate(runs):
        numbers, before = written[user], files(table)
        value = as_dicts([(turn, "new")])
        if number not in numbers and number < max(numbers, default=0):
            with pytest.raises(kt.InvalidError, match=f"commit_identifier is {number}, but .* has"):
                table.write(value, commit_user=user, commit_identifier=number)
            assert files(table) == before
            continue
        result = table.write(value, commit_user=user, commit_identifier=number)
        assert result.is_new is (number not in numbers)
        numbers += [number] * result.is_new
        if compacts:
            table.compact(full=True)
    named = [(s.commit_user, s.commit_identifier) for s in table.snapshots()]
    for user, numbers in written.items():
        assert [number for name, number in named if name == user] == numbers


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("nth", "before"), PLACES)
def test_writer_that_was_overtaken_by_its_own_name_leaves_no_file_behind(
    nth: int, before: tuple[tuple[int, str], ...]
) -> None:
    table = new_table(*before)
    store = Interrupted(table.metadata.store, nth, lambda: write_named(table, "other"))
    write_named(kt.Table(store, "t"), "mine")
    named = {f"bucket-0/{e.file.file_name}" for e in table.stored.newest_files().entries}
    assert {path for path in files(table) if path.startswith("bucket-0/")} == named


def stream_batch(table: kt.Table, value: str) -> Callable[[], None]:
    """The commit of batch 7 of a query, whose tasks have written their files."""
    write = SourceWrite(table.stored, spark_schema(SCHEMA), OptionValues({}))
    writer = TableStreamWriter(write)
    view = writable_view(table.stored)
    rows = pa.Table.from_pylist(as_dicts([(1, value)]), SCHEMA)
    written = Outcome(
        0, WriteTask.on(TableState(view, table.stored.newest_files())).feed([rows], 0)
    )
    message = TaskMessage(written, StreamBatch("query", 7))
    return partial(writer.commit, [message], 7)


def test_two_commits_of_one_streaming_batch_are_one_wherever_one_overtakes_the_other() -> None:
    nth = 0
    overtaken = True
    while overtaken:
        nth += 1
        table = new_table((1, "old"))
        store = Interrupted(table.metadata.store, -1, stream_batch(table, "other"))
        commit = stream_batch(kt.Table(store, "t"), "mine")
        store.before = {len(store.log) + nth: store.before[-1]}
        commit()
        overtaken = not store.before
        assert [s.commit_identifier for s in table.snapshots()][1:] == [7]
        if overtaken:
            named = {f"bucket-0/{e.file.file_name}" for e in table.stored.newest_files().entries}
            assert {path for path in files(table) if path.startswith("bucket-0/")} == named
    assert nth > 5
