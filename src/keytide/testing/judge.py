"""The judge: whether a reader of the table format shows the rows that tables must show.

    python -m keytide.testing.judge READER [ARGUMENT ...]

makes some 2,000 small tables, has the command READER read all of them, and prints which it reads
right or wrong, and which it refuses. The tables are `judged_tables.cells`, and `json_values` says
how values are spelled. The command can be in any language:

- It is started once, and gets an object of JSON on its standard input for each table, in a line of
  its own. This has the members `warehouse` (the folder of the databases), `table` (its name,
  `default.t`), `path` (its folder), `form` (`paimon`, `delta` or `iceberg`) and `columns` (their
  names and SQL types). Another state of the table is named by `snapshot`, `tag` or `branch`.
- It prints a line of JSON for each row, an object of column names and values, in any order, and an
  empty line after the last one. To refuse, it prints its reason as a string of JSON instead.
- At the end of its input, it ends. If it ends before, or gives no answer in time, the table counts
  as failed, and the command is started again for the next one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import selectors
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import track
from rich.table import Table

import keytide as kt
from keytide.base.dataclass import dataclass, field
from keytide.errors import KeytideWarning
from keytide.testing.json_values import comparable
from keytide.testing.judged_tables import Cell, cells

__all__ = ["OUTCOMES", "Verdict", "judge", "main", "make_tables"]

OUTCOMES = ("right", "refused", "wrong", "failed")
FORMS = ("paimon", "delta", "iceberg")
_LIST = "tables.jsonl"
_TABLE = "default.t"
_FAILURES_MAX = 5

Line: TypeAlias = dict[str, Any]
"""A table in the list of a folder: what is requested, and the rows that it must show."""


@dataclass(frozen=True)
class Verdict:
    """What a reader made of a table. `outcome` is one of `OUTCOMES`."""

    area: str
    name: str
    outcome: str
    detail: str = ""
    """The reason of a refusal or failure, or the first rows that differ."""


# -- tables ----------------------------------------------------------------------------------------


def make_tables(
    folder: Path, chosen: Callable[[Cell], bool] = lambda cell: True, processes: int = 2
) -> list[Line]:
    """Make the chosen tables in a new folder, and list them in its file `tables.jsonl`.

    The list is always the same; names of files and times in the tables differ.
    """
    places = [place for place, cell in enumerate(cells()) if chosen(cell)]
    folder.mkdir(parents=True, exist_ok=True)
    make = partial(_make, folder)
    with ExitStack() as stack:
        made: Iterable[Line] = map(make, places)
        if processes > 1:
            # A forked process would lack the threads that Polars has.
            pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
            made = stack.enter_context(pool).map(make, places, chunksize=8)
        lines = list(_tracked(made, len(places), "Making tables"))
    (folder / _LIST).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return lines


def _make(folder: Path, place: int) -> Line:
    cell, warehouse = cells()[place], f"{place:04}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KeytideWarning)  # they concern who uses the table for long
        cell.make(kt.connect(str(folder / warehouse)), _TABLE.partition(".")[2])
    columns = {**(cell.shown or cell.columns)}
    request = {"table": _TABLE, "form": cell.form, "columns": columns, **cell.look}
    known = {"warehouse": warehouse, "rows": cell.rows, "bags": cell.bags}
    return {"area": cell.area, "name": cell.name, "request": request, **known}


def archive_tables(folder: Path, archive: Path) -> None:
    """Pack the tables of a folder, in the order of their names, as a `.tar.xz`.

    Iceberg tables are left out, because their files name the folder in which they were made.
    """
    lines = [json.loads(text) for text in (folder / _LIST).read_text().splitlines()]
    packed = [line for line in lines if line["request"]["form"] != "iceberg"]
    with tarfile.open(archive, "w:xz") as made, tempfile.TemporaryDirectory() as scratch:
        listed = Path(scratch, _LIST)
        listed.write_text("".join(f"{json.dumps(line)}\n" for line in packed))
        made.add(listed, _LIST)
        for line in packed:
            made.add(folder / line["warehouse"], line["warehouse"])


# -- readers ---------------------------------------------------------------------------------------


@dataclass
class _Reader:
    """A command that reads tables. It is started when it is first asked, and after it ended."""

    command: Sequence[str]
    seconds: float
    _process: subprocess.Popen[bytes] | None = None
    _left: bytearray = field(default_factory=bytearray)

    def answer(self, request: Mapping[str, Any]) -> list[Any]:
        """What it prints for a table, up to the empty line. Raises `OSError` or `ValueError`."""
        if self._process is None:
            self._left.clear()
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            # As decimals, numbers keep all digits that the reader prints.
            return [json.loads(line, parse_float=Decimal) for line in iter(self._line, b"")]
        except (OSError, ValueError):
            self.close()
            raise

    def _line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._left:
                if not selector.select(self.seconds):
                    raise TimeoutError(f"it gave no answer within {self.seconds:g} seconds")
                more = os.read(self._process.stdout.fileno(), 1 << 16)
                if not more:
                    raise ChildProcessError(f"it ended with exit code {self._process.wait()}")
                self._left += more
        line, _, rest = bytes(self._left).partition(b"\n")
        self._left[:] = rest
        return line.strip()

    def close(self) -> None:
        """End the command."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError, subprocess.TimeoutExpired):
            process.communicate(timeout=self.seconds)
        if process.poll() is None:
            process.kill()
            process.communicate()


def judge(
    folder: Path,
    command: Sequence[str],
    chosen: Callable[[Line], bool] = lambda line: True,
    seconds: float = 60.0,
) -> Iterator[Verdict]:
    """Have a command read the tables of a folder, one after the other. Verdicts in their order.

    After five failures in a row, the remaining tables count as failed. Raises `FileNotFoundError`
    if the command or the list of tables is missing.
    """
    lines = [json.loads(text) for text in (folder / _LIST).read_text().splitlines()]
    reader, failures = _Reader(command, seconds), 0
    try:
        for line in filter(chosen, lines):
            found = ("failed", f"not read after {_FAILURES_MAX} failures in a row")
            if failures < _FAILURES_MAX:
                found = _judged(folder, line, reader)
                failures = failures + 1 if found[0] == "failed" else 0
            yield Verdict(line["area"], line["name"], *found)
    finally:
        reader.close()


def _judged(folder: Path, line: Line, reader: _Reader) -> tuple[str, str]:
    warehouse = (folder / line["warehouse"]).resolve()
    request = {
        "warehouse": str(warehouse), "path": str(warehouse / "default.db" / "t"), **line["request"],
    }  # fmt: skip
    try:
        answer = reader.answer(request)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        return "failed", f"{type(error).__name__}: {error}"
    if any(isinstance(each, str) for each in answer):
        return "refused", next(each for each in answer if isinstance(each, str))
    columns = line["request"]["columns"]
    expected = [dict(zip(columns, row, strict=True)) for row in line["rows"]]
    try:
        shown = Counter(_texts(answer, columns, line["bags"]))
    except (ValueError, TypeError, AttributeError) as error:
        return "wrong", f"a value is none of its column's type: {error}"
    wanted = Counter(_texts(expected, columns, line["bags"]))
    if shown == wanted:
        return "right", ""
    missing, surplus = sorted(wanted - shown)[:3], sorted(shown - wanted)[:3]
    return (
        "wrong",
        f"it misses {', '.join(missing) or 'nothing'}; has {', '.join(surplus) or 'no'} more",
    )


def _texts(rows: Sequence[Any], columns: Mapping[str, str], bags: Sequence[str]) -> Iterator[str]:
    types = {name: kt.parse_sql_type(text) for name, text in columns.items()}
    for row in rows:
        values = {name: comparable(row.get(name), kind) for name, kind in types.items()}
        if more := {*row} - {*types}:
            raise ValueError(f"the columns {sorted(more)} are not in the table")
        for name in bags:
            values[name] = values[name] and sorted(values[name], key=repr)
        yield str(tuple(values.values()))


# -- the command -----------------------------------------------------------------------------------


def _tracked(items: Any, count: int | None, what: str) -> Any:
    console = Console(stderr=True)
    return track(items, what, count, console=console, disable=not console.is_terminal)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m keytide.testing.judge",
        description="Have a command read some 2,000 small tables, and compare the rows.",
    )
    parser.add_argument("--tables", type=Path, help="folder of tables; they are made if it is new")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORDS",
        help="only tables whose area or name has these words, such as 'delta'; may be repeated",
    )
    parser.add_argument("--form", choices=FORMS, help="only tables in this form")
    parser.add_argument("--archive", type=Path, help="also pack the tables, as a .tar.xz")
    parser.add_argument("--seconds", type=float, default=60.0, help="to wait for an answer")
    parser.add_argument("--json", action="store_true", help="print all verdicts as lines of JSON")
    parser.add_argument("reader", nargs=argparse.REMAINDER, help="the command and its arguments")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge a reader. The exit code is 1 if a table is read wrong or not at all."""
    parser = _parser()
    given = parser.parse_args(arguments)
    command = given.reader[1:] if given.reader[:1] == ["--"] else given.reader
    if not command and not (given.tables or given.archive):
        parser.error("name a command that reads tables, or --tables or --archive to make them only")
    if command and shutil.which(command[0]) is None:
        parser.error(f"the command {command[0]!r} does not exist")

    def is_chosen(form: str, name: str) -> bool:
        has_words = not given.only or any(words in name for words in given.only)
        return has_words and given.form in (None, form)

    with tempfile.TemporaryDirectory() as scratch:
        folder = given.tables or Path(scratch, "tables")
        if not (folder / _LIST).exists():
            if folder.exists() and any(folder.iterdir()):
                parser.error(f"{folder} is not empty, and has no {_LIST}; name a new folder")
            make_tables(folder, lambda cell: is_chosen(cell.form, f"{cell.area}: {cell.name}"))
        if given.archive:
            archive_tables(folder, given.archive)
        if not command:
            return 0
        found = judge(
            folder,
            command,
            lambda line: is_chosen(line["request"]["form"], f"{line['area']}: {line['name']}"),
            given.seconds,
        )
        verdicts = list(_tracked(found, None, "Reading tables"))
    if not verdicts:
        parser.error("no table of the folder has these words and this form")
    is_bad = [each.outcome in ("wrong", "failed") for each in verdicts]
    if given.json:
        for each in verdicts:
            print(json.dumps(vars(each)))
        return int(any(is_bad))

    # A table of the areas, and what was wrong or failed.
    console, table = Console(soft_wrap=True), Table("tables", *OUTCOMES)
    for each in itertools.compress(verdicts, is_bad):
        console.print(f"{each.outcome}: {each.area}: {each.name}: {each.detail}", markup=False)
    counts = Counter((each.area, each.outcome) for each in verdicts)
    counts.update(("all", each.outcome) for each in verdicts)
    for area in dict.fromkeys([*(each.area for each in verdicts), "all"]):
        table.add_row(area, *(str(counts[area, outcome]) for outcome in OUTCOMES))
    console.print(table)
    return int(any(is_bad))


if __name__ == "__main__":
    sys.exit(main())
