"""Reports results: one for each engine, the table, and Keytide's goals."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

SUBJECT, INDEXED = OWN = ("keytide", "keytide-index")


@dataclass(frozen=True)
class Result:
    """The results of one engine. `trouble` says why there are none.

    `load`, `upsert` and `read` have the `wall_s` and `cpu_s` of each repetition.
    """

    engine: str
    buckets: int
    rows: int
    load_average: float
    trouble: str = ""
    version: str = ""
    load: list[dict[str, float]] = field(default_factory=list)
    upsert: list[dict[str, float]] = field(default_factory=list)
    read: list[dict[str, float]] = field(default_factory=list)
    disk_mb: float = 0.0
    write_peak_mb: float = 0.0
    read_peak_mb: float = 0.0

    @property
    def name(self) -> str:
        return with_buckets(self.engine, self.buckets)

    @property
    def title(self) -> str:
        """The name with the version."""
        return with_buckets(f"{self.engine} {self.version}".rstrip(), self.buckets)

    @property
    def load_s(self) -> float:
        return self.load[0]["wall_s"]

    @property
    def upsert_median_s(self) -> float:
        return median(one["wall_s"] for one in self.upsert)

    @property
    def read_best_s(self) -> float:
        return min(one["wall_s"] for one in self.read)


@dataclass(frozen=True)
class Goal:
    """Keytide's result must be at most `ratio_max` times that of the best of `peers`."""

    what: str
    figure: Callable[[Result], float]
    ratio_max: float
    peers: tuple[str, ...] = ()
    """Empty: every peer."""
    subject: str = SUBJECT


GOALS = (
    Goal("upsert", lambda result: result.upsert_median_s, 0.5),
    Goal("read", lambda result: result.read_best_s, 0.9),
    Goal("load", lambda result: result.load_s, 1.5, ("deltalake",)),
    Goal(
        "upsert by an index of keys", lambda result: result.upsert_median_s, 0.2,
        ("deltalake", "pylance"), INDEXED,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The outcome of a goal in one run.

    `ratio` and `passed` are None if there was nothing to compare.
    """

    what: str
    ratio_max: float
    ratio: float | None = None
    peer: str | None = None
    passed: bool | None = None

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.what}: not judged: {SUBJECT} or the peers have no figures"
        return (
            f"{self.what}: {self.ratio:.2f} times {self.peer} (goal: at most {self.ratio_max:g}): "
            f"{'pass' if self.passed else 'FAIL'}"
        )


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """The first Keytide result of each kind, compared with peers that had as many rows."""
    finished = [result for result in results if not result.trouble]
    first = {result.engine: result for result in reversed(finished)}
    return [_verdict(goal, first.get(goal.subject), finished) for goal in GOALS]


def with_buckets(text: str, buckets: int) -> str:
    """The name of an engine that may have several buckets."""
    return text if buckets == 1 else f"{text}, {buckets} buckets"


def print_report(results: Sequence[Result], load_averages: Sequence[tuple[float, ...]]) -> None:
    """Print the table of results and the goals, as Markdown."""
    finished = [result for result in results if not result.trouble]
    print_table(_HEADINGS, [_cells(result) for result in finished])
    print("\nCPU seconds of all cores together, which other programs disturb less:\n")
    print_table(_CPU_HEADINGS, [_cpu_cells(result) for result in finished])
    print()
    for result in results:
        if result.trouble:
            print(f"- {result.name}: {result.trouble}")
    for verdict in verdicts(results):
        print(f"- {verdict}")
    before, after = (averages[0] for averages in (load_averages[0], load_averages[-1]))
    cores = os.cpu_count() or 1
    print(f"- load average {before:.1f} before, {after:.1f} after, on {cores} cores")
    if before > cores / 4:
        print("- The machine was busy with other work: these results are provisional.")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print an aligned Markdown table. The first column is text, the others are numbers."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    for row in (headings, rule, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print(f"| {' | '.join(cells)} |")


_HEADINGS = (
    "engine",
    "rows",
    "load s",
    "upsert median s",
    "read s",
    "disk MB",
    "load and upsert RSS MB",
    "read RSS MB",
)


_CPU_HEADINGS = ("engine", "load", "upsert median", "read")


def _cpu_cells(result: Result) -> tuple[str, ...]:
    steps = (result.load, result.upsert, result.read)
    medians = (median(one["cpu_s"] for one in step) for step in steps)
    return (result.title, *(f"{figure:.3f}" for figure in medians))


def _cells(result: Result) -> tuple[str, ...]:
    return (
        result.title,
        f"{result.rows:,}",
        f"{result.load_s:.2f}",
        f"{result.upsert_median_s:.3f}",
        f"{result.read_best_s:.2f}",
        f"{result.disk_mb:,.0f}",
        f"{result.write_peak_mb:,.0f}",
        f"{result.read_peak_mb:,.0f}",
    )


def _verdict(goal: Goal, subject: Result | None, finished: Sequence[Result]) -> Verdict:
    peers = [
        result
        for result in finished
        if subject is not None
        and result.engine not in OWN
        and result.rows == subject.rows
        and (not goal.peers or result.engine in goal.peers)
    ]
    if subject is None or not peers:
        return Verdict(goal.what, goal.ratio_max)
    best = min(peers, key=goal.figure)
    ratio = goal.figure(subject) / goal.figure(best)
    return Verdict(goal.what, goal.ratio_max, ratio, best.name, ratio <= goal.ratio_max)
