"""Rows as JSON, CSV and tables: nothing is lost, nothing steers the terminal."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from every_type import NESTED, VALUES, values_table
from pyarrow import csv

from keytide.cli.output import TABLE_ROWS, Format, write_rows

Write = Callable[..., str]


@pytest.fixture
def written(capfdbinary: pytest.CaptureFixture[bytes]) -> Write:
    def write(table: pa.Table, format: Format, limit: int | None = None) -> str:
        write_rows(table.to_batches(), table.schema, format, limit)
        return capfdbinary.readouterr().out.decode()

    return write


def objects(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


def restored(record: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with the values that Arrow needs for the types that JSON lacks."""
    convert: dict[str, Callable[[Any], Any]] = {
        "f": float, "f32": float, "dec": Decimal, "raw": base64.b64decode,
    }  # fmt: skip
    return {
        name: convert.get(name, lambda v: v)(value) if value is not None else None
        for name, value in record.items()
    }


def test_json_gives_back_every_value_exactly(written: Write) -> None:
    table = values_table(VALUES)
    rows = [restored(record) for record in objects(written(table, Format.JSON))]
    times = ("day", "ts", "ns", "at")
    columns = [
        pa.array([row[field.name] for row in rows], pa.string()).cast(field.type)
        if field.name in times
        else pa.array([row[field.name] for row in rows], field.type)
        for field in table.schema
    ]
    assert str(pa.table(columns, schema=table.schema).to_pydict()) == str(table.to_pydict())


def test_json_spells_what_json_has_no_type_for(written: Write) -> None:
    first, nulls, edges = objects(written(values_table(VALUES), Format.JSON))
    assert {name: first[name] for name in ("big", "dec", "raw", "day", "ns", "at")} == {
        "big": 2**63 - 1,
        "dec": "1234567890123456789012345678901234.5600",
        "raw": "AP8=",
        "day": "2026-01-31",
        "ns": "2026-01-31T12:00:00.000000001",
        "at": "2026-01-31T12:00:00.000+00:00",
    }
    assert set(nulls.values()) == {2, None}
    assert (edges["f"], edges["f32"], edges["dec"], edges["text"], edges["raw"]) == (
        "NaN", "-Infinity", "0.0000", "", ""
    )  # fmt: skip


def test_json_nests_arrays_objects_and_maps(written: Write) -> None:
    first, nulls, empty = objects(written(values_table(NESTED), Format.JSON))
    assert first == {
        "tags": ["a", None, 'b"'],
        "vector": [0.5, None],
        "row": {"x": 7, "raw": "AQ=="},
        "prices": {"eur": "1.50", 'q"': None},
        "by_day": {"2026-01-31": [1.5, None, "NaN"]},
    }
    assert nulls == dict.fromkeys(NESTED.names)
    assert empty == {
        "tags": [],
        "vector": [1.0, 2.0],
        "row": {"x": None, "raw": None},
        "prices": {},
        "by_day": {},
    }


def test_json_keeps_odd_column_names(written: Write) -> None:
    table = pa.table({'a "b"': [1], "ü\n{}": [2]})
    assert objects(written(table, Format.JSON)) == [{'a "b"': 1, "ü\n{}": 2}]


def test_csv_gives_back_every_value_exactly(written: Write) -> None:
    table = values_table(VALUES)
    text = written(table, Format.CSV)
    read = csv.read_csv(
        io.BytesIO(text.encode()),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types={**dict(zip(VALUES.names, VALUES.types, strict=True)), "raw": pa.string()},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    raw = pa.array([None if v is None else base64.b64decode(v) for v in read["raw"].to_pylist()])
    read = read.set_column(VALUES.names.index("raw"), "raw", raw)
    assert str(read.to_pydict()) == str(table.to_pydict())


def test_csv_holds_nested_values_as_json(written: Write) -> None:
    table = values_table(NESTED).slice(1)
    assert written(table.select(["tags", "row"]), Format.CSV) == (
        '"tags","row"\n'
        ",\n"
        '"[]","{""x"":null,""raw"":null}"\n'
    )  # fmt: skip


@pytest.mark.parametrize(
    ("format", "expected"), [(Format.JSON, ""), (Format.CSV, '"a"\n'), (Format.TABLE, "a\n")]
)
def test_no_rows_leave_only_header(written: Write, format: Format, expected: str) -> None:
    assert written(pa.table({"a": pa.array([], pa.int64())}), format) == expected


def test_table_lines_up_and_tells_null_from_empty(written: Write) -> None:
    table = pa.table({"n": [1, 200], "text": ["", None], "b": [b"\xff", None]})
    assert written(table, Format.TABLE) == (
        "  n  text  b\n"
        "  1        /w==\n"
        "200  NULL  NULL\n"
    )  # fmt: skip


def test_table_shows_control_characters_and_markup_as_text(written: Write) -> None:
    table = pa.table({"t": ["\x1b[31mred\n", "[bold]x[/bold]"]})
    assert written(table, Format.TABLE) == "t\n\\x1b[31mred\\n\n[bold]x[/bold]\n"


def test_table_is_never_cut_in_a_pipe(written: Write) -> None:
    assert "x" * 5_000 in written(pa.table({"t": ["x" * 5_000]}), Format.TABLE)


def test_table_stops_early_and_says_so(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    table = pa.table({"n": range(TABLE_ROWS + 1)})
    write_rows(table.to_batches(), table.schema, Format.TABLE)
    shown = capfdbinary.readouterr()
    assert len(shown.out.splitlines()) == TABLE_ROWS + 1
    assert b"50 rows shown" in shown.err


@pytest.mark.parametrize("format", list(Format))
def test_limit_reads_no_further_batch(written: Write, format: Format) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1, 2, 3]})
        raise AssertionError("read on")

    write_rows(batches(), pa.schema([("n", pa.int64())]), format, 2)
