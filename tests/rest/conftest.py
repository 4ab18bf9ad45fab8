"""A catalog service, a lake of it, and a table, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from catalog_server import Service, connected, serving

import keytide as kt


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path) as found:
        yield found


@pytest.fixture
def lake(service: Service) -> kt.Lake:
    return connected(service)


@pytest.fixture
def table(lake: kt.Lake) -> kt.Table:
    lake.sql("CREATE TABLE shop.t (k INT, v INT, PRIMARY KEY (k) NOT ENFORCED)")
    return lake.table("shop.t")
