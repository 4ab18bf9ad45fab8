"""What others did to a table since it was defined: errors name what does not fit any more."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from delta_tables import commit, protocol
from iceberg_tables import catalog

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

FORMATS = ["delta", "iceberg"]
ROWS = pa.table({"k": [1, 1], "w": [1, 2], "d": [False, False], "v": ["a", "b"]})
KEYS: dict[str, Any] = {"primary_key": ["k"], "watermark_key": ["w"], "tombstone_key": "d"}


def put(folder: Path, format_: str, rows: pa.Table) -> Path:
    """Make rows and their columns those of the table there."""
    if format_ == "delta":
        deltalake.write_deltalake(
            str(folder / "t"), rows, mode="overwrite", schema_mode="overwrite"
        )
        return folder / "t"
    tables = catalog(folder)
    if not tables.table_exists("n.t"):
        tables.create_table("n.t", rows.schema).append(rows)
    else:
        table = tables.load_table("n.t")
        with table.update_schema(allow_incompatible_changes=True) as update:
            for name in {*table.schema().column_names} - {*rows.column_names}:
                update.delete_column(name)
        table.refresh()
        table.overwrite(rows)
    return Path(tables.load_table("n.t").location().removeprefix("file://"))


def defined(folder: Path, format_: str, **more: Any) -> kt.ExternalTable:
    lake = kt.connect(str(folder / "lake"))
    location = put(folder, format_, ROWS)
    return lake.create_external_table("e", format=format_, location=location, **KEYS, **more)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    ("column", "role"), [("k", "primary key"), ("w", "watermark key"), ("d", "tombstone key")]
)
def test_column_of_a_key_that_vanished_is_named_with_what_it_is_for(
    tmp_path: Path, format_: str, column: str, role: str
) -> None:
    table = defined(tmp_path, format_)
    before = table.scan().to_pylist()
    assert before == [{"k": 1, "w": 2, "d": False, "v": "b"}]
    put(tmp_path, format_, ROWS.drop_columns([column]))
    said = rf"default\.e.* no column '{column}'.* {role}"
    for read in (lambda: table.scan().to_arrow(), lambda: table.get(1), lambda: table.why(1)):
        with pytest.raises(kt.InvalidError, match=said):
            read()
    with pytest.raises(kt.InvalidError, match=rf"['\[]{column}['\]]"):
        table.refresh()


@pytest.mark.parametrize("format_", FORMATS)
def test_other_column_that_vanished_is_an_error_where_it_is_listed(
    tmp_path: Path, format_: str
) -> None:
    table = defined(tmp_path, format_, schema=ROWS.schema)
    put(tmp_path, format_, ROWS.drop_columns(["v"]))
    with pytest.raises(kt.InvalidError, match=r"default\.e.* no column 'v'"):
        table.scan().to_arrow()


def test_column_that_has_another_type_by_now_is_named(tmp_path: Path) -> None:
    table = defined(tmp_path, "delta")
    texts = pa.table({"k": [1], "w": [1], "d": [False], "v": [b"\xff"]})
    put(tmp_path, "delta", texts.set_column(1, "w", pa.array(["later"])))
    with pytest.raises(kt.KeytideError, match=r"default\.e.*'w'.*BIGINT.*string"):
        table.scan().to_arrow()
    with pytest.raises(kt.KeytideError, match=r"default\.e"):
        table.scan(["k", "v"]).to_arrow()


@pytest.mark.parametrize("format_", FORMATS)
def test_place_that_is_gone_is_not_found(tmp_path: Path, format_: str) -> None:
    table = defined(tmp_path, format_)
    shutil.rmtree(table.location)
    with pytest.raises(kt.NotFoundError, match=r"/t"):
        table.scan().to_arrow()


@pytest.mark.parametrize("newer", [protocol(4, 8), protocol(3, 7, "rowsOfTheFuture")])
def test_protocol_that_became_newer_is_refused_by_what_it_asks(
    tmp_path: Path, newer: dict[str, Any]
) -> None:
    table = defined(tmp_path, "delta")
    commit(Path(table.location), 1, newer)
    with pytest.raises(kt.UnsupportedError, match=r"ersion 4|rowsOfTheFuture") as raised:
        table.scan().to_arrow()
    assert table.location in str(raised.value)
    with pytest.raises(kt.UnsupportedError):
        table.refresh()
    assert table.scan(version=0).to_pylist() == [{"k": 1, "w": 2, "d": False, "v": "b"}]
