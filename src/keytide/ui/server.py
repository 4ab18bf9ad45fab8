"""Serves the pages until Ctrl-C."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Callable
from threading import Timer
from types import FrameType

import uvicorn

from keytide.base.arguments import shown
from keytide.errors import InvalidError
from keytide.lake.lake import Lake
from keytide.ui.access import Access, without_brackets
from keytide.ui.app import application
from keytide.ui.guard import TOKEN
from keytide.ui.running import Runs

__all__ = ["is_loopback", "serve"]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
# How long open requests can delay the end of the server.
_END_SECONDS = 3
_OPEN_AFTER_SECONDS = 0.3


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    return without_brackets(host) in _LOOPBACK


def serve(
    lake: Lake, host: str, port: int, *, allows_changes: bool, opens: bool,
    query_seconds_max: float | None, tell: Callable[[str], None],
) -> None:  # fmt: skip
    """Serve a lake until Ctrl-C, which raises `KeyboardInterrupt` after the server has ended.

    `tell` is called with the address to open, which contains the secret. With `opens`, a browser
    opens it. Port 0 uses a free port. A query can run for `query_seconds_max`, None for no limit.
    Raises `InvalidError` for an address on which the server cannot listen.
    """
    listening = _listening(without_brackets(host), port)
    with listening:
        bound = listening.getsockname()[1]
        access = Access.at(host, bound, socket.gethostname())
        address = f"http://{_shown(host)}:{bound}/?{TOKEN}={access.secret}"
        tell(address)
        if opens:
            opener = Timer(_OPEN_AFTER_SECONDS, webbrowser.open, [address])
            opener.daemon = True
            opener.start()
        runs = Runs(query_seconds_max)
        config = uvicorn.Config(
            application(lake, access, allows_changes=allows_changes, runs=runs),
            log_config=None, log_level="warning", access_log=False, server_header=False,
            ws="none", timeout_graceful_shutdown=_END_SECONDS,
        )  # fmt: skip
        try:
            _Server(config, runs).run(sockets=[listening])
        finally:
            runs.cancel_all()


class _Server(uvicorn.Server):
    """Cancels queries when it is asked to end, so that their requests do not hold it up."""

    def __init__(self, config: uvicorn.Config, runs: Runs) -> None:
        super().__init__(config)
        self._runs = runs

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._runs.cancel_all()
        super().handle_exit(sig, frame)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError, TypeError, ValueError) as error:
        raise InvalidError(
            f"cannot listen on {shown(host)}, port {port}: {error}; --port 0 uses a free port"
        ) from error


def _shown(host: str) -> str:
    """The host for the printed address. If the server listens on all addresses, this machine."""
    bare = without_brackets(host)
    if bare in ("0.0.0.0", "::", ""):
        return "127.0.0.1" if bare != "::" else "[::1]"
    return f"[{bare}]" if ":" in bare else bare
