"""Checks of the contract of `keytide.dml.spi`, for any connector.

A connector under test is a `Subject`: it creates tables with rows, and reads them without the
connector. With pytest:

    @pytest.mark.parametrize("check", dml_contract.CHECKS, ids=str)
    def test_contract(check):
        check(subject)

A check returns nothing, or raises `BrokenContractError` with the rule and what was found. A check
of an operation that a connector does not support passes if the connector raises the declared error.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from keytide.base.dataclass import dataclass
from keytide.dml.engine import SinkPages
from keytide.dml.spi import (
    ROW_ID,
    ColumnHandle,
    Connector,
    ConnectorSession,
    ConnectorTableHandle,
    Fragment,
    UpdatablePageSource,
)
from keytide.errors import ConflictError, KeytideError, UnsupportedError
from keytide.predicate.predicate import Comparison

__all__ = ["CHECKS", "ROWS", "SCHEMA", "BrokenContractError", "Check", "Subject"]

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("n", pa.int64())]
)
ROWS = [(i, None if i == 4 else f"v{i}", i % 4) for i in range(10)]
"""The initial rows of every table. `id` identifies them."""


class BrokenContractError(AssertionError):
    """A connector violates the contract of `keytide.dml.spi`."""


class Subject(Protocol):
    """A connector under test."""

    @property
    def connector(self) -> Connector:
        """The connector."""
        ...

    def create_table(self, rows: Sequence[pa.Table]) -> str:
        """Create a table with the columns of `SCHEMA` and, if possible, the primary key `id`.

        Inserts the rows, one Arrow table after the other. Returns the name of the table.
        """
        ...

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """The rows that are currently visible."""
        ...


@dataclass(frozen=True)
class Check:
    """One rule of the contract, with a check of a connector."""

    name: str
    run: Callable[[_Table], None]

    def __str__(self) -> str:
        return self.name

    def __call__(self, subject: Subject) -> None:
        """Check the rule. Raises `BrokenContractError`."""
        halves = [pa.Table.from_pylist([dict(zip(SCHEMA.names, r, strict=True)) for r in part],
                                       SCHEMA) for part in (ROWS[:6], ROWS[6:])]  # fmt: skip
        self.run(_Table(subject, subject.create_table(halves)))


CHECKS: list[Check] = []


def _check(run: Callable[[_Table], None]) -> Callable[[_Table], None]:
    CHECKS.append(Check(run.__name__.strip("_"), run))
    return run


def _holds(condition: object, rule: str, found: object = "") -> None:
    if not condition:
        raise BrokenContractError(f"{rule}; found {found}" if found != "" else rule)


class _Table:
    """A table under test, with the steps of statements on it."""

    def __init__(self, subject: Subject, name: str) -> None:
        self.subject, self.name = subject, name
        self.connector = subject.connector
        self.metadata = self.connector.metadata
        self.session = ConnectorSession()
        found = self.metadata.get_table_handle(self.session, name)
        _holds(found is not None, "get_table_handle must find an existing table")
        self.handle: ConnectorTableHandle = found
        schema = self.metadata.get_table_schema(self.session, found)
        self.columns = {column.name: column for column in schema.columns}

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self.subject.rows(self.name), key=repr)

    def again(self) -> _Table:
        return _Table(self.subject, self.name)

    def begin(self, updated: Sequence[str] | None = None) -> _Statement:
        """A DELETE, or an UPDATE of columns."""
        if updated is None:
            row_id = self.metadata.get_delete_row_id_column_handle(self.session, self.handle)
            begun = self.metadata.begin_delete(self.session, self.handle)
        else:
            row_id = self.metadata.get_update_row_id_column_handle(
                self.session, self.handle, updated
            )
            begun = self.metadata.begin_update(self.session, self.handle, updated)
        return _Statement(self, begun, row_id, updated)


class _Statement:
    """A change that has begun."""

    def __init__(
        self,
        table: _Table,
        handle: ConnectorTableHandle,
        row_id: ColumnHandle,
        updated: Sequence[str] | None,
    ) -> None:
        self.table, self.handle, self.row_id, self.updated = table, handle, row_id, updated
        self.splits = table.connector.splits.get_splits(table.session, handle)
        id_ = ColumnHandle(ROW_ID, row_id.type, nullable=False)
        self.columns = [table.columns["id"], table.columns["n"], id_]

    @contextmanager
    def source(self, split: Any) -> Iterator[UpdatablePageSource]:
        source = self.table.connector.pages.create_page_source(
            self.table.session, self.handle, split, self.columns
        )
        try:
            yield source  # type: ignore[misc]  # a begun change gives sources that change rows
        finally:
            source.close()

    def pages(self, source: UpdatablePageSource) -> Iterator[pa.RecordBatch]:
        while (page := source.get_next_page()) is not None:
            yield page

    def change(self, source: UpdatablePageSource, wanted: set[int]) -> int:
        """Change the rows with these ids. An UPDATE sets `n` to 100 and `v` to 'new'."""
        count = 0
        for page in self.pages(source):
            found = page.filter(pc.is_in(page.column(0), pa.array(sorted(wanted), pa.int64())))
            if not found.num_rows:
                continue
            count += found.num_rows
            if self.updated is None:
                source.delete_rows(found.column(2))
                continue
            new = {"n": pa.repeat(pa.scalar(100), found.num_rows),
                   "v": pa.repeat(pa.scalar("new"), found.num_rows)}  # fmt: skip
            # In another order than the table's, and with a column that no channel names.
            given = pa.record_batch(
                [found.column(2), found.column(0), *(new[name] for name in reversed(self.updated))],
                ["ids", "other", *reversed(self.updated)],
            )
            places = [given.schema.get_field_index(name) for name in self.updated]
            source.update_rows(given, [*places, 0])
        return count

    def run(self, wanted: set[int]) -> list[Fragment]:
        """Change rows in every split. Returns the fragments."""
        fragments: list[Fragment] = []
        for split in self.splits:
            with self.source(split) as source:
                self.change(source, wanted)
                fragments += source.finish()
        return fragments

    def finish(self, fragments: Sequence[Fragment]) -> int:
        metadata, session = self.table.metadata, self.table.session
        if self.updated is None:
            return metadata.finish_delete(session, self.handle, fragments)
        return metadata.finish_update(session, self.handle, fragments)

    def abort(self, fragments: Sequence[Fragment]) -> None:
        metadata, session = self.table.metadata, self.table.session
        if self.updated is None:
            metadata.abort_delete(session, self.handle, fragments)
        else:
            metadata.abort_update(session, self.handle, fragments)


_START = sorted(ROWS, key=repr)


def _after(change: Callable[[tuple[Any, ...]], tuple[Any, ...] | None]) -> list[tuple[Any, ...]]:
    return sorted((row for row in map(change, ROWS) if row is not None), key=repr)


# -- reads -----------------------------------------------------------------------------------------


@_check
def pages_have_the_columns_that_were_asked_for(table: _Table) -> None:
    statement = table.begin()
    wanted = [column.name for column in statement.columns]
    types = [column.type for column in statement.columns]
    for split in statement.splits:
        with statement.source(split) as source:
            for page in statement.pages(source):
                _holds(
                    page.schema.names == wanted,
                    f"pages must have the columns {wanted}",
                    page.schema.names,
                )
                _holds(
                    page.schema.types == types,
                    f"pages must have the types {types}",
                    page.schema.types,
                )
            _holds(
                source.get_next_page() is None, "get_next_page must return None after the last page"
            )


@_check
def every_row_is_in_one_split(table: _Table) -> None:
    statement = table.begin()
    found: list[int] = []
    for split in statement.splits:
        with statement.source(split) as source:
            found += [i for page in statement.pages(source) for i in page.column(0).to_pylist()]
    expected = [row[0] for row in ROWS]
    _holds(sorted(found) == expected, "each row must be in exactly one split", sorted(found))


@_check
def row_ids_are_never_null(table: _Table) -> None:
    statement = table.begin()
    for split in statement.splits:
        with statement.source(split) as source:
            for page in statement.pages(source):
                _holds(not page.column(2).null_count, "row ids must not be NULL")


@_check
def row_ids_of_a_split_differ(table: _Table) -> None:
    statement = table.begin()
    for split in statement.splits:
        with statement.source(split) as source:
            ids = [repr(i) for p in statement.pages(source) for i in p.column(2).to_pylist()]
        _holds(len(set(ids)) == len(ids), "row ids must be unique within a split", ids)


@_check
def filters_lose_no_row_that_meets_them(table: _Table) -> None:
    term = Comparison("n", ">=", 2)
    handle, left = table.metadata.apply_filter(table.session, table.handle, (term,))
    found = set()
    for split in table.connector.splits.get_splits(table.session, handle):
        columns = [table.columns["id"]]
        source = table.connector.pages.create_page_source(table.session, handle, split, columns)
        while (page := source.get_next_page()) is not None:
            found |= set(page.column(0).to_pylist())
        source.close()
    meant = {row[0] for row in ROWS if row[2] is not None and row[2] >= 2}
    _holds(found >= meant, "all rows with n >= 2 must be returned", sorted(meant - found))
    _holds(left or found == meant,
           "n >= 2 must be returned as not enforced, or all returned rows must meet it",
           sorted(found - meant))  # fmt: skip


# -- changes ---------------------------------------------------------------------------------------


@_check
def delete_is_seen_when_it_is_finished_and_not_before(table: _Table) -> None:
    statement = table.begin()
    fragments = statement.run({1, 2, 8})
    _holds(table.rows() == _START, "no change must be visible before finish_delete", table.rows())
    counted = statement.finish(fragments)
    _holds(table.rows() == _after(lambda r: None if r[0] in {1, 2, 8} else r),
           "exactly the rows passed to delete_rows must be deleted", table.rows())  # fmt: skip
    _holds(counted == 3, "finish_delete must return the number of deleted rows, 3", counted)


@_check
def update_takes_values_from_the_channels_it_is_told(table: _Table) -> None:
    statement = table.begin(["v", "n"])
    fragments = statement.run({0, 7})
    _holds(table.rows() == _START, "no change must be visible before finish_update", table.rows())
    counted = statement.finish(fragments)
    _holds(table.rows() == _after(lambda r: (r[0], "new", 100) if r[0] in {0, 7} else r),
           "each column must have the values of its channel", table.rows())  # fmt: skip
    _holds(counted == 2, "finish_update must return the number of updated rows, 2", counted)


@_check
def update_leaves_other_columns_alone(table: _Table) -> None:
    statement = table.begin(["n"])
    statement.finish(statement.run({4, 5}))
    _holds(table.rows() == _after(lambda r: (r[0], r[1], 100) if r[0] in {4, 5} else r),
           "columns that are not updated must keep their values", table.rows())  # fmt: skip


@_check
def one_column_may_give_values_for_two(table: _Table) -> None:
    if table.columns["n"].type != table.columns["id"].type:
        return
    statement = table.begin(["n"])
    fragments: list[Fragment] = []
    for split in statement.splits:
        with statement.source(split) as source:
            for page in statement.pages(source):
                # The new value is the old value of another column, from its channel.
                source.update_rows(page, [0, 2])
            fragments += source.finish()
    statement.finish(fragments)
    _holds(table.rows() == _after(lambda r: (r[0], r[1], r[0])),
           "a channel can be a column that was read", table.rows())  # fmt: skip


@_check
def change_of_nothing_is_finished_too(table: _Table) -> None:
    for updated in (None, ["n"]):
        statement = table.begin(updated)
        counted = statement.finish(statement.run(set()))
        _holds(counted == 0, "a statement that changes no rows must return 0", counted)
    _holds(
        table.rows() == _START,
        "a statement that changes no rows must leave the table unchanged",
        table.rows(),
    )


@_check
def fragments_come_in_any_order_and_attempts_count_once(table: _Table) -> None:
    statement = table.begin()
    first, second = statement.run({3, 9}), statement.run({3, 9})
    counted = statement.finish([*reversed(first), *second])
    _holds(table.rows() == _after(lambda r: None if r[0] in {3, 9} else r),
           "a split that was processed twice must be changed once", table.rows())  # fmt: skip
    _holds(counted == 2, "a split that was processed twice must count once: 2", counted)


@_check
def deletes_without_reading_count_exactly(table: _Table) -> None:
    whole = table.metadata.apply_delete(table.session, table.handle)
    if whole is None:
        return
    counted = table.metadata.execute_delete(table.session, whole)
    _holds(counted == len(ROWS),
           f"execute_delete must return the number of deleted rows, {len(ROWS)}",
           counted)  # fmt: skip
    _holds(table.rows() == [], "execute_delete must delete all rows", table.rows())


# -- failures --------------------------------------------------------------------------------------


@_check
def aborted_change_leaves_nothing(table: _Table) -> None:
    statement = table.begin()
    fragments: list[Fragment] = []
    for number, split in enumerate(statement.splits):
        with statement.source(split) as source:
            statement.change(source, {0, 1, 6, 7})
            if number % 2:
                source.abort()
                source.abort()
            else:
                fragments += source.finish()
    statement.abort(fragments)
    _holds(table.rows() == _START, "an aborted change must have no effect", table.rows())
    again = table.again().begin()
    again.finish(again.run({0}))
    _holds(len(table.rows()) == len(ROWS) - 1, "the table must be writable after an abort",
           table.rows())  # fmt: skip


@_check
def after_abort_comes_nothing(table: _Table) -> None:
    statement = table.begin()
    for split in statement.splits:
        with statement.source(split) as source:
            ids = next(statement.pages(source)).column(2)
            source.abort()
            _refuses(partial(source.delete_rows, ids), "delete_rows after abort must be refused")
            _refuses(source.finish, "finish after abort must be refused")
    statement.abort([])


@_check
def null_row_ids_are_refused(table: _Table) -> None:
    statement = table.begin()
    for split in statement.splits:
        with statement.source(split) as source:
            nulls = pa.nulls(1, statement.row_id.type)
            _refuses(partial(_delete, source, nulls), "a NULL row id must be refused")
            source.abort()
    statement.abort([])


@_check
def wrong_channels_are_refused(table: _Table) -> None:
    statement = table.begin(["n"])
    for split in statement.splits:
        for channels in ([2], [0, 1, 2], [0, 7], [-1, 2]):
            with statement.source(split) as source:
                page = next(statement.pages(source))
                update = partial(source.update_rows, page, channels)
                _refuses(update, f"the channels {channels} of 3 columns must be refused")
                source.abort()
    statement.abort([])


@_check
def what_travels_pickles(table: _Table) -> None:
    statement = table.begin(["n"])
    for what, value in {
        "a session": table.session, "a handle": statement.handle, "splits": statement.splits,
        "column handles": statement.columns, "a page source provider": table.connector.pages,
        "a merge sink provider": table.connector.merge_sinks,
    }.items():  # fmt: skip
        _pickles(what, value)
    statement.abort([])


@_check
def second_of_two_changes_of_a_row_conflicts(table: _Table) -> None:
    one, other = table.begin(["n"]), table.again().begin(["n"])
    first, second = one.run({5}), other.run({5})
    one.finish(first)
    try:
        other.finish(second)
    except ConflictError:
        return
    raise BrokenContractError(
        "the second of two concurrent changes of a row must raise ConflictError"
    )


# -- INSERT ----------------------------------------------------------------------------------------


@_check
def insert_is_seen_when_it_is_finished_and_not_before(table: _Table) -> None:
    page = pa.record_batch([pa.array([100, 101]), pa.array([7, None], pa.int64())], ["id", "n"])
    for ends in ("abort", "finish"):
        try:
            sink = table.metadata.begin_insert(table.session, table.handle, ["id", "n"])
        except UnsupportedError:
            return
        sink.store_rows(page.slice(0, 1))
        sink.store_rows(page.slice(1))
        _holds(table.rows() == _START, "no row must be visible before finish", table.rows())
        if ends == "abort":
            sink.abort()
            sink.abort()
            _holds(table.rows() == _START, "an aborted insert must add no rows", table.rows())
    counted = sink.finish()
    expected = sorted([*_START, (100, None, 7), (101, None, None)], key=repr)
    _holds(table.rows() == expected, "all rows must be inserted, with defaults for missing columns",
           table.rows())  # fmt: skip
    _holds(counted == 2, "finish must return the number of inserted rows, 2", counted)
    sink.abort()
    _holds(table.rows() == expected, "an abort after finish must have no effect", table.rows())


# -- MERGE -----------------------------------------------------------------------------------------


@_check
def merge_inserts_updates_and_deletes(table: _Table) -> None:
    metadata, sinks = table.metadata, table.connector.merge_sinks
    if sinks is None:
        _refuses(lambda: metadata.begin_merge(table.session, table.handle, {}),
                 "a connector without merge sinks must refuse MERGE", UnsupportedError)  # fmt: skip
        return
    row_id = metadata.get_merge_row_id_column_handle(table.session, table.handle)
    paradigm = metadata.get_row_change_paradigm(table.session, table.handle)
    begun = metadata.begin_merge(table.session, table.handle, {0: ["v", "n"]})
    columns = tuple(table.columns[name] for name in SCHEMA.names)
    pages = SinkPages(columns, row_id, paradigm)
    wanted = [*columns, ColumnHandle(ROW_ID, row_id.type, nullable=False)]
    sink = sinks.create_merge_sink(table.session, begun, 0, 1)
    for split in table.connector.splits.get_splits(table.session, begun):
        source = table.connector.pages.create_page_source(table.session, begun, split, wanted)
        while (page := source.get_next_page()) is not None:
            going = page.filter(pc.less(page.column(0), 2))
            changing = page.filter(pc.equal(page.column(0), 8))
            if going.num_rows:
                sink.store_merged_rows(pages.deleted(going.column(3)))
            if changing.num_rows:
                values = [changing.column(0), pa.array(["new"]), pa.array([100])]
                sink.store_merged_rows(pages.updated(values, changing.column(3), 0))
        source.close()
    values = [pa.array([77]), pa.array(["in"]), pa.array([None], pa.int64())]
    sink.store_merged_rows(pages.inserted(values, 1))
    fragments = sink.finish()
    _holds(table.rows() == _START, "no change must be visible before finish_merge", table.rows())
    counted = metadata.finish_merge(table.session, begun, fragments)
    expected = [r for r in _after(lambda r: (8, "new", 100) if r[0] == 8 else r) if r[0] > 1]
    expected = sorted([*expected, (77, "in", None)], key=repr)
    _holds(table.rows() == expected, "a MERGE must insert, update and delete", table.rows())
    _holds(counted == 4, "an update by a MERGE must count once: 4", counted)


@_check
def merge_reads_all_rows_with_the_values_that_a_source_has(table: _Table) -> None:
    if table.connector.merge_sinks is None:
        return
    metadata, session, pages = table.metadata, table.session, table.connector.pages
    row_id = metadata.get_merge_row_id_column_handle(session, table.handle)
    begun = metadata.begin_merge(session, table.handle, {0: ["n"]})
    values = {"id": pa.array([8, 2, 999], pa.int64()), "v": pa.array(["v8", "v2", "x"])}
    wanted = [table.columns["id"], ColumnHandle(ROW_ID, row_id.type, nullable=False)]

    def with_values(handle: ConnectorTableHandle, splits: Iterable[Any]) -> list[int]:
        found = []
        for split in splits:
            source = pages.create_page_source(session, handle, split, wanted)
            while (page := source.get_next_page()) is not None:
                found += page.column(0).to_pylist()
            source.close()
        return sorted(row for row in found if row in (2, 8))

    handle = metadata.apply_values(session, begun, values)
    found = with_values(handle, table.connector.splits.get_splits(session, handle))
    _holds(
        found == [2, 8], "the handle from apply_values must return all rows with the values", found
    )
    splits = table.connector.splits.get_splits(session, begun)
    narrowed = [pages.apply_values(session, begun, split, values) for split in splits]
    _pickles("splits from apply_values", narrowed)
    found = with_values(begun, narrowed)
    _holds(found == [2, 8], "splits from apply_values must return all rows with the values", found)
    metadata.abort_merge(session, begun, [])


def _pickles(what: str, value: object) -> None:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception as error:  # whatever prevents pickling
        found = f"{type(error).__name__}: {error}"
        raise BrokenContractError(f"{what} must be picklable; found {found}") from error


def _delete(source: UpdatablePageSource, ids: pa.Array) -> None:
    source.delete_rows(ids)
    source.finish()


def _refuses(
    call: Callable[[], object], rule: str, kind: type[KeytideError] = KeytideError
) -> None:
    try:
        call()
    except kind:
        return
    except Exception as error:  # any other error
        raise BrokenContractError(f"{rule} with {kind.__name__}; found {error!r}") from error
    raise BrokenContractError(rule)
