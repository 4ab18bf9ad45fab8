"""Folders of files: partitions in paths, formats, what is no data, what cannot be read."""

from __future__ import annotations

import gzip
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keytide as kt
from keytide.sources.files import FileFacts, ParquetFiles
from keytide.sources.folder import FilePart, PinnedFolder, open_folder
from keytide.sources.source import Place
from keytide.store import ObjectInfo, open_store
from keytide.store.object_store import ObjectStore
from new_tables import fields_of
from table_rows import row_set

KEYS: dict[str, Any] = {"primary_key": ["k"], "watermark_key": ["w"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "theirs"


def put(path: Path, **columns: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def say(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def define(lake: kt.Lake, folder: Path, format_: str, **more: Any) -> kt.ExternalTable:
    return lake.create_external_table("e", format=format_, location=folder, **{**KEYS, **more})


# -- partitions ------------------------------------------------------------------------------------


def test_values_in_paths_are_columns(lake: kt.Lake, folder: Path) -> None:
    put(folder / "day=2026-01-01/nr=1/a.parquet", k=[1], w=[1])
    put(folder / "day=2026-01-02/nr=__HIVE_DEFAULT_PARTITION__/b.parquet", k=[2], w=[1])
    table = define(lake, folder, "parquet")
    assert row_set(table.scan()) == {(1, 1, date(2026, 1, 1), 1), (2, 1, date(2026, 1, 2), None)}


def test_number_that_is_not_written_as_one_is_a_text(lake: kt.Lake, folder: Path) -> None:
    put(folder / "code=007/a.parquet", k=[1], w=[1])
    put(folder / "code=a%2Fb/a.parquet", k=[2], w=[1])
    assert row_set(define(lake, folder, "parquet").scan()) == {(1, 1, "007"), (2, 1, "a/b")}


def test_declared_type_of_a_path_counts(lake: kt.Lake, folder: Path) -> None:
    put(folder / "p=7/a.parquet", k=[1], w=[1])
    fields = pa.schema([("k", pa.int64()), ("w", pa.int64()), ("p", pa.string())])
    assert row_set(define(lake, folder, "parquet", schema=fields).scan()) == {(1, 1, "7")}


def test_key_moves_between_partitions_that_are_no_part_of_it(lake: kt.Lake, folder: Path) -> None:
    put(folder / "p=1/a.parquet", k=[1, 2], w=[1, 1])
    put(folder / "p=2/a.parquet", k=[1], w=[2])
    table = define(lake, folder, "parquet")
    assert row_set(table.scan()) == {(1, 2, 2), (2, 1, 1)}
    # The older version in p=1 must not come back (rule R17).
    assert row_set(table.scan(where="p = 1")) == {(2, 1, 1)}
    assert table.scan(where="p = 1").explain().parts == 2


def test_files_of_other_partitions_are_passed_over_where_the_key_says_so(
    lake: kt.Lake, folder: Path
) -> None:
    for p in (1, 2, 3):
        put(folder / f"p={p}/a.parquet", k=[1], w=[p])
    table = define(lake, folder, "parquet", primary_key=["p", "k"])
    assert row_set(table.scan(where="p >= 2 AND w > 0")) == {(1, 2, 2), (1, 3, 3)}
    assert table.scan(where="p >= 2").explain().parts == 2


def test_files_of_unlike_partitions_are_refused(lake: kt.Lake, folder: Path) -> None:
    put(folder / "a=1/x.parquet", k=[1], w=[1])
    put(folder / "b=1/x.parquet", k=[1], w=[1])
    with pytest.raises(kt.DataError, match=r"partition columns \(a\) .* but \(b\)"):
        define(lake, folder, "parquet")


# -- formats ---------------------------------------------------------------------------------------

TYPED = {
    "k": "INT", "w": "TIMESTAMP(3)", "z": "TIMESTAMP(6) WITH LOCAL TIME ZONE", "day": "DATE",
    "at": "TIME(3)", "amount": "DECIMAL(6, 2)", "f": "DOUBLE", "ok": "BOOLEAN", "t": "STRING",
}  # fmt: skip
ROW = (
    1, datetime(2026, 1, 2, 3, 4, 5, 600_000), datetime(2026, 1, 2, 2, tzinfo=timezone.utc),
    date(2026, 1, 2), time(3, 4, 5, 250_000), Decimal("12.50"), -0.5, True, "",
)  # fmt: skip
FIELDS = fields_of(TYPED)


def test_csv_has_values_of_every_plain_type(lake: kt.Lake, folder: Path) -> None:
    line = (
        "1,2026-01-02T03:04:05.6,2026-01-02T03:00:00+01:00,2026-01-02,03:04:05.25,12.50,-0.5,true,"
        '""'
    )
    say(folder / "a.csv", ",".join(TYPED), line, "2,2026-01-01 00:00:00,,,,,,,")
    expected = {ROW, (2, datetime(2026, 1, 1), *[None] * 7)}
    assert row_set(define(lake, folder, "csv", schema=FIELDS).scan()) == expected


def test_json_has_values_of_every_plain_type(lake: kt.Lake, folder: Path) -> None:
    say(
        folder / "a.json",
        '{"k": 1, "w": "2026-01-02T03:04:05.6", "z": "2026-01-02T03:00:00+01:00", '
        '"day": "2026-01-02", "at": "03:04:05.25", "amount": 12.50, "f": -0.5, "ok": true, '
        '"t": ""}',
        '{"k": 2, "w": "2026-01-01T00:00:00", "other": [1], "t": null}',
    )
    expected = {ROW, (2, datetime(2026, 1, 1), *[None] * 7)}
    assert row_set(define(lake, folder, "json", schema=FIELDS).scan()) == expected


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_columns_that_nobody_names_are_those_of_the_values(
    lake: kt.Lake, folder: Path, format_: str
) -> None:
    if format_ == "csv":
        say(folder / "1.csv", "k,w,v", "1,1,2.5", "2,1,")
        say(folder / "2.csv", "k,w,v,more", "1,2,3,x")
    else:
        say(folder / "1.json", '{"k": 1, "w": 1, "v": 2.5}', '{"k": 2, "w": 1}')
        say(folder / "2.json", '{"k": 1, "w": 2, "v": 3.0, "more": "x"}')
    table = define(lake, folder, format_)
    assert row_set(table.scan()) == {(1, 2, 3.0, "x"), (2, 1, None, None)}


def test_csv_goes_by_its_options_and_is_unpacked(lake: kt.Lake, folder: Path) -> None:
    folder.mkdir()
    (folder / "a.csv.gz").write_bytes(gzip.compress(b"k;w;v\n1;1;'a;b'\n1;2;-\n"))
    options = {
        "external.option.delimiter": ";", "external.option.quote": "'",
        "external.option.null-value": "-",
    }  # fmt: skip
    fields = pa.schema([("k", pa.int64()), ("w", pa.int64()), ("v", pa.string())])
    table = define(lake, folder, "csv", schema=fields, options=options)
    assert row_set(table.scan()) == {(1, 2, None)}
    assert table.why(1).versions.column("v").to_pylist() == ["a;b", None]


def test_parquet_columns_have_one_type_that_fits_all_files(lake: kt.Lake, folder: Path) -> None:
    put(
        folder / "1.parquet",
        k=pa.array([1], pa.int32()),
        w=[1],
        v=pa.array(["a"], pa.large_string()),
    )
    put(
        folder / "2.parquet",
        k=pa.array([2], pa.int64()),
        w=[1],
        v=pa.array(["b"]).dictionary_encode(),
    )
    table = define(lake, folder, "parquet")
    assert table.schema.field("k").type == pa.int64()
    assert row_set(table.scan()) == {(1, 1, "a"), (2, 1, "b")}
    put(folder / "3.parquet", k=["text"], w=[1])
    with pytest.raises(
        kt.DataError, match=r"3\.parquet: column 'k' is string in this file, but int64"
    ):
        table.scan().to_arrow()


@pytest.mark.parametrize("format_", ["parquet", "csv"])
def test_two_columns_of_one_name_are_refused(lake: kt.Lake, folder: Path, format_: str) -> None:
    folder.mkdir()
    if format_ == "csv":
        say(folder / "a.csv", "k,w,w", "1,1,1")
    else:
        twice = pa.table([[1], [1], [1]], names=["k", "w", "w"])
        pq.write_table(twice, folder / "a.parquet")
    fields = pa.schema([("k", pa.int64()), ("w", pa.int64())])
    with pytest.raises(kt.DataError, match=r"a\.(csv|parquet) .*two columns .*same name"):
        define(lake, folder, format_, schema=fields)


# -- what is there ---------------------------------------------------------------------------------


def test_what_begins_with_a_dot_or_a_line_is_no_data(lake: kt.Lake, folder: Path) -> None:
    put(folder / "a.parquet", k=[1], w=[1])
    for name in ("_SUCCESS", ".part.crc", "_delta_log/0.json", ".hidden/x.parquet"):
        say(folder / name, "nothing")
    assert row_set(define(lake, folder, "parquet").scan()) == {(1, 1)}


def test_folder_without_files_has_no_rows(lake: kt.Lake, folder: Path) -> None:
    folder.mkdir()
    fields = pa.schema([("k", pa.int64()), ("w", pa.int64())])
    assert define(lake, folder, "parquet", schema=fields).scan().count() == 0


@pytest.mark.parametrize(
    ("format_", "text", "message"),
    [
        ("parquet", "no parquet", r"bad\.parquet cannot be read as parquet"),
        ("csv", "k,w\n1,one\n", r"bad\.csv cannot be read as csv: column 'w' should be int64"),
        ("csv", "k,w\n1\n", r"bad\.csv cannot be read as csv"),
        ("json", '{"k": 1, "w": ', r"bad\.json cannot be read as json"),
        ("json", '{"k": 1, "w": "one"}', r"bad\.json cannot be read as json"),
    ],
)
def test_file_that_cannot_be_read_is_named(
    lake: kt.Lake, folder: Path, format_: str, text: str, message: str
) -> None:
    folder.mkdir()
    fields = pa.schema([("k", pa.int64()), ("w", pa.int64())])
    table = define(lake, folder, format_, schema=fields)
    (folder / f"bad.{format_}").write_text(text)
    with pytest.raises(kt.DataError, match=message):
        table.scan().to_arrow()
    with pytest.raises(kt.DataError, match=message):
        lake.sql("SELECT * FROM e")


def test_value_that_does_not_fit_its_column_is_refused(lake: kt.Lake, folder: Path) -> None:
    put(folder / "a.parquet", k=[1 << 40], w=[1])
    fields = pa.schema([("k", pa.int32()), ("w", pa.int64())])
    with pytest.raises(kt.DataError, match=r"column 'k' is INT, .* found in a\.parquet"):
        define(lake, folder, "parquet", schema=fields).scan().to_arrow()


def test_options_of_a_store_are_shown_by_nothing() -> None:
    secret = {"secret_access_key": "geheim", "access_key_id": "me", "region": "here"}
    near = open_store("s3://bucket/lake", secret)
    fields = pa.schema([("k", pa.int64())])
    source = open_folder(Place("s3://bucket/theirs", {}, near, fields), ParquetFiles())
    assert ("secret_access_key", "geheim") in vars(source.store)["options"]
    file = ObjectInfo("a.parquet", 1, 0)
    pinned = PinnedFolder(source.store, source.format, (file,), fields)
    part = FilePart(source.store, source.format, file, FileFacts(fields, 1), fields, {})
    shown = f"{source} {source.location} {pinned} {part} {part!r} {pinned!r}"
    assert "s3://bucket/theirs" in shown
    assert "geheim" not in shown


def test_folder_may_lie_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = kt.connect("memory://external-folder/lake")
    path, store = tmp_path / "a.parquet", open_store("memory://external-folder/theirs")
    put(path, k=[1, 1], w=[1, 2])
    store.put("x/a.parquet", path.read_bytes())
    table = lake.create_external_table(
        "e", format="parquet", location="memory://external-folder/theirs", **KEYS
    )
    assert row_set(table.scan()) == {(1, 2)}
    opened: list[str] = []
    open_input = ObjectStore.open_input
    monkeypatch.setattr(
        ObjectStore, "open_input", lambda self, path: opened.append(path) or open_input(self, path)
    )
    assert table.scan().count() == 1
    # What a file says of itself is known, unless it is another one.
    assert [path for path in opened if path.endswith(".parquet")] == ["x/a.parquet"]
    put(path, k=[1, 2, 3], w=[1, 2, 3])
    store.put("x/a.parquet", path.read_bytes())
    assert table.scan().count() == 3


def test_row_groups_without_the_key_are_not_read(
    lake: kt.Lake, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    keys = pa.array([f"{n:03}" for n in range(100)])
    rows_ = pa.table({"k": keys, "n": range(100), "w": [1] * 100})
    pq.write_table(rows_, folder / "a.parquet", row_group_size=10)
    table = define(lake, folder, "parquet", primary_key=["k", "n"])
    read: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def noting(self: Any, rows_max: int, row_groups: list[int], columns: list[str]) -> Any:
        read.extend(row_groups)
        return iter_batches(self, rows_max, row_groups=row_groups, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noting)
    assert table.get(("042", 42)) == {"k": "042", "n": 42, "w": 1}
    assert read == [4]
    read.clear()
    assert table.scan(where="n >= 85 AND w = 1").count() == 15
    assert read == [8, 9]
    read.clear()
    wider = [("k", pa.string()), ("n", pa.int32()), ("w", pa.int64())]
    other = lake.create_external_table(
        "f", format="parquet", location=folder, schema=pa.schema(wider), primary_key=["k", "n"],
        watermark_key=["w"],
    )  # fmt: skip
    assert other.scan(where="n = 7").count() == 1
    assert read == [*range(10)]
