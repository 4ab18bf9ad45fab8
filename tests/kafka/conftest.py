"""One broker for all tests that need one, stopped by its process id."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker import HOME, Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if not (HOME / ".ready").exists():
        pytest.skip("make kafka fetches the broker")
    broker = Broker(tmp_path_factory.mktemp("broker"))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
