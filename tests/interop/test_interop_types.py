"""Every type, as value, as key and as partition, between Keytide and the other engines.

What an engine cannot do is listed here with how it ends, and stays listed only while it is so.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from interop_judges import (
    Judge,
    Outcome,
    Pypaimon,
    assert_reads_alike,
    assert_same,
    canonical,
    difference,
    expecting,
    refusal,
    write_with,
)
from interop_values import KEY_VALUES, VALUES, arrow_rows, field

import keytide as kt

Known = dict[tuple[str, str], Outcome]

UNREADABLE_IN_ONE_FILE: Known = {
    ("pypaimon", "MULTISET<STRING>"): refusal("ValueError: Unsupported data type: MULTISET"),
}
UNREADABLE_IN_MERGED_FILES: Known = {
    **UNREADABLE_IN_ONE_FILE,
    # Its merge keeps values as Python datetimes, which have no nanoseconds.
    ("pypaimon", "TIMESTAMP(9)"): difference("pypaimon misses"),
    ("pypaimon", "TIMESTAMP(9) WITH LOCAL TIME ZONE"): difference("pypaimon misses"),
    ("pypaimon", "ARRAY<TIMESTAMP(9)>"): difference("pypaimon misses"),
}
UNWRITABLE: Known = {
    ("pypaimon", "MULTISET<STRING>"): refusal("ValueError: Unsupported data type: MULTISET"),
    # It marks map keys as optional, which Parquet forbids.
    ("pypaimon-rust", "MULTISET<STRING>"): Outcome(kt.DataError, "keys must be non-nullable"),
}
NO_KEY: Known = {
    # The keys of its rows are cut to microseconds.
    ("pypaimon", "TIMESTAMP(9)"): difference("Keytide misses"),
    ("pypaimon", "TIMESTAMP(9) WITH LOCAL TIME ZONE"): difference("Keytide misses"),
    # It holds NaN equal to any number that is in one bucket with it.
    ("java-1.4.2", "FLOAT"): difference("Keytide misses"),
}
_NO_PARTITION = "type is not supported as partition key"
# It names folders as Python prints the values; the manifest does not hold the name.
_OTHER_FOLDER = Outcome(kt.DataError, "is missing")
NO_PARTITION: Known = {
    **{
        ("java-1.4.2", sql_type): refusal("NullPointerException")
        for sql_type in ("BINARY(2)", "VARBINARY(9)", "BYTES")
    },
    # It names folders by where the bytes lie in memory, and finds them no more itself.
    **{
        ("java-2.0.0", sql_type): _OTHER_FOLDER
        for sql_type in ("BINARY(2)", "VARBINARY(9)", "BYTES")
    },
    **{
        ("pypaimon-rust", sql_type): refusal(_NO_PARTITION)
        for sql_type in ("FLOAT", "DOUBLE", "BINARY(2)", "VARBINARY(9)", "BYTES")
    },
    **{
        ("pypaimon", sql_type): _OTHER_FOLDER
        for sql_type in ("FLOAT", "DOUBLE", "BINARY(2)", "VARBINARY(9)", "BYTES")
    },
    ("pypaimon", "TIMESTAMP(9)"): difference("Keytide misses"),
    ("pypaimon", "TIMESTAMP(9) WITH LOCAL TIME ZONE"): difference("Keytide misses"),
}
FOLDER_NAME_LENGTH_MAX = 80


def value_table(lake: kt.Lake, sql_type: str) -> kt.Table:
    return lake.create_table("db.t", [field("id", "INT NOT NULL"), field("v", sql_type)], ["id"])


def value_rows(table: kt.Table, sql_type: str, start: int = 0) -> pa.Table:
    values = VALUES[sql_type]
    ids = range(start, len(values))
    return arrow_rows(table.schema, {"id": ids, "v": values[start:]})


def assert_versions_meet(judge: Judge, table: kt.Table, keys: dict[str, list[object]]) -> None:
    """Assert that a version of the judge's replaces Keytide's version of each key."""
    count = len(next(iter(keys.values())))
    first, second = (arrow_rows(table.schema, {**keys, "v": [n] * count}) for n in (1, 2))
    table.write(first)
    write_with(judge, table, second)
    found = canonical(table.scan().to_arrow(), table.schema)
    assert_same(canonical(second, table.schema), found, "Keytide")
    assert_reads_alike(judge, table)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("sql_type", VALUES)
def test_interop_value_in_one_file_and_in_merged_files_reads_alike(
    judge: Judge, lake: kt.Lake, sql_type: str
) -> None:
    table = value_table(lake, sql_type)
    table.write(value_rows(table, sql_type))
    table.write(value_rows(table, sql_type, start=1))
    with expecting(UNREADABLE_IN_ONE_FILE.get((judge.name, sql_type))):
        assert_reads_alike(judge, table, snapshot_id=1)
    with expecting(UNREADABLE_IN_MERGED_FILES.get((judge.name, sql_type))):
        assert_reads_alike(judge, table)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("sql_type", VALUES)
def test_interop_value_written_by_judge_reads_as_written(
    judge: Judge, lake: kt.Lake, sql_type: str
) -> None:
    table = value_table(lake, sql_type)
    rows = value_rows(table, sql_type)
    with expecting(UNWRITABLE.get((judge.name, sql_type))):
        write_with(judge, table, rows)
        found = canonical(table.scan().to_arrow(), table.schema)
        assert_same(canonical(rows, table.schema), found, "Keytide")


@pytest.mark.one_in(14)
@pytest.mark.parametrize("sql_type", KEY_VALUES)
def test_interop_versions_of_key_meet_in_one_bucket(
    judge: Judge, lake: kt.Lake, sql_type: str
) -> None:
    columns = [field("k", f"{sql_type} NOT NULL"), field("v", "INT")]
    table = lake.create_table("db.t", columns, ["k"], options={"bucket": "5"})
    with expecting(NO_KEY.get((judge.name, sql_type))):
        assert_versions_meet(judge, table, {"k": KEY_VALUES[sql_type]})


@pytest.mark.one_in(14)
@pytest.mark.parametrize("sql_type", KEY_VALUES)
def test_interop_versions_of_key_meet_in_one_partition(
    judge: Judge, lake: kt.Lake, sql_type: str
) -> None:
    columns = [field("p", f"{sql_type} NOT NULL"), field("k", "INT NOT NULL"), field("v", "INT")]
    table = lake.create_table("db.t", columns, ["p", "k"], ["p"])
    parts = [v for v in KEY_VALUES[sql_type] if len(str(v)) <= FOLDER_NAME_LENGTH_MAX]
    with expecting(NO_PARTITION.get((judge.name, sql_type))):
        assert_versions_meet(judge, table, {"p": parts, "k": [1] * len(parts)})


@pytest.mark.parametrize("sql_type", ["TIMESTAMP(9)", "TIMESTAMP(9) WITH LOCAL TIME ZONE"])
def test_interop_pypaimon_keeps_microseconds_of_merged_nanoseconds(
    pypaimon: Pypaimon, lake: kt.Lake, sql_type: str
) -> None:
    table = value_table(lake, sql_type)
    table.write(value_rows(table, sql_type))
    table.write(value_rows(table, sql_type))
    ours = table.scan().to_arrow()
    cut = pc.floor_temporal(ours["v"], unit="microsecond").cast(ours.schema.field("v").type)
    expected = ours.set_column(1, ours.schema.field("v"), cut)
    found = canonical(pypaimon.read(table.name), table.schema)
    assert_same(canonical(expected, table.schema), found, "pypaimon")
