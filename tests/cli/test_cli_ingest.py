"""The options of `keytide ingest` become what a feed is told."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from keytide.cdc import FORMATS
from keytide.cli import output
from keytide.cli.feeds import FeedFormat
from keytide.errors import DataError
from keytide.feeds.feed import BatchReport, FeedRequest, IngestReport
from keytide.feeds.kafka.ingest import IngestListeners, KafkaRequest, TablesReport
from keytide.types import Field, parse_sql_type

Run = Callable[..., Any]


@pytest.fixture
def ingested(monkeypatch: pytest.MonkeyPatch) -> list[FeedRequest]:
    """What the ingestion was called with, instead of carrying it out on Spark."""
    calls: list[FeedRequest] = []

    def run_feed(request: FeedRequest, spark: Any, on_batch: Callable[[Any], None]) -> Any:
        calls.append(request)
        if request.continuous:
            time.sleep(0.3)
        counts = {"rows_in": 1_200, "applied": 1_190, "rejected": 2}
        on_batch(
            SimpleNamespace(batch_id=0, late=3, duplicate=4, skipped=1, seconds=0.25, **counts)
        )
        return SimpleNamespace(
            table=calls[-1].table, dead_letter="shop.bad", batches=(None,), **counts
        )

    members: dict[str, dict[str, Any]] = {
        "": {},
        ".ingest": {"run_feed": run_feed},
        ".error_translation": {"on_driver": nullcontext},
        ".runner": {"running_tasks": lambda spark: (3, 8)},
        ".sessions": {"session": SimpleNamespace},
    }
    for name, values in members.items():
        module = ModuleType(f"keytide.spark{name}")
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def test_formats_are_those_that_can_be_decoded() -> None:
    assert {each.value for each in FeedFormat} == set(FORMATS)


def test_help_names_the_columns_that_order_changes(run: Run) -> None:
    said = set(re.findall(r"\b_\w+", run("ingest", "--help").out))
    first_ones = FORMATS["debezium-json"].orderings[:2]
    assert said == {source.column for ordering in first_ones for source in ordering.sources}


def test_least_options_leave_the_rest_to_table_and_feed(
    run: Run, ingested: list[FeedRequest]
) -> None:
    done = run("ingest", "/wh/shop.db/orders", "--from", "/feed", "--format", "maxwell-json")
    assert done.code == 0
    assert ingested == [
        FeedRequest(warehouse="/wh", table="shop.orders", source="/feed", format="maxwell-json")
    ]


def test_batches_are_told_on_stderr_and_sums_on_stdout(
    run: Run, ingested: list[FeedRequest]
) -> None:
    done = run("ingest", "/wh/shop.db/orders", "--from", "/feed", "--format", "dms-json")
    assert done.err == (
        "batch 0: 1,200 messages, 1,190 applied, 3 late, 4 duplicate, 2 rejected, 1 skipped, "
        "0.2 s\n"
    )
    assert done.out == (
        "table        shop.orders\n"
        "batches      1\n"
        "messages     1,200\n"
        "applied      1,190\n"
        "rejected     2\n"
        "dead_letter  shop.bad\n"
    )


def test_long_ingestion_tells_of_its_progress_in_lines(
    run: Run, ingested: list[FeedRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 0.05)
    feed = ("/wh/shop.db/orders", "--from", "/feed", "--format", "dms-json")
    lines = run("ingest", *feed, "--continuous").err.splitlines()
    assert len(lines) > 2
    assert lines[0] == ("0 s: 0 messages in 0 batches committed; next batch: 3 of 8 tasks done")
    # The lines are told by a thread of their own, so one may follow the batch.
    assert any(line.startswith("batch 0: 1,200 messages") for line in lines)


def test_every_option_reaches_the_ingestion(run: Run, ingested: list[FeedRequest]) -> None:
    done = run(
        "ingest", "shop.orders", "-w", "s3://lake/wh", "--from", "/feed/*.json",
        "--format", "debezium-json", "--schema", "id BIGINT NOT NULL, price DECIMAL(9, 2)",
        "--primary-key", "id,line", "--partition-by", "dt", "--sequence-by", "source.lsn,ts_ms",
        "--option", "bucket=4", "--option", "sequence.field=lsn", "--empty-as-null", "a",
        "--empty-as-null", "b", "--checkpoint", "/checkpoint", "--dead-letter", "shop.bad",
        "--max-files-per-batch", "10", "--continuous",
    )  # fmt: skip
    assert done.code == 0
    assert ingested == [
        FeedRequest(
            warehouse="s3://lake/wh",
            table="shop.orders",
            source="/feed/*.json",
            format="debezium-json",
            columns=(
                Field(-1, "id", parse_sql_type("BIGINT NOT NULL")),
                Field(-1, "price", parse_sql_type("DECIMAL(9, 2)")),
            ),
            primary_key=("id", "line"),
            partition_by=("dt",),
            sequence_by=("source.lsn", "ts_ms"),
            options={"bucket": "4", "sequence.field": "lsn"},
            empty_as_null=("a", "b"),
            checkpoint="/checkpoint",
            dead_letter="shop.bad",
            max_files_per_batch=10,
            continuous=True,
        )
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--option", "bucket"), 2, "expected KEY=VALUE"),
        (("--schema", "id BIGGINT"), 2, "BIGGINT"),
        (("--format", "xml"), 2, "xml"),
        (("--consumer-property", "secret"), 2, "expected NAME=VALUE"),
        (("--if-lost", "earliest"), 1, "are only for topics"),
        (("--from", "kafka://localhost"), 1, "contains no topic"),
        (("--from", "kafka://localhost/t", "--spark", "local"), 2, "which this process reads"),
    ],
)
def test_option_that_does_not_parse_is_refused_before_anything_runs(
    run: Run,
    ingested: list[FeedRequest],
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    common = ("/wh/shop.db/orders", "--from", "/feed", "--format", "dms-json")
    done = run("ingest", *common, *arguments)
    assert (done.code, ingested) == (code, [])
    assert message in done.err


def test_path_outside_of_a_database_is_refused(run: Run, ingested: list[FeedRequest]) -> None:
    done = run("ingest", "/somewhere/orders", "--from", "/feed", "--format", "dms-json")
    assert (done.code, ingested) == (1, [])
    assert "warehouse/database.db/table" in done.err


def test_several_tables_are_told_of_each_and_one_that_fails_by_the_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_feeds(request: KafkaRequest, listeners: IngestListeners) -> TablesReport:
        assert (request.feed.table, request.address.topics) == ("shop.{table}", ("p.*",))
        assert listeners.batch is not None
        assert listeners.failure is not None
        batch = BatchReport(0, 3, 2, 0, 0, 1, 0, 0.25, 1)
        listeners.batch("shop.a", batch)
        error = DataError("offsets are gone")
        listeners.failure("shop.b", error)
        return TablesReport((IngestReport("shop.a", "bad", (batch,)),), {"shop.b": error})

    monkeypatch.setattr("keytide.feeds.kafka.ingest.run_feeds", run_feeds)
    given = ("--from", "kafka://h/p.*", "--format", "json")
    done = run("ingest", "-w", "/wh", "shop.{table}", *given)
    assert done.code == 1
    assert done.err.splitlines() == [
        "shop.a: batch 0: 3 messages, 2 applied, 0 late, 0 duplicate, 1 rejected, 0 skipped, 0.2 s",
        "shop.b: offsets are gone",
    ]
    assert "shop.b" in done.out
    refused = run("ingest", "-w", "/wh", "shop.{table}", "--from", "/feed", "--format", "json")
    assert (refused.code, "files can load only one table" in refused.err) == (2, True)
