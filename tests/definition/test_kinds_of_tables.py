"""Two questions about a kind of table: has it a key, and are its files versions to merge?

A third kind answers them otherwise than the two that Keytide has: rows have a key, and a file holds
them as they are, so nothing is merged. Whoever wrote them saw to it that a key came once.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.definition import kind
from keytide.definition.kind import TableKind
from keytide.format.schema import TableSchema
from keytide.options import TableOptions
from table_rows import dicts

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
ROWS = [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]


class KeyedRows(TableKind):
    """Tables whose rows have a key and need no merge."""

    has_key = True
    keeps_versions = False
    takes_deletes = False
    is_changed_by_key = False
    default_bucket = "1"

    def check(self, schema: TableSchema, options: TableOptions) -> None:
        """Any layout will do."""

    def why_not_writable(self, options: TableOptions) -> str | None:
        """They can be written to."""
        return None


@pytest.fixture
def table(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> kt.Table:
    monkeypatch.setattr(kind, "_KEYED", KeyedRows())
    found = kt.connect(tmp_path).create_table("t", SCHEMA, ["k"])
    found.write(ROWS[:1])
    found.write(ROWS[1:])
    return found


def test_rows_are_read_as_they_are_stored_and_nothing_is_merged(table: kt.Table) -> None:
    scan = table.scan()
    assert dicts(scan) == ROWS
    explained = scan.explain()
    assert (explained.files_merged, explained.merge_engine) == (0, None)


def test_row_is_found_by_its_key(table: kt.Table) -> None:
    assert table.get(2) == ROWS[1]
    assert table.get_many([1, 3]).to_pylist() == ROWS[:1]


def test_rows_are_changed_where_they_lie(table: kt.Table) -> None:
    table.delete("k = 1")
    table.update({"v": "'new'"}, "k = 2")
    assert table.scan().to_pylist() == [{"k": 2, "v": "new"}]


def test_files_are_put_together_as_those_of_rows(table: kt.Table) -> None:
    done = table.compact(full=True)
    assert (done.files_before, done.files_after) == (2, 1)
    assert sorted(row["k"] for row in table.scan().to_pylist()) == [1, 2]


def test_files_of_later_writes_are_told_as_inserts(table: kt.Table) -> None:
    told = table.changes(1, 2).to_arrow().to_pylist()
    assert [(row["_row_kind"], row["k"]) for row in told] == [("+I", 2)]


def test_check_of_the_table_finds_a_key_that_comes_twice(table: kt.Table) -> None:
    assert table.verify().is_healthy
    table.write(ROWS[:1])
    (found,) = table.verify().findings
    assert "key" in found.what, found
