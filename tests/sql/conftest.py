"""The lake of a module's tests: a copy for each of what the module's `TABLES` made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import keytide as kt


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with what the statements in the module's `TABLES` make."""
    path = tmp_path_factory.mktemp("made")
    kt.connect(path).sql(request.module.TABLES)
    return path


@pytest.fixture
def lake(made: Path, warehouse: str) -> kt.Lake:
    """A warehouse of the test's own, which it may change."""
    shutil.copytree(made, warehouse, dirs_exist_ok=True)
    return kt.connect(warehouse)
