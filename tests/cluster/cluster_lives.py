"""Lives of tables on clusters whose executors and drivers are killed at random, for some minutes.

`make lives MINUTES=60` runs this. It prints each table that shows other rows than a dict, with the
seed that repeats its statements, and fails if there was one.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cluster_life import WRONG

from keytide.spark.sessions import find_java

STEPS = 40
DRIVER_SECONDS = (20, 90)
EXECUTOR_SECONDS = (4, 25)
STARTS_MAX = 40


def main() -> int:
    """Run lives until the time is over. The number of lives that went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    given = parser.parse_args()
    end, seed, wrong, lives = time.time() + 60 * given.minutes, given.seed, 0, 0
    while time.time() < end:
        with tempfile.TemporaryDirectory(prefix="keytide-life-") as folder:
            said = life(Path(folder), seed, end)
        lives += 1
        print(f"seed {seed}: {said}", flush=True)
        wrong += "WRONG" in said
        seed += 1
    print(f"{lives} lives, {wrong} wrong")
    return min(wrong, 1)


def life(folder: Path, seed: int, end: float) -> str:
    """One table: drivers are started until all statements are done. What is to be said of it."""
    chance, killed = random.Random(seed), {"drivers": 0, "executors": 0}
    (folder / "lake").mkdir()
    for _ in range(STARTS_MAX):
        driver = _started(folder, seed)
        until = time.time() + chance.uniform(*DRIVER_SECONDS)
        while driver.poll() is None and time.time() < until:
            time.sleep(chance.uniform(*EXECUTOR_SECONDS))
            executors = list(executors_of(driver.pid))
            if executors and driver.poll() is None:
                _kill(chance.choice(executors))
                killed["executors"] += 1
        if chance.random() < 0.3:
            with suppress(subprocess.TimeoutExpired):
                driver.wait(timeout=120)
        if driver.poll() is None:  # no two drivers at a time: the journal tells only of one
            for pid in [driver.pid, *_children_of(driver.pid)]:
                _kill(pid)
            killed["drivers"] += 1
        driver.wait()
        told, done = (folder / "said").read_text(), _lines_in(folder / "journal")
        tally = f"{done} statements, killed: {killed}"
        if driver.returncode == WRONG:
            return f"{told.strip().splitlines()[-1]} ({tally})"
        if driver.returncode == 0 or time.time() > end:
            return tally
    return f"WRONG: only {done} statements after {STARTS_MAX} drivers: {told[-500:]}"


def _lines_in(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def _started(folder: Path, seed: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "JAVA_HOME": str(find_java().home)}
    with (folder / "said").open("w") as said:
        script = str(Path(__file__).with_name("cluster_life.py"))
        return subprocess.Popen(
            [sys.executable, script, str(folder), str(seed), str(STEPS)],
            stdout=said, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=folder,
        )  # fmt: skip


def _children_of(pid: int) -> Iterator[int]:
    """All processes below a process."""
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _children_of(child)


def executors_of(pid: int) -> Iterator[int]:
    for child in _children_of(pid):
        with suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{child}/cmdline").read_bytes():
                yield child


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
