"""Follows the data through the modules of Keytide, call by call.

    python scripts/data_ways.py

Runs one small example of each operation. Prints the modules that the data entered in order, the
number of modules, the number of returns (calls into a module that the data had left), and the
number of looks (requests to the store).

What counts:

- A call counts if data is passed: a table, frame, array or series is among its arguments (also in
  its object, and in tuples, lists and dicts), or in its result. Consecutive calls in the same
  module count once.
- Not counted are the vocabulary (`base`, `errors`, `types`, `options`, ...), the bodies of
  comprehensions and lambdas, and code that runs while a module is loaded. A generator counts where
  it starts.
- Work for threads runs immediately, and the calls of DuckDB's thread come after those of the thread
  that started it, so that the order is the same in each run.
- A look is a call from outside the store package that reads, lists, writes or deletes something
  there. The tables are in an object store, where each look is a request.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa

DATA = (
    pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray,
    pl.DataFrame, pl.LazyFrame, pl.Series, pd.DataFrame,
)  # fmt: skip
VOCABULARY = {"base", "errors", "options", "store", "telemetry", "types"}
ASKING = {
    "copy", "create", "delete", "delete_tree", "discard", "exists", "hint", "list", "list_names",
    "open_input", "open_output", "put", "put_all", "read", "read_all", "read_present",
    "read_ranges", "size",
}  # fmt: skip
"""The calls of a store that send a request."""


@dataclass
class Way:
    """The modules that the data entered, in the order of the calls, and the requests to the
    store.
    """

    name: str
    calls: dict[int, list[str | None]] = field(default_factory=dict)
    """By thread, in the order in which the threads began."""
    looks: int = 0
    _open: dict[int, tuple[list[str | None], int]] = field(default_factory=dict)

    @property
    def modules(self) -> list[str]:
        """The modules in order. Consecutive calls in the same module count once."""
        calls = itertools.chain.from_iterable(self.calls.values())
        entered = [module for module in calls if module is not None]
        return [m for m, before in zip(entered, [None, *entered], strict=False) if m != before]

    @property
    def distinct(self) -> list[str]:
        """The modules in the order of first entry."""
        return list(dict.fromkeys(self.modules))

    @property
    def returns(self) -> int:
        """How often the data entered a module that it had left before."""
        return len(self.modules) - len(self.distinct)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """A block whose calls are followed."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _see(self, frame: FrameType, event: str, value: Any) -> None:
        self.looks += event == "call" and _is_look(frame)
        module = _module_of(frame)
        if module is None:
            return
        if event == "call" and id(frame) not in self._open:
            given = frame.f_locals.values()
            calls = self.calls.setdefault(threading.get_ident(), [])
            self._open[id(frame)] = calls, len(calls)
            calls.append(module if any(map(_is_data, given)) else None)
        elif event == "return":
            opened = self._open.get(id(frame))
            if opened is not None and _is_data(value):
                calls, at = opened
                calls[at] = module
            if not frame.f_code.co_flags & _GENERATOR or value is None:
                self._open.pop(id(frame), None)


_GENERATOR = 0x20


def _module_of(frame: FrameType) -> str | None:
    """The module of a call that may count, without the package name."""
    package, _, name = frame.f_globals.get("__name__", "").partition(".")
    if package != "keytide" or frame.f_code.co_name.startswith("<"):
        return None
    return None if name.split(".")[0] in VOCABULARY else name


def _is_look(frame: FrameType) -> bool:
    """Whether a call sends a request to the store, and does not come from inside the store."""
    if frame.f_code.co_name not in ASKING or not _is_of_store(frame):
        return False
    caller = _caller(frame)
    return caller is None or not _is_of_store(caller)


def _caller(frame: FrameType) -> FrameType | None:
    """The caller of a frame, also across the thread that runs it."""
    caller = frame.f_back
    while caller is not None and caller.f_globals.get("__name__") in (
        __name__,
        "keytide.base.process",
    ):
        caller = caller.f_back
    return caller


def _is_of_store(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("keytide.store")


def _is_data(value: Any, depth: int = 2) -> bool:
    if isinstance(value, DATA):
        return True
    if not depth:
        return False
    if isinstance(value, dict):
        return any(_is_data(each, depth - 1) for each in value.values())
    if isinstance(value, list | tuple):
        return any(_is_data(each, depth - 1) for each in value)
    members = getattr(value, "__dict__", None) if type(value).__module__[:7] == "keytide" else None
    return bool(members) and any(_is_data(each, depth - 1) for each in members.values())


class _AtOnce(concurrent.futures.Executor):
    """Runs submitted work immediately, in the thread of the caller."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, call: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        done.set_result(call(*given, **named))
        return done

    def map(self, call: Callable[..., Any], *given: Iterable[Any], **_: Any) -> Iterator[Any]:
        return map(call, *given)


def _connected(connect: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """A DuckDB connection without its own threads, so that its queries are followed too."""
    connection = connect(*given, **named)
    connection.execute("SET threads = 1")
    return connection


concurrent.futures.ThreadPoolExecutor = _AtOnce  # type: ignore[misc, assignment]
duckdb.connect = partial(_connected, duckdb.connect)

# The following modules use the replaced threads from above.
import keytide as kt  # noqa: E402  # see above
from keytide.cdc import FeedSpec, SequenceSource, decode  # noqa: E402  # see above
from keytide.commit.transaction import Transaction  # noqa: E402  # see above
from keytide.feeds.feed_writer import adapt_to_table, change_writer  # noqa: E402  # see above
from keytide.types import Field, parse_sql_type  # noqa: E402  # see above
from keytide.write.refusals import writable_view  # noqa: E402  # see above

ROWS = {"id": [1, 2, 3], "v": ["a", "b", "c"], "lsn": [10, 20, 30]}
COLUMNS = tuple(
    Field(-1, name, parse_sql_type(type))
    for name, type in [("id", "BIGINT"), ("v", "STRING"), ("lsn", "BIGINT")]
)
SPEC = FeedSpec(
    "debezium-json", COLUMNS, ("id",), (SequenceSource("source.lsn", "lsn", COLUMNS[2].type),)
)
MESSAGES: list[dict[str, Any] | str | None] = [
    {"op": "c", "after": {"id": 4, "v": "d"}, "source": {"lsn": 40}},
    {"op": "u", "before": {"id": 1, "v": "a"}, "after": {"id": 1, "v": "A"}, "source": {"lsn": 41}},
    {"op": "u", "after": {"id": 2, "v": "__debezium_unavailable_value"}, "source": {"lsn": 42}},
    {"op": "d", "before": {"id": 3, "v": "c"}, "source": {"lsn": 43}},
    None,
    "broken",
]


def messages() -> pa.Array:
    """A batch of a feed: a new row, changes with and without a value, a delete, an invalid
    message.
    """
    return pa.array([json.dumps(m) if isinstance(m, dict) else m for m in MESSAGES])


def new_table(warehouse: str) -> Any:
    """A table with the order of the changes, which fits the feed."""
    options = {"sequence.field": "lsn", "bucket": "1"}
    return kt.connect(warehouse).create_table("db.t", COLUMNS, ["id"], options=options)


def new_warehouse() -> str:
    """A warehouse in the memory of the process, which counts as remote."""
    return f"memory://{uuid.uuid4().hex}"


def rows_way(name: str, data: Any, read: Callable[[Any], Any]) -> Iterator[Way]:
    """Write and scan a table."""
    table = new_table(new_warehouse())
    for way, act in [
        (Way(f"{name} written"), lambda: table.write(data)),
        (Way(f"{name} scanned"), lambda: read(table.scan())),
    ]:
        act()  # what is created once and cached is created before it is followed
        with way.followed():
            act()
        yield way


def change_way() -> Way:
    """Decode and write messages, without Spark."""
    way = Way("change messages applied")
    for followed in (Way("the first time, which loads modules"), way):
        table = new_table(new_warehouse())
        table.write(pl.DataFrame(ROWS))
        apply_changes(table, messages(), followed)
    return way


def statement_ways() -> Iterator[Way]:
    """Statements and other calls on a table with a few commits, each after a first run."""
    query = "SELECT id, v FROM db.t WHERE id > 1 ORDER BY id"
    acts: dict[str, Callable[[Any, Any, int], Any]] = {
        "DELETE by key": lambda lake, table, turn: table.delete(f"id = {turn + 1}"),
        "DELETE in SQL": lambda lake, table, turn: lake.sql(
            f"DELETE FROM db.t WHERE id = {turn + 1}"
        ),
        "SELECT": lambda lake, table, turn: lake.sql(query).to_arrow(),
        "changes": lambda lake, table, turn: table.changes(1, 2, "delta").to_arrow(),
        "compaction": lambda lake, table, turn: table.compact(full=True),
    }
    for name, act in acts.items():
        way, warehouse = Way(name), new_warehouse()
        table, lake = new_table(warehouse), kt.connect(warehouse)
        for turn, followed in enumerate([Way("the first time"), way]):
            for _ in range(2):
                table.write(pl.DataFrame(ROWS))
            with followed.followed():
                act(lake, table, turn)
        yield way


def apply_changes(table: Any, batch: pa.Array, way: Way) -> None:
    """Decode a batch and write it to a table, like a task of an ingestion."""
    view = writable_view(table.stored)
    with Transaction.begin(table.stored, view) as transaction:
        writer = change_writer(transaction)
        with way.followed():
            found = adapt_to_table(decode(batch, SPEC), batch, view)
            written = writer.write(found.rows).written
        transaction.collect(written)
        transaction.commit()


def ways() -> Iterator[Way]:
    """All operations, followed."""
    yield from rows_way("a Polars frame", pl.DataFrame(ROWS), lambda scan: scan.to_polars())
    yield from rows_way("a pandas frame", pd.DataFrame(ROWS), lambda scan: scan.to_pandas())
    yield from rows_way("an Arrow table", pa.table(ROWS), lambda scan: scan.to_arrow())
    yield change_way()
    yield from statement_ways()


def main() -> None:
    """Print the results."""
    followed = list(ways())
    for way in followed:
        counts = f"{len(way.distinct)} modules, {way.returns} returns, {way.looks} looks"
        print(f"{way.name}: {counts}")
        print("   ", " > ".join(way.modules), "\n")
    for way in followed:
        counts = f"{len(way.distinct):>4} modules{way.returns:>4} returns{way.looks:>4} looks"
        print(f"{way.name:25}{counts}")


if __name__ == "__main__":
    main()
