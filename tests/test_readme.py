"""What the README shows is what happens, and the documents are complete."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import keytide as kt
from keytide.table.system_tables import SYSTEM_TABLES
from pages import ELSEWHERE, NOT_RUN, PAGES, RUN, WITH_SPARK, blocks_of, run_page

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import reference_pages

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


def test_every_block_is_run_or_says_why_not() -> None:
    silent = [
        f"{page.relative_to(ROOT)}, line {block.line}"
        for page in sorted(PAGES.rglob("*.md"))
        if page.relative_to(PAGES).as_posix() not in {*RUN, *ELSEWHERE}
        and "design" not in page.parts
        for block in blocks_of(page)
        if not block.mark.startswith(NOT_RUN) and block.mark != WITH_SPARK
    ]
    assert silent == []


def test_every_page_is_in_the_navigation() -> None:
    """A page that nobody can find is no document: add it to `nav` of mkdocs.yml."""
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = {page.relative_to(PAGES).as_posix() for page in PAGES.rglob("*.md")}
    named = set(re.findall(r"(?:- |: )([\w./-]+\.md)$", navigation, re.MULTILINE))
    assert pages - named == set()


@pytest.mark.parametrize("path", [*reference_pages.PAGES])
def test_page_is_current(path: str) -> None:
    page = reference_pages.PAGES[path]()
    assert (ROOT / path).read_text() == page, "python scripts/reference_pages.py"
