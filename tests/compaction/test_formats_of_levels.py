"""`file.format.per.level`: files of each level have the format that is asked for there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.definition.schema_evolution import SetOption
from table_rows import by_key

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})
LEVELS = {"file.format.per.level": "0:avro, 5:orc", "num-levels": "6"}


def files(table: kt.Table) -> dict[int, set[str]]:
    """The formats of the live files of each level."""
    found: dict[int, set[str]] = {}
    for entry in table.stored.newest_files().entries:
        found.setdefault(entry.file.level, set()).add(entry.file.file_name.rsplit(".", 1)[-1])
    return found


def new_table(warehouse: str, options: Mapping[str, str]) -> kt.Table:
    return kt.connect(warehouse).create_table("t", SCHEMA, ["k"], options={**LEVELS, **options})


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"deletion-vectors.enabled": "true"},
        {"changelog-producer": "lookup"},
        {"merge-engine": "partial-update"},
        {"sequence.field": "v", "version.retention": "1 h"},
    ],
    ids=["plain", "vectors", "lookup", "partial", "versions"],
)
def test_each_level_has_its_format(warehouse: str, options: dict[str, str]) -> None:
    table = new_table(warehouse, options)
    model: dict[int, Any] = {}
    for n in range(7):
        rows = [{"k": k, "v": f"{n}-{k}"} for k in range(n, n + 5)]
        table.write(rows)
        model |= {row["k"]: row["v"] for row in rows}
    expected = {0: {"avro"}, 5: {"orc"}}
    found = files(table)
    assert found == {level: expected.get(level, {"parquet"}) for level in found}
    table.compact(full=True)
    found = files(table)
    assert found[5] == {"orc"}
    assert found == {level: expected.get(level, {"parquet"}) for level in found}
    assert by_key(table.scan().to_arrow()) == model


def test_lone_file_is_written_anew_where_its_level_asks_for_it(warehouse: str) -> None:
    table = new_table(warehouse, {"write-only": "true"})
    table.write([{"k": 1, "v": "a"}])
    assert files(table) == {0: {"avro"}}
    table.compact(full=True)
    assert files(table) == {5: {"orc"}}
    table.alter(SetOption("file.format.per.level", "5:parquet"))
    table.write([{"k": 2, "v": "b"}])
    table.compact(full=True)
    assert files(table)[5] == {"parquet"}
    assert table.verify().findings == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"file.format.per.level": "0:csv"}, "found 'csv' for level 0, expected one of avro"),
        ({"file.format.per.level": "avro"}, "levels with a value for each"),
        ({"publish": "delta"}, "other readers support only Parquet files"),
        ({"file.compression": "lz4"}, "'zstd' or 'snappy'"),
    ],
)
def test_formats_that_cannot_be_are_refused(
    warehouse: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(kt.KeytideError, match=message):
        new_table(warehouse, options)


def test_tables_without_levels_say_that_it_has_no_effect(lake: kt.Lake) -> None:
    with pytest.warns(UserWarning, match="'file.format.per.level' has no effect"):
        table = lake.create_table("t", SCHEMA, [], options={"file.format.per.level": "0:avro"})
    table.write([{"k": 1, "v": "a"}])
    assert files(table) == {0: {"parquet"}}
