"""`keytide sql`: statements from an argument, a file, a pipe and the prompt."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from typer.testing import CliRunner

import keytide as kt
from conftest import Ran
from keytide.cli.main import app
from keytide.cli.output import Format
from keytide.cli.prompt import Names, run_prompt
from keytide.cli.sql_and_ui import run_text


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_statements_of_an_argument_run_in_turn(run: Callable[..., Ran], warehouse: str) -> None:
    done = run(
        "sql", "-w", warehouse, "-f", "json",
        "CREATE TABLE t (k INT PRIMARY KEY NOT ENFORCED, v STRING); "
        "INSERT INTO t VALUES (1, 'a'), (2, NULL); SELECT * FROM t ORDER BY k",
    )  # fmt: skip
    assert (done.code, lines(done.out)) == (0, [{"k": 1, "v": "a"}, {"k": 2, "v": None}])
    assert done.err.splitlines() == ["done", "2 rows changed"]


def test_statements_come_from_a_file_or_a_pipe(
    run: Callable[..., Ran], orders: kt.Table, warehouse: str, tmp_path: Path
) -> None:
    text = "SELECT count(*) AS n FROM shop.orders"
    path = tmp_path / "q.sql"
    path.write_text(text)
    assert lines(run("sql", "-w", warehouse, "-f", "json", "--file", str(path)).out) == [{"n": 3}]
    piped = CliRunner().invoke(app, ["sql", "-w", warehouse, "-f", "json"], input=text)
    assert (piped.exit_code, lines(piped.stdout)) == (0, [{"n": 3}])


def test_error_points_at_its_place_and_exits_with_1(
    run: Callable[..., Ran], orders: kt.Table, warehouse: str
) -> None:
    done = run("sql", "-w", warehouse, "SELECT id,\n  nobody FROM shop.orders")
    assert done.code == 1
    assert done.err.splitlines()[-2:] == ["    nobody FROM shop.orders", "    ^"]


def test_file_that_is_no_text_is_refused(
    run: Callable[..., Ran], warehouse: str, tmp_path: Path
) -> None:
    path = tmp_path / "statements.sql"
    path.write_bytes(b"\xff\xfe")
    done = run("sql", "-w", warehouse, "--file", str(path))
    assert (done.code, done.out) == (1, "")
    assert f"{path} is not UTF-8 text" in done.err


@pytest.mark.parametrize("arguments", [["sql", "SELECT 1"], ["sql", "-w", ".", "x", "--file", "."]])
def test_wrong_usage_exits_with_2(run: Callable[..., Ran], arguments: list[str]) -> None:
    assert run(*arguments).code == 2


def test_prompt_runs_statements_over_lines_and_survives_errors(
    orders: kt.Table, lake: kt.Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    with create_pipe_input() as keys:
        keys.send_text("SELECT id\nFROM shop.orders\nWHERE status = 'paid';\nSELECT (;\nexit\n")
        session: PromptSession[str] = PromptSession(input=keys, output=DummyOutput())
        run_prompt(
            lake, lambda text, shown: run_text(lake, text, shown, None), Format.JSON, session
        )
    shown = capsys.readouterr()
    assert lines(shown.out) == [{"id": 1}]
    assert "error: line 1" in shown.err


# A million million rows that are counted without being kept.
@pytest.mark.parametrize("format", list(Format))
def test_intervals_are_refused_with_the_way_out(
    run: Callable[..., Ran], warehouse: str, format: Format
) -> None:
    done = run("sql", "-w", warehouse, "-f", format.value, "SELECT INTERVAL 1 DAY AS lag")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: column 'lag' contains intervals")
    assert "1 day" in run("sql", "-w", warehouse, "SELECT CAST(INTERVAL 1 DAY AS STRING)").out


def talked(lake: kt.Lake, capsys: pytest.CaptureFixture[str], *typed: str) -> tuple[str, str]:
    """What the prompt shows of data and beside it, to the end of the talk."""
    with create_pipe_input() as keys:
        keys.send_text("".join(f"{line}\n" for line in (*typed, r"\q", "SELECT 'not reached';")))
        session: PromptSession[str] = PromptSession(input=keys, output=DummyOutput())
        run_prompt(lake, lambda text, shown: run_text(lake, text, shown, None), session=session)
    shown = capsys.readouterr()
    assert "not reached" not in shown.out
    return shown.out, shown.err.partition("\n")[2]


def test_prompt_lists_and_describes_tables(
    orders: kt.Table, lake: kt.Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talked(lake, capsys, r"\d") == ("table\nshop.orders\n", "")
    out, err = talked(lake, capsys, r"\d Shop.ORDERS;")
    assert "DECIMAL(9, 2)" in out
    assert err == ""


def test_prompt_shows_rows_as_blocks_after_x(
    orders: kt.Table, warehouse: str, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "SELECT id, status FROM shop.orders WHERE id = 1;"
    out, _ = talked(kt.connect(warehouse), capsys, r"\x", query, r"\x", query)
    assert out == "row 1\nid      1\nstatus  paid\nid  status\n 1  paid\n"


@pytest.mark.parametrize("typed", [r"\?", "help", "HELP;", "?"])
def test_prompt_helps(lake: kt.Lake, capsys: pytest.CaptureFixture[str], typed: str) -> None:
    out, err = talked(lake, capsys, typed)
    assert out == ""
    assert all(usage in err for usage in (r"\d TABLE", r"\x", r"\q", "semicolon"))


@pytest.mark.parametrize("typed", ["\\", r"\copy x", r"\d a b", r"\x on", r"\?!", r"\D"])
def test_unknown_command_of_the_prompt_names_those_there_are(
    lake: kt.Lake, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    out, err = talked(lake, capsys, typed)
    assert out == ""
    assert err.startswith("error: unknown command ")
    assert r"\d, \d TABLE, \x" in err


def test_backslash_within_a_statement_is_part_of_it(
    lake: kt.Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = talked(lake, capsys, "SELECT 'a", r"\q' AS t;")
    assert out == "t\na\n\\q\n"


ENDLESS = (
    "WITH d AS (SELECT x FROM (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)) AS v(x)) "
    "SELECT count(*) AS n FROM " + ", ".join(f"d AS t{i}" for i in range(12))
)


def press_ctrl_c_while_a_query_runs() -> None:
    # What a shell starts in the background is told to ignore a Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def press() -> None:
        while not any(thread.name.startswith("keytide-sql") for thread in threading.enumerate()):
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


def test_ctrl_c_cancels_the_query_and_the_prompt_goes_on(
    orders: kt.Table, lake: kt.Lake, capsys: pytest.CaptureFixture[str]
) -> None:

    def run(text: str, shown: Format) -> None:
        if "t11" in text:
            press_ctrl_c_while_a_query_runs()
        run_text(lake, text, shown, None)

    with create_pipe_input() as keys:
        keys.send_text(f"{ENDLESS};\nSELECT count(*) AS n FROM shop.orders;\nexit\n")
        session: PromptSession[str] = PromptSession(input=keys, output=DummyOutput())
        run_prompt(lake, run, Format.JSON, session)
    shown = capsys.readouterr()
    assert (lines(shown.out), shown.err.splitlines()[-1]) == ([{"n": 3}], "stopped")


def test_ctrl_c_ends_a_command_with_130_in_one_line(
    run: Callable[..., Ran], orders: kt.Table, warehouse: str
) -> None:
    press_ctrl_c_while_a_query_runs()
    done = run("sql", "-w", warehouse, ENDLESS)
    assert (done.code, done.out, done.err) == (130, "", "stopped\n")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("SELECT * FROM shop.", ["shop.orders"]),
        ("SELECT amo", []),
        ("FROM shop.orders SELECT amo", ["amount"]),
        ("sel", ["SELECT"]),
        ("auto", ["AUTO CDC INTO"]),
        ("", []),
        ("FROM shop.orders o SELECT o.", ["o.id", "o.status", "o.amount"]),
        ("UPDATE shop.orders AS Fresh SET x = fresh.a", ["fresh.amount"]),
        ("FROM SHOP.orders\nJOIN t ON orders.s", ["orders.status"]),
        ("FROM shop.orders SELECT shop.orders.i", ["shop.orders.id"]),
        ("FROM shop.orders o SELECT p.", []),
        ("FROM shop.orders2 o SELECT o.", []),
        (r"\d sho", ["shop.orders", "SHOW CREATE TABLE", "SHOW DATABASES", "SHOW TABLES"]),
    ],
)
def test_prompt_completes_keywords_tables_and_their_columns(
    orders: kt.Table, lake: kt.Lake, typed: str, expected: list[str]
) -> None:
    names = Names(lake)
    found = names.get_completions(Document(typed), CompleteEvent())
    assert [completion.text for completion in found] == expected
