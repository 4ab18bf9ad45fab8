"""One store of each kind, and the S3 server that the S3 one talks to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from uuid import uuid4

import pytest

from keytide.store import CachedStore, CacheFolder, Store, open_store
from keytide.store.faults import FaultyStore

SECRET = "wJalrXUtnFEMI"


def one_at_a_time(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """The server looks for the key and stores it in two steps; S3 does so in one."""
    lock = Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with lock:
            return application(environ, start_response)

    return answer


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    """Options for a local S3 server that honours conditional puts."""
    # Loaded here: whoever runs other tests need not wait a second for these.
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class QuietHandler(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    application = one_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=QuietHandler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield {
        "endpoint": f"http://127.0.0.1:{server.server_port}",
        "region": "us-east-1",
        "access_key_id": "tester",
        "secret_access_key": SECRET,
    }
    server.shutdown()
    thread.join()


@pytest.fixture(scope="session")
def s3_client(s3_options: dict[str, str]) -> Any:
    """Another client of the same server, to look behind the store."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=s3_options["endpoint"],
        region_name=s3_options["region"],
        aws_access_key_id=s3_options["access_key_id"],
        aws_secret_access_key=s3_options["secret_access_key"],
    )


@pytest.fixture
def s3_bucket(s3_client: Any) -> str:
    name = f"bucket-{uuid4().hex}"
    s3_client.create_bucket(Bucket=name)
    return name


@pytest.fixture
def s3_store(s3_bucket: str, s3_options: dict[str, str]) -> Store:
    return open_store(f"s3://{s3_bucket}/ware house", s3_options)


@pytest.fixture
def memory_store() -> Store:
    return open_store(f"memory://{uuid4().hex}/warehouse")


@pytest.fixture
def local_store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "ware house")


@pytest.fixture(params=["local", "memory", "s3"])
def store(request: pytest.FixtureRequest) -> Store:
    """Each kind of store, empty."""
    kind: Store = request.getfixturevalue(f"{request.param}_store")
    return kind


def every_file(path: str) -> bool:
    """All are kept: what a store promises does not depend on which are."""
    return True


@pytest.fixture
def cached_store(memory_store: Store, tmp_path: Path) -> Store:
    return CachedStore(memory_store, CacheFolder(str(tmp_path / "cache"), 1 << 30), every_file)


@pytest.fixture(params=["local", "memory", "s3", "cached", "faulty"])
def any_store(request: pytest.FixtureRequest) -> Store:
    """Each kind of store, one with a cache and one behind the fault seam, empty."""
    if request.param == "faulty":
        return FaultyStore(request.getfixturevalue("local_store"))
    kind: Store = request.getfixturevalue(f"{request.param}_store")
    return kind
