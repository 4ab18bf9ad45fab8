"""The judges: other readers and writers, looking at the warehouse of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from interop_judges import PYPAIMON_PYTHON, Judge, Pypaimon, PypaimonProcess, PypaimonRust
from java_judge import JAVA_RELEASES, JavaGateway, JavaPaimon


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


class JavaGateways:
    """The Java processes of the run, one for each release that judges in it."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._open: dict[str, JavaGateway] = {}

    def of(self, release: str) -> JavaGateway:
        """The process of a release; the test is skipped where it is not here."""
        bundle = JAVA_RELEASES[release]
        if not bundle.exists():
            pytest.skip(f"{release} is not here; `make interop` fetches it where it can be had")
        if release not in self._open:
            self._open[release] = JavaGateway([bundle], self._scratch)
        return self._open[release]

    def close(self) -> None:
        """End the processes."""
        for gateway in self._open.values():
            gateway.close()


@pytest.fixture(scope="session")
def java_gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaGateways]:
    """The Java processes of the run."""
    gateways = JavaGateways(tmp_path_factory.mktemp("java"))
    yield gateways
    gateways.close()


@pytest.fixture(params=JAVA_RELEASES)
def java(request: pytest.FixtureRequest, warehouse: str, java_gateways: JavaGateways) -> JavaPaimon:
    """Each release of Java Paimon."""
    return JavaPaimon(warehouse, java_gateways.of(request.param), request.param)


@pytest.fixture(params=["pypaimon-rust", "pypaimon", *JAVA_RELEASES])
def judge(request: pytest.FixtureRequest, warehouse: str) -> Judge:
    """Each of the judges."""
    if request.param in JAVA_RELEASES:
        gateways: JavaGateways = request.getfixturevalue("java_gateways")
        return JavaPaimon(warehouse, gateways.of(request.param), request.param)
    found: Judge = request.getfixturevalue(request.param.replace("-", "_"))
    return found
