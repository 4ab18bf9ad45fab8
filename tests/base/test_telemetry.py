"""Spans and metrics that OpenTelemetry is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import keytide as kt
from overtaking import overtaken

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})
OPTIONS = {"bucket": "1", "write-only": "true", "commit.min-retry-wait": "1 ms"}
PAGE = (Path(__file__).parents[2] / "docs/observing.md").read_text()


class Seen:
    """What one test was told of."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        kt.telemetry.enable(tracers, MeterProvider([self.reader]))

    def spans(self, name: str) -> list[ReadableSpan]:
        return [s for s in self.exporter.get_finished_spans() if s.name == f"keytide.{name}"]

    def facts(self, name: str) -> list[dict[str, object]]:
        return [
            {key.removeprefix("keytide."): value for key, value in (s.attributes or {}).items()}
            for s in self.spans(name)
        ]

    def metrics(self) -> dict[str, float]:
        data = self.reader.get_metrics_data()
        assert data is not None
        found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        return {
            m.name: sum(getattr(p, "value", getattr(p, "count", 0)) for p in m.data.data_points)
            for m in found
        }


@pytest.fixture
def seen() -> Iterator[Seen]:
    yield Seen()
    kt.telemetry.disable()


@pytest.fixture
def table(lake: kt.Lake) -> kt.Table:
    return lake.create_table("t", SCHEMA, ["k"], options=OPTIONS)


def test_commits_and_what_they_took_are_told(table: kt.Table, seen: Seen) -> None:
    result = table.write([{"k": 1, "v": 1}])
    overtaken(table, lambda: table.write([{"k": 2, "v": 2}])).write([{"k": 3, "v": 3}])
    told = seen.facts("commit")
    assert [(t["snapshot"], t["retries"], t["files"]) for t in told] == [
        (1, 0, 1),
        (2, 0, 1),
        (3, 1, 1),
    ]
    assert told[0]["bytes"] == result.bytes
    assert {t["table"] for t in told} == {"default.t"}
    metrics = seen.metrics()
    assert metrics["keytide.commit.files"] == 3
    assert metrics["keytide.commit.retries"] == 1
    assert metrics["keytide.commit.duration"] == 3


def test_reads_and_compactions_are_told(table: kt.Table, seen: Seen) -> None:
    for k in range(2):
        table.write([{"k": k, "v": k}])
    for read in (table.scan().to_arrow, lambda: [*table.scan().to_batches()]):
        read()
    assert [t["files"] for t in seen.facts("plan")] == [2, 2]
    assert [t["rows"] for t in seen.facts("read")] == [2, 2]
    table.compact(full=True)
    assert [(t["files_before"], t["files_after"]) for t in seen.facts("compaction")] == [(2, 1)]
    [compaction] = seen.spans("compaction")
    parents = [s.parent.span_id if s.parent else None for s in seen.spans("commit")]
    assert compaction.context is not None
    assert parents == [None, None, compaction.context.span_id]


def test_statements_are_told_with_the_error_that_ends_one(warehouse: str, seen: Seen) -> None:
    with pytest.raises(kt.NotFoundError):
        kt.connect(warehouse).sql("SHOW TABLES; SELECT * FROM nothing")
    shown, failed = seen.spans("sql")
    assert [t["statement"] for t in seen.facts("sql")] == ["Show", "Query"]
    assert shown.status.is_ok
    assert not failed.status.is_ok
    assert [event.name for event in failed.events] == ["exception"]


def test_nothing_is_told_after_it_was_disabled(table: kt.Table, seen: Seen) -> None:
    kt.telemetry.disable()
    table.write([{"k": 1, "v": 1}])
    assert table.scan().count() == 1
    assert seen.exporter.get_finished_spans() == ()


def test_page_names_every_span_with_its_numbers(table: kt.Table, seen: Seen) -> None:
    table.write([{"k": 1, "v": 1}])
    table.write([{"k": 2, "v": 1}])
    table.compact(full=True)
    table.scan().to_arrow()
    for s in seen.exporter.get_finished_spans():
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{s.name[8:]}` ")]
        names = {key.removeprefix("keytide.") for key in s.attributes or {}} - {"table"}
        assert {name for name in names if f"`{name}`" not in row} == set()
