"""Draws the results of a run: bars for each result and engine, or lines that grow with the rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import GOALS, OWN, SUBJECT, Result, verdicts


@dataclass(frozen=True)
class Panel:
    """One group of bars. `goal` names the goal whose limit is drawn."""

    title: str
    figure: Callable[[Result], float]
    goal: str = ""


PANELS = (
    Panel("load, s", lambda result: result.load_s, "load"),
    Panel("one upsert, s (median)", lambda result: result.upsert_median_s, "upsert"),
    Panel("full read, s (best)", lambda result: result.read_best_s, "read"),
    Panel("disk, MB", lambda result: result.disk_mb),
    Panel("peak memory of load and upserts, MB", lambda result: result.write_peak_mb),
    Panel("peak memory of the read, MB", lambda result: result.read_peak_mb),
)
_COLUMNS, _LINE_COLUMNS = 3, 4
_LINE_COLOURS = ("#0b5394", "#e08e0b", "#cc4125")
_SUBJECT_COLOUR, _PEER_COLOUR, _SMALLER_COLOUR = "#0b5394", "#b4bec9", "#dfe4ea"
_GOAL_COLOUR = "#cc4125"
_LINEAR_SPAN_MAX = 12
"""From this ratio of the longest to the shortest bar on, the scale is logarithmic."""


def save_chart(results: Sequence[Result], cores: int, path: Path) -> bool:
    """Draw the available results. False if there are none, or no library to draw them."""
    finished = [result for result in results if not result.trouble]
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        return False
    if not finished:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = -(-len(PANELS) // _COLUMNS)
    figure, grid = plt.subplots(
        rows, _COLUMNS, sharey=True,
        figsize=(14, rows * (1.3 + 0.34 * len(finished))),
    )  # fmt: skip
    figure.set_layout_engine("constrained", hspace=0.06, wspace=0.03)
    limits = _goal_limits(finished)
    for axes, panel in zip(grid.flat, PANELS, strict=True):
        _bars(axes, panel, finished, limits.get(panel.goal))
    figure.suptitle(_title(finished, cores), fontsize=13, x=0.01, ha="left")
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def save_lines(
    found: Mapping[int, Mapping[str, float]],
    panels: Mapping[str, Mapping[str, str]],
    title: str,
    path: Path,
) -> None:
    """Draw how results, given by rows and name, grow with the rows.

    `panels` has the results for each title, by name, with their labels. Raises
    `ModuleNotFoundError` without matplotlib.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(
        -(-len(panels) // _LINE_COLUMNS), _LINE_COLUMNS, layout="constrained", figsize=(14, 6)
    )
    for axes, (panel, names) in zip(grid.flat, panels.items(), strict=True):
        _lines(axes, panel, names, found)
    figure.suptitle(title, fontsize=13, x=0.01, ha="left")
    # Not transparent, because pages may be dark. Without a date, equal results give equal files.
    figure.savefig(path, facecolor="white", metadata={"Date": None})
    plt.close(figure)


def _lines(
    axes: Any, title: str, names: Mapping[str, str], found: Mapping[int, Mapping[str, float]]
) -> None:
    for (name, label), colour in zip(names.items(), _LINE_COLOURS, strict=False):
        points = [(rows, figures[name]) for rows, figures in found.items() if name in figures]
        if not points:
            continue
        rows, values = zip(*points, strict=True)
        axes.plot(rows, values, "o-", color=colour, label=label)
        if "rows a second" not in name:
            logs = [values[0] * math.log(each) / math.log(rows[0]) for each in rows]
            axes.plot(rows, logs, "--", color=colour, linewidth=0.8)
    axes.set(xscale="log", xticks=list(found))
    axes.set_ylim(bottom=0)
    axes.set_title(title, fontsize=10.5, loc="left", fontweight="bold")
    axes.xaxis.set_minor_formatter("")
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.tick_params(which="both", length=0, labelsize=8, colors="#555555")
    axes.grid(axis="y", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    if len(names) > 1:
        axes.legend(fontsize=8, frameon=False)


def _short(rows: float) -> str:
    return f"{rows / 1e9:g} bn" if rows >= 1e9 else f"{rows / 1e6:g} m"


def _bars(axes: Any, panel: Panel, results: Sequence[Result], limit: float | None) -> None:
    values = [panel.figure(result) for result in results]
    most = max(result.rows for result in results)
    bars = axes.barh(
        [_label(result, most) for result in results],
        values,
        height=0.72,
        color=[_colour(result, most) for result in results],
    )
    for label, result in zip(
        axes.bar_label(bars, [_text(value) for value in values], padding=3, fontsize=9),
        results,
        strict=True,
    ):
        label.set_fontweight("bold" if result.engine in OWN else "normal")
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.6})
    shown = [*values, *([limit] if limit is not None else [])]
    is_log = max(shown) > _LINEAR_SPAN_MAX * min(shown)
    if is_log:
        axes.set_xscale("log")
        axes.set_xlim(min(shown) / 2, max(shown) * 3)
    else:
        axes.set_xlim(0, max(shown) * 1.18)
    if limit is not None:
        axes.axvline(limit, color=_GOAL_COLOUR, linewidth=1.3, linestyle="--", zorder=0.5)
    title = panel.title + (", log scale" if is_log else "")
    axes.set_title(title, fontsize=10.5, loc="left", fontweight="bold")
    if limit is not None:
        axes.set_title(f"goal {_text(limit)}", fontsize=9, loc="right", color=_GOAL_COLOUR)
    _tidy(axes)


def _tidy(axes: Any) -> None:
    if not axes.yaxis_inverted():
        axes.invert_yaxis()  # the axis is shared, so invert it once
    axes.xaxis.set_minor_formatter("")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.tick_params(axis="x", which="both", length=0, labelsize=8, colors="#777777")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color("#999999")
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text().startswith(SUBJECT) else "normal")


def _goal_limits(results: Sequence[Result]) -> dict[str, float]:
    figures = {goal.what: goal.figure for goal in GOALS}
    by_name = {result.name: result for result in results}
    return {
        verdict.what: verdict.ratio_max * figures[verdict.what](by_name[verdict.peer])
        for verdict in verdicts(results)
        if verdict.peer is not None
    }


def _colour(result: Result, most: int) -> str:
    if result.engine in OWN:
        return _SUBJECT_COLOUR
    return _PEER_COLOUR if result.rows == most else _SMALLER_COLOUR


def _label(result: Result, most: int) -> str:
    share = "" if result.rows == most else f"\n(1/{round(most / result.rows)} of the rows)"
    return f"{result.title}{share}"


def _title(results: Sequence[Result], cores: int) -> str:
    rows = max(result.rows for result in results)
    return (
        f"{rows:,} rows loaded, ten upserts of {rows // 100:,} (nine of ten keys known), then a "
        f"full read to Arrow. {cores} cores, shorter is better."
    )


def _text(value: float) -> str:
    if value < 0.1:
        return f"{value:.3f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
