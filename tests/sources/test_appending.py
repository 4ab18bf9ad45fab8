"""Rows appended to tables that others keep: all or none, and what does not fit is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("adbc_driver_sqlite")

import adbc_driver_sqlite.dbapi as sqlite
import deltalake
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField

from delta_tables import actions, commit, field, metadata, protocol
from iceberg_tables import as_version, catalog, create
from keytide.errors import (
    ConflictError,
    DataError,
    InvalidError,
    NotFoundError,
    SetupError,
    UnsupportedError,
)
from keytide.sources import appends, database, delta, iceberg
from keytide.sources.appends import Appender, again_after_conflicts
from keytide.sources.source import Place, Source
from sources import all_rows, check_order, counted, place

TIMESTAMP = pa.timestamp("us")
EVENTS = pa.schema([pa.field("k", pa.int64(), False), ("s", pa.string()), ("n", pa.int64())])


@dataclass(frozen=True)
class Target:
    """An empty table of EVENTS, how it is appended to and how it is read."""

    place: Place
    appender: Callable[[Place], Appender]
    source: Callable[[Place], Source]

    def append(self, rows: pa.Table, key: Sequence[str] = ("k",)) -> str | None:
        return self.appender(self.place).append(rows, key)

    @property
    def rows(self) -> list[Any]:
        return all_rows(self.source(self.place).pin())


def delta_target(folder: Path) -> Target:
    deltalake.DeltaTable.create(str(folder / "t"), deltalake.Schema.from_arrow(EVENTS))
    return Target(place(folder / "t"), appends.open_delta_appender, delta.open_source)


def iceberg_target(folder: Path) -> Target:
    create(folder, EVENTS)
    options = {"catalog.uri": f"sqlite:///{folder}/c.db"}
    return Target(place("n.t", options), appends.open_iceberg_appender, iceberg.open_source)


def database_target(folder: Path) -> Target:
    with sqlite.connect(str(folder / "b.db"), autocommit=True) as base, base.cursor() as cursor:
        cursor.execute("CREATE TABLE t (k INTEGER NOT NULL, s TEXT, n INTEGER)")
    options = {"table": "t"}
    opened = place(folder / "b.db", options)
    return Target(opened, appends.open_database_appender, database.open_source)


@pytest.fixture(params=[delta_target, iceberg_target, database_target])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    made: Target = request.param(tmp_path)
    return made


def events(*numbers: int) -> pa.Table:
    return pa.table({"n": numbers, "k": [n % 2 for n in numbers], "s": [f"s{n}" for n in numbers]})


def test_rows_are_appended_whatever_the_order_of_their_columns(target: Target) -> None:
    first = target.append(events(0, 1, 2))
    second = target.append(events(3))
    expected = [{"k": n % 2, "s": f"s{n}", "n": n} for n in range(4)]
    assert counted(target.rows) == counted(expected)
    source = target.source(target.place).pin()
    check_order(source, "n")
    assert source.version == second
    assert first != second or source.version is None


def test_values_are_cast_where_nothing_is_lost(target: Target) -> None:
    rows = pa.table({"k": pa.array([1], pa.int8()), "s": pa.array(["x"], pa.large_string()),
                     "n": pa.array([2], pa.uint16())})  # fmt: skip
    target.append(rows)
    assert target.rows == [{"k": 1, "s": "x", "n": 2}]


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("change", "key", "named"),
    [
        (lambda rows: rows.drop_columns(["s"]), ["k"], "'s' are missing"),
        (lambda rows: rows.append_column("x", rows["n"]), ["k"], "'x' do not exist"),
        (lambda rows: rows.append_column("n", rows["n"]), ["k"], "'n' come twice"),
        (lambda rows: rows, ["key"], "'key' do not exist"),
        (lambda rows: pa.table({**columns(rows), "n": ["one", "two"]}), ["k"], "'n' is int64"),
        (lambda rows: pa.table({**columns(rows), "n": [1.5, 2.0]}), ["k"], "'n' is int64"),
        (lambda rows: pa.table({**columns(rows), "k": [1, None]}), ["n"], "'k' is NOT NULL.*row 1"),
        (lambda rows: pa.table({**columns(rows), "s": [None, "a"]}), ["k", "s"], "'s' is in the"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(
    target: Target, tmp_path: Path, change: Any, key: list[str], named: str
) -> None:
    target.append(events(0))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidError, match=named):
        target.append(change(events(1, 2)), key)
    assert [row["n"] for row in target.rows] == [0]
    assert sorted(tmp_path.rglob("*")) == before


def columns(rows: pa.Table) -> dict[str, Any]:
    return dict(zip(rows.column_names, rows.columns, strict=True))


def test_appends_of_writers_side_by_side_are_all_kept(target: Target) -> None:
    """Both have looked at the table before either writes."""
    from keytide.base.process import side_by_side

    side_by_side([lambda n=n: target.append(events(n)) for n in range(4)], 4)
    assert sorted(row["n"] for row in target.rows) == [0, 1, 2, 3]


def test_lost_append_is_made_again_and_given_up_in_the_end() -> None:
    tries: list[int] = []

    def attempt() -> int:
        tries.append(len(tries))
        if len(tries) < wins_at:
            raise ConflictError("lost")
        return len(tries)

    wins_at = 3
    assert again_after_conflicts(attempt) == 3
    tries.clear()
    wins_at = 99
    with pytest.raises(ConflictError, match="lost"):
        again_after_conflicts(attempt)
    assert len(tries) == 5


def test_no_table_is_not_found(tmp_path: Path) -> None:
    catalog(tmp_path)
    options = {"catalog.uri": f"sqlite:///{tmp_path}/c.db"}
    with pytest.raises(NotFoundError):
        appends.open_delta_appender(place(tmp_path / "t")).append(events(0), ["k"])
    with pytest.raises(NotFoundError):
        appends.open_iceberg_appender(place("n.t", options)).append(events(0), ["k"])
    with sqlite.connect(str(tmp_path / "b.db")):
        pass
    (tmp_path / "b.db").touch()
    opened = appends.open_database_appender(place(tmp_path / "b.db", {"table": "t"}))
    with pytest.raises(NotFoundError, match="table t"):
        opened.append(events(0), ["k"])


# -- Delta


def test_delta_columns_that_are_mapped_are_appended_to(tmp_path: Path) -> None:
    schema = deltalake.Schema.from_arrow(EVENTS)
    told = {"delta.columnMapping.mode": "name"}
    deltalake.DeltaTable.create(str(tmp_path / "t"), schema, configuration=told)
    target = Target(place(tmp_path / "t"), appends.open_delta_appender, delta.open_source)
    target.append(events(0, 1))
    assert [row["n"] for row in target.rows] == [0, 1]
    library = pa.table(deltalake.DeltaTable(str(tmp_path / "t")).scan()).to_pylist()
    assert counted(target.rows) == counted(library)


@pytest.mark.parametrize("feature", ["identityColumns", "rowTracking", "featureOfTomorrow"])
def test_delta_features_that_cannot_be_written_are_refused_by_name(
    tmp_path: Path, feature: str
) -> None:
    told = protocol(1, 7)
    told["protocol"]["writerFeatures"] = [feature]
    commit(tmp_path / "t", 0, told, metadata(field("n", "long")))
    with pytest.raises(UnsupportedError, match=f"(?i){feature}"):
        appends.open_delta_appender(place(tmp_path / "t")).append(pa.table({"n": [1]}), [])
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["_delta_log"]


def test_delta_rows_that_meet_no_constraint_are_refused(tmp_path: Path) -> None:
    told = metadata(field("n", "long"), **{"delta.constraints.small": "n < 5"})
    commit(tmp_path / "t", 0, protocol(1, 3), told)
    appender = appends.open_delta_appender(place(tmp_path / "t"))
    appender.append(pa.table({"n": [1]}), [])
    with pytest.raises(InvalidError, match="constraint"):
        appender.append(pa.table({"n": [2, 9]}), [])
    assert len(all_rows(delta.open_source(place(tmp_path / "t")).pin())) == 1


def test_delta_append_that_lost_is_made_again_by_the_columns_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path / "t", 0, protocol(1, 2), metadata(field("n", "integer")))
    opened = appends.open_delta

    def overtaken(store: Any) -> Any:
        table = opened(store)
        if table.version() == 0:
            commit(tmp_path / "t", 1, metadata(field("n", "long")))
        return table

    monkeypatch.setattr(appends, "open_delta", overtaken)
    appender = appends.open_delta_appender(place(tmp_path / "t"))
    assert appender.append(pa.table({"n": [7]}), []) == "2"
    assert sum("add" in action for action in actions(tmp_path / "t", 2)) == 1


def test_delta_append_that_always_loses_is_a_conflict_and_keeps_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path / "t", 0, protocol(1, 2), metadata(field("n", "long")))
    opened = appends.open_delta

    def overtaken(store: Any) -> Any:
        table = opened(store)
        commit(tmp_path / "t", table.version() + 1, metadata(field("n", "long")))
        return table

    monkeypatch.setattr(appends, "open_delta", overtaken)
    with pytest.raises(ConflictError, match="another writer committed first"):
        appends.open_delta_appender(place(tmp_path / "t")).append(pa.table({"n": [7]}), [])
    assert all_rows(delta.open_source(place(tmp_path / "t")).pin()) == []


# -- Iceberg


YEAR_10000_US = 253_402_300_800_000_000


@pytest.mark.parametrize("year", ["date", "timestamp"])
def test_time_that_pyiceberg_cannot_write_is_refused_with_its_column(
    tmp_path: Path, year: str
) -> None:
    days, us = YEAR_10000_US // 86_400_000_000, YEAR_10000_US
    far = {"date": pa.array([0, days], pa.date32()), "timestamp": pa.array([0, us], TIMESTAMP)}
    table = create(tmp_path, pa.schema([("n", pa.int64()), ("at", far[year].type)]))
    opened = place("n.t", {"catalog.uri": f"sqlite:///{tmp_path}/c.db"})
    appender, numbers = appends.open_iceberg_appender(opened), pa.array([1, 2])
    with pytest.raises(InvalidError, match=r"'at': a time is in the year 10000"):
        appender.append(pa.table({"n": numbers, "at": far[year]}), ["n"])
    assert table.refresh().current_snapshot() is None
    appender.append(pa.table({"n": numbers[:1], "at": far[year][:1]}), ["n"])
    assert table.refresh().scan().to_arrow().num_rows == 1


@pytest.mark.parametrize(
    ("make", "called"),
    [
        (delta_target, "deltalake.writer.writer.try_get_table_and_table_uri"),
        (iceberg_target, "pyiceberg.table.Transaction.append"),
    ],
)
def test_any_error_within_the_library_is_reported_as_one_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Target], called: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OverflowError("no such day")

    target = make(tmp_path)
    monkeypatch.setattr(called, fail)
    with pytest.raises(DataError, match="no such day"):
        target.append(events(0))


def test_iceberg_table_of_a_folder_is_not_appended_to(tmp_path: Path) -> None:
    table = create(tmp_path, EVENTS)
    with pytest.raises(UnsupportedError, match=r"catalog\.uri"):
        appends.open_iceberg_appender(place(table.location()))


def test_iceberg_version_3_is_refused_by_name(tmp_path: Path) -> None:
    as_version(create(tmp_path, EVENTS), 3)
    opened = place("n.t", {"catalog.uri": f"sqlite:///{tmp_path}/c.db"})
    with pytest.raises(UnsupportedError, match="format version 3"):
        appends.open_iceberg_appender(opened).append(events(0), ["k"])


def test_iceberg_partitions_that_need_another_library_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyiceberg_core", None)
    schema = Schema(NestedField(1, "n", LongType()))
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(8), "b"))
    catalog(tmp_path).create_table("n.t", schema, partition_spec=spec)
    opened = place("n.t", {"catalog.uri": f"sqlite:///{tmp_path}/c.db"})
    with pytest.raises(SetupError, match=r"BucketTransform.*pyiceberg-core"):
        appends.open_iceberg_appender(opened).append(pa.table({"n": [1]}), [])


def test_iceberg_append_that_always_loses_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path, EVENTS)
    from pyiceberg.table import Table

    def lost(*_: Any, **__: Any) -> None:
        raise CommitFailedException("branch main has changed")

    monkeypatch.setattr(Table, "append", lost)
    opened = place("n.t", {"catalog.uri": f"sqlite:///{tmp_path}/c.db"})
    with pytest.raises(ConflictError, match="branch main has changed"):
        appends.open_iceberg_appender(opened).append(events(0), ["k"])


# -- databases


def test_database_refuses_a_key_that_is_taken_and_keeps_no_row(tmp_path: Path) -> None:
    with sqlite.connect(str(tmp_path / "b.db"), autocommit=True) as base, base.cursor() as cursor:
        cursor.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, s TEXT, n INTEGER)")
    target = Target(
        place(tmp_path / "b.db", {"table": "t"}),
        appends.open_database_appender,
        database.open_source,
    )
    target.append(events(0, 1))
    with pytest.raises(InvalidError, match="refuses the rows"):
        target.append(pa.table({"k": [7, 1], "s": ["a", "b"], "n": [1, 2]}))
    assert sorted(row["k"] for row in target.rows) == [0, 1]
