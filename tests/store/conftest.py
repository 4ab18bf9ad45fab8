"""One store of each kind, and the S3 server that the S3 one talks to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import aws
from keytide.store import CachedStore, CacheFolder, Store, open_store
from keytide.store.faults import FaultyStore


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    """Options for a local S3 server that honours conditional puts."""
    with aws.aws_serving() as endpoint:
        yield {
            "endpoint": endpoint,
            "region": "us-east-1",
            "access_key_id": "tester",
            "secret_access_key": aws.SECRET,
        }


@pytest.fixture(scope="session")
def s3_client(s3_options: dict[str, str]) -> Any:
    """Another client of the same server, to look behind the store."""
    return aws.client_of("s3", s3_options["endpoint"])


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
