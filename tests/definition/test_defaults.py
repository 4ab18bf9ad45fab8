"""Default values: on reading, after the merge; and on writing."""

from __future__ import annotations

import pyarrow as pa
import pytest

import keytide as kt
from keytide.definition.schema_evolution import RemoveOption
from new_tables import fields_of
from table_rows import rows

SCHEMA = fields_of("k INT, n INT, s STRING, d DATE, m DECIMAL(5, 2), z TIMESTAMP_LTZ(3)")
DEFAULTS = {
    "fields.n.default-value": "7",
    "fields.s.default-value": "none",
    "fields.d.default-value": "2026-01-02",
    "fields.m.default-value": "1.50",
    "fields.z.default-value": "2026-01-02 03:04:05",
}


@pytest.fixture
def table(warehouse: str) -> kt.Table:
    options = {"merge-engine": "partial-update", "bucket": "2", **DEFAULTS}
    table = kt.connect(warehouse).create_table("t", SCHEMA, ["k"], options=options)
    table.write([{"k": 1, "n": 5}, {"k": 2, "s": "x"}])
    table.write([{"k": 1, "s": "y"}, {"k": 3}])
    return table


def test_readers_see_the_default_where_nothing_was_written(table: kt.Table) -> None:
    assert rows(table.scan(["k", "n", "s"])) == [(1, 5, "y"), (2, 7, "x"), (3, 7, "none")]
    row = table.get(3)
    assert row is not None
    assert [str(row[name]) for name in ("d", "m", "z")] == [
        "2026-01-02",
        "1.50",
        "2026-01-02 03:04:05+00:00",
    ]


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        ("n = 7", [2, 3]),
        ("n IS NULL", []),
        ("n <> 7", [1]),
        ("s = 'none' AND k > 1", [3]),
        ("k = 2 AND n = 5", []),
        ("m = 1.5 AND d < '2027-01-01'", [1, 2, 3]),
    ],
)
def test_conditions_see_the_default_and_files_are_not_dropped_for_it(
    table: kt.Table, where: str, keys: list[int]
) -> None:
    assert rows(table.scan(["k"], where)) == [(key,) for key in keys]
    assert table.scan(where=where).count() == len(keys)


def test_stored_rows_keep_their_null(table: kt.Table) -> None:
    table.alter(RemoveOption("fields.n.default-value"))
    assert rows(table.scan(["k", "n"])) == [(1, 5), (2, None), (3, None)]


def test_default_of_a_column_is_written_instead_of_null(warehouse: str) -> None:
    fields = [
        kt.Field(-1, "k", kt.parse_sql_type("INT")),
        kt.Field(-1, "n", kt.parse_sql_type("INT"), default_value="5"),
    ]
    table = kt.connect(warehouse).create_table("t", fields, ["k"])
    table.write(pa.table({"k": [1, 2], "n": pa.array([None, 3], pa.int32())}))
    assert rows(table.scan(where="n = 5")) == [(1, 5)]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("fields.n.default-value", "seven", "'seven', which is not a value of INT"),
        ("fields.k.default-value", "1", "primary key column"),
        ("fields.d.default-value", "2026-02-30", "not a value of DATE"),
    ],
)
def test_default_that_cannot_be_is_refused(
    lake: kt.Lake, key: str, value: str, message: str
) -> None:
    with pytest.raises(kt.InvalidError, match=message):
        lake.create_table("t", SCHEMA, ["k"], options={key: value})
    assert lake.tables() == []
