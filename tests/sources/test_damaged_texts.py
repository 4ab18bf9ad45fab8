"""CSV and JSON files that are damaged in any way: the rows that Python reads, or a refusal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keytide as kt
from keytide.sources.files import CsvFiles, FileFormat, JsonFiles
from keytide.store import open_store

WANTED = pa.schema([("k", pa.int64()), ("x", pa.string()), ("w", pa.int64())])
DDL = "k BIGINT, x STRING, w BIGINT, PRIMARY KEY (k) NOT ENFORCED"

words = st.one_of(
    st.text(st.sampled_from("ab \",;\n\r\t'\\é{}[]:0"), max_size=6),
    st.sampled_from(["null", "NULL", "true", "1e400", "0x10", "nan", '""', "", '"', "1", "\u2028"]),
)
values = st.fixed_dictionaries(
    {"k": st.integers(-99, 99), "x": st.none() | words, "w": st.integers(0, 2**62)}
)
rows_of_files = st.lists(values, min_size=1, max_size=5)


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*WANTED.names], lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_json(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    place = draw(st.floats(0, 1, exclude_max=True))
    put = draw(
        st.sampled_from(
            [b'"', b"\n", b"\r", b"\0", b",", b"\xff", b"null\n", b"\xef\xbb\xbf", b"{", b"}", b"x",
             b"\n\n", b'""', b"1.5", b"true", b'"1"', b'\n"', b"[]", b"\xc3", b"NaN", b":"]
        )
    )  # fmt: skip
    kind = draw(st.sampled_from(["none", "insert", "replace", "cut", "remove", "encode", "mark"]))
    encoding = draw(st.sampled_from(["utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp037"]))

    def damage(text: bytes) -> bytes:
        at = int(place * len(text))
        return {
            "none": lambda: text,
            "insert": lambda: text[:at] + put + text[at:],
            "replace": lambda: text[:at] + put + text[at + len(put) :],
            "cut": lambda: text[:at],
            "remove": lambda: text[:at] + text[at + 1 :],
            "encode": lambda: text.decode().encode(encoding, "replace"),
            "mark": lambda: b"\xef\xbb\xbf" + text,
        }[kind]()

    return damage


def told_by_csv(text: bytes) -> list[dict[str, Any]]:
    """The rows, as Python reads them. Raises for what is no such file."""
    lines = csv.reader(io.StringIO(text.decode("utf-8-sig"), newline=""), strict=True)
    header, *rows = [line for line in lines if line]
    assert header == WANTED.names
    for row in rows:
        assert len(row) == len(header)
        assert all(not n or n.strip().lstrip("-").isdigit() for n in (row[0], row[2]))
    return [
        {"k": int(k) if k else None, "x": x or None, "w": int(w) if w else None} for k, x, w in rows
    ]


def told_by_json(text: bytes) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise ValueError(word)

    lines = [line for line in text.decode().split("\n") if line.strip()]
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    for row in rows:
        assert isinstance(row, dict)
        assert all(type(row.get(n)) in (int, type(None)) for n in ("k", "w"))
        assert isinstance(row.get("x"), str | None)
    return [{name: row.get(name) for name in WANTED.names} for row in rows]


def read(format_: FileFormat, text: bytes) -> list[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        Path(folder, "a").write_bytes(text)
        store = open_store(folder)
        facts = format_.facts(store, "a", WANTED)
        if {*facts.schema.names} != {*WANTED.names}:
            raise kt.InvalidError("which the definition of a table refuses")
        found = [*format_.batches(store, "a", WANTED, 100)]
        rows: list[dict[str, Any]] = pa.Table.from_batches(found, WANTED).to_pylist()
        return [{n: v or None if n == "x" else v for n, v in row.items()} for row in rows]


CASES = {"csv": (CsvFiles(), as_csv, told_by_csv), "json": (JsonFiles(), as_json, told_by_json)}


@pytest.mark.parametrize("name", CASES)
@given(rows=rows_of_files, damage=damages())
def test_damaged_files_have_the_rows_that_python_reads_or_none(
    name: str, rows: list[dict[str, Any]], damage: Callable[[bytes], bytes]
) -> None:
    format_, written, told = CASES[name]
    text = damage(written(rows))
    try:
        found = read(format_, text)
    except kt.KeytideError:
        return
    expected = [{n: v or None if n == "x" else v for n, v in row.items()} for row in told(text)]
    assert found == expected


@pytest.mark.parametrize("name", CASES)
@given(rows=rows_of_files)
def test_sound_files_are_read(name: str, rows: list[dict[str, Any]]) -> None:
    format_, written, told = CASES[name]
    text = written(rows)
    assert read(format_, text) == [{**r, "x": r["x"] or None} for r in told(text)]


# -- as tables -------------------------------------------------------------------------------------


def table(tmp_path: Path, format_: str, text: bytes) -> kt.Lake:
    (tmp_path / "f").mkdir(exist_ok=True)
    (tmp_path / "f/a.x").write_bytes(text)
    lake = kt.connect(tmp_path / "lake", allow_external_files=True)
    lake.sql(
        f"CREATE EXTERNAL TABLE t ({DDL}) USING {format_} LOCATION '{tmp_path}/f' "
        "WITH ('watermark.key' = 'w')"
    )
    return lake


@pytest.mark.parametrize(
    ("format_", "text", "says"),
    [
        ("csv", b'k,x,w\n1,"a,1\n2,b,2\n', r"a\.x.*line 3"),
        ("csv", b'k,x,w\n1,"a"b,1\n', r"a\.x.*line 2"),
        ("json", b'{"k": 1, "w": 1}\nnull\n', r"a\.x.*line 2 is 'null'"),
        ("json", b'{"k": 1, "w": 1}{"k": 2, "w": 1}\n', r"a\.x.*line 1"),
        ("json", b'{"k": 1,\n"w": 1}\n', r"a\.x.*line 1"),
        ("json", b'\xef\xbb\xbf{"k": 1, "w": 1}\n', r"a\.x.*byte order mark"),
        ("json", b'{"kk": 1, "w": 1}\n{"kk": 2, "w": 2}\n', "no column 'k'.*in its primary key"),
        ("json", b'{"k": 1, "ww": 1}\n', "no column 'w'.*as its watermark key"),
        ("json", '{"k": 1, "w": 1}\n'.encode("utf-16"), r"a\.x.*UTF-16"),
        ("json", '{"k": 1, "w": 1}\n'.encode("utf-16-be"), r"a\.x.*UTF-16"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, format_: str, text: bytes, says: str) -> None:
    with pytest.raises(kt.KeytideError, match=says):
        table(tmp_path, format_, text).sql("SELECT * FROM t")


def test_a_member_that_no_line_has_and_no_key_needs_is_null(tmp_path: Path) -> None:
    lake = table(tmp_path, "json", b'{"k": 1, "w": 1}\n{"k": 2, "w": 1, "z": {}}\n')
    assert lake.sql("SELECT * FROM t ORDER BY k").to_pylist() == [
        {"k": 1, "x": None, "w": 1}, {"k": 2, "x": None, "w": 1},
    ]  # fmt: skip


@pytest.mark.parametrize("undeclared", [b"", b'{"k": 1, "w": 1}\n'])
def test_wide_text_is_refused_without_types_too(tmp_path: Path, undeclared: bytes) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f/a.json").write_bytes('{"k": 1, "w": 1}\n'.encode("utf-16"))
    (tmp_path / "f/b.json").write_bytes(undeclared)
    lake = kt.connect(tmp_path / "lake")
    with pytest.raises(kt.DataError, match=r"a\.json.*UTF-16"):
        lake.create_external_table(
            "t", format="json", location=str(tmp_path / "f"), primary_key=["k"], watermark_key=["w"]
        )


@pytest.mark.parametrize("link", ["b.csv", "d/b.csv"])
def test_links_to_nothing_are_refused_by_name(tmp_path: Path, link: str) -> None:
    lake = table(tmp_path, "csv", b"k,x,w\n1,a,1\n")
    (tmp_path / "f" / link).parent.mkdir(exist_ok=True)
    (tmp_path / "f" / link).symlink_to(tmp_path / "nowhere")
    with pytest.raises(kt.DataError, match=rf"{link} is a link to a file that does not exist"):
        lake.sql("SELECT * FROM t")
    (tmp_path / "f" / link).unlink()
    (tmp_path / "f/_kept").symlink_to(tmp_path / "nowhere")
    assert len(lake.sql("SELECT * FROM t")) == 1
