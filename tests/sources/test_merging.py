"""What versions become that others wrote: the laws, ties, conditions, memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from external_history import HISTORIES, History, register
from keytide.snapshot.metadata import TableMetadata
from keytide.sources import version_merge
from table_rows import row_set

SCHEMA = pa.schema([("k", pa.int32()), ("w", pa.int64()), ("d", pa.bool_()), ("v", pa.string())])
KEYS: dict[str, Any] = {"primary_key": ["k"], "watermark_key": ["w"], "tombstone_key": "d"}


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> History:
    register(monkeypatch)
    HISTORIES["h"] = History(SCHEMA)
    return HISTORIES["h"]


def define(lake: kt.Lake, **more: Any) -> kt.ExternalTable:
    given = {"format": "history", "location": "test://h", **KEYS, **more}
    return lake.create_external_table("e", **given)


# -- equal watermarks ------------------------------------------------------------------------------


def test_of_equal_watermarks_the_later_commit_wins(lake: kt.Lake, history: History) -> None:
    history.commit((1, 7, True, None), (2, 7, None, "b"))
    history.commit((1, 7, None, "a"), (2, 7, True, None))
    assert row_set(define(lake).scan()) == {(1, 7, None, "a")}


def test_of_equal_watermarks_in_one_commit_the_later_row_wins(
    lake: kt.Lake, history: History
) -> None:
    history.commit((1, 7, None, "z"), (1, 7, None, "a"))
    assert row_set(define(lake).scan()) == {(1, 7, None, "a")}


def test_in_a_commit_that_was_rewritten_a_tombstone_wins_and_then_the_larger_row(
    lake: kt.Lake, history: History
) -> None:
    history.commit(
        (1, 7, True, None), (1, 7, None, "b"), (2, 7, None, "y"), (2, 7, None, "x"), rewritten=True
    )
    assert row_set(define(lake).scan()) == {(2, 7, None, "y")}
    history.commit((1, 7, None, "later"))
    assert (1, 7, None, "later") in row_set(define(lake, exists_ok=True).scan())


def test_larger_row_is_the_same_in_whatever_order_columns_are_asked_for(
    lake: kt.Lake, history: History
) -> None:
    history.commit((1, 7, None, "z"), (1, 7, False, "a"), rewritten=True)
    table = define(lake)
    assert row_set(table.scan()) == {(1, 7, False, "a")}
    assert row_set(table.scan(["v", "d", "w", "k"])) == {("a", False, 7, 1)}


def test_tombstone_of_a_rewritten_commit_wins_over_larger_values(
    lake: kt.Lake, history: History
) -> None:
    history.commit((1, 7, None, "gone"), (1, 7, None, "zzz"), rewritten=True)
    table = define(lake, tombstone_key="v", tombstone_string_key_value="gone")
    assert row_set(table.scan()) == set()


def test_tombstone_wins_over_later_commits_where_that_is_asked_for(
    lake: kt.Lake, history: History
) -> None:
    history.commit((1, 7, True, None))
    history.commit((1, 7, None, "a"))
    table = define(lake, options={"upsert.on-tie": "tombstone-wins"})
    assert row_set(table.scan()) == set()


def test_tie_is_refused_where_that_is_asked_for_and_rows_differ(
    lake: kt.Lake, history: History
) -> None:
    history.commit((1, 7, None, "a"), (2, 7, None, "b"), (2, 6, None, "c"))
    history.commit((1, 7, None, "a"))
    table = define(lake, options={"upsert.on-tie": "error"})
    assert row_set(table.scan()) == {(1, 7, None, "a"), (2, 7, None, "b")}
    history.commit((2, 7, None, "other"))
    with pytest.raises(kt.InvalidError, match=r"default\.e: key k = 2 has different versions"):
        table.scan().to_arrow()


def test_tie_of_older_versions_is_no_error(lake: kt.Lake, history: History) -> None:
    history.commit((1, 1, None, "a"), (1, 1, None, "b"), (1, 2, None, "c"))
    table = define(lake, options={"upsert.on-tie": "error"})
    assert row_set(table.scan()) == {(1, 2, None, "c")}


def test_without_a_watermark_the_later_commit_wins(lake: kt.Lake, history: History) -> None:
    history.commit((1, 9, None, "a"))
    history.commit((1, 1, None, "b"))
    table = define(lake, watermark_key=[], tombstone_key=None)
    assert row_set(table.scan()) == {(1, 1, None, "b")}


def test_null_keys_are_one_key(lake: kt.Lake, history: History) -> None:
    history.commit((None, 1, None, "a"), (1, 1, None, "b"), (None, 2, None, "c"))
    table = define(lake)
    assert row_set(table.scan()) == {(None, 2, None, "c"), (1, 1, None, "b")}
    assert table.get(None) == {"k": None, "w": 2, "d": None, "v": "c"}


# -- conditions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["scan", "sql"])
def test_only_conditions_on_the_key_are_asked_before_the_merge(
    lake: kt.Lake, history: History, way: str
) -> None:
    history.commit((1, 1, None, "red"), (2, 1, None, "red"), (3, 1, None, "red"))
    history.commit((1, 200, None, "blue"), (3, 2, True, None))
    table = define(lake)
    history.asked.clear()
    where = "v = 'red' AND w <= 150 AND k < 3 AND d IS NULL"
    found = table.scan(where=where) if way == "scan" else lake.sql(f"SELECT * FROM e WHERE {where}")
    # Key 1 was red once, and key 3 had no tombstone once: neither comes back.
    assert row_set(found) == {(2, 1, None, "red")}
    assert history.asked_columns == {"k"}


def test_limit_count_and_extremes_are_those_of_merged_rows(lake: kt.Lake, history: History) -> None:
    history.commit((1, 1, None, "z"), (2, 1, None, "a"))
    history.commit((1, 2, None, "b"), (2, 2, True, None))
    define(lake)
    found = lake.sql("SELECT count(*) AS n, max(v) AS high, max(w) AS fresh FROM e")
    assert found.to_pylist() == [{"n": 1, "high": "b", "fresh": 2}]


def test_columns_that_decide_are_read_though_nobody_asks_for_them(
    lake: kt.Lake, history: History
) -> None:
    history.commit((1, 2, None, "a"), (2, 2, None, "b"))
    history.commit((1, 1, None, "late"), (2, 3, True, None))
    assert row_set(define(lake).scan(["v"])) == {("a",)}


def test_columns_that_decide_nothing_are_not_read_where_the_order_is_known(
    lake: kt.Lake, history: History
) -> None:
    history.commit((1, 2, None, "a"))
    table = define(lake)
    history.read.clear()
    assert table.scan().count() == 1
    assert {*history.read} == {("k", "w", "d")}


WIDE = pa.schema([("k", pa.int32()), ("a", pa.string()), ("w", pa.int64()), ("b", pa.string())])


def test_of_rows_that_tie_those_columns_are_shown_that_belong_together(
    lake: kt.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    history = HISTORIES["h"] = History(WIDE)
    # Of keys 1 and 2 column a decides, which need not be asked for; key 3 has one row twice.
    rows_ = [(1, "z", 7, "x"), (1, "a", 7, "y"), (2, "z", 7, "y"), (2, "a", 7, "x"),
             (3, "m", 7, "m"), (3, "m", 7, "m"), (4, "q", 7, "q")]  # fmt: skip
    history.commit(*rows_, rewritten=True)
    table = define(lake, tombstone_key=None)
    history.read.clear()
    expected = {1: ("z", "x"), 2: ("z", "y"), 3: ("m", "m"), 4: ("q", "q")}
    assert row_set(table.scan(["k", "b"])) == {(k, b) for k, (_, b) in expected.items()}
    assert {*history.read} == {("k", "w", "b"), ("k", "a", "w", "b")}
    assert row_set(table.scan()) == {(k, a, 7, b) for k, (a, b) in expected.items()}
    assert row_set(table.scan(["k"], where="b = 'y'")) == {(2,)}
    history.read.clear()
    assert table.scan().count() == 4
    assert {*history.read} == {("k", "w")}


def test_query_is_asked_once_for_whole_rows(lake: kt.Lake, history: History) -> None:
    history.is_asked = True
    history.commit((1, 7, None, "a"), (1, 7, None, "b"), rewritten=True)
    table = define(lake)
    history.read.clear()
    assert row_set(table.scan(["k"])) == {(1,)}
    assert history.read == [("k", "w", "d", "v")]


# -- versions --------------------------------------------------------------------------------------


def test_version_shows_what_had_been_committed_by_then(lake: kt.Lake, history: History) -> None:
    history.commit((1, 1, None, "a"))
    history.commit((1, 2, True, None))
    table = define(lake)
    assert row_set(table.scan(version=1)) == {(1, 1, None, "a")}
    assert row_set(lake.sql("SELECT v FROM e VERSION AS OF 1")) == {("a",)}
    assert row_set(table.scan()) == set()
    with pytest.raises(kt.NotFoundError, match="no version 3"):
        table.scan(version=3)


def test_changes_are_the_difference_of_two_versions(lake: kt.Lake, history: History) -> None:
    history.commit((1, 1, None, "a"), (2, 1, None, "b"), (3, 1, None, "c"))
    history.commit((1, 2, None, "A"), (2, 2, True, None), (4, 1, None, "d"), (3, 0, None, "late"))
    changes = define(lake).changes(1, 2)
    assert changes.versions == ("1", "2")
    assert row_set(changes) == {
        ("-U", 1, 1, None, "a"), ("+U", 1, 2, None, "A"), ("-D", 2, 1, None, "b"),
        ("+I", 4, 1, None, "d"),
    }  # fmt: skip
    assert changes.count() == 4


def test_statement_looks_once_at_the_definition_and_at_what_lies_there(
    lake: kt.Lake, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.commit((1, 1, None, "a"))
    define(lake)
    history.pins, looks, look = 0, [], TableMetadata.look
    monkeypatch.setattr(TableMetadata, "look", lambda self: looks.append(self.name) or look(self))
    query = "SELECT count(*) AS n FROM e JOIN e AS again USING (k) WHERE k IN (SELECT k FROM e)"
    assert lake.sql(query).to_pylist() == [{"n": 1}]
    assert (history.pins, looks) == (1, ["default.e"])


def test_why_tells_what_became_of_each_version(lake: kt.Lake, history: History) -> None:
    history.commit((1, 1, None, "a"), (1, 3, None, "b"))
    history.commit((1, 2, True, None))
    why = define(lake).why(1)
    assert why.row == {"k": 1, "w": 3, "d": None, "v": "b"}
    assert why.versions.column("outcome").to_pylist() == [
        "replaced by version 3: sequence field w 1 < 3",
        "replaced by version 3: sequence field w 2 < 3",
        "is the row",
    ]
    assert lake.sql("CALL sys.why('e', 1)").to_pylist() == why.versions.to_pylist()


# -- memory ----------------------------------------------------------------------------------------


def test_more_than_memory_holds_is_cut_by_key_and_merged_alike(
    lake: kt.Lake, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_merge, "_BATCH_ROWS", (16, 64))
    for commit in range(6):
        keys = [None, float(commit % 2), *range(commit, 200, commit + 1)]
        history.commit(*((k and int(k), commit % 4, k == 5, f"{commit} {k}") for k in keys))
    table = define(lake)
    expected = row_set(table.scan())
    cut = define_again(lake, "4 kb")
    assert row_set(cut.scan()) == expected
    assert len(row_set(cut.scan(where="v >= '3'"))) == sum(row[3] >= "3" for row in expected)


def test_many_versions_of_one_key_are_merged_as_they_come(
    lake: kt.Lake, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_merge, "_BATCH_ROWS", (16, 16))
    for commit in range(8):
        history.commit(*((7, commit * 100 + n, None, f"{n}") for n in range(100)))
    assert row_set(define_again(lake, "4 kb").scan()) == {(7, 799, None, "99")}


def define_again(lake: kt.Lake, memory: str) -> kt.ExternalTable:
    return lake.create_external_table(
        "cut", format="history", location="test://h", **KEYS, options={"read.memory": memory}
    )


def test_small_parts_are_read_side_by_side_and_come_in_their_order(
    lake: kt.Lake, history: History
) -> None:
    for number in range(3):
        history.commit((1, 7, None, f"{number}"))
    table = define(lake)
    history.meeting = Barrier(3)
    assert row_set(table.scan()) == {(1, 7, None, "2")}


# -- the same as a table of the lake's own ---------------------------------------------------------

VERSIONS = st.lists(
    st.tuples(
        st.integers(0, 5), st.integers(0, 4) | st.none(), st.sampled_from([None, False, True]),
        st.sampled_from(["a", "b"]) | st.none(),
    ),
    max_size=6,
)  # fmt: skip


def unlike(versions: list[Any]) -> list[Any]:
    """Versions of which no two have the same key and watermark, so that nothing is a tie."""
    return list({(k, w): (k, w, d, v) for k, w, d, v in versions}.values())


def own_table(lake: kt.Lake) -> kt.Table:
    types = ("INT", "BIGINT", "BOOLEAN", "STRING")
    fields = [
        kt.Field(-1, f.name, kt.parse_sql_type(t)) for f, t in zip(SCHEMA, types, strict=True)
    ]
    options = {"watermark.key": "w", "tombstone.key": "d"}
    return lake.create_table("own", fields, ["k"], options=options)


def written(versions: list[Any]) -> pa.Table:
    dicts = [dict(zip(SCHEMA.names, row, strict=True)) for row in versions]
    return pa.Table.from_pylist(dicts, schema=SCHEMA)


@given(st.lists(VERSIONS, max_size=4))
def test_versions_in_a_folder_become_the_rows_of_a_table(appends: list[list[Any]]) -> None:
    seen: set[Any] = set()
    with tempfile.TemporaryDirectory() as path:
        lake, theirs = kt.connect(Path(path) / "lake"), Path(path) / "theirs"
        own = own_table(lake)
        theirs.mkdir()
        for number, append in enumerate(appends):
            fresh = [row for row in unlike(append) if row[:2] not in seen]
            seen |= {row[:2] for row in fresh}
            own.write(written(fresh))
            # Names tell nothing: the oldest file may come last.
            pq.write_table(written(fresh), theirs / f"{9 - number}.parquet")
        table = lake.create_external_table(
            "e", format="parquet", location=theirs, schema=SCHEMA, **KEYS
        )
        assert row_set(table.scan()) == row_set(own.scan())


@given(st.lists(VERSIONS, min_size=1, max_size=4))
def test_commits_of_others_become_the_rows_of_a_table_that_was_written_so(
    appends: list[list[Any]],
) -> None:
    HISTORIES["h"] = History(SCHEMA)
    with tempfile.TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        register(patch)
        lake = kt.connect(Path(path) / "lake")
        own = own_table(lake)
        for append in appends:
            own.write(written(append))
            HISTORIES["h"].commits.append(written(append))
        assert row_set(define(lake).scan()) == row_set(own.scan())
