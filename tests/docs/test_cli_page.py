"""Each example of the page about the command line runs, in a lake that has what it names."""

from __future__ import annotations

import json
import re
import shutil
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import uvicorn

import keytide as kt
from consoles import run_console
from pages import PAGES, Changed, blocks_of

sys.path.append(str(Path(__file__).parents[1] / "kafka"))
import fake

EXAMPLES = [
    block
    for block in blocks_of(PAGES / "reference/cli.md", ["console"])
    if "[OPTIONS]" not in block.code
]
DAY = date(2026, 1, 31)
ORDERS = pa.schema({"order_id": pa.int64(), "status": pa.string(), "dt": pa.date32()})
LINES = pa.schema({"order_id": pa.int64(), "line": pa.int32(), "sku": pa.string()})
MESSAGE = {"op": "c", "before": None, "after": {"order_id": 1, "status": "new"},
           "source": {"lsn": 1}}  # fmt: skip


@pytest.fixture(scope="session")
def lake_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with the tables, snapshots and tags that examples name."""
    folder = tmp_path_factory.mktemp("examples")
    lake = kt.connect(folder)
    options = {"publish": "delta", "file-index.bloom-filter.columns": "status"}
    orders = lake.create_table(
        "shop.orders", ORDERS, ["order_id", "dt"], partition_by=["dt"], options=options
    )
    for number in range(8):
        orders.write([{"order_id": number, "status": "open", "dt": DAY}])
    orders.create_tag("checked")
    assert len([*orders.follow(consumer="nightly", timeout_seconds=0)])
    lines = lake.create_table("shop.order_lines", LINES, ["order_id", "line"])
    lines.write([{"order_id": 4711, "line": 2, "sku": "k-7"}])
    return folder


@pytest.fixture
def lake(lake_once: Path, here: Path) -> kt.Lake:
    shutil.copytree(lake_once, here / "data/lake")
    return kt.connect(here / "data/lake")


@pytest.fixture(autouse=True)
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics are in memory, and a server is stopped as soon as it begins."""
    held = {
        name: fake.FakeTopic(partitions=[[(b'{"order_id": 1}', json.dumps(MESSAGE).encode())]])
        for name in ("shop.orders", "shop.public.orders")
    }
    for module in ("ingest", "start"):
        monkeypatch.setattr(
            f"keytide.feeds.kafka.{module}.Client", lambda *given: fake.FakeKafka(held)
        )

    def is_interrupted(*given: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", is_interrupted)


def named(code: str) -> str:
    return " ".join(word for word in code.split()[1:4] if re.fullmatch("[a-z-]+", word))


def test_every_command_has_an_example() -> None:
    usages = [*blocks_of(PAGES / "reference/cli.md", ["console"])]
    assert len(EXAMPLES) * 2 >= len(usages) - 2


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            block.code,
            id=named(block.code) + f" {number}",
            marks=[pytest.mark.spark, pytest.mark.takes_turns] if "/feed/" in block.code else [],
        )
        for number, block in enumerate(EXAMPLES)
    ],
)
def test_example_runs(
    code: str, lake: kt.Lake, here: Path, monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if code.startswith("keytide branch") and "create" not in code:
        lake.table("shop.orders").create_branch("trial")
    if code.startswith("keytide ingest"):
        lake.drop_table("shop.orders")
    if "/feed/" in code:
        spark = request.getfixturevalue("spark")
        monkeypatch.setattr("keytide.cli.feeds.spark_session", lambda *given: spark)
        (here / "feed").mkdir()
        (here / "feed/1.json").write_text(json.dumps(MESSAGE))
    run_console(Changed(here, {" --continuous": ""})(code), code)
    if code.startswith("keytide ingest"):
        assert [row["order_id"] for row in lake.table("shop.orders").scan()] == [1]
