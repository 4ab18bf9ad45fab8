"""Rows and documents on standard output, as a table for people, JSON or CSV for programs.

Rows in JSON are JSON lines: one object a row. CSV quotes every text, so that an empty text (`""`)
and NULL (nothing) remain different; nested values are JSON inside of it. `keytide.cli.text` says
how values are spelled. JSON and CSV stream; a table holds the rows that it shows.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import polars as pl
import pyarrow as pa
import typer
from pyarrow import csv
from rich.console import Console, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from keytide.cli.text import cell_text, json_text

__all__ = [
    "TABLE_ROWS",
    "Format",
    "grid",
    "note",
    "properties",
    "records",
    "write_document",
    "write_rows",
]

TABLE_ROWS = 50
"""How many rows a table shows where `--limit` does not say."""

_BATCH_ROWS = 64 << 10
_UNBOUNDED_WIDTH = 100_000


class Format(str, Enum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def write_rows(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, format: Format, limit: int | None = None
) -> None:
    """Write rows, all of them or the first `limit`; without one, a table stops at `TABLE_ROWS`."""
    if format is Format.TABLE:
        _write_table(batches, schema, TABLE_ROWS if limit is None else limit)
        return
    encode = _json_lines if format is Format.JSON else _csv_lines
    # The header waits for the first rows: a scan that fails writes nothing.
    header = _csv_header(schema) if format is Format.CSV else b""
    for batch in _first(_small(batches), limit):
        _write(header + encode(batch))
        header = b""
    _write(header)


def write_document(document: Mapping[str, Any], shown: RenderableType, format: Format) -> None:
    """Write one thing: as JSON the whole document, else what is shown of it."""
    if format is Format.JSON:
        _write(json.dumps(document, ensure_ascii=False, indent=2).encode() + b"\n")
    else:
        _print(shown)


def records(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as parts of a document, with every value as JSON spells it."""
    lines = b"".join(_json_lines(batch) for batch in rows.to_batches())
    return [json.loads(line) for line in lines.splitlines()]


def note(message: str) -> None:
    """Tell the person something beside the data, on standard error."""
    typer.echo(message, err=True)


def properties(values: Mapping[str, Any]) -> RenderableType:
    """Names and values, one a line."""
    lines = Grid.grid(padding=(0, 2))
    lines.add_column(style="bold", no_wrap=True)
    lines.add_column(overflow="fold")
    for name, value in values.items():
        lines.add_row(Text(name), _cell(_figure(value)))
    return lines


def grid(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Alike records as a table, without what none of them has; numbers stand to the right."""
    table = _grid()
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    for name in columns:
        right = all(_is_number(row[name]) for row in rows)
        table.add_column(Text(name), justify="right" if right else "left")
    for row in rows:
        table.add_row(*(_cell(_figure(row[name])) for name in columns))
    return table


def _figure(value: Any) -> str | None:
    if value is None:
        return None
    return f"{value:,}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- tables ----------------------------------------------------------------------------------------


def _write_table(batches: Iterable[pa.RecordBatch], schema: pa.Schema, limit: int) -> None:
    one_more = pa.Table.from_batches(_first(batches, limit + 1), schema=schema)
    shown = one_more.slice(0, limit)
    table = _grid()
    for field in schema:
        right = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        right = right or pa.types.is_decimal(field.type)
        table.add_column(Text(field.name), justify="right" if right else "left", no_wrap=True)
    for row in _texts(shown, schema).iter_rows():
        table.add_row(*map(_cell, row))
    _print(table)
    if one_more.num_rows > limit:
        note(f"the first {limit} rows; --limit shows more, --format json or csv writes them all")


def _texts(table: pa.Table, schema: pa.Schema) -> pl.DataFrame:
    columns = (cell_text(pl.nth(i), f.type).alias(str(i)) for i, f in enumerate(schema))
    return _frame(table).select(columns)


def _grid() -> Grid:
    return Grid(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _cell(text: str | None) -> Text:
    if text is None:
        return Text("NULL", style="dim")
    # What a value holds must not steer the terminal.
    return Text(text if text.isprintable() else "".join(map(_visible, text)))


def _visible(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def _print(shown: RenderableType) -> None:
    """Print as wide as needed where there is no terminal, so that nothing is cut in a pipe."""
    terminal = sys.stdout.isatty()
    console = Console(
        file=io.StringIO(), force_terminal=terminal, width=None if terminal else _UNBOUNDED_WIDTH
    )
    with console.capture() as captured:
        console.print(shown)
    lines = (line.rstrip(" ") for line in captured.get().splitlines())
    _write("".join(f"{line}\n" for line in lines).encode())


# -- JSON and CSV ----------------------------------------------------------------------------------


def _json_lines(batch: pa.RecordBatch) -> bytes:
    parts = []
    for index, field in enumerate(batch.schema):
        name = ("," if index else "{") + json.dumps(field.name, ensure_ascii=False) + ":"
        parts += [pl.lit(name), json_text(pl.nth(index), field.type).fill_null("null")]
    lines = _frame(batch).select(pl.concat_str(*parts, pl.lit("}\n")).str.join(""))
    return str(lines.item()).encode()


def _csv_lines(batch: pa.RecordBatch) -> bytes:
    columns = [
        _csv_column(column, field)
        for column, field in zip(batch.columns, batch.schema, strict=True)
    ]
    return _csv(pa.table(columns, names=batch.schema.names), header=False)


def _csv_column(column: pa.Array, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """Nested values and bytes become text; Arrow knows how to write the rest."""
    if not (pa.types.is_nested(field.type) or pa.types.is_binary(field.type)):
        return column
    frame = _frame(pa.table([column], names=["value"]))
    return frame.select(value=cell_text(pl.col("value"), field.type)).to_arrow()["value"]


def _csv_header(schema: pa.Schema) -> bytes:
    return _csv(
        pa.schema([(name, pa.string()) for name in schema.names]).empty_table(), header=True
    )


def _csv(table: pa.Table, *, header: bool) -> bytes:
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=header))
    return bytes(sink.getvalue())


def _frame(rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _first(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The batches up to `limit` rows; reads no further."""
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


def _small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for offset in range(0, batch.num_rows, _BATCH_ROWS):
            yield batch.slice(offset, _BATCH_ROWS)


def _write(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
