"""The pages for users of other tools show what happens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import keytide as kt
from pages import PAGES, pages_run_by, run_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ON_SPARK = "coming-from-delta.md"


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    "page", [page for page in pages_run_by("tests/test_coming_from.py") if page != ON_SPARK]
)
def test_page_does_what_it_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    page: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(PAGES / page, {}, lambda: capsys.readouterr().out) >= 5


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
    assert run_page(PAGES / ON_SPARK, {}, lambda: capsys.readouterr().out) >= 5
