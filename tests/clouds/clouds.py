"""Servers of the protocols of S3, Google Cloud Storage and Azure, begun and ended by the tests.

`scripts/get-clouds.sh` puts them into `.venv-clouds`. Each stands behind a `FaultyProxy`, and is
used as users do: by an address, and credentials from the environment.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from faulty_http import FaultyProxy
from gcs_xml import GcsProxy

__all__ = ["KINDS", "Cloud", "is_there", "running"]

KINDS = ("s3", "gs", "az")
_ROOT = Path(__file__).parents[2] / ".venv-clouds"
_PROGRAMS = {
    "s3": _ROOT / "bin" / "versitygw",
    "gs": _ROOT / "bin" / "fake-gcs-server",
    "az": _ROOT / "node_modules" / ".bin" / "azurite-blob",
}
_BUCKET = "lakes"
_KEY_ID, _SECRET = "tester", "wJalrXUtnFEMI"
# The account that the emulator of Azure has, as its documentation tells everybody.
_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True)
class Cloud:
    """A bucket in a service: what to set in the environment, and the proxy before it."""

    kind: str
    environment: dict[str, str]
    proxy: FaultyProxy

    def address(self) -> str:
        """Where a new lake may be."""
        return f"{self.kind}://{_BUCKET}/{uuid4().hex}/ware house"


def is_there(kind: str) -> bool:
    """Whether the program of a service has been fetched."""
    return _PROGRAMS[kind].exists()


@contextmanager
def running(kind: str, folder: Path) -> Iterator[Cloud]:
    """A service with an empty bucket, until the end of the block."""
    port = _free_port()
    process = subprocess.Popen(
        _command(kind, port, folder), cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_for(port, process)
        with (GcsProxy if kind == "gs" else FaultyProxy)(port) as proxy:
            _make_bucket(kind, port)
            yield Cloud(kind, _environment(kind, proxy.port), proxy)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _command(kind: str, port: int, folder: Path) -> list[str]:
    program = str(_PROGRAMS[kind])
    if kind == "s3":
        (folder / "files").mkdir()
        keys = ["--access", _KEY_ID, "--secret", _SECRET]
        return [program, "--port", f"127.0.0.1:{port}", *keys, "posix", str(folder / "files")]
    if kind == "gs":
        at = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        return [program, "-backend", "memory", *at]
    at = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    return [program, "--silent", "--skipApiVersionCheck", "--inMemoryPersistence", *at]


def _environment(kind: str, port: int) -> dict[str, str]:
    address = f"http://127.0.0.1:{port}"
    if kind == "s3":
        return {
            "AWS_ENDPOINT_URL": address,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": _KEY_ID,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
        }
    if kind == "gs":
        account = {"gcs_base_url": address, "disable_oauth": True, "client_email": "tester",
                   "private_key": "", "private_key_id": ""}  # fmt: skip
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)}
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": _ACCOUNT_KEY,
        "AZURE_STORAGE_ENDPOINT": f"{address}/{_ACCOUNT}",
    }


def _make_bucket(kind: str, port: int) -> None:
    address = f"http://127.0.0.1:{port}"
    if kind == "s3":
        import boto3

        boto3.client(
            "s3", endpoint_url=address, region_name="us-east-1",
            aws_access_key_id=_KEY_ID, aws_secret_access_key=_SECRET,
        ).create_bucket(Bucket=_BUCKET)  # fmt: skip
        return
    if kind == "gs":
        path, headers, method = "/storage/v1/b", {"Content-Type": "application/json"}, "POST"
        data = json.dumps({"name": _BUCKET}).encode()
    else:
        path, headers, method = f"/{_ACCOUNT}/{_BUCKET}?restype=container", _signed(), "PUT"
        data = b""
    request = urllib.request.Request(address + path, data=data, headers=headers, method=method)
    urllib.request.urlopen(request, timeout=30).close()


def _signed() -> dict[str, str]:
    now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": now, "x-ms-version": "2023-11-03"}
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/{_BUCKET}\nrestype:container"
    kind = "application/x-www-form-urlencoded"
    named = [f"{name}:{value}" for name, value in headers.items()]
    text = "\n".join(["PUT", "", "", "", "", kind, "", "", "", "", "", "", *named, resource])
    key = base64.b64decode(_ACCOUNT_KEY)
    signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
    given = {"Content-Type": kind, "Authorization": f"SharedKey {_ACCOUNT}:{signature}"}
    return {**headers, **given}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, f"{process.args} has ended with {process.returncode}"
        time.sleep(0.2)
    raise AssertionError(f"{process.args} does not answer")
