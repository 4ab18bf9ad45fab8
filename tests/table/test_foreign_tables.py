"""Tables of other engines whose data files lie elsewhere: a file that is gone is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from publishing import publish

import keytide as kt
from keytide.table.commit.author import Author
from keytide.table.commit.change import Change
from keytide.table.write.task import Written
from keytide.table.write.writable import writable_view

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
READS = {
    "to_arrow": lambda table: table.scan().to_arrow(),
    "to_polars": lambda table: table.scan().to_polars(),
    "to_batches": lambda table: list(table.scan().to_batches()),
    "count": lambda table: table.scan().count(),
    "condition": lambda table: table.scan(where="k = 1").to_pylist(),
}


def make_table(warehouse: str) -> kt.Table:
    table = kt.connect(warehouse).create_table("t", SCHEMA, ["k"])
    table.write([{"k": 1, "v": "a"}])
    return table


@pytest.mark.parametrize("name", READS)
def test_missing_data_file_outside_of_the_table_is_named(
    name: str, warehouse: str, tmp_path: Path
) -> None:
    table = make_table(warehouse)
    live = table.stored.newest_files()
    (entry,) = live.entries
    outside = f"file://{tmp_path}/elsewhere/data-1.parquet"
    file = replace(
        entry.file, file_name="data-1.parquet", external_path=outside,
        min_sequence_number=9, max_sequence_number=9,
    )  # fmt: skip
    change = Change(Written((replace(entry, file=file),)), Author.fresh())
    publish(table, writable_view(table.stored), change, live)
    with pytest.raises(kt.DataError, match=r"elsewhere/data-1\.parquet"):
        READS[name](table)
