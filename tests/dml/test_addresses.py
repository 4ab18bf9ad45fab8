"""Addresses of databases: which are understood, and that none gives a secret away."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from databases import SomeDatabase
from hypothesis import given, settings
from hypothesis import strategies as st

import keytide as kt
from keytide.dml.database_addresses import check_postgres, place_of_postgres, without_secrets

# Addresses that people write, or mistake for one; {} is a secret.
FORMS = [
    "postgresql://u:{}@127.0.0.1:1/db", "postgres://u:{}@127.0.0.1:1",
    "postgresql://:{}@127.0.0.1:1/d",
    "postgresql://u:{}@127.0.0.1:port/db",
    "postgresql://u:{}@127.0.0.1:1/d@b",
    "postgresql://u@127.0.0.1:1/db?password={}",
    "postgresql://u@127.0.0.1:1/db?sslpassword={}&sslmode=x",
    "postgresql://u@127.0.0.1:1/db?password={}&x", "postgresql://u@127.0.0.1:1/db?passwrd={}",
    "postgresql://u@127.0.0.1:1/db?options=-c%20x%3D{}",
    "postgresql://u:{}@127.0.0.1:1,127.0.0.1:2/db",
    "postgresql:/u:{}@h/db", "postgresql:u:{}@h/db", "postgresql//u:{}@h/db", "//u:{}@h/db",
    "u:{}@h/db", "u:{}@h:5432", "mysql://u:{}@h/db", "{}://h/db", "mysql+pymysql://u:{}@h/db",
    "jdbc:postgresql://h/db?user=u&password={}", "host=h user=u password={}",
    "password='{}' host=h",
    "host = h password = {}", "dbname=d;pwd={}", "Server=h;Uid=u;Pwd={};", "sqlite://u:{}@h/x.db",
    "sqlite:///x.db?key={}", "file:x.db?key={}", "PGPASSWORD={} psql -h h", "u/{}@h:1521/x",
]  # fmt: skip
FIRST, LAST = "qzxj", "jxzq"
"""A secret begins and ends with letters that nothing else has."""

secrets = st.text(st.sampled_from("ab1 /@:?#%=&;'\"\\%40%2F[]é"), max_size=6)


def said_about(warehouse: Path, place: str) -> list[str]:
    """All that is told of an attempt to attach a place that is none."""
    lake = kt.connect(warehouse)
    with pytest.raises(kt.KeytideError) as raised:
        lake.attach("db", place)
    error = raised.value
    return [str(error), repr(error), repr(lake), "".join(traceback.format_exception(error))]


@pytest.mark.parametrize("form", FORMS)
def test_secret_of_an_address_is_shown_nowhere(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    caplog.set_level(logging.DEBUG)
    for between in ("", "/", "@", ":", "%40", " ", "#", "?x=", "&a="):
        secret = f"{FIRST}{between}{LAST}"
        told = [*said_about(tmp_path, form.format(secret)), caplog.text]
        # The traceback shows the lines of this test, none of which has one.
        assert not [text for text in told if FIRST in text or LAST in text]


@settings(max_examples=150)
@given(form=st.sampled_from(FORMS), between=secrets, others=st.text(max_size=4))
def test_what_is_understood_of_an_address_has_no_secret(
    form: str, between: str, others: str
) -> None:
    place = form.replace("{}", f"{FIRST}{between}{LAST}").replace("u:", f"u{others}:")
    told = [place_of_postgres(place)]
    try:
        check_postgres(place)
        told.append(without_secrets(f"cannot connect to {place}", place))
    except kt.InvalidError as error:
        told.append(str(error))
    assert not [text for text in told if FIRST in text or LAST in text]


@pytest.mark.parametrize(
    "place",
    [
        "postgresql://h/db", "postgres://h", "postgresql://", "postgresql:///db", "postgresql://u@/db",
        "postgresql://u:p%40%2F@h:5432/db", "postgresql://u:@h:/db?", "postgresql://[::1]:5432/db",
        "postgresql://h1:1,h2:2/db?target_session_attrs=any", "postgresql://%2Fvar%2Frun/db",
        "postgresql:///db?host=/var/run&user=u", "postgresql://u:p-._~!$'()*+,;=@h/db",
    ],
)  # fmt: skip
def test_address_of_postgres_is_understood(place: str) -> None:
    check_postgres(place)


def test_statements_on_a_database_with_a_password_show_none_of_it(
    postgres: SomeDatabase, tmp_path: Path
) -> None:
    postgres.run("CREATE TABLE t (k int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    user, _, rest = postgres.place.partition("@")
    lake = kt.connect(tmp_path)
    lake.attach("db", f"{user}:{FIRST}%40{LAST}@{rest}?application_name=a")
    texts = ["EXPLAIN SELECT * FROM db.t WHERE k = 1", "EXPLAIN UPDATE db.t SET v = 2",
             "EXPLAIN ANALYZE DELETE FROM db.t WHERE k = 9", "SHOW TABLES IN db"]  # fmt: skip
    told = [repr(lake), *(str(lake.sql(text).to_pylist()) for text in texts)]
    for text in ("SELECT * FROM db.nothing", "INSERT INTO db.t VALUES (1, 1)", "DROP TABLE db.t"):
        with pytest.raises(kt.KeytideError) as raised:
            lake.sql(text)
        told += [str(raised.value), "".join(traceback.format_exception(raised.value))]
    assert not [text for text in told if FIRST in text or LAST in text]


# -- files -----------------------------------------------------------------------------------------

NO_DATABASES: dict[str, bytes] = {
    "text": b"this is no database, although it is long enough for a header of a hundred bytes " * 3,
    "short text": b"id,name\n1,a\n",
    "header alone": b"SQLite format 3\0" + b"\xff" * 200,
    "parquet": b"PAR1" + bytes(500) + b"PAR1",
}


@pytest.mark.parametrize("content", NO_DATABASES)
def test_file_that_is_no_database_is_not_attached(tmp_path: Path, content: str) -> None:
    pytest.importorskip("adbc_driver_sqlite")
    path = tmp_path / "some.file"
    path.write_bytes(NO_DATABASES[content])
    lake = kt.connect(tmp_path / "lake")
    with pytest.raises(kt.DataError, match=r"some\.file"):
        lake.attach("db", path)
    assert lake.attached == []


def test_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(kt.NotFoundError, match=r"the file .* does not exist"):
        kt.connect(tmp_path / "lake").attach("db", tmp_path)


@pytest.mark.parametrize("name", ["sys", "SYS", "select", "Values", "where", "lateral"])
def test_name_that_sql_takes_for_its_own_is_refused(
    tmp_path: Path, sqlite: SomeDatabase, name: str
) -> None:
    lake = kt.connect(tmp_path / "lake")
    with pytest.raises(kt.InvalidError, match="choose another name"):
        lake.attach(name, sqlite.place)
    assert lake.attached == []


@pytest.mark.parametrize("name", ["db", "Mem", "_x", "größe", "target", "source", "main", "table"])
def test_other_name_leads_to_its_tables(tmp_path: Path, sqlite: SomeDatabase, name: str) -> None:
    sqlite.run("CREATE TABLE t (k INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    lake = kt.connect(tmp_path / "lake")
    lake.attach(name, sqlite.place)
    assert lake.sql(f"SELECT k FROM {name}.t").to_pylist() == [{"k": 1}]
    assert lake.sql(f"DELETE FROM {name}.t WHERE k = 1").row_count == 1


def test_no_table_is_made_among_the_procedures(tmp_path: Path) -> None:
    lake = kt.connect(tmp_path)
    schema: Any = pa.schema([("k", pa.int64())])
    for make in (
        lambda: lake.create_table("sys.t", schema, ["k"]),
        lambda: lake.sql("CREATE TABLE Sys.t (k INT)"),
        lambda: lake.sql("CREATE TABLE sys.t AS SELECT 1 AS k"),
    ):
        with pytest.raises(kt.InvalidError, match="choose another database"):
            make()
    assert lake.tables() == []
