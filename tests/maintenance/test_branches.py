"""Branches: a table beside the table, made as a whole or not at all, and brought back."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from copies import copies_of
from keytide.catalogs.catalog import open_stored
from keytide.definition.schema_evolution import AddColumn, DropColumn, RemoveOption, SetOption
from keytide.format import paths
from keytide.format.paths import BranchStore, split_branch
from keytide.store import Store
from keytide.store.faults import Crash, Fault, FaultyStore
from keytide.write.refusals import writable_view
from new_tables import empty_store, empty_table, table_in
from stops import faults_of, stops_of
from table_rows import by_key, reopened, rows, snapshot_ids

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
OPTIONS = {"write-only": "true"}
INT = kt.parse_sql_type("INT")


def fill(store: Store) -> None:
    """One row a snapshot; the second one has a tag."""
    table = kt.connect("", store=store).create_table("t", SCHEMA, ["k"], options=OPTIONS)
    for k in (1, 2, 3):
        table.write(row(k, "main"))
    table.create_tag("two", 2)


three_snapshots = copies_of(fill)


@pytest.fixture
def lake() -> kt.Lake:
    return kt.connect("", store=three_snapshots())


@pytest.fixture
def table(lake: kt.Lake) -> kt.Table:
    return lake.table("t")


def row(k: int, v: str) -> list[dict[str, Any]]:
    return [{"k": k, "v": v}]


def state(n: int) -> dict[int, str]:
    return dict.fromkeys(range(1, n + 1), "main")


def names(table: kt.Table) -> list[str]:
    return [branch.name for branch in table.branches()]


# -- made, written, read ---------------------------------------------------------------------------


def test_branch_begins_with_the_newest_snapshot_another_one_a_tag_or_nothing(
    table: kt.Table,
) -> None:
    made = {
        "newest": table.create_branch("newest"),
        "first": table.create_branch("first", 1),
        "tagged": table.create_branch("tagged", tag="two"),
        "empty": table.create_branch("empty", empty=True),
    }
    assert {name: snapshot_ids(branch) for name, branch in made.items()} == {
        "newest": [3], "first": [1], "tagged": [2], "empty": [],
    }  # fmt: skip
    assert [by_key(branch) for branch in made.values()] == [state(3), state(1), state(2), {}]
    assert [tag.name for tag in made["tagged"].tags()] == ["two"]
    assert names(table) == sorted(made)
    assert table.verify().is_healthy


def test_branch_and_table_are_written_apart(table: kt.Table) -> None:
    branch = table.create_branch("b")
    assert branch.write(row(9, "branch")).snapshot_id == 4
    assert table.write(row(8, "main")).snapshot_id == 4
    assert by_key(branch) == {**state(3), 9: "branch"}
    assert by_key(table) == {**state(3), 8: "main"}
    branch.compact(full=True)
    branch.overwrite(row(1, "over"))
    assert (by_key(branch), by_key(table)) == ({1: "over"}, {**state(3), 8: "main"})
    assert table.verify().is_healthy


def test_branch_has_columns_options_tags_and_rollbacks_of_its_own(table: kt.Table) -> None:
    branch = table.create_branch("b")
    branch.alter(AddColumn(("w",), INT), SetOption("tag.default-time-retained", "1 d"))
    branch.write([{"k": 9, "v": "branch", "w": 1}])
    branch.create_tag("mine")
    branch.create_tag("two", 3)
    assert (table.schema.names, branch.schema.names) == (["k", "v"], ["k", "v", "w"])
    assert [tag.name for tag in table.tags()] == ["two"]
    assert sorted(tag.name for tag in branch.tags()) == ["mine", "two"]
    branch.rollback_to("two")
    assert (by_key(branch), snapshot_ids(table)) == (state(3), [1, 2, 3])
    assert table.verify().is_healthy


def test_branch_of_the_past_has_the_columns_of_that_time(table: kt.Table) -> None:
    table.alter(AddColumn(("w",), INT))
    table.write([{"k": 4, "v": "main", "w": 1}])
    assert table.create_branch("then", 2).schema.names == ["k", "v"]
    assert table.create_branch("now").schema.names == ["k", "v", "w"]
    assert table.create_branch("blank", empty=True).schema.names == ["k", "v", "w"]


def test_branch_is_found_under_every_name_of_it(lake: kt.Lake, table: kt.Table) -> None:
    made = table.create_branch("b", 1)
    assert made.name == "default.t$branch_b"
    for name in ("t$branch_b", "default.t$branch_b"):
        assert by_key(lake.table(name)) == state(1)
    assert lake.table("t$branch_main").name == "default.t"
    assert made.branch("main").name == made.branch("b").branch("main").name == "default.t"
    assert lake.find("T$branch_b") == "default.t$branch_b"
    assert lake.tables() == ["default.t"]


def test_branch_is_found_by_its_address(tmp_path: Path) -> None:
    table = kt.connect(tmp_path).create_table("t", SCHEMA, ["k"])
    table.write(row(1, "main"))
    branch = table.create_branch("b")
    branch.write(row(2, "branch"))
    assert branch.uri.rstrip("/") == f"{table.uri.rstrip('/')}$branch_b"
    assert by_key(kt.open_table(branch.uri)) == {1: "main", 2: "branch"}
    assert open_stored(table.uri, branch="b").name == "default.t$branch_b"
    with pytest.raises(kt.InvalidError, match="give only one"):
        open_stored(branch.uri, branch="c")
    (task, *_) = pickle.loads(pickle.dumps(branch.scan().tasks()))
    assert task.view.store == branch.stored.store
    assert by_key(kt.Table.of(pickle.loads(pickle.dumps(branch.stored)))) == by_key(branch)


def test_branch_of_a_branch_begins_where_that_is(table: kt.Table) -> None:
    branch = table.create_branch("b")
    branch.write(row(9, "branch"))
    other = branch.create_branch("c")
    assert other.name == "default.t$branch_c"
    assert by_key(other) == {**state(3), 9: "branch"}
    assert names(table) == names(branch) == ["b", "c"]


def test_changes_and_followers_of_a_branch_tell_of_it_alone(table: kt.Table) -> None:
    branch = table.create_branch("b")
    table.write(row(8, "main"))
    branch.write(row(9, "branch"))
    assert branch.changes(3).to_pylist() == [{"_row_kind": "+I", "k": 9, "v": "branch"}]
    list(branch.follow(consumer="c", timeout_seconds=0))
    assert table.metadata.store.list_names("consumer") == []


def test_branches_show_themselves_as_a_table(table: kt.Table) -> None:
    table.create_branch("b", 2)
    table.create_branch("c", empty=True)
    shown = table.branches()._repr_html_()
    assert "<td>b</td>" in shown
    assert shown.endswith("<td></td><td></td><td>0</td></tr></table>")


def test_doctor_knows_branches(table: kt.Table) -> None:
    branch = table.create_branch("b")
    table.metadata.store.put(paths.unfinished_path("torn"), b"")
    for each in (table, branch):
        (sign,) = (sign for sign in each.doctor().signs if sign.subject == "branches")
        assert sign.found == "1, not counting the main branch, and remains of torn"
        assert sign.action is not None
        assert sign.action.startswith("delete_branch('torn')")


@pytest.mark.parametrize("left", [".UNFINISHED.1.tmp", "schema/.schema-0.1.tmp", None])
def test_branch_of_which_only_temporary_files_are_left_is_no_damage(
    tmp_path: Path, left: str | None
) -> None:
    """What a process leaves that dies at the first files of a branch, or at its last ones."""
    table = kt.connect(str(tmp_path)).create_table("t", SCHEMA, ["k"])
    table.write(row(1, "main"))
    folder = Path(table.uri) / "branch" / "branch-c" / "schema"
    folder.mkdir(parents=True)
    if left is not None:
        (folder.parent / left).touch()
    assert table.verify().is_healthy
    (sign,) = (sign for sign in table.doctor().signs if sign.subject == "branches")
    assert (sign.action or "").startswith("delete_branch('c')")
    table.delete_branch("c")
    assert "remains" not in str(table.doctor())
    assert by_key(table.create_branch("c")) == {1: "main"}


def test_verify_of_a_branch_checks_the_whole_table(table: kt.Table) -> None:
    branch = table.create_branch("b")
    branch.write(row(9, "branch"))
    assert branch.verify() == table.verify()
    store = table.metadata.store
    store.put("branch/branch-b/snapshot/snapshot-4", b"torn")
    (finding,) = table.verify().findings
    assert finding.path == "branch/branch-b/snapshot/snapshot-4"


# -- by SQL ----------------------------------------------------------------------------------------


def test_sql_reads_and_writes_branches(lake: kt.Lake, table: kt.Table) -> None:
    lake.sql("CALL sys.create_branch('t', 'b', 'two')")
    lake.sql("INSERT INTO t$branch_b VALUES (9, 'branch')")
    lake.sql("UPDATE `t$branch_b` SET v = 'changed' WHERE k = 1")
    lake.sql("DELETE FROM t$branch_b WHERE k = 2")
    lake.sql("ALTER TABLE t$branch_b ADD COLUMNS (w INT)")
    found = lake.sql("SELECT * FROM default.t$branch_b ORDER BY k").to_pylist()
    assert [tuple(each.values()) for each in found] == [(1, "changed", None), (9, "branch", None)]
    assert lake.sql("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 3}]
    joined = lake.sql("SELECT a.v, b.v AS w FROM t a JOIN t$branch_b b USING (k)").to_pylist()
    assert joined == [{"v": "main", "w": "changed"}]
    hinted = lake.sql("SELECT k FROM t /*+ OPTIONS('branch' = 'b') */ ORDER BY k").to_pylist()
    assert [each["k"] for each in hinted] == [1, 9]
    past = "SELECT k FROM t$branch_b /*+ OPTIONS('scan.tag-name' = 'two') */"
    assert lake.sql(past).row_count == 2
    assert lake.sql("SELECT * FROM t$branch_b VERSION AS OF 3").row_count == 3


def test_sql_knows_system_tables_of_branches(lake: kt.Lake, table: kt.Table) -> None:
    table.create_branch("b", tag="two")
    assert lake.sql("SELECT snapshot_id FROM t$branch_b$snapshots").to_pylist() == [
        {"snapshot_id": 2}
    ]
    assert lake.sql("SELECT tag_name FROM t$branch_b$tags").to_pylist() == [{"tag_name": "two"}]
    assert lake.sql("SELECT branch_name FROM t$branches").to_pylist() == [{"branch_name": "b"}]
    assert lake.sql("DESCRIBE t$branch_b").row_count == 2


def test_procedures_make_delete_and_bring_back_branches(lake: kt.Lake, table: kt.Table) -> None:
    lake.sql("CALL sys.create_branch(table => 't', branch => 'b', tag => 'two')")
    lake.sql("CALL sys.create_branch('t', 'blank')")
    lake.sql("CALL sys.create_branch(table => 't', branch => 'b', ignoreIfExists => 'true')")
    assert (snapshot_ids(table.branch("b")), snapshot_ids(table.branch("blank"))) == ([2], [])
    lake.sql("INSERT INTO t$branch_b VALUES (9, 'branch')")
    lake.sql("CALL sys.compact('t$branch_b')")
    lake.sql("CALL sys.create_tag('t$branch_b', 'nine')")
    assert lake.sql("CALL sys.fast_forward('t', 'b', discard => true)").to_pylist() == [
        {"result": True}
    ]
    assert by_key(table) == {**state(2), 9: "branch"}
    lake.sql("CALL sys.delete_branch('t', 'b, blank')")
    assert names(table) == []
    assert table.verify().is_healthy


def test_procedures_delete_all_that_are_named_or_nothing(lake: kt.Lake, table: kt.Table) -> None:
    table.create_branch("b")
    for call in ("delete_branch('t', 'b, none')", "delete_tag('t', 'two, none')"):
        with pytest.raises(kt.NotFoundError, match="'none'"):
            lake.sql(f"CALL sys.{call}")
    assert (names(table), [tag.name for tag in table.tags()]) == (["b"], ["two"])
    lake.sql("CALL sys.delete_branch('t', 'b,b')")
    assert names(table) == []


ODD = ["main", "", "../x", "a/b", "1", "none", " b", "b.", "b$c", "\0", "b"]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("name", ODD, ids=repr)
@pytest.mark.parametrize("call", ["branch", "delete_branch", "fast_forward", "from", "to"])
def test_name_that_cannot_be_is_refused_and_leaves_nothing_behind(
    table: kt.Table, call: str, name: str
) -> None:
    table.create_branch("b")
    try:
        if call in ("from", "to"):
            table.rename_branch(*((name, "new") if call == "from" else ("b", name)))
        else:
            getattr(table, call)(name)
    except kt.KeytideError:
        assert names(table) == ["b"]
    else:
        assert name == "b" or (call, name) in {("branch", "main"), ("to", "none")}
    assert table.verify(quick=True).unchecked == ()
    assert by_key(table) == state(3)


# -- the option ------------------------------------------------------------------------------------


def test_option_says_which_branch_is_meant_where_none_is_named(
    lake: kt.Lake, table: kt.Table
) -> None:
    branch = table.create_branch("b", 1)
    table.alter(SetOption("branch", "b"))
    assert (lake.table("t").name, by_key(lake.table("t"))) == (branch.name, state(1))
    lake.sql("INSERT INTO t VALUES (9, 'branch')")
    assert by_key(branch) == {1: "main", 9: "branch"}
    assert by_key(lake.table("t$branch_main")) == state(3)
    lake.sql("ALTER TABLE t$branch_main RESET ('branch')")
    assert by_key(lake.table("t")) == state(3)


def test_option_of_a_branch_that_is_gone_names_the_way_out(lake: kt.Lake, table: kt.Table) -> None:
    table.create_branch("b")
    table.alter(SetOption("branch", "b"))
    with pytest.raises(kt.InvalidError, match=r"the option 'branch' names it; RESET"):
        table.delete_branch("b")
    table.metadata.store.delete_tree("branch")
    with pytest.raises(
        kt.NotFoundError, match=r"no branch 'b'; .* RESET it in 'default.t\$branch_m"
    ):
        lake.table("t")
    table.branch("main").alter(RemoveOption("branch"))
    assert by_key(lake.table("t")) == state(3)


# -- refused ---------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[kt.Table], object], type[Exception], str]] = {
    "taken": (lambda t: t.create_branch("b"), kt.AlreadyExistsError, "has a branch 'b'"),
    "main": (lambda t: t.create_branch("main"), kt.AlreadyExistsError, "name of the main branch"),
    "blank": (lambda t: t.create_branch(" "), kt.InvalidError, "cannot be a file name"),
    "slash": (lambda t: t.create_branch("a/b"), kt.InvalidError, "without '/'"),
    "digits": (lambda t: t.create_branch("12"), kt.InvalidError, "or only digits"),
    "dollar": (lambda t: t.create_branch("a$b"), kt.InvalidError, r"t\$branch_trial: do not"),
    "dot": (lambda t: t.create_branch("a.b"), kt.InvalidError, "do not use commas, dots"),
    "two places": (lambda t: t.create_branch("c", 1, "two"), kt.InvalidError, "give only one"),
    "no snapshot": (lambda t: t.create_branch("c", 9), kt.NotFoundError, "1 to 3 exist"),
    "no tag": (
        lambda t: t.create_branch("c", tag="x"),
        kt.NotFoundError,
        "no tag 'x'; existing tags: two",
    ),
    "unknown": (lambda t: t.branch("c"), kt.NotFoundError, "no branch 'c'; existing branches: b"),
    "deletes none": (
        lambda t: t.delete_branch("c"),
        kt.NotFoundError,
        "no branch 'c'; existing branches: b",
    ),
    "deletes main": (lambda t: t.delete_branch("main"), kt.NotFoundError, "no branch 'main'"),
    "forward to none": (lambda t: t.fast_forward("c"), kt.NotFoundError, "no branch 'c'"),
    "forward to itself": (lambda t: t.fast_forward("main"), kt.InvalidError, "to itself"),
    "unknown option": (lambda t: t.alter(SetOption("branch", "c")), kt.NotFoundError, "main, b"),
}


@pytest.mark.parametrize(("act", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_and_changes_nothing(
    table: kt.Table, act: Callable[[kt.Table], object], error: type[Exception], message: str
) -> None:
    table.create_branch("b")
    before = {file.path for file in table.metadata.store.list("")}
    with pytest.raises(error, match=message):
        act(table)
    assert {file.path for file in table.metadata.store.list("")} == before


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (
            lambda lake: lake.table("t$branch_x"),
            kt.NotFoundError,
            "no branch 'x'; existing branches: only the main branch",
        ),
        (lambda lake: lake.create_table("t$branch_x", SCHEMA, ["k"]), kt.InvalidError, "a branch"),
        (lambda lake: lake.drop_table("t$branch_x"), kt.InvalidError, "delete_branch"),
        (lambda lake: lake.sql("SELECT * FROM t$branch_x"), kt.NotFoundError, "no branch 'x'"),
        (
            lambda lake: lake.create_table("u", SCHEMA, ["k"], options={"branch": "b"}),
            kt.InvalidError,
            "a new table has only the main branch",
        ),
        (
            lambda lake: lake.sql("CALL sys.create_branch('t', 'b', 'none')"),
            kt.NotFoundError,
            "no tag 'none'",
        ),
    ],
)
def test_names_of_branches_mean_branches_alone(
    lake: kt.Lake, act: Callable[[kt.Lake], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        act(lake)
    assert lake.tables() == ["default.t"]


# -- fast-forward ----------------------------------------------------------------------------------


def test_table_that_stood_still_goes_forward_and_loses_nothing(table: kt.Table) -> None:
    branch = table.create_branch("b", tag="two")
    table.rollback_to(2)
    branch.write(row(9, "branch"))
    branch.create_tag("nine")
    branch.write(row(10, "branch"))
    told = table.fast_forward("b", dry_run=True)
    assert (told, snapshot_ids(table)) == (kt.FastForwardResult(2, 4, 0, 2, (), ()), [1, 2])
    assert table.fast_forward("b") == told
    assert snapshot_ids(table) == [1, 2, 3, 4]
    assert by_key(table) == by_key(branch) == {**state(2), 9: "branch", 10: "branch"}
    assert by_key(table.scan(tag="nine")) == {**state(2), 9: "branch"}
    assert table.fast_forward("b") == kt.FastForwardResult(4, 4, 0, 0, (), ())
    table.write(row(11, "main"))
    assert (snapshot_ids(table)[-1], snapshot_ids(branch)[-1]) == (5, 4)
    assert table.verify().is_healthy


KEPT: dict[str, Callable[[kt.Table], object]] = {
    "nothing": lambda table: None,
    "a tag": lambda table: table.create_tag("kept"),
    "an option": lambda table: table.alter(SetOption("user.note", "x")),
    "a compaction": lambda table: table.compact(full=True),
}
"""What a table may get beside its branch without having rows of its own."""
LOST: dict[str, Callable[[kt.Table], object]] = {
    "a write": lambda table: table.write(row(9, "table")),
    "a delete": lambda table: table.delete("k = 1"),
    "an overwrite": lambda table: table.overwrite(row(9, "table")),
    "a truncate": lambda table: table.truncate(),
}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("lost", [None, *LOST])
def test_commits_of_others_are_not_discarded_unless_that_is_said(
    table: kt.Table, kept: str, lost: str | None
) -> None:
    branch = table.create_branch("b")
    branch.write(row(8, "branch"))
    KEPT[kept](table)
    if lost is not None:
        LOST[lost](table)
        before = by_key(table), snapshot_ids(table)
        with pytest.raises(kt.ConflictError, match=r"that branch b does not have: snapshot .* by"):
            table.fast_forward("b")
        assert (by_key(table), snapshot_ids(table)) == before
        assert table.fast_forward("b", dry_run=True).removed > 0
        table.fast_forward("b", discard=True)
    else:
        table.fast_forward("b")
    assert by_key(table) == by_key(branch)
    assert table.verify().is_healthy


def test_what_the_table_has_beyond_the_parting_is_gone(table: kt.Table) -> None:
    branch = table.create_branch("b", 2)
    branch.write(row(9, "branch"))
    table.create_tag("three")
    assert table.fast_forward("b", discard=True) == kt.FastForwardResult(3, 3, 1, 1, ("three",), ())
    assert by_key(table) == {**state(2), 9: "branch"}
    assert [tag.name for tag in table.tags()] == ["two"]
    assert table.verify().is_healthy


def test_columns_of_the_branch_come_along(lake: kt.Lake, table: kt.Table) -> None:
    seen = [table, lake.table("t")]
    branch = table.create_branch("b", 2)
    table.alter(AddColumn(("main",), INT))
    table.write([{"k": 4, "v": "main", "main": 1}])
    for each in seen:
        assert each.scan().to_arrow().column_names == ["k", "v", "main"]
    branch.alter(AddColumn(("w",), kt.parse_sql_type("STRING")))
    branch.alter(DropColumn(("v",)))
    branch.write([{"k": 9, "w": "branch"}])
    table.fast_forward("b", discard=True)
    for each in [*seen, lake.table("t")]:
        found = rows(each)
        assert found == [(1, None), (2, None), (9, "branch")]
    assert lake.table("t").table_schema.id == 2
    assert table.verify().is_healthy


def test_schemas_that_were_seen_before_are_not_served_again(table: kt.Table) -> None:
    other = reopened(table)
    branch = table.create_branch("b")
    table.alter(AddColumn(("one",), INT))
    assert other.scan().to_arrow().column_names == ["k", "v", "one"]
    branch.alter(AddColumn(("two",), INT))
    branch.write([{"k": 9, "v": "branch", "two": 2}])
    table.fast_forward("b", discard=True)
    assert other.get(9) == {"k": 9, "v": "branch", "two": 2}
    assert other.scan(snapshot_id=4).to_arrow().column_names == ["k", "v", "two"]


def test_table_without_snapshots_goes_forward_to_all_of_a_branch() -> None:
    table = empty_table(SCHEMA, ["k"])
    branch = table.create_branch("b")
    branch.write(row(1, "branch"))
    branch.write(row(2, "branch"))
    assert table.fast_forward("b", discard=True) == kt.FastForwardResult(None, 2, 0, 2, (), ())
    assert by_key(table) == by_key(branch)
    assert table.verify().is_healthy


def test_branch_that_began_empty_takes_the_place_of_all(table: kt.Table) -> None:
    branch = table.create_branch("b", empty=True)
    branch.write(row(8, "branch"))
    branch.write(row(9, "branch"))
    done = table.fast_forward("b", discard=True)
    assert (done.removed, done.tags, snapshot_ids(table)) == (2, ("two",), [1, 2])
    assert by_key(table) == {8: "branch", 9: "branch"}
    assert by_key(table.scan(snapshot_id=1)) == {8: "branch"}
    assert table.verify().is_healthy


def test_table_whose_snapshots_of_that_time_expired_goes_forward(table: kt.Table) -> None:
    branch = table.create_branch("b", tag="two")
    branch.write(row(9, "branch"))
    table.metadata.store.delete(paths.snapshot_path(n) for n in (1, 2))
    table.fast_forward("b", discard=True)
    assert (snapshot_ids(table), by_key(table)) == ([2, 3], {**state(2), 9: "branch"})
    assert table.verify().is_healthy


def test_branch_goes_forward_to_another_one_and_to_the_main_one(table: kt.Table) -> None:
    branch = table.create_branch("b", 2)
    other = branch.create_branch("c")
    other.write(row(9, "other"))
    branch.fast_forward("c", discard=True)
    assert by_key(branch) == {**state(2), 9: "other"}
    branch.fast_forward("main", discard=True)
    assert (by_key(branch), snapshot_ids(branch)) == (state(3), [2, 3])
    assert table.verify().is_healthy


def test_branch_without_snapshots_is_nothing_to_go_forward_to(table: kt.Table) -> None:
    table.create_branch("b", empty=True)
    with pytest.raises(kt.InvalidError, match="no snapshots to fast-forward to"):
        table.fast_forward("b", discard=True)


@pytest.mark.parametrize("commits", range(4))
def test_table_that_was_rolled_back_behind_the_branch_is_refused(
    table: kt.Table, commits: int
) -> None:
    table.create_branch("b")
    table.rollback_to(1)
    for _ in range(commits):
        table.write(row(7, "again"))
    before = snapshot_ids(table)
    with pytest.raises(
        kt.ConflictError, match=r"the oldest one of the branch is 3, .*the table was rolled back"
    ):
        table.fast_forward("b", discard=True)
    assert snapshot_ids(table) == before


def test_columns_that_parted_before_the_rows_are_refused(table: kt.Table) -> None:
    branch = table.create_branch("b", empty=True)
    table.alter(AddColumn(("one",), INT))
    branch.alter(AddColumn(("two",), INT))
    branch.write([{"k": 9, "v": "x", "two": 1}])
    with pytest.raises(kt.UnsupportedError, match=r"differ .* before snapshot 1"):
        table.fast_forward("b", discard=True)
    assert snapshot_ids(table) == [1, 2, 3]


def test_consumers_that_were_told_of_what_is_gone_are_named(table: kt.Table) -> None:
    table.create_branch("b", 2).write(row(9, "branch"))
    list(table.follow(consumer="c", timeout_seconds=0))
    with pytest.warns(kt.KeytideWarning, match="before changes that c had already read") as told:
        assert table.fast_forward("b", discard=True).consumers == ("c",)
    assert told[0].filename == __file__


# -- expiry ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("expired", ["main", "branch"])
def test_expiry_of_one_line_keeps_the_files_of_the_others(table: kt.Table, expired: str) -> None:
    branch = table.create_branch("b", 2)
    for each in (table, branch):
        each.overwrite(row(5, each.name))
        each.write(row(6, each.name))
        each.compact(full=True)
    line, other = (table, branch) if expired == "main" else (branch, table)
    states = [by_key(other.scan(snapshot_id=number)) for number in snapshot_ids(other)]
    assert line.expire_snapshots(retain_max=1, retain_min=1).snapshots > 1
    assert [by_key(other.scan(snapshot_id=number)) for number in snapshot_ids(other)] == states
    assert by_key(line) == {5: line.name, 6: line.name}
    assert table.verify().is_healthy


# -- crashes and races -----------------------------------------------------------------------------


def go_on(store: Store) -> None:
    """A table and a branch that have both gone on."""
    fill(store)
    table = table_in(store)
    branch = table.create_branch("b", 2)
    branch.alter(AddColumn(("w",), INT))
    for k in (8, 9):
        branch.write([{"k": k, "v": "branch", "w": 1}])
    branch.create_tag("nine")
    table.alter(AddColumn(("x",), INT))
    table.write([{"k": 4, "v": "main", "x": 1}])


gone_on = copies_of(go_on)


def prepared() -> kt.Table:
    return kt.connect("", store=gone_on()).table("t")


@cache
def beginning() -> tuple[dict[int, str], dict[int, str]]:
    """The rows of the branch and of the table."""
    table = prepared()
    return by_key(table.branch("b")), by_key(table)


CALLS: dict[str, Callable[[kt.Table], object]] = {
    "create": lambda t: t.create_branch("new", tag="two"),
    "delete": lambda t: t.delete_branch("b"),
    "forward": lambda t: t.fast_forward("b", discard=True),
    "rename": lambda t: t.rename_branch("b", "new"),
}


def operations(name: str) -> list[tuple[str, int]]:
    store = FaultyStore(prepared().metadata.store)
    CALLS[name](kt.Table(store, "t"))
    return stops_of(store.log, "create", "put", "delete", "hint", "output")


STOPS = [
    (name, *fault)
    for name in CALLS
    for fault in faults_of(operations(name), "crash", "fail", "lost-response")
]


@pytest.mark.parametrize(("name", "operation", "nth", "action"), STOPS)
def test_wherever_it_stops_all_can_be_read_and_the_same_call_goes_on(
    name: str, operation: Any, nth: int, action: Any
) -> None:
    table, (branch, before) = prepared(), beginning()
    made = branch if name == "rename" else state(2)
    faulty = FaultyStore(table.metadata.store, [Fault(operation, nth=nth, action=action)])
    with suppress(Crash, kt.DataError):
        CALLS[name](kt.Table(faulty, "t"))
    fresh = reopened(table)
    steps = [before, state(3), state(2), {**state(2), 8: "branch"}, branch]
    assert by_key(fresh) in (steps if name == "forward" else [before])
    for each in names(fresh):
        assert by_key(fresh.branch(each)) == {"b": branch, "new": made}[each]
    _go_on(fresh, name)
    if name == "forward":
        assert by_key(fresh) == branch
        assert fresh.schema.names == ["k", "v", "w"]
        assert sorted(tag.name for tag in fresh.tags()) == ["nine", "two"]
    else:
        assert names(fresh) == {"create": ["b", "new"], "delete": [], "rename": ["new"]}[name]
        assert fresh.metadata.store.list_names("branch") == [f"branch-{n}" for n in names(fresh)]
    if name == "rename":
        renamed = fresh.branch("new")
        assert by_key(renamed) == branch
        assert [tag.name for tag in renamed.tags()] == ["nine"]
        assert renamed.write([{"k": 1, "v": "on", "w": 2}]).snapshot_id == 5
    assert fresh.verify().is_healthy


def _go_on(table: kt.Table, name: str) -> None:
    try:
        CALLS[name](table)
    except kt.AlreadyExistsError:
        if "new" not in names(table):  # it died at work, and what is left has to go first
            table.delete_branch("new")
            CALLS[name](table)
    except kt.NotFoundError:  # it was done
        assert name in ("delete", "rename")


def renamed_between(table: kt.Table, path: str, act: Callable[[], object]) -> FaultyStore:
    """A store in which somebody acts when a file of branch b is about to be deleted."""

    class Between(FaultyStore):
        acted = False

        def delete(self, paths: Iterable[str]) -> None:
            gone = list(paths)
            if not self.acted and any(each.endswith(path) for each in gone):
                self.acted = True
                act()
            super().delete(gone)

    return Between(table.metadata.store)


def test_what_is_committed_while_a_branch_is_renamed_moves_along(table: kt.Table) -> None:
    branch = table.create_branch("b")
    store = renamed_between(table, "branch-b/schema/schema-0", lambda: branch.write(row(9, "late")))
    renamed = kt.Table(store, "t").rename_branch("b", "new")
    assert by_key(renamed) == {**state(3), 9: "late"}
    assert names(table) == ["new"]
    with pytest.raises(kt.NotFoundError):
        branch.write(row(8, "too late"))
    assert table.verify().is_healthy


def test_writers_to_both_names_of_a_renamed_branch_keep_both(table: kt.Table) -> None:
    branch = table.create_branch("b")

    def write_to_both() -> None:
        branch.write(row(9, "old"))
        table.branch("new").write(row(9, "new"))

    store = renamed_between(table, "branch-b/schema/schema-0", write_to_both)
    with pytest.raises(kt.ConflictError, match="Both branches exist"):
        kt.Table(store, "t").rename_branch("b", "new")
    assert names(table) == ["b", "new"]
    assert [by_key(table.branch(name))[9] for name in ("b", "new")] == ["old", "new"]
    with pytest.raises(kt.AlreadyExistsError):
        table.rename_branch("b", "new")
    assert table.verify().is_healthy


def test_branch_is_renamed_and_refuses_what_it_cannot_be_called(
    lake: kt.Lake, table: kt.Table
) -> None:
    table.create_branch("b").write(row(9, "branch"))
    table.create_branch("c", empty=True)
    assert table.rename_branch("b", "new").name == "default.t$branch_new"
    lake.sql("CALL sys.rename_branch(table => 't', from_branch => 'c', to_branch => 'empty')")
    assert names(table) == ["empty", "new"]
    assert by_key(table.branch("new")) == {**state(3), 9: "branch"}
    assert (snapshot_ids(table.branch("empty")), by_key(table)) == ([], state(3))
    table.alter(SetOption("branch", "new"))
    for old, new, error, message in (
        ("new", "empty", kt.InvalidError, "RESET the option"),
        ("empty", "new", kt.AlreadyExistsError, "has a branch 'new'"),
        ("empty", "empty", kt.AlreadyExistsError, "already has this name"),
        ("empty", "main", kt.AlreadyExistsError, "name of the main branch"),
        ("empty", "7", kt.InvalidError, "not a valid branch name"),
        ("none", "other", kt.NotFoundError, "existing branches: empty, new"),
    ):
        with pytest.raises(error, match=message):
            table.rename_branch(old, new)
    assert names(table) == ["empty", "new"]
    assert table.verify().is_healthy


def test_branch_whose_snapshot_expires_meanwhile_is_not_made(table: kt.Table) -> None:
    class Expiring(FaultyStore):
        def hint(self, path: str, data: bytes) -> None:
            self.inner.delete([paths.snapshot_path(1)])

    with pytest.raises(kt.ConflictError, match="snapshot 1 was deleted"):
        kt.Table(Expiring(table.metadata.store), "t").create_branch("b", 1)
    assert (names(table), table.metadata.store.list_names("branch")) == ([], [])


def test_of_two_who_make_a_branch_one_makes_it(table: kt.Table) -> None:
    store = table.metadata.store

    class Faster(FaultyStore):
        def create(self, path: str, data: bytes) -> bool:
            if not names(table):
                kt.Table(store, "t").create_branch("b", 1)
            return super().create(path, data)

    with suppress(kt.AlreadyExistsError):
        kt.Table(Faster(store), "t").create_branch("b", 3)
    assert names(table) == ["b"]
    assert snapshot_ids(table.branch("b")) == [1]


def test_writer_that_comes_between_is_not_lost(table: kt.Table) -> None:
    branch = table.create_branch("b", 2)
    branch.write(row(9, "branch"))
    store = table.metadata.store

    class Between(FaultyStore):
        def create(self, path: str, data: bytes) -> bool:
            if path == paths.snapshot_path(3):
                kt.Table(store, "t").write(row(7, "between"))
            return super().create(path, data)

    with pytest.raises(kt.ConflictError, match="another writer created snapshot/snapshot-3"):
        kt.Table(Between(store), "t").fast_forward("b", discard=True)
    assert by_key(table) == {**state(2), 7: "between"}
    assert table.verify().is_healthy


# -- the store -------------------------------------------------------------------------------------


def test_store_of_a_branch_shows_what_the_branch_has_and_what_all_have() -> None:
    main = empty_store()
    store = BranchStore(main, "b")
    main.put("snapshot/snapshot-1", b"main")
    main.put("branch/branch-c/snapshot/snapshot-1", b"c")
    store.put("snapshot/snapshot-1", b"b")
    store.put_all({"tag/tag-x": b"x", "bucket-0/data-1.parquet": b"data"})
    assert main.read("branch/branch-b/tag/tag-x") == b"x"
    assert main.read("bucket-0/data-1.parquet") == b"data"
    assert store.read_all(["snapshot/snapshot-1", "tag/tag-x"]) == [b"b", b"x"]
    found = sorted(info.path for info in store.list(""))
    assert found == ["bucket-0/data-1.parquet", "snapshot/snapshot-1", "tag/tag-x"]
    assert [info.path for info in store.list("tag")] == ["tag/tag-x"]
    assert store.list_names("snapshot") == ["snapshot-1"]
    assert not store.create("snapshot/snapshot-1", b"again")
    assert (store.exists("tag/tag-x"), store.size("tag/tag-x")) == (True, 1)
    store.delete(["tag/tag-x"])
    store.delete_tree("snapshot")
    assert sorted(info.path for info in main.list("")) == [
        "branch/branch-c/snapshot/snapshot-1", "bucket-0/data-1.parquet", "snapshot/snapshot-1",
    ]  # fmt: skip
    assert store.uri == f"{main.uri.rstrip('/')}$branch_b"
    assert pickle.loads(pickle.dumps(store)) == store


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("t", ("t", None)),
        ("db.t$branch_b", ("db.t", "b")),
        ("t$branch_a_b", ("t", "a_b")),
        ("t$branches", ("t$branches", None)),
        ("t$branch_", ("t", "")),
    ],
)
def test_names_are_taken_apart(name: str, parts: tuple[str, str | None]) -> None:
    assert split_branch(name) == parts


# -- any history -----------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "branch", "forward", "rollback", "compact", "delete", "expire"]),
        st.integers(0, 3),
        st.integers(1, 5),
    ),
    max_size=25,
)


@given(steps=STEPS)
def test_branches_are_what_dicts_are(steps: list[tuple[str, int, int]]) -> None:
    table = empty_table(SCHEMA, ["k"], options=OPTIONS)
    lines: dict[str, dict[int, str]] = {"main": {}}
    for number, (step, which, k) in enumerate(steps):
        name = sorted(lines)[which % len(lines)]
        line = table.branch(name)
        if step == "write":
            line.write(row(k, f"{name} {number}"))
            lines[name] = {**lines[name], k: f"{name} {number}"}
        elif step == "branch" and len(lines) < 4:
            new = f"b{number}"
            line.create_branch(new)
            lines[new] = lines[name]
        elif step == "compact":
            line.compact(full=True)
        elif step == "expire":
            line.expire_snapshots(retain_max=k, retain_min=1)
        elif step == "rollback" and snapshot_ids(line):
            to = snapshot_ids(line)[k % len(snapshot_ids(line))]
            expected = by_key(line.scan(snapshot_id=to))
            line.rollback_to(to)
            lines[name] = expected
        elif step == "delete" and name != "main":
            table.delete_branch(name)
            del lines[name]
        elif step == "forward" and name != "main" and snapshot_ids(line):
            with suppress(kt.ConflictError):
                table.fast_forward(name, discard=True)
                lines["main"] = lines[name]
        assert {each: by_key(table.branch(each)) for each in lines} == lines
    assert names(table) == sorted(set(lines) - {"main"})
    assert table.verify().is_healthy


def test_nothing_is_written_with_a_schema_that_a_fast_forward_has_removed(lake: kt.Lake) -> None:
    lake.table("t").create_branch("early")
    lake.table("t").alter(AddColumn(("n",), INT))
    stored = lake.table("t").stored
    view = writable_view(stored)
    lake.table("t").fast_forward("early", discard=True)
    with pytest.raises(kt.ConflictError, match="schema 1 was removed"):
        stored.state_to_write(view)
