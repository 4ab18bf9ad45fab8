"""What the README shows is what happens, and the documents are complete."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import keytide as kt
from keytide.catalogs.system_tables import SYSTEM_TABLES
from pages import LANGUAGES, NOT_RUN, PAGES, README, RUN_BY, WITH_SPARK, blocks_of, run_page

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import reference_pages

ROOT = Path(__file__).parents[1]


def test_readme_is_short_and_has_five_examples() -> None:
    assert len(list(blocks_of(README, ["python"]))) == 5
    assert len(README.read_text().splitlines()) < 150


def test_examples_print_what_their_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(README, {}, lambda: capsys.readouterr().out) == 6


@pytest.mark.takes_turns
@pytest.mark.spark
def test_spark_example_runs_and_leaves_its_rows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spark: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kt.spark, "session", lambda: spark)

    run_page(README, {}, lambda: capsys.readouterr().out, marks=[WITH_SPARK])

    rows = kt.connect(tmp_path / "lake").table("shop.orders").scan().to_pylist()
    assert sorted(row["order_id"] for row in rows) == [1, 3, 4, 9]


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/sql.md"])
def test_every_system_table_is_listed(page: str) -> None:
    text = (ROOT / page).read_text()
    assert [name for name in SYSTEM_TABLES if f"`{name}`" not in text] == []


def test_every_block_is_run_by_a_test_or_says_why_not() -> None:
    loose = [
        f"{page}, line {block.line}: {block.mark or 'no mark'}"
        for page in pages()
        for block in blocks_of(PAGES / page)
        if not block.mark.startswith(NOT_RUN) and page not in RUN_BY.get(block.mark, {})
    ]
    assert loose == [], "name the test in RUN_BY of tests/support/pages.py"


def test_every_language_of_blocks_is_one_that_is_run() -> None:
    """`text` is what programs print, or the form of a statement."""
    fences = re.compile(r"^ *```([^`\n]+)$", re.MULTILINE)
    known = {*LANGUAGES, "text"}
    assert [
        (page, language)
        for page in pages()
        for language in fences.findall((PAGES / page).read_text())
        if language not in known
    ] == []


def test_no_block_is_missed() -> None:
    """A mark that stands apart from its block, or another fence, would hide one."""
    fences = re.compile(rf"^ *```(?:{'|'.join(LANGUAGES)})\b", re.MULTILINE)
    marks = re.compile(r"^ *<!-- (?:not )?run\b", re.MULTILINE)
    for page in pages():
        text, blocks = (PAGES / page).read_text(), [*blocks_of(PAGES / page)]
        assert len(fences.findall(text)) == len(blocks), page
        assert len(marks.findall(text)) == sum(bool(block.mark) for block in blocks), page


def test_tests_that_run_pages_name_them_and_run_nothing_else() -> None:
    for mark, tests in RUN_BY.items():
        for page, test in tests.items():
            code, name = (ROOT / test).read_text(), page.removeprefix("../")
            has_such = any(block.mark == mark for block in blocks_of(PAGES / page))
            names_it = "pages_run_by(" in code or Path(name).stem in code or name in code
            assert has_such, (mark, page)
            assert names_it, (test, page)


def pages() -> list[str]:
    return ["../README.md", *(path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md"))]


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
