"""Which files of tables with an index of keys compactions take up."""

from __future__ import annotations

import pytest
from tests.write.test_key_index import new_table, rows_of, write

import keytide as kt
from key_indexes import assert_index_is_that_of_the_rows
from keytide.store import Store
from new_tables import empty_store, table_in
from table_rows import by_key

PERCENT = "upsert.compaction.invalid-records-threshold-percent"
COUNT = "upsert.compaction.invalid-records-threshold-count"
BUFFER = "upsert.compaction.buffer-time-period"
SIZE = {"target-file-size": "900 b"}  # of which no file is small


def counts_of_rows(table: kt.Table) -> list[int]:
    return sorted(e.file.row_count for e in table.scan(skip_upsert=True).live.entries)


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("options", "is_due"),
    [
        ({}, False),
        ({PERCENT: "1", COUNT: "5"}, True),
        ({PERCENT: "60", COUNT: "5"}, False),
        ({PERCENT: "0", COUNT: "5"}, True),
        ({PERCENT: "30"}, True),
        ({COUNT: "6"}, False),
        ({COUNT: "5"}, True),
        ({COUNT: "5", BUFFER: "1 h"}, False),
    ],
)
def test_compaction_takes_up_files_of_which_enough_is_stale(
    options: dict[str, str], is_due: bool
) -> None:
    table = new_table(**SIZE, **options)
    write(table, *rows_of(*(f"+I {k} 1 a" for k in range(10))))
    write(table, *rows_of(*(f"+I {k} 2 b" for k in range(5))))
    before = by_key(table, "ts", "v")
    table.compact()
    assert counts_of_rows(table) == ([5, 5] if is_due else [5, 10])
    assert by_key(table, "ts", "v") == before
    assert_index_is_that_of_the_rows(table)
    table.compact(full=True)
    assert sum(counts_of_rows(table)) == 10


def test_deletes_are_not_stale_as_long_as_they_count() -> None:
    table = new_table(**SIZE, **{COUNT: "1"})
    write(table, *rows_of("-D 1 5 a", "+I 2 5 a"))
    assert table.compact().snapshot_id is None
    write(table, *rows_of("+I 1 6 back"))
    table.compact()
    assert counts_of_rows(table) == [1, 1]


def test_file_without_a_current_row_goes_unread() -> None:
    store = empty_store()
    table = new_table(store, **SIZE)
    write(table, *rows_of("+I 1 1 a", "+I 2 1 a"))
    (entry,) = table.scan().live.entries
    write(table, *rows_of("+I 1 2 b", "+I 2 2 b"))
    (path,) = [p for p in _data_files(store) if p.endswith(entry.file.file_name)]
    store.delete([path])
    store.put(path, b"unreadable")
    table_in(store).compact()
    assert counts_of_rows(table) == [2]
    assert by_key(table, "ts", "v") == {1: (2, "b"), 2: (2, "b")}
    assert_index_is_that_of_the_rows(table)


def _data_files(store: Store) -> list[str]:
    folder = "default.db/t/bucket-0"
    return [f"{folder}/{name}" for name in store.list_names(folder)]
