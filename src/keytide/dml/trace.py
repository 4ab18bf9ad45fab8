"""Records the calls of one statement to its connector.

A traced connector passes every call on. Only the connector itself is pickled for other processes,
so on Spark the calls on the driver are recorded, and those of its workers are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from threading import Lock
from time import perf_counter
from typing import Any, TypeVar, cast

from keytide.base.dataclass import dataclass, replace
from keytide.base.text import counted
from keytide.dml.spi import (
    ColumnHandle,
    Connector,
    ConnectorMergeSink,
    ConnectorMergeSinkProvider,
    ConnectorMetadata,
    ConnectorPageSource,
    ConnectorPageSourceProvider,
    ConnectorSession,
    ConnectorSplitManager,
    ConnectorTableHandle,
    Split,
)
from keytide.show.explanations import Plan

T = TypeVar("T")
Worker = tuple[str, int]
"""`split` or `sink`, and its number."""


@dataclass(frozen=True)
class Call:
    """One call, or several similar ones: the counted items by noun, and the duration.

    `worker` is None on the driver.
    """

    name: str
    counts: Mapping[str, int]
    note: str
    millis: float
    worker: Worker | None = None
    times: int = 1

    def __str__(self) -> str:
        name = self.name if self.times == 1 else f"{self.name} ({counted(self.times, 'call')})"
        parts = [counted(count, noun) for noun, count in self.counts.items()]
        parts += [self.note] if self.note else []
        return f"{name}: {', '.join([*parts, f'{self.millis:.1f} ms'])}"


class Trace:
    """The recorded calls. Thread-safe."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._lock = Lock()
        self.splits: list[Split] = []
        """In an order that gives their numbers."""

    def call(
        self,
        name: str,
        make: Callable[[], T],
        describe: Callable[[T], Mapping[str, int] | str],
        worker: Worker | None = None,
    ) -> T:
        """Make a call and record it, even if it fails."""
        start = perf_counter()
        counts: Mapping[str, int] = {}
        note = ""
        try:
            result = make()
            given = describe(result)
            counts, note = ({}, given) if isinstance(given, str) else (given, "")
        except BaseException as error:
            note = f"raised {type(error).__name__}"
            raise
        finally:
            millis = (perf_counter() - start) * 1000
            with self._lock:
                self._calls.append(Call(name, counts, note, millis, worker))
        return result

    @property
    def calls(self) -> list[Call]:
        """The recorded calls, in the order in which they ended."""
        with self._lock:
            return list(self._calls)

    def steps(self) -> Iterator[Plan]:
        """What to display: calls of the driver in order, those of each split below it."""
        for on_worker, group in groupby(self.calls, lambda call: call.worker is not None):
            if not on_worker:
                yield from (Plan(str(call)) for call in group)
                continue
            by_worker: dict[Worker, list[Call]] = {}
            for call in group:
                by_worker.setdefault(cast(Worker, call.worker), []).append(call)

            # The calls of each split, summed up if there are too many splits.
            workers = sorted(by_worker, key=lambda worker: (worker[0] != "split", worker[1]))
            for worker in workers[:_WORKERS_SHOWN]:
                calls = by_worker[worker]
                shown = calls if len(calls) <= _CALLS_SHOWN else _sums(calls)
                below = tuple(Plan(str(call)) for call in shown)
                yield Plan(f"{worker[0]} {worker[1]}", children=below)
            others = [call for worker in workers[_WORKERS_SHOWN:] for call in by_worker[worker]]
            if others:
                below = tuple(Plan(str(call)) for call in _sums(others))
                more = counted(len(workers) - _WORKERS_SHOWN, "more split")
                yield Plan(more, children=below)


_CALLS_SHOWN = 16
_WORKERS_SHOWN = 8


def _sums(calls: Sequence[Call]) -> list[Call]:
    sums: dict[str, Call] = {}
    for call in calls:
        known = sums.get(call.name)
        if known is None:
            sums[call.name] = call
            continue
        nouns = {**known.counts, **call.counts}
        counts = {noun: known.counts.get(noun, 0) + call.counts.get(noun, 0) for noun in nouns}
        millis, times = known.millis + call.millis, known.times + call.times
        sums[call.name] = replace(known, counts=counts, note="", millis=millis, times=times)
    return list(sums.values())


# -- traced connectors -----------------------------------------------------------------------------


def traced(connector: Connector, trace: Trace) -> Connector:
    """A connector that does the same and records its calls."""
    sinks = connector.merge_sinks
    return Connector(
        connector.name,
        cast(ConnectorMetadata, _Traced(connector.metadata, trace)),
        _Splits(connector.splits, trace),
        _Pages(connector.pages, trace),
        None if sinks is None else _Sinks(sinks, trace),
        connector.isolation,
    )


class _Traced:
    """Records the calls that change rows or read them for a change. Other calls are passed on."""

    def __init__(self, inner: Any, trace: Trace, worker: Worker | None = None) -> None:
        self._inner, self._trace, self._worker = inner, trace, worker

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        is_about_change = name.startswith(("begin_", "finish_", "abort_", "execute_", "apply_"))
        if self._worker is None and not (is_about_change or name.endswith("_row_id_column_handle")):
            return call

        def made(*arguments: Any) -> Any:
            return self._trace.call(
                name,
                lambda: call(*arguments),
                lambda given: _description(name, arguments, given),
                self._worker,
            )

        return made


def _description(name: str, arguments: Sequence[Any], given: Any) -> Mapping[str, int] | str:
    if name.endswith("_row_id_column_handle"):
        return str(given.type)
    if name == "apply_filter":
        return f"{counted(len(arguments[2]), 'term')}, {len(given[1])} not applied"
    if name == "apply_match":
        return ", ".join(arguments[2])
    if name == "apply_values":
        return ", ".join(f"{n}: {counted(len(v), 'value')}" for n, v in arguments[2].items())
    if name == "apply_delete":
        return "cannot" if given is None else "can be done without reading"
    if name.startswith("execute_"):
        return {"row": given}
    if name.startswith("finish_"):
        return {"fragment": len(arguments[2]), "row": given}
    if name.startswith("abort_"):
        return {"fragment": len(arguments[2])}
    # Calls of sources and sinks.
    if name == "get_next_page":
        return "no more" if given is None else {"row": given.num_rows}
    if name == "delete_rows":
        return {"row": len(arguments[0])}
    if name in ("update_rows", "store_merged_rows"):
        return {"row": arguments[0].num_rows}
    return {"fragment": len(given)} if name == "finish" else ""


@dataclass(frozen=True)
class _Splits(ConnectorSplitManager):
    inner: ConnectorSplitManager
    trace: Trace

    def get_splits(self, session: ConnectorSession, table: ConnectorTableHandle) -> Sequence[Split]:
        splits = self.trace.call(
            "get_splits",
            lambda: self.inner.get_splits(session, table),
            lambda given: {"split": len(given)},
        )
        self.trace.splits = list(splits)
        return splits

    def stored_bytes(self, splits: Sequence[Split]) -> int | None:
        return self.inner.stored_bytes(splits)


def _itself(inner: T) -> T:
    return inner


@dataclass(frozen=True)
class _Pages(ConnectorPageSourceProvider):
    inner: ConnectorPageSourceProvider
    trace: Trace

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.inner,)

    def create_page_source(
        self,
        session: ConnectorSession,
        table: ConnectorTableHandle,
        split: Split,
        columns: Sequence[ColumnHandle],
    ) -> ConnectorPageSource:
        known = (number for number, each in enumerate(self.trace.splits) if each is split)
        worker = "split", next(known, -1)
        source = self.trace.call(
            "create_page_source",
            lambda: self.inner.create_page_source(session, table, split, columns),
            lambda _: ", ".join(column.name for column in columns),
            worker,
        )
        return cast(ConnectorPageSource, _Traced(source, self.trace, worker))


@dataclass(frozen=True)
class _Sinks(ConnectorMergeSinkProvider):
    inner: ConnectorMergeSinkProvider
    trace: Trace

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.inner,)

    def create_merge_sink(
        self, session: ConnectorSession, table: ConnectorTableHandle, number: int, count: int
    ) -> ConnectorMergeSink:
        worker = "sink", number
        sink = self.trace.call(
            "create_merge_sink",
            lambda: self.inner.create_merge_sink(session, table, number, count),
            lambda _: "",
            worker,
        )
        return cast(ConnectorMergeSink, _Traced(sink, self.trace, worker))
