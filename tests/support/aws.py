"""A server of S3 and Glue in this process, and the environment that leads to it."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Any

__all__ = ["SECRET", "aws_serving", "client_of", "environment", "forget_everything"]

SECRET = "wJalrXUtnFEMI"
_REGION, _KEY_ID = "us-east-1", "tester"


@contextmanager
def aws_serving() -> Iterator[str]:
    """The address of a server that honours conditional puts."""
    # Loaded here: whoever runs other tests need not wait a second for these.
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class QuietHandler(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    application = _one_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=QuietHandler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


def _one_at_a_time(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """The server looks for the key and stores it in two steps; S3 does so in one."""
    lock = Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with lock:
            return application(environ, start_response)

    return answer


def client_of(service: str, endpoint: str) -> Any:
    """A client of Amazon's own, to look behind Keytide."""
    import boto3

    return boto3.client(
        service, endpoint_url=endpoint, region_name=_REGION,
        aws_access_key_id=_KEY_ID, aws_secret_access_key=SECRET,
    )  # fmt: skip


def environment(endpoint: str) -> dict[str, str]:
    """Variables by which clients of a process find the server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": _REGION,
        "AWS_DEFAULT_REGION": _REGION,
        "AWS_ACCESS_KEY_ID": _KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ALLOW_HTTP": "true",
    }


def forget_everything(endpoint: str) -> None:
    """Leave the server empty."""
    request = urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST")
    urllib.request.urlopen(request, timeout=30).close()
