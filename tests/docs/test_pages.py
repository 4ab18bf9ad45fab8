"""Pages of the documents show what happens, and each block that no test runs says why."""

from __future__ import annotations

import logging
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomllib
import uvicorn
from beginnings import ORDERS, begin, measured

import keytide as kt
from keytide import errors
from keytide.merge.functions import registry
from pages import PAGES, blocks_of, pages_run_by, run_page

ROOT = PAGES.parent
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What pages change of the process is as before when they end."""
    level = logging.getLogger("keytide").level
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(uvicorn.Server, "run", _is_interrupted)
    yield
    kt.telemetry.disable()
    logging.getLogger("keytide").setLevel(level)


def _is_interrupted(*given: Any, **options: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.one_in(14)
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("page", pages_run_by("tests/docs/test_pages.py"))
def test_page_does_what_it_says(
    page: str, here: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if "s3://" in (PAGES / page).read_text():
        request.getfixturevalue("stores")
    names, changed = begin(page, here)
    run_page(PAGES / page, names, lambda: capsys.readouterr().out, changed=changed)


def test_how_to_of_scheduled_jobs_writes_once_and_copies_once(here: Path) -> None:
    lake = kt.connect("lake")
    for name in ("shop.orders", "shop.copy"):
        lake.create_table(name, ORDERS, ["id"])
    names: dict[str, Any] = {}
    for block in blocks_of(PAGES / "how-to/scheduled-jobs.md", ["python"]):
        exec(block.code, names)
    load_day, copy_changes = names["load_day"], names["copy_changes"]

    rows = [{"id": 1, "status": "new", "amount": 2.0}]
    assert load_day(lake, "2026-01-31", rows) == load_day(lake, "2026-01-31", rows)
    assert [copy_changes(lake), copy_changes(lake)] == [1, 0]
    lake.table("shop.orders").write([{"id": 1, "_row_kind": "-D"}])
    assert copy_changes(lake) == 1
    assert lake.table("shop.copy").scan().to_pylist() == []


def test_what_a_query_did_is_told_in_the_lines_that_the_page_shows(here: Path) -> None:
    lake = kt.connect("lake")
    measured(lake, "shop.orders")
    query, shown = (
        block.code
        for language in ("sql", "text")
        for block in blocks_of(PAGES / "sql.md", [language])
        if block.code.startswith(("EXPLAIN ANALYZE", "query: "))
    )
    found = [re.sub(r"[\d.,]+", "N", row["plan"]) for row in lake.sql(query).to_pylist()]
    promised = re.sub(r"[\d.,]+", "N", shown).splitlines()
    assert [line.partition(":")[0] for line in found] == [
        line.partition(":")[0]
        for line in promised
        if "rows only" not in line  # these are a line of their own where there are such
    ]
    assert found[3] == promised[3]


def test_every_link_leads_to_a_file() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in (*PAGES.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("*/README.md"))
        for target in LINK.findall(without_code(page.read_text()))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def test_every_extra_is_described() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (PAGES / "reference/installation.md").read_text()
    assert [name for name in project["optional-dependencies"] if f"| `{name}` |" not in text] == []


def test_every_public_name_is_in_the_reference() -> None:
    """Errors have a page of their own, which is written by a program."""
    text = "".join(page.read_text() for page in (PAGES / "api").glob("*.md"))
    told = {path.rpartition(".")[2] for path in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)}
    assert {*kt.__all__} - told == {*errors.__all__} & {*kt.__all__}


@pytest.mark.one_in(14)
@pytest.mark.parametrize("example", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.stem)
def test_example_prints_what_it_says(
    example: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [str(example), str(tmp_path)])
    names = runpy.run_path(str(example), run_name="__main__")
    promised = names["__doc__"].partition("It prints\n\n")[2]
    assert promised
    assert capsys.readouterr().out.split() == promised.split()
