"""What only object stores have: options, secrets, requests that fail half-way."""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import polars as pl
import pytest

from keytide.errors import DataError, InvalidError, SetupError
from keytide.store import Store, open_store

# The secret of conftest's S3 options.
SECRET = "wJalrXUtnFEMI"


class FlakyServer(ThreadingHTTPServer):
    """Just enough of S3 to do what it is told and then answer 503, or to refuse to do it.

    With `ignores_conditions` it is one of those that know no conditional put.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FlakyRequest)
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.losses = 0
        self.refusals: list[int] = []
        self.ignores_conditions = False


class FlakyRequest(BaseHTTPRequestHandler):
    server: FlakyServer
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.endswith(".tmp"):
            self.server.requests.append("PUT")
            if self.server.refusals:
                self.answer(self.server.refusals.pop(0))
                return
        has_condition = self.headers["If-None-Match"] == "*" and not self.server.ignores_conditions
        if has_condition and self.path in self.server.objects:
            self.answer(412)
            return
        self.server.objects[self.path] = data
        self.answer(200)

    def do_DELETE(self) -> None:
        self.server.objects.pop(self.path, None)
        self.answer(204)

    def do_GET(self) -> None:
        self.server.requests.append("GET")
        known = self.path in self.server.objects
        self.answer(200 if known else 404, self.server.objects.get(self.path, b""))

    def answer(self, status: int, body: bytes = b"") -> None:
        if self.server.losses and not self.path.endswith(".tmp"):
            self.server.losses -= 1
            status, body = 503, b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def flaky_server() -> Iterator[FlakyServer]:
    server = FlakyServer()
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def flaky_store(flaky_server: FlakyServer) -> Store:
    endpoint = f"http://127.0.0.1:{flaky_server.server_port}"
    return open_store("s3://flaky", {"endpoint": endpoint, "skip_signature": "true"})


def test_create_with_a_lost_response_knows_its_own_object(
    flaky_server: FlakyServer, flaky_store: Store
) -> None:
    flaky_server.losses = 1
    assert flaky_store.create("snapshot-1", b"mine")
    assert flaky_server.requests == ["PUT", "PUT", "GET"]
    assert not flaky_store.create("snapshot-1", b"mine")


def test_create_that_was_throttled_does_not_take_the_object_of_another_for_its_own(
    flaky_server: FlakyServer, flaky_store: Store
) -> None:
    flaky_store.create("snapshot-1", b"theirs")
    flaky_server.refusals = [503, 429]
    assert not flaky_store.create("snapshot-1", b"mine")
    assert flaky_store.read("snapshot-1") == b"theirs"


def test_create_that_met_another_one_under_way_is_tried_again(
    flaky_server: FlakyServer, flaky_store: Store
) -> None:
    """S3 answers 409 there, and nobody may have the name in the end."""
    flaky_server.refusals = [409]
    assert flaky_store.create("snapshot-1", b"mine")


def test_create_gives_up_after_as_many_tries_as_its_options_say(flaky_server: FlakyServer) -> None:
    endpoint = f"http://127.0.0.1:{flaky_server.server_port}"
    given = {"endpoint": endpoint, "skip_signature": "true", "max_retries": "1"}
    store = open_store("s3://flaky", given)
    flaky_server.refusals = [503, 503, 503]
    with pytest.raises(DataError, match=r"Cannot create s3://flaky/snapshot-1: .*503"):
        store.create("snapshot-1", b"mine")
    assert flaky_server.requests == ["PUT", "PUT"]
    assert "max_retries" not in dict(store.polars_options() or {})


def test_service_that_ignores_conditions_is_refused_before_anything_is_made(
    flaky_server: FlakyServer, flaky_store: Store
) -> None:
    flaky_server.ignores_conditions = True
    with pytest.raises(SetupError, match="does not support conditional writes"):
        flaky_store.create("t/schema/schema-0", b"{}")
    assert [path for path in flaky_server.objects if not path.endswith(".tmp")] == []


def test_read_and_put_try_again_after_a_server_error(
    flaky_server: FlakyServer, flaky_store: Store
) -> None:
    flaky_server.losses = 1
    flaky_store.put("a", b"1")
    flaky_server.losses = 1
    assert flaky_store.read("a") == b"1"
    assert flaky_server.requests == ["PUT", "PUT", "GET", "GET"]


def write_and_interrupt(store: Store, path: str, data: bytes) -> None:
    with store.open_output(path) as file:
        file.write(data)
        raise KeyboardInterrupt


def test_aborted_output_leaves_no_upload_behind(
    s3_store: Store, s3_bucket: str, s3_client: Any
) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_and_interrupt(s3_store, "data", bytes(20 << 20))
    assert "Uploads" not in s3_client.list_multipart_uploads(Bucket=s3_bucket)
    assert list(s3_store.list()) == []


def test_keys_reach_the_bucket_unchanged(s3_store: Store, s3_bucket: str, s3_client: Any) -> None:
    s3_store.put("db.db/t/dt=1/p=a%2Fb/x", b"")
    with s3_store.open_output("db.db/t/ü.parquet"):
        pass
    found = s3_client.list_objects_v2(Bucket=s3_bucket)["Contents"]
    assert [item["Key"] for item in found] == [
        "ware house/db.db/t/dt=1/p=a%2Fb/x",
        "ware house/db.db/t/ü.parquet",
    ]


@pytest.mark.parametrize("path", ["t/x", "dt=1/p=a%2Fb/x", "p=ü ö#1/x", "p=a?b/x", "p=[a]*/x"])
def test_polars_reads_an_object_by_its_uri_and_options(s3_store: Store, path: str) -> None:
    with s3_store.open_output(path) as file:
        pl.DataFrame({"k": [1, 2]}).write_parquet(file)
    options = s3_store.polars_options()
    assert options is not None
    frame = pl.scan_parquet(s3_store.uri_of(path), glob=False, storage_options=dict(options))
    assert frame.select("k").collect()["k"].to_list() == [1, 2]


def test_polars_cannot_read_memory_by_itself(memory_store: Store) -> None:
    assert memory_store.polars_options() is None


def test_pickled_store_works_in_another_process(s3_store: Store) -> None:
    s3_store.put("a", b"from here")
    program = (
        "import pickle, sys; store = pickle.load(sys.stdin.buffer); "
        "print(store.read('a')); store.put('b', b'from there')"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(s3_store),
        capture_output=True,
        check=False,
    )
    assert (run.stdout, run.returncode) == (b"b'from here'\n", 0), run.stderr
    assert s3_store.read("b") == b"from there"


def test_used_store_pickles_without_its_connection(s3_store: Store) -> None:
    before = pickle.dumps(s3_store)
    s3_store.put("a", b"")
    assert pickle.dumps(s3_store) == before


def test_memory_stores_of_one_name_share_their_files() -> None:
    open_store("memory://shared-files/a").put("b", b"1")
    assert open_store("memory://shared-files").read("a/b") == b"1"
    assert not open_store("memory://other-files").exists("a/b")


def test_secrets_are_in_no_text(s3_options: dict[str, str]) -> None:
    options = {**s3_options, "endpoint": "http://127.0.0.1:1", "max_retries": "0"}
    store = open_store("s3://bucket/warehouse", options)
    with pytest.raises(DataError) as caught:
        store.create("a", b"")
    texts = [repr(store), str(store), store.uri, store.uri_of("a"), str(caught.value)]
    texts += traceback.format_exception(caught.value)
    assert not [text for text in texts if SECRET in text]


def test_secret_in_an_answer_of_the_service_is_masked() -> None:
    options = {
        "endpoint": "http://127.0.0.1:1",
        "session_token": "127.0.0.1:1",
        "skip_signature": "true",
        "max_retries": "0",
    }
    with pytest.raises(DataError) as caught:
        open_store("s3://masked", options).create("a", b"")
    text = "".join(traceback.format_exception(caught.value))
    assert "http://***/masked/" in text
    assert "127.0.0.1:1" not in text


def test_failing_service_is_a_data_error_with_its_cause() -> None:
    options = {"endpoint": "http://127.0.0.1:1", "skip_signature": "true", "max_retries": "0"}
    store = open_store("s3://nowhere/warehouse", options)
    with pytest.raises(DataError, match="Cannot create s3://nowhere/warehouse/a: ") as caught:
        store.create("a", b"")
    assert caught.value.__cause__ is not None
    assert "Check the endpoint, the network and the credentials" in str(caught.value)


@pytest.mark.parametrize("size_bytes", [10, 20 << 20])
def test_output_to_a_missing_bucket_is_a_data_error(
    s3_options: dict[str, str], size_bytes: int
) -> None:
    store = open_store("s3://no-such-bucket", s3_options)
    with (
        pytest.raises(DataError, match="bucket or container s3://no-such-bucket does not exist"),
        store.open_output("data") as file,
    ):
        file.write(bytes(size_bytes))


def test_hint_to_a_missing_bucket_is_ignored(s3_options: dict[str, str]) -> None:
    store = open_store("s3://no-such-bucket", s3_options)
    store.hint("LATEST", b"1")
    assert not store.exists("LATEST")


def test_client_options_stand_among_the_others(s3_options: dict[str, str], s3_bucket: str) -> None:
    store = open_store(f"s3://{s3_bucket}", {**s3_options, "timeout": "7s", "allow_http": "true"})
    store.put("a", b"1")
    assert store.read("a") == b"1"


def test_environment_variables_serve_in_place_of_options(
    s3_options: dict[str, str], s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_options["endpoint"])
    monkeypatch.setenv("AWS_REGION", s3_options["region"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_options["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_options["secret_access_key"])
    store = open_store(f"s3://{s3_bucket}")
    store.put("a", b"1")
    assert store.read("a") == b"1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"no_such_option": SECRET}, "no_such_option"),
        ({"timeout": "soon"}, "soon"),
        ({"max_retries": "-1"}, "max_retries is '-1', expected an integer"),
        ({"retry_timeout": "soon"}, "retry_timeout is 'soon', expected a duration such as 60s"),
    ],
)
def test_options_that_do_not_fit_are_invalid(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidError, match=message) as caught:
        open_store("s3://bucket", options)
    assert SECRET not in str(caught.value)
