"""Pages of the documents show what happens, and each block that no test runs says why."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import tomllib

import keytide as kt
from keytide import errors
from pages import PAGES, RUN, run_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = PAGES.parent
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")
ORDERS = pa.schema({"id": pa.int64(), "status": pa.string(), "amount": pa.float64()})


@pytest.mark.parametrize("page", RUN)
def test_page_does_what_it_says(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if page.startswith("how-to/"):  # which begin with a table
        kt.connect("lake").create_table("shop.orders", ORDERS, ["id"])
    run_page(PAGES / page, {}, lambda: capsys.readouterr().out)


@pytest.mark.takes_turns
@pytest.mark.spark
def test_tutorial_ends_on_spark(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kt.spark, "session", lambda: spark)
    names: dict[str, object] = {}
    run_page(PAGES / "tutorial.md", names, lambda: capsys.readouterr().out, with_spark=True)
    assert kt.connect("lake").table("shop.orders").get(5)["status"] == "paid"


def test_how_to_of_scheduled_jobs_writes_once_and_copies_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lake = kt.connect("lake")
    for name in ("shop.orders", "shop.copy"):
        lake.create_table(name, ORDERS, ["id"])
    names: dict[str, object] = {}
    run_page(PAGES / "how-to/scheduled-jobs.md", names, lambda: "")
    load_day, copy_changes = names["load_day"], names["copy_changes"]
    assert callable(load_day)
    assert callable(copy_changes)

    rows = [{"id": 1, "status": "new", "amount": 2.0}]
    assert load_day(lake, "2026-01-31", rows) == load_day(lake, "2026-01-31", rows)
    assert [copy_changes(lake), copy_changes(lake)] == [1, 0]
    lake.table("shop.orders").write([{"id": 1, "_row_kind": "-D"}])
    assert copy_changes(lake) == 1
    assert lake.table("shop.copy").scan().to_pylist() == []


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
