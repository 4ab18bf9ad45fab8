"""AUTO CDC INTO as a statement: the words of pipelines, carried out once over what is there."""

from __future__ import annotations

import pytest

import keytide as kt
from table_rows import answer

FEED = """
CREATE TABLE feed (n BIGINT, k BIGINT, Name STRING, op STRING, s BIGINT,
                   PRIMARY KEY (n) NOT ENFORCED);
INSERT INTO feed VALUES
    (1, 1, 'a', 'u', 1), (2, 1, 'b', 'u', 3), (3, 1, NULL, 'd', 6), (4, 1, 'late', 'u', 4),
    (5, 2, 'x', 'u', 2), (6, 2, NULL, 'u', 7), (7, NULL, NULL, 't', 2)
"""
HISTORY = [("a", 1, 3), ("b", 3, 4), ("late", 4, 6), ("x", 2, None)]


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    lake = kt.connect(warehouse)
    lake.sql(FEED)
    return lake


@pytest.mark.one_in(14)
@pytest.mark.parametrize("head", ["", "CREATE FLOW kept AS ", "create flow `kept` as\n"])
@pytest.mark.parametrize("source", ["feed", "STREAM(feed)", "stream feed", "(SELECT * FROM feed)"])
def test_newest_rows_of_a_feed(lake: kt.Lake, head: str, source: str) -> None:
    done = lake.sql(
        f"{head}AUTO CDC INTO newest FROM {source} KEYS (K) IGNORE NULL UPDATES "
        f"APPLY AS DELETE WHEN op = 'd' APPLY AS TRUNCATE WHEN op = 't' AND s < 5 "
        f"SEQUENCE BY s COLUMNS * EXCEPT (n, op) STORED AS SCD TYPE 1"
    )
    assert done.row_count == 5  # one of those before the truncation is no row
    assert answer(lake, "SELECT k, name, s FROM newest ORDER BY k") == [(2, "x", 7)]
    author = lake.table("newest").snapshots()[-1].commit_user
    assert author.startswith("kept-") == bool(head)


def test_history_of_a_feed_in_the_older_words(lake: kt.Lake) -> None:
    lake.sql(
        "APPLY CHANGES INTO old.history FROM (SELECT *, s AS t FROM feed WHERE op <> 't' AND s < 7)"
        " KEYS (k) APPLY AS DELETE WHEN op = 'd' SEQUENCE BY STRUCT(s, t) COLUMNS (k, name) "
        "STORED AS SCD TYPE 2 TRACK HISTORY ON (name)"
    )
    names = "Name, __START_AT_s, __END_AT_s"
    assert answer(lake, f"SELECT {names} FROM old.history ORDER BY k, __START_AT_s") == HISTORY


def test_a_flow_of_one_version_of_a_feed_and_its_repetition(lake: kt.Lake) -> None:
    version = "feed /*+ OPTIONS('scan.snapshot-id' = '1') */"
    text = f"AUTO CDC INTO t FROM {version} KEYS (n) SEQUENCE BY s COLUMNS (n, name)"
    assert lake.sql(text).row_count == 7
    assert lake.sql(text).row_count == 7
    assert lake.table("t").scan().count() == 7


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("KEYS (k)", "AUTO CDC requires SEQUENCE BY a column, found the end"),
        ("SEQUENCE BY s", "expected|KEYS"),
        ("KEYS (k) SEQUENCE BY s SEQUENCE BY n", "SEQUENCE BY is given twice"),
        ("KEYS (k) SEQUENCE BY s COLUMNS (k) COLUMNS * EXCEPT (s)", "cannot be combined"),
        ("KEYS (k) SEQUENCE BY s STORED AS SCD TYPE 3", "expected SCD TYPE 1 or 2"),
        ("KEYS (nope) SEQUENCE BY s", "has no column 'nope'"),
        ("KEYS (k) SEQUENCE BY s WITH ('bucket' = '2')", "expected KEYS, IGNORE NULL UPDATES"),
        ("KEYS (k) APPLY AS DELETE WHEN SEQUENCE BY s", "expected a condition"),
        ("KEYS (k) APPLY AS DELETE WHEN gone = 1 SEQUENCE BY s", "gone"),
        ("KEYS (k) APPLY AS TRUNCATE WHEN s = 2 SEQUENCE BY s STORED AS SCD TYPE 2", "type 1"),
        ("KEYS (k) SEQUENCE BY s TRACK HISTORY ON (name)", "SCD type 1 keeps no history"),
    ],
)  # fmt: skip
def test_what_is_no_flow_is_refused_and_makes_no_table(lake: kt.Lake, rest: str, says: str) -> None:
    with pytest.raises(kt.KeytideError, match=says):
        lake.sql(f"AUTO CDC INTO t FROM feed {rest}")
    with pytest.raises(kt.InvalidError, match="LIVE is not a database"):
        lake.sql(f"APPLY CHANGES INTO LIVE.t FROM feed {rest}")
    assert lake.tables() == ["default.feed"]
