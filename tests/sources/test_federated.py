"""Tables of others that SQL appends to: `Lake.attach` with a format."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import iceberg_tables
import keytide as kt

SCHEMA = pa.schema([("k", pa.int32()), ("w", pa.int32()), ("d", pa.bool_()), ("v", pa.string())])
KEYS = kt.UpsertKeys(["k"], ["w"], "d")
PROPERTIES = {
    "keytide.primary-key": "k",
    "keytide.watermark-key": "w",
    "keytide.tombstone-key": "d",
}
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Federated:
    """An empty table `far.t` of a lake, and what its own engine says that is in it."""

    lake: kt.Lake
    stored: Callable[[], Rows]

    def sql(self, text: str) -> int | None:
        return self.lake.sql(text).row_count

    def rows(self, text: str = "SELECT * FROM far.t") -> Rows:
        return values(self.lake.sql(text).to_arrow())


def values(table: pa.Table) -> Rows:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def delta(folder: Path, keys: kt.UpsertKeys | None = KEYS) -> Federated:
    deltalake.DeltaTable.create(
        folder / "far/t",
        SCHEMA,
        configuration={} if keys else PROPERTIES,
        raise_if_key_not_exists=False,
    )
    lake = kt.connect(folder / "lake")
    lake.attach("far", folder / "far", format="delta", tables={"t": keys} if keys else {})
    return Federated(lake, lambda: values(_delta_rows(folder)))


def _delta_rows(folder: Path) -> pa.Table:
    return pa.table(deltalake.DeltaTable(folder / "far/t").to_pyarrow_table())


def iceberg(folder: Path, keys: kt.UpsertKeys | None = KEYS) -> Federated:
    table = iceberg_tables.create(folder / "far", SCHEMA, **({} if keys else PROPERTIES))
    lake = kt.connect(folder / "lake")
    options = {"catalog.uri": f"sqlite:///{folder}/far/c.db"}
    lake.attach("far", "n", format="iceberg", options=options, tables={"t": keys} if keys else {})
    return Federated(lake, lambda: values(table.refresh().scan().to_arrow()))


def sqlite(folder: Path, keys: kt.UpsertKeys, watermark: str = "INTEGER") -> Federated:
    with sqlite3.connect(folder / "far.db") as connection:
        connection.execute(f"CREATE TABLE t (k INTEGER, w {watermark}, d BOOLEAN, v TEXT)")
    lake = kt.connect(folder / "lake")
    lake.attach("far", folder / "far.db", format="sqlite", tables={"t": keys})

    def stored() -> Rows:
        with sqlite3.connect(folder / "far.db") as connection:
            return sorted(connection.execute("SELECT * FROM t").fetchall(), key=repr)

    return Federated(lake, stored)


ENGINES = pytest.mark.parametrize("engine", [delta, iceberg])
FIRST = "INSERT INTO far.t VALUES (1, 5, NULL, 'a'), (2, 6, NULL, 'b')"


@pytest.mark.one_in(14)
@ENGINES
def test_changes_are_appended_as_versions_that_the_tables_engine_shows(
    engine: Callable[[Path], Federated], tmp_path: Path
) -> None:
    far = engine(tmp_path)
    assert far.sql(FIRST) == 2
    assert far.sql("UPDATE far.t SET v = 'z' WHERE k = 1") == 1
    assert far.sql("DELETE FROM far.t WHERE v = 'b'") == 1
    assert far.sql("UPDATE far.t SET k = 3") == 1
    merged = far.sql(
        "MERGE INTO far.t t USING (SELECT 3 AS k UNION ALL SELECT 4) s ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET v = 'm' "
        "WHEN NOT MATCHED THEN INSERT VALUES (s.k, 1, NULL, 'n')"
    )
    assert merged == 2
    assert far.rows() == [(3, 5, None, "m"), (4, 1, None, "n")]
    assert far.stored() == [
        (1, 5, None, "a"), (1, 5, None, "z"), (1, 5, True, None), (2, 6, None, "b"),
        (2, 6, True, None), (3, 5, None, "m"), (3, 5, None, "z"), (4, 1, None, "n"),
    ]  # fmt: skip


@ENGINES
def test_keys_are_read_from_the_tables_own_properties(engine: Any, tmp_path: Path) -> None:
    far = engine(tmp_path, None)
    far.sql(FIRST)
    assert far.sql("DELETE FROM far.t WHERE k = 1") == 1
    assert far.sql("DELETE FROM far.t") == 1
    assert far.rows() == []
    assert (1, 5, True, None) in far.stored()


@pytest.mark.parametrize(
    ("keys", "text", "error", "message"),
    [
        (kt.UpsertKeys(["k"], ["w"]), "DELETE FROM far.t", kt.UnsupportedError, "no tombstone key"),
        (kt.UpsertKeys(["k"], ["w"]), "UPDATE far.t SET k = 9 WHERE k = 1", kt.UnsupportedError,
         "no tombstone key"),
        (KEYS, "INSERT INTO far.t VALUES (NULL, 1, NULL, '')", kt.InvalidError, "primary key"),
        (KEYS, "UPDATE far.t SET k = NULL WHERE k = 1", kt.InvalidError, "NULL"),
        (KEYS, "UPDATE far.t SET w = 1 WHERE k = 1", kt.InvalidError, "older"),
        (KEYS, "UPDATE far.t SET k = 2 WHERE k = 1", kt.InvalidError, "two rows"),
        (KEYS, "UPDATE far.t SET k = 9", kt.InvalidError, "two rows"),
        (KEYS, "UPDATE far.t SET k = k + 1", kt.InvalidError, "would be invisible"),
        (kt.UpsertKeys(["k"], ["w"], "d", dml_watermark="explicit"), "DELETE FROM far.t",
         kt.UnsupportedError, "explicit"),
        (kt.UpsertKeys(["k"], ["w"], "d", dml_watermark="explicit"), "UPDATE far.t SET v = ''",
         kt.InvalidError, "explicit"),
        (kt.UpsertKeys(["k"], ["w"], "d", dml_watermark="statement-time"), "SELECT * FROM far.t",
         kt.InvalidError, "statement-time"),
        (kt.UpsertKeys(["k"], ["nix"]), "SELECT * FROM far.t", kt.InvalidError, "nix"),
        (kt.UpsertKeys(), "SELECT * FROM far.t", kt.InvalidError, "primary key"),
        (KEYS, "SELECT * FROM far.other", kt.NotFoundError, "other"),
        (KEYS, "SELECT * FROM far.t TIMESTAMP AS OF 1", kt.UnsupportedError, "reads by time"),
    ],
)  # fmt: skip
def test_what_would_not_be_seen_is_refused_before_anything_is_appended(
    keys: kt.UpsertKeys, text: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    far = delta(tmp_path, keys)
    rows = pa.table([[1, 2], [5, 6], [None, None], ["a", "b"]], schema=SCHEMA)
    deltalake.write_deltalake(tmp_path / "far/t", rows, mode="append")
    before = far.stored()
    with pytest.raises(error, match=message):
        far.rows(text) if text.startswith("SELECT") else far.sql(text)
    assert far.stored() == before


def test_place_that_cannot_be_appended_to_is_refused_by_name(tmp_path: Path) -> None:
    lake = kt.connect(tmp_path / "lake")
    with pytest.raises(kt.UnsupportedError, match="appending rows to parquet is not supported"):
        lake.attach("far", tmp_path, format="parquet")
    with pytest.raises(kt.InvalidError, match="no option 'nix'"):
        lake.attach("far", tmp_path, format="delta", options={"nix": "1"})
    with pytest.raises(kt.UnsupportedError, match="isolation 'snapshot'"):
        lake.attach("far", tmp_path, format="delta", isolation="serializable")
    with pytest.raises(kt.InvalidError, match="require a format"):
        lake.attach("far", tmp_path / "x.db", tables={"t": KEYS})
    assert lake.attached == []


def test_database_is_changed_with_watermarks_that_are_set_and_rise(tmp_path: Path) -> None:
    far = sqlite(tmp_path, kt.UpsertKeys(["k"], ["w"], "d", dml_watermark="explicit"))
    far.sql(FIRST)
    with pytest.raises(kt.InvalidError, match="not above"):
        far.sql("UPDATE far.t SET w = 5, v = 'z' WHERE k = 1")
    assert far.sql("UPDATE far.t SET w = w + 1, v = 'z' WHERE k = 1") == 1
    assert far.sql("UPDATE far.t SET w = w + 1, d = TRUE WHERE k = 2") == 1
    assert far.rows() == [(1, 6, None, "z")]
    assert len(far.stored()) == 4


def test_time_of_a_statement_is_later_than_a_watermark_from_the_future(tmp_path: Path) -> None:
    far = sqlite(
        tmp_path, kt.UpsertKeys(["k"], ["w"], "d", dml_watermark="statement-time"), "TIMESTAMP"
    )
    far.sql("INSERT INTO far.t VALUES (1, TIMESTAMP '2999-01-01 00:00:00', NULL, 'z')")
    far.sql("INSERT INTO far.t VALUES (2, TIMESTAMP '2001-01-01 00:00:00', NULL, 'b')")
    assert far.sql("UPDATE far.t SET v = 'a'") == 2
    assert far.rows("SELECT k, v FROM far.t") == [(1, "a"), (2, "a")]
    assert far.sql("DELETE FROM far.t") == 2
    assert far.rows() == []


def test_copied_watermark_is_refused_where_nobody_tells_which_row_came_later(
    tmp_path: Path,
) -> None:
    far = sqlite(tmp_path, KEYS)
    far.sql(FIRST)
    with pytest.raises(kt.UnsupportedError, match="statement-time"):
        far.sql("DELETE FROM far.t")
    assert len(far.rows()) == 2


def test_statement_sees_one_version_however_often_it_names_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keytide.sources.delta import DeltaSource

    far, pins, pin = delta(tmp_path), [], DeltaSource.pin
    monkeypatch.setattr(DeltaSource, "pin", lambda *given: pins.append(1) or pin(*given))
    far.sql(FIRST)
    assert far.rows("SELECT a.k FROM far.t a JOIN far.t b ON a.k = b.k") == [(1,), (2,)]
    assert far.sql("DELETE FROM far.t WHERE k IN (SELECT max(k) FROM far.t)") == 1
    assert len(pins) == 3


@ENGINES
def test_killed_append_leaves_nothing_that_is_seen(
    engine: Callable[[Path], Federated], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    far = engine(tmp_path)
    far.sql(FIRST)
    if engine is delta:
        log = tmp_path / "far/t/_delta_log"
        (log / f"{2:020d}.json").mkdir()  # the files are written, and then no commit can be
    else:

        def killed(*given: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(SqlCatalog, "commit_table", killed)
    before = len(list((tmp_path / "far").rglob("*.parquet")))
    with pytest.raises((kt.KeytideError, KeyboardInterrupt)):
        far.sql("UPDATE far.t SET v = 'z'")
    assert len(list((tmp_path / "far").rglob("*.parquet"))) > before
    monkeypatch.undo()
    if engine is delta:
        (log / f"{2:020d}.json").rmdir()
    assert far.rows() == [(1, 5, None, "a"), (2, 6, None, "b")]
    assert far.sql("UPDATE far.t SET v = 'z'") == 2


# -- a table of the lake says what the rows are ----------------------------------------------------

KEY, WATERMARK = st.integers(0, 3), st.integers(0, 3)
TEXT = st.sampled_from("abc")
CHANGES = st.one_of(
    st.builds("INSERT INTO {{}} VALUES ({}, {}, NULL, '{}')".format, KEY, WATERMARK, TEXT),
    st.builds("UPDATE {{}} SET v = '{}' WHERE k >= {}".format, TEXT, KEY),
    st.builds("UPDATE {{}} SET w = w + 1 WHERE v < '{}'".format, TEXT),
    st.builds("UPDATE {{}} SET k = {}, w = 9 WHERE k = {}".format, KEY, KEY),
    st.builds("DELETE FROM {{}} WHERE k = {} OR v = '{}'".format, KEY, TEXT),
    st.builds(
        "MERGE INTO {{}} t USING (SELECT {} AS k, '{}' AS v UNION ALL SELECT 7, 'x') s "
        "ON t.k = s.k WHEN MATCHED AND t.w = 2 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED THEN INSERT VALUES (s.k, 2, NULL, s.v)".format,
        KEY,
        TEXT,
    ),
)


@pytest.mark.one_in(14)
@ENGINES
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(CHANGES, min_size=2, max_size=6))
def test_history_gives_the_rows_and_the_counts_that_it_gives_in_a_table_of_the_lake(
    engine: Callable[[Path], Federated],
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[str],
) -> None:
    far = engine(tmp_path_factory.mktemp("history"))
    far.lake.create_table(
        "near", SCHEMA, primary_key=["k"], options={"watermark.key": "w", "tombstone.key": "d"}
    )
    for text in changes:
        outcomes = [outcome(far.lake, text.format(name)) for name in ("far.t", "near")]
        assert outcomes[0] == outcomes[1], text
        assert far.rows() == far.rows("SELECT * FROM near"), text


def outcome(lake: kt.Lake, text: str) -> object:
    try:
        return lake.sql(text).row_count
    except kt.KeytideError as error:
        return type(error)


def test_a_table_is_read_and_changed_by_its_methods_as_by_statements(tmp_path: Path) -> None:
    far = delta(tmp_path)
    table = far.lake.table("far.t")
    assert isinstance(table, kt.FederatedTable)
    row = {"k": 1, "w": 5, "d": None, "v": "a"}
    assert table.write([row, {**row, "k": 2}]) == kt.AppendResult(2, "1")
    assert table.write([]) == kt.AppendResult(0, None)
    assert table.update({"v": "'z'"}, "k = 1").rows == 1
    assert table.delete("v = 'a'").rows == 1
    merged = (
        table.merge(pa.table({"k": [1, 9]}), "target.k = source.k")
        .when_matched_update({"v": "'m'"})
        .when_not_matched_insert({"k": "source.k", "w": 1})
        .execute()
    )
    assert merged.rows == 2
    assert far.rows() == [(1, 5, None, "m"), (9, 1, None, None)]
    assert values(table.scan().to_arrow()) == far.rows()
    assert table.get(1) == {**row, "v": "m"}
    assert table.get_many([9, 2])["k"].to_pylist() == [9]
    assert table.why(2).versions.num_rows == 2
    kinds = table.changes(1).to_arrow()["_row_kind"]
    assert sorted(kinds.to_pylist()) == ["+I", "+U", "-D", "-U"]


@ENGINES
def test_an_older_version_is_read_beside_the_newest(engine: Any, tmp_path: Path) -> None:
    far = engine(tmp_path)
    far.sql(FIRST)
    first = far.lake.table("far.t").scan().version
    far.sql("UPDATE far.t SET v = 'z' WHERE k = 1")
    then = f"far.t VERSION AS OF {first}"
    assert far.rows(f"SELECT k, v FROM {then}") == [(1, "a"), (2, "b")]
    joined = f"SELECT t.v, n.v AS now FROM {then} t JOIN far.t n ON t.k = n.k WHERE t.k = 1"
    assert far.rows(joined) == [("a", "z")]
    assert far.lake.table("far.t").scan(version=first).count() == 2
    with pytest.raises(kt.NotFoundError, match="77"):
        far.rows("SELECT * FROM far.t VERSION AS OF 77")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda t: t.compact(), kt.UnsupportedError, "far.t is a federated table.*'compact'"),
        (lambda t: t.write([{"k": 1}]), kt.InvalidError, "'w', 'd', 'v' are missing"),
        (lambda t: t.scan(version=77), kt.NotFoundError, "no readable version 77"),
        (lambda t: t.delete("nope = 1"), kt.InvalidError, "nope"),
        (lambda t: t.merge(7, "true"), kt.InvalidError, "cannot read a builtins.int"),
        (lambda t: t.merge("SELECT 1 AS k", "true").execute(), kt.InvalidError, "without a WHEN"),
    ],
)
def test_a_table_refuses_what_it_cannot_do_and_stays_as_it_was(
    call: Callable[[Any], Any], error: type[kt.KeytideError], text: str, tmp_path: Path
) -> None:
    far = delta(tmp_path)
    far.sql(FIRST)
    before = far.stored()
    with pytest.raises(error, match=text):
        call(far.lake.table("far.t"))
    assert far.stored() == before


def test_tables_of_a_connector_without_a_format_are_for_sql_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "far.db") as connection:
        connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY)")
    lake = kt.connect(tmp_path / "lake")
    lake.attach("far", tmp_path / "far.db")
    with pytest.raises(kt.UnsupportedError, match=r"only in Lake\.sql"):
        lake.table("far.t")
    with pytest.raises(kt.UnsupportedError, match="no versions"):
        lake.sql("SELECT * FROM far.t VERSION AS OF 1")


@ENGINES
def test_a_row_cannot_move_to_a_key_that_was_deleted_later(engine: Any, tmp_path: Path) -> None:
    far = engine(tmp_path)
    far.sql(FIRST)
    far.sql("INSERT INTO far.t VALUES (7, 9, true, NULL)")
    with pytest.raises(kt.InvalidError, match=r"'k': 7\}, which was deleted at a later time"):
        far.sql("UPDATE far.t SET k = 7 WHERE k = 1")
    assert far.sql("UPDATE far.t SET k = 7, w = 9 WHERE k = 1") == 1
    assert far.rows() == [(2, 6, None, "b"), (7, 9, None, "a")]


@ENGINES
def test_rows_of_an_insert_wait_on_disk_and_are_checked_before_any_is_written(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keytide.dml.fragments import Spool
    from keytide.sources import federated

    monkeypatch.setattr(federated, "Spool", lambda memory_bytes: Spool(1))
    far = engine(tmp_path)
    rows = "SELECT CAST(i AS INT), 1, NULL, repeat('x', 9) FROM range(9000) t(i)"
    before = {*(tmp_path / "far").rglob("*")}
    with pytest.raises(kt.InvalidError, match="primary key"):
        far.sql(f"INSERT INTO far.t {rows.replace('CAST(i', 'CAST(nullif(i, 8999)')}")
    assert {*(tmp_path / "far").rglob("*")} == before
    assert far.sql(f"INSERT INTO far.t {rows}") == 9000
    assert far.rows("SELECT count(*), count(DISTINCT k), sum(k) FROM far.t") == [
        (9000, 9000, 8999 * 4500)
    ]


def test_tables_that_others_keep_are_merged_into_others(tmp_path: Path) -> None:
    far = delta(tmp_path)
    far.sql(FIRST)
    near = far.lake.create_table("near", SCHEMA, ["k"])
    outer = far.lake.create_external_table(
        "outer", format="delta", location=str(tmp_path / "far/t"), primary_key=["k"]
    )
    for source in (far.lake.table("far.t"), outer):
        merge = near.merge(source, "target.k = source.k").when_matched_update({"v": "'again'"})
        assert merge.when_not_matched_insert_all().execute().rows == 2
    assert [row["v"] for row in near.scan().to_pylist()] == ["again", "again"]
    table = far.lake.table("far.t")
    assert isinstance(table, kt.FederatedTable)
    assert table.merge(outer, "target.k = source.k").when_matched_delete().execute().rows == 2
    assert far.rows() == []


@ENGINES
def test_changes_are_told_across_a_column_that_came_meanwhile(
    engine: Callable[[Path], Federated], tmp_path: Path
) -> None:
    far = engine(tmp_path)
    far.sql(FIRST)
    table = far.lake.table("far.t")
    first = table.scan().version
    if engine is delta:
        added = deltalake.Field.from_arrow(pa.field("n", pa.int64()))
        deltalake.DeltaTable(tmp_path / "far/t").alter.add_columns(added)
    else:
        with iceberg_tables.catalog(tmp_path / "far").load_table("n.t").update_schema() as update:
            update.union_by_name(pa.schema([*SCHEMA, pa.field("n", pa.int64())]))
    far.sql("UPDATE far.t SET n = 4 WHERE k = 1")
    told = table.changes(first).to_pylist()
    assert [(row["_row_kind"], row["k"], row["n"]) for row in told] == [
        ("-U", 1, None),
        ("+U", 1, 4),
    ]


def test_versions_between_which_a_column_became_another_are_not_compared(tmp_path: Path) -> None:
    far = delta(tmp_path)
    far.sql(FIRST)
    numbers = pa.table({"k": pa.array([1], pa.int32()), "w": pa.array([1], pa.int32()),
                        "d": [True], "v": [7]})  # fmt: skip
    deltalake.write_deltalake(
        tmp_path / "far/t", numbers, mode="overwrite", schema_mode="overwrite"
    )
    with pytest.raises(
        kt.InvalidError, match=r"versions 1 and 2 cannot be compared.*'v' is STRING"
    ):
        far.lake.table("far.t").changes(1).to_pylist()


def test_empty_text_is_refused_where_a_partition_would_make_it_null(tmp_path: Path) -> None:
    deltalake.DeltaTable.create(tmp_path / "far/t", SCHEMA, partition_by="v")
    lake = kt.connect(tmp_path / "lake")
    lake.attach("far", tmp_path / "far", format="delta", tables={"t": KEYS})
    with pytest.raises(kt.InvalidError, match=r"partitioned by column 'v'.*empty string as NULL"):
        lake.sql("INSERT INTO far.t VALUES (1, 5, NULL, 'a'), (2, 6, NULL, '')")
    assert lake.sql("INSERT INTO far.t VALUES (1, 5, NULL, 'a'), (2, 6, NULL, NULL)").row_count == 2


def test_lists_are_read_however_the_library_writes_them(tmp_path: Path) -> None:
    iceberg_tables.create(
        tmp_path / "far", pa.schema([("k", pa.int32()), ("v", pa.list_(pa.int32()))])
    )
    lake = kt.connect(tmp_path / "lake")
    options = {"catalog.uri": f"sqlite:///{tmp_path}/far/c.db"}
    lake.attach("far", "n", format="iceberg", options=options, tables={"t": kt.UpsertKeys(["k"])})
    lake.sql("INSERT INTO far.t SELECT 1, [4, NULL] UNION ALL SELECT 2, NULL")
    large = pa.table(
        {"k": pa.array([3], pa.int32()), "v": pa.array([[]], pa.large_list(pa.int32()))}
    )
    iceberg_tables.catalog(tmp_path / "far").load_table("n.t").append(large)
    assert values(lake.sql("SELECT * FROM far.t").to_arrow()) == [
        (1, [4, None]),
        (2, None),
        (3, []),
    ]


@pytest.mark.parametrize("turn", [1, -1])
def test_of_versions_in_partitions_that_are_no_part_of_the_key_nobody_knows_the_later_one(
    turn: int, tmp_path: Path
) -> None:
    deltalake.DeltaTable.create(tmp_path / "far/t", SCHEMA, partition_by="v")
    lake = kt.connect(tmp_path / "lake")
    lake.attach("far", tmp_path / "far", format="delta", tables={"t": KEYS})
    rows = [{"k": 1, "w": 5, "d": None, "v": v} for v in "abc"[::turn]]
    lake.table("far.t").write([*rows, {**rows[0], "k": 2}, {**rows[0], "k": 2, "d": True}])
    assert values(lake.sql("SELECT * FROM far.t").to_arrow()) == [(1, 5, None, "c")]
    assert lake.sql("UPDATE far.t SET v = 'a'").row_count == 1
    assert values(lake.sql("SELECT k, v FROM far.t").to_arrow()) == [(1, "a")]


def test_time_that_no_text_of_a_database_can_have_is_refused(tmp_path: Path) -> None:
    keys = kt.UpsertKeys(["k"], ["w"], "d", dml_watermark="statement-time")
    far = sqlite(tmp_path, keys, "TIMESTAMP")
    far.sql("INSERT INTO far.t VALUES (1, TIMESTAMP '9999-12-31 23:59:59.999999', NULL, 'a')")
    before = far.stored()
    with pytest.raises(kt.InvalidError, match="column 'w': a time is in the year 10000"):
        far.sql("DELETE FROM far.t")
    assert far.stored() == before


def test_catalog_of_another_name_is_told_where_it_has_no_such_table(tmp_path: Path) -> None:
    far = iceberg(tmp_path)
    options = {"catalog.uri": f"sqlite:///{tmp_path}/far/c.db", "catalog.name": "other"}
    far.lake.attach("wrong", "n", format="iceberg", options=options, tables={"t": KEYS})
    with pytest.raises(kt.NotFoundError, match=r"of the name 'other' \(catalog\.name\)"):
        far.lake.table("wrong.t")


def test_calls_look_at_a_table_once_and_for_columns_of_given_rows_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keytide.sources.delta import DeltaSource

    far, pins, pin = delta(tmp_path), [], DeltaSource.pin
    far.sql(FIRST)
    table = far.lake.table("far.t")
    assert isinstance(table, kt.FederatedTable)
    monkeypatch.setattr(DeltaSource, "pin", lambda *given: pins.append(1) or pin(*given))

    def merge() -> Any:
        return table.merge([{"k": 1}], "target.k = source.k").when_matched_delete().execute()

    calls: list[tuple[Callable[[], Any], int]] = [
        (lambda: table.get(1), 1),
        (lambda: table.update({"v": "'z'"}, "k = 1"), 1),
        (lambda: table.delete("k = 2"), 1),
        (merge, 2),
    ]
    for call, looks in calls:
        pins.clear()
        call()
        assert len(pins) == looks
