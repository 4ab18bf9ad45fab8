"""The command, as somebody starts and ends it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from http.cookiejar import CookieJar
from typing import Any

import pytest
from typer.testing import CliRunner

import keytide as kt
from keytide.cli.main import app

LONG = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range % 7 = b.range"


def begin(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "keytide.cli.main", "ui", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.takes_turns
def test_command_tells_its_address_answers_there_and_ends_quietly(shown: kt.Lake) -> None:
    with begin("-w", shown.uri, "--port", "0", "--query-timeout", "0") as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        browser: Any = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        home = address.partition("?")[0]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            browser.open(home)
        browser.open(address).read()
        # A percent sign in a name is one on the way here too.
        name = "table/shop.orders%2524branch_none"
        with pytest.raises(urllib.error.HTTPError) as error:
            browser.open(home + name)
        page = browser.open(home).read().decode()
        token = re.search(r'name="token" value="(\w+)"', browser.open(f"{home}sql").read().decode())
        assert token is not None
        fields = urllib.parse.urlencode({"token": token[1], "text": LONG}).encode()
        threading.Thread(target=ended, args=(browser, f"{home}sql", fields), daemon=True).start()
        time.sleep(0.5)
        server.send_signal(signal.SIGINT)
        begun = time.monotonic()
        out, err = server.communicate(timeout=20)
        assert time.monotonic() - begun < 8  # the query runs for much longer
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", address)
    assert "table shop.orders%24branch_none does not exist" in error.value.read().decode()
    assert "shop.orders" in page
    assert (server.returncode, out, err) == (130, "", "stopped\n")


def ended(browser: Any, address: str, fields: bytes) -> None:
    """Ask for a page of a server that may end meanwhile."""
    with suppress(OSError):
        browser.open(address, fields).read()


def test_port_that_is_taken_is_a_problem_with_a_way_out(warehouse: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = CliRunner().invoke(app, ["ui", "-w", warehouse, "--port", port])
    assert ran.exit_code == 1
    assert "--port 0 uses a free port" in ran.stderr


def test_host_that_others_reach_is_warned_of(warehouse: str) -> None:
    ran = CliRunner().invoke(app, ["ui", "-w", warehouse, "--host", "203.0.113.1"])
    assert ran.stderr.startswith("warning: the page is reachable from other machines at 203")
    assert ran.exit_code == 1  # no machine here has this address


@pytest.mark.parametrize("host", ["\0", "x" * 300, "[", "999.1.1.1"])
def test_host_that_is_none_is_a_problem(warehouse: str, host: str) -> None:
    ran = CliRunner().invoke(app, ["ui", "-w", warehouse, "--host", host])
    assert ran.exit_code == 1
    assert "error: cannot listen on" in ran.stderr
