"""What docs/habits.md says that people type here is what runs, and does something."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark import pipelines

import keytide as kt

TEXT = (Path(__file__).parents[1] / "docs/habits.md").read_text()
LINES = re.findall(r"^\| \w[\w ]* \| .* \| `(.*)` \|$", TEXT, flags=re.MULTILINE)
[BEFORE] = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)

SCHEMA = pa.schema({"id": pa.int64(), "status": pa.string(), "qty": pa.int32()})
DATED = pa.schema({"id": pa.int64(), "day": pa.string()})


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics in the place of a broker."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "kafka")
    fake = importlib.import_module("fake")
    change, topic = fake.change("c", 1, 1, "a"), fake.FakeTopic
    held = {
        "shop.public.orders": topic(partitions=[[(b'{"id": 1}', change)]]),
        "prices": topic(partitions=[[(b"k-7", b'{"price": 3}')]]),
    }
    monkeypatch.setattr("keytide.feeds.kafka.ingest.Client", lambda *given: fake.FakeKafka(held))


@pytest.fixture
def names(warehouse: str, topics: None) -> dict[str, Any]:
    """What the lines may name: the lake of the page, as its first block opens it."""
    lake = kt.connect(warehouse)
    t = lake.create_table("shop.orders", SCHEMA, ["id"], options={"bucket": "1"})
    t.write([{"id": 1, "status": "new", "qty": 1}, {"id": 2, "status": "new", "qty": 0}])
    t.write([{"id": 2, "status": "paid", "qty": 5}])
    t.create_tag("first", 1)
    dated = lake.create_table("shop.dated", DATED, ["id", "day"], partition_by=["day"])
    found: dict[str, Any] = {"path": warehouse}
    exec(BEFORE, found)
    found["moment"] = datetime.now(timezone.utc) + timedelta(seconds=1)
    found["dp"] = pipelines
    found |= {"dated": dated, "of_a_day": [{"id": 1, "day": "2026-01-01"}]}
    return found


def test_every_row_of_the_page_has_a_line_that_is_run() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ")]
    assert len(LINES) == len(rows) - 1
    assert len(LINES) >= 45


def marked(line: str) -> Any:
    return pytest.param(
        line, marks=[pytest.mark.spark] if re.search(r"\bspark\b|\bdays\b", line) else []
    )


@pytest.mark.one_in(14)
@pytest.mark.parametrize("line", [*map(marked, LINES)])
def test_line(names: dict[str, Any], line: str, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("spark"):
        names["spark"] = spark = request.getfixturevalue("spark")
        names["days"] = spark.sql("SELECT 7L AS id, '2026-01-01' AS day")
    outputs: list[Any] = []
    with in_a_pipeline(outputs) if line.startswith("dp.") else nullcontext():
        given = run(line, names)
    if outputs:
        [given] = outputs
    assert given is not None
    if isinstance(given, kt.Scan | kt.Changes):
        assert given.to_arrow().num_rows
    elif isinstance(given, pa.Table | pl.DataFrame | list):
        assert len(given)


def run(line: str, names: dict[str, Any]) -> Any:
    """Run a line; gives what its last statement does."""
    *first, last = ast.parse(line).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(first, []), "docs/habits.md", "exec"), names)
    return eval(compile(ast.Expression(last.value), "docs/habits.md", "eval"), names)


@contextmanager
def in_a_pipeline(outputs: list[Any]) -> Iterator[None]:
    """What is defined goes into a list, as into the graph of a pipeline."""
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context

    with graph_element_registration_context(SimpleNamespace(register_output=outputs.append)):  # type: ignore[arg-type]
        yield
