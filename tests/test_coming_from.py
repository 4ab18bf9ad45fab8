"""The pages for users of other tools show what happens."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import keytide as kt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = Path(__file__).parents[1] / "docs"
PROMISE = re.compile(r"^[^#\n]*print\(.*\)\s+# (?P<beside>.+)$|^# (?P<below>.+)$", re.MULTILINE)

Run = Callable[[str, dict[str, Any]], None]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the blocks of a page, one after the other, and hold what they print to its comments."""

    def of_page(name: str, names: dict[str, Any]) -> None:
        monkeypatch.chdir(tmp_path)
        text = (PAGES / name).read_text()
        blocks = list(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))
        assert len(blocks) > 5
        for block in blocks:
            line = text.count("\n", 0, block.start(1))
            exec(compile("\n" * line + block[1], name, "exec"), names)
            promised = [found["beside"] or found["below"] for found in PROMISE.finditer(block[1])]
            assert capsys.readouterr().out.splitlines() == promised, f"{name}, line {line}"

    return of_page


@pytest.mark.parametrize("page", ["coming-from-iceberg.md", "coming-from-paimon.md"])
def test_page_does_what_it_says(run: Run, page: str) -> None:
    run(page, {})


@pytest.mark.takes_turns
@pytest.mark.spark
def test_page_of_delta_does_what_it_says(
    run: Run, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kt.spark, "session", lambda: spark)
    run("coming-from-delta.md", {})
