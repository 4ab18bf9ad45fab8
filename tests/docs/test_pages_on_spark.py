"""Pages about Spark show what happens, and so do the blocks for Spark of other pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from beginnings import begin

import keytide as kt
from pages import PAGES, WITH_SPARK, Changed, pages_run_by, run_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HERE = "tests/docs/test_pages_on_spark.py"
SCHEMA = pa.schema({"id": pa.int64(), "status": pa.string(), "version": pa.int64()})
ROW = {"id": 1, "status": "new", "version": 1}
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(
    here: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Run]:  # fmt: skip
    """Runs a page, where the session that it makes is the one of all tests."""
    monkeypatch.setattr(kt.spark, "session", lambda *given, **options: spark)
    monkeypatch.setattr("keytide.cli.feeds.spark_session", lambda *given: spark)

    def run(page: str, names: dict[str, Any], changed: Changed) -> dict[str, Any]:
        run_page(PAGES / page, names, lambda: capsys.readouterr().out, marks=[WITH_SPARK],
                 changed=changed)  # fmt: skip
        return names

    yield run
    for query in spark.streams.active:
        query.stop()


def orders(columns: pa.Schema = SCHEMA) -> kt.Table:
    return kt.connect("lake").create_table("shop.orders", columns, ["id"])


def test_each_of_these_pages_has_a_test() -> None:
    tested = Path(__file__).read_text()
    pages = {*pages_run_by(HERE), *pages_run_by(HERE, WITH_SPARK)}
    assert [page for page in pages if f'"{page}"' not in tested] == []


@pytest.mark.takes_turns
def test_tutorial_ends_on_spark(run: Run, here: Path) -> None:
    run("tutorial.md", {}, Changed(here))
    assert kt.connect("lake").table("shop.orders").get(5)["status"] == "paid"


@pytest.mark.takes_turns
def test_format_of_spark_reads_writes_and_streams(
    run: Run, here: Path, spark: SparkSession, pipeline: list[Any]
) -> None:
    table = orders()
    table.write([ROW])
    new = spark.createDataFrame([(2, "paid", 1)], "id long, status string, version long")
    feed = str(here / "feed")
    new.write.json(feed)
    stream = spark.readStream.schema(new.schema).json(feed)
    names = {"spark": spark, "path": table.uri, "df": new, "stream": stream, "feed": feed,
             "folder": str(here / "checkpoint")}  # fmt: skip
    run("spark.md", names, Changed(here))
    for query in spark.streams.active:
        query.processAllAvailable()
    assert [row["id"] for row in table.scan()] == [1, 2]
    flows_into(pipeline, here)
    assert table.snapshots()[-1].commit_user.startswith("spark-")


def test_sink_of_a_pipeline_is_a_table(
    run: Run, here: Path, spark: SparkSession, pipeline: list[Any]
) -> None:
    (here / "feed").mkdir()
    (here / "feed/rows.json").write_text(json.dumps(ROW))
    names = {"lake": kt.connect("lake"), "schema": SCHEMA, "spark": spark}
    run("how-to/pipelines.md", names, Changed(here))
    flows_into(pipeline, here)
    assert kt.connect("lake").table("shop.orders").scan().to_pylist() == [ROW]


@pytest.fixture
def pipeline() -> Iterator[list[Any]]:
    """What a block defines, as the graph of a pipeline has it: its sinks and its flows."""
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context

    defined: list[Any] = []
    registry = SimpleNamespace(register_output=defined.append, register_flow=defined.append)
    with graph_element_registration_context(registry):  # type: ignore[arg-type]
        yield defined


def flows_into(pipeline: list[Any], here: Path) -> None:
    """Run a flow into its sink, as a pipeline does."""
    sink, flow = pipeline
    assert (flow.target, sink.format) == (sink.name, "keytide")
    writer = flow.func().writeStream.format(sink.format).options(**sink.options)
    started = writer.option("checkpointLocation", str(here / "flow")).trigger(availableNow=True)
    started.start().awaitTermination()


@pytest.mark.takes_turns
def test_job_of_a_cluster_writes_reads_and_merges(
    run: Run, here: Path, spark: SparkSession
) -> None:
    table = orders()
    new = spark.createDataFrame([(1, "paid", 2)], "id long, status string, version long")
    run("spark-cluster.md", {"spark": spark, "df": new},
        Changed(here, {"s3://sales/lake": str(here / "lake")}))  # fmt: skip
    assert table.get(1) == {"id": 1, "status": "paid", "version": 2}
    assert spark.table("orders").count() == 1


def test_reads_of_executors_are_kept_in_a_cache(
    run: Run, here: Path, spark: SparkSession, stores: str
) -> None:
    names, _ = begin("cache.md", here)
    # Executors do not have the environment of a test.
    of_executors = {"endpoint": stores, "region": "us-east-1", "access_key_id": "tester",
                    "secret_access_key": "any"}  # fmt: skip
    names |= {"spark": spark, "address": "s3://bucket/lake/shop.db/orders", "store": of_executors}
    run("cache.md", names, Changed(here, {".load(address)": ".options(**store).load(address)"}))


MESSAGES = {
    "how-to/change-feeds.md": {
        "op": "c", "before": None, "source": {"lsn": 1},
        "after": {"id": 1, "name": "Ada", "updated_at": "2026-01-31T12:00:00"},
    },
    "coming-from-paimon.md": {
        "type": "INSERT", "data": [{"id": "1", "name": "Ada"}], "es": 1, "ts": 1,
        "pkNames": ["id"],
    },
}  # fmt: skip


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("page", "warehouse"),
    [("how-to/change-feeds.md", "lake"), ("coming-from-paimon.md", "warehouse")],
)
def test_files_of_changes_become_rows(run: Run, here: Path, page: str, warehouse: str) -> None:
    (here / "feed").mkdir()
    (here / "feed/1.json").write_text(json.dumps(MESSAGES[page]))
    # Spark's own working directory is another one.
    run(page, {}, Changed(here, {"feed/*.json": f"{here}/feed/*.json"}))
    rows = kt.connect(warehouse).table("shop.customers").scan(["id", "name"]).to_pylist()
    assert rows == [{"id": 1, "name": "Ada"}]
