"""The judges: other readers and writers, looking at the warehouse of the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from interop_judges import PYPAIMON_PYTHON, Judge, Pypaimon, PypaimonProcess, PypaimonRust
from java_judge import JAVA_BUNDLE, JavaGateway, JavaPaimon

import keytide as kt


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    """An empty warehouse."""
    return kt.connect(warehouse)


@pytest.fixture(scope="session")
def pypaimon_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PypaimonProcess]:
    """The one pypaimon process of the run."""
    if not PYPAIMON_PYTHON.exists():
        pytest.skip("pypaimon has no environment; `make interop-env` makes it")
    process = PypaimonProcess(tmp_path_factory.mktemp("pypaimon"))
    yield process
    process.close()


@pytest.fixture
def pypaimon(warehouse: str, pypaimon_process: PypaimonProcess) -> Pypaimon:
    """pypaimon alone."""
    return Pypaimon(warehouse, pypaimon_process)


@pytest.fixture
def pypaimon_rust(warehouse: str) -> PypaimonRust:
    """pypaimon-rust alone."""
    return PypaimonRust(warehouse)


@pytest.fixture(scope="session")
def java_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaGateway]:
    """The one Java process of the run."""
    if not JAVA_BUNDLE.exists():
        pytest.skip("Java Paimon is not here; `make interop` fetches it where it can be had")
    gateway = JavaGateway(JAVA_BUNDLE, tmp_path_factory.mktemp("java"))
    yield gateway
    gateway.close()


@pytest.fixture
def java(warehouse: str, java_gateway: JavaGateway) -> JavaPaimon:
    """Java Paimon alone."""
    return JavaPaimon(warehouse, java_gateway)


@pytest.fixture(params=["pypaimon-rust", "pypaimon", "java"])
def judge(request: pytest.FixtureRequest) -> Judge:
    """Each of the judges."""
    found: Judge = request.getfixturevalue(request.param.replace("-", "_"))
    return found
