"""The pages for users of other tools show what happens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import keytide as kt
from pages import PAGES, run_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("tool", ["hudi", "iceberg", "paimon", "pinot"])
def test_page_does_what_it_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tool: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGES / f"coming-from-{tool}.md"
    assert run_page(page, {}, lambda: capsys.readouterr().out) >= 5


@pytest.mark.takes_turns
@pytest.mark.spark
def test_page_of_delta_does_what_it_says(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kt.spark, "session", lambda: spark)
    assert run_page(PAGES / "coming-from-delta.md", {}, lambda: capsys.readouterr().out) >= 5
