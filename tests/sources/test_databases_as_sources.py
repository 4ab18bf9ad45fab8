"""Tables of databases as sources: their rows, in no order, and no word of a password."""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from keytide.errors import DataError, InvalidError, NotFoundError, SetupError, UnsupportedError
from keytide.predicate.predicate import And, Comparison, In, Like
from keytide.sources.database import open_source
from sources import all_rows, counted, place

sqlite = pytest.importorskip("adbc_driver_sqlite.dbapi")


def run(path: Path, *texts: str) -> None:
    with sqlite.connect(str(path), autocommit=True) as connection, connection.cursor() as cursor:
        for text in texts:
            cursor.execute(text)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "s.db"
    run(
        path,
        "CREATE TABLE events (k INTEGER, name TEXT, amount DECIMAL(9, 2), at TIMESTAMP)",
        "INSERT INTO events VALUES (1, 'a', 1.5, '2024-01-02 03:04:05'), (1, 'a', 1.5, NULL), "
        "(2, 'b', NULL, NULL), (3, NULL, 7, NULL), (4, 'd', 8, NULL)",
    )
    return path


def test_rows_are_all_that_the_table_has_and_in_no_order(base: Path) -> None:
    pinned = open_source(place(base, {"table": "EVENTS"})).pin()
    assert pinned.schema.types == [pa.int64(), pa.string(), pa.decimal128(9, 2), pa.timestamp("us")]
    (part,) = pinned.parts()
    assert (part.commit, part.is_in_order, part.rows, pinned.version) == (0, False, None, None)
    rows = all_rows(pinned)
    assert [(row["k"], row["name"]) for row in rows] == [
        (1, "a"), (1, "a"), (2, "b"), (3, None), (4, "d"),
    ]  # fmt: skip


def test_conditions_on_the_key_are_met_by_the_database_or_here(base: Path) -> None:
    pinned = open_source(place(base, {"table": "events"})).pin()
    assert [row["k"] for row in all_rows(pinned, In("k", (2, 4)))] == [2, 4]
    both = And((Comparison("k", ">", 1), Like("name", "%d")))
    assert [row["k"] for row in all_rows(pinned, both)] == [4]


def test_rows_of_now_are_read(base: Path) -> None:
    pinned = open_source(place(f"sqlite:///{base}", {"table": "events"})).pin()
    before = counted(all_rows(pinned))
    run(base, "DELETE FROM events WHERE k > 1")
    assert before != counted(all_rows(pinned))
    with pytest.raises(UnsupportedError, match="no versions"):
        open_source(place(base, {"table": "events"})).pin(3)


def test_value_of_another_type_is_told_by_its_column(base: Path) -> None:
    run(base, "INSERT INTO events VALUES (9, 'x', 'much', NULL)")
    with pytest.raises(DataError, match="'amount'"):
        all_rows(open_source(place(base, {"table": "events"})).pin())


@pytest.mark.parametrize("options", [{}, {"table": ""}])
def test_table_has_to_be_named(options: dict[str, str]) -> None:
    with pytest.raises(InvalidError, match="'table'"):
        open_source(place("x.db", options))


def test_what_is_not_there_is_not_found(base: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="table nothing"):
        open_source(place(base, {"table": "nothing"})).pin()
    with pytest.raises(NotFoundError, match=re.escape(str(tmp_path / "no.db"))):
        open_source(place(str(tmp_path / "no.db"), {"table": "t"}))


@pytest.mark.parametrize(
    "location",
    ["postgresql://me:s3cret@127.0.0.1:1/d", "postgresql://127.0.0.1:1/d?password=s3cret"],
)
def test_address_with_a_password_is_refused_and_not_shown(location: str) -> None:
    with pytest.raises(InvalidError, match="PGPASSWORD") as raised:
        open_source(place(location, {"table": "t"}))
    assert "s3cret" not in str(raised.value)


def test_password_of_the_environment_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("adbc_driver_postgresql.dbapi")
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    source = open_source(place("postgresql://me@127.0.0.1:1/d", {"table": "t"}))
    with pytest.raises(DataError) as raised:
        source.pin()
    shown = [repr(source), source.location, str(raised.value), repr(pickle.dumps(source))]
    assert not any("s3cret" in text for text in shown)


def test_extra_that_is_missing_is_named(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite.dbapi", None)
    with pytest.raises(SetupError, match=r"keytide\[databases\]"):
        open_source(place(base, {"table": "events"})).pin()
