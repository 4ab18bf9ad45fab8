"""With `changelog-producer = input` every write stores its rows once more, as they came."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from copies import copies_of
from keytide.definition.schema_evolution import SetOption
from keytide.store import Store
from keytide.store.faults import Action, Crash, Fault, FaultyStore
from new_tables import empty_lake, table_in
from overtaking import overtaken
from stops import stops_of

SCHEMA = pa.schema([("p", pa.string()), ("k", pa.int64()), ("s", pa.int64()), ("v", pa.string())])
ENGINES: dict[str, dict[str, str]] = {
    "deduplicate": {},
    "late rows": {"sequence.field": "s"},
    "partial-update": {"merge-engine": "partial-update", "ignore-delete": "true"},
    "aggregation": {
        "merge-engine": "aggregation",
        "fields.s.aggregate-function": "sum",
        "fields.v.ignore-retract": "true",
    },
}
Row = dict[str, Any]


def new_table(lake: kt.Lake, name: str = "t", **options: str) -> kt.Table:
    return lake.create_table(
        name, SCHEMA, ["p", "k"], ["p"], options={"changelog-producer": "input", **options}
    )


def logged(table: kt.Table, start: int, end: int | None = None) -> list[Row]:
    return table.changes(start, end, mode="changelog").to_pylist()


def counted(rows: list[Row]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


rows = st.fixed_dictionaries(
    {
        "p": st.sampled_from("ab"),
        "k": st.integers(0, 3),
        "s": st.integers(0, 5),
        "v": st.sampled_from("xyz"),
        "_row_kind": st.sampled_from(["+I", "+U", "-U", "-D"]),
    }
)


@pytest.mark.takes_turns
@given(
    engine=st.sampled_from(sorted(ENGINES)),
    buckets=st.integers(1, 3),
    writes=st.lists(st.lists(rows, min_size=1, max_size=8), min_size=1, max_size=4),
    seed=st.integers(),
)
def test_changelog_has_what_was_written_and_the_table_is_the_same_without_it(
    engine: str, buckets: int, writes: list[list[Row]], seed: int
) -> None:
    lake = empty_lake()
    options = {"bucket": str(buckets), **ENGINES[engine]}
    table, plain = new_table(lake, **options), new_table(lake, "plain", **options)
    plain.alter(SetOption("changelog-producer", "none"))
    chance = random.Random(seed)
    for batch in writes:
        chance.choice([table, lake.table("t")]).write(batch)
        plain.write(batch)
    told = [logged(table, s.id - 1, s.id) for s in table.snapshots()]
    ignores = "ignore-delete" in ENGINES[engine]
    kept = [[r for r in w if not ignores or r["_row_kind"][0] == "+"] for w in writes]
    assert list(map(counted, told)) == [counted(batch) for batch in kept if batch]
    assert [s.changelog_record_count for s in table.snapshots()] == [len(w) for w in kept if w]
    assert counted(table.scan().to_pylist()) == counted(plain.scan().to_pylist())


def test_versions_of_a_key_come_from_the_older_to_the_newer() -> None:
    table = new_table(empty_lake(), **{"sequence.field": "s"})
    kinds = {3: "-D", 1: "+I", 2: "-U"}
    table.write([{"p": "a", "k": 1, "s": s, "v": "x", "_row_kind": k} for s, k in kinds.items()])
    assert [row["_row_kind"] for row in logged(table, 0)] == ["+I", "-U", "-D"]
    assert table.scan().to_pylist() == []


def test_updates_and_deletes_by_sql_are_logged_and_overwrites_are_not() -> None:
    lake = empty_lake()
    table = new_table(lake)
    table.write([{"p": "a", "k": k, "s": 0, "v": "x"} for k in range(3)])
    lake.sql("UPDATE t SET v = 'y' WHERE k = 1; DELETE FROM t WHERE k = 2")
    assert [(row["k"], row["v"]) for row in logged(table, 1, 2)] == [(1, "y")]
    assert logged(table, 2)[0]["_row_kind"] == "-D"
    before = changelog_files(table)
    table.overwrite([{"p": "a", "k": 9, "s": 0, "v": "z"}])
    table.truncate()
    assert logged(table, 3) == []
    assert changelog_files(table) == before
    assert table.changes(3).to_pylist() != []


def changelog_files(table: kt.Table) -> set[str]:
    names = (Path(file.path).name for file in table.metadata.store.list())
    return {name for name in names if name.startswith("changelog-")}


def named_files(table: kt.Table) -> set[str]:
    metadata = table.metadata
    entries = (metadata.entries(metadata.changelog_manifests(s)) for s in table.snapshots())
    return {entry.file.file_name for found in entries for entry in found}


def test_options_of_changelog_files_are_acted_on() -> None:
    table = new_table(
        empty_lake(),
        **{
            "changelog-file.format": "orc",
            "changelog-file.prefix": "log-",
            "changelog-file.stats-mode": "none",
        },
    )
    table.write([{"p": "a", "k": 1, "s": 0, "v": "x"}])
    (snapshot,) = table.snapshots()
    (entry,) = table.metadata.entries(table.metadata.changelog_manifests(snapshot))
    assert entry.file.file_name.startswith("log-")
    assert entry.file.file_name.endswith(".orc")
    assert [row["k"] for row in logged(table, 0)] == [1]
    assert entry.file.value_stats_cols == ()


def test_commit_without_changelog_is_named_where_one_was_to_be_told() -> None:
    table = new_table(empty_lake())
    table.alter(SetOption("changelog-producer", "none"))
    table.write([{"p": "a", "k": 1, "s": 0, "v": "x"}])
    table.alter(SetOption("changelog-producer", "input"))
    table.write([{"p": "a", "k": 1, "s": 0, "v": "y"}])
    assert [row["v"] for row in logged(table, 1)] == ["y"]
    with pytest.raises(kt.NotFoundError, match=r"no changelog of snapshot 1.*start at snapshot 1"):
        logged(table, 0)


# -- faults ----------------------------------------------------------------------------------------

OLD = [{"p": p, "k": k, "s": 0, "v": "old"} for p in "ab" for k in range(2)]
NEW = [{"p": p, "k": 0, "s": 1, "v": "new"} for p in "ab"]


@copies_of
def filled_store(store: Store) -> None:
    new_table(kt.connect("", store=store)).write(OLD)


def writes_of(store: FaultyStore) -> list[tuple[str, int]]:
    table_in(store).write(NEW)
    return stops_of(store.log, "put", "output", "create")


@pytest.mark.parametrize("action", ["fail", "crash", "lost-response"])
def test_a_commit_that_fails_anywhere_tells_all_of_its_rows_or_none(action: Action) -> None:
    for operation, nth in writes_of(FaultyStore(filled_store())):
        store = filled_store()
        faulty = FaultyStore(store, [Fault(operation, nth=nth, action=action)])
        with suppress(Crash, kt.DataError):
            table_in(faulty).write(NEW)
        table = table_in(store)
        told = logged(table, 1) if len(table.snapshots()) == 2 else []
        assert told in ([], [{"_row_kind": "+I", **row} for row in NEW])
        assert (told != []) == (table.get({"p": "a", "k": 0})["v"] == "new")
        if action == "fail" and operation != "create":  # then the outcome is certain
            assert changelog_files(table) == named_files(table)


def test_a_lost_race_tells_each_row_once_and_leaves_no_file_behind() -> None:
    store = filled_store()
    table = table_in(store)
    late = overtaken(table, lambda: table_in(store).write(NEW))
    late.write([{**row, "v": "newer"} for row in NEW])
    assert [[row["v"] for row in logged(table, n, n + 1)] for n in (1, 2)] == [
        ["new", "new"],
        ["newer", "newer"],
    ]
    assert changelog_files(table) == named_files(table)
    assert {row["v"] for row in table.scan(where="k = 0").to_pylist()} == {"newer"}
