"""The command as a process of its own: exit codes, streams, and a reader that stops early."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pyarrow as pa
import pytest

import keytide as kt

COMMAND = [sys.executable, "-m", "keytide.cli.main"]
SHELL_COMMAND = [sys.executable, "-m", "keytide_command"]
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(autouse=True)
def source_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))


def keytide(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.takes_turns
def test_data_goes_to_stdout_and_nothing_else_does(orders: kt.Table) -> None:
    code, out, err = keytide("scan", orders.uri, "-f", "csv", "--where", "id < 2")
    assert (code, out, err) == (0, '"id","status","amount"\n1,"paid",10.00\n', "")


@pytest.mark.takes_turns
def test_problem_is_exit_code_1_without_traceback(warehouse: str) -> None:
    code, out, err = keytide("scan", "nope", "-w", warehouse)
    assert (code, out) == (1, "")
    assert err.startswith("error: table default.nope does not exist in ")
    assert err.count("\n") == 1


@pytest.mark.takes_turns
def test_debug_adds_traceback(warehouse: str) -> None:
    code, _, err = keytide("--debug", "scan", "nope", "-w", warehouse)
    assert code == 1
    assert "Traceback" in err
    assert "NotFoundError: table default.nope does not exist" in err


@pytest.mark.takes_turns
def test_wrong_usage_is_exit_code_2() -> None:
    code, out, err = keytide("scan")
    assert (code, out) == (2, "")
    assert "Missing argument" in err


def test_ctrl_c_while_libraries_are_loaded_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyarrow.py").write_text(
        "import time\nprint('loading', flush=True)\ntime.sleep(60)"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{SOURCE}")
    with subprocess.Popen(
        [*SHELL_COMMAND, "ls"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "")
    assert process.returncode == 130


@pytest.mark.takes_turns
def test_command_in_a_shell_is_the_quiet_one() -> None:
    project = (SOURCE.parent / "pyproject.toml").read_text()
    assert 'keytide = "keytide_command:main"' in project
    done = subprocess.run(
        [*SHELL_COMMAND, "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"keytide {kt.__version__}\n", "")


@pytest.mark.takes_turns
@pytest.mark.parametrize("format", ["json", "csv"])
def test_reader_that_stops_early_is_no_problem(lake: kt.Lake, format: str) -> None:
    table = lake.create_table(
        "t", pa.schema([("k", pa.int64()), ("text", pa.string())]), primary_key=["k"]
    )
    table.write(pa.table({"k": range(200_000), "text": ["x" * 20] * 200_000}))
    with subprocess.Popen(
        [*COMMAND, "scan", table.uri, "-f", format], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() != b""
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def at_terminal(width: int, *arguments: str) -> list[str]:
    """The lines that a terminal of this width gets, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, width, 0, 0))
    known = {**os.environ}  # a readline in this process sets COLUMNS where Python does not see it
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=known
    ) as run:
        os.close(theirs)
        shown = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    assert run.returncode == 0
    return re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).splitlines()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""


@pytest.mark.takes_turns
@pytest.mark.parametrize("command", [["snapshots"], ["why", "1"]])
def test_no_line_is_wider_than_the_terminal(
    orders: kt.Table, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    name, *key = command
    lines = at_terminal(40, name, orders.uri, *key)
    assert 30 < max(map(len, lines)) <= 40


@pytest.mark.takes_turns
def test_snapshots_start_with_their_id_and_time_on_a_terminal(
    orders: kt.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    header, newest, oldest, *rest = at_terminal(80, "snapshots", orders.uri)
    assert header.split()[:3] == ["id", "time", "kind"]
    assert re.match(r" 2  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z  APPEND", newest)
    assert oldest.startswith(" 1  ")
    assert any(re.fullmatch("not shown: (user, )?identifier", line) for line in rest)


# -- streams that are closed or full ---------------------------------------------------------------


def in_shell(arguments: str, streams: str) -> tuple[int, str]:
    """The exit code and standard error of the command, with streams as a shell redirects them."""
    text = f"{sys.executable} -m keytide {arguments} {streams}"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.one_in(7)
@pytest.mark.takes_turns
@pytest.mark.parametrize(
    "arguments",
    [
        "scan {t}", "scan {t} -f csv", "ls {w}", "sql -w {w} 'SELECT 1 AS x'", "sql -w {w}",
        "--help", "--version",
    ],
)  # fmt: skip
def test_closed_and_full_streams_are_no_raw_errors(orders: kt.Table, arguments: str) -> None:
    warehouse = str(Path(orders.uri).parents[1])
    command = arguments.format(t=orders.uri, w=warehouse)
    stored = orders.snapshots()
    for closed in ("<&-", ">&- <&-", "<&- >&- 2>&-"):
        assert in_shell(command, closed) == (0, "")
    code, err = in_shell(command, ">/dev/full </dev/null")
    if arguments != "sql -w {w}":  # which has nothing to say
        assert code == 1
        assert err.startswith("error: standard output cannot be written: No space left on device")
        assert err.count("\n") == 1
    assert in_shell(f"scan {warehouse}/nowhere", "2>/dev/full")[0] == 1
    assert orders.snapshots() == stored
    assert orders.verify().is_healthy


@pytest.mark.takes_turns
def test_files_never_get_the_number_of_a_closed_stream(orders: kt.Table) -> None:
    code, err = in_shell(f"compact {orders.uri} --full", "<&- >&- 2>&-")
    assert (code, err) == (0, "")
    assert orders.verify().is_healthy
