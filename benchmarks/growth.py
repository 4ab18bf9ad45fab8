"""Measures how the cost of one table grows with its number of rows.

Creates tables of narrow rows, a BIGINT key and a BIGINT value, in pieces of `--piece-rows`, so that
no process ever has more than one piece in memory. Pieces are in key order, or with `--random` each
is spread over all keys. Within a piece, rows are in random order. A table has one bucket for each
`--bucket-rows` rows. Then each of these steps runs in a separate process:

- load: rows per second, including the compactions in that time; also for the first and the last
  tenth of the pieces
- upsert: 20 times 10,000 rows with random keys, after one that opens the table
- compact: `Table.compact()` immediately afterwards
- get: 200 random keys with nothing of the data files cached ("cold"), and 200 after as many others
- range: the rows of 10,000 consecutive keys, 20 times after a first one
- plan: planning all files, in a process that sees the table for the first time

"anon" is the peak anonymous memory of a process. "peak" is its peak resident memory, which includes
pages of mapped files that the system may reclaim, so it is not judged. Memory grows up to what
options and constants allow: 256 MB for the process, what it writes and what it caches for lookups.
For each parallel compaction (at most as many as cores and buckets), it adds a window of 256 MB and
a file of 256 MB that is written in memory. Memory is judged only above that.

The rows per second of a load decrease at first: the first five pieces wait for no compaction, and
all others share the cores with compactions, most of which a short load leaves for later. So a load
is judged by its rows per second including closing the table, which waits for compactions. Keys in
order are rewritten until they fill a file, once or twice for any number of rows. With `--random`,
they are rewritten once for each doubling of the rows, as in any tree of sorted runs. The processor
time per row, including compactions and creating the rows, shows the work independent of other users
of the machine. Bytes on disk include what compactions have replaced, which snapshots keep for an
hour: about 12 bytes per row for what a write leaves, and 3 for each rewrite.

With `--results`, results are stored in a file as soon as a step has finished, and a size with all
steps is not measured again: an interrupted run continues with the size that it had reached. A
killed run leaves its folder `growth-*` in `--directory`.

From `--metadata-from` rows on, tables consist of metadata only: the old files do not exist. Then
only upserts, compactions and plans are measured, none of which opens an old file.

Between two consecutive sizes, a result may grow like the logarithm of the rows, plus a quarter for
noise. Results that grow faster are reported. For rows per second, which should stay constant, the
inverse is used. An upsert reaches all buckets, so its cost is proportional to their number.

    python benchmarks/growth.py
    python benchmarks/growth.py --rows 10000000 100000000 1000000000 --results growth.json \\
        --picture docs/images/growth.svg
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from kept_figures import KeptFigures
from listed import list_files
from measure import import_lazily_loaded, peak_memory_mb, stopwatch
from plot import save_lines
from report import print_table

import keytide as kt
from keytide.format.binary_row import encode_rows
from keytide.format.cache import FILES
from keytide.format.manifest_entry import ManifestEntry
from keytide.types import AtomicType

TABLE = "bench.t"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
UPSERTS, UPSERT_ROWS = 20, 10_000
GETS = 200
RANGES, RANGE_KEYS = 20, 10_000
FILE_ROWS = 8_000_000
"""For files that consist of metadata only."""
SLACK = 1.25
UNJUDGED = (
    "files", "load, rows a second", "load, rows a second, first tenth",
    "load, rows a second, last tenth",
)  # fmt: skip
"""Results that differ for few and many rows, see above."""
PROCESS_MB, COMPACTION_MB = 256, 512
"""The memory that a process may use for itself whatever its table, and for each compaction."""
_PRIME = 2_654_435_761
_SAMPLE_S = 0.01

Figures = dict[str, float]


def main() -> None:
    arguments = parse_arguments()
    if arguments.step:
        print(json.dumps(STEPS[arguments.step](arguments)))
        return
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
    kept = KeptFigures(arguments.results, settings(arguments))
    found: dict[int, Figures] = {}
    for rows in sorted(arguments.rows):
        print(f"\n{rows:,} rows" + (", metadata only" if is_listed(rows, arguments) else ""))
        found[rows] = measured(rows, arguments, kept)
        for name, value in found[rows].items():
            print(f"  {name:<32}{value:>14,.{_places(value)}f}", flush=True)
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    print()
    print_table(
        ["", *(f"{rows:,}" for rows in found)],
        [(name, *(_cell(figures.get(name)) for figures in found.values())) for name in names],
    )
    print()
    for line in findings(found, arguments.bucket_rows):
        print(f"- {line}")
    print(f"\nload average {os.getloadavg()[0]:.1f} after")
    if arguments.picture is not None:
        save_lines(found, _PANELS, _title(found), arguments.picture)


def measured(rows: int, arguments: argparse.Namespace, kept: KeptFigures) -> Figures:
    """The results of one table, step by step, each in a separate process."""
    listed = is_listed(rows, arguments)
    steps = ("list", "upsert", "compact", "plan") if listed else ("load", *MEASURES)
    if kept.has(rows, steps):
        return kept.figures(rows)
    with tempfile.TemporaryDirectory(prefix="growth-", dir=arguments.directory) as warehouse:
        for step in steps:
            given = {
                "rows": rows, "bucket-rows": arguments.bucket_rows,
                "piece-rows": arguments.piece_rows, "directory": warehouse, "step": step,
            }  # fmt: skip
            command = [str(each) for name, value in given.items() for each in (f"--{name}", value)]
            flags = ["--random"] if arguments.random else []
            print(f"  {time.strftime('%H:%M:%S')} {step}", flush=True)
            run = subprocess.run(
                [sys.executable, __file__, *command, *flags],
                stdout=subprocess.PIPE, check=True, text=True,
            )  # fmt: skip
            kept.add(rows, step, json.loads(run.stdout.splitlines()[-1]))
    return kept.figures(rows)


def settings(arguments: argparse.Namespace) -> dict[str, int]:
    """The settings that all results in one file must have in common."""
    return {
        "cores": os.cpu_count() or 1, "piece-rows": arguments.piece_rows,
        "bucket-rows": arguments.bucket_rows, "random": int(arguments.random),
        "metadata-from": arguments.metadata_from or 0,
    }  # fmt: skip


def is_listed(rows: int, arguments: argparse.Namespace) -> bool:
    """Whether the files of a table are metadata only."""
    return arguments.metadata_from is not None and rows >= arguments.metadata_from


# -- steps, each in a separate process ---------------------------------------------------------


def load(arguments: argparse.Namespace) -> Figures:
    """Write all pieces."""
    (rows,) = arguments.rows
    table = _made(arguments)
    import_lazily_loaded()
    seconds = []
    with _memory("load") as memory, stopwatch() as whole:
        for piece in pieces(rows, arguments):
            with stopwatch() as one:
                table.write(piece)
            seconds.append(one["wall_s"] / piece.num_rows)
            _tell_progress(len(seconds) * arguments.piece_rows, rows)
        with stopwatch() as closing:
            table.close()
    tenth, pace = max(1, len(seconds) // 10), len(seconds) / sum(seconds)
    size = sum(file.stat().st_size for file in arguments.directory.rglob("*.parquet"))
    return {
        "load, rows a second": pace,
        "load, rows a second, closed": rows / (rows / pace + closing["wall_s"]),
        "load, CPU ns a row": whole["cpu_s"] * 1e9 / rows,
        "load, rows a second, first tenth": tenth / sum(seconds[:tenth]),
        "load, rows a second, last tenth": tenth / sum(seconds[-tenth:]),
        "disk, bytes a row": size / rows,
        **memory,
    }


def _tell_progress(done: int, rows: int) -> None:
    twentieth = max(1, rows // 20)
    if done // twentieth > (done - 1) // twentieth or done >= rows:
        now = time.strftime("%H:%M:%S")
        # Standard output is for the results.
        print(f"  {now} {min(done, rows):,} of {rows:,} rows", file=sys.stderr, flush=True)


def listed(arguments: argparse.Namespace) -> Figures:
    """A table in which all files except the first are metadata only."""
    (rows,) = arguments.rows
    table = _made(arguments)
    table.write(pa.table([[0], [0]], schema=SCHEMA))
    list_files(table, list(_copies(table.stored.newest_files().entries[0], rows)))
    return {}


def upsert(arguments: argparse.Namespace) -> Figures:
    """Upserts of random keys. The first one opens the table."""
    (rows,) = arguments.rows
    chance, table = np.random.default_rng(1), _opened(arguments)

    def one() -> None:
        ids = np.unique(chance.integers(0, rows, UPSERT_ROWS))
        chance.shuffle(ids)
        table.write(pa.table([ids, ids], schema=SCHEMA))

    with _memory("upsert") as memory:
        took = [_seconds(one) for _ in range(1 + UPSERTS)]
    return {"upsert, first ms": took[0] * 1000} | _times("upsert", took[1:]) | memory


def compact(arguments: argparse.Namespace) -> Figures:
    table = _opened(arguments)
    with _memory("compact") as memory, stopwatch() as took:
        table.compact()
    return {"compact, ms": took["wall_s"] * 1000, "compact, CPU ms": took["cpu_s"] * 1000} | memory


def get(arguments: argparse.Namespace) -> Figures:
    (rows,) = arguments.rows
    table = _opened(arguments)
    keys = iter(np.random.default_rng(2).integers(0, rows, 3 * GETS).tolist())

    def cold() -> None:
        FILES.forget()
        _found(table, next(keys))

    with _memory("get") as memory:
        cold_took = [_seconds(cold) for _ in range(GETS)]
        took = [_seconds(lambda: _found(table, next(keys))) for _ in range(2 * GETS)]
    first = {"get, first ms": cold_took[0] * 1000}
    return first | _times("get, cold", cold_took) | _times("get", took[GETS:]) | memory


def _found(table: kt.Table, key: int) -> None:
    if table.get(key) is None:
        raise ValueError(f"key {key} is not found")


def ranges(arguments: argparse.Namespace) -> Figures:
    (rows,) = arguments.rows
    table, chance = _opened(arguments), np.random.default_rng(3)

    def one() -> None:
        low = int(chance.integers(0, rows - RANGE_KEYS))
        found = table.scan(where=f"id >= {low} AND id < {low + RANGE_KEYS}").to_arrow()
        if found.num_rows != RANGE_KEYS:
            raise ValueError(f"{found.num_rows} rows, expected {RANGE_KEYS}")

    with _memory("range") as memory:
        took = [_seconds(one) for _ in range(1 + RANGES)]
    return {"range, first ms": took[0] * 1000} | _times("range", took[1:]) | memory


def plan(arguments: argparse.Namespace) -> Figures:
    import_lazily_loaded()
    with _memory("plan") as memory, stopwatch() as took:
        planned = kt.connect(arguments.directory).table(TABLE).scan().plan
    files = sum(len(bucket.files) for bucket in planned.buckets)
    return {"plan, ms": took["wall_s"] * 1000, "plan, CPU ms": took["cpu_s"] * 1000,
            "files": files} | memory  # fmt: skip


STEPS: Mapping[str, Callable[[argparse.Namespace], Figures]] = {
    "load": load, "list": listed, "upsert": upsert, "compact": compact, "get": get,
    "range": ranges, "plan": plan,
}  # fmt: skip
MEASURES = ("upsert", "compact", "get", "range", "plan")


# -- tables --------------------------------------------------------------------------------------


def _made(arguments: argparse.Namespace) -> kt.Table:
    (rows,) = arguments.rows
    buckets = max(1, -(-rows // arguments.bucket_rows))
    lake = kt.connect(arguments.directory)
    return lake.create_table(TABLE, SCHEMA, ["id"], options={"bucket": str(buckets)})


def _opened(arguments: argparse.Namespace) -> kt.Table:
    import_lazily_loaded()
    return kt.connect(arguments.directory).table(TABLE)


def pieces(rows: int, arguments: argparse.Namespace) -> Iterator[pa.Table]:
    """All keys starting at 0, each once."""
    chance = np.random.default_rng(0)
    for start in range(0, rows, arguments.piece_rows):
        places = np.arange(start, min(start + arguments.piece_rows, rows))
        # Without an array of all keys: the multiplier has no common factor with any number of rows
        # here, so each position has its own key.
        ids = places * _PRIME % rows if arguments.random else chance.permutation(places)
        yield pa.table([ids, ids + 1], schema=SCHEMA)


def _copies(entry: ManifestEntry, rows: int) -> Iterator[ManifestEntry]:
    """Files of the highest level that follow each other in key order, the same in each bucket."""
    long, buckets = AtomicType("BIGINT"), entry.total_buckets
    per_bucket = max(1, rows // buckets // FILE_ROWS)
    lows = np.linspace(0, rows, per_bucket, endpoint=False, dtype=np.int64)
    highs = np.append(lows[1:] - 1, rows)
    ends = [encode_rows([pa.array(each)], [long]) for each in (lows, highs)]
    for number in range(per_bucket * buckets):
        place, bucket = divmod(number, buckets)
        file = replace(
            entry.file,
            file_name=f"data-{uuid.uuid4()}-0.parquet",
            file_size=FILE_ROWS * 12,
            row_count=FILE_ROWS,
            min_key=ends[0][place],
            max_key=ends[1][place],
            min_sequence_number=1,
            max_sequence_number=1,
            level=5,
        )
        yield replace(entry, bucket=bucket, file=file)


# -- measuring -----------------------------------------------------------------------------------


def _seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _times(what: str, seconds: Sequence[float]) -> Figures:
    in_order = sorted(each * 1000 for each in seconds)
    return {
        f"{what}, median ms": median(in_order),
        f"{what}, p95 ms": in_order[min(len(in_order) - 1, int(len(in_order) * 0.95))],
        f"{what}, worst ms": in_order[-1],
    }


@contextmanager
def _memory(what: str) -> Iterator[Figures]:
    """The peak memory during the block, in megabytes."""
    figures: Figures = {}
    most, is_over = _anonymous_mb(), threading.Event()

    def watch() -> None:
        nonlocal most
        while not is_over.wait(_SAMPLE_S):
            most = max(most, _anonymous_mb())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield figures
    finally:
        is_over.set()
        watching.join()
    figures[f"{what}, anon MB"] = max(most, _anonymous_mb())
    figures[f"{what}, peak MB"] = peak_memory_mb()


def _anonymous_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


# -- reporting -----------------------------------------------------------------------------------


def findings(found: dict[int, Figures], bucket_rows: int) -> Iterator[str]:
    """Which results grow faster than the logarithm of the rows."""
    faster = False
    for few, many in pairwise(found):
        at_once = min(os.cpu_count() or 1, -(-many // bucket_rows))
        times_max = math.log(many) / math.log(few) * SLACK
        for name in found[few]:
            if name not in found[many] or name in UNJUDGED or name.endswith("peak MB"):
                continue
            before, after = found[few][name], found[many][name]
            if name.startswith("load, rows"):
                before, after = after, before
            if name.endswith("anon MB") and after <= PROCESS_MB + at_once * COMPACTION_MB:
                continue
            if before and after / before > times_max:
                faster = True
                yield (
                    f"faster than logarithmically from {few:,} to {many:,} rows: {name}, "
                    f"{after / before:.2f} times (at most {times_max:.2f})"
                )
    if not faster and len(found) > 1:
        yield "nothing grows faster than logarithmically"


def _title(found: dict[int, Figures]) -> str:
    sizes = " to ".join(f"{rows:,}" for rows in (min(found), max(found)))
    return (
        f"One table of {sizes} narrow rows, {os.cpu_count()} cores. Dashed: what grows as the "
        "logarithm of the rows."
    )


_PANELS: Mapping[str, Mapping[str, str]] = {
    "load, rows a second": {
        "load, rows a second": "of writes", "load, rows a second, closed": "once compacted",
        "load, rows a second, last tenth": "last tenth of writes",
    },
    "upsert of 10,000 rows, ms": {"upsert, median ms": "median", "upsert, p95 ms": "p95"},
    "get, ms": {
        "get, cold, median ms": "cold, median", "get, median ms": "median", "get, p95 ms": "p95",
    },
    "range of 10,000 keys, ms": {"range, median ms": "median", "range, p95 ms": "p95"},
    "compaction behind 20 upserts, ms": {"compact, ms": "all"},
    "plan of all files, ms": {"plan, ms": "all"},
    "memory of writers, MB": {
        "load, anon MB": "load", "upsert, anon MB": "upsert", "compact, anon MB": "compact",
    },
    "memory of readers, MB": {
        "get, anon MB": "get", "range, anon MB": "range", "plan, anon MB": "plan",
    },
}  # fmt: skip


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:,.{_places(value)}f}"


def _places(value: float) -> int:
    return 0 if abs(value) >= 100 else 2


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", type=int, default=[1_000_000, 10_000_000, 100_000_000])
    parser.add_argument("--piece-rows", type=int, default=1_000_000, help="rows of one write")
    parser.add_argument("--bucket-rows", type=int, default=100_000_000, help="rows of one bucket")
    parser.add_argument("--random", action="store_true", help="spread each piece over all keys")
    parser.add_argument(
        "--metadata-from", type=int, help="from this many rows on, tables are metadata only"
    )
    parser.add_argument("--results", type=Path, help="file that stores the results of each size")
    parser.add_argument("--picture", type=Path, help="draw the results to this file")
    parser.add_argument(
        "--directory", type=Path, default=Path.cwd(), help="where tables are created"
    )
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
