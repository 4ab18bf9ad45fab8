"""What the README shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import keytide as kt
from keytide.table.system_tables import SYSTEM_TABLES

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_plain_python_example_prints_what_its_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    exec(compile(BLOCKS[0], "README.md", "exec"), {})

    printed = capsys.readouterr().out.splitlines()
    promised = re.findall(r"print\(.*?\)\s+# ([\[{].+)", BLOCKS[0])
    assert len(promised) == 3
    assert printed[: len(promised)] == promised


def test_sql_example_prints_what_its_comment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    exec(compile(BLOCKS[0] + BLOCKS[2], "README.md", "exec"), {})

    [promised] = re.findall(r"^# (.+)", BLOCKS[2], flags=re.MULTILINE)
    assert capsys.readouterr().out.splitlines()[-1] == promised


def test_example_of_a_table_s_life_prints_what_its_comment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    exec(compile(BLOCKS[0] + BLOCKS[3], "README.md", "exec"), {})

    printed = capsys.readouterr().out.splitlines()
    [promised] = re.findall(r"# ({.+)", BLOCKS[3])
    assert printed[-1] == promised
    assert any("nothing wrong" in line for line in printed)


def test_example_of_row_changes_prints_what_its_comment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    exec(compile(BLOCKS[0] + BLOCKS[4], "README.md", "exec"), {})

    [promised] = re.findall(r"print\(.*\)  # (.+)", BLOCKS[4])
    assert capsys.readouterr().out.splitlines()[-1] == promised


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/sql.md"])
def test_every_system_table_is_listed(page: str) -> None:
    text = (Path(__file__).parents[1] / page).read_text()
    assert [name for name in SYSTEM_TABLES if f"`{name}`" not in text] == []


def test_every_document_is_in_the_index() -> None:
    docs = Path(__file__).parents[1] / "docs"
    index = (docs / "index.md").read_text()
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"index.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()


@pytest.mark.spark
def test_spark_example_runs_and_leaves_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}

    exec(compile(BLOCKS[0] + BLOCKS[1], "README.md", "exec"), names)

    rows = kt.connect(tmp_path / "lake").table("shop.orders").scan().to_pylist()
    assert sorted(row["order_id"] for row in rows) == [1, 3, 4]


def test_every_command_named_exists() -> None:
    from keytide.cli.main import app

    commands = {
        c.name or c.callback.__name__.replace("_", "-")
        for c in app.registered_commands
        if c.callback
    }
    commands |= {str(group.typer_instance.info.name) for group in app.registered_groups}
    line = next(text for text in README.splitlines() if text.startswith("`keytide ls"))
    named = re.match(r"`keytide ([^`]+)`", line)
    assert named is not None
    assert set(named.group(1).split(" | ")) <= commands
