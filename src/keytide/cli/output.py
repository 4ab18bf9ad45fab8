"""Rows and documents on standard output: tables and blocks for people, JSON and CSV for programs.

JSON output is JSON lines: one object per row. CSV quotes every string, so that an empty string
(`""`) and NULL (nothing) remain different. Nested values are JSON strings.
`keytide.base.value_text` formats values, and `keytide.cli.grid` fits them to a terminal. JSON and
CSV are streamed. A table keeps the rows that it shows in memory.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import polars as pl
import pyarrow as pa
import typer
from rich.console import Console

from keytide.base.plural import counted
from keytide.base.row_lines import check_spelled, csv_header, csv_lines, frame_of, json_lines
from keytide.base.value_text import cell_text, visible
from keytide.cli.grid import Column, Content, Grid, Part
from keytide.errors import DataError

__all__ = [
    "TABLE_ROWS",
    "Format",
    "note",
    "records",
    "write_document",
    "write_rows",
    "write_table",
]

TABLE_ROWS = 50
"""The number of rows that a table shows without `--limit`."""

_BATCH_ROWS = 64 << 10


class Format(str, Enum):
    """The output format."""

    TABLE = "table"
    VERTICAL = "vertical"
    JSON = "json"
    CSV = "csv"


def write_rows(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, format: Format, limit: int | None = None
) -> None:
    """Write the first `limit` rows. Without a limit, a table shows `TABLE_ROWS`.

    Raises `UnsupportedError` for a column of intervals.
    """
    check_spelled(schema)
    if format in (Format.TABLE, Format.VERTICAL):
        _write_table(batches, schema, format, TABLE_ROWS if limit is None else limit)
        return
    encode = json_lines if format is Format.JSON else csv_lines
    # The header is written with the first rows, so that a failed scan writes nothing.
    header = csv_header(schema) if format is Format.CSV else b""
    for batch in _first(_small(batches), limit):
        _write(header + encode(batch))
        header = b""
    _write(header)


def write_table(rows: pa.Table, format: Format) -> None:
    """Write all rows, in any format."""
    write_rows(rows.to_batches(), rows.schema, format, limit=max(1, rows.num_rows))


def write_document(document: Mapping[str, Any], shown: Sequence[Part], format: Format) -> None:
    """Write one object: as JSON the whole document, otherwise its lines."""
    if format is Format.JSON:
        _write(json.dumps(document, ensure_ascii=False, indent=2).encode() + b"\n")
    else:
        _print(shown, format)


def records(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as parts of a JSON document."""
    lines = b"".join(json_lines(batch) for batch in rows.to_batches())
    return [json.loads(line) for line in lines.splitlines()]


def unwritable(error: OSError) -> str:
    """What to say if standard output cannot be written."""
    return (
        f"standard output cannot be written: {error.strerror or error}; what the command changed "
        "is stored: write its output to a place with room"
    )


def note(message: str) -> None:
    """Write a message for people, on standard error."""
    typer.echo("\n".join(map(visible, message.split("\n"))), err=True)


# -- tables ----------------------------------------------------------------------------------------


def _write_table(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, format: Format, limit: int
) -> None:
    one_more = pa.Table.from_batches(_first(batches, limit + 1), schema=schema)
    shown = one_more.slice(0, min(limit, one_more.num_rows))  # a limit can be any number
    _print([Grid(_columns(shown))], format)
    if one_more.num_rows > limit:
        note(
            f"{counted(limit, 'row')} shown; use --limit to see more, or --format json or csv "
            "for all rows"
        )
    if not one_more.num_rows:
        note("no rows")


def _columns(rows: pa.Table) -> list[Column]:
    texts = frame_of(rows).select(
        cell_text(pl.nth(i), field.type).alias(str(i)) for i, field in enumerate(rows.schema)
    )
    return [
        Column(field.name, texts.to_series(i).to_list(), _content(field.type))
        for i, field in enumerate(rows.schema)
    ]


def _content(type: pa.DataType) -> Content:
    if pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type):
        return Content.FIGURE
    return Content.TIME if pa.types.is_temporal(type) else Content.TEXT


def _print(parts: Sequence[Part], format: Format) -> None:
    terminal = sys.stdout.isatty()
    console = Console(file=io.StringIO(), force_terminal=terminal)
    width = shutil.get_terminal_size().columns if terminal else None
    lines = [
        line for part in parts for line in part.lines(width, vertical=format is Format.VERTICAL)
    ]
    with console.capture() as captured:
        for line in lines:
            console.print(line, soft_wrap=True)
    _write(captured.get().encode())


# -- batches ---------------------------------------------------------------------------------------


def _first(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The batches up to `limit` rows. Later batches are not read."""
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, min(left, batch.num_rows))
        left -= batch.num_rows
        if left <= 0:
            return


def _small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for offset in range(0, batch.num_rows, _BATCH_ROWS):
            yield batch.slice(offset, _BATCH_ROWS)


def _write(data: bytes) -> None:
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(unwritable(error)) from error
