"""Measures the life of a table: a steady stream of commits, with reads in between.

Loads `--rows` rows and makes `--commits` commits of `--commit-rows` rows, nine out of ten with an
existing key, with each engine in a separate process. Prints the time of a commit and the bytes
written for each byte of the rows. After each tenth of the commits, prints the number of files and
the time of a full read. Then prints the same after each engine's own full compaction, and the
result for each of Keytide's goals. Rows are compared at each read, and wrong rows end the engine's
run. "closing" is what an engine still does after the commits, such as background compactions.

    python benchmarks/steady.py
    python benchmarks/steady.py --rows 1000000 --commits 20 --commit-rows 10000
    python benchmarks/steady.py --buckets 2 --commits 200 --commit-rows 20000 --looks 1 \\
        --engines keytide keytide-in-front keytide-uncompacted chdb chdb-synced deltalake
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from engines import ENGINES, SLOW, VARIANTS, Engine, Keytide
from measure import import_lazily_loaded, installed_version, stopwatch
from report import SUBJECT, print_table
from workload import Digest, digest, open_workload, prepare

READS = 3
PERCENTS = (95, 99)
READ_COMPACTED_MAX = 1.0
READ_OVERLAPPING_MAX = 1.5
COMMIT_MAX = 0.8
WORST_MAX, SUM_MAX = 3.0, 1.5
UNCOMPACTED = "keytide-uncompacted"

Figures = dict[str, Any]


def main() -> None:
    arguments = parse_arguments()
    if arguments.part:
        print(json.dumps(life(arguments.part, arguments)))
        return
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
    found = {}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory) as scratch:
        prepare(
            Path(scratch, "workload"),
            arguments.rows,
            upserts=arguments.commits,
            upsert_rows=arguments.commit_rows,
        )
        for engine in arguments.engines:
            print(f"measuring {engine} ...", flush=True)
            figures = measured(engine, scratch, arguments)
            if "trouble" in figures:
                print(f"  {figures['trouble']}")
            else:
                found[engine] = figures
    report(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def measured(engine: str, scratch: str, arguments: argparse.Namespace) -> Figures:
    """The results of an engine, or its `trouble`. Its table is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"{engine}-", dir=scratch) as table:
        command = [sys.executable, __file__, "--part", engine, "--directory", table]
        command += ["--looks", str(arguments.looks), "--buckets", str(arguments.buckets)]
        os.sync()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines() or ["nothing"]
    if done.returncode:
        return {"trouble": f"failed: {lines[-1]}"}
    figures: Figures = json.loads(lines[-1])
    return figures


# -- one engine, in a separate process -------------------------------------------------------------


def life(name: str, arguments: argparse.Namespace) -> Figures:
    """Load, stream and compact one table."""
    workload = open_workload(arguments.directory.parent / "workload")
    try:
        engine = ENGINES[name](arguments.directory, arguments.buckets)
    except ModuleNotFoundError as error:
        return {"trouble": f"missing: {error}"}
    engine.create()
    import_lazily_loaded()
    engine.load(workload.load_rows())
    os.sync()
    commits, looks, row_bytes, before = [], [], 0, written_bytes()
    every = max(1, len(workload.digests) // arguments.looks)
    for number, rows in enumerate(workload.upserts()):
        row_bytes += rows.nbytes
        with stopwatch() as took:
            engine.upsert(rows)
        commits.append(took)
        if (number + 1) % every == 0:
            looks.append(look(engine, workload.digests[number]))
    with stopwatch() as closing:
        settle(engine)
    amplification = (written_bytes() - before) / row_bytes
    figures = {
        "version": installed_version(engine.distribution),
        "commits": commits,
        "closing": closing,
        "write_amplification": amplification,
        "looks": looks,
        "compacted": compacted(engine, workload.expected),
    }
    engine.close()
    return figures


def settle(engine: Engine) -> None:
    """Wait for background work of Keytide's engines. Others do not report it."""
    if isinstance(engine, Keytide):
        engine.close()


def compacted(engine: Engine, expected: Digest) -> Figures | None:
    """The time and the effect of a full compaction. None if the engine has none."""
    if not engine.compacts:
        return None
    before = written_bytes()
    with stopwatch() as took:
        engine.compact()
        os.sync()
    written = written_bytes() - before
    return {"took": took, "written_bytes": written, **look(engine, expected)}


def look(engine: Engine, expected: Digest) -> Figures:
    """The number of files, and the best of some reads. Raises ValueError for wrong rows."""
    # Engines with background compaction may remove folders during the walk.
    files = sum(len(names) for _, _, names in os.walk(engine.directory))
    rows, reads = None, []
    for _ in range(READS):
        rows = None  # one result in memory at a time
        with stopwatch() as took:
            rows = engine.read()
        reads.append(took)
    check(rows, expected)
    return {"files": files, "read": min(reads, key=lambda took: took["wall_s"])}


def check(rows: pa.Table, expected: Digest) -> None:
    found = digest(rows)
    if found != expected:
        raise ValueError(f"wrong rows: {found}, expected {expected}")


def written_bytes() -> int:
    """The bytes that this process, with its threads, has written to disk (Linux)."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["write_bytes"])


# -- output ----------------------------------------------------------------------------------------


def report(found: dict[str, Figures]) -> None:
    """Print the tables and the goals, as Markdown."""
    print("\nCommits, with the CPU seconds of all cores in brackets:\n")
    headings = (
        "engine",
        "median s",
        *(f"p{percent}" for percent in PERCENTS),
        "worst s",
        "sum s",
        "closing s",
        "written / rows",
        "compaction s",
    )
    print_table(headings, [commit_cells(name, figures) for name, figures in found.items()])
    looks = max((len(figures["looks"]) for figures in found.values()), default=0)
    headings = ("engine", *(f"{n + 1}/{looks}" for n in range(looks)), "compacted")
    print("\nFull read, seconds (CPU seconds), during the commits:\n")
    print_table(headings, [[n, *map(seconds, reads(f))] for n, f in found.items()])
    print("\nFiles, including those of older versions:\n")
    print_table(headings, [[n, *map(file_count, all_looks(f))] for n, f in found.items()])
    print()
    for line in goals(found):
        print(f"- {line}")


def commit_cells(name: str, figures: Figures) -> Sequence[str]:
    commits, compaction = figures["commits"], figures["compacted"]
    middle = {key: median(one[key] for one in commits) for key in ("wall_s", "cpu_s")}
    total = {key: sum(one[key] for one in commits) for key in ("wall_s", "cpu_s")}
    in_order = sorted(commits, key=lambda one: float(one["wall_s"]))
    return (
        f"{name} {figures['version']}",
        seconds(middle),
        *(seconds(in_order[len(in_order) * percent // 100]) for percent in PERCENTS),
        seconds(in_order[-1]),
        seconds(total),
        seconds(figures["closing"]),
        f"{figures['write_amplification']:.1f}",
        seconds(compaction and compaction["took"]),
    )


def all_looks(figures: Figures) -> list[Figures | None]:
    return [*figures["looks"], figures["compacted"]]


def reads(figures: Figures) -> list[dict[str, float] | None]:
    return [one and one["read"] for one in all_looks(figures)]


def seconds(took: dict[str, float] | None) -> str:
    return "none" if took is None else f"{took['wall_s']:.3f} ({took['cpu_s']:.2f})"


def file_count(one: Figures | None) -> str:
    return "none" if one is None else f"{one['files']:,}"


def goals(found: dict[str, Figures]) -> list[str]:
    def compacted_s(figures: Figures) -> float:
        return float(figures["compacted"]["read"]["wall_s"])

    def overlapping_s(figures: Figures) -> float:
        return median(one["read"]["wall_s"] for one in figures["looks"])

    def commit_s(figures: Figures) -> float:
        return median(one["wall_s"] for one in figures["commits"])

    wanted = (
        ("read after compaction", compacted_s, "deltalake", READ_COMPACTED_MAX),
        ("read while runs overlap, median", overlapping_s, "deltalake", READ_OVERLAPPING_MAX),
        ("commit, median", commit_s, "chdb", COMMIT_MAX),
    )
    lines = list(own_goals(found))
    for what, figure, peer, ratio_max in wanted:
        if SUBJECT not in found or peer not in found:
            lines.append(f"{what}: not judged: {SUBJECT} or {peer} has no figures")
            continue
        ratio = figure(found[SUBJECT]) / figure(found[peer])
        verdict = "pass" if ratio <= ratio_max else "FAIL"
        lines.append(f"{what}: {ratio:.2f} times {peer} (goal: at most {ratio_max:g}): {verdict}")
    return lines


def own_goals(found: dict[str, Figures]) -> Iterator[str]:
    """Keytide compared with itself: with its median commit, and with writing without compaction."""
    if SUBJECT not in found:
        return
    walls = sorted(float(one["wall_s"]) for one in found[SUBJECT]["commits"])
    ratio = walls[len(walls) * 99 // 100] / median(walls)
    verdict = "pass" if ratio <= WORST_MAX else "FAIL"
    yield f"p99 of commits: {ratio:.2f} times the median (goal: at most {WORST_MAX:g}): {verdict}"
    if UNCOMPACTED in found:
        alone = sum(one["wall_s"] for one in found[UNCOMPACTED]["commits"])
        ratio = (sum(walls) + found[SUBJECT]["closing"]["wall_s"]) / alone
        verdict = "pass" if ratio <= SUM_MAX else "FAIL"
        yield (
            f"sum of commits and closing: {ratio:.2f} times without compaction "
            f"(goal: at most {SUM_MAX:g}): {verdict}"
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows to load")
    parser.add_argument("--commits", type=int, default=100)
    parser.add_argument("--commit-rows", type=int, default=100_000, help="rows of each commit")
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=ENGINES,
        default=[name for name in ENGINES if name not in (*SLOW, *VARIANTS)],
        help="engines to measure (default: all except the slow ones and variants)",
    )
    parser.add_argument(
        "--looks", type=int, default=10, help="number of full reads between the commits"
    )
    parser.add_argument(
        "--buckets", type=int, default=1, help="number of buckets, for engines that have buckets"
    )
    parser.add_argument(
        "--directory", type=Path, default=Path.cwd(), help="where temporary tables are created"
    )
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--part", choices=ENGINES, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
