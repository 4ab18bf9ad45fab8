"""Commands that read, about a table whose rows others keep."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import keytide as kt

Run = Callable[..., Any]


@pytest.fixture
def feed(warehouse: str, tmp_path: Path) -> str:
    """`e`, external: two versions of k = 1 in two commits."""
    for version in (1, 2):
        rows = pa.table({"k": [1, version + 1], "w": [version] * 2, "v": [f"v{version}"] * 2})
        deltalake.write_deltalake(tmp_path / "feed", rows, mode="append")
    kt.connect(warehouse).create_external_table(
        "e", format="delta", location=str(tmp_path / "feed"), primary_key=["k"], watermark_key=["w"]
    )
    return warehouse


def test_rows_are_read_by_name_merged_and_at_older_versions(run: Run, feed: str) -> None:
    def rows(*arguments: str) -> list[tuple[int, str]]:
        ran = run("scan", "e", "-w", feed, "-f", "json", *arguments)
        assert ran.code == 0, ran.err
        found = map(json.loads, ran.out.splitlines())
        return sorted((row["k"], row["v"]) for row in found)

    assert rows() == [(1, "v2"), (2, "v1"), (3, "v2")]
    assert rows("--where", "v = 'v1'") == [(2, "v1")]
    assert rows("--snapshot-id", "0") == [(1, "v1"), (2, "v1")]
    assert run("get", "e", "3", "-w", feed, "-f", "csv").out == '"k","w","v"\n3,2,"v2"\n'
    assert run("get", "e", "9", "-w", feed).code == 1


def test_definition_versions_and_plan_are_told(run: Run, feed: str) -> None:
    described = json.loads(run("describe", "e", "-w", feed, "-f", "json").out)
    assert described["format"] == "delta"
    assert described["primary_key"] == ["k"]
    assert described["options"] == {"watermark.key": "w"}
    why = run("why", "e", "1", "-w", feed).out
    assert "2 versions" in why
    assert "snapshot" not in why
    plan = json.loads(run("explain", "e", "-w", feed, "--where", "k = 1", "-f", "json").out)
    assert (plan["before_merge"], plan["after_merge"]) == ("`k` = 1", None)
    assert run("explain", "e", "-w", feed, "-f", "csv").out.startswith('"table","source","parts"')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["snapshots", "e"], "is an external table"),
        (["compact", "e"], "is an external table"),
        (["scan", "e", "--as-of", "2020-01-01"], "not with a time"),
        (["why", "e", "1", "--snapshot-id", "1", "--tag", "x"], "select a version"),
        (["scan", "e", "--snapshot-id", "77"], "no readable version 77"),
    ],
)
def test_what_cannot_be_is_refused(run: Run, feed: str, arguments: list[str], message: str) -> None:
    ran = run(*arguments, "-w", feed)
    assert ran.code == 1
    assert message in ran.err
