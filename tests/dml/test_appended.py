"""Rows of tables without a primary key are deleted and changed one by one, as in a list."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unanswered import Unanswered

import keytide as kt
from keytide.catalogs.catalog import Catalog
from keytide.catalogs.warehouse import FolderWarehouse
from keytide.dml.append_table import appended_connector
from keytide.dml.engine import (
    DeleteRows,
    RowChange,
    SplitResult,
    TargetScan,
    UpdateRows,
    change_rows,
    checked_pages,
)
from keytide.dml.spi import Connector, ConnectorSession, MergeOperation
from keytide.format.snapshot import CommitKind
from keytide.predicate.where import parse_where
from keytide.store import open_store
from keytide.store.faults import Fault, FaultyStore
from keytide.store.interface import Store
from new_tables import dotted, empty_store, fields_of, table_in
from table_rows import rows_in_order

COLUMNS = {"p": "STRING", "n": "INT", "v": "STRING"}
FIELDS = fields_of(COLUMNS)
VECTORS = {"deletion-vectors.enabled": "true"}
WIDE = {**VECTORS, "deletion-vectors.bitmap64": "true"}
KINDS: dict[str, dict[str, str]] = {"written again": {}, "marked": VECTORS, "marked, 64 bits": WIDE}

Row = dict[str, Any]


def memory() -> Store:
    return empty_store()


def new_table(store: Store, partitioned: bool = True, **options: str) -> kt.Table:
    named = dotted(options)
    lake = kt.connect("", store=store)
    return lake.create_table("t", FIELDS, (), ["p"] if partitioned else (), options=named)


def row(line: str) -> Row:
    p, n, v = line
    return {"p": p, "n": int(n), "v": None if v == "-" else v}


def new_rows(text: str) -> list[Row]:
    return [row(line) for line in text.split()]


def words_of(table: kt.Table) -> str:
    found = (f"{r['p']}{r['n']}{r['v'] or '-'}" for r in table.scan().to_pylist())
    return " ".join(sorted(found))


@dataclass
class Looking:
    """Finds rows by a function of Python, and computes new values by another one."""

    where: Callable[[Row], bool]
    new: Callable[[Row], Row] = dict
    before: Callable[[], None] = lambda: None
    """What happens when all splits are done, but not settled."""

    def change(
        self, scanned: TargetScan, change: RowChange, take: Callable[[SplitResult], None]
    ) -> None:
        for split in pickle.loads(pickle.dumps(scanned.splits)):
            take(self._of_split(scanned, split, change))
        self.before()

    def _of_split(self, scanned: TargetScan, split: Any, change: RowChange) -> SplitResult:
        pages = pickle.loads(pickle.dumps(scanned.pages))
        source = pages.create_page_source(scanned.session, scanned.table, split, scanned.columns)
        count = 0
        try:
            for page in checked_pages(source, scanned.columns, "keytide"):
                count += self._of_page(source, page, change)
            return SplitResult(count, source.finish())
        except BaseException:
            source.abort()
            raise
        finally:
            source.close()

    def _of_page(self, source: Any, page: pa.RecordBatch, change: RowChange) -> int:
        values = page.select(range(page.num_columns - 1)).to_pylist()
        meant = pa.array([self.where(each) for each in values])
        page = page.filter(meant)
        if page.num_rows:
            names = getattr(change, "updated_columns", ())
            made = [self.new(each) for each in page.select(range(len(COLUMNS))).to_pylist()]
            new = [pa.array([r[n] for r in made], page.schema.field(n).type) for n in names]
            ids = page.column(page.num_columns - 1)
            change.apply(source, pa.record_batch([*new, ids], [*names, "$row_id"]))
        return page.num_rows


def connector_of(store: Store) -> Connector:
    return appended_connector(Catalog(FolderWarehouse(store)))


def carry_out(
    store: Store,
    change: RowChange,
    looking: Looking,
    terms: Sequence[str] = (),
    *,
    whole: bool = False,
    **session: Any,
) -> int:
    connector, opened = connector_of(store), ConnectorSession(**session)
    table = connector.metadata.get_table_handle(opened, "default.t")
    columns = connector.metadata.get_table_schema(opened, table).columns
    parsed = [parse_where(term, FIELDS, "default.t") for term in terms]
    return change_rows(
        connector, opened, table, change, columns, parsed, looking, is_all_terms=whole
    ).rows


def delete(store: Store, *names: str, **options: Any) -> int:
    """Delete rows by what they look like."""
    wanted = new_rows(" ".join(names))
    return carry_out(store, DeleteRows(), Looking(lambda r: r in wanted), **options)


def update(store: Store, where: str, **values: Any) -> int:
    """Set columns of the rows whose `v` is this."""
    looking = Looking(lambda r: r["v"] == where, lambda r: {**r, **values})
    columns = tuple(name for name in COLUMNS if name in values)
    return carry_out(store, UpdateRows(columns), looking)


@pytest.fixture(params=KINDS)
def options(request: pytest.FixtureRequest) -> dict[str, str]:
    return KINDS[request.param]


@pytest.fixture
def store() -> Store:
    return memory()


# -- one row after the other -----------------------------------------------------------------------


def test_rows_go(store: Store, options: dict[str, str]) -> None:
    table = new_table(store, **options)
    table.write(new_rows("a1x a2y a2y b3z"))
    table.write(new_rows("a4x b5-"))
    assert delete(store, "a2y") == 2
    assert words_of(table) == "a1x a4x b3z b5-"
    assert delete(store, "a2y") == 0
    assert delete(store, "a1x", "b5-") == 2
    assert words_of(table) == "a4x b3z"
    assert table_in(store).verify().findings == ()


@pytest.mark.one_in(14)
def test_rows_change(store: Store, options: dict[str, str]) -> None:
    table = new_table(store, **options)
    table.write(new_rows("a1x a2y b3x"))
    assert update(store, "x", n=7) == 2
    assert words_of(table) == "a2y a7x b7x"
    assert update(store, "x", p="c") == 2
    assert words_of(table) == "a2y c7x c7x"
    assert update(store, "y", v=None, n=8) == 1
    assert words_of(table) == "a8- c7x c7x"
    assert update(store, "x", p="d", n=1, v="z") == 2
    assert words_of(table) == "a8- d1z d1z"
    assert table.verify().findings == ()


def test_one_commit_is_an_overwrite(store: Store, options: dict[str, str]) -> None:
    table = new_table(store, **options)
    table.write(new_rows("a1x a2y"))
    delete(store, "a3y")
    assert len(table.snapshots()) == 1
    update(store, "x", p="b")
    last = table.metadata.latest_snapshot()
    assert last is not None
    assert (last.id, last.commit_kind) == (2, CommitKind.OVERWRITE)


def test_file_stays_as_it_is_unless_rows_of_it_change(
    store: Store, options: dict[str, str]
) -> None:
    table = new_table(store, **options)
    table.write(new_rows("a1x a2y"))
    table.write(new_rows("a3z"))
    one, other = table.scan().live.entries
    delete(store, "a1x")
    live = table.scan().live.by_identity
    assert other.identity in live
    assert (one.identity in live) == bool(options)
    delete(store, "a2y")  # the last row of the file
    assert list(table.scan().live.by_identity) == [other.identity]
    assert table.scan().state.vector_files == ()


def test_row_ids_carry_what_is_not_set_whatever_its_name(store: Store) -> None:
    names = {"file": "STRING", "position": "INT", "row": "INT"}
    fields = fields_of(names)
    lake = kt.connect("", store=store)
    table = lake.create_table("t", fields, (), options=VECTORS)
    table.write([{"file": "x", "position": 1, "row": 2}])
    looking = Looking(lambda r: True, lambda r: {**r, "row": r["row"] + 1})
    carry_out(store, UpdateRows(("row",)), looking)
    assert table.scan().to_pylist() == [{"file": "x", "position": 1, "row": 3}]


def test_not_null_column_gets_no_null(store: Store, options: dict[str, str]) -> None:
    fields = [*FIELDS[:2], kt.Field(-1, "v", kt.parse_sql_type("STRING NOT NULL"))]
    table = kt.connect("", store=store).create_table("t", fields, (), ["p"], options=options)
    table.write(new_rows("a1x a2y"))
    with pytest.raises(kt.InvalidError, match="null"):
        update(store, "x", v=None)
    assert words_of(table) == "a1x a2y"


def test_default_is_seen_and_kept(store: Store, options: dict[str, str]) -> None:
    table = new_table(store, **options, **{"fields.v.default-value": "d"})
    table.write(new_rows("a1- a2x"))
    assert delete(store, "a1d") == 1
    table.write(new_rows("a3-"))
    assert update(store, "d", n=4) == 1
    assert words_of(table) == "a2x a4d"


# -- conditions that a connector sees --------------------------------------------------------------


def test_terms_narrow_down_what_is_read(store: Store, options: dict[str, str]) -> None:
    table = new_table(store, **options)
    for text in ("a1x a2y", "b1x b2y", "c1x"):
        table.write(new_rows(text))
    everything = Looking(lambda r: True)
    assert carry_out(store, DeleteRows(), everything, ["p <> 'c'", "n = 1"], whole=True) == 2
    assert words_of(table) == "a2y b2y c1x"


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("terms", "left", "gone"),
    [
        (["p = 'a'"], "b2z b3x", 2),
        (["p IN ('a', 'z')"], "b2z b3x", 2),
        (["p IS NULL"], "a1x a2y b2z b3x", 0),
        ([], "", 4),
    ],
)
def test_whole_partitions_go_unread(
    store: Store, options: dict[str, str], terms: list[str], left: str, gone: int
) -> None:
    table = new_table(store, **options)
    table.write(new_rows("a1x a2y b3x"))
    table.write(new_rows("a3z b2z"))
    delete(store, "a3z")
    unread = Looking(lambda r: pytest.fail("a row was read"))
    assert carry_out(store, DeleteRows(), unread, terms, whole=True) == gone
    assert words_of(table) == left
    assert table.verify().findings == ()


@pytest.mark.parametrize("term", ["n IN ()", "n = 9", "p = 'a' OR n = 9"])
def test_condition_on_more_than_partitions_is_asked_of_rows(
    store: Store, options: dict[str, str], term: str
) -> None:
    table = new_table(store, **options)
    table.write(new_rows("a1x b9y"))
    connector, session = connector_of(store), ConnectorSession()
    handle = connector.metadata.get_table_handle(session, "default.t")
    terms = [parse_where(term, FIELDS, "default.t")]
    narrowed, _ = connector.metadata.apply_filter(session, handle, terms)
    assert connector.metadata.apply_delete(session, narrowed) is None


# -- MERGE -----------------------------------------------------------------------------------------


def merge(store: Store, operations: dict[str, tuple[MergeOperation, Row | None]], new: str) -> int:
    """Do something to rows by what they look like, and insert new ones."""
    connector, session = connector_of(store), ConnectorSession()
    metadata = connector.metadata
    handle = metadata.get_table_handle(session, "default.t")
    row_id = metadata.get_merge_row_id_column_handle(session, handle)
    table = metadata.begin_merge(session, handle, {0: ("n",)})
    columns = (*metadata.get_table_schema(session, table).columns, row_id)
    assert connector.merge_sinks is not None
    sink = connector.merge_sinks.create_merge_sink(session, table, 0, 1)
    made: list[tuple[Row, int, Any]] = []
    for split in connector.splits.get_splits(session, table):
        source = connector.pages.create_page_source(session, table, split, columns)
        for page in checked_pages(source, columns, "keytide"):
            for each in page.to_pylist():
                found = f"{each['p']}{each['n']}{each['v'] or '-'}"
                if found in operations:
                    operation, image = operations[found]
                    empty = dict.fromkeys(COLUMNS)
                    made.append((image or empty, operation.value, each["$row_id"]))
        source.close()
    made += [(each, MergeOperation.INSERT.value, None) for each in new_rows(new)]
    fields = [*FIELDS]
    data = [pa.array([r[f.name] for r, _, _ in made], f.type.to_arrow()) for f in fields]
    data += [pa.array([o for _, o, _ in made], pa.int8()), pa.array([0] * len(made), pa.int32())]
    data += [pa.array([i for *_, i in made], row_id.type)]
    sink.store_merged_rows(pa.record_batch(data, [*COLUMNS, "operation", "case", "$row_id"]))
    return metadata.finish_merge(session, table, sink.finish())


def test_rows_come_change_and_go_at_once(store: Store, options: dict[str, str]) -> None:
    table = new_table(store, **options)
    table.write(new_rows("a1x a2y b3x"))
    table.write(new_rows("b4z"))
    done = {
        "a1x": (MergeOperation.DELETE, None),
        "b3x": (MergeOperation.UPDATE, row("a9x")),
    }
    assert merge(store, done, "b5w c6w") == 4
    assert words_of(table) == "a2y a9x b4z b5w c6w"
    assert len(table.snapshots()) == 3
    assert merge(store, {}, "c7w") == 1
    last = table.metadata.latest_snapshot()
    assert last is not None
    assert last.commit_kind is CommitKind.APPEND
    assert table.verify().findings == ()


# -- changes that are told ------------------------------------------------------------------------


def changed_rows(table: kt.Table, start: int, mode: str = "diff") -> str:
    found = table.changes(start, mode=mode).to_pylist()
    return " ".join(sorted(f"{r['_row_kind']}{r['p']}{r['n']}{r['v'] or '-'}" for r in found))


def test_rows_that_died_are_told_and_no_others(store: Store) -> None:
    table = new_table(store, partitioned=False, **VECTORS)
    table.write(new_rows("a1x a2y a3z"))
    table.write(new_rows("b1x b2y"))
    delete(store, "a2y")
    assert changed_rows(table, 2) == "-Da2y"
    update(store, "x", n=7)
    assert changed_rows(table, 3) == "+Ia7x +Ib7x -Da1x -Db1x"
    assert changed_rows(table, 2) == "+Ia7x +Ib7x -Da1x -Da2y -Db1x"
    assert changed_rows(table, 3, "delta") == "+Ia7x +Ib7x"
    delete(store, "a3z")  # the last row of the file
    assert changed_rows(table, 4) == "-Da3z"
    table.rollback_to(2)
    assert words_of(table) == "a1x a2y a3z b1x b2y"


# -- side by side ----------------------------------------------------------------------------------


def beside(store: Store, meanwhile: Callable[[], Any], *names: str, **session: Any) -> int:
    """Delete rows while something else happens before the commit."""
    wanted = new_rows(" ".join(names))
    looking = Looking(lambda r: r in wanted, before=lambda: (meanwhile(), None)[1])
    return carry_out(store, DeleteRows(), looking, ["p = 'a'"], **session)


def test_appends_do_not_conflict(store: Store, options: dict[str, str]) -> None:
    table = new_table(store, **options)
    table.write(new_rows("a1x a2y"))
    assert beside(store, lambda: table.write(new_rows("a3z a1x")), "a1x") == 1
    assert words_of(table) == "a1x a2y a3z"


def test_rows_of_other_files_may_change(store: Store, options: dict[str, str]) -> None:
    table = new_table(store, **options)
    table.write(new_rows("a1x a2y"))
    table.write(new_rows("a3z a4z"))
    assert beside(store, lambda: delete(store, "a3z"), "a1x") == 1
    assert words_of(table) == "a2y a4z"
    assert beside(store, lambda: delete(store, "a4z"), "a2y") == 1  # both files go
    assert words_of(table) == ""
    assert table.scan().state.vector_files == ()


@pytest.mark.one_in(14)
@pytest.mark.parametrize("what", ["deletes", "updates", "compacts", "overwrites", "drops"])
def test_rows_of_the_same_file_conflict(store: Store, options: dict[str, str], what: str) -> None:
    table = new_table(store, **options)
    table.write(new_rows("a1x a2y"))
    table.write(new_rows("a3z"))
    meanwhile: dict[str, Callable[[], Any]] = {
        "deletes": lambda: delete(store, "a2y"),
        "updates": lambda: update(store, "y", n=5),
        "compacts": lambda: table.compact(full=True),
        "overwrites": lambda: table.overwrite(new_rows("a2y a3z"), partition={"p": "a"}),
        "drops": lambda: carry_out(
            store, DeleteRows(), Looking(lambda r: True), ["p = 'a'"], whole=True
        ),
    }
    with pytest.raises(kt.ConflictError, match=r"redo|again"):
        beside(store, meanwhile[what], "a1x")
    expected = {"updates": "a1x a3z a5y", "compacts": "a1x a2y a3z", "overwrites": "a2y a3z",
                "deletes": "a1x a3z", "drops": ""}  # fmt: skip
    assert words_of(table) == expected[what]
    assert table.verify().findings == ()


@pytest.mark.parametrize("what", ["appends", "deletes"])
def test_serializable_statement_conflicts_with_what_it_has_read(
    store: Store, options: dict[str, str], what: str
) -> None:
    table = new_table(store, **options)
    table.write(new_rows("a1x a2y b1x"))
    table.write(new_rows("a3z"))
    doing: dict[str, Callable[[str], Any]] = {
        "appends": lambda p: table.write(new_rows(f"{p}5x")),
        "deletes": lambda p: delete(store, f"{p}3z" if p == "a" else "b1x"),
    }
    with pytest.raises(kt.ConflictError):
        beside(store, lambda: doing[what]("a"), "a1x", isolation="serializable")
    assert beside(store, lambda: doing[what]("b"), "a1x", isolation="serializable") == 1


@pytest.mark.takes_turns
def test_no_update_is_lost(store: Store, options: dict[str, str]) -> None:
    """Each writer adds one to a row, again and again, and begins anew after a conflict."""
    table = new_table(store, False, commit__max_retries="50", **options)
    table.write(new_rows("a0x b0y"))
    table.write(new_rows("c0x"))

    def adds(p: str) -> None:
        looking = Looking(lambda r: r["p"] == p, lambda r: {**r, "n": r["n"] + 1})
        done = 0
        while done < 4:
            with suppress(kt.ConflictError):
                assert carry_out(store, UpdateRows(("n",)), looking) == 1
                done += 1

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(adds, p) for p in "abca"]:
            each.result()
    assert words_of(table) == "a8x b4y c4x"
    assert table.verify().findings == ()


def test_compaction_brings_no_row_back(store: Store) -> None:
    """What a compaction has read may die before it commits, whether or not any row had before."""
    table = new_table(store, **VECTORS)
    table.write(new_rows("a1x a2y"))
    table.write(new_rows("a3z"))
    acts = [lambda: delete(store, "a1x")]

    class Overtaken(FaultyStore):
        def create(self, path: str, data: bytes) -> bool:
            if acts:
                acts.pop()()
            return super().create(path, data)

    kt.connect("", store=Overtaken(store)).table("t").compact(full=True)
    assert words_of(table) == "a2y a3z"
    assert table.verify().findings == ()


# -- whatever else is done to such tables ----------------------------------------------------------


def test_old_snapshots_expire_and_tags_stay(store: Store, options: dict[str, str]) -> None:
    table = new_table(store, **options)
    table.write(new_rows("a1x a2y a3z b1x"))
    delete(store, "a1x")
    table.create_tag("kept")
    delete(store, "a2y")
    update(store, "x", n=5)
    table.expire_snapshots(retain_max=1, retain_min=1)
    table.remove_orphan_files(older_than=datetime.now(), dry_run=False)
    assert words_of(table) == "a3z b5x"
    tagged = table.scan(tag="kept").to_pylist()
    assert sorted(r["n"] for r in tagged) == [1, 2, 3]
    assert table.verify().findings == ()
    table.delete_tag("kept")
    table.compact(full=True)
    table.expire_snapshots(retain_max=1, retain_min=1)
    table.remove_orphan_files(older_than=datetime.now(), dry_run=False)
    names = [info.path.rsplit("/", 2)[-2] for info in store.list()]
    assert "index" not in names


def test_branch_has_dead_rows_of_its_own(store: Store, options: dict[str, str]) -> None:
    table = new_table(store, **options)
    table.write(new_rows("a1x a2y a3z"))
    delete(store, "a1x")
    table.create_branch("other")
    delete(store, "a2y")
    branch = table.branch("other")
    assert (words_of(table), words_of(branch)) == ("a3z", "a2y a3z")
    branch.compact(full=True)
    assert (words_of(table), words_of(branch)) == ("a3z", "a2y a3z")


# -- nothing half done -----------------------------------------------------------------------------


def files(store: Store) -> set[str]:
    return {info.path for info in store.list() if not info.path.endswith(("LATEST", "EARLIEST"))}


STATEMENTS: dict[str, Callable[[Store], int]] = {
    "delete": lambda store: delete(store, "a1x", "b3x"),
    "update": lambda store: update(store, "x", n=7),
    "move": lambda store: update(store, "x", p="c"),
    "drop": lambda store: carry_out(store, DeleteRows(), Looking(lambda r: True), whole=True),
}


def filled(options: dict[str, str]) -> Store:
    store = memory()
    table = new_table(store, **options)
    table.write(new_rows("a1x a2y b3x"))
    table.write(new_rows("a4z"))
    return store


@pytest.mark.one_in(14)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_failure_leaves_the_table_and_no_file(options: dict[str, str], statement: str) -> None:
    counting = FaultyStore(filled(options))
    STATEMENTS[statement](counting)
    for operation in ("put", "output"):
        for number in range(1, 1 + sum(done == operation for done, _ in counting.log)):
            store = filled(options)
            before = files(store)
            with pytest.raises(kt.KeytideError):
                STATEMENTS[statement](FaultyStore(store, [Fault(operation, nth=number)]))
            assert words_of(table_in(store)) == "a1x a2y a4z b3x"
            assert files(store) == before


@pytest.mark.one_in(14)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_commit_of_unknown_outcome_keeps_its_files(options: dict[str, str], statement: str) -> None:
    """The snapshot is there, but its writer does not get to know."""
    store = filled(options)
    with pytest.raises(kt.DataError, match="unknown"):
        STATEMENTS[statement](Unanswered(store, "snapshot-3"))
    table = table_in(store)
    assert len(table.snapshots()) == 3
    assert table.verify().findings == ()


def test_failure_in_one_split_of_many_leaves_nothing(options: dict[str, str]) -> None:
    store = filled(options)
    before = files(store)

    def fails(found: Row) -> bool:
        if found["p"] == "b":
            raise kt.InvalidError("no")
        return True

    with pytest.raises(kt.InvalidError, match="no"):
        carry_out(store, UpdateRows(("v",)), Looking(fails))
    assert files(store) == before


def test_handles_and_splits_pickle(warehouse: str, options: dict[str, str]) -> None:
    catalog = Catalog(FolderWarehouse(open_store(warehouse)))
    table = kt.connect(warehouse).create_table("t", FIELDS, (), options=options)
    table.write(new_rows("a1x a2y"))
    connector, session = appended_connector(catalog), ConnectorSession()
    handle = connector.metadata.get_table_handle(session, "t")
    row_id = connector.metadata.get_delete_row_id_column_handle(session, handle)
    handle = connector.metadata.begin_delete(session, handle)
    fragments: list[bytes] = []
    for split in connector.splits.get_splits(session, handle):
        made = pickle.loads(pickle.dumps((connector.pages, session, handle, split, [row_id])))
        source = made[0].create_page_source(*made[1:])
        while (page := source.get_next_page()) is not None:
            source.delete_rows(page.column(0).slice(0, 1))
        fragments += source.finish()
    assert connector.metadata.finish_delete(session, handle, fragments) == 1
    assert words_of(table) == "a2y"


# -- any history -----------------------------------------------------------------------------------

a_row = st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.sampled_from("xy-"))
a_step = st.one_of(
    st.tuples(st.just("write"), st.lists(a_row, min_size=1, max_size=6)),
    st.tuples(st.just("delete"), st.integers(0, 4)),
    st.tuples(st.just("delete part"), st.sampled_from("ab")),
    st.tuples(st.just("update"), st.tuples(st.integers(0, 4), st.integers(0, 4))),
    st.tuples(st.just("move"), st.integers(0, 4)),
    st.tuples(st.just("compact"), st.booleans()),
)


@pytest.mark.takes_turns
@pytest.mark.parametrize("kind", KINDS)
@given(steps=st.lists(a_step, max_size=9), partitioned=st.booleans(), bucketed=st.booleans())
def test_any_history_is_that_of_a_list(
    kind: str, steps: list[Any], partitioned: bool, bucketed: bool
) -> None:
    store = memory()
    layout = {"bucket": "2", "bucket-key": "n"} if bucketed else {}
    table = new_table(store, partitioned, **KINDS[kind], **layout)
    expected: list[tuple[Any, ...]] = []
    ends: list[tuple[int, Counter[Any]]] = []
    for step, what in steps:
        before, counted, changed = list(expected), 0, None
        if step == "write":
            values = [(p, n, None if v == "-" else v) for p, n, v in what]
            table.write([dict(zip(COLUMNS, each, strict=True)) for each in values])
            expected += values
        elif step == "delete":
            looking = Looking(lambda r, n=what: r["n"] == n)
            counted = carry_out(store, DeleteRows(), looking)
            expected = [each for each in before if each[1] != what]
            changed = len(before) - len(expected)
        elif step == "delete part":
            looking = Looking(lambda r: True)
            counted = carry_out(store, DeleteRows(), looking, [f"p = '{what}'"], whole=True)
            expected = [each for each in before if each[0] != what]
            changed = len(before) - len(expected)
        elif step == "update":
            old, new = what
            looking = Looking(lambda r, n=old: r["n"] == n, lambda r, n=new: {**r, "n": n})
            counted = carry_out(store, UpdateRows(("n",)), looking)
            expected = [(p, new if n == old else n, v) for p, n, v in before]
            changed = sum(n == old for _, n, _ in before)
        elif step == "move":
            looking = Looking(lambda r, n=what: r["n"] == n, lambda r: {**r, "p": "c", "v": r["p"]})
            counted = carry_out(store, UpdateRows(("p", "v")), looking)
            expected = [("c", n, p) if n == what else (p, n, v) for p, n, v in before]
            changed = sum(n == what for _, n, _ in before)
        else:
            table.compact(full=what)
        assert changed is None or counted == changed
        found = rows_in_order(table)
        assert Counter(found) == Counter(expected)
        assert table.scan().count() == len(expected)
        ends.append((len(table.snapshots()), Counter(found)))
        for first, rows_then in ends[-3:]:
            folded = Counter(rows_then)
            for each in table.changes(first).to_pylist() if first else []:
                kind = each.pop("_row_kind")
                folded[tuple(each.values())] += 1 if kind == "+I" else -1
            assert not first or +folded == Counter(expected)
    assert table.verify().findings == ()
