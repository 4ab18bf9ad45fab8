"""What the README shows is what happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import keytide as kt
from keytide.table.system_tables import SYSTEM_TABLES
from pages import blocks_of, run_page

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def test_readme_is_short_and_has_five_examples() -> None:
    assert len(list(blocks_of(README))) == 5
    assert len(README.read_text().splitlines()) < 150


def test_examples_print_what_their_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(README, {}, lambda: capsys.readouterr().out) == 4


@pytest.mark.spark
def test_spark_example_runs_and_leaves_its_rows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spark: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kt.spark, "session", lambda: spark)

    run_page(README, {}, lambda: capsys.readouterr().out, with_spark=True)

    rows = kt.connect(tmp_path / "lake").table("shop.orders").scan().to_pylist()
    assert sorted(row["order_id"] for row in rows) == [1, 3, 4, 9]


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/sql.md"])
def test_every_system_table_is_listed(page: str) -> None:
    text = (ROOT / page).read_text()
    assert [name for name in SYSTEM_TABLES if f"`{name}`" not in text] == []
