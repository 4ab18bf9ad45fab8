"""Spans and metrics for OpenTelemetry, switched on by `keytide.telemetry.enable()`.

Each span is named after the operation, such as `keytide.commit`. Its attributes are the table,
`keytide.table`, and details such as `keytide.files` and `keytide.bytes`. The duration in seconds is
recorded in the histogram `keytide.commit.duration`. Each number is added to a counter such as
`keytide.commit.files`. The only attribute of both is the table. While telemetry is off, nothing is
imported, and a span costs the check of one variable.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from keytide.base.dataclass import dataclass, field
from keytide.base.process import library

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

__all__ = ["Step", "disable", "enable", "lone_span", "span"]

_NAME = "keytide"
_TABLE = f"{_NAME}.table"


def enable(
    tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Send spans and metrics to OpenTelemetry from now on, in this process.

    The default providers are the global ones of the process, whether they are set now or later.
    Raises `SetupError` without the extra `telemetry`.
    """
    global _told  # one per process, like OpenTelemetry's providers
    trace = library("opentelemetry.trace", "telemetry", "keytide.telemetry.enable")
    metrics = library("opentelemetry.metrics", "telemetry", "keytide.telemetry.enable")
    _told = _Instruments(
        trace.get_tracer(_NAME, tracer_provider=tracer_provider),
        metrics.get_meter(_NAME, meter_provider=meter_provider),
    )


def disable() -> None:
    """Stop sending spans and metrics."""
    global _told  # see `enable`
    _told = None


class Step:
    """The running operation, which can report details about itself."""

    def numbers(self, **found: int) -> None:
        """Report numbers that make sense as sums, such as files and bytes.

        Numbers that are reported repeatedly add up.
        """

    def facts(self, **found: str | int | bool) -> None:
        """Report any other attribute."""


_NOBODY = Step()


@contextmanager
def span(name: str, table: str = "", **facts: str) -> Iterator[Step]:
    """Run a block within the span `keytide.` + `name`. It records errors that leave the block."""
    observers = _told
    if observers is None:
        yield _NOBODY
        return
    full, began = f"{_NAME}.{name}", time.perf_counter()
    with observers.tracer.start_as_current_span(full) as current:
        step = _Observed(observers, current, full, table)
        step.facts(table=table, **facts) if table else step.facts(**facts)
        try:
            yield step
        finally:
            step.ended(time.perf_counter() - began)


@contextmanager
def lone_span(name: str, table: str) -> Iterator[Step]:
    """Create a span without children, for an operation done in parts while others run."""
    observers = _told
    if observers is None:
        yield _NOBODY
        return
    full, began = f"{_NAME}.{name}", time.perf_counter()
    step = _Observed(observers, observers.tracer.start_span(full), full, table)
    step.facts(table=table)
    try:
        yield step
    finally:
        step.ended(time.perf_counter() - began)
        step.span.end()


@dataclass(frozen=True)
class _Instruments:
    tracer: Tracer
    meter: Meter
    counters: dict[str, Counter] = field(default_factory=dict)
    durations: dict[str, Histogram] = field(default_factory=dict)

    def counter(self, name: str) -> Counter:
        if name not in self.counters:
            unit = "By" if name.endswith(".bytes") else "1"
            self.counters[name] = self.meter.create_counter(name, unit)
        return self.counters[name]

    def duration(self, name: str) -> Histogram:
        if name not in self.durations:
            self.durations[name] = self.meter.create_histogram(f"{name}.duration", "s")
        return self.durations[name]


@dataclass(frozen=True)
class _Observed(Step):
    instruments: _Instruments
    span: Span
    name: str
    table: str
    sums: dict[str, int] = field(default_factory=dict)

    @property
    def _attributes(self) -> dict[str, Any]:
        return {_TABLE: self.table} if self.table else {}

    def numbers(self, **found: int) -> None:
        for key, value in found.items():
            self.sums[key] = self.sums.get(key, 0) + value

    def facts(self, **found: str | int | bool) -> None:
        self.span.set_attributes({f"{_NAME}.{key}": value for key, value in found.items()})

    def ended(self, seconds: float) -> None:
        self.facts(**self.sums)
        for key, value in self.sums.items():
            self.instruments.counter(f"{self.name}.{key}").add(value, self._attributes)
        self.instruments.duration(self.name).record(seconds, self._attributes)


_told: _Instruments | None = None
