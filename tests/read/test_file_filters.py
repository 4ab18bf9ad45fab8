"""Bloom filters of data files: reads pass over files by them, and never over a row."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.definition.schema_evolution import ChangeColumnType, RenameColumn, SetOption
from keytide.store.faults import Crash, Fault, FaultyStore
from new_tables import empty_lake, empty_store, empty_table, table_in
from type_values import SCALARS, column_of, kind_of

FILTERED = "file-index.bloom-filter.columns"
IN_MANIFEST = "file-index.in-manifest-threshold"
READ = "file-index.read.enabled"
UNFILTERED = ("BOOLEAN", "DECIMAL")


def new_table(columns: dict[str, str], keys: list[str], **options: str) -> kt.Table:
    return empty_table(columns, keys, options=options)


def files_read(table: kt.Table, where: str) -> int:
    return table.scan(where=where).explain().funnel.stages[-1].files


def names_in(table: kt.Table) -> list[str]:
    return [info.path.rsplit("/")[-1] for info in table.stored.metadata.store.list("bucket-0")]


keys = st.integers(0, 9)
rows = st.lists(st.tuples(keys, st.none() | st.integers(0, 4), st.booleans()), max_size=6)
Rows = list[tuple[int, int | None, bool]]


@pytest.mark.takes_turns
@given(st.lists(rows, max_size=5), st.sampled_from(["500 b", "0 b"]), st.sampled_from("dpa"))
def test_reads_are_those_without_filters(writes: list[Rows], threshold: str, engine: str) -> None:
    engines = {"d": "deduplicate", "p": "partial-update", "a": "aggregation"}
    options = {"merge-engine": engines[engine], "bucket": "1", IN_MANIFEST: threshold}
    table, plain = (
        new_table({"k": "INT", "v": "INT", "w": "STRING"}, ["k"], **options, **filters)
        for filters in ({FILTERED: "k,v,w"}, {})
    )
    for write in writes:
        batch = {
            k: {"k": k, "v": v, "w": None if v is None else str(v)}
            | ({"_row_kind": "-D" if gone else "+I"} if engine == "d" else {})
            for k, v, gone in write
        }
        for each in (table, plain):
            each.write(list(batch.values()))
    conditions = [f"k = {k}" for k in range(10)] + [f"v = {v}" for v in range(5)]
    for where in [*conditions, "w = '3'", "k IN (1, 2) AND v = 3", "v IN (0, 1)", "v IS NULL"]:
        found, expected = (each.scan(where=where).to_pylist() for each in (table, plain))
        assert sorted(found, key=str) == sorted(expected, key=str), where
    assert table.get_many(list(range(10))) == plain.get_many(list(range(10)))


@pytest.mark.one_in(14)
@pytest.mark.parametrize("text", [t for t in SCALARS if not t.startswith(UNFILTERED)])
def test_values_of_every_type_are_found(text: str) -> None:
    kind = kind_of(text)
    fields = {"k": text, "i": "INT"}
    values = column_of(SCALARS[text], kind)
    table = new_table(fields, ["k"], **{FILTERED: "k", "bucket": "1"})
    for number in range(len(values)):
        column = values[number : number + 1]
        table.write(pa.table({"k": column, "i": pa.array([number], pa.int32())}))
    for number, value in enumerate(values):
        assert table.get(value)["i"] == number
        assert table.why(value).versions.num_rows == 1
    assert table.get_many(list(values)).num_rows == len(values)


@pytest.mark.parametrize(("threshold", "index_files"), [("500 b", 0), ("0 b", 4)])
def test_files_without_a_value_are_not_read(threshold: str, index_files: int) -> None:
    options = {FILTERED: "k, s", IN_MANIFEST: threshold, "bucket": "1"}
    for column in ("k", "s"):
        options[f"file-index.bloom-filter.{column}.fpp"] = "0.001"
    table = new_table({"k": "BIGINT", "s": "STRING"}, ["k"], **options)
    for part in range(4):  # the key ranges of all overlap
        table.write([{"k": k, "s": f"{part}-{k}"} for k in range(part, 400, 4)])
    assert sum(name.endswith(".index") for name in names_in(table)) == index_files
    assert [files_read(table, f"k = {k}") for k in (0, 5, 399)] == [1, 1, 1]
    assert files_read(table, "k IN (0, 4, 5)") == 2
    assert files_read(table, "s = '2-6'") == 4  # they hold versions of keys that others hold too
    assert files_read(table, "s = '1-2'") == 0  # within the bounds of a file
    table.alter(SetOption(READ, "false"))
    assert files_read(table, "k = 5") == 4
    assert table.get(5) == {"k": 5, "s": "1-5"}


def test_filters_follow_their_column_and_not_another_type() -> None:
    table = new_table({"k": "INT", "v": "INT", "w": "INT"}, ["k"], **{FILTERED: "v, w"})
    for k in range(3):
        table.write([{"k": k, "v": k, "w": k}])
    table.alter(RenameColumn(("v",), "u"), ChangeColumnType(("w",), kind_of("BIGINT")))
    assert table.stored.schema.options[FILTERED].replace(" ", "") == "u,w"
    table.write([{"k": 3, "u": 1, "w": 1}])
    for column in ("u", "w"):
        found = table.scan(where=f"{column} = 1").to_pylist()
        assert sorted(row["k"] for row in found) == [1, 3]


def filter_size(**settings: str) -> int:
    options = {f"file-index.bloom-filter.k.{key}": value for key, value in settings.items()}
    options |= {FILTERED: "k", IN_MANIFEST: "1 mb"}
    table = new_table({"k": "INT"}, ["k"], **options)
    table.write([{"k": k} for k in range(1000)])
    (entry,) = table.stored.newest_files().entries
    return len(entry.file.embedded_file_index or b"")


def test_filter_has_room_for_the_rows_of_its_file_or_for_fewer_items() -> None:
    by_rows = filter_size()
    assert by_rows == filter_size(items="1000000") == filter_size(fpp="0.1")
    assert filter_size(items="100") < 150 < 600 < by_rows < 700 < 1200 < filter_size(fpp="0.01")


def test_index_file_that_is_missing_or_torn_is_an_error_until_reads_use_none(
    tmp_path: Path,
) -> None:
    def made(name: str) -> kt.Table:
        table = kt.connect(tmp_path).create_table(
            name, pa.schema([("k", pa.int64())]), ["k"], options={FILTERED: "k", IN_MANIFEST: "0 b"}
        )
        table.write([{"k": k} for k in range(100)])
        return table

    for name in ("missing", "torn"):
        table = made(name)
        (index,) = (tmp_path / "default.db" / name).rglob("*.index")
        data = bytearray(index.read_bytes())
        data[-1] ^= 1
        index.unlink() if name == "missing" else index.write_bytes(data)
        with pytest.raises(kt.DataError, match=index.name):
            table.get(1)
        table.alter(SetOption(READ, "false"))
        assert table.get(1) == {"k": 1}


@pytest.mark.parametrize("buckets", ["1", "2"])
@pytest.mark.parametrize("failing", ["*/manifest/*", "*.index"])
def test_write_that_fails_leaves_no_index_file(buckets: str, failing: str) -> None:
    store = empty_store()
    options = {"bucket": buckets, FILTERED: "k", IN_MANIFEST: "0 b"}
    rows = [{"k": 1}, {"k": 2}, {"k": 3}]
    kt.connect("", store=store).create_table(
        "t", pa.schema([("k", pa.int64())]), ["k"], options=options
    ).write(rows)
    before = sorted(info.path for info in store.list())
    assert any(path.endswith(".index") for path in before)
    faulty = FaultyStore(store, [Fault("put", failing, action="fail")])
    with pytest.raises(kt.DataError):
        table_in(faulty).write(rows)
    assert sorted(info.path for info in store.list()) == before


@pytest.mark.parametrize(
    ("columns", "error", "reason"),
    [
        ("d", kt.UnsupportedError, r"column 'd', which is DECIMAL\(4, 2\)"),
        ("b", kt.UnsupportedError, "column 'b', which is BOOLEAN"),
        ("l", kt.UnsupportedError, "column 'l', which is ARRAY<INT>"),
        ("x", kt.InvalidError, "names column 'x', which does not exist; columns: k, d, b, l"),
    ],
)
def test_columns_that_can_have_no_filter_are_refused(
    columns: str, error: type[Exception], reason: str
) -> None:
    kinds = {"k": "INT", "d": "DECIMAL(4, 2)", "b": "BOOLEAN", "l": "ARRAY<INT>"}
    with pytest.raises(error, match=reason):
        new_table(kinds, ["k"], **{FILTERED: columns})


def test_share_of_false_positives_is_one() -> None:
    for text in ("0", "1", "2", "inf", "nan", "0,5", "-0.1", "1_0"):
        with pytest.raises(kt.InvalidError, match="a number between 0 and 1"):
            new_table({"k": "INT"}, ["k"], **{"file-index.bloom-filter.k.fpp": text})


# -- files that were written without ---------------------------------------------------------------


def written_before(threshold: str, keys: list[str], **options: str) -> kt.Table:
    """Four files without filters, of a table that asks for some by now."""
    options = {IN_MANIFEST: threshold, "write-only": "true"} | options
    options |= {"bucket": "1"} if keys else {}
    table = new_table({"k": "BIGINT", "s": "STRING"}, keys, **options)
    for part in range(4):
        table.write([{"k": k, "s": f"{part}-{k}"} for k in range(part, 400, 4)])
    precise = {f"file-index.bloom-filter.{column}.fpp": "0.001" for column in ("k", "s")}
    table.alter(*(SetOption(key, value) for key, value in {FILTERED: "k", **precise}.items()))
    return table


@pytest.mark.one_in(14)
@pytest.mark.parametrize("threshold", ["500 b", "0 b"])
@pytest.mark.parametrize("keys", [["k"], []])
def test_files_get_the_filters_that_they_lack(threshold: str, keys: list[str]) -> None:
    table = written_before(threshold, keys)
    before, files = sorted(table.scan().to_pylist(), key=str), set(names_in(table))
    assert files_read(table, "k = 5") == 4
    done = table.rewrite_file_index()
    assert (done.snapshot_id, done.files, done.indexed) == (5, 4, 4)
    assert files_read(table, "k = 5") == 1
    assert files <= set(names_in(table))
    again = table.rewrite_file_index()
    assert (again.snapshot_id, again.files, again.indexed) == (None, 4, 0)
    table.alter(SetOption(FILTERED, "k,s"))
    assert table.rewrite_file_index().indexed == 4
    assert files_read(table, "k = 5 AND s = '2-6'") == 0
    assert files_read(table, "k = 5") == 1
    assert sorted(table.scan().to_pylist(), key=str) == before
    assert files_read(table, "k = 5") == 1
    table.write([{"k": 5, "s": "new"}])
    table.compact(full=True)
    table.expire_snapshots(1, 1)
    assert len(table.scan(where="k = 5").to_pylist()) == (1 if keys else 2)
    assert table.verify().is_healthy


def test_older_snapshots_tags_and_rollbacks_keep_their_indexes() -> None:
    table = written_before("0 b", ["k"])
    table.rewrite_file_index()
    table.create_tag("a")
    table.alter(SetOption(FILTERED, "k,s"))
    table.rewrite_file_index()
    table.expire_snapshots(1, 1)
    assert table.verify().is_healthy
    assert table.scan(where="k = 5", tag="a").to_pylist() == [{"k": 5, "s": "1-5"}]
    table.rollback_to("a")
    assert (files_read(table, "k = 5"), table.get(5)) == (1, {"k": 5, "s": "1-5"})


def test_dead_rows_stay_dead_when_their_file_is_indexed() -> None:
    table = written_before("0 b", [], **{"deletion-vectors.enabled": "true"})
    assert table.delete("k < 100").rows == 100
    table.rewrite_file_index()
    assert table.scan().count() == 300
    assert table.scan(where="k = 5").to_pylist() == []
    assert table.verify().is_healthy


def test_columns_that_were_renamed_or_widened_since() -> None:
    table = new_table({"k": "INT", "v": "INT", "w": "INT"}, ["k"], bucket="1")
    for k in range(3):
        table.write([{"k": k, "v": k, "w": k}])
    table.alter(RenameColumn(("v",), "u"), ChangeColumnType(("w",), kind_of("BIGINT")))
    table.alter(SetOption(FILTERED, "u,w"))
    assert table.rewrite_file_index().indexed == 3
    assert table.rewrite_file_index().indexed == 0
    for column in ("u", "w"):
        assert [r["k"] for r in table.scan(where=f"{column} = 1").to_pylist()] == [1]


def test_compaction_that_comes_first_is_a_conflict_and_leaves_nothing() -> None:
    table = written_before("0 b", ["k"])

    class Between(FaultyStore):
        acted = False

        def put(self, path: str, data: bytes) -> None:
            if path.endswith(".index") and not self.acted:
                self.acted = True
                kt.Table(table.stored.store, "t").compact(full=True)
            super().put(path, data)

    with pytest.raises(kt.ConflictError, match="try again"):
        kt.Table(Between(table.stored.store), "t").rewrite_file_index()
    assert sum(name.endswith(".index") for name in names_in(table)) == 1  # the compaction's
    assert table.verify().is_healthy
    assert table.rewrite_file_index().indexed == 0


@pytest.mark.parametrize("action", ["crash", "fail", "lost-response"])
@pytest.mark.parametrize("operation", ["put", "create", "output"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_wherever_it_stops_the_table_is_whole(action: Any, operation: Any, nth: int) -> None:
    table = written_before("0 b", ["k"])
    before = table.scan().to_pylist()
    faulty = FaultyStore(table.stored.store, [Fault(operation, nth=nth, action=action)])
    with suppress(Crash, kt.DataError):
        kt.Table(faulty, "t").rewrite_file_index()
    fresh = kt.Table(table.stored.store, "t")
    assert fresh.verify().is_healthy
    fresh.rewrite_file_index()
    assert (fresh.scan().to_pylist(), files_read(fresh, "k = 5")) == (before, 1)
    assert fresh.verify().is_healthy


def test_procedure_indexes_some_partitions_and_asks_for_columns() -> None:
    lake = empty_lake()
    lake.sql("CREATE TABLE t (p INT, k INT) PARTITIONED BY (p)")
    lake.sql("INSERT INTO t VALUES (1, 1), (2, 2)")
    with pytest.raises(kt.InvalidError, match=FILTERED):
        lake.sql("CALL sys.rewrite_file_index('t')")
    lake.sql(f"ALTER TABLE t SET ('{FILTERED}' = 'k')")
    (row,) = lake.sql("CALL sys.rewrite_file_index(table => 't', where => 'p > 1')").to_pylist()
    assert (row["files"], row["indexed"]) == (1, 1)
    assert lake.sql("CALL sys.rewrite_file_index('t')").to_pylist()[0]["indexed"] == 1
