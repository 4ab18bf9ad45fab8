"""Measures one phase of one engine in this process: times and peak memory.

Started by run.py: `python measure.py write|read ENGINE BUCKETS WORKLOAD TABLE RESULT`. The last
three are the workload's directory, the table's directory and the JSON file to write.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
from engines import ENGINES, Engine
from workload import Workload, digest, open_workload

READS = 3


def write(engine: Engine, workload: Workload) -> dict[str, Any]:
    """Load and upsert. Pending disk writes are finished before each of the two."""
    engine.create()
    import_lazily_loaded()
    rows, upserts = workload.load_rows(), list(workload.upserts())
    with stopwatch() as load:
        engine.load(rows)
    os.sync()
    upsert = []
    for rows in upserts:
        with stopwatch() as one:
            engine.upsert(rows)
        upsert.append(one)
    return {"load": [load], "upsert": upsert, "write_peak_mb": peak_memory_mb()}


def read(engine: Engine, workload: Workload) -> dict[str, Any]:
    """Read everything several times, then compare the rows."""
    table, reads = None, []
    for _ in range(READS):
        table = None  # one result in memory at a time
        with stopwatch() as one:
            table = engine.read()
        reads.append(one)
    peak_mb = peak_memory_mb()
    found = digest(table)
    if found != workload.expected:
        raise ValueError(f"wrong rows: {found}, expected {workload.expected}")
    return {"read": reads, "read_peak_mb": peak_mb}


def import_lazily_loaded() -> None:
    """Import, without measuring, what pyarrow imports at its first conversion of a Python value:
    pandas.
    """
    pa.array([0])


@contextmanager
def stopwatch() -> Iterator[dict[str, float]]:
    """Wall-clock seconds, and seconds of all cores together, which other programs disturb less."""
    took: dict[str, float] = {}
    wall, cpu = time.perf_counter(), time.process_time()
    yield took
    took["wall_s"] = time.perf_counter() - wall
    took["cpu_s"] = time.process_time() - cpu


def peak_memory_mb() -> float:
    """The peak resident memory of this program, including the parts of memory-mapped files that
    were read.
    """
    # Linux passes ru_maxrss of the parent to a new process. VmHWM starts again.
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def installed_version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""  # run from its sources


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phase", choices=("write", "read"))
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("buckets", type=int)
    parser.add_argument("workload", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("result", type=Path)
    arguments = parser.parse_args()
    phase = {"write": write, "read": read}[arguments.phase]
    try:
        engine = ENGINES[arguments.engine](arguments.table, arguments.buckets)
    except ModuleNotFoundError as error:
        outcome: dict[str, Any] = {"missing": str(error)}
    else:
        outcome = phase(engine, open_workload(arguments.workload))
        outcome["version"] = installed_version(engine.distribution)
        engine.close()
    arguments.result.write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
