"""A proxy on loopback that stands before a store and does what networks and services do at times.

::

    with FaultyProxy(port) as proxy:
        proxy.faults += [Trouble("PUT", "snapshot-2", act="lost-answer")]
"""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

__all__ = ["FaultyProxy", "Trouble", "forwarded"]

Act = Literal["status", "lost-answer", "cut-request", "cut-answer", "late", "slow"]
_LATE_S = 0.7


@dataclass
class Trouble:
    """What goes wrong with `times` requests of a method whose path matches a pattern.

    It strikes the next ones, or of those that match one in `every`.

    - `status`: nothing is done, and the answer is `code`;
    - `lost-answer`: it is done, and the connection ends without an answer;
    - `cut-request`: the connection ends before anything is done;
    - `cut-answer`: it is done, and the connection ends in the midst of the answer;
    - `late`: the connection ends, and it is done a while later;
    - `slow`: it is done after a while.
    """

    method: str
    match: str
    act: Act
    code: int = 503
    times: int = 1
    every: int = 1
    seen: int = 0
    struck: int = 0


@dataclass(frozen=True)
class Answer:
    """What a service said."""

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""


def forwarded(port: int, method: str, path: str, headers: Any, body: bytes) -> Answer:
    """What the service at a port answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return Answer(response.status, response.getheaders(), response.read())
    finally:
        connection.close()


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.handle_any
        raise AttributeError(name)

    def handle_any(self) -> None:
        body = self._body()
        proxy = self.server.proxy
        proxy.seen.append((self.command, self.path))
        trouble = proxy.next_trouble(self.command, self.path)
        act = None if trouble is None else trouble.act
        if trouble is not None and act == "status":
            self._answer(Answer(trouble.code, [], proxy.refusal(trouble.code)))
            return
        if act == "cut-request":
            self._cut()
            return
        if act == "late":
            arguments = (self.command, self.path, self.headers.items(), body)
            threading.Timer(_LATE_S, proxy.service, arguments).start()
            self._cut()
            return
        if act == "slow":
            time.sleep(_LATE_S)
        answer = proxy.service(self.command, self.path, self.headers.items(), body)
        if act == "lost-answer":
            self._cut()
        else:
            self._answer(answer, is_torn=act == "cut-answer")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _answer(self, answer: Answer, *, is_torn: bool = False) -> None:
        self.send_response_only(answer.status)
        hidden = ("transfer-encoding", "connection", "content-length", "keep-alive")
        length = str(len(answer.body))
        for name, value in answer.headers:
            if name.lower() not in hidden:
                self.send_header(name, value)
            elif name.lower() == "content-length" and self.command == "HEAD":
                length = value
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(answer.body[: len(answer.body) // 2] if is_torn else answer.body)
        if is_torn:
            self._cut()

    def _cut(self) -> None:
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def log_message(self, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    proxy: FaultyProxy
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed in the midst of a request is no news."""


class FaultyProxy:
    """Stands before the service at a port; `port` is its own."""

    def __init__(self, service_port: int) -> None:
        self.troubles: list[Trouble] = []
        self.seen: list[tuple[str, str]] = []
        self._service_port = service_port
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Request)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return self._server.server_port

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def service(self, method: str, path: str, headers: Any, body: bytes) -> Answer:
        """What stands behind answers."""
        return forwarded(self._service_port, method, path, headers, body)

    def refusal(self, code: int) -> bytes:
        """The body of a refusal."""
        return b"<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>"

    def next_trouble(self, method: str, path: str) -> Trouble | None:
        """What strikes a request."""
        with self._lock:
            for trouble in self.troubles:
                if trouble.method != method or not re.search(trouble.match, path):
                    continue
                trouble.seen += 1
                if trouble.struck < trouble.times and trouble.seen % trouble.every == 0:
                    trouble.struck += 1
                    return trouble
        return None
