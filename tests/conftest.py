"""What every test may use: an empty lake, one Spark session, hypothesis profiles."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import drawn

sys.path.append(str(Path(__file__).parent / "behind"))
import behind_writers  # it is in a folder of its own, which children have on their path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import keytide as kt

# A run without a deadline: the first example of a test pays for imports and compilation.
settings.register_profile(
    "default",
    max_examples=6,
    stateful_step_count=20,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", parent=settings.get_profile("default"), max_examples=2_000, stateful_step_count=60
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Few tests run long enough to repay the better of the JVM's two compilers.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# Set for the workers too, which may begin after midnight.
CASES = os.environ.setdefault("KEYTIDE_CASES", str(date.today().toordinal()))
if "PYTEST_XDIST_WORKER" in os.environ:
    # The workers share the cores already.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
behind_writers.begin()


@pytest.hookimpl(trylast=True)  # of the cases that are left to run
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that wait for Spark drivers come first, so that no worker is left with them alone."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("spark"):
            # Unmarked, it would start a session in a process that is to run without one.
            raise pytest.UsageError(f"{item.nodeid} uses Spark: mark it with pytest.mark.spark")
    items.sort(key=lambda item: item.get_closest_marker("driver") is None)
    if turns := drawn.promises_that_take_turns(items):
        raise pytest.UsageError(f"these tests guard promises and run each day: {turns}")
    if not any("::" in arg for arg in config.args):
        selected = drawn.selected(items, CASES, date.today().toordinal())
        config.hook.pytest_deselected(items=[item for item in items if item not in selected])
        items[:] = [item for item in items if item in selected]


def pytest_collection_finish() -> None:
    """What the collected tests are made of stays, and need not be looked through for garbage."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    return f"cases of tests marked one_in: KEYTIDE_CASES={CASES} (see tests/support/drawn.py)"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if behind_writers.IS_SET:
        terminalreporter.write_line(behind_writers.report())


@pytest.fixture(autouse=behind_writers.IS_SET)
def compactions_behind() -> Iterator[None]:
    """What is compacted behind the writers of a test ends with it."""
    yield
    behind_writers.wait()


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    """The path of an empty warehouse."""
    path = tmp_path / "warehouse"
    path.mkdir()
    return str(path)


@pytest.fixture
def lake(warehouse: str) -> kt.Lake:
    """The lake of that warehouse."""
    import keytide as kt

    return kt.connect(warehouse)


@pytest.fixture(params=["on executors", "in the driver"])
def place(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Where the session works: there, as in other tests, or here, as by default."""
    from keytide.spark.capacity import SETTING

    before = spark.conf.get(SETTING)
    if request.param == "in the driver":
        spark.conf.unset(SETTING)
    yield request.param
    spark.conf.set(SETTING, before)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of the run: two cores, little memory, no UI."""
    import keytide.spark
    from keytide.spark.capacity import SETTING, TASK_SIZE

    scratch = tmp_path_factory.mktemp("spark")
    session = keytide.spark.session(
        **{
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            # All that tests read is small: the driver alone, or one task, would do all the work.
            SETTING: "0",
            TASK_SIZE: "256 kb",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.local.dir": str(scratch / "local"),
        }
    )
    yield session
    session.stop()
