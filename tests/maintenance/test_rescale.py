"""Another number of buckets: partitions are laid out anew with all that was written to them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.catalogs.local_writes import fill
from keytide.commit.transaction import Transaction
from keytide.definition.schema_evolution import AddColumn, SetOption
from keytide.store.faults import Crash, Fault, FaultyStore
from keytide.write.input_rows import to_arrow_table
from keytide.write.refusals import writable_view
from new_tables import empty_table
from overtaking import overtaken
from table_rows import lines, parsed, write_lines

SCHEMA = pa.schema([("p", pa.int32()), ("k", pa.int32()), ("s", pa.int64()), ("v", pa.string())])


def new_table(buckets: int = 2, **options: str) -> kt.Table:
    given = {"bucket": str(buckets), "sequence.field": "s", **options}
    return empty_table(SCHEMA, ["p", "k"], ["p"], options=given)


def numbers(table: kt.Table) -> list[int]:
    """The number of buckets of each partition."""
    return sorted(table.stored.newest_files().partition_buckets.values())


def test_rescaled_table_has_its_rows_and_can_be_written_to() -> None:
    table = new_table()
    write_lines(table, *(f"+I {p} {k} 5 a" for p in (1, 2) for k in range(20)))
    before = lines(table)
    table.alter(SetOption("bucket", "5"))
    with pytest.raises(kt.InvalidError, match=r"previous bucket num is 2.*table.rescale\(\)"):
        write_lines(table, "+I 1 1 6 b")
    done = table.rescale()
    assert (done.partitions, done.files_before) == (2, 4)
    assert lines(table) == before
    assert numbers(table) == [5, 5]
    write_lines(table, "+I 1 1 6 b")
    assert table.get({"p": 1, "k": 1}) == {"p": 1, "k": 1, "s": 6, "v": "b"}
    assert table.rescale() == kt.RescaleResult(None, 0, 0, 0)


def test_one_partition_is_rescaled_and_the_other_stays_as_it_is() -> None:
    table = new_table()
    write_lines(table, "+I 1 1 5 a", "+I 2 1 5 a")
    table.alter(SetOption("bucket", "3"))
    foreseen = table.rescale({"p": 1}, dry_run=True)
    assert (foreseen.snapshot_id, foreseen.partitions, foreseen.files_after) == (None, 1, None)
    assert numbers(table) == [2, 2]
    table.rescale({"p": 1})
    assert numbers(table) == [2, 3]
    write_lines(table, "+I 1 2 5 a")
    with pytest.raises(kt.InvalidError, match="previous bucket num is 2"):
        write_lines(table, "+I 2 2 5 a")
    assert lines(table) == ["1 1 5 a", "1 2 5 a", "2 1 5 a"]


def test_columns_that_came_since_are_there() -> None:
    table = new_table()
    write_lines(table, "+I 1 1 5 a")
    table.alter(AddColumn(("w",), kt.parse_sql_type("INT")), SetOption("bucket", "4"))
    table.rescale()
    assert table.scan().to_pylist() == [{"p": 1, "k": 1, "s": 5, "v": "a", "w": None}]


def test_rescaling_that_another_writer_overtakes_changes_nothing() -> None:
    table = new_table(buckets=8)
    write_lines(table, *(f"+I 1 {k} 5 a" for k in range(30)))
    slow_writer = started_write(table, parsed(SCHEMA, *(f"+I 1 {k} 6 late" for k in range(30))))
    table.alter(SetOption("bucket", "2"))
    with pytest.raises(kt.ConflictError, match="another writer changed rows"):
        overtaken(table, slow_writer).rescale()
    assert numbers(table) == [8]
    assert lines(table) == sorted(f"1 {k} 6 late" for k in range(30))
    named = {e.file.file_name for s in table.snapshots()
             for e in table.stored.live_files(s).entries}  # fmt: skip
    stored = {i.path.split("/")[-1] for i in table.metadata.store.list() if "/data-" in i.path}
    assert stored == named


def started_write(table: kt.Table, given: list[dict[str, Any]]) -> Any:
    """A write that began before the number of buckets changed, and commits when it is called."""
    view = writable_view(table.stored)
    transaction = Transaction.begin(table.stored, view)
    fill(transaction, to_arrow_table(given, view.schema, "t"))
    return transaction.commit


def test_write_that_a_rescaling_overtakes_is_refused() -> None:
    table = new_table(buckets=2)
    write_lines(table, "+I 1 1 5 a")
    commit = started_write(table, parsed(SCHEMA, "+I 1 1 6 late"))
    table.alter(SetOption("bucket", "3"))
    table.rescale()
    with pytest.raises(kt.ConflictError, match=r"new bucket num 2, but the previous .* is 3"):
        commit()
    assert lines(table) == ["1 1 5 a"]


@pytest.mark.parametrize("options", [{}, {"changelog-producer": "lookup"}], ids=str)
@pytest.mark.parametrize("action", ["fail", "crash"])
@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_rescaling_that_fails_at_any_step_changes_nothing_or_all(
    action: Any, options: dict[str, str]
) -> None:
    table = new_table(**options)
    write_lines(table, *(f"+I 1 {k} 5 a" for k in range(6)), "-D 1 2 6 x")
    before = lines(table)
    table.alter(SetOption("bucket", "3"))
    for nth in range(1, 40):
        store = FaultyStore(table.metadata.store, [Fault("write", nth=nth, action=action)])
        try:
            kt.Table(store, "t").rescale()
        except (kt.DataError, Crash):
            assert numbers(table) in ([2], [3])
        assert lines(table) == before
        if numbers(table) == [3]:
            break
    assert numbers(table) == [3]


@pytest.mark.parametrize(
    ("primary_key", "options", "message"),
    [
        (["p", "k"], {"bucket": "-1"}, "fixed number of buckets"),
        ([], {"bucket": "2", "bucket-key": "k"}, "primary key"),
        (
            ["p", "k"],
            {
                "bucket": "2",
                "merge-engine": "aggregation",
                "fields.s.aggregate-function": "sum",
                "force-lookup": "true",
            },
            "cannot be moved to another level",
        ),
    ],
    ids=["dynamic", "append", "lookup"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_table_whose_versions_cannot_move_is_refused(
    primary_key: list[str], options: dict[str, str], message: str
) -> None:
    table = empty_table(SCHEMA, primary_key, ["p"], options=options)
    with pytest.raises(kt.UnsupportedError, match=message):
        table.rescale()


def test_procedure_rescales(lake: kt.Lake) -> None:
    lake.sql(
        "CREATE TABLE t (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket' = '2');"
        "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3);"
        "ALTER TABLE t SET ('bucket' = '3')"
    )
    assert lake.sql("CALL sys.rescale('t')").to_pylist()[0]["partitions"] == 1
    lake.sql("INSERT INTO t VALUES (4, 4)")
    assert lake.sql("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 4}]


events = st.tuples(
    st.sampled_from(["+I", "+U", "-U", "-D"]), st.integers(1, 2), st.integers(0, 5),
    st.integers(0, 9),
)  # fmt: skip


@given(
    history=st.lists(
        st.lists(events, min_size=1, max_size=6) | st.integers(1, 5), min_size=1, max_size=7
    )
)
def test_rescaling_at_any_time_changes_no_row_and_forgets_no_delete(
    history: list[Any],
) -> None:
    table = new_table()
    newest: dict[tuple[int, int], tuple[int, str, str]] = {}
    for number, step in enumerate(history):
        if isinstance(step, int):
            table.alter(SetOption("bucket", str(step)))
            table.rescale()
            continue
        write_lines(table, *(f"{kind} {p} {k} {s} v{number}" for kind, p, k, s in step))
        for kind, p, k, s in step:
            if s >= newest.get((p, k), (-1, "", ""))[0]:
                newest[(p, k)] = (s, kind, f"v{number}")
    assert lines(table) == sorted(
        f"{p} {k} {s} {v}" for (p, k), (s, kind, v) in newest.items() if kind[0] == "+"
    )
