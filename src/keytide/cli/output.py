"""Output of commands: rows and documents as tables, JSON or CSV, and progress of long work.

- JSON output is JSON lines: one object per row. CSV quotes every string, so that an empty string
  (`""`) and NULL (nothing) remain different. Nested values are JSON strings. JSON and CSV are
  streamed. A table keeps the rows that it shows in memory.
- A `Grid` shows rows as a table, or as one block per row with a value on each line. In a table,
  wide strings are truncated with an ellipsis, and columns that do not fit are named below. Blocks
  show everything, on as many lines as necessary. Without a terminal, the width is None and nothing
  is truncated.
- Rows and documents go to standard output, progress to standard error.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from itertools import accumulate
from threading import Event, Lock, Thread
from typing import Any, Protocol, TypeVar

import polars as pl
import pyarrow as pa
import typer
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from keytide.base.dataclass import dataclass
from keytide.base.text import (
    cell_text,
    check_spelled,
    counted,
    csv_header,
    csv_lines,
    frame_of,
    json_lines,
    visible,
)
from keytide.cli.command_group import unwritable
from keytide.errors import DataError
from keytide.read.fallback import FallbackScan
from keytide.read.scan import Scan
from keytide.sources.scan import ExternalScan
from keytide.tasks import Threads, listening

# -- tables, blocks and properties, fitted to a terminal -------------------------------------------


WIDTH_MIN = 10
"""The smallest terminal width that lines are fitted to."""

_GAP = 2
_TEXT_WIDTH_MIN = 12


class Part(Protocol):
    """A part of the output."""

    def lines(self, width: int | None, *, vertical: bool) -> Iterator[Text]:
        """Its lines, at most `width` wide. `vertical` shows blocks in place of tables."""


class Content(Enum):
    """The content of a column: strings can be truncated, numbers are right-aligned."""

    TEXT = "text"
    TIME = "time"
    FIGURE = "figure"


@dataclass(frozen=True)
class Column:
    """A column of strings, with NULL as None."""

    name: str
    cells: Sequence[str | None]
    content: Content = Content.TEXT


@dataclass(frozen=True)
class Grid:
    """Rows, as columns with the same number of cells."""

    columns: Sequence[Column]

    def lines(self, width: int | None, *, vertical: bool) -> Iterator[Text]:
        """A table, or blocks if they are requested or if the first column alone is too wide."""
        widths = fitted_widths(self.columns, width)
        cells = [cell for column in self.columns for cell in column.cells]
        value = cells[0] if len(cells) == 1 else None
        if vertical or (self.columns and not widths):
            names = [column.name for column in self.columns]
            for number, row in enumerate(zip(*(c.cells for c in self.columns), strict=True), 1):
                if number > 1:
                    yield Text()
                yield Text(f"row {number}", "dim")
                yield from _block(names, row, width)
            return
        if value is not None and ("\n" in value or cell_len(value) > widths[0]):
            yield Text(visible(self.columns[0].name), "bold")
            yield from map(Text, _folded(value, width))
            return
        shown, others = self.columns[: len(widths)], self.columns[len(widths) :]
        contents = [column.content for column in shown]
        yield _row([Text(visible(column.name), "bold") for column in shown], widths, contents)
        for row in zip(*(column.cells for column in shown), strict=True):
            yield _row(list(map(_cell, row)), widths, contents)
        if others:
            left_out = ", ".join(visible(column.name) for column in others)
            yield from _wrapped(f"not shown: {left_out}", "dim", width)
            hint = r"--format vertical, or \x at the prompt, shows them"
            yield from _wrapped(hint, "dim", width)


@dataclass(frozen=True)
class Properties:
    """Names and values, one per line."""

    values: Mapping[str, Any]

    def lines(self, width: int | None, *, vertical: bool) -> Iterator[Text]:
        """The same lines, whatever `vertical` is."""
        return _block(list(self.values), list(map(_number_text, self.values.values())), width)


@dataclass(frozen=True)
class Paragraph:
    """Running text. Lines that are too long are wrapped and indented."""

    text: str
    style: str = ""

    def lines(self, width: int | None, *, vertical: bool) -> Iterator[Text]:
        """The same lines, whatever `vertical` is."""
        for line in self.text.split("\n"):
            yield from _wrapped(visible(line), self.style, width)


def grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """Records of one kind, without the properties that none of them has."""
    names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    return Grid(
        [
            Column(
                name,
                [_number_text(row[name]) for row in rows],
                Content.FIGURE if all(_is_number(row[name]) for row in rows) else Content.TEXT,
            )
            for name in names
        ]
    )


def fitted_widths(columns: Sequence[Column], width: int | None) -> list[int]:
    """The widths of the first columns, as many as fit.

    Names, numbers and times are shown in full. Strings get the remaining width, short ones first.
    """
    wished = []
    for column in columns:
        shown = ("NULL" if cell is None else visible(cell) for cell in column.cells)
        wished.append(max(map(cell_len, (visible(column.name), *shown))))
    if width is None:
        return wished
    least = []
    for column, wish in zip(columns, wished, strict=True):
        is_text = column.content is Content.TEXT
        short = max(cell_len(visible(column.name)), min(wish, _TEXT_WIDTH_MIN))
        least.append(short if is_text else wish)
    ends = accumulate(each + _GAP for each in least)
    room = max(width, WIDTH_MIN) + _GAP
    fitting = [end for end in ends if end <= room]

    # The remaining width goes first to columns that need little.
    widths = least[: len(fitting)]
    room -= max(fitting, default=0)
    by_need = sorted(range(len(widths)), key=lambda i: wished[i] - widths[i])
    for left, i in zip(range(len(widths), 0, -1), by_need, strict=True):
        more = min(wished[i] - widths[i], room // left)
        widths[i] += more
        room -= more
    return widths


def _row(cells: Sequence[Text], widths: Sequence[int], contents: Sequence[Content]) -> Text:
    for cell, width, content in zip(cells, widths, contents, strict=True):
        cell.truncate(width, overflow="ellipsis")
        blanks = width - cell.cell_len
        cell.pad_left(blanks) if content is Content.FIGURE else cell.pad_right(blanks)
    line = Text(" " * _GAP).join(cells)
    return _stripped(line)


def _stripped(line: Text) -> Text:
    line.rstrip()
    return line


def _block(names: Sequence[str], cells: Sequence[str | None], width: int | None) -> Iterator[Text]:
    """Names next to their values, or above them if names would need more than half of the width."""
    label = max(cell_len(visible(name)) for name in names) + _GAP if names else 0
    is_beside = width is None or label <= max(width, WIDTH_MIN) // 2
    indent = label if is_beside else _GAP
    room = None if width is None else max(width, WIDTH_MIN) - indent
    for name, cell in zip(names, cells, strict=True):
        values = [_cell(None)] if cell is None else list(map(Text, _folded(cell, room)))
        shown = [Text(part, "bold") for part in _folded(visible(name), width)]
        if is_beside:
            shown[0].pad_right(indent - shown[0].cell_len)
            yield _stripped(Text.assemble(shown[0], values.pop(0)))
        else:
            yield from shown
        yield from (_stripped(Text.assemble(" " * indent, value)) for value in values)


def _cell(text: str | None) -> Text:
    return Text("NULL", "dim") if text is None else Text(visible(text))


def _folded(text: str, width: int | None) -> Iterator[str]:
    """The text, split at its own line breaks and at the width."""
    for line in map(visible, text.split("\n")):
        if width is None or not line:
            yield line
        else:
            yield from chop_cells(line, max(width, 2))


def _wrapped(text: str, style: str, width: int | None) -> Iterator[Text]:
    """A line, wrapped at blanks if possible. All lines after the first are indented."""
    if width is None or cell_len(text) <= max(width, WIDTH_MIN):
        yield Text(text, style)
        return
    bare = text.lstrip(" ")
    lead = min(len(text) - len(bare), max(width, WIDTH_MIN) // 2 - _GAP)
    room = max(width, WIDTH_MIN) - lead - _GAP
    for number, line in enumerate(Text(bare, style).wrap(Console(), room, overflow="fold")):
        line.pad_left(lead + (_GAP if number else 0))
        yield _stripped(line)


def _number_text(value: Any) -> str | None:
    if value is None:
        return None
    return f"{value:,}" if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- rows and documents on standard output ---------------------------------------------------------


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
        limit = TABLE_ROWS if limit is None else limit
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
        return
    encode = json_lines if format is Format.JSON else csv_lines
    # The header is written with the first rows, so that a failed scan writes nothing.
    header = csv_header(schema) if format is Format.CSV else b""
    small = (
        batch.slice(offset, _BATCH_ROWS)
        for batch in batches
        for offset in range(0, batch.num_rows, _BATCH_ROWS)
    )
    for batch in _first(small, limit):
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


def note(message: str) -> None:
    """Write a message for people, on standard error."""
    typer.echo("\n".join(map(visible, message.split("\n"))), err=True)


# -- tables ----------------------------------------------------------------------------------------


def _columns(rows: pa.Table) -> list[Column]:
    texts = frame_of(rows).select(
        cell_text(pl.nth(i), field.type).alias(str(i)) for i, field in enumerate(rows.schema)
    )
    columns = []
    for i, (name, type_) in enumerate(zip(rows.schema.names, rows.schema.types, strict=True)):
        content = Content.TIME if pa.types.is_temporal(type_) else Content.TEXT
        if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_):
            content = Content.FIGURE
        columns.append(Column(name, texts.to_series(i).to_list(), content))
    return columns


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


def _write(data: bytes) -> None:
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(unwritable(error)) from error


# -- progress on standard error --------------------------------------------------------------------


T = TypeVar("T")

SECONDS_BETWEEN_LINES = 15.0
"""The time between progress lines: logs stay short, and the work does not look stuck."""

_LONG_ROWS = 1_000_000
# Rows become several times as large as text, and a shell needs no larger batches.
_MEMORY_BYTES_MAX = 128 << 20


def tracked_batches(scan: Scan | FallbackScan | ExternalScan) -> Iterator[pa.RecordBatch]:
    """The scan's batches, with a progress bar over its rows if it will take a while.

    How many of a bucket's stored rows remain after merging is not known in advance. The bar moves
    with the merged rows, and skips the others at the end of the bucket.

    The bar needs a terminal to which the rows themselves are not written. External tables have no
    buckets and no bar.
    """
    if isinstance(scan, ExternalScan):
        yield from scan.to_batches()
        return
    memory = min(scan.view.options.read_memory_bytes, _MEMORY_BYTES_MAX)
    tasks, rows, done = scan.tasks(), 0, 0
    with _bar(scan) as progress:
        bar = progress.add_task("", total=sum(task.stored_rows for task in tasks), rows="0")
        for task in tasks:
            end = done + task.stored_rows
            for table in task.tables(memory):
                rows += table.num_rows
                done = min(done + table.num_rows, end)
                progress.update(bar, completed=done, rows=f"{rows:,}")
                yield from table.to_batches()
            done = end
            progress.update(bar, completed=done)


def _bar(scan: Scan | FallbackScan) -> Progress:
    watched = sys.stderr.isatty() and not sys.stdout.isatty()
    is_long = sum(p.plan.funnel.stages[-1].rows for p in scan.parts) >= _LONG_ROWS
    return Progress(
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]} rows"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not (watched and is_long),
    )


class Show(Protocol):
    """Shows the progress of some work."""

    def __call__(self, done: int, total: int, rows: int = 0) -> None:
        """Report the number of completed things, of all things, and of written rows."""
        ...


@contextmanager
def progress_bar(what: str) -> Iterator[Show]:
    """A progress bar. Without a terminal, a line from time to time."""
    if not sys.stderr.isatty():
        told_at = time.monotonic()

        def tell(done: int, total: int, rows: int = 0) -> None:
            nonlocal told_at
            if time.monotonic() - told_at >= SECONDS_BETWEEN_LINES:
                told_at = time.monotonic()
                note(f"{done:,} of {total:,} {what}{_of_rows(rows)}")

        yield tell
        return
    with Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{what}{{task.fields[rows]}}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        bar = progress.add_task("", total=None, rows="")

        def show(done: int, total: int, rows: int = 0) -> None:
            progress.update(bar, completed=done, total=total, rows=_of_rows(rows))

        yield show


def _of_rows(count: int) -> str:
    return f", {count:,} rows written" if count else ""


@contextmanager
def heartbeat(tell: Callable[[], str]) -> Iterator[None]:
    """Write a line from time to time while a block runs that may report nothing for a long time.

    Also on a terminal, because such a block has no bar.
    """
    is_over = Event()

    def beat() -> None:
        while not is_over.wait(SECONDS_BETWEEN_LINES):
            note(tell())

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@dataclass(frozen=True)
class TrackedThreads:
    """Runs tasks in this process. Each task is a step of a progress bar. See `TaskRunner`.

    The number of written rows shows the progress within a long task.
    """

    threads: Threads
    what: str

    def each(self, tasks: Sequence[Callable[[], T]], take: Callable[[T], None]) -> None:
        """Run tasks and yield their results in order."""
        with progress_bar(self.what) as show:
            way = _TaskProgress(show, len(tasks))
            self.threads.each([partial(way.tracked, task) for task in tasks], take)


class _TaskProgress:
    """The progress of some tasks. Thread-safe."""

    def __init__(self, show: Show, total: int) -> None:
        self._show, self._total = show, total
        self._done = self._rows = 0
        self._lock = Lock()
        show(0, total)

    def tracked(self, task: Callable[[], T]) -> T:
        """Run a task and report its progress."""
        with listening(lambda rows: self._add(0, rows)):
            made = task()
        self._add(1, 0)
        return made

    def _add(self, done: int, rows: int) -> None:
        with self._lock:
            self._done += done
            self._rows += rows
            self._show(self._done, self._total, self._rows)
