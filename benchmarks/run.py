"""Compares Keytide and its peers on one upsert workload.

Loads `--rows` rows, makes ten upserts of 1 % of them, and reads everything: each engine with the
same rows, in separate processes. Prints a table and the result for each of Keytide's goals, and
stores the results as JSON and PNG in `--results`. Engines that are not installed are reported as
missing.

    python benchmarks/run.py
    python benchmarks/run.py --rows 1000000 --engines keytide deltalake
    python benchmarks/run.py --buckets 1 4 --slow
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from engines import ENGINES, SLOW, VARIANTS
from plot import save_chart
from report import Result, print_report, verdicts, with_buckets
from workload import Workload, prepare

HERE = Path(__file__).resolve().parent
SLOW_SHARE = 5
"""Slow engines get this fraction of the rows (one divided by this number)."""
PYPAIMON_PYTHON = HERE.parent / ".venv-pypaimon" / "bin" / "python"


@dataclass(frozen=True)
class Entrant:
    """An engine and its settings in this run."""

    engine: str
    buckets: int
    python: str

    @property
    def is_slow(self) -> bool:
        return self.engine in SLOW


def main() -> None:
    arguments = parse_arguments()
    load_averages = [os.getloadavg()]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as scratch:
        results = run(arguments, Path(scratch))
    load_averages.append(os.getloadavg())
    record = describe(arguments, load_averages, results)
    print_report(results, load_averages)
    save(record, results, arguments.results)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows to load")
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=ENGINES,
        default=[name for name in ENGINES if name not in (*SLOW, *VARIANTS)],
        help="engines to measure (default: all except the slow ones)",
    )
    parser.add_argument(
        "--slow",
        action="store_true",
        help=f"also measure {' and '.join(SLOW)}, with 1/{SLOW_SHARE} of the rows",
    )
    parser.add_argument(
        "--buckets",
        nargs="+",
        type=int,
        default=[1],
        help="numbers of buckets to try, for the engines that have buckets (default: 1)",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="ENGINE=PATH",
        help="run an engine with another interpreter (pypaimon: .venv-pypaimon is known)",
    )
    parser.add_argument(
        "--directory", type=Path, default=Path.cwd(), help="where temporary tables are created"
    )
    parser.add_argument("--results", type=Path, default=HERE / "results")
    return parser.parse_args()


def run(arguments: argparse.Namespace, scratch: Path) -> list[Result]:
    entrants = list_entrants(arguments)
    workloads = {}
    for slow in sorted({entrant.is_slow for entrant in entrants}):
        rows = arguments.rows // SLOW_SHARE if slow else arguments.rows
        print(f"preparing {rows:,} rows ...", flush=True)
        workloads[slow] = prepare(scratch / f"workload-{rows}", rows)
    results = []
    for entrant in entrants:
        print(f"measuring {with_buckets(entrant.engine, entrant.buckets)} ...", flush=True)
        result = measure(entrant, workloads[entrant.is_slow], scratch)
        if result.trouble:
            print(f"  {result.trouble}")
        results.append(result)
    return results


def list_entrants(arguments: argparse.Namespace) -> list[Entrant]:
    pythons = {"pypaimon": str(PYPAIMON_PYTHON)}
    pythons.update(pair.split("=", 1) for pair in arguments.python)
    names = dict.fromkeys([*arguments.engines, *(SLOW if arguments.slow else ())])
    return [
        Entrant(name, buckets, pythons.get(name, sys.executable))
        for name in names
        for buckets in (arguments.buckets if ENGINES[name].has_buckets else [1])
    ]


def measure(entrant: Entrant, workload: Workload, scratch: Path) -> Result:
    """Write in one process and read in another, so that each has its own peak memory."""
    who: dict[str, Any] = {
        "engine": entrant.engine,
        "buckets": entrant.buckets,
        "rows": workload.rows,
        "load_average": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory(prefix=f"{entrant.engine}-", dir=scratch) as table:
        figures: dict[str, Any] = {}
        for phase in ("write", "read"):
            os.sync()
            figures |= run_phase(phase, entrant, workload, Path(table))
            if "trouble" in figures:
                return Result(**who, trouble=figures["trouble"])
            if phase == "write":
                figures["disk_mb"] = disk_mb(Path(table))
    return Result(**who, **figures)


def run_phase(phase: str, entrant: Entrant, workload: Workload, table: Path) -> dict[str, Any]:
    result = table.parent / "result.json"
    command = [entrant.python, HERE / "measure.py", phase, entrant.engine, str(entrant.buckets)]
    try:
        done = subprocess.run(
            [*command, workload.directory, table, result],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return {"trouble": f"missing: no interpreter {entrant.python}"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return {"trouble": f"failed to {phase}: {last[0]}"}
    found: dict[str, Any] = json.loads(result.read_text())
    return {"trouble": f"missing: {found['missing']}"} if "missing" in found else found


def disk_mb(directory: Path) -> float:
    """The size of all files, each once however many names it has."""
    stats = [path.stat() for path in directory.rglob("*") if path.is_file()]
    return sum({(s.st_dev, s.st_ino): s.st_size for s in stats}.values()) / 1e6


def describe(
    arguments: argparse.Namespace, load_averages: list[tuple[float, ...]], results: list[Result]
) -> dict[str, Any]:
    return {
        "date": date.today().isoformat(),
        "rows": arguments.rows,
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "load_average_before_and_after": load_averages,
        "results": [asdict(result) for result in results],
        "goals": [asdict(verdict) for verdict in verdicts(results)],
    }


def save(record: dict[str, Any], results: list[Result], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"{record['date']}-workload"
    stem.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
    print(f"wrote {stem}.json")
    if save_chart(results, record["machine"]["cores"], stem.with_suffix(".png")):
        print(f"wrote {stem}.png")


if __name__ == "__main__":
    main()
