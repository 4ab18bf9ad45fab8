"""Where pages are run: an empty folder, and object stores for those that name such."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import aws


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with aws.aws_serving() as endpoint:
        yield endpoint


@pytest.fixture
def stores(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an S3 server with the buckets that pages name; the environment leads there.

    Pages do no more with Google's and Azure's stores than to name them, which asks for nothing:
    `make clouds` has lakes there.
    """
    account = {"client_email": "tester", "private_key": "", "private_key_id": "",
               "disable_oauth": True}  # fmt: skip
    others = {
        "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account),
        "AZURE_STORAGE_ACCOUNT_NAME": "sales",
        "AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0",
    }
    for name, value in {**aws.environment(s3_endpoint), **others}.items():
        monkeypatch.setenv(name, value)
    client = aws.client_of("s3", s3_endpoint)
    for bucket in ("bucket", "sales"):
        client.create_bucket(Bucket=bucket)
    yield s3_endpoint
    aws.forget_everything(s3_endpoint)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
