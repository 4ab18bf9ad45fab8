"""What a write tells of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.commit.transaction import Transaction
from overtaking import overtaken

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})
OPTIONS = {"bucket": "2", "write-only": "true", "commit.min-retry-wait": "1 ms"}


@pytest.fixture
def table(lake: kt.Lake) -> kt.Table:
    return lake.create_table("t", SCHEMA, ["k"], options=OPTIONS)


def new_rows(*keys: int) -> list[dict[str, int]]:
    return [{"k": k, "v": k} for k in keys]


def test_bytes_are_those_of_the_files_that_were_committed(table: kt.Table) -> None:
    result = table.write(new_rows(*range(20)))
    stored = [path.stat().st_size for path in Path(table.uri).glob("bucket-*/*.parquet")]
    assert (result.files, result.bytes) == (len(stored), sum(stored))
    assert len(stored) == 2


@pytest.mark.parametrize("others", [0, 1, 3])
def test_retries_count_the_writers_that_came_first(table: kt.Table, others: int) -> None:
    acts = [lambda n=n: table.write(new_rows(n)) for n in range(others)]
    assert overtaken(table, *acts).write(new_rows(9)).retries == others
    assert table.scan().count() == others + 1


def test_milliseconds_last_until_the_commit(
    table: kt.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("keytide.commit.transaction.time.monotonic", lambda: now[0])
    settle = Transaction._settle

    def slowly(transaction: Transaction, *args: Any) -> Any:
        now[0] += 1.234
        return settle(transaction, *args)

    monkeypatch.setattr(Transaction, "_settle", slowly)
    assert table.write(new_rows(1)).milliseconds == 1234


def test_no_rows_and_a_repeated_write_commit_nothing(table: kt.Table) -> None:
    nothing = table.write(SCHEMA.empty_table())
    first = table.write(new_rows(1), commit_user="u", commit_identifier=1)
    again = table.write(new_rows(1), commit_user="u", commit_identifier=1)
    assert (nothing.bytes, again.bytes, again.is_new) == (0, 0, False)
    assert first.bytes > 0
