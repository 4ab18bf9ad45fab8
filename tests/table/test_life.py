"""Processes that write, compact, expire, tag, read and are killed leave every invariant whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import detours
import keytide as kt
import life

LONG = [pytest.mark.soak, pytest.mark.timeout(7200)]


@pytest.mark.one_in(14)
@pytest.mark.parametrize(
    ("place", "processes", "steps", "kills"),
    [
        ("folder", 2, 30, 1),
        (life.SERVICE, 2, 30, 1),
        (life.FAR, 2, 20, 1),
        pytest.param("folder", 3, 3_400, 150, marks=LONG),
        pytest.param(life.SERVICE, 3, 1_700, 70, marks=LONG),
        pytest.param(life.FAR, 3, 1_700, 70, marks=LONG),
    ],
    ids=[
        "briefly",
        "briefly, by a service",
        "briefly, far away",
        "10,000 steps",
        "5,000 steps, by a service",
        "5,000 steps, far away",
    ],
)
def test_invariants_outlive_writers_compactors_expirers_taggers_and_kills(
    warehouse: str, place: str, processes: int, steps: int, kills: int
) -> None:
    warehouse = warehouse if place == "folder" else f"{place}:{warehouse}"
    seed = int(os.environ.get("KEYTIDE_SEED", time.time_ns() % 1_000_000))
    print(f"KEYTIDE_SEED={seed}")
    life.make_tables(warehouse)
    names = [f"process-{n}" for n in range(processes)]
    run(warehouse, names, seed, steps, random.Random(seed), kills)

    lake, ended = life.connect(warehouse), [life.Life(warehouse, name, seed) for name in names]
    assert [each.done for each in ended] == [steps] * processes
    for each in ended:
        each.owned.look(random.Random(seed))
        assert each.owned.table.verify().is_healthy
    for name in life.TABLES:
        table, expected = lake.table(name), {}
        for each in ended:
            expected |= each.models[name]
        assert {row["k"]: row for row in table.scan().to_pylist()} == expected
        table.compact(full=True)
        assert {row["k"]: row for row in table.scan().to_pylist()} == expected
        assert table.verify().is_healthy
    for name in detours.TABLES:
        still_stands(lake, name, ended[0])


def still_stands(lake: kt.Lake, name: str, process: life.Life) -> None:
    """All that is left of a history that went back and sideways is sound and shows what it did."""
    table = lake.table(name)
    for line in (table, *(table.branch(each.name) for each in table.branches())):
        for place in (*(s.id for s in line.snapshots()), *(each.name for each in line.tags())):
            detours.look_at(process, line, place)
        if line.snapshots():
            rows = detours.look_at(process, line, line.snapshots()[-1].id)[1]
            line.compact(full=True)
            assert detours.look_at(process, line, line.snapshots()[-1].id)[1] == rows
    found = table.verify()
    assert found.is_healthy, found


def run(
    warehouse: str, names: list[str], seed: int, steps: int, chance: random.Random, kills: int
) -> None:
    """Run the processes to their end, and kill one of them now and then."""
    running = {name: begun(warehouse, name, seed, steps) for name in names}
    while running:
        time.sleep(chance.uniform(0.5, 3.0))
        for name, process in list(running.items()):
            if process.poll() is not None:
                error = process.communicate()[1]
                assert process.returncode in (0, -signal.SIGKILL), f"seed {seed}:\n{error}"
                del running[name]
                if process.returncode:
                    running[name] = begun(warehouse, name, seed, steps)
        if running and kills:
            running[chance.choice(list(running))].kill()
            kills -= 1


def begun(warehouse: str, name: str, seed: int, steps: int) -> subprocess.Popen[str]:
    program = [sys.executable, Path(life.__file__), warehouse, name, str(seed), str(steps)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=environment)
