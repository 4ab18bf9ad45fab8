"""Queries that run for a page: each has a time limit, and can be cancelled by the page's number."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from keytide.errors import InvalidError
from keytide.sql.stopping import Stop

__all__ = ["QUERY_SECONDS_MAX", "Run", "Runs"]

T = TypeVar("T")

QUERY_SECONDS_MAX = 60.0
"""How long a query runs at most, if nothing else is chosen."""

_GRACE_SECONDS = 2.0
"""How long a request waits for a stopped query to end, before it answers without that."""


@dataclass
class Run:
    """A query that a request waits for; `number` is that of the page that asked for it."""

    number: str
    stop: Stop = field(default_factory=Stop)
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when there is a result or an error, or when the query was cancelled."""

    def cancel(self) -> None:
        """Stop it. The request that waits for it answers soon."""
        self.stop.send()
        self.ended.set()


class Runs:
    """The queries that run now. Safe for threads.

    `limit_seconds` bounds each of them; None is no limit.
    """

    def __init__(self, limit_seconds: float | None) -> None:
        self.limit_seconds = limit_seconds
        self._lock = threading.Lock()
        self._runs: list[Run] = []

    def cancel(self, number: str) -> int:
        """Cancel the queries of a number; returns how many of them were running."""
        return self._cancel([run for run in self._now() if run.number == number])

    def cancel_all(self) -> int:
        """Cancel all queries, when the server ends."""
        return self._cancel(self._now())

    def result(self, run: Run, query: Callable[[Stop], T]) -> T:
        """Run a query in its own thread, with what stops it.

        When it is cancelled or exceeds the limit, it is stopped, and this raises `InvalidError`. A
        query that does not end within two seconds continues in its thread to the next point where
        it can be stopped, and its result is dropped. Raises what the query raises.
        """
        with self._listed(run):
            running: Future[T] = Future()
            running.add_done_callback(lambda _: run.ended.set())
            work = threading.Thread(
                target=_settle, args=(running, query, run.stop), name="keytide-ui", daemon=True
            )
            work.start()
            in_time = run.ended.wait(self.limit_seconds)
            if running.done() and not run.stop.is_sent:
                return running.result()
            run.stop.send()
            wait([running], timeout=_GRACE_SECONDS)
            raise InvalidError(self._reason(in_time, running))

    def _reason(self, in_time: bool, running: Future[T]) -> str:
        what = "was cancelled" if in_time else f"ran longer than {self.limit_seconds:g} s"
        after = (
            "It was stopped."
            if running.done()
            else "Its current step still runs to its end, and its result is dropped."
        )
        advice = "" if in_time else " Read less, or start keytide ui with a longer --query-timeout."
        return f"The query {what}. {after}{advice}"

    def _now(self) -> list[Run]:
        with self._lock:
            return [*self._runs]

    @staticmethod
    def _cancel(runs: list[Run]) -> int:
        for run in runs:
            run.cancel()
        return len(runs)

    @contextmanager
    def _listed(self, run: Run) -> Iterator[None]:
        with self._lock:
            self._runs.append(run)
        try:
            yield
        finally:
            with self._lock:
                self._runs.remove(run)


def _settle(running: Future[T], query: Callable[[Stop], T], stop: Stop) -> None:
    try:
        running.set_result(query(stop))
    except BaseException as error:  # the request that waits raises it
        running.set_exception(error)
