"""One change said by DELETE or UPDATE and by a MERGE: taken by both or refused by both."""

from __future__ import annotations

from typing import Any

import pytest

import keytide as kt
from table_rows import answer

# A DELETE or an UPDATE of the row with k = 1, and MERGEs that ask for the same.
CHANGES = {
    "delete": ("DELETE FROM u WHERE k = 1", "DELETE", [(2, 2, 3)]),
    "update": ("UPDATE u SET v = 9 WHERE k = 1", "UPDATE SET v = 9", [(1, 9, 3), (2, 2, 3)]),
    "null": ("UPDATE u SET v = NULL WHERE k = 1", "UPDATE SET v = NULL", [(1, None, 3), (2, 2, 3)]),
    "order": ("UPDATE u SET g = 4 WHERE k = 1", "UPDATE SET g = 4", [(1, 2, 4), (2, 2, 3)]),
    "older": ("UPDATE u SET g = 2 WHERE k = 1", "UPDATE SET g = 2", [(1, 2, 2), (2, 2, 3)]),
    "key": ("UPDATE u SET k = 5 WHERE k = 1", "UPDATE SET k = 5", [(2, 2, 3), (5, 2, 3)]),
    "both": ("UPDATE u SET k = 5, v = 9 WHERE k = 1", "UPDATE SET k = 5, v = 9",
             [(2, 2, 3), (5, 9, 3)]),
    "kind": ("UPDATE u SET r = '-D' WHERE k = 1", "UPDATE SET r = '-D'", [(1, 2, 3), (2, 2, 3)]),
}  # fmt: skip
MERGES = [
    "MERGE INTO u USING (SELECT 1 AS x) s ON u.k = s.x WHEN MATCHED THEN {}",
    "MERGE INTO u USING (SELECT 2 AS x) s ON u.k = s.x WHEN NOT MATCHED BY SOURCE THEN {}",
    "MERGE INTO u USING (SELECT 1 AS x) s ON u.k = s.x WHEN MATCHED AND s.x > 1 THEN {} "
    "WHEN MATCHED THEN {} WHEN NOT MATCHED THEN INSERT (k) VALUES (s.x)",
]
ENGINES = {
    "deduplicate": "",
    "first-row": "",
    "partial-update": "",
    "partial-update removing": "'partial-update.remove-record-on-delete' = 'true'",
    "partial-update in groups": "'fields.g.sequence-group' = 'v'",
    "partial-update in removing groups": "'fields.g.sequence-group' = 'v', "
    "'partial-update.remove-record-on-sequence-group' = 'g'",
    "aggregation": "'fields.v.aggregate-function' = 'sum'",
    "aggregation removing": "'fields.v.aggregate-function' = 'sum', "
    "'aggregation.remove-record-on-delete' = 'true'",
}
OPTIONS = [
    "", "'ignore-delete' = 'true'", "'rowkind.field' = 'r'", "'sequence.field' = 'g'",
    "'sequence.field' = 'g', 'sequence.field.sort-order' = 'descending'",
    "'watermark.key' = 'g', 'upsert.dml-watermark' = 'explicit'",
    "'deletion-vectors.enabled' = 'true'", "'changelog-producer' = 'lookup'",
    "'changelog-producer' = 'input'",
]  # fmt: skip


def refilled(lake: kt.Lake, key: str, options: str) -> None:
    lake.sql(f"DROP TABLE IF EXISTS u; CREATE TABLE u (k INT {key}, v INT, g INT, r STRING) "
             f"WITH ({options})")  # fmt: skip
    lake.sql("INSERT INTO u VALUES (1, 2, 3, '+I'), (2, 2, 3, '+I')")


def rows(lake: kt.Lake) -> list[tuple[Any, ...]]:
    return answer(lake, "SELECT k, v, g FROM u ORDER BY k")


def outcome(lake: kt.Lake, text: str) -> tuple[str, list[tuple[Any, ...]]]:
    """How a statement is refused, or nothing, and the rows after it."""
    try:
        lake.sql(text)
    except (kt.UnsupportedError, kt.InvalidError) as error:
        return f"{type(error).__name__}: {error}", rows(lake)
    return "", rows(lake)


def hold_alike(lake: kt.Lake, key: str, options: str, change: str, merges: list[str]) -> None:
    plain, action, changed = CHANGES[change]
    refilled(lake, key, options)
    before = rows(lake)
    refused, after = outcome(lake, plain)
    assert after == (before if refused else changed)
    for merge in merges:
        if not refused:
            refilled(lake, key, options)
        assert outcome(lake, merge.replace("{}", action)) == (refused, after)
    if "UnsupportedError" in refused:
        assert outcome(lake, f"EXPLAIN {merges[0].format(action)}")[0] == refused


TABLES = [
    pytest.param(engine, given, marks=[] if is_usual else [pytest.mark.soak])
    for engine in ENGINES
    for given in OPTIONS
    for is_usual in [given == "" or (engine == "deduplicate" and "changelog" not in given)]
]


@pytest.mark.one_in(14)
@pytest.mark.parametrize(("engine", "options"), TABLES)
@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_merge_is_refused_or_carried_out_as_the_plain_statement(
    lake: kt.Lake, engine: str, options: str
) -> None:
    given = ", ".join(filter(None, [f"'merge-engine' = '{engine.split()[0]}'",
                                    ENGINES[engine], options]))  # fmt: skip
    try:
        refilled(lake, "PRIMARY KEY NOT ENFORCED", given)
    except kt.KeytideError:
        pytest.skip("no table has these options together")
    of_all = ("delete", "update", "null", "key")
    for change in CHANGES if engine == "deduplicate" else of_all:
        merges = MERGES if change == "delete" else MERGES[:1]
        hold_alike(lake, "PRIMARY KEY NOT ENFORCED", given, change, merges)


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize("options", ["'bucket' = '-1'", "'rowkind.field' = 'r'",
                                     "'deletion-vectors.enabled' = 'true'"])  # fmt: skip
def test_merge_of_an_append_table_is_too(lake: kt.Lake, options: str) -> None:
    for change in CHANGES:
        hold_alike(lake, "", options, change, MERGES)


@pytest.mark.parametrize("text", [
    "DELETE FROM u WHERE k = 7",
    "MERGE INTO u USING (SELECT 7 AS x) s ON u.k = s.x WHEN MATCHED THEN DELETE",
    "MERGE INTO u USING (SELECT 7 AS x) s ON u.k = s.x WHEN MATCHED THEN UPDATE SET k = 8",
])  # fmt: skip
def test_change_that_a_table_cannot_store_is_refused_without_rows_too(
    lake: kt.Lake, text: str
) -> None:
    refilled(lake, "PRIMARY KEY NOT ENFORCED", "'ignore-delete' = 'true'")
    with pytest.raises(kt.UnsupportedError, match="'ignore-delete' drops deletes"):
        lake.sql(text)


@pytest.mark.parametrize(("kind", "count"), [("'+I'", 1), ("NULL", 1), ("'+U'", 0), ("'-D'", 0)])
def test_merge_inserts_no_row_that_calls_itself_something_else(
    lake: kt.Lake, kind: str, count: int
) -> None:
    refilled(lake, "PRIMARY KEY NOT ENFORCED", "'rowkind.field' = 'r'")
    text = (f"MERGE INTO u USING (SELECT 7 AS x) s ON u.k = s.x "
            f"WHEN NOT MATCHED THEN INSERT (k, r) VALUES (s.x, {kind})")  # fmt: skip
    refused, after = outcome(lake, text)
    assert (len(after) - 2, bool(refused)) == (count, not count)


@pytest.mark.one_in(14)
@pytest.mark.spark
@pytest.mark.parametrize("change", ["delete", "key"])
@pytest.mark.parametrize("given", [
    "'ignore-delete' = 'true'",
    "'merge-engine' = 'partial-update', 'fields.g.sequence-group' = 'v'",
])  # fmt: skip
def test_merge_on_spark_is_refused_as_the_plain_statement(
    warehouse: str, spark: Any, change: str, given: str
) -> None:
    lake = kt.connect(warehouse, spark=spark)
    hold_alike(lake, "PRIMARY KEY NOT ENFORCED", given, change, MERGES[:1])
