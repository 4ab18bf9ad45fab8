"""Tables in which one task has to see all rows of a bucket leave none of them apart."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from keytide.errors import InvalidError

SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.int64()), ("v", pa.string())])
APART = {"write.distribution": "none"}
REFUSED = [
    {"bucket": "-1"},
    {"bucket": "2", "upsert.mode": "full"},
    {"bucket": "2", "write.count-out-of-order": "true"},
    {"bucket": "2", "sequence.field": "ts", "sequence.auto-padding": "row-kind-flag"},
]


@pytest.mark.parametrize("options", REFUSED, ids=lambda options: [*options][-1])
def test_rows_that_one_task_has_to_see_cannot_stay_apart(
    options: dict[str, str], tmp_path: Path
) -> None:
    lake = kt.connect(tmp_path)
    named = [*options][-1]
    with pytest.raises(InvalidError, match=rf"'write.distribution' = 'none' .*'{named}'"):
        lake.create_table("t", SCHEMA, ["id"], options=options | APART)
    table = lake.create_table("t", SCHEMA, ["id"], options=options)
    with pytest.raises(InvalidError, match=r"set it to 'auto' or 'hash'"):
        table.alter(*(SetOption(*pair) for pair in APART.items()))


@pytest.mark.parametrize("key", [["id"], []])
def test_all_other_tables_take_it(key: list[str], tmp_path: Path) -> None:
    bucketed = {"bucket": "2"} if key else {"bucket": "2", "bucket-key": "id"}
    table = kt.connect(tmp_path).create_table("t", SCHEMA, key, options=bucketed | APART)
    assert table.stored.schema.options["write.distribution"] == "none"
