"""Metastores of each kind, and a lake of one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from glue_settings import SETTINGS
from hive_stand_in import Hive, hive_serving
from real_metastore import HOME, RealMetastore

import aws
import keytide as kt


@pytest.fixture(scope="session")
def glue_endpoint() -> Iterator[str]:
    with aws.aws_serving() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def real_metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not (HOME / ".ready").exists():
        pytest.skip("make metastore fetches it")
    metastore = RealMetastore(tmp_path_factory.mktemp("metastore"))
    yield metastore.start()
    metastore.stop()


@pytest.fixture(params=["glue", "hive", pytest.param("real-hive", marks=pytest.mark.metastore)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a metastore, and options to connect with."""
    where = {"warehouse": str(tmp_path / "lake")}
    if request.param == "glue":
        endpoint = request.getfixturevalue("glue_endpoint")
        yield "glue://", where | SETTINGS | {"glue.endpoint": endpoint}
    elif request.param == "hive":
        with hive_serving(Hive()) as address:
            yield address, where
    else:
        yield request.getfixturevalue("real_metastore"), where


@pytest.fixture
def lake(place: tuple[str, dict[str, str]]) -> kt.Lake:
    address, options = place
    return kt.connect(address, options=options)


@pytest.fixture
def db() -> str:
    """The name of a database that no other test has."""
    return f"d{uuid.uuid4().hex[:8]}"


@pytest.fixture
def glue(glue_endpoint: str) -> Any:
    """Another client of Glue, to look behind the lake."""
    return aws.client_of("glue", glue_endpoint)
