"""What the loggers tell."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pyarrow as pa
import pytest

import keytide as kt
from overtaking import overtaken

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})
OPTIONS = {"bucket": "1", "write-only": "true", "commit.min-retry-wait": "1 ms"}
PAGE = (Path(__file__).parents[2] / "docs/observing.md").read_text()


@pytest.fixture
def table(warehouse: str, caplog: pytest.LogCaptureFixture) -> kt.Table:
    caplog.set_level(logging.DEBUG, "keytide")
    return kt.connect(warehouse).create_table("t", SCHEMA, ["k"], options=OPTIONS)


def logged(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    found = [r for r in caplog.records if r.name == f"keytide.{name}"]
    return [f"{r.levelname} {r.getMessage()}" for r in found]


def test_a_commit_tells_what_it_committed(
    table: kt.Table, caplog: pytest.LogCaptureFixture
) -> None:
    result = table.write([{"k": 1, "v": 1}], commit_user="job", commit_identifier=1)
    assert logged(caplog, "commit") == [
        f"INFO table default.t: snapshot 1: APPEND by job: 1 files, {result.bytes} bytes, 0 retries"
    ]


def test_a_lost_race_tells_of_the_next_try(
    table: kt.Table, caplog: pytest.LogCaptureFixture
) -> None:
    overtaken(table, lambda: table.write([{"k": 2, "v": 2}])).write([{"k": 1, "v": 1}])
    other, race, own = logged(caplog, "commit")
    assert "snapshot 1" in other
    assert re.match(r"INFO table \S+t: another commit came first; try 2 of \d+ in \d+ ms", race)
    assert own.endswith("1 retries")


def test_plans_and_compactions_tell_of_files(
    table: kt.Table, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        table.write([{"k": number, "v": number}])
    table.scan(["v"], where="k >= 0").to_arrow()
    assert logged(caplog, "plan") == [
        "DEBUG Scan(default.t; snapshot 3; columns v; where `k` >= 0): 1 buckets, 3 files"
    ]
    table.compact(full=True)
    assert logged(caplog, "compaction") == [
        "INFO table default.t: snapshot 4: 3 files of 1 buckets became 1"
    ]


def test_nothing_is_told_unless_asked_for(
    table: kt.Table, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "keytide")
    table.write([{"k": 1, "v": 1}])
    table.scan().to_arrow()
    assert not caplog.records


def test_the_page_names_every_logger() -> None:
    source = Path(kt.__file__).parent
    texts = [path.read_text() for path in source.rglob("*.py")]
    names = {name for text in texts for name in re.findall(r'getLogger\("(.+?)"\)', text)}
    assert names == set(re.findall(r"^\| `(keytide\..+?)`", PAGE, flags=re.MULTILINE))
