"""`keytide ingest` in a terminal: its own words, and nothing of Spark's, Java's or DuckDB's."""

from __future__ import annotations

import gzip
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import behind_writers
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.driver, pytest.mark.slow]

MESSAGES = b"".join(
    b'{"op":"c","before":null,"after":{"id":%d},"source":{"lsn":%d}}\n' % (n, n)
    for n in range(2_000)
)

# What a slow machine is told every few seconds until its batch is done.
HEARTBEAT = re.compile(r"[\d,]+ s: [\d,]+ messages in [\d,]+ batches committed(; in .* tasks)?")


def in_terminal(folder: Path, source: Path) -> tuple[int, list[str]]:
    """Exit code and lines of `keytide ingest` where both its streams are one terminal.

    Without the lines that tell of progress.
    """
    command = [sys.executable, "-m", "keytide.cli.main", "ingest", "-w", str(folder / "warehouse")]
    command += ["t", "--from", str(source), "--format", "debezium-json", "--primary-key", "id"]
    terminal, end = pty.openpty()
    environment = {**os.environ, "NO_COLOR": "1", "TMPDIR": str(folder)}
    environment["PYTHONPATH"] = behind_writers.python_path(str(Path(__file__).parents[2] / "src"))
    with subprocess.Popen(
        [*command, "--schema", "id BIGINT"], stdout=end, stderr=end, env=environment
    ) as process:
        os.close(end)
        shown = b""
        while piece := _read(terminal):
            shown += piece
    os.close(terminal)
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
    lines = text.replace("\r\n", "\n").splitlines()
    return process.returncode, [line for line in lines if not HEARTBEAT.fullmatch(line)]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # nobody holds the other end any more
        return b""


@pytest.mark.takes_turns
def test_ingestion_shows_its_batches_and_sums(tmp_path: Path) -> None:
    source = tmp_path / "feed.json"
    source.write_bytes(MESSAGES)
    code, lines = in_terminal(tmp_path, source)
    assert (code, [line.split() for line in lines[1:]]) == (
        0,
        [
            ["table", "default.t"],
            ["batches", "1"],
            ["messages", "2,000"],
            ["applied", "2,000"],
            ["rejected", "0"],
        ],
    ), lines
    assert lines[0].startswith("batch 0: 2,000 messages, 2,000 applied, 0 late, ")
    assert not list(tmp_path.glob("keytide-spark-*"))


@pytest.mark.takes_turns
def test_ingestion_of_a_file_cut_short_shows_one_line(tmp_path: Path) -> None:
    source = tmp_path / "feed.json.gz"
    source.write_bytes(gzip.compress(MESSAGES)[:-100])
    code, lines = in_terminal(tmp_path, source)
    assert (code, len(lines)) == (1, 1), lines
    assert "feed.json.gz cannot be read" in lines[0]
    assert not list(tmp_path.glob("keytide-spark-*"))
