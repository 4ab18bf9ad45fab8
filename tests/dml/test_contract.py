"""Every connector keeps the contract, and the checks find connectors that do not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from databases import SomeDatabase

import keytide as kt
from keytide.dml import memory
from keytide.dml.adbc import adbc_connector
from keytide.dml.append_table import appended_connector
from keytide.dml.fragments import Told, read_fragments
from keytide.dml.keyed_table import keyed_connector
from keytide.dml.memory import MemoryConnector
from keytide.dml.spi import Connector
from keytide.testing.dml_contract import CHECKS, SCHEMA, BrokenContractError, Check
from table_rows import rows_in_order


class InMemory:
    def __init__(self, connector: Connector | None = None, tables: Any = None) -> None:
        self.tables = tables or MemoryConnector()
        self.connector = connector or self.tables.connector
        self.numbers = itertools.count()

    def create_table(self, rows: Sequence[pa.Table]) -> str:
        name = f"t{next(self.numbers)}"
        self.tables.create_table(name, SCHEMA, ["id"])
        for part in rows:
            self.tables.insert(name, part)
        return name

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return rows_in_order(self.tables.rows(name))


class InLake:
    def __init__(self, warehouse: str, kind: str) -> None:
        self.lake = kt.connect(warehouse)
        self.kind = kind
        make = keyed_connector if kind == "keyed" else appended_connector
        self.connector = make(self.lake._catalog)
        self.numbers = itertools.count()

    def create_table(self, rows: Sequence[pa.Table]) -> str:
        name = f"t{next(self.numbers)}"
        vectors = {"deletion-vectors.enabled": "true"} if self.kind == "vectors" else {}
        keys = ["id"] if self.kind == "keyed" else []
        buckets = {"bucket": "2"} if keys else {}
        table = self.lake.create_table(name, SCHEMA, keys, options=vectors | buckets)
        for part in rows:
            table.write(part)
        return name

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return rows_in_order(self.lake.table(name))


class InDatabase:
    def __init__(self, database: SomeDatabase) -> None:
        self.database = database
        self.connector = adbc_connector(database.kind, database.place)

    def create_table(self, rows: Sequence[pa.Table]) -> str:
        self.database.run("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT, n BIGINT)")
        with closing(self.database.connect(self.database.place)) as connection:
            for part in rows:
                with connection.cursor() as cursor:
                    cursor.adbc_ingest("t", part, mode="append")
        return "t"

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return self.database.rows(f"SELECT * FROM {name}")


@pytest.mark.one_in(14)
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_database_keeps_the_contract(database: SomeDatabase, check: Check) -> None:
    check(InDatabase(database))


@pytest.mark.one_in(14)
@pytest.mark.parametrize("check", CHECKS, ids=str)
@pytest.mark.parametrize("kind", ["memory", "keyed", "vectors", "rewritten"])
def test_connector_keeps_the_contract(kind: str, check: Check, warehouse: str) -> None:
    check(InMemory() if kind == "memory" else InLake(warehouse, kind))


# -- connectors that break it ----------------------------------------------------------------------


def broken_pages(**methods: Any) -> InMemory:
    """The in-memory connector, whose page sources are as `methods` say."""
    tables = MemoryConnector()
    source = type("Broken", (memory._Source,), methods)

    class Pages(memory._Pages):
        def create_page_source(self, session: Any, table: Any, split: Any, columns: Any) -> Any:
            return source(table, split, tuple(columns))

    globals()["Pages"] = Pages
    Pages.__qualname__ = "Pages"
    return InMemory(replace(tables.connector, pages=Pages()), tables)


def broken_metadata(**methods: Any) -> InMemory:
    tables = MemoryConnector()
    metadata = type("Broken", (memory._Metadata,), methods)(tables)
    return InMemory(replace(tables.connector, metadata=metadata), tables)


def null_ids() -> InMemory:
    def get_next_page(self: Any) -> Any:
        page = memory._Source.get_next_page(self)
        if page is None or page.schema.names[-1] != "$row_id":
            return page
        last = page.num_columns - 1
        nulls = pa.nulls(page.num_rows, page.schema.field(last).type)
        fields = [*list(page.schema)[:last], pa.field("$row_id", nulls.type)]
        return pa.record_batch([*page.columns[:last], nulls], schema=pa.schema(fields))

    return broken_pages(get_next_page=get_next_page)


def same_ids() -> InMemory:
    def get_next_page(self: Any) -> Any:
        page = memory._Source.get_next_page(self)
        if page is None or page.schema.names[-1] != "$row_id":
            return page
        last = page.num_columns - 1
        ids = page.column(last).take(pa.array([0] * page.num_rows))
        return pa.record_batch([*page.columns[:last], ids], schema=page.schema)

    return broken_pages(get_next_page=get_next_page)


def ignores_channels() -> InMemory:
    def update_rows(self: Any, page: pa.RecordBatch, channels: Sequence[int]) -> None:
        memory._Source.update_rows(self, page, [*range(1, len(channels)), 0])

    return broken_pages(update_rows=update_rows)


def forgives_after_abort() -> InMemory:
    return broken_pages(_refuse_after_end=lambda self: None)


def eager() -> InMemory:
    subject = broken_pages()
    tables = subject.tables

    def delete_rows(self: Any, row_ids: pa.Array) -> None:
        gone = memory._without(row_ids.to_numpy())
        tables._tables[self._table.name].pages[self._split] = gone(self._table.pages[self._split])

    pages = type("Broken", (memory._Source,), {"delete_rows": delete_rows})

    class EagerPages(memory._Pages):
        def create_page_source(self, session: Any, table: Any, split: Any, columns: Any) -> Any:
            return pages(table, split, tuple(columns))

    return InMemory(replace(tables.connector, pages=EagerPages()), tables)


def miscounts() -> InMemory:
    def finish_delete(self: Any, session: Any, table: Any, fragments: Any) -> int:
        return int(memory._Metadata.finish_delete(self, session, table, fragments)) + 1

    return broken_metadata(finish_delete=finish_delete)


def counts_attempts_twice() -> InMemory:
    def finish_delete(self: Any, session: Any, table: Any, fragments: Any) -> int:
        told: list[Told] = [each for one in fragments for each in read_fragments([one])]
        memory._Metadata.finish_delete(self, session, table, fragments)
        return sum(each.rows.num_rows for each in told)

    return broken_metadata(finish_delete=finish_delete)


def loses_a_split() -> InMemory:
    tables = MemoryConnector()

    class Splits(memory._Splits):
        def get_splits(self, session: Any, table: Any) -> Any:
            return super().get_splits(session, table)[1:]

    return InMemory(replace(tables.connector, splits=Splits()), tables)


def overwrites_others() -> InMemory:
    def finish_update(self: Any, session: Any, table: Any, fragments: Any) -> int:
        newest = self.get_table_handle(session, table.name)
        if newest.pages.keys() == table.pages.keys():
            return int(memory._Metadata.finish_update(self, session, table, fragments))
        return 1

    return broken_metadata(finish_update=finish_update)


def handles_that_stay() -> InMemory:
    def begin_update(self: Any, session: Any, table: Any, updated: Any) -> Any:
        begun = memory._Metadata.begin_update(self, session, table, updated)
        object.__setattr__(begun, "lock", self.tables._lock)
        return begun

    return broken_metadata(begin_update=begin_update)


def inserts_at_once() -> InMemory:
    class Sink(memory._InsertSink):
        def store_rows(self, page: pa.RecordBatch) -> None:
            super().store_rows(page)
            super().finish()

    def begin_insert(self: Any, session: Any, table: Any, columns: Any) -> Any:
        return Sink(self, session, table, tuple(columns))

    return broken_metadata(begin_insert=begin_insert)


def leaves_out_what_was_asked_for() -> InMemory:
    def apply_values(self: Any, session: Any, table: Any, values: Any) -> Any:
        (other, *_) = (name for name in self.tables._tables if name != table.name)
        return memory._Metadata.get_table_handle(self, session, other)

    subject = broken_metadata(apply_values=apply_values)
    subject.create_table([SCHEMA.empty_table()])
    return subject


BROKEN = {
    leaves_out_what_was_asked_for: "merge_reads_all_rows_with_the_values_that_a_source_has",
    inserts_at_once: "insert_is_seen_when_it_is_finished_and_not_before",
    null_ids: "row_ids_are_never_null",
    same_ids: "row_ids_of_a_split_differ",
    ignores_channels: "update_takes_values_from_the_channels_it_is_told",
    forgives_after_abort: "after_abort_comes_nothing",
    eager: "delete_is_seen_when_it_is_finished_and_not_before",
    miscounts: "change_of_nothing_is_finished_too",
    counts_attempts_twice: "fragments_come_in_any_order_and_attempts_count_once",
    loses_a_split: "every_row_is_in_one_split",
    overwrites_others: "second_of_two_changes_of_a_row_conflicts",
    handles_that_stay: "what_travels_pickles",
}


@pytest.mark.parametrize("make", BROKEN, ids=lambda make: make.__name__)
def test_broken_connector_is_found_out_for_its_own_reason(make: Any) -> None:
    check = next(check for check in CHECKS if check.name == BROKEN[make])
    with pytest.raises(BrokenContractError):
        check(make())
