"""Tables of a catalog service, read and written by their names in it."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest
from catalog_server import TOKEN, WAREHOUSE, Service, connected, strikes
from typer.testing import CliRunner

import keytide as kt
from keytide.cli.main import app
from keytide.snapshot.metadata import TableMetadata
from table_rows import by_key, put, snapshot_ids

KEYED = "k INT, v INT, PRIMARY KEY (k) NOT ENFORCED"
Rows = dict[int, int]


def is_commit(method: str, path: str) -> bool:
    return method == "POST" and path.endswith("/commit")


# -- names -----------------------------------------------------------------------------------------


def test_connecting_asks_the_service_nothing(service: Service, lake: kt.Lake) -> None:
    assert service.asked == []
    assert lake.uri == f"{service.address}?warehouse={WAREHOUSE}"
    assert TOKEN not in f"{lake!r} {lake.catalog!r}"


def test_names_come_in_pages(lake: kt.Lake) -> None:
    for number in range(3):
        lake.create_database(f"d{number}")
        lake.sql(f"CREATE TABLE d0.t{number} ({KEYED})")
    assert lake.databases() == [f"d{number}" for number in range(3)]
    assert lake.tables() == [f"d0.t{number}" for number in range(3)]


def test_databases_are_made_once_and_dropped(lake: kt.Lake) -> None:
    lake.create_database("Shop", "what is sold")
    with pytest.raises(kt.AlreadyExistsError, match="Shop"):
        lake.create_database("shop")
    assert lake.catalog.warehouse.comment_on("Shop") == "what is sold"
    lake.drop_database("shop")
    assert lake.databases() == []


def test_tables_are_made_once_renamed_and_dropped(lake: kt.Lake, table: kt.Table) -> None:
    put(table, {1: 1})
    with pytest.raises(kt.AlreadyExistsError, match=r"shop\.t already exists"):
        lake.sql(f"CREATE TABLE shop.t ({KEYED})")
    moved = lake.rename_table("shop.t", "u")
    assert isinstance(moved, kt.Table)
    assert by_key(moved) == {1: 1}
    with pytest.raises(kt.NotFoundError, match=r"table shop\.t does not exist .*: shop\.u"):
        lake.table("shop.t")
    lake.sql(f"CREATE TABLE shop.t ({KEYED})")
    with pytest.raises(kt.AlreadyExistsError, match=r"shop\.t"):
        lake.rename_table("shop.u", "t")
    with pytest.raises(kt.NotFoundError, match="create the database"):
        lake.rename_table("shop.u", "nowhere.u")
    lake.drop_table("shop.u")
    assert lake.tables() == ["shop.t"]
    assert by_key(lake.table("shop.t")) == {}


def test_handle_of_a_table_that_has_another_name_reads_and_commits_nothing(
    lake: kt.Lake, table: kt.Table
) -> None:
    put(table, {1: 1})
    moved = lake.rename_table("shop.t", "u")
    assert isinstance(moved, kt.Table)
    with pytest.raises(kt.NotFoundError, match=r"shop\.t is no longer in the catalog"):
        by_key(table)
    with pytest.raises(kt.KeytideError, match=r"shop\.t is no longer in the catalog"):
        put(table, {2: 2})
    lake.sql(f"CREATE TABLE shop.t ({KEYED})")
    with pytest.raises(kt.KeytideError):
        put(table, {2: 2})
    assert (by_key(moved), by_key(lake.table("shop.t"))) == ({1: 1}, {})


# -- rows ------------------------------------------------------------------------------------------


def test_rows_are_written_changed_and_read_by_python_and_sql(
    lake: kt.Lake, table: kt.Table
) -> None:
    put(table, {1: 1, 2: 1, 3: 1})
    put(table, {1: 2})
    lake.sql("UPDATE shop.t SET v = 3 WHERE k = 2; DELETE FROM shop.t WHERE k = 3")
    assert by_key(table) == {1: 2, 2: 3}
    assert lake.sql("SELECT sum(v) AS s FROM Shop.T").to_pylist() == [{"s": 5}]
    table.compact(full=True)
    table.overwrite(table.scan(snapshot_id=1))
    assert by_key(table) == {1: 1, 2: 1, 3: 1}
    assert snapshot_ids(table) == [*range(1, 7)]
    assert table.verify().is_healthy


def test_command_line_takes_the_token_from_the_environment(
    service: Service, table: kt.Table
) -> None:
    put(table, {1: 1, 2: 1})
    address = f"{service.address}?warehouse={WAREHOUSE}"
    asked = [["ls", address], ["sql", "-w", address, "SELECT count(*) AS n FROM shop.t"]]
    env = {"KEYTIDE_REST_TOKEN": TOKEN}
    said = [CliRunner().invoke(app, [*words, "-f", "csv"], env=env).output for words in asked]
    assert [text.split() for text in said] == [['"table"', '"shop.t"'], ['"n"', "2"]]


@pytest.mark.one_in(14)
@pytest.mark.parametrize("is_old", [False, True])
def test_two_writers_who_race_lose_nothing(service: Service, table: kt.Table, is_old: bool) -> None:
    service.databases["shop"]["t"].is_old = is_old

    def write(writer: int) -> None:
        own = connected(service).table("shop.t")
        for number in range(6):
            put(own, {writer * 100 + number: number, 0: writer})

    writers = [threading.Thread(target=write, args=(writer,)) for writer in (1, 2)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    found = by_key(table)
    assert found.pop(0) in (1, 2)
    assert found == {w * 100 + number: number for w in (1, 2) for number in range(6)}
    assert snapshot_ids(table) == [*range(1, len(snapshot_ids(table)) + 1)]


# -- trouble ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("trouble", ["lost before", "lost after", "503"])
def test_commit_whose_answer_is_lost_is_made_once(
    service: Service, table: kt.Table, trouble: str, is_old: bool
) -> None:
    service.databases["shop"]["t"].is_old = is_old
    put(table, {1: 1})
    service.trouble = strikes(is_commit, trouble)
    put(table, {1: 2, 2: 2})
    assert (by_key(table), snapshot_ids(table)) == ({1: 2, 2: 2}, [1, 2])


def test_commit_is_found_below_that_of_another_writer(service: Service, table: kt.Table) -> None:
    other = connected(service).table("shop.t")
    put(table, {1: 1})

    def lose_and_overtake(method: str, path: str) -> str | None:
        if not is_commit(method, path):
            return None
        service.trouble = lambda method, path: overtake() if method == "GET" else None
        return "lost after"

    def overtake() -> None:
        service.trouble = lambda method, path: None
        # With a user of its own, as if it were another process: it waits for no thread of this one.
        other.write([{"k": 9, "v": 9}], commit_user="other", commit_identifier=1)

    service.trouble = lose_and_overtake
    put(table, {2: 2})
    assert (by_key(table), snapshot_ids(table)) == ({1: 1, 2: 2, 9: 9}, [1, 2, 3])


def test_commit_that_nobody_answers_is_told_as_unknown(service: Service, table: kt.Table) -> None:
    put(table, {1: 1})
    service.trouble = lambda method, path: "lost before" if is_commit(method, path) else None
    with pytest.raises(kt.DataError, match="did not respond"):
        put(table, {2: 2})
    service.trouble = lambda method, path: None
    assert by_key(table) == {1: 1}


def test_service_that_is_busy_is_asked_again(service: Service, table: kt.Table) -> None:
    put(table, {1: 1})
    service.trouble = strikes(lambda method, path: True, "503", "lost before")
    assert by_key(table) == {1: 1}


def test_service_that_refuses_is_not_asked_again(service: Service, table: kt.Table) -> None:
    service.trouble = lambda method, path: "403" if is_commit(method, path) else None
    service.asked.clear()
    with pytest.raises(
        kt.DataError, match=r"responded with 403 \(trouble\); ask the administrator"
    ):
        put(table, {1: 1})
    assert sum("commit" in asked for asked in service.asked) == 1
    assert by_key(table) == {}


# -- what is refused -------------------------------------------------------------------------------


def test_what_the_catalog_alone_may_change_is_refused_and_nothing_changes(
    service: Service, lake: kt.Lake, table: kt.Table
) -> None:
    put(table, {1: 1})
    put(table, {1: 2})
    table.create_tag("one", 1)
    before = sorted(path for path in service.folder.rglob("*"))
    refused: list[tuple[str, Callable[[], object]]] = [
        ("schemas", lambda: table.convert("full")),
        ("replace the tag 'one'", lambda: table.replace_tag("one", 2)),
        ("creates branches only from tags", lambda: table.create_branch("b")),
        ("cannot create views", lambda: lake.sql("CREATE VIEW shop.v AS SELECT 1 AS k")),
    ]
    for words, call in refused:
        with pytest.raises(kt.UnsupportedError, match=words):
            call()
    after = sorted(path for path in service.folder.rglob("*"))
    assert [path for path in after if path not in before and path.suffix != ".parquet"] == []
    assert (by_key(table), lake.tables()) == ({1: 2}, ["shop.t"])


def test_other_things_of_the_catalog_are_named(service: Service, lake: kt.Lake) -> None:
    lake.sql(f"CREATE TABLE shop.t ({KEYED})")
    service.kinds = {"options": {"type": "format-table"}}
    with pytest.raises(kt.UnsupportedError, match="is a format-table of the catalog"):
        lake.table("shop.t")


def test_wrong_token_and_warehouse_are_told_when_the_service_says_so(service: Service) -> None:
    with pytest.raises(kt.DataError, match=r"401 .*KEYTIDE_REST_TOKEN") as told:
        connected(service, token="guessed").tables()
    assert "guessed" not in str(told.value)
    with pytest.raises(kt.DataError, match="name of the warehouse"):
        connected(service, warehouse="other").tables()
    with pytest.raises(kt.DataError, match="did not respond"):
        kt.connect("http://127.0.0.1:9?warehouse=w").tables()


@pytest.mark.parametrize(
    ("address", "options", "words"),
    [
        ("http://h", {}, "found none; set"),
        ("http://h?warehouse=a", {"warehouse": "b"}, "'a' and 'b'"),
        ("http://h?warehouse=a&token=x", {}, "'token'"),
        ("http://me:secret@h?warehouse=a", {}, "contains credentials"),
        ("http://h?warehouse=a", {"token.provider": "bear"}, "there is no token"),
        ("http://h?warehouse=a", {"token.provider": "dlf"}, "supports only 'bear'"),
    ],
)
def test_address_and_options_that_do_not_do_are_refused_at_once(
    address: str, options: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KEYTIDE_REST_TOKEN", raising=False)
    with pytest.raises(kt.KeytideError, match=words) as told:
        kt.connect(address, options=options)
    assert "secret" not in str(told.value)


def test_metadata_pickles(table: kt.Table) -> None:
    put(table, {1: 1})
    copy = pickle.loads(pickle.dumps(table.metadata))
    assert isinstance(copy, TableMetadata)
    assert copy.latest_snapshot_id() == 1


def test_arrow_tables_of_partitions_are_written(lake: kt.Lake) -> None:
    columns = pa.schema([pa.field("d", pa.string()), pa.field("k", pa.int32())])
    made = lake.create_table("s.p", columns, primary_key=["d", "k"], partition_by=["d"])
    made.write(pa.table({"d": ["a", "b"], "k": [1, 2]}, schema=columns))
    assert made.scan(where="d = 'b'").to_pylist() == [{"d": "b", "k": 2}]
