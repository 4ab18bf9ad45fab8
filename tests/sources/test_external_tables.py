"""External tables as users hold them: versions in a folder that others fill, one row per key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keytide as kt
from new_tables import fields_of
from table_rows import row_set

SCHEMA = pa.schema([("k", pa.int32()), ("w", pa.int64()), ("d", pa.bool_()), ("v", pa.string())])
KEYS: dict[str, Any] = {"primary_key": ["k"], "watermark_key": ["w"], "tombstone_key": "d"}


def put(folder: Path, name: str, *rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> None:
    """Somebody writes a file of versions."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [dict(zip(schema.names, row, strict=True)) for row in rows]
    pq.write_table(pa.Table.from_pylist(written, schema=schema), path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "theirs"
    put(path, "1.parquet", (1, 1, None, "a"), (2, 5, None, "b"), (3, 1, None, "c"))
    put(path, "2.parquet", (1, 2, None, "A"), (2, 4, None, "late"), (3, 2, True, None))
    return path


@pytest.fixture
def lake(tmp_path: Path) -> kt.Lake:
    """A lake that does not exist yet."""
    return kt.connect(tmp_path / "lake")


def define(lake: kt.Lake, folder: Path, **more: Any) -> kt.ExternalTable:
    return lake.create_external_table(
        "e", **{"format": "parquet", "location": folder, **KEYS, **more}
    )


LATEST = {(1, 2, None, "A"), (2, 5, None, "b")}


def test_scan_has_the_freshest_row_of_each_key_and_no_deleted_one(
    lake: kt.Lake, folder: Path
) -> None:
    assert row_set(define(lake, folder).scan()) == LATEST
    assert row_set(lake.sql("SELECT * FROM e")) == LATEST


def test_get_looks_one_row_up_and_get_many_some(lake: kt.Lake, folder: Path) -> None:
    table = define(lake, folder)
    assert table.get(1) == {"k": 1, "w": 2, "d": None, "v": "A"}
    assert table.get(3) is None
    assert table.get_many([2, 9, 1, 2]).column("k").to_pylist() == [2, 1]


def test_scan_gives_columns_and_rows_that_are_asked_for_in_every_shape(
    lake: kt.Lake, folder: Path
) -> None:
    scan = define(lake, folder).scan(["v", "k"], where="w > 1 AND k >= 1")
    assert scan.schema.names == ["v", "k"]
    assert scan.count() == 2
    assert scan.to_polars().sort("k").rows() == [("A", 1), ("b", 2)]
    assert sum(batch.num_rows for batch in scan.to_batches()) == 2
    told = str(scan.explain())
    assert "2 parts with 6 versions" in told
    assert "before merging: `k` >= 1" in told
    assert "after merging: `w` > 1" in told


def test_rows_that_come_later_are_seen_by_the_next_read(lake: kt.Lake, folder: Path) -> None:
    table = define(lake, folder)
    scan = table.scan()
    put(folder, "0.parquet", (1, 9, None, "new"), (3, 1, None, "late"))
    assert row_set(table.scan()) == {(1, 9, None, "new"), (2, 5, None, "b")}
    assert row_set(scan) == LATEST


def test_lake_gives_the_table_by_its_name_and_knows_what_it_is(lake: kt.Lake, folder: Path) -> None:
    define(lake, folder)
    table = lake.table("e")
    assert isinstance(table, kt.ExternalTable)
    assert lake.tables() == ["default.e"]
    assert repr(table) == f"ExternalTable('default.e', 'parquet', {str(folder)!r})"
    assert "primary key" in table._repr_html_()
    assert (table.format, table.location, table.primary_key) == ("parquet", str(folder), ("k",))
    assert table.options == {"watermark.key": "w", "tombstone.key": "d"}


def test_names_are_unique_among_both_kinds_of_tables(lake: kt.Lake, folder: Path) -> None:
    define(lake, folder)
    with pytest.raises(kt.AlreadyExistsError):
        define(lake, folder)
    with pytest.raises(kt.AlreadyExistsError):
        lake.create_table("e", SCHEMA, ["k"])
    assert row_set(define(lake, folder, exists_ok=True).scan()) == LATEST
    lake.create_table("own", SCHEMA, ["k"])
    with pytest.raises(kt.AlreadyExistsError):
        lake.create_external_table("own", format="parquet", location=folder, exists_ok=True, **KEYS)


def test_drop_forgets_the_definition_and_leaves_the_rows(lake: kt.Lake, folder: Path) -> None:
    table = define(lake, folder)
    before = sorted(folder.iterdir())
    lake.drop_table("e")
    assert sorted(folder.iterdir()) == before
    assert lake.tables() == []
    with pytest.raises(kt.NotFoundError):
        table.scan()
    assert "default.e" in repr(table)


def test_name_that_another_kind_of_table_has_by_now_is_not_taken_for_the_old_one(
    lake: kt.Lake, folder: Path
) -> None:
    theirs = define(lake, folder)
    lake.drop_table("e")
    own = lake.create_table("e", SCHEMA, ["k"])
    with pytest.raises(kt.NotFoundError, match="was dropped"):
        theirs.scan()
    lake.drop_table("e")
    define(lake, folder)
    for use in (lambda: own.write([{"k": 1}]), lambda: own.scan().to_arrow(), own.compact):
        with pytest.raises(kt.UnsupportedError, match="external table"):
            use()


# -- columns ---------------------------------------------------------------------------------------


def test_refresh_takes_new_columns_and_new_types(lake: kt.Lake, folder: Path) -> None:
    table = define(lake, folder)
    assert not table.refresh()
    wider = pa.schema([("k", pa.int64()), *list(SCHEMA)[1:], ("more", pa.float64())])
    put(folder, "3.parquet", (4, 1, None, "d", 0.5), schema=wider)
    assert table.schema.names == ["k", "w", "d", "v"]
    assert row_set(table.scan()) == {*LATEST, (4, 1, None, "d")}
    assert table.refresh()
    assert table.schema == wider
    assert table.table_schema.id == 1
    assert row_set(table.scan(["k", "more"])) == {(1, None), (2, None), (4, 0.5)}
    assert lake.sql("CALL sys.refresh('e')").to_pylist() == [{"changed": False}]


def test_column_that_is_gone_is_named(lake: kt.Lake, folder: Path) -> None:
    table = define(lake, folder)
    for path in folder.iterdir():
        path.unlink()
    without = pa.schema([field for field in SCHEMA if field.name != "w"])
    put(folder, "1.parquet", (1, None, "a"), schema=without)
    with pytest.raises(kt.InvalidError, match=r"no column 'w', which .* as its watermark key"):
        table.scan().to_arrow()
    with pytest.raises(kt.InvalidError, match=r"'watermark.key' names column 'w'"):
        table.refresh()
    assert table.schema.names == SCHEMA.names


def test_given_columns_stay_and_have_to_be_there(lake: kt.Lake, folder: Path) -> None:
    fields = pa.schema([("v", pa.string()), ("k", pa.int64()), ("w", pa.int64())])
    given: dict[str, Any] = {"primary_key": ["k"], "watermark_key": ["w"]}
    table = lake.create_external_table(
        "e", format="parquet", location=folder, schema=fields, **given
    )
    assert table.schema == fields
    assert not table.refresh()
    assert row_set(table.scan()) == {("A", 1, 2), ("b", 2, 5), (None, 3, 2)}
    other = pa.schema([*fields, ("other", pa.int64())])
    with pytest.raises(kt.InvalidError, match="there is no column 'other'"):
        lake.create_external_table("f", format="parquet", location=folder, schema=other, **given)
    wrong = pa.schema([("v", pa.int64()), ("k", pa.int64()), ("w", pa.int64())])
    with pytest.raises(kt.InvalidError, match=r"column 'v' is BIGINT, found string"):
        lake.create_external_table("f", format="parquet", location=folder, schema=wrong, **given)
    assert lake.tables() == ["default.e"]


def test_null_in_a_not_null_column_is_refused_unless_it_is_that_of_a_tombstone(
    lake: kt.Lake, folder: Path
) -> None:
    types = {"k": "INT", "w": "BIGINT", "d": "BOOLEAN", "v": "STRING NOT NULL"}
    fields = fields_of(types)
    table = define(lake, folder, schema=fields)
    assert row_set(table.scan()) == LATEST
    put(folder, "3.parquet", (7, 1, None, None))
    with pytest.raises(kt.DataError, match=r"column 'v' is STRING NOT NULL .* a row has NULL"):
        table.scan().to_arrow()


# -- definitions that are refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"format": "xls"}, kt.InvalidError, "'xls' is not a format"),
        ({"primary_key": []}, kt.InvalidError, "requires a primary key"),
        ({"watermark_key": [], "tombstone_key": None}, kt.InvalidError, "does not record which"),
        ({"options": {"upsert.on-tie": "last-write"}}, kt.InvalidError, "parquet does not"),
        ({"options": {"bucket": "4"}}, kt.UnsupportedError, "'bucket' has no meaning"),
        ({"options": {"merge-engine": "first-row"}}, kt.UnsupportedError, "'merge-engine'"),
        ({"options": {"external.option.x": "1"}}, kt.InvalidError, "has no option 'x'"),
        ({"options": {"watermark.key": "v"}}, kt.InvalidError, "as an argument and as an option"),
        ({"location": "file://{lake}"}, kt.InvalidError, "neither can contain the other"),
        ({"location": "{lake}"}, kt.InvalidError, "neither can contain the other"),
        ({"location": "{lake}/default.db/e/x"}, kt.InvalidError, "neither can contain"),
        ({"location": "/nowhere/at/all"}, kt.NotFoundError, "there are no files at"),
        ({"location": "ftp://host/x"}, kt.InvalidError, "unknown scheme"),
    ],
)
def test_definition_that_cannot_work_is_refused_with_nothing_made(
    lake: kt.Lake, folder: Path, more: dict[str, Any], error: type[Exception], message: str
) -> None:
    if "location" in more:
        more = {"location": more["location"].format(lake=lake.uri)}
    with pytest.raises(error, match=message):
        define(lake, folder, **more)
    assert not lake.exists


SECRET = "geheim"


@pytest.mark.parametrize(
    "more",
    [
        {"location": f"postgresql://me:{SECRET}@host/db"},
        {"location": f"postgresql://host/db?user=me&password={SECRET}"},
        {"location": f"host=h password={SECRET}"},
        {"location": f"s3://key:{SECRET}@bucket/x"},
        {"location": f"https://host/x?sig={SECRET}"},
        {"options": {"external.option.uri": f"postgresql://me:{SECRET}@host/db"}},
        {"options": {"external.option.secret_access_key": SECRET}},
        {"options": {"external.option.sas-token": SECRET}},
    ],
)
def test_secret_is_neither_stored_nor_shown(
    lake: kt.Lake, folder: Path, more: dict[str, Any]
) -> None:
    with pytest.raises(kt.InvalidError, match="environment") as caught:
        define(lake, folder, **more)
    location = more.get("location", folder)
    options = ", ".join(
        f"'{k}' = '{v}'" for k, v in {"user.x": "1", **more.get("options", {})}.items()
    )
    with pytest.raises(kt.InvalidError, match="environment") as in_sql:
        lake.sql(
            f"CREATE EXTERNAL TABLE e (PRIMARY KEY (k)) USING parquet LOCATION '{location}' "
            f"WITH ({options}) SOME NONSENSE"
        )
    assert SECRET not in f"{caught.value}{in_sql.value}"
    assert not lake.exists


# -- what it does not do ---------------------------------------------------------------------------

WRITES = {
    "write": lambda t: t.write([]),
    "compact": lambda t: t.compact(),
    "create_branch": lambda t: t.create_branch("b"),
    "follow": lambda t: t.follow(),
}


@pytest.mark.parametrize("verb", WRITES)
def test_what_tables_do_and_external_ones_do_not_is_refused(
    lake: kt.Lake, folder: Path, verb: str
) -> None:
    table = define(lake, folder)
    with pytest.raises(kt.UnsupportedError, match=r"default\.e is an external table.*read-only"):
        WRITES[verb](table)
    with pytest.raises(AttributeError, match="nonsense"):
        table.nonsense()


def test_table_of_the_format_is_opened_by_no_path(lake: kt.Lake, folder: Path) -> None:
    define(lake, folder)
    with pytest.raises(kt.UnsupportedError, match="external table"):
        kt.open_table(f"{lake.uri}/default.db/e")
