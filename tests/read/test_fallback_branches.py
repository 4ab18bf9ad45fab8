"""Tables whose options name a second branch to read: each partition is that of one branch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from gate_doors import CLEANING, OF_BOTH_BRANCHES, READING, WRITING
from keytide.format import paths
from keytide.format.cache import forget_files
from keytide.format.schema import TableSchema
from keytide.snapshot.lineage import forget_lineages
from new_tables import empty_lake

FALLBACK, PRIMARY = "scan.fallback-branch", "scan.primary-branch"
NULLABLE = "primary-key.nullable"
SCHEMA = pa.schema([("day", pa.float64()), ("k", pa.int64()), ("v", pa.string())])
NAN = float("nan")

KINDS: dict[str, dict[str, str]] = {
    "keyed": {},
    "two buckets": {"bucket": "2"},
    "dynamic buckets": {"bucket": "-1"},
    "marked rows": {"deletion-vectors.enabled": "true"},
    "indexed": {"upsert.mode": "full"},
}
DAYS = st.sampled_from([1.0, 2.0, -1.5, NAN, None])
ROWS = st.dictionaries(st.tuples(DAYS, st.integers(0, 3)), st.booleans(), max_size=8)
"""By key: whether the row stays. The others are deleted again, and their files stay."""


def written(table: kt.Table, rows: Mapping[tuple[Any, int], bool], v: str) -> None:
    said = [{"day": day, "k": k, "v": v} for day, k in rows]
    table.write(pa.Table.from_pylist(said, SCHEMA))
    gone = [{**row, "_row_kind": "-D"} for row, stays in zip(said, rows.values(), strict=True)
            if not stays]  # fmt: skip
    if gone:
        table.write(pa.Table.from_pylist(gone, SCHEMA.append(pa.field("_row_kind", pa.string()))))


def naming(table: kt.Table, option: str, branch: str = "b") -> kt.Table:
    """The table after another engine set the option."""
    schema = table.table_schema
    newer = replace(schema, id=schema.id + 1, options={**schema.options, option: branch})
    table.metadata.store.put(paths.schema_path(newer.id), newer.to_json())
    forget_lineages()
    return table


def two_branches(option: str, kinds: tuple[str, str], ours: Any, theirs: Any) -> kt.Lake:
    """Table `t` and its branch `b`, which have rows of their own, and the option."""
    lake = empty_lake()
    given = {"bucket": "1"} if "indexed" in kinds else {"bucket": "1", NULLABLE: "true"}
    table, other = (
        lake.create_table(
            name, SCHEMA, ["day", "k"], partition_by=["day"], options={**given, **KINDS[kind]}
        )
        for name, kind in zip(("t", "other"), kinds, strict=True)
    )
    branch = table.create_branch("b", empty=True)
    first = replace(branch.table_schema, options=other.options)
    branch.metadata.store.put(paths.schema_path(0), first.to_json())
    forget_files()
    forget_lineages()
    written(table, ours, "table")
    written(table.branch("b"), theirs, "branch")
    naming(table, option)
    return lake


def day_rows(rows: Any) -> list[tuple[str, int, str]]:
    return sorted((str(row["day"]), row["k"], row["v"]) for row in rows.to_pylist())


def expected(first: Any, rest: Any, names: tuple[str, str]) -> list[tuple[str, int, str]]:
    """The rows that stay: of the first branch and, of days that it never had, of the other one."""
    days = {str(day) for day, _ in first}
    rows = [(str(day), k, names[0]) for (day, k), stays in first.items() if stays]
    rows += [(str(day), k, names[1]) for (day, k), stays in rest.items()
             if stays and str(day) not in days]  # fmt: skip
    return sorted(rows)


@pytest.mark.takes_turns
@given(
    option=st.sampled_from([FALLBACK, PRIMARY]),
    kinds=st.tuples(st.sampled_from([*KINDS]), st.sampled_from([*KINDS])),
    ours=ROWS,
    theirs=ROWS,
)
def test_each_partition_is_read_of_the_first_branch_that_has_files_of_it(
    option: str, kinds: tuple[str, str], ours: Any, theirs: Any
) -> None:
    if "indexed" in kinds:  # its key has no NULL
        ours, theirs = ({key: one[key] for key in one if key[0]} for one in (ours, theirs))
    lake = two_branches(option, kinds, ours, theirs)
    table, days = lake.table("t"), {str(day): day for day, _ in (*ours, *theirs)}
    if option == FALLBACK:
        rows = expected(ours, theirs, ("table", "branch"))
    else:
        rows = expected(theirs, ours, ("branch", "table"))
    scan = table.scan()
    assert day_rows(scan) == day_rows(lake.sql("SELECT * FROM t")) == rows
    assert day_rows(kt.scan_polars(table).collect().to_arrow()) == rows
    assert scan.count() == len(rows)
    assert table.scan(limit=2).to_arrow().num_rows == min(2, len(rows))
    assert day_rows(table.scan(where="k >= 2")) == [row for row in rows if row[1] >= 2]
    assert day_rows(table.scan(where="v = 'branch'")) == [row for row in rows if row[2] == "branch"]
    keys = [(days[day], k) for day in days for k in range(4)]
    assert day_rows(table.get_many(keys)) == rows
    found = [row for row in map(table.get, keys) if row is not None]
    assert sorted((str(row["day"]), row["k"], row["v"]) for row in found) == rows


FIRST = {(1.0, 1): True}
SECOND = {(1.0, 1): True, (2.0, 2): True}


@pytest.fixture(params=[FALLBACK, PRIMARY])
def option(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def lake_of(option: str) -> kt.Lake:
    rows = (FIRST, SECOND) if option == FALLBACK else (SECOND, FIRST)
    return two_branches(option, ("keyed", "keyed"), *rows)


NAMES = {FALLBACK: ("table", "branch"), PRIMARY: ("branch", "table")}


def test_views_of_duckdb_show_both_branches(option: str) -> None:
    con = duckdb.connect()
    kt.duckdb.register(con, lake_of(option))
    rows = con.execute('SELECT day, v FROM "default".t ORDER BY day').fetchall()
    assert rows == [*zip([1.0, 2.0], NAMES[option], strict=True)]


def test_plan_names_both_branches(option: str) -> None:
    lake = lake_of(option)
    scan = lake.table("t").scan(where="k = 2", columns=["v"], limit=5)
    told = [repr(scan), str(scan.explain()), lake.sql("EXPLAIN SELECT * FROM t").to_pylist()]
    for text in (*map(str, told), scan._repr_html_(), scan.explain()._repr_html_()):
        assert "default.t" in text
        assert "$branch_b" in text


def test_query_is_measured_as_a_whole(option: str) -> None:
    analyzed = lake_of(option).sql("EXPLAIN ANALYZE SELECT * FROM t").to_pylist()
    assert "2 rows" in str(analyzed)


def test_rows_of_a_dropped_partition_are_those_of_the_other_branch_again() -> None:
    lake = two_branches(FALLBACK, ("keyed", "keyed"), FIRST, SECOND)
    lake.sql(f"ALTER TABLE t RESET ('{FALLBACK}')")
    lake.table("t").truncate({"day": 1.0})
    rows = day_rows(naming(lake.table("t"), FALLBACK).scan())
    assert rows == [("1.0", 1, "branch"), ("2.0", 2, "branch")]


def test_older_snapshot_is_read_with_the_branch_of_its_time(option: str) -> None:
    lake = lake_of(option)
    both = day_rows(lake.table("t").scan())
    for at in ({"snapshot_id": 1}, {"as_of": lake.table("t").metadata.snapshot(1).time_millis}):
        with pytest.raises(kt.NotFoundError, match=f"'{option}' of default.t names this branch"):
            lake.table("t").scan(**at)  # the branch has its first snapshot since
    latest = lake.table("t").branch("b").metadata.snapshot(1).time_millis
    assert day_rows(lake.table("t").scan(as_of=latest)) == both
    assert day_rows(lake.sql(f"SELECT * FROM t TIMESTAMP AS OF {latest}")) == both


def test_all_other_doors_are_refused_by_name(option: str) -> None:
    lake = lake_of(option)
    for door, enter in {**READING, **CLEANING, **WRITING}.items():
        if door in OF_BOTH_BRANCHES or door.startswith("keytide"):
            continue
        with pytest.raises(kt.KeytideError) as refused:
            enter(lake, lake.table("t"))
        if isinstance(refused.value, kt.UnsupportedError):
            assert option in str(refused.value), door


OTHER_DEFINITIONS: dict[str, tuple[Callable[[TableSchema], TableSchema], str]] = {
    "column": (lambda s: replace(s, fields=s.fields[:2]), "its columns are"),
    "partition": (lambda s: replace(s, partition_keys=()), "its partition columns are"),
    "key": (lambda s: replace(s, primary_keys=("k", "day")), "its key columns are"),
}


@pytest.mark.parametrize("difference", OTHER_DEFINITIONS)
def test_branches_whose_rows_differ_in_kind_are_refused(option: str, difference: str) -> None:
    lake = two_branches(option, ("keyed", "keyed"), {}, {})
    change, message = OTHER_DEFINITIONS[difference]
    branch = lake.table("t").branch("b")
    other = change(replace(branch.table_schema, id=1))
    branch.metadata.store.put(paths.schema_path(1), other.to_json())
    forget_lineages()
    with pytest.raises(kt.UnsupportedError, match=message):
        lake.table("t").scan()


def test_table_that_names_a_fallback_and_a_primary_branch_is_refused(option: str) -> None:
    lake = lake_of(option)
    naming(lake.table("t"), PRIMARY if option == FALLBACK else FALLBACK)
    for read in (lake.table("t").scan, lambda: lake.sql("SELECT * FROM t")):
        with pytest.raises(kt.UnsupportedError, match=r"both .* RESET one"):
            read()


def test_branch_that_names_itself_is_read_alone(option: str) -> None:
    lake = lake_of(option)
    naming(lake.table("t").branch("b"), option)
    rows = lake.table("t").branch("b").scan()
    assert {row["v"] for row in rows} == {"branch"}
