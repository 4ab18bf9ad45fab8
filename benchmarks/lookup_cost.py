"""Compares the cost of a stored changelog (`changelog-producer` = `lookup`) with the necessary
minimum.

Nine tenths of `--rows` rows are loaded in one write, and the last tenth in ten upserts. Then come
upserts of 1 % of the rows, alternating between a table with a changelog and one without: with
random keys ("random"), and with keys of the last tenth ("recent").

The minimum is measured together with each upsert. It is the same upsert without a changelog, plus:

- The rows before it, in the cheaper of two ways. "pages" decodes the row groups of the live files
  that contain the keys (a column chunk has one page) with Polars, and selects the rows. "at hand"
  finds and selects them in the same rows as uncompressed, memory-mapped Arrow files.
- The changelog written and synced as one Parquet file.

The positions of the rows are known in advance and not measured. The first upsert of a process,
which has no lookup files, is measured in new processes and compared with "pages". All others are
compared with the minimum. With random keys, an upsert must take at most 1.3 times the minimum, and
with recent ones at most twice the upsert without a changelog. Background work of an upsert ends
before the next one starts, so that none is measured with the work of another. This work is included
in the measurement of consecutive upserts, which is made for each table separately and includes
closing it. Times are wall-clock times, and processor seconds are printed too: use those if the
machine is busy.

    python benchmarks/lookup_cost.py
    python benchmarks/lookup_cost.py --rows 1000000 --upserts 5
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from measure import import_lazily_loaded, stopwatch
from workload import SCHEMA

import keytide as kt

TABLE = "bench.t"
PRODUCERS = ("none", "lookup")
KINDS = ("random", "recent")
RANDOM_TIMES_MAX, RECENT_TIMES_MAX = 1.3, 2.0
FIRSTS = 3
Took = dict[str, float]


def main() -> None:
    arguments = parse_arguments()
    if arguments.first:
        print(json.dumps(first_upsert(arguments)))
        return
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        arguments.directory = Path(directory)
        prepare(arguments)
        firsts = [in_a_fresh_process(arguments) for _ in range(FIRSTS)]
        results = {kind: measured(kind, arguments) for kind in KINDS}
        rows = {kind: {p: in_a_row(kind, p, arguments) for p in PRODUCERS} for kind in KINDS}
    report(results, rows, firsts)


def prepare(arguments: argparse.Namespace) -> None:
    """The tables, one for each producer: loaded, and with the last tenth upserted."""
    last, step = arguments.rows * 9 // 10, arguments.rows // 100
    for producer in PRODUCERS:
        lake = kt.connect(arguments.directory / producer)
        options = {"changelog-producer": producer}
        table = lake.create_table(TABLE, SCHEMA, ["id"], options=options)
        chance = np.random.default_rng(0)
        keys = chance.permutation(arguments.rows)
        table.write(rows_of(keys[:last], chance))
        for start in range(last, arguments.rows, step):
            table.write(rows_of(keys[start : start + step], chance))


def rows_of(keys: np.ndarray, chance: np.random.Generator) -> pa.Table:
    count = len(keys)
    columns = [
        keys, chance.integers(0, 1000, count), chance.random(count),
        chance.integers(0, 1 << 40, count), chance.integers(0, 100_000, count).astype(str),
    ]  # fmt: skip
    return pa.table(columns, schema=SCHEMA)


def upserts(kind: str, arguments: argparse.Namespace) -> Iterator[pa.Table]:
    """Upserts of existing keys."""
    keys = np.random.default_rng(0).permutation(arguments.rows)
    own = keys if kind == "random" else keys[arguments.rows * 9 // 10 :]
    chance = np.random.default_rng(1)
    for _ in range(arguments.upserts):
        yield rows_of(chance.choice(own, arguments.rows // 100, replace=False), chance)


# -- measuring -----------------------------------------------------------------------------------


def measured(kind: str, arguments: argparse.Namespace) -> dict[str, list[Took]]:
    """The times of each step, one upsert after the other.

    The first one, which creates lookup files, is left out. It is in the same process as the first
    of another kind, so it is not the first of a new process.
    """
    tables = {name: copied(name, kind, arguments) for name in PRODUCERS}
    import_lazily_loaded()
    took: dict[str, list[Took]] = {name: [] for name in (*PRODUCERS, "pages", "at hand", "written")}
    for number, rows in enumerate(upserts(kind, arguments)):
        before = Before.of(tables["lookup"], rows)
        one: dict[str, Took] = {}
        for name, step in before.steps(rows, arguments.directory).items():
            one[name] = timed(step)
        for name, table in tables.items():
            one[name] = timed(partial(table.write, rows))
            table.close()
        check(tables["lookup"], rows)
        if number > 1:  # lookup files are created at the second lookup
            for name, figures in one.items():
                took[name].append(figures)
    return took


def in_a_row(kind: str, producer: str, arguments: argparse.Namespace) -> Took:
    """The time of an upsert in a sequence of them, including all background work.

    The first two, which create lookup files, are left out.
    """
    table = copied(producer, f"{kind}-row", arguments)
    given = [*upserts(kind, arguments)]
    laying_out, others = given[:2], given[2:]
    for rows in laying_out:
        table.write(rows)
    table.close()

    def write_all() -> None:
        for rows in others:
            table.write(rows)
        table.close()

    took = timed(write_all)
    return {unit: seconds / len(others) for unit, seconds in took.items()}


def copied(name: str, kind: str, arguments: argparse.Namespace) -> kt.Table:
    to = arguments.directory / f"{name}-{kind}"
    shutil.copytree(arguments.directory / name, to)
    return kt.connect(to).table(TABLE)


def timed(step: Callable[[], object]) -> Took:
    os.sync()
    with stopwatch() as took:
        step()
    return took


def check(table: kt.Table, rows: pa.Table) -> None:
    """Raise `ValueError` unless each row of the last upsert is emitted with the row before it."""
    told = table.snapshots()[-1].changelog_record_count
    if told != 2 * rows.num_rows:
        raise ValueError(f"{told} changes, expected {2 * rows.num_rows}")


def in_a_fresh_process(arguments: argparse.Namespace) -> dict[str, Took]:
    given = [str(each) for name in ("rows", "upserts", "directory")
             for each in (f"--{name}", getattr(arguments, name))]  # fmt: skip
    run = subprocess.run(
        [sys.executable, __file__, *given, "--first"], stdout=subprocess.PIPE, check=True, text=True
    )
    found: dict[str, Took] = json.loads(run.stdout.splitlines()[-1])
    return found


def first_upsert(arguments: argparse.Namespace) -> dict[str, Took]:
    """The first upsert of this process into each table, and the minimum for it."""
    rows = next(upserts("random", arguments))
    tables = {name: copied(name, f"first-{os.getpid()}", arguments) for name in PRODUCERS}
    import_lazily_loaded()
    took: dict[str, Took] = {}
    for name, table in tables.items():
        took[name] = timed(partial(table.write, rows))
        table.close()
    steps = Before.of(copied("lookup", f"steps-{os.getpid()}", arguments), rows).steps(
        rows, arguments.directory
    )
    for name in ("pages", "written"):
        took[name] = timed(steps[name])
    for name in (*PRODUCERS, "lookup"):
        for kind in ("first", "steps"):
            shutil.rmtree(arguments.directory / f"{name}-{kind}-{os.getpid()}", ignore_errors=True)
    return took


# -- the minimum ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Before:
    """Where the rows before an upsert are: in files, newest first, at ascending positions."""

    files: list[tuple[Path, np.ndarray]]

    @classmethod
    def of(cls, table: kt.Table, rows: pa.Table) -> Before:
        """The newest file of each existing key."""
        live = sorted(table.scan().live.entries, key=lambda each: each.file.level)
        missing, files = pl.Series("id", rows["id"].to_numpy()), []
        for entry in live:
            store, path = table.scan().view.data_file(entry)
            local = Path(str(store.local_path(path)))
            keys = pl.read_parquet(local, columns=["id"])["id"]
            is_found = keys.is_in(missing.implode())
            files.append((local, is_found.arg_true().to_numpy()))
            missing = missing.filter(~missing.is_in(keys.filter(is_found).implode()))
        return cls([(path, at) for path, at in files if len(at)])

    def steps(self, rows: pa.Table, directory: Path) -> dict[str, Callable[[], object]]:
        """The necessary steps, by name."""
        mapped = [_mapped(path, directory) for path, _ in self.files]
        before = pl.concat([frame[at] for frame, (_, at) in zip(mapped, self.files, strict=True)])
        told = pl.concat([before, pl.DataFrame(rows).select(before.columns)]).sort("id").to_arrow()
        return {
            "pages": self.decoded,
            "at hand": lambda: self.picked(mapped, rows),
            "written": lambda: _write_synced(told, directory / "told.parquet"),
        }

    def decoded(self) -> pl.DataFrame:
        """The rows. Only the row groups that contain some are decoded."""
        found = []
        for path, at in self.files:
            footer = pq.read_metadata(path)
            sizes = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
            starts = np.concatenate([[0], np.cumsum(sizes)])
            frame = pl.scan_parquet(path).select(SCHEMA.names)
            for start, stop in _stretches(np.unique(np.searchsorted(starts, at, "right") - 1)):
                first, last = int(starts[start]), int(starts[stop])
                rows = frame.slice(first, last - first).collect()
                found.append(rows[at[(at >= first) & (at < last)] - first])
        return pl.concat(found)

    def picked(self, mapped: list[pl.DataFrame], rows: pa.Table) -> pl.DataFrame:
        """The rows, found by their keys and selected from what is in memory."""
        wanted = np.sort(rows["id"].to_numpy())
        found = []
        for frame, (_, at) in zip(mapped, self.files, strict=True):
            np.searchsorted(frame["id"].to_numpy(), wanted)
            found.append(frame[at])
        return pl.concat(found)


def _stretches(groups: np.ndarray) -> Iterator[tuple[int, int]]:
    """Groups that follow each other, at most eight: the first, and the exclusive end."""
    stretch: list[int] = []
    for group in groups.tolist():
        if stretch and (group != stretch[-1] + 1 or len(stretch) == 8):
            yield stretch[0], stretch[-1] + 1
            stretch = []
        stretch.append(group)
    if stretch:
        yield stretch[0], stretch[-1] + 1


def _mapped(path: Path, directory: Path) -> pl.DataFrame:
    """The rows of a file, mapped from an Arrow file that is created on first use."""
    arrow = directory / f"{path.name}.arrow"
    if not arrow.exists():
        rows = pl.read_parquet(path).select(SCHEMA.names).rechunk()
        made = rows.to_arrow(compat_level=pl.CompatLevel.newest())
        with pa.OSFile(str(arrow), "wb") as sink, pa.ipc.new_file(sink, made.schema) as writer:
            writer.write_table(made)
    found = pa.ipc.open_file(pa.memory_map(str(arrow))).read_all()
    return pl.DataFrame(pl.from_arrow(found, rechunk=False))


def _write_synced(rows: pa.Table, path: Path) -> None:
    with path.open("wb") as file:
        pq.write_table(rows, file, compression="lz4", use_dictionary=["a"], write_statistics=True)
        file.flush()
        os.fsync(file.fileno())


# -- reporting -----------------------------------------------------------------------------------


def report(
    results: dict[str, dict[str, list[Took]]],
    rows: dict[str, dict[str, Took]],
    firsts: list[dict[str, Took]],
) -> None:
    first = {name: [each[name] for each in firsts] for name in firsts[0]}
    print("\nfirst upsert of a process, random keys")
    shown(first)
    least = sums(first, "pages")
    print(f"  minimum, with pages: {least * 1000:.0f} ms of CPU")
    verdict("lookup, times the least with pages", cpu(first["lookup"]) / least, RANDOM_TIMES_MAX)
    for kind, took in results.items():
        print(f"\nlater upserts, {kind} keys")
        shown(took)
        cheaper = min(("pages", "at hand"), key=lambda name: cpu(took[name]))
        for name in ("pages", "at hand"):
            print(f"  minimum, with {name}: {sums(took, name) * 1000:.0f} ms of CPU")
        if kind == "random":
            times = cpu(took["lookup"]) / sums(took, "pages")
            verdict("lookup, times the least with pages", times, RANDOM_TIMES_MAX)
        times = cpu(took["lookup"]) / sums(took, cheaper)
        verdict(f"lookup, times the least with {cheaper}", times, None)
        for unit, name in (("wall_s", "by the clock"), ("cpu_s", "CPU")):
            for middle in (median, mean):
                own, plain = (middle([o[unit] for o in took[p]]) for p in ("lookup", "none"))
                goal = RECENT_TIMES_MAX if kind == "recent" and middle is median else None
                verdict(f"lookup, times none, {middle.__name__} {name}", own / plain, goal)
        print(f"\nupserts in a row until the table is closed, {kind} keys")
        for producer, one in rows[kind].items():
            wall, seconds = one["wall_s"] * 1000, one["cpu_s"] * 1000
            print(f"  {producer:<10}{wall:>8.0f} ms each{seconds:>8.0f} ms of CPU")
        for unit, name in (("wall_s", "by the clock"), ("cpu_s", "CPU")):
            times = rows[kind]["lookup"][unit] / rows[kind]["none"][unit]
            goal = RECENT_TIMES_MAX if kind == "recent" else None
            verdict(f"lookup, times none, {name}", times, goal)


def shown(took: dict[str, list[Took]]) -> None:
    """The median, 95th percentile and worst wall-clock time of each step, and its CPU time."""
    print(f"  {'':<10}{'median':>8}{'mean':>8}{'p95':>8}{'worst':>8}{'CPU, median':>14}{'mean':>8}")
    for name, some in took.items():
        walls = sorted(one["wall_s"] * 1000 for one in some)
        cpus = [one["cpu_s"] * 1000 for one in some]
        p95 = walls[min(len(walls) - 1, int(len(walls) * 0.95))]
        print(
            f"  {name:<10}{median(walls):>8.0f}{mean(walls):>8.0f}{p95:>8.0f}{walls[-1]:>8.0f}"
            f"{median(cpus):>14.0f}{mean(cpus):>8.0f}"
        )


def sums(took: dict[str, list[Took]], rows_by: str) -> float:
    """The minimum, in CPU seconds, with the rows before in one of the ways."""
    return sum(cpu(took[name]) for name in ("none", rows_by, "written"))


def cpu(some: list[Took]) -> float:
    return median(one["cpu_s"] for one in some)


def verdict(what: str, times: float, times_max: float | None) -> None:
    passed = "" if times_max is None else " pass" if times <= times_max else " FAIL"
    goal = "" if times_max is None else f" (at most {times_max:g})"
    print(f"  {what}: {times:.2f}{goal}{passed}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of each table")
    parser.add_argument("--upserts", type=int, default=20, help="upserts of each kind")
    parser.add_argument(
        "--directory", type=Path, help="where tables are created (default: a temporary folder)"
    )
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
