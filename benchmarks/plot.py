"""The picture of a run: grouped bars, times on the left, room on the right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from report import SUBJECT, Result

_TIMES: dict[str, Callable[[Result], float]] = {
    "load": lambda result: result.load_s,
    "upsert\n(median of 10)": lambda result: result.upsert_median_s,
    "full read\n(best of 3)": lambda result: result.read_best_s,
}
_ROOM: dict[str, Callable[[Result], float]] = {
    "disk": lambda result: result.disk_mb,
    "memory peak,\nload and upserts": lambda result: result.write_peak_mb,
    "memory peak,\nread": lambda result: result.read_peak_mb,
}
_SUBJECT_COLOURS = ("#0b5394", "#3d85c6", "#6fa8dc", "#9fc5e8")
_PEER_COLOURS = ("#e69138", "#6aa84f", "#8e7cc3", "#c27ba0", "#a2917d", "#76a5af", "#999999")
_GROUP_WIDTH = 0.84


def save_chart(results: Sequence[Result], cores: int, path: Path) -> bool:
    """Draw the results that have figures; false when there is nothing to draw or draw with."""
    finished = [result for result in results if not result.trouble]
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        return False
    if not finished:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (times, room) = plt.subplots(1, 2, figsize=(15, 6), layout="constrained")
    colours = _colours(finished)
    _grouped_bars(times, finished, _TIMES, colours, _seconds_text)
    _grouped_bars(room, finished, _ROOM, colours, lambda value: f"{value:,.0f}")
    times.set_ylabel("seconds, logarithmic; less is better")
    room.set_ylabel("MB, logarithmic; less is better")
    figure.suptitle(_title(finished, cores), fontsize=13)
    handles, labels = times.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=10
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True


def _colours(results: Sequence[Result]) -> list[str]:
    subjects, peers = iter(_SUBJECT_COLOURS * 9), iter(_PEER_COLOURS * 9)
    return [next(subjects if result.engine == SUBJECT else peers) for result in results]


def _grouped_bars(
    axes: Any,
    results: Sequence[Result],
    figures: dict[str, Callable[[Result], float]],
    colours: Sequence[str],
    text: Callable[[float], str],
) -> None:
    width = _GROUP_WIDTH / len(results)
    for number, (result, colour) in enumerate(zip(results, colours, strict=True)):
        offset = width * (number + 0.5) - _GROUP_WIDTH / 2
        places = [group + offset for group in range(len(figures))]
        heights = [figure(result) for figure in figures.values()]
        bars = axes.bar(places, heights, width * 0.92, color=colour, label=_label(result, results))
        weight = "bold" if result.engine == SUBJECT else "normal"
        axes.bar_label(bars, [text(h) for h in heights], padding=2, fontsize=8, fontweight=weight)
    axes.set_yscale("log")
    axes.margins(y=0.08)
    axes.set_xticks(range(len(figures)), list(figures), fontsize=10)
    axes.tick_params(axis="x", length=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _label(result: Result, results: Sequence[Result]) -> str:
    most = max(other.rows for other in results)
    share = "" if result.rows == most else f" (1/{round(most / result.rows)} of the rows)"
    return f"{result.name} {result.version}{share}"


def _title(results: Sequence[Result], cores: int) -> str:
    rows = max(result.rows for result in results)
    return (
        f"{rows:,} rows loaded, ten upserts of {rows // 100:,} (nine of ten keys known), "
        f"then a full read to Arrow; {cores} cores"
    )


def _seconds_text(value: float) -> str:
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.0f}"
