"""A table that merges becomes one with an index of keys, and back: the rows stay, and so does what
late rows and deletes find. A dict is the model."""

from __future__ import annotations

import warnings
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import keytide as kt
from key_indexes import assert_index_is_that_of_the_rows
from keytide.cli.main import app
from keytide.definition.schema_evolution import AddColumn, RenameColumn, SetOption
from keytide.store import Store
from new_tables import empty_store, empty_table
from table_rows import lines

Row: TypeAlias = "tuple[str, int, int, int | None, str]"
"""Kind, partition, key, what it is compared by, and value."""

SCHEMA = pa.schema(
    [pa.field("p", pa.int32(), False), pa.field("k", pa.int64(), False), ("ts", pa.int32()),
     ("v", pa.string())]
)  # fmt: skip
OTHER = {"full": "none", "none": "full"}
MODES = list(OTHER)


def new_table(mode: str = "none", store: Store | None = None, **options: str) -> kt.Table:
    given = {"bucket": "2", "sequence.field": "ts", "upsert.mode": mode, **options}
    return empty_table(SCHEMA, ["p", "k"], ["p"], options=given, store=store)


def rows_of(*lines: str) -> list[Row]:
    """Rows of texts such as `+I 0 1 5 a`: kind, partition, key, time and value."""
    found = (line.split() for line in lines)
    return [(kind, int(p), int(k), None if ts == "-" else int(ts), v)
            for kind, p, k, ts, v in found]  # fmt: skip


def as_dicts(rows: list[Row]) -> list[dict[str, Any]]:
    return [dict(zip(("_row_kind", "p", "k", "ts", "v"), row, strict=True)) for row in rows]


def write(table: kt.Table, *lines: str) -> kt.WriteResult:
    return table.write(as_dicts(rows_of(*lines)))


def stored_lines(table: kt.Table, **travel: Any) -> list[str]:
    """The rows as texts such as `0 1 5 a`."""
    return lines(table.scan(["p", "k", "ts", "v"], **travel))


def mode_of(table: kt.Table) -> str:
    return table.options.get("upsert.mode", "none")


def assert_sound(table: kt.Table) -> None:
    assert not table.verify().findings
    if mode_of(table) == "full":
        assert_index_is_that_of_the_rows(table)


# -- there and back --------------------------------------------------------------------------------


@pytest.mark.takes_turns
@pytest.mark.parametrize("mode", MODES)
def test_table_is_converted_there_and_back_with_its_rows_and_its_deletes(mode: str) -> None:
    table = new_table(mode)
    write(table, *(f"+I {k % 3} {k} 5 a" for k in range(9)))
    write(table, "-D 0 0 7 x", "+I 1 1 7 b", "-D 2 11 7 x", "+I 2 2 - late")
    rows = stored_lines(table)
    for wanted in (OTHER[mode], mode):
        made = table.metadata.latest_snapshot_id() or 0
        done = table.convert(wanted)
        assert done.snapshot_id == made + 1, "one commit"
        assert (done.upsert_mode, mode_of(table)) == (wanted, wanted)
        assert stored_lines(table) == rows
        write(table, "+I 0 0 6 late", "+I 1 1 6 late", "+I 2 11 6 late", "-D 2 2 4 late")
        assert stored_lines(table) == rows, "what is late finds what it found before"
        assert_sound(table)
    write(table, "+I 0 0 7 back", "+I 2 11 8 new")
    assert stored_lines(table) == sorted([*rows, "0 0 7 back", "2 11 8 new"])


def test_conversion_is_told_in_advance_and_then_done_once() -> None:
    table = new_table(**{"tombstone.retention": "1 d"})
    write(table, "+I 0 1 5 a", "+I 1 2 5 a")
    foreseen = table.convert("full", dry_run=True)
    assert foreseen == kt.ConversionResult(None, "full", 2, None, ("tombstone.retention",))
    assert mode_of(table) == "none"
    done = table.convert("FULL")
    assert done == kt.ConversionResult(2, "full", 2, 2, ("tombstone.retention",))
    assert table.convert("full") == kt.ConversionResult(None, "full", 0, 0, ())
    assert "tombstone.retention" in done._repr_html_()


def test_definition_is_that_of_a_table_that_was_made_so() -> None:
    table = new_table(**{"file.format": "orc"})
    made = dict(table.options)
    table.convert("full")
    assert table.options == new_table("full", **{"file.format": "orc"}).options
    assert table.primary_key == ("p", "k")
    table.convert("none")
    assert table.options == {k: v for k, v in made.items() if k != "upsert.mode"}


def test_column_that_marks_deletes_marks_them_in_both_kinds() -> None:
    columns = pa.schema([("k", pa.int64()), ("ts", pa.int32()), ("gone", pa.bool_())])
    options = {
        "upsert.mode": "full", "sequence.field": "ts", "upsert.delete-record-column": "gone",
        "upsert.drop-out-of-order-record": "true",
    }  # fmt: skip
    table = empty_table(columns, ["k"], options=options)
    table.write([{"k": 1, "ts": 5, "gone": None}, {"k": 2, "ts": 5, "gone": True}])
    done = table.convert("none")
    assert done.dropped == ("upsert.drop-out-of-order-record",)
    table.write([{"k": 1, "ts": 6, "gone": True}, {"k": 2, "ts": 4, "gone": False}])
    assert table.scan().count() == 0
    table.convert("full")
    table.write([{"k": 1, "ts": 5, "gone": None}, {"k": 3, "ts": 4, "gone": True}])
    assert table.scan().count() == 0
    table.write([{"k": 1, "ts": 6, "gone": None}])
    assert table.get(1) == {"k": 1, "ts": 6, "gone": None}


@pytest.mark.parametrize("mode", MODES)
def test_table_without_rows_is_converted(mode: str) -> None:
    table = new_table(mode)
    assert table.convert(OTHER[mode]).snapshot_id == 1
    write(table, "+I 0 1 5 a", "-D 0 2 5 a")
    assert table.convert(mode).snapshot_id == 3
    assert stored_lines(table) == ["0 1 5 a"]
    table.truncate()
    table.convert(OTHER[mode])
    write(table, "+I 0 2 4 new")
    assert stored_lines(table) == ["0 2 4 new"]
    assert_sound(table)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("mode", MODES)
def test_rows_go_to_the_buckets_that_the_table_has_now(mode: str) -> None:
    table = new_table(mode)
    write(table, *(f"+I 0 {k} 5 a" for k in range(20)), "-D 0 3 6 x")
    rows = stored_lines(table)
    table.alter(SetOption("bucket", "3"))
    table.convert(OTHER[mode])
    write(table, "+I 0 3 5 late")
    assert stored_lines(table) == rows
    assert_sound(table)


@pytest.mark.parametrize("mode", MODES)
def test_column_that_came_before_or_comes_afterwards_is_there(mode: str) -> None:
    table = new_table(mode)
    write(table, "+I 0 1 5 a")
    table.alter(AddColumn(("w",), kt.parse_sql_type("INT")), RenameColumn(("ts",), "at"))
    table.convert(OTHER[mode])
    table.alter(AddColumn(("x",), kt.parse_sql_type("INT")))
    table.write([{"p": 0, "k": 1, "at": 4, "v": "late", "w": 1, "x": 1}])
    table.write([{"p": 0, "k": 2, "at": 4, "v": "b", "w": 1, "x": 2}])
    assert sorted(row["x"] or 0 for row in table.scan().to_pylist()) == [0, 2]
    assert table.get((0, 1)) == {"p": 0, "k": 1, "at": 5, "v": "a", "w": None, "x": None}


def test_least_is_the_freshest_in_both_kinds() -> None:
    table = new_table(**{"sequence.field.sort-order": "descending", "file.format": "orc"})
    write(table, "+I 0 1 5 a", "+I 0 2 5 a", "-D 0 3 5 x")
    for wanted in ("full", "none"):
        table.convert(wanted)
        write(table, "+I 0 1 6 late", "+I 0 3 6 late", "+I 0 2 - late")
        assert stored_lines(table) == ["0 1 5 a", "0 2 5 a"]
    write(table, "+I 0 3 5 back", "+I 0 1 4 b")
    assert stored_lines(table) == ["0 1 4 b", "0 2 5 a", "0 3 5 back"]


def test_text_that_rows_are_compared_by_is_compared_alike() -> None:
    columns = pa.schema([("k", pa.int64()), ("ts", pa.string())])
    table = empty_table(columns, ["k"], options={"sequence.field": "ts", "bucket": "1"})
    table.write([{"k": k, "ts": "b"} for k in range(4)])
    table.write([{"k": 0, "ts": "c", "_row_kind": "-D"}])
    table.write([{"k": 1, "ts": "bb"}])
    for wanted in ("full", "none", "full"):
        table.convert(wanted)
        table.write([{"k": 0, "ts": "bz"}, {"k": 1, "ts": "b"}])
        assert {row["k"]: row["ts"] for row in table.scan().to_pylist()} == {
            1: "bb", 2: "b", 3: "b",
        }  # fmt: skip


def test_rows_that_wait_for_a_compaction_are_there_afterwards() -> None:
    """Of a table with deletion vectors, where late rows lose against deletes that nobody sees."""
    table = new_table(**{"deletion-vectors.enabled": "true"})
    write(table, "+I 0 1 5 a", "+I 0 2 5 a", "+I 1 3 5 a")
    write(table, "-D 0 1 7 x", "+I 0 2 6 b", "-D 1 4 7 x")
    table.convert("full")
    write(table, "+I 0 1 6 late", "+I 1 4 6 late")
    assert stored_lines(table) == ["0 2 6 b", "1 3 5 a"]
    assert_sound(table)
    table.convert("none")
    assert "deletion-vectors.enabled" not in table.options
    assert stored_lines(table) == ["0 2 6 b", "1 3 5 a"]


def test_table_whose_rows_arrival_alone_orders_is_converted() -> None:
    table = empty_table(SCHEMA, ["p", "k"], ["p"])
    write(table, "+I 0 1 5 a", "+I 0 2 5 a", "+I 0 3 5 a")
    write(table, "-D 0 1 4 x", "+I 0 2 4 b")
    for wanted in ("full", "none", "full"):
        table.convert(wanted)
        assert stored_lines(table) == ["0 2 4 b", "0 3 5 a"]
        write(table, "-D 0 3 1 x", "+I 0 4 1 c")
        write(table, "-D 0 4 1 x", "+I 0 3 5 a")
    assert_sound(table)


def test_row_whose_delete_was_forgotten_stays_dead() -> None:
    """It is still stored, in a large file in which a vector marks it."""
    options = {"deletion-vectors.enabled": "true", "bucket": "1"}
    table = empty_table(SCHEMA, ["p", "k"], ["p"], options=options)
    write(table, *(f"+I 0 {k} 5 {k * 7919 % 10_007}" for k in range(3000)))
    write(table, "-D 0 1 5 x", "+I 0 2 5 b")
    for key in (2, 3, 4):
        write(table, f"+I 0 {key} 5 b")
    files = {e.file.level: e.file.row_count for e in table.stored.newest_files().entries}
    assert files == {4: 3, 5: 3000}, "no file has the delete any more"
    table.convert("full")
    assert (table.scan().count(), table.get((0, 1))) == (2999, None)


def test_rows_that_are_moved_in_many_pieces_are_all_there() -> None:
    table = new_table(**{"write-buffer-size": "32 kb", "read.memory": "1 mb", "bucket": "1"})
    rows = pa.table({"p": pa.array([0] * 30_000, pa.int32()), "k": range(30_000),
                     "ts": pa.array([1] * 30_000, pa.int32()), "v": ["a"] * 30_000})  # fmt: skip
    table.write(rows)
    table.write(rows.slice(0, 10_000).set_column(3, "v", pa.array(["b"] * 10_000)))
    for wanted in ("full", "none"):
        table.convert(wanted)
        assert table.scan(where="v = 'b'").count() == 10_000
        assert table.scan().count() == 30_000
    assert_sound(table)


# -- any history -----------------------------------------------------------------------------------


class Model:
    """The newest row of each key, deleted ones too, and what was shown after each snapshot."""

    def __init__(self, table: kt.Table) -> None:
        self.table, self.newest = table, dict[tuple[int, int], Row]()
        self.states: dict[int, list[str]] = {0: []}

    def write(self, rows: list[Row]) -> None:
        self.table.write(as_dicts(rows))
        for row in rows:
            known = self.newest.get(row[1:3])
            if known is None or rank(row) >= rank(known):
                self.newest[row[1:3]] = row

    def delete(self, key: int) -> None:
        self.table.delete(f"k = {key}")
        for place, row in self.newest.items():
            if place[1] == key and row[0] != "-D":
                self.newest[place] = ("-D", *row[1:])

    def note(self) -> None:
        """What is shown by now, after each snapshot that came since."""
        for snapshot_id in range(max(self.states) + 1, len(self.table.snapshots()) + 1):
            self.states[snapshot_id] = self.shown()

    def shown(self) -> list[str]:
        rows = [row for row in self.newest.values() if row[0] != "-D"]
        return sorted(f"{p} {k} {'-' if ts is None else ts} {v}" for _, p, k, ts, v in rows)


def rank(row: Row) -> tuple[bool, int]:
    return row[3] is not None, row[3] or 0


ROWS = st.tuples(
    st.sampled_from(["+I", "+I", "+U", "-D"]), st.integers(0, 1), st.integers(0, 3),
    st.none() | st.integers(0, 4), st.sampled_from("abc"),
)  # fmt: skip
STEPS = st.one_of(
    st.lists(ROWS, min_size=1, max_size=5),
    st.sampled_from(["convert", "convert", "compact", "compact in full"]),
    st.integers(0, 3),
)


def take(model: Model, step: Any) -> None:
    table = model.table
    if isinstance(step, list):
        model.write(step)
    elif isinstance(step, int):
        model.delete(step)
    elif step == "convert":
        table.convert(OTHER[mode_of(table)])
    else:
        table.compact(full=step == "compact in full")
    model.note()


@pytest.mark.takes_turns
@pytest.mark.one_in(14)
@pytest.mark.parametrize("options", [{}, {"deletion-vectors.enabled": "true"}], ids=str)
@settings(max_examples=8)
@given(steps=st.lists(STEPS, min_size=3, max_size=9), data=st.data())
def test_any_history_with_conversions_gives_the_rows_of_the_model(
    options: dict[str, str], steps: list[Any], data: Any
) -> None:
    model = Model(new_table(**options))
    for step in steps:
        with warnings.catch_warnings(action="error"):
            take(model, step)
        assert stored_lines(model.table) == model.shown()
    assert_sound(model.table)
    for snapshot_id in model.states:
        if snapshot_id and not options:  # rows of a write are shown with the compaction after it
            assert stored_lines(model.table, snapshot_id=snapshot_id) == model.states[snapshot_id]
    if not options:
        start, end = sorted(data.draw(st.sampled_from(sorted(model.states))) for _ in range(2))
        assert folded(model, start, end) == model.states[end]


def folded(model: Model, start: int, end: int) -> list[str]:
    """The rows of the start with the changes up to the end, of which each key has one at most."""
    told = model.table.changes(start, end).to_pylist() if start < end else []
    keys = [(row["_row_kind"] in ("-U", "-D"), row["p"], row["k"]) for row in told]
    assert len({*keys}) == len(keys)
    rows = set(model.states[start])
    for row in told:
        kind, *cells = row.values()
        text = " ".join("-" if cell is None else str(cell) for cell in cells)
        assert (text in rows) is (kind in ("-U", "-D"))
        rows ^= {text}
    return sorted(rows)


# -- refused ---------------------------------------------------------------------------------------

WIDE = pa.schema(
    [pa.field("p", pa.int32(), False), pa.field("k", pa.int64(), False), ("ts", pa.int32()),
     ("ts2", pa.int32()), ("v", pa.string()), ("late", pa.bool_())]
)  # fmt: skip
PARTIAL = {"upsert.mode": "partial", "sequence.field": "ts"}
REFUSED: dict[str, tuple[list[str], dict[str, str], str, str]] = {
    "no key": ([], {}, "full", "no primary key; write its rows to a new table"),
    "no key, no index": ([], {}, "none", "no primary key"),
    "another engine": (
        ["p", "k"], {"merge-engine": "aggregation", "fields.ts.aggregate-function": "sum"}, "full",
        r"'merge-engine' = 'aggregation' .*new table",
    ),
    "changelog": (
        ["p", "k"], {"changelog-producer": "input"}, "full",
        r"'changelog-producer' = 'input' .*RESET the option first",
    ),
    "two sequence fields": (
        ["p", "k"], {"sequence.field": "ts,ts2"}, "full", r"'sequence.field' = 'ts,ts2' means",
    ),
    "two producers": (
        ["p", "k"], {"upsert.mode": "full", "sequence.field": "ts,ts2"}, "none",
        r"'sequence.field' = 'ts,ts2' means different things",
    ),
    "rows that expire": (
        ["p", "k"], {"record-level.expire-time": "1 d", "record-level.time-field": "ts"}, "full",
        r"'record-level.expire-time' = '1 d' .*RESET",
    ),
    "dynamic buckets": (
        ["p", "k"], {"bucket": "-1"}, "full", r"'bucket' = '-1' has no fixed number",
    ),
    "keys that move": (["k"], {"bucket": "-1"}, "full", r"'bucket' = '-1' has no fixed number"),
    "NULL in the key": (
        ["p", "k"], {"primary-key.nullable": "true"}, "full", r"'primary-key.nullable' = 'true'",
    ),
    "padded numbers": (
        ["p", "k"], {"sequence.field": "ts", "sequence.auto-padding": "row-kind-flag"}, "full",
        r"'sequence.auto-padding' = 'row-kind-flag'",
    ),
    "merged when written": (["p", "k"], PARTIAL, "none", r"'upsert.mode' = 'partial', a stored"),
    "merged, indexed": (["p", "k"], PARTIAL, "full", r"from 'upsert.mode' = 'partial'"),
    "too old": (
        ["p", "k"], {"upsert.mode": "full", "sequence.field": "ts", "upsert.metadata-ttl": "9"},
        "none", r"'upsert.metadata-ttl' = '9' .*RESET",
    ),
    "errors counted": (
        ["p", "k"], {"upsert.mode": "full", "sequence.field": "ts", "upsert.row-errors": "count"},
        "none", r"'upsert.row-errors' = 'count' .*RESET",
    ),
    "deletes forgotten": (
        ["p", "k"],
        {"upsert.mode": "full", "sequence.field": "ts", "upsert.deleted-keys-ttl": "9"}, "none",
        r"'upsert.deleted-keys-ttl' = '9' .*new table",
    ),
    "late rows marked": (
        ["p", "k"],
        {"upsert.mode": "full", "sequence.field": "ts",
         "upsert.out-of-order-record-column": "late"},
        "none", r"'upsert.out-of-order-record-column' = 'late'",
    ),
    "spellings": (
        ["p", "v"], {"upsert.mode": "full", "upsert.hash-function": "uuid", "bucket": "1"}, "none",
        r"'upsert.hash-function' = 'uuid'",
    ),
    "text that marks deletes": (
        ["p", "k"],
        {"upsert.mode": "full", "sequence.field": "ts", "upsert.delete-record-column": "v"}, "none",
        r"'upsert.delete-record-column' = 'v' can become 'tombstone.key'",
    ),
    "deletes without an order": (
        ["p", "k"], {"upsert.mode": "full", "upsert.delete-record-column": "late"}, "none",
        r"BOOLEAN and 'sequence.field' is set",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore::keytide.KeytideWarning")
def test_table_that_has_no_equivalent_is_refused_before_anything_is_written(name: str) -> None:
    key, options, wanted, message = REFUSED[name]
    store = empty_store()
    table = kt.connect("", store=store).create_table("t", WIDE, key, ["p"], options=options)
    before = {file.path for file in store.list("")}
    for dry_run in (True, False):
        with pytest.raises(kt.UnsupportedError, match=rf"(?s)table default\.t cannot.*{message}"):
            table.convert(wanted, dry_run=dry_run)
    assert {file.path for file in store.list("")} == before


@pytest.mark.parametrize("wanted", ["partial", "indexed", ""])
def test_mode_that_there_is_not_is_refused(wanted: str) -> None:
    with pytest.raises(kt.InvalidError, match=r"upsert_mode is .*'none' or 'full'"):
        new_table().convert(wanted)


@pytest.mark.parametrize("mode", MODES)
def test_alteration_of_the_mode_names_the_way_out(mode: str) -> None:
    table = new_table(mode)
    with pytest.raises(kt.InvalidError, match=r"'upsert\.mode' is not .* by ALTER.*sys\.convert"):
        table.alter(SetOption("upsert.mode", OTHER[mode]))


def test_table_with_hidden_rows_that_nobody_may_compact_is_refused() -> None:
    table = new_table(**{"deletion-vectors.enabled": "true", "write-only": "true"})
    write(table, "+I 0 1 5 a")
    with pytest.raises(kt.UnsupportedError, match="rows that are not compacted"):
        table.convert("full")
    assert mode_of(table) == "none"


# -- other ways to call it -------------------------------------------------------------------------


def test_procedure_converts(lake: kt.Lake) -> None:
    lake.sql(
        "CREATE TABLE t (k INT, ts INT, v INT, PRIMARY KEY (k) NOT ENFORCED) "
        "WITH ('sequence.field' = 'ts', 'tombstone.retention' = '1 d');"
        "INSERT INTO t VALUES (1, 5, 1), (2, 5, 1); DELETE FROM t WHERE k = 1"
    )
    (told,) = lake.sql("CALL sys.convert('t', 'full', true)").to_pylist()
    assert (told["snapshot_id"], told["files_before"], told["files_after"]) == (None, 2, None)
    (done,) = lake.sql("CALL sys.convert(table => 't', upsert_mode => 'full')").to_pylist()
    assert (done["upsert_mode"], done["dropped"]) == ("full", "tombstone.retention")
    lake.sql("INSERT INTO t VALUES (1, 4, 2), (2, 6, 2)")
    lake.sql("UPDATE t SET v = v + 1; CALL sys.convert('t', 'none')")
    lake.sql("INSERT INTO t VALUES (1, 4, 3), (2, 5, 3)")
    assert lake.sql("SELECT * FROM t").to_pylist() == [{"k": 2, "ts": 6, "v": 3}]


def test_command_converts_and_names_what_was_dropped(warehouse: str) -> None:
    table = kt.connect(warehouse).create_table("t", SCHEMA, ["p", "k"])
    table.alter(SetOption("tombstone.retention", "1 d"))
    write(table, "+I 0 1 5 a")
    called = ["convert", "t", "-w", warehouse, "--upsert-mode"]
    told = CliRunner().invoke(app, [*called, "full", "--dry-run"])
    assert (told.exit_code, mode_of(table)) == (0, "none")
    done = CliRunner().invoke(app, [*called, "full"])
    assert (done.exit_code, mode_of(table), stored_lines(table)) == (0, "full", ["0 1 5 a"])
    assert "options removed because they no longer apply: tombstone.retention" in done.output
    refused = CliRunner().invoke(app, [*called, "both"])
    assert (refused.exit_code, "'none' or 'full'" in refused.output) == (1, True)
