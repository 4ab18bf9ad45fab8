"""What Keytide offers on Sail, a Spark Connect server without a JVM. `make sail` installs it."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from pages import PAGES, blocks_of

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-sail" / "bin" / "python"
PAGE = PAGES / "how-to" / "spark-without-a-jvm.md"
STEPS = os.environ.get("KEYTIDE_STEPS", "6")

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="`make sail` installs Sail")

_COUNTS = [100, 7, 150, 150, 150]
_TABLES = [[1, "a"], [2, "b"], [3, "c"]]
_CHANGED = {"2": "v2new", "5": "m5", "6": "m6", "7": "v7!", "9": "IN"}
_UPSERTED = {"0": "v0", "1": "v1", "2": "v2", "3": "v3", "5": "old"}

EQUAL: dict[str, Any] = {
    "names_of_folders": dict.fromkeys(["plain", "a b", "a%20b", "a=b,c", "a[1]b", "a*b"], _COUNTS),
    "scans": {
        "where": [["B"], ["c"]],
        "before": _TABLES,
        "changes": [["+U", 2, "B"], ["-U", 2, "b"]],
        "format": [[2, "B"]],
        "format before": _TABLES,
        "joined": [{"id": 1, "n": 3}, {"id": 2, "n": 2}, {"id": 3, "n": 1}],
        "system": 3,
    },
    "views": [[1, "a"], [1, "a"]],
    "deleted_rows": [[0, "v0"], [1, "v1"], [2, "v2"], [3, "a"]],
    "external": [[[1, "11"], [2, "02"]], [[1, "11"], [2, "02"]]],
    "written": [_UPSERTED, {"7": "v7", "8": "v8", "17": "v7", "18": "v8"}],
    "written_by_format": [_UPSERTED, {"7": "v7", "8": "v8"}],
    "buckets": {f"buckets_{bucket}_{n}": True for bucket in ("1", "3", "n1", "n2") for n in (0, 1)},
    "sequence_decides": {"0": "2897", "1": "2898", "2": "2899"},
    "every_type": True,
    "statements_in_driver": _CHANGED,
    "statements_in_tasks": _CHANGED,
    "events": [
        {"1": [2, None], "2": [1, "c"]},
        [[1, 1, "a", 1, 2], [1, 2, None, 2, None], [2, 1, "c", 1, None]],
    ],
    "after_all_refusals": [{"1": "kept"}, 1, 0, 0],
    "random_changes": "equal",
}
"""What each attempt finds: the same as on Apache Spark, in rows of plain Python."""

_TIE = ["of this write have the same key", "does not keep the order of rows", "df.toArrow()"]
_STREAM = ["which Sail ", "or use a session of Apache Spark"]

REFUSED: dict[str, tuple[str, list[str]]] = {
    "missing_file": ("DataError", ["is missing, but a snapshot references it"]),
    "tie_of_write": ("UnsupportedError", ["table default.tied: 40 rows", *_TIE]),
    "tie_of_one_task": ("UnsupportedError", ["2 rows", "the first with id = 3", *_TIE]),
    "tie_of_format": ("UnsupportedError", ["table default.tied: 40 rows", *_TIE]),
    "tie_of_history": ("UnsupportedError", ["table default.history: 2 rows", *_TIE]),
    "tie_of_sequence": ("UnsupportedError", ["the same key and s as another one", *_TIE]),
    "tie_of_statement": ("UnsupportedError", ["table default.tied: 40 rows", *_TIE]),
    "left_in_place": ("UnsupportedError", ["'write.distribution' = 'none'", "Set it to 'auto'"]),
    "mode_error": ("UnsupportedError", ["save mode 'error'", "mode('append')"]),
    "mode_ignore": ("UnsupportedError", ["save mode 'ignore'", "mode('append')"]),
    "null_key": ("InvalidError", ["table default.tied", "primary key column 'id'"]),
    "unknown_column": ("NotFoundError", ["has no column 'w'"]),
    "unknown_option": ("InvalidError", ["has no option 'nope'"]),
    "no_table": ("NotFoundError", ["table nothing does not exist"]),
    "unknown_function": ("InvalidError", ["unknown function: NO_FUNCTION"]),
    "merge_on_an_ambiguous_name": ("InvalidError", ["ambiguous attribute"]),
    "statement_on_a_view": ("UnsupportedError", ["cannot run DELETE on a view", "lake.sql"]),
    "read_stream": ("UnsupportedError", ["a stream of a table", "table.changes", *_STREAM]),
    "write_stream": ("UnsupportedError", ["a stream into a table", "table.write(df)", *_STREAM]),
    "events_of_a_stream": ("UnsupportedError", ["auto_cdc of a stream", *_STREAM]),
    "ingest": ("UnsupportedError", ["ingest of files", "Lake.auto_cdc", *_STREAM]),
}
"""The class and the words of each error."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the client found, in one process."""
    folder = tmp_path_factory.mktemp("sail")
    page = folder / "page.py"
    page.write_text("\n".join(block.code for block in blocks_of(PAGE, ["python"])))
    client = Path(__file__).with_name("sail_client.py")
    done = subprocess.run(
        [str(PYTHON), str(client), str(folder), str(page), str(date.today().toordinal()), STEPS],
        capture_output=True, text=True, timeout=600, env={"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-4000:]
    return json.loads(lines[0].removeprefix("FOUND "))


def test_every_attempt_is_expected(found: dict[str, Any]) -> None:
    assert found.keys() == {*EQUAL, *REFUSED, "page_of_the_documents"}


@pytest.mark.parametrize("name", EQUAL)
def test_sail_gives_the_rows_of_spark(name: str, found: dict[str, Any]) -> None:
    assert found[name] == EQUAL[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_sail_cannot_do_is_refused_with_a_way_out(name: str, found: dict[str, Any]) -> None:
    kind, words = REFUSED[name]
    assert found[name].startswith(f"{kind}: ")
    assert [word for word in words if word not in found[name]] == []


def test_page_prints_what_it_says(found: dict[str, Any]) -> None:
    promised = [line for block in blocks_of(PAGE, ["python"]) for line in block.promised]
    assert found["page_of_the_documents"] == promised
