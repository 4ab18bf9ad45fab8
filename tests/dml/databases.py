"""A database as tests see it, and a server of PostgreSQL that they start."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SERVER_USER = "nobody"  # the server refuses to be started by root


@dataclass(frozen=True)
class SomeDatabase:
    """A database that is empty at first, and statements in its own words."""

    kind: str
    place: str
    connect: Callable[[str], Any]

    def run(self, *texts: str) -> None:
        with closing(self.connect(self.place)) as connection:
            for text in texts:
                with connection.cursor() as cursor:
                    cursor.execute(text)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        with closing(self.connect(self.place)) as connection, connection.cursor() as cursor:
            cursor.execute(text)
            return list(cursor.fetchall())


@contextmanager
def started(programs: Path, folder: Path) -> Iterator[str]:
    """A server in a folder, without the care for disks that tests need not have."""
    other = ["setpriv", "--reuid", SERVER_USER, "--clear-groups"] if os.getuid() == 0 else []
    data, port = folder / "data", _free_port()
    if other:
        shutil.chown(folder, SERVER_USER)
    subprocess.run(
        [*other, programs / "initdb", "-D", data, "-A", "trust", "-U", "keytide", "--no-sync",
         "-E", "UTF8", "--locale", "C"],
        check=True, capture_output=True, cwd=folder,
    )  # fmt: skip
    settings = ("fsync=off", "synchronous_commit=off", "full_page_writes=off",
                "listen_addresses=127.0.0.1", f"port={port}", f"unix_socket_directories={folder}",
                "shared_buffers=16MB")  # fmt: skip
    log = (folder / "log").open("w")
    options = [option for setting in settings for option in ("-c", setting)]
    with log, subprocess.Popen(
        [*other, programs / "postgres", "-D", data, *options], stdout=log, stderr=log, cwd=folder
    ) as server:  # fmt: skip
        try:
            _wait_until_ready(server, port, folder / "log")
            yield f"postgresql://keytide@127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(30)


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(300):
        if "ready to accept connections" in log.read_text():
            return
        if server.poll() is not None:
            break
        time.sleep(0.05)
    pytest.skip(f"PostgreSQL does not start at port {port}: {log.read_text()[-500:]}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
