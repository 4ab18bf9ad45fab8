"""The guide to writing a connector is true, and its script prints the walk."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import keytide as kt
from keytide.dml.memory import MemoryConnector

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/write-a-connector.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    runpy.run_path(str(ROOT / "demo/connector_walk.py"), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_script_prints_the_walk_that_the_guide_shows(printed: list[str]) -> None:
    [shown] = re.findall(r"```text\n(.*?)```", GUIDE, flags=re.DOTALL)
    assert "\n".join(printed[1:]).startswith(shown.rstrip())


def test_script_makes_the_same_calls_on_both_kinds_of_tables(printed: list[str]) -> None:
    parts = re.split(r"^-- .*$", "\n".join(printed), flags=re.MULTILINE)[1:]
    calls = [re.findall(r"\b(\w+_(?:delete|update|rows|page)|finish)\b", part) for part in parts]
    step = {"delete": ["get_next_page", "delete_rows", "finish"],
            "update": ["get_next_page", "update_rows", "finish"]}  # fmt: skip
    for splits, found in zip((2, 1), calls[:2], strict=True):
        walk = [[f"begin_{what}", *step[what] * splits, f"finish_{what}"] for what in step]
        assert found == [*walk[0], *walk[1]]
    left = "[{'id': 2, 'status': 'PAID'}, {'id': 4, 'status': 'SENT'}]"
    assert [part.strip().splitlines()[-1] for part in parts[:2]] == [left, left]
    assert parts[2].count("finish_delete: 2 fragments, 1 row") == 2


def test_connector_that_the_guide_quotes_is_the_one_there_is() -> None:
    code = (ROOT / "src/keytide/dml/memory.py").read_text()
    quotes = [part for block in BLOCKS[:-2] for part in block.split("\n\n\n")]
    assert len(quotes) > 6
    assert [part for part in quotes if part.rstrip() not in code] == []


def test_contract_is_run_as_the_guide_says() -> None:
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[-2], "write-a-connector.md", "exec", dont_inherit=True), names)
    test: Callable[[Any], None] = names["test_contract"]
    for check in names["CHECKS"]:
        test(check)


def test_connector_is_used_as_the_guide_says(
    warehouse: str, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = MemoryConnector()
    orders = pa.table({"id": [1, 4], "status": ["new", "sent"]})
    memory.create_table("orders", orders.schema)
    memory.insert("orders", orders)
    exec(BLOCKS[-1], {"lake": kt.connect(warehouse), "memory": memory})
    assert memory.rows("orders").column("status").to_pylist() == ["new", "late"]
    assert "connector memory" in capsys.readouterr().out
