"""The services, each for the tests of one module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import clouds

sys.path.append(str(Path(__file__).parents[1] / "support"))


@pytest.fixture(scope="module", params=clouds.KINDS)
def cloud(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[clouds.Cloud]:
    """Each service with its credentials in the environment."""
    if not clouds.is_there(request.param):
        pytest.skip("scripts/get-clouds.sh has not fetched this service")
    with (
        clouds.running(request.param, tmp_path_factory.mktemp(request.param)) as found,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in found.environment.items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(autouse=True)
def _calm(cloud: clouds.Cloud) -> Iterator[None]:
    yield
    cloud.proxy.troubles.clear()
